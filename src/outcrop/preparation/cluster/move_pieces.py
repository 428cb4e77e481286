"""Pieces that move: one process takes rows out of a chunk, another writes them where they belong.

So each output file has one writer, which may be on the machine where the file is to lie, and rows cross the network
once. Checksums are taken where rows are read, and compared where they are written.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.errors import ChecksumError, FormatError
from outcrop.preparation.cluster.pieces import PieceSet, PieceTable, RowsToPack, TableHead
from outcrop.runtime.mapping import map_file
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import SequentialRows
from outcrop.store.parts import names_of


@dataclass(frozen=True)
class WantedRows:
    """Says which rows of a chunk an output file wants: ``ids`` int64, those of each stream together; ``counts`` int64
    [streams].
    """

    ids: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class Piece:
    """Holds the rows that were wanted, uint8, one after another, and the CRC-32C of those of each stream, uint32."""

    rows: np.ndarray
    crc: np.ndarray


@dataclass(frozen=True)
class Parcel:
    """Holds what one owner has asked for of a chunk.

    Attributes:
        machine: Where it was taken out.
        ids_bytes: Bytes of the ids that it was asked for by.
        pieces: What each of its output files wants.
    """

    machine: str
    ids_bytes: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class ReceivedBytes:
    """Counts what an owner has made of a parcel: bytes of rows and of ids that another machine has sent for it."""

    written: int
    rows_sent: int
    ids_sent: int


def owned_tables(pieces: PieceSet, parts: int) -> list[list[list[TableHead]]]:
    """Divides the output files among owners: one for the file of each part that has records, one for all caches.

    Returns:
        The tables of each owner, of each row file.
    """
    records = names_of("records", parts)
    outputs = [{name} for name in records]
    outputs.append({head.output for heads in pieces.tables for head in heads}.difference(records))
    every = [[[head for head in heads if head.output in own] for heads in pieces.tables] for own in outputs]
    return [tables for tables in every if any(tables)]


class ChunkReader:
    """Reads chunks of row files, and takes rows out of them for others to write.

    Args:
        rows: The row files.
    """

    def __init__(self, rows: Sequence[RowsToPack]):
        self._rows, self._runtime = rows, Runtime(threads=1)
        self._files = [one.open(self._runtime) for one in rows]

    def read(self, number: int, chunk: int, wanted: Sequence[WantedRows]) -> list[Piece]:
        """Returns what is wanted of ``chunk`` of row file ``number``.

        Raises:
            ChecksumError: The row file is damaged.
            FormatError: A row is wanted that is not of the chunk.
        """
        file, of = self._files[number], self._rows[number]
        rows = of.rows_of(chunk)
        data = of.read(file, rows, np.empty(len(rows) * of.spec.stride_bytes, np.uint8))
        return [self._piece(file, data[:, : file.row_bytes], rows.start, one) for one in wanted]

    def parcels(
        self, number: int, chunk: int, wanted: Sequence[Sequence[WantedRows]], machine: str
    ) -> list[Parcel]:
        """Returns what each of several owners wants of a chunk, as :meth:`read` does for one.

        Args:
            machine: Where this is.
        """
        found = iter(self.read(number, chunk, [one for own in wanted for one in own]))
        return [
            Parcel(machine, sum(one.ids.nbytes for one in own), tuple(next(found) for _ in own))
            for own in wanted
        ]

    @property
    def counters(self) -> _core.IoCounters:
        """Returns what was read so far."""
        return self._runtime.io.counters

    def _piece(self, file: SequentialRows, table: np.ndarray, first: int, wanted: WantedRows) -> Piece:
        places = wanted.ids - first
        if len(places) and not 0 <= places.min() <= places.max() < len(table):
            raise FormatError(
                f"{file.path}: rows of another chunk are wanted: remove the run and prepare it again"
            )
        rows = np.empty((len(places), file.row_bytes), np.uint8)
        _core.gather_rows(self._runtime.workers, table, places, rows)
        ends = np.cumsum(wanted.counts) * file.row_bytes
        flat, crc = rows.reshape(-1), np.zeros(len(ends), np.uint32)
        for s in np.flatnonzero(wanted.counts).tolist():
            crc[s] = _core.crc32c(flat[int(ends[s]) - int(wanted.counts[s]) * file.row_bytes : int(ends[s])])
        return Piece(flat, crc)

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._runtime.close()


class PieceOwner:
    """Writes the pieces of some output files; nobody else does.

    Args:
        tables: Their tables, of each row file.
        here: Says which machine this is.
    """

    def __init__(
        self,
        pieces: PieceSet,
        tables: Sequence[Sequence[TableHead]],
        here: Callable[[], str] = socket.gethostname,
    ):
        self._pieces, self._runtime, self._machine = pieces, Runtime(threads=1), here()
        self._tables = [[PieceTable(pieces.folder, head) for head in own] for own in tables]
        self._files: dict[Path, int] = {}

    def wanted(self, number: int, chunk: int) -> list[WantedRows]:
        """Returns what each output file wants of ``chunk`` of row file ``number``; nothing where that is on disk."""
        return [self._wanted(table, chunk) for table in self._tables[number]]

    def _wanted(self, table: PieceTable, chunk: int) -> WantedRows:
        counts = np.zeros(len(table.ids_start), np.int64) if table.done[chunk] else table.counts(chunk)
        used = np.flatnonzero(counts)
        if not len(used):
            return WantedRows(np.zeros(0, np.int64), counts)
        starts = (table.ids_start + table.bounds[chunk].astype(np.int64) * table.id_bytes) // table.id_bytes
        every = map_file(table.ids_path, f"<i{table.id_bytes}")
        return WantedRows(
            np.concatenate([every[starts[s] : starts[s] + counts[s]] for s in used]).astype(np.int64), counts
        )

    def noted(self, number: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the checksums of pieces of row file ``number``, and which are on disk, of each output file."""
        return [(np.array(table.crc), np.array(table.done)) for table in self._tables[number]]

    def receive(self, number: int, chunk: int, parcel: Parcel) -> ReceivedBytes:
        """Writes what has come as :meth:`accept` does, and counts it."""
        written = self.accept(number, chunk, parcel.pieces)
        if parcel.machine == self._machine:
            return ReceivedBytes(written, 0, 0)
        return ReceivedBytes(written, sum(one.rows.nbytes for one in parcel.pieces), parcel.ids_bytes)

    @property
    def counters(self) -> _core.IoCounters:
        """Returns what was written so far."""
        return self._runtime.io.counters

    def accept(self, number: int, chunk: int, found: Sequence[Piece]) -> int:
        """Writes what has come of ``chunk`` of row file ``number``, and notes it; once more does no harm.

        Returns:
            Bytes that were written.

        Raises:
            ChecksumError: Rows were damaged on their way.
            IoError: The disk failed.
        """
        row_bytes, written = self._pieces.row_bytes(number), 0
        for table, piece in zip(self._tables[number], found, strict=True):
            if not table.done[chunk]:
                written += self._accept(table, chunk, piece, row_bytes)
        return written

    def _accept(self, table: PieceTable, chunk: int, piece: Piece, row_bytes: int) -> int:
        counts = table.counts(chunk)
        if len(piece.rows) != int(counts.sum()) * row_bytes:
            return 0  # asked for when it was on disk, which was lost since: it is asked for again
        lengths = counts * row_bytes
        positions = np.cumsum(lengths) - lengths
        used = np.flatnonzero(counts)
        for s in used.tolist():
            part = piece.rows[int(positions[s]) : int(positions[s] + lengths[s])]
            if _core.crc32c(part) != piece.crc[s]:
                raise ChecksumError(f"{table.out_path}: rows of chunk {chunk} were damaged on their way here")
        if len(used):
            out = self._open(table.out_path)
            starts = table.out_start + table.bounds[chunk].astype(np.int64) * row_bytes
            self._runtime.io.submit_writes(
                out, starts[used], lengths[used], piece.rows, positions[used]
            ).wait()
            self._runtime.io.sync(out)
        table.add(chunk, piece.crc)
        return len(piece.rows)

    def _open(self, path: Path) -> int:
        if path not in self._files:
            self._files[path] = self._runtime.io.open(str(path), _core.OpenMode.update)
        return self._files[path]

    def close(self) -> None:
        for file in self._files.values():
            self._runtime.io.close(file)
        self._runtime.close()
