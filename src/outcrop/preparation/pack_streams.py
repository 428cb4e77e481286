"""Streams: which rows of each chunk of a row file go where, one after another.

A stream is what one hop of a packed batch wants, a block of the disk cache, or a cache in memory: ids that rise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from outcrop.errors import ChecksumError
from outcrop.preparation.pack_files import OutputFiles, RowsFiles, RowsJournal
from outcrop.runtime.runtime import Runtime
from outcrop.store import record
from outcrop.store.placement import PlacedRows
from outcrop.store.samples import SampleSet

_AT_A_TIME = 1 << 20  # bytes of ids


@dataclass
class Streams:
    """Describes streams that are read from one file of ids, and whose rows go to one file (core/pack/scatter.h).

    Attributes:
        ids_file, out_file: Those files.
        out_pages: The latter for whole pages, past the page cache, which only places with tails write.
        ids_start: Byte where the ids of each stream begin: int64 [streams].
        bounds: Ids of each stream before each chunk: int32 [streams, chunks + 1].
        out_start: Byte where the rows of each place go to: int64 [places].
        id_bytes: Bytes of an id.
        crc: Checksum of what each stream has appended so far: uint32 [streams].
        tails: What each place has not written yet, as many bytes of each: flat uint8; empty: all is written at once.
        written: Byte up to which each place that has a tail is written: int64 [places].
        shared: The first stream of each place, and how many streams there are: int64 [places + 1]; empty: each stream
            has a place of its own.
    """

    ids_file: int
    out_file: int
    out_pages: int
    ids_start: np.ndarray
    bounds: np.ndarray
    out_start: np.ndarray
    id_bytes: int
    crc: np.ndarray
    tails: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))
    written: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    shared: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def ends(self, chunk: int, row_bytes: int) -> np.ndarray:
        """Returns the byte where the rows of each place of the chunks before ``chunk`` end: int64 [places]."""
        rows = self.bounds[:, chunk].astype(np.int64)
        if len(self.shared):
            rows = np.add.reduceat(rows, self.shared[:-1])
        return self.out_start + rows * row_bytes


class RowStreams:
    """Finds the streams of a row file.

    Args:
        placed: Where its rows lie.
        samples: The batches.
        starts: Where the part of each packed record for these rows begins in its file: int64 [P].
        row_bytes: Bytes of a row.
        first_rows: The first row of each chunk, and the number of rows: int64 [chunks + 1].
    """

    def __init__(
        self,
        placed: PlacedRows,
        samples: SampleSet,
        starts: np.ndarray,
        row_bytes: int,
        first_rows: np.ndarray,
        runtime: Runtime,
    ):
        self._placed, self._section, self._starts = placed, placed.section(samples), starts
        self.row_bytes, self._first_rows, self._runtime = row_bytes, first_rows, runtime

    def _bounds(self, streams: int) -> np.ndarray:
        width = len(self._first_rows)
        held = self._runtime.budget.empty("pack-tables", max(streams * width * 4, 1))
        return held[: streams * width * 4].view(np.int32).reshape(streams, width)

    def shift_bytes(self, packed_batch: int) -> int:
        """Counts the bytes before the first packed row of a batch; 0 where none is."""
        wanted = int(self._section.num_rows[self._placed.placement.packed_batches[packed_batch]])
        packed = int(self._placed.num_packed[packed_batch])
        return record.shift_bytes(wanted, packed, self.row_bytes) if packed else 0

    def of_batches(
        self,
        outputs: OutputFiles,
        files: RowsFiles,
        noted: RowsJournal,
        batches: range,
        tail_bytes: int = 0,
        places: Callable[[range], tuple[np.ndarray, np.ndarray]] | None = None,
    ) -> Iterator[Streams]:
        """Yields the streams of packed ``batches``, those of each file of records together, each place with a tail of
        ``tail_bytes``; 0: none has one.

        Args:
            places: Gives ``out_start`` and ``shared`` of batches; None: runs go to where they lie in their records.
        """
        hops = self.num_runs
        for first, stop in pairwise(self._placed.placement.part_bounds.tolist()):
            own = range(max(first, batches.start), min(stop, batches.stop))
            if not own:
                continue
            out_start, shared = (self.runs_at(own), np.zeros(0, np.int64)) if places is None else places(own)
            room = len(out_start) * tail_bytes
            yield Streams(
                files.packed_ids,
                outputs.record_file(own.start),
                outputs.record_pages(own.start),
                files.packed_ids_at(own.start) + self._rows_before(own) * self._section.id_bytes,
                self.bounds(files, own),
                out_start,
                self._section.id_bytes,
                noted.crc[own.start * hops : own.stop * hops],
                self._runtime.budget.empty("pack-tails", room) if room else np.zeros(0, np.uint8),
                out_start.copy(),
                shared,
            )

    @property
    def num_runs(self) -> int:
        """Counts the runs of a batch, which are its hops."""
        return self._section.num_runs

    def _rows_before(self, batches: range) -> np.ndarray:
        """Counts the packed rows of ``batches`` before each of their runs: int64 [batches * runs]."""
        rows = self._placed.packed_per_hop[batches.start : batches.stop].astype(np.int64).reshape(-1)
        return np.cumsum(rows) - rows

    def runs_at(self, batches: range) -> np.ndarray:
        """Returns the byte of its file of records where each run of ``batches`` begins: int64 [batches * runs]."""
        before = self._rows_before(batches).reshape(len(batches), self.num_runs)
        rows_at = [int(self._starts[p]) + self.shift_bytes(p) for p in batches]
        return (np.array(rows_at)[:, None] + (before - before[:, :1]) * self.row_bytes).reshape(-1)

    def bounds(self, files: RowsFiles, batches: range) -> np.ndarray:
        """Counts the rows of each run of ``batches`` before each chunk: int32 [batches * runs, chunks + 1].

        Raises:
            ChecksumError: Lists of ids are not as they were written.
        """
        hops = self.num_runs
        out = self._bounds(len(batches) * hops)
        for i, (packed_batch, ids) in enumerate(zip(batches, self._packed_ids(files, batches), strict=True)):
            cuts = np.concatenate([[0], np.cumsum(self._placed.packed_per_hop[packed_batch])])
            for hop in range(hops):
                out[i * hops + hop] = np.searchsorted(ids[cuts[hop] : cuts[hop + 1]], self._first_rows)
            own = out[i * hops : (i + 1) * hops]
            if (own[:, -1] != np.diff(cuts)).any() or (np.diff(own, axis=1) < 0).any():
                number = self._placed.placement.packed_batches[packed_batch]
                raise ChecksumError(
                    f"{files.path_of(files.packed_ids)}: the disk does not give back what was written of mini-batch "
                    f"{number}; check the disk, remove the folder and prepare the run again"
                )
        return out

    def _packed_ids(self, files: RowsFiles, batches: range) -> Iterator[np.ndarray]:
        """Yields the ids of the packed rows of each of ``batches``; those of several are read at a time."""
        width, budget = self._section.id_bytes, self._runtime.budget
        starts = np.array([files.packed_ids_at(p) for p in range(batches.start, batches.stop + 1)])
        room = max(int(np.diff(starts).max(initial=0)), min(_AT_A_TIME, budget.free_bytes // 16))
        buffer = budget.empty("pack-meta", room)
        begin = end = starts[0]  # of what was read
        for first, stop in pairwise(starts):
            if stop > end:
                begin, end = first, starts[np.searchsorted(starts, first + room, "right") - 1]
                self._runtime.io.read(files.packed_ids, int(begin), buffer[: end - begin])
            yield buffer[first - begin : stop - begin].view(f"<i{width}")

    def of_blocks(self, files: RowsFiles, blocks: range) -> Streams:
        """Returns blocks of the disk cache, by ascending node; they are put in their order later."""
        id_bytes, starts = self._section.id_bytes, self._placed.disk_blocks
        first = starts[blocks.start : blocks.stop].astype(np.int64)
        bounds = self._bounds(len(blocks))
        buffer = self._runtime.budget.empty("pack-meta", max(self._placed.max_block_rows * id_bytes, 1))
        for i, k in enumerate(blocks):
            part = buffer[: int(starts[k + 1] - starts[k]) * id_bytes]
            self._runtime.io.read(files.disk_ids, int(starts[k]) * id_bytes, part)
            bounds[i] = np.searchsorted(part.view(f"<i{id_bytes}"), self._first_rows)
        return Streams(
            files.disk_ids,
            files.disk_cache,
            files.disk_cache,
            first * id_bytes,
            bounds,
            files.spare_bytes + first * self.row_bytes,
            id_bytes,
            np.zeros(len(blocks), np.uint32),
        )

    def of_caches(self, files: RowsFiles, noted: RowsJournal) -> list[Streams]:
        """Returns the caches in memory that have rows, each of one stream."""
        levels = (
            (self._placed.host_ids, files.host_ids, files.host_cache),
            (self._placed.device_ids, files.device_ids, files.device_cache),
        )
        zero = np.zeros(1, np.int64)
        return [
            Streams(
                id_file,
                out_file,
                out_file,
                zero,
                np.searchsorted(ids, self._first_rows)[None, :],
                zero,
                8,
                noted.cache_crc[k : k + 1],
            )
            for k, (ids, id_file, out_file) in enumerate(levels)
            if len(ids)
        ]
