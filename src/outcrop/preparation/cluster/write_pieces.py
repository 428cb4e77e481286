"""Pieces that stay: a process reads a chunk, and writes what all output files want of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.preparation.cluster.pieces import PieceSet, PieceTable
from outcrop.preparation.pack import CopiedBytes
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import SequentialRows


class ChunkWriter:
    """Makes pieces: reads a chunk of a row file, and writes what all output files want of it.

    Args:
        memory: Bytes for all of it.
    """

    def __init__(self, pieces: PieceSet, memory: int):
        self._pieces, self._runtime = pieces, Runtime(memory, threads=1)
        self._row_files = [rows.open(self._runtime) for rows in pieces.rows]
        self._tables = [[PieceTable(pieces.folder, head) for head in heads] for heads in pieces.tables]
        self._files: dict[Path, int] = {}

    def write(self, number: int, chunk: int) -> CopiedBytes:
        """Makes the pieces of ``chunk`` of row file ``number`` that are not on disk.

        Raises:
            ChecksumError, FormatError: The row file, or a list of ids, is damaged.
            IoError: The disk failed.
        """
        before, of, file = self._runtime.io.counters, self._pieces.rows[number], self._row_files[number]
        fetched = file.fetched_bytes
        rows = of.rows_of(chunk)
        room = self._runtime.budget.empty("pack-chunk", max(len(rows) * of.spec.stride_bytes, 1))
        data = of.read(file, rows, room).reshape(-1)
        for table in self._tables[number]:
            if not table.done[chunk]:
                self._write(table, chunk, data, rows, file)
        after = self._runtime.io.counters
        read = after.read_bytes - before.read_bytes + file.fetched_bytes - fetched
        return CopiedBytes(read, after.write_bytes - before.write_bytes)

    def _write(
        self, table: PieceTable, chunk: int, data: np.ndarray, rows: range, file: SequentialRows
    ) -> None:
        counts, crc = table.counts(chunk), np.zeros(len(table.ids_start), np.uint32)
        if counts.any():
            before = table.bounds[chunk].astype(np.int64)
            out = self._open(table.out_path, _core.OpenMode.update)
            scatter = _core.Scatter(
                self._runtime.io,
                self._runtime.budget,
                file.row_bytes,
                file.spec.stride_bytes,
                table.id_bytes,
                max(int(counts.max()) * table.id_bytes, PAGE_BYTES),
                max(memory_tables.PACK_OUT.bytes_of(self._runtime.budget.limit_bytes), file.row_bytes),
            )
            scatter.run(
                data,
                rows.start,
                len(rows),
                file.spec.stride_bytes,
                self._open_ids(table),
                out,
                out,
                table.ids_start + before * table.id_bytes,
                counts,
                table.out_start + before * file.row_bytes,
                crc,
                np.zeros(0, np.uint8),
                np.zeros(0, np.int64),
                np.zeros(0, np.int64),
            )
            self._runtime.io.sync(out)
        table.add(chunk, crc)

    def _open_ids(self, table: PieceTable) -> int:
        """Opens a list of ids: one that packing has written through the page cache, where its small parts are read from
        it; those of the plan are read past it.
        """
        own = table.ids_path.parent == table.out_path.parent
        return self._open(table.ids_path, _core.OpenMode.update if own else _core.OpenMode.read)

    def _open(self, path: Path, mode: _core.OpenMode) -> int:
        if path not in self._files:
            self._files[path] = self._runtime.io.open(str(path), mode)
        return self._files[path]

    def close(self) -> None:
        for file in self._files.values():
            self._runtime.io.close(file)
        for rows in self._row_files:
            rows.close()
        self._runtime.close()
