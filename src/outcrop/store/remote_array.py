"""Rows in an object store, read one chunk after another: a chunk in ranges of 8 to 64 MiB, 8 of them at a time."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import numpy as np

from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray, SequentialRows, read_pages, row_layout
from outcrop.store.manifest import ArraySpec
from outcrop.store.page_sums import PageSums
from outcrop.store.remote import RemoteFolder

READERS = 8
LEAST_BYTES, MOST_BYTES = 8 << 20, 64 << 20  # of a range


class RemoteArray:
    """Reads an array file in an object store, every page compared with its checksum, which is here.

    Nothing is asked of the store before the first byte is read. Ranges are read to where they belong: no more memory
    is held than their reader gives.

    Args:
        folder: Folder of the other files of the artifact, the checksums of the pages among them.
        spec, sums: The array, and those checksums.
        uri: Folder in the store that has the file.

    Attributes:
        path: Where the file would be here.
        uri: The same as the argument.
        fetched_bytes: Bytes that came from the store.
    """

    def __init__(self, runtime: Runtime, folder: Path, spec: ArraySpec, sums: ArraySpec | None, uri: str):
        self.spec, self.path, self.sums_spec = spec, folder / spec.file, sums
        self.uri: str | None = uri
        self.row_bytes = row_layout(self.path, spec)[1]
        self.fetched_bytes = 0
        self._runtime, self._remote_uri = runtime, uri

    @cached_property
    def _page_sums(self) -> PageSums:
        """Returns the checksums of the pages of the file.

        Raises:
            FormatError: There are none, or the file in the store is of another size.
        """
        place = f"{self._remote.uri}/{self.spec.file}"
        if self.sums_spec is None:
            raise FormatError(
                f"{place} has no checksums of pages, by which what comes could be checked: add them where the graph "
                "lies whole (outcrop verify GRAPH --add-checksums) and upload it again"
            )
        size = self._remote.size(self.spec.file)
        if size != self.spec.file_bytes:
            what = "is not there" if size is None else f"has {size} bytes"
            raise FormatError(
                f"{place} {what}, and the manifest of {self.path.parent} says {self.spec.file_bytes} bytes: it was cut "
                "short, replaced or moved; fetch the graph again"
            )
        table = DiskArray(self._runtime, self.path.parent, self.sums_spec)
        try:
            return PageSums(
                table.memmap(check=True),
                place,
                self.spec,
                "it was damaged there or on the way, or replaced; upload the graph again",
            )
        finally:
            table.close()

    @cached_property
    def _remote(self) -> RemoteFolder:
        return RemoteFolder(self._remote_uri)

    @cached_property
    def _readers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(READERS, "outcrop-ranges")

    def check_pages(self, first: int, pages: np.ndarray) -> None:
        """Compares ``pages``, uint8 of whole pages from page ``first`` on, with their checksums.

        Raises:
            ChecksumError: One was damaged.
            FormatError: The file in the store is of another size, or there are no checksums.
        """
        self._page_sums.check(first, pages)

    def submit(self, offset: int, out: np.ndarray) -> RemoteReads:
        """Begins to fill the flat uint8 array ``out`` from ``offset`` of the file; nothing is checked."""
        _ = self._page_sums  # before anything is read of a file that is another
        size = min(max(-(-len(out) // READERS), LEAST_BYTES), MOST_BYTES)
        parts = [out[start : start + size] for start in range(0, len(out), size)]
        self.fetched_bytes += len(out)
        return RemoteReads(
            [
                self._readers.submit(self._remote.read_into, self.spec.file, offset + number * size, part)
                for number, part in enumerate(parts)
            ]
        )

    def read_bytes(self, offset: int, out: np.ndarray) -> None:
        """Fills the flat uint8 array ``out`` from ``offset`` of the file.

        Raises:
            ChecksumError: A page of it was damaged.
        """
        read_pages(lambda at, part: self.submit(at, part).wait(), self._page_sums, offset, out)

    def close(self) -> None:
        """Ends the threads, which end with this object, too."""
        if "_readers" in self.__dict__:
            self._readers.shutdown(cancel_futures=True)


def open_sequential(
    runtime: Runtime, folder: Path, spec: ArraySpec, sums: ArraySpec | None, uri: str | None
) -> SequentialRows:
    """Opens a row file for reading from its beginning to its end: in ``folder``, or in a store.

    Args:
        uri: Folder in the store that has it; None: it is here.
    """
    if uri is None:
        return DiskArray(runtime, folder, spec, sums)
    return RemoteArray(runtime, folder, spec, sums, uri)


class RemoteReads:
    """Says when ranges have come."""

    def __init__(self, ranges: list[Future[None]]):
        self._ranges = ranges

    def wait(self) -> None:
        """Waits for all of them.

        Raises:
            FormatError: The file is not there any more, or ends before.
            IoError: The store failed several times; names the file and the byte.
        """
        for one in self._ranges:
            one.result()
