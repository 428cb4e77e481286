"""The log of packing: rows are written in the order of the features first, and put in the order of records from there.

What a hop of a batch takes of a chunk of the features is some KiB where memory is little, and a disk that does few
requests a second needs long to write so many pieces to where they belong. So batches are taken together in groups, as
many as have room in memory at a time. What the batches of a group take of a chunk is appended to the log of the group,
in one write; when the features are read, the log of one group after the other is read, put in order in memory and
written as whole records. All rows are written twice and read once, in large requests
(docs/decisions/034-packing-by-a-log.md).

The log of a group lies in the file of the records itself, ``spare_bytes`` further back than its records: what is put in
order comes to lie where logs of groups before it were. Nothing is written over the log of a group whose records are not
on disk, so that a kill or a crash at any moment loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

import outcrop._core as _core
from outcrop.errors import ChecksumError
from outcrop.preparation.pack_files import Journal, OutputFiles
from outcrop.preparation.pack_streams import RowStreams
from outcrop.runtime.in_background import InBackground
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store.placement import Placement, align_pages

_SYNC_EVERY_BYTES = 256 << 20


def cut_groups(
    starts: np.ndarray, part_bounds: Sequence[int], most_bytes: int, most_batches: int
) -> np.ndarray | None:
    """Cuts the packed batches of each file of records into groups, in order, as few as there can be.

    Args:
        starts: Where the parts of each record begin in its file, and where it ends: int64 [P, K + 2].
        part_bounds: The first packed batch of each file of records, and P.
        most_bytes, most_batches: What a group has at the most.

    Returns:
        The first packed batch of each group, and P: int64 [groups + 1]; None: a record alone is larger.
    """
    if most_batches < 1 or (np.diff(starts[:, [0, -1]]) > most_bytes).any():
        return None
    bounds = [0]
    for first, stop in pairwise(part_bounds):
        ends, at = starts[first:stop, -1], int(first)
        while at < stop:
            more = int(np.searchsorted(ends, starts[at, 0] + most_bytes, "right")) + int(first)
            at = min(more, at + most_batches)
            bounds.append(at)
    return np.array(bounds)


class PackLog:
    """Says where the logs of groups of batches lie, and makes records of them.

    Args:
        starts: Where the parts of each record begin in its file, and where it ends: int64 [P, K + 2].
        bounds: The first packed batch of each group, and P: int64 [groups + 1].
        rows_bytes: Bytes of the packed rows of each batch, of each row file: int64 [P, K].

    Attributes:
        bounds: As given.
        meta_at: Where the meta part of each record lies in the log: int64 [P].
        rows_at: Where the log of the rows of each group begins, of each row file: int64 [groups, K].
        spare_bytes: How much longer each file of records is while there is a log.
    """

    def __init__(self, placement: Placement, starts: np.ndarray, bounds: np.ndarray, rows_bytes: np.ndarray):
        self._placement, self.bounds, self._starts = placement, bounds, starts
        self._begin, self._end = starts[bounds[:-1], 0], starts[bounds[1:] - 1, -1]
        self._sizes, self._part = self._end - self._begin, placement.part[bounds[:-1]]
        group_of = np.repeat(np.arange(len(self)), np.diff(bounds))
        self.spare_bytes = []
        for part in range(placement.num_parts):
            own = self._sizes[self._part == part]
            most = int(own.max(initial=0))
            self.spare_bytes.append(
                most + min(_SYNC_EVERY_BYTES, int(own.sum()) // 8 // PAGE_BYTES * PAGE_BYTES)
            )
        log_at = self._begin + np.array(self.spare_bytes)[self._part]
        meta = starts[:, 1] - starts[:, 0]
        before = np.cumsum(meta) - meta
        self.meta_at = log_at[group_of] + before - before[bounds[:-1]][group_of]
        rows = align_pages(np.add.reduceat(rows_bytes, bounds[:-1], axis=0))
        ends = np.cumsum(np.column_stack([np.add.reduceat(meta, bounds[:-1]), rows]), axis=1)
        self._log_at, self._log_bytes = log_at, ends[:, -1]
        self.rows_at = log_at[:, None] + ends[:, :-1]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def geometry(self) -> str:
        """Says how batches are grouped, for the journal."""
        return f"log-{_core.crc32c(self.bounds.astype('<i8').view(np.uint8)):08x}"

    @property
    def work_bytes(self) -> int:
        """Counts the bytes of all records."""
        return int(self._sizes.sum())

    def places(self, number: int, runs: int, batches: range) -> tuple[np.ndarray, np.ndarray]:
        """Returns where the rows of row file ``number`` go, of ``batches`` of so many runs, which are whole groups:
        ``out_start`` and ``shared`` of :class:`outcrop.preparation.pack_streams.Streams`.
        """
        first, stop = np.searchsorted(self.bounds, [batches.start, batches.stop])
        own = self.bounds[first : stop + 1]
        return self.rows_at[first:stop, number].copy(), (own - own[0]) * runs

    def last_whole(self, stop: int) -> int:
        """Returns where the last group that ends at packed batch ``stop`` or before it ends."""
        return int(self.bounds[np.searchsorted(self.bounds, stop, "right") - 1])

    def put_in_order(
        self, rows: Sequence[RowStreams], files: OutputFiles, journal: Journal, runtime: Runtime
    ) -> None:
        """Makes records of the log, from the group on that the journal names.

        Args:
            rows: The streams of each row file.

        Raises:
            ChecksumError: The log has other bytes than were written to it.
        """
        done = journal.groups
        runtime.progress.advance("pack", int(self._sizes[:done].sum()))
        if done == len(self):
            return
        room = int(self._sizes[done:].max())
        logs = [runtime.budget.empty("pack-group", room) for _ in range(2)]
        records = runtime.budget.empty("pack-group", room)

        def read(group: int) -> None:
            log = logs[group % 2][: self._log_bytes[group]]
            runtime.io.read(files.record_pages(int(self.bounds[group])), int(self._log_at[group]), log)

        def write(group: int) -> None:
            out = records[: self._sizes[group]]
            runtime.io.write(files.record_pages(int(self.bounds[group])), int(self._begin[group]), out)

        def note(group: int) -> None:
            """Notes that the records of the groups before are on disk."""
            files.sync_records(set(self._part[journal.groups : group].tolist()))
            journal.groups = group
            journal.save()

        with InBackground("outcrop-log") as reading, InBackground("outcrop-records") as writing:
            reading.begin(partial(read, done))
            for group in range(done, len(self)):
                reading.wait()
                if group + 1 < len(self):
                    reading.begin(partial(read, group + 1))
                writing.wait()
                with runtime.trace.span("pack-group", group=group):
                    self._arrange(group, logs[group % 2], records, rows, files, journal)
                if self._reaches(journal.groups, group):
                    note(group)
                writing.begin(partial(write, group))
                runtime.progress.advance("pack", int(self._sizes[group]))
            writing.wait()
        note(len(self))

    def _reaches(self, noted: int, group: int) -> bool:
        """Tells whether the records of a group come to lie where the log of a group from ``noted`` on is."""
        same = self._part[noted] == self._part[group]
        return noted < group and (not same or bool(self._end[group] > self._log_at[noted]))

    def _arrange(
        self,
        group: int,
        log: np.ndarray,
        records: np.ndarray,
        rows: Sequence[RowStreams],
        files: OutputFiles,
        journal: Journal,
    ) -> None:
        """Puts what the log of a group has in order, as its records."""
        batches = range(*self.bounds[group : group + 2].tolist())
        starts = self._starts[batches.start : batches.stop] - self._begin[group]
        log_at = int(self._log_at[group])
        records[: self._sizes[group]] = 0
        meta_bytes = starts[:, 1] - starts[:, 0]
        meta_at = self.meta_at[batches.start : batches.stop] - log_at
        _core.move_pieces(records, log, starts[:, 0].copy(), meta_at, meta_bytes)
        for batch, at, count in zip(batches, starts[:, 0].tolist(), meta_bytes.tolist(), strict=True):
            self._compare(records[at : at + count], int(journal.meta_crc[batch]), files, batch)
        for number, streams in enumerate(rows):
            runs, at = streams.num_runs, int(self.rows_at[group, number]) - log_at
            crc = journal.files[number].crc[batches.start * runs : batches.stop * runs].tolist()
            runs_at = (streams.runs_at(batches) - self._begin[group]).tolist()
            pieces = _pieces_of(streams.bounds(files.files[number], batches), at, streams.row_bytes)
            for k, (out_at, log_from, sizes) in enumerate(pieces):
                _core.move_pieces(records, log, runs_at[k] + out_at, log_from, sizes)
                run = records[runs_at[k] : runs_at[k] + int(sizes.sum())]
                self._compare(run, crc[k], files, batches.start + k // runs)

    def _compare(self, data: np.ndarray, wanted: int, files: OutputFiles, batch: int) -> None:
        if _core.crc32c(data) != wanted:
            number = self._placement.packed_batches[batch]
            raise ChecksumError(
                f"{files.path_of(files.record_file(batch))}: the disk does not give back what was written of "
                f"mini-batch {number}; check the disk, remove the folder and prepare the run again"
            )


def _pieces_of(
    bounds: np.ndarray, at: int, row_bytes: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields for each run of a group what it took of chunks, where that is any: bytes before it in the run, where it
    lies in the log, bytes; int64 [pieces] each. In the log all runs' rows of a chunk follow one another, then those of
    the next one.

    Args:
        bounds: Rows of each run before each chunk: int32 [runs, chunks + 1].
        at: Where the rows of the group begin.
    """
    of_chunks = bounds.sum(axis=0, dtype=np.int64)
    next_at = at + of_chunks[:-1] * row_bytes
    for run in bounds:
        sizes = np.diff(run).astype(np.int64) * row_bytes
        there = np.flatnonzero(sizes)
        yield run[there].astype(np.int64) * row_bytes, next_at[there], sizes[there]
        next_at += sizes
