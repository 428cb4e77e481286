"""Pieces: what the streams of one output file want of one chunk of a row file.

Where each row goes follows from the plan alone, so pieces are made in any order, by any process that sees the folder,
and twice without harm. What is known of them lies in the folder, in tables that all processes map: where streams begin,
how many of their ids fall into each chunk, the checksum of each piece of a stream, and which pieces are on disk. Those
are what an interrupted packing goes on from.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

import outcrop._core as _core
from outcrop.preparation.pack import PackTask
from outcrop.preparation.pack_files import Journal, OutputFiles, RowsJournal
from outcrop.preparation.pack_memory import FeatureChunks, cut_features
from outcrop.preparation.pack_streams import RowStreams, Streams
from outcrop.runtime import memory_tables
from outcrop.runtime.mapping import mapping
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import SequentialRows, storage_dtype
from outcrop.store.manifest import ArraySpec
from outcrop.store.parts import names_of
from outcrop.store.remote_array import open_sequential

FOLDER, _KEY = "pieces", "key"
_TABLES = ("bounds", "ids_start", "out_start", "crc", "done")


@dataclass(frozen=True)
class RowsToPack:
    """Says where a row file lies, and how it is cut, for processes that have no graph open.

    Attributes:
        folder, spec, sums: The file, and the checksums of its pages (:class:`outcrop.store.arrays.DiskArray`).
        chunk_pages: Pages of a chunk.
        uri: Folder in a store that has the file; None: it is in ``folder``, where the checksums are.
    """

    folder: Path
    spec: ArraySpec
    sums: ArraySpec | None
    chunk_pages: int
    uri: str | None = None

    def open(self, runtime: Runtime) -> SequentialRows:
        return open_sequential(runtime, self.folder, self.spec, self.sums, self.uri)

    @property
    def chunks(self) -> FeatureChunks:
        return cut_features(self.spec, self.chunk_pages)

    def rows_of(self, chunk: int) -> range:
        """Returns the rows of a chunk."""
        first, stop = self.chunks.first_rows[chunk : chunk + 2].tolist()
        return range(first, stop)

    def read(self, file: SequentialRows, rows: range, out: np.ndarray) -> np.ndarray:
        """Reads ``rows`` into the front of ``out``, uint8, and returns that: [rows, stride].

        Raises:
            ChecksumError: The file is damaged.
        """
        stride = self.spec.stride_bytes
        data = out[: len(rows) * stride]
        file.read_bytes(rows.start * stride, data)
        return data.reshape(len(rows), stride)


@dataclass(frozen=True)
class TableHead:
    """Says of what a table is.

    Attributes:
        name: What its files are called.
        output: The output file, such as ``records.0`` or ``host_cache``.
        ids, out: The files of ids and of rows, seen from the folder that is packed into: a run can be moved.
        id_bytes: Bytes of an id.
        streams: Streams that it has.
    """

    name: str
    output: str
    ids: str
    out: str
    id_bytes: int
    streams: int


class PieceTable:
    """Maps what is known of the pieces of one output file.

    Attributes:
        ids_path, out_path: The file that ids are read from, and that rows go to.
        id_bytes: Bytes of an id.
        bounds: Ids of each stream before each chunk: int32 [chunks + 1, streams].
        ids_start, out_start: Byte where ids and rows of each stream begin: int64 [streams].
        crc: CRC-32C of what each stream has of each chunk: uint32 [chunks, streams].
        done: Which chunks are on disk: uint8 [chunks].
    """

    def __init__(self, folder: Path, head: TableHead, mode: Literal["r", "r+"] = "r+"):
        self.ids_path, self.out_path = folder.parent / head.ids, folder.parent / head.out
        self.id_bytes = head.id_bytes
        with mapping(folder / head.name):
            arrays = {t: np.load(folder / f"{head.name}.{t}.npy", mmap_mode=mode) for t in _TABLES}
        self.bounds, self.ids_start, self.out_start = (arrays[table] for table in _TABLES[:3])
        self.crc, self.done = arrays["crc"], arrays["done"]

    @staticmethod
    def paths(folder: Path, head: TableHead) -> list[Path]:
        """Returns the files of the tables, which lie in ``folder``."""
        return [folder / f"{head.name}.{table}.npy" for table in _TABLES]

    @property
    def table_bytes(self) -> int:
        """Counts the bytes of the tables."""
        return sum(getattr(self, table).nbytes for table in _TABLES)

    def counts(self, chunk: int) -> np.ndarray:
        """Counts the rows of each stream in ``chunk``: int64 [streams]."""
        return (self.bounds[chunk + 1] - self.bounds[chunk]).astype(np.int64)

    def add(self, chunk: int, crc: np.ndarray) -> None:
        """Notes that the rows of ``chunk``, which are on disk, have these checksums: uint32 [streams]."""
        self.crc[chunk] = crc
        _flush(self.crc)
        self.done[chunk] = 1
        _flush(self.done)

    def take_over(self, crc: np.ndarray, done: np.ndarray) -> None:
        """Notes what another machine has on disk: uint32 [chunks, streams], uint8 [chunks]."""
        self.crc[:], self.done[:] = crc, done
        _flush(self.crc)
        _flush(self.done)

    def restart(self) -> None:
        """Notes that nothing is on disk."""
        self.take_over(np.zeros_like(self.crc), np.zeros_like(self.done))

    def stream_crc(self, row_bytes: int) -> np.ndarray:
        """Returns the checksum of all rows of each stream: uint32 [streams]."""
        found = np.zeros(self.crc.shape[1], np.uint32)
        for chunk in range(len(self.crc)):
            counts = self.counts(chunk)
            for s in np.flatnonzero(counts).tolist():
                found[s] = _core.crc32c_combine(
                    int(found[s]), int(self.crc[chunk, s]), int(counts[s]) * row_bytes
                )
        return found


def _flush(table: np.ndarray) -> None:
    if isinstance(table, np.memmap):  # empty tables are none
        table.flush()


@dataclass(frozen=True)
class PieceSet:
    """Names the tables of all output files of each row file, in a folder.

    Attributes:
        tables: The tables of each row file.
        key: Says of what they are made.
    """

    folder: Path
    rows: tuple[RowsToPack, ...]
    tables: tuple[tuple[TableHead, ...], ...]
    key: str = ""

    def row_bytes(self, number: int) -> int:
        """Counts the bytes of a row of row file ``number``."""
        spec = self.rows[number].spec
        return storage_dtype(spec.dtype).itemsize * math.prod(spec.shape[1:])

    def wanted_bytes(self, number: int, chunk: int) -> int:
        """Counts the bytes of all rows that are wanted of a chunk."""
        tables = (PieceTable(self.folder, head, "r") for head in self.tables[number])
        return sum(int(table.counts(chunk).sum()) for table in tables) * self.row_bytes(number)

    def chunk_bytes(self, number: int, chunk: int) -> int:
        """Counts the bytes of the rows of a chunk of row file ``number``."""
        rows = self.rows[number]
        return len(rows.rows_of(chunk)) * rows.spec.stride_bytes

    def all_chunks(self) -> list[tuple[int, int]]:
        """Returns all chunks of which anything is wanted: (row file, chunk)."""
        return [
            (number, chunk)
            for number, heads in enumerate(self.tables)
            if heads
            for chunk in range(len(self.rows[number].chunks.starts) - 1)
        ]

    def missing(self) -> list[tuple[int, int]]:
        """Returns the chunks of which pieces are not on disk: (row file, chunk)."""
        found = []
        for number, heads in enumerate(self.tables):
            done = [PieceTable(self.folder, head, "r").done for head in heads]
            there = np.min(done, axis=0) if done else np.ones(0, np.uint8)
            found += [(number, chunk) for chunk in np.flatnonzero(there == 0).tolist()]
        return found


def table_bytes(packing: PackTask, chunk_bytes: int) -> int:
    """Counts the bytes of all tables, where chunks have ``chunk_bytes``."""
    found = 0
    for packer in packing.packers:
        spec, streams = packer.features.spec, packer.num_streams + len(packer.placed.disk_blocks) + 2
        chunks = -(-spec.data_bytes // (_pages_of(spec, chunk_bytes) * PAGE_BYTES))
        found += streams * (8 * chunks + 24)
    return found


def open_pieces(packing: PackTask, files: OutputFiles, chunk_bytes: int) -> PieceSet | None:
    """Opens the tables that an interrupted call has left; None: they are of something else, or not whole."""
    return _opened(files.folder.absolute() / FOLDER, _key(packing, chunk_bytes), _rows(packing, chunk_bytes))


def _key(packing: PackTask, chunk_bytes: int) -> str:
    return f"{packing.key} {chunk_bytes}{' apart' if packing.apart else ''}"


def _rows(packing: PackTask, chunk_bytes: int) -> tuple[RowsToPack, ...]:
    return tuple(
        RowsToPack(
            packer.features.path.parent.absolute(),
            packer.features.spec,
            packer.features.sums_spec,
            _pages_of(packer.features.spec, chunk_bytes),
            packer.features.uri,
        )
        for packer in packing.packers
    )


def prepare_pieces(packing: PackTask, files: OutputFiles, chunk_bytes: int) -> PieceSet:
    """Writes the tables of all output files, or opens those that an interrupted call has left.

    Args:
        chunk_bytes: Bytes of a chunk, at the least a page, with two ids for each of its rows.
    """
    folder, rows = files.folder.absolute() / FOLDER, _rows(packing, chunk_bytes)  # others work elsewhere
    found = open_pieces(packing, files, chunk_bytes)
    if found is None:
        remove_pieces(files.folder)
        folder.mkdir()
        tables = [
            list(_RowTables(packing, files, folder, number, one).write()) for number, one in enumerate(rows)
        ]
        manifests.sync_folder(folder)
        content = {
            "key": _key(packing, chunk_bytes),
            "tables": [[asdict(head) for head in heads] for heads in tables],
        }
        manifests.write_atomic(folder / _KEY, json.dumps(content).encode())
        found = PieceSet(folder, rows, tuple(map(tuple, tables)), _key(packing, chunk_bytes))
    return found


def remove_pieces(folder: Path) -> None:
    """Removes what there is of pieces in ``folder``; what a kill leaves of it is not taken for whole."""
    pieces = folder / FOLDER
    if pieces.is_dir():
        (pieces / _KEY).unlink(missing_ok=True)
        manifests.sync_folder(pieces)
        manifests.remove(pieces)


def _opened(folder: Path, key: str, rows: tuple[RowsToPack, ...]) -> PieceSet | None:
    """Returns the tables that are there; None where they are of something else, or not whole."""
    try:
        content = json.loads((folder / _KEY).read_bytes())
        if content["key"] != key:
            return None
        heads = tuple(tuple(TableHead(**one) for one in own) for own in content["tables"])
        for number, own in enumerate(heads):
            chunks = len(rows[number].chunks.starts) - 1
            for head in own:
                table = PieceTable(folder, head, "r")
                if any(getattr(table, n).shape != s for n, (s, _) in _shapes(chunks, head.streams).items()):
                    return None
        return PieceSet(folder, rows, heads, key)
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def finish_pieces(pieces: PieceSet, packing: PackTask, journal: Journal) -> None:
    """Notes in the journal that all rows are on disk, and their checksums."""
    for number, heads in enumerate(pieces.tables):
        noted, row_bytes = journal.files[number], packing.packers[number].features.row_bytes
        crc = {head.output: PieceTable(pieces.folder, head, "r").stream_crc(row_bytes) for head in heads}
        parts = names_of("records", packing.placement.num_parts)
        noted.crc[:] = np.concatenate([crc.get(part, np.zeros(0, np.uint32)) for part in parts])
        for place, cache in enumerate(("host_cache", "device_cache")):
            if cache in crc:
                noted.cache_crc[place] = crc[cache][0]
    packing.note_filled(journal)
    remove_pieces(pieces.folder.parent)


def _shapes(chunks: int, streams: int) -> dict[str, tuple[tuple[int, ...], type]]:
    """Returns shape and dtype of each table."""
    return {
        "bounds": ((chunks + 1, streams), np.int32),
        "ids_start": ((streams,), np.int64),
        "out_start": ((streams,), np.int64),
        "crc": ((chunks, streams), np.uint32),
        "done": ((chunks,), np.uint8),
    }


class _RowTables:
    """Writes the tables of the output files of one row file."""

    def __init__(self, packing: PackTask, files: OutputFiles, folder: Path, number: int, rows: RowsToPack):
        packer = packing.packers[number]
        self._packing, self._files, self._own = packing, files, files.files[number]
        self._folder, self._number, self._placed = folder, number, packer.placed
        self._first_rows = rows.chunks.first_rows
        self._runs = packer.section.num_runs
        starts = packing.starts[:, 1 + number]
        self._streams = RowStreams(
            packer.placed,
            packing.samples,
            starts,
            packer.features.row_bytes,
            self._first_rows,
            packing.runtime,
        )
        self._noted = RowsJournal(packer.num_streams)  # whose checksums nobody asks for

    def write(self) -> Iterator[TableHead]:
        """Yields each table that it writes."""
        placement, bounds = self._packing.placement, self._packing.placement.part_bounds.tolist()
        names = names_of("records", placement.num_parts)
        for name, (first, stop) in zip(names, pairwise(bounds), strict=True):
            if stop > first:
                yield self._write(name, (stop - first) * self._runs, self._of_part(first, stop))
        blocks = len(self._placed.disk_blocks) - 1
        if blocks:
            yield self._write("disk_cache", blocks, self._of_blocks(blocks))
        for streams in self._streams.of_caches(self._own, self._noted):
            yield self._write(self._files.path_of(streams.out_file).stem.rpartition(".")[2], 1, [streams])

    def _of_part(self, first: int, stop: int) -> Iterator[Streams]:
        at_once = self._at_once(self._runs)
        for begin in range(first, stop, at_once):
            batches = range(begin, min(begin + at_once, stop))
            yield from self._streams.of_batches(self._files, self._own, self._noted, batches)

    def _of_blocks(self, blocks: int) -> Iterator[Streams]:
        at_once = self._at_once(1)
        for begin in range(0, blocks, at_once):
            yield self._streams.of_blocks(self._own, range(begin, min(begin + at_once, blocks)))

    def _at_once(self, streams: int) -> int:
        """Counts what has tables in memory at a time, when each is so many streams."""
        room = memory_tables.PACK_TABLES.bytes_of(self._packing.runtime.budget.free_bytes)
        return max(room // (streams * (4 * len(self._first_rows) + 64)), 1)

    def _write(self, output: str, count: int, slices: Iterable[Streams]) -> TableHead:
        name, at, folder = f"{self._number}-{output}", 0, self._files.folder
        tables = {
            table: _new_table(self._folder / f"{name}.{table}.npy", shape, dtype)
            for table, (shape, dtype) in _shapes(len(self._first_rows) - 1, count).items()
        }
        head = None
        for streams in slices:
            own = slice(at, at + len(streams.ids_start))
            tables["bounds"][:, own] = streams.bounds.T
            tables["ids_start"][own], tables["out_start"][own] = streams.ids_start, streams.out_start
            ids, out = (self._files.path_of(file) for file in (streams.ids_file, streams.out_file))
            head = TableHead(
                name,
                output,
                os.path.relpath(ids.absolute(), folder.absolute()),
                os.path.relpath(out.absolute(), folder.absolute()),
                streams.id_bytes,
                count,
            )
            at = own.stop
        for name, table in tables.items():
            _flush(table)
            with (self._folder / f"{self._number}-{output}.{name}.npy").open("rb") as file:
                os.fsync(file.fileno())
        assert head is not None
        assert at == count
        return head


def _new_table(path: Path, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Makes a table of zeros on disk; an empty one cannot be mapped.

    All of it has room there: where the disk is full, whoever writes to a mapped page that has none dies by SIGBUS.
    """
    if not all(shape):
        np.save(path, np.zeros(shape, dtype))
        return np.zeros(shape, dtype)
    with mapping(path):
        table = np.lib.format.open_memmap(path, "w+", dtype, shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return table


def _pages_of(spec: ArraySpec, chunk_bytes: int) -> int:
    stride = max(spec.stride_bytes, 1)
    return max(chunk_bytes * stride // (stride + 16) // PAGE_BYTES, 1)
