"""Plain arrays on disk, written and read through the block I/O engine."""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import numpy as np

import outcrop._core as _core
from outcrop.errors import ArgumentError, ChecksumError, FormatError
from outcrop.runtime import memory_tables
from outcrop.runtime.mapping import map_file
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.runtime.sharing import SharedMemory, may_be_shared, share_of
from outcrop.store.manifest import PAGE_SUMS, ArraySpec
from outcrop.store.page_sums import PageSums

# Large: a rehearsal does not read them.
_REHEARSED_TAGS = ("topology", "host_cache", "device_cache", "numbering", "edges", "features")

# NumPy has no bfloat16: its 16 raw bits are kept as uint16.
_STORAGE = {
    name: np.dtype(name)
    for name in (
        "float16",
        "float32",
        "float64",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "bool",
    )
} | {"bfloat16": np.dtype("uint16")}


def storage_dtype(name: str) -> np.dtype:
    """Returns the NumPy dtype that holds dtype ``name`` on disk, little-endian."""
    try:
        return _STORAGE[name].newbyteorder("<")
    except KeyError:
        raise FormatError(
            f"dtype {name!r} is not supported; supported: {', '.join(sorted(_STORAGE))}"
        ) from None


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Returns the bytes of a C-contiguous array as a flat uint8 view."""
    return array.reshape(-1).view(np.uint8)


def write_buffer_bytes(limit_bytes: int) -> int:
    """Counts the bytes that an :class:`ArrayWriter` holds under a memory budget of ``limit_bytes``."""
    return memory_tables.WRITE_BUFFER.bytes_of(limit_bytes)


def _only_counts(runtime: Runtime, tag: str) -> bool:
    """Tells whether memory is taken and what belongs there is not read."""
    return runtime.measures or (runtime.rehearsal is not None and tag.rpartition(".")[2] in _REHEARSED_TAGS)


def hold(runtime: Runtime, tag: str, nbytes: int, fill: Callable[[np.ndarray], None]) -> np.ndarray:
    """Returns uint8 [nbytes] that ``fill`` has written, held under ``tag``; once a machine where ranks share it."""
    sharing = runtime.sharing if may_be_shared(tag) else None
    if sharing is None or not nbytes:
        out = runtime.budget.empty(tag, nbytes)
        if not _only_counts(runtime, tag):
            fill(out)
        return out
    reserved = runtime.budget.reserve(tag, share_of(nbytes, sharing))
    if _only_counts(runtime, tag) or not isinstance(sharing, SharedMemory):
        out = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)  # of which no page is touched
    else:
        out = sharing.array(nbytes, fill)
    weakref.finalize(out, reserved.release).atexit = False
    return out


class ArrayWriter:
    """Appends rows to one array file; ``finish`` pads it, syncs it and returns its spec.

    One half of its buffer is written while the other is filled: a write that fails raises IoError with the next one,
    or in ``finish``. Where a runtime only measures, the file stays empty.

    Args:
        folder: Where the file ``<name>.bin`` is created.
        dtype: Name as in :class:`ArraySpec`.
        row_shape: Shape of one row; ``()`` for a vector.
        page_sums: Whether the checksum of each page is written too, as array ``<name>_page_crc``.
        buffer_bytes: Bytes of the write buffer, whole pages; None = a share of the budget.
    """

    def __init__(
        self,
        runtime: Runtime,
        folder: Path,
        name: str,
        dtype: str,
        row_shape: tuple[int, ...] = (),
        *,
        page_sums: bool = False,
        buffer_bytes: int | None = None,
    ):
        self._name, self._io, self._measures = name, runtime.io, runtime.measures
        self._dtype, self._row_shape = dtype, row_shape
        self._storage = storage_dtype(dtype)
        self._row_bytes = self._storage.itemsize * int(np.prod(row_shape, dtype=np.int64))
        self._file_name = f"{name}.bin"
        share = write_buffer_bytes(runtime.budget.limit_bytes)
        size = share if buffer_bytes is None else buffer_bytes
        self._sums: ArrayWriter | None = None
        if page_sums:
            self._sums = ArrayWriter(runtime, folder, name + PAGE_SUMS, "uint32", buffer_bytes=PAGE_BYTES)
        pages = size // PAGE_BYTES
        held = runtime.budget.empty("write-buffer", pages * PAGE_BYTES)
        half = pages // 2 * PAGE_BYTES
        self._buffer, self._other = (held[:half], held[half : 2 * half]) if half else (held, held)
        self._writing: _core.IoJob | None = None  # what the other half holds
        self._filled = self._written = self._crc = 0
        self._file = self._io.open(str(folder / self._file_name), _core.OpenMode.create)
        self._close = weakref.finalize(self, self._io.close, self._file)

    def append(self, rows: np.ndarray) -> None:
        """Adds ``rows``, shape ``[n, *row_shape]`` of the storage dtype."""
        if rows.dtype != self._storage or rows.shape[1:] != self._row_shape:
            raise ArgumentError(
                f"rows of {rows.dtype}{rows.shape[1:]} given for {self._file_name} of "
                f"{self._storage}{self._row_shape}"
            )
        if self._measures:
            self._written += rows.nbytes
            return
        data = as_bytes(np.ascontiguousarray(rows))
        while len(data):
            part = data[: len(self._buffer) - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == len(self._buffer):
                self._flush(self._filled)

    def _flush(self, count: int) -> None:
        self._crc = _core.crc32c(self._buffer[:count], self._crc)
        if self._sums is not None:
            pages = -(-count // PAGE_BYTES)
            self._buffer[count : pages * PAGE_BYTES] = 0
            crcs = np.empty(pages, np.uint32)
            _core.crc32c_pages(self._buffer[: pages * PAGE_BYTES], crcs)
            self._sums.append(crcs)
        self._wait()
        at, length, first = (np.array([number]) for number in (self._written, count, 0))
        self._writing = self._io.submit_writes(self._file, at, length, self._buffer, first)
        self._buffer, self._other = self._other, self._buffer
        if self._buffer is self._other:
            self._wait()
        self._written += count
        self._filled = 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.wait()
            self._writing = None

    def finish(self) -> ArraySpec:
        if self._filled:
            self._flush(self._filled)
        self._wait()
        data_bytes = self._written
        file_bytes = -(-data_bytes // PAGE_BYTES) * PAGE_BYTES
        if file_bytes > data_bytes and not self._measures:
            self._io.write(self._file, data_bytes, np.zeros(file_bytes - data_bytes, np.uint8))
        self._io.drop_cache(self._file)
        self._close()
        self._buffer = self._other = np.zeros(0, np.uint8)
        rows = data_bytes // self._row_bytes if self._row_bytes else 0
        return ArraySpec(
            self._file_name, self._dtype, (rows, *self._row_shape), self._row_bytes, self._crc, file_bytes
        )

    def finish_into(self, arrays: dict[str, ArraySpec]) -> None:
        """Finishes the file and puts its spec, and that of its page checksums, into ``arrays``."""
        arrays[self._name] = self.finish()
        if self._sums is not None:
            self._sums.finish_into(arrays)


def row_layout(path: Path, spec: ArraySpec) -> tuple[np.dtype, int]:
    """Returns the dtype and the bytes of a row of the array in the file ``path``.

    Raises:
        FormatError: The dtype is unknown, or rows are longer than the distance between them.
    """
    try:
        dtype = storage_dtype(spec.dtype)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    row_bytes = dtype.itemsize * math.prod(spec.shape[1:])
    if spec.stride_bytes < row_bytes:
        raise FormatError(f"{path}: stride of {spec.stride_bytes} bytes is below its row of {row_bytes}")
    return dtype, row_bytes


def read_pages(read: Callable[[int, np.ndarray], None], sums: PageSums, offset: int, out: np.ndarray) -> None:
    """Fills the flat uint8 array ``out`` from ``offset`` of a file, and checks the pages that it touches.

    Args:
        read: Fills an array from an offset of the file.

    Raises:
        ChecksumError: A page was damaged.
    """
    stop = offset + len(out)
    begin, end = -(-offset // PAGE_BYTES) * PAGE_BYTES, stop // PAGE_BYTES * PAGE_BYTES
    # Pages of which a part is wanted are read on their own: the checksum is of the whole page.
    for page in sorted({at // PAGE_BYTES for at in (offset, stop) if at % PAGE_BYTES}):
        whole, at = np.empty(PAGE_BYTES, np.uint8), page * PAGE_BYTES
        read(at, whole)
        sums.check(page, whole)
        first, last = max(at, offset), min(at + PAGE_BYTES, stop)
        out[first - offset : last - offset] = whole[first - at : last - at]
    if begin < end:
        pages = out[begin - offset : end - offset]
        read(begin, pages)
        sums.check(begin // PAGE_BYTES, pages)


class Reads(Protocol):
    """Says when what was asked for has come."""

    def wait(self) -> None: ...


class SequentialRows(Protocol):
    """Reads a row file from its beginning to its end, wherever it lies.

    Attributes:
        path: The file, or where it would be beside the others of its graph.
        uri: Folder in a store that has it; None: it is here.
        fetched_bytes: Bytes that came from the store.
    """

    spec: ArraySpec
    sums_spec: ArraySpec | None
    path: Path
    uri: str | None
    row_bytes: int
    fetched_bytes: int

    def check_pages(self, first: int, pages: np.ndarray) -> None: ...
    def submit(self, offset: int, out: np.ndarray) -> Reads: ...
    def read_bytes(self, offset: int, out: np.ndarray) -> None: ...
    def close(self) -> None: ...


class DiskArray:
    """Reads an array file through the engine.

    Args:
        sums: Spec of the checksums of its pages; None = there are none, and parts of it are read unchecked.
    """

    uri: str | None = None  # it is here
    fetched_bytes = 0

    def __init__(self, runtime: Runtime, folder: Path, spec: ArraySpec, sums: ArraySpec | None = None):
        self.spec, self.path, self.sums_spec = spec, folder / spec.file, sums
        self.dtype, self.row_bytes = row_layout(self.path, spec)
        self.num_rows = spec.shape[0]
        self._runtime = runtime
        self.file = runtime.io.open(str(self.path), _core.OpenMode.read)
        self.close = weakref.finalize(self, runtime.io.close, self.file)

    @cached_property
    def page_sums(self) -> PageSums | None:
        """Returns the checksums of the pages of the file; None where the artifact has none.

        They are mapped, not held: 0.1 % of the file, in the page cache, which the system takes back when it needs it.
        Being compared with the manifest when they are opened, they tie every page to it.

        Raises:
            ChecksumError, FormatError: They were damaged, or are of another file.
        """
        if self.sums_spec is None:
            return None
        table = DiskArray(self._runtime, self.path.parent, self.sums_spec)
        try:
            return PageSums(table.memmap(check=True), self.path, self.spec)
        finally:
            table.close()

    def read_bytes(self, offset: int, out: np.ndarray) -> None:
        """Fills the flat uint8 array ``out`` from ``offset`` of the file.

        Raises:
            ChecksumError: A page of it was damaged, where there are checksums of pages.
        """
        if self.page_sums is None or not len(out):
            self._runtime.io.read(self.file, offset, out)
            return
        read_pages(partial(self._runtime.io.read, self.file), self.page_sums, offset, out)

    def check_pages(self, first: int, pages: np.ndarray) -> None:
        """Compares ``pages``, uint8 of whole pages from page ``first`` on, with their checksums, if there are any.

        Raises:
            ChecksumError: One was damaged.
        """
        if self.page_sums is not None:
            self.page_sums.check(first, pages)

    def submit(self, offset: int, out: np.ndarray) -> Reads:
        """Begins to fill the flat uint8 array ``out`` from ``offset`` of the file; nothing is checked."""
        return self._runtime.io.submit_reads(
            self.file, np.array([offset]), np.array([len(out)]), out, np.array([0])
        )

    def read(self, tag: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Reads rows ``start:stop`` into memory held under ``tag``: equals ``memmap()[start:stop]``.

        Raises:
            ChecksumError: The whole array was asked for, and its bytes differ from those that were written.
        """
        stop = self.num_rows if stop is None else stop
        if self.spec.stride_bytes != self.row_bytes:
            raise FormatError(f"{self.path}: rows with gaps are read through a RowSource, not whole")
        if not 0 <= start <= stop <= self.num_rows:
            raise ArgumentError(f"{self.path}: rows {start}:{stop} asked for, it has {self.num_rows}")
        count = (stop - start) * self.row_bytes
        if count == 0:
            return np.zeros((stop - start, *self.spec.shape[1:]), self.dtype)
        if count == self.spec.data_bytes:
            out = hold(self._runtime, tag, count, self.read_whole)
        else:
            out = self._runtime.budget.empty(tag, count)
            if not _only_counts(self._runtime, tag):
                self.read_bytes(start * self.row_bytes, out)
        return out.view(self.dtype).reshape(stop - start, *self.spec.shape[1:])

    def read_whole(self, out: np.ndarray) -> None:
        """Fills the flat uint8 array ``out`` with all bytes of the data.

        Raises:
            ChecksumError: They differ from those that were written.
        """
        self._runtime.io.read(self.file, 0, out)
        self.check(_core.crc32c(out))

    def read_ranges(self, tag: str, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """Reads rows ``starts[i]:stops[i]`` together, one range after the other, into memory held under ``tag``.

        Equals ``np.concatenate([memmap()[a:b] for a, b in zip(starts, stops)])``. Nothing is checked.
        """
        if self.spec.stride_bytes != self.row_bytes:
            raise FormatError(f"{self.path}: rows with gaps are read through a RowSource, not whole")
        if len(starts) and not 0 <= starts.min() <= stops.max() <= self.num_rows:
            raise ArgumentError(
                f"{self.path}: rows {starts.min()}:{stops.max()} asked for, it has {self.num_rows}"
            )
        lengths = (stops - starts) * self.row_bytes
        out = self._runtime.budget.empty(tag, max(int(lengths.sum()), 1))
        positions = np.cumsum(lengths) - lengths
        self._runtime.io.submit_reads(self.file, starts * self.row_bytes, lengths, out, positions).wait()
        return out[: int(lengths.sum())].view(self.dtype).reshape(-1, *self.spec.shape[1:])

    def memmap(self, *, check: bool = False) -> np.ndarray:
        """Maps the array, read-only, through the page cache.

        Args:
            check: Whether all of it is read now and compared with its checksum. What the system drops from its cache
                and reads again later is not.

        Raises:
            ChecksumError: The bytes differ from those that were written.
        """
        if self.spec.data_bytes == 0:
            return np.zeros(self.spec.shape, self.dtype)
        flat = map_file(self.path, np.uint8, shape=(self.spec.data_bytes,))
        if check:
            self.check(_core.crc32c(flat))
        rows = flat.reshape(self.num_rows, self.spec.stride_bytes)[:, : self.row_bytes]
        return rows.view(self.dtype).reshape(self.spec.shape)

    def verify(self) -> None:
        """Reads the file and compares its checksum.

        Raises:
            ChecksumError: The bytes differ from those that were written.
        """
        at, crc, left = 0, 0, self.spec.data_bytes
        buffer = self._verify_buffer(left)
        while left:
            part = buffer[: min(left, len(buffer))]
            self._runtime.io.read(self.file, at, part)
            crc = _core.crc32c(part, crc)
            at, left = at + len(part), left - len(part)
            self._runtime.progress.advance("verify", len(part))
        self.check(crc)

    def verify_padding(self) -> None:
        """Checks that what follows the rows, up to whole pages, is zeros: no checksum has it where pages have none.

        Raises:
            ChecksumError: It is not.
        """
        padding = np.empty(max(self.spec.file_bytes - self.spec.data_bytes, 0), np.uint8)
        if not len(padding):
            return
        self._runtime.io.read(self.file, self.spec.data_bytes, padding)
        if padding.any():
            at = int(np.argmax(padding != 0))
            raise ChecksumError(
                f"{self.path}: byte {self.spec.data_bytes + at}, behind its rows, is {padding[at]}, 0 was written: the "
                f"file was damaged after it was written; remove {self.path.parent} and make it again"
            )

    def _verify_buffer(self, wanted: int) -> np.ndarray:
        """Takes memory, uint8, under the tag ``verify``: at most ``wanted`` bytes, else whole pages."""
        most = memory_tables.VERIFY_BUFFER.bytes_of(self._runtime.budget.free_bytes)
        return self._runtime.budget.empty("verify", min(most, max(wanted, 1)))

    def write_page_sums(self) -> ArraySpec:
        """Writes the checksums of the pages beside the file, replacing what is there.

        The checksum of the whole is compared in the same pass, so that damage gets no checksum.

        Raises:
            ChecksumError: The bytes differ from those that were written.
        """
        writer = ArrayWriter(
            self._runtime, self.path.parent, self.path.stem + PAGE_SUMS, "uint32", buffer_bytes=PAGE_BYTES
        )
        at, crc, left = 0, 0, self.spec.data_bytes
        buffer = self._verify_buffer(-(-left // PAGE_BYTES) * PAGE_BYTES)
        while left:
            part = buffer[: min(left, len(buffer))]
            self._runtime.io.read(self.file, at, part)
            crc = _core.crc32c(part, crc)
            crcs = np.empty(-(-len(part) // PAGE_BYTES), np.uint32)
            buffer[len(part) : len(crcs) * PAGE_BYTES] = 0
            _core.crc32c_pages(buffer[: len(crcs) * PAGE_BYTES], crcs)
            writer.append(crcs)
            at, left = at + len(part), left - len(part)
        self.check(crc)
        return writer.finish()

    def check(self, crc: int) -> None:
        """Compares the checksum of all data bytes with what the manifest says."""
        if crc != self.spec.crc32c:
            raise ChecksumError(
                f"{self.path}: checksum is {crc:08x}, the manifest says {self.spec.crc32c:08x}: "
                f"the file was damaged after it was written; remove {self.path.parent} and make it again"
            )
