"""A pass over one row file: every packed batch, the blocks of the disk cache and the caches take their rows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

import outcrop._core as _core
from outcrop.config import exact_bytes, least_bytes
from outcrop.errors import BudgetError, FormatError
from outcrop.preparation.pack_files import (
    JoinedWrites,
    Journal,
    OutputFiles,
    PageSums,
    RowsFiles,
    SyncInBackground,
)
from outcrop.preparation.pack_log import PackLog
from outcrop.preparation.pack_memory import cut_features, divide_memory
from outcrop.preparation.pack_streams import RowStreams, Streams
from outcrop.runtime.in_background import InBackground
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import SequentialRows
from outcrop.store.placement import PlacedRows
from outcrop.store.samples import SampleSet

_JOURNAL_EVERY_BYTES = 256 << 20
_REREAD_SHARE = 16  # of what was written, one part at the most is read again because it left the page cache
_TAIL_BYTES = tuple(PAGE_BYTES << n for n in range(5))
# What a write costs besides its bytes: as much as reading so many, past the page cache and through it.
_WRITE_COST, _CACHED_WRITE_COST = 16 << 10, 48 << 10


@dataclass(frozen=True)
class _Episode:
    """Says what one pass over the features fills. ``caches``: those in memory too."""

    caches: bool
    blocks: range
    batches: range


class RowsPacker:
    """Packs the rows of one row file.

    Args:
        features: The row file.
        placed: Where its rows lie.
        samples: The batches.
        starts: Where the part of each packed record for these rows begins in its file: int64 [P].
        free: Bytes of the budget.

    Attributes:
        geometry: Says how passes are cut, for the journal.
        streams: Says which rows of each chunk go where.
        num_episodes: Passes over the row file.
        num_streams: Runs of all packed batches.
    """

    def __init__(
        self,
        features: SequentialRows,
        placed: PlacedRows,
        samples: SampleSet,
        starts: np.ndarray,
        runtime: Runtime,
        free: int,
    ):
        self.features, self.placed, self.section = features, placed, placed.section(samples)
        self._placement, self._runtime = placed.placement, runtime
        self._stride, self._row_bytes = features.spec.stride_bytes, features.row_bytes
        has_caches = bool(len(placed.host_ids) or len(placed.device_ids))
        self._memory = divide_memory(features, self.section.id_bytes, has_caches, free)
        self._chunks = cut_features(features.spec, self._memory.chunk_pages)
        first_rows = self._chunks.first_rows
        self.streams = RowStreams(placed, samples, starts, self._row_bytes, first_rows, runtime)
        self._num_blocks = len(placed.disk_blocks) - 1
        self.num_streams = len(self._placement.packed_batches) * self.section.num_runs
        self._own_tail_bytes = self._choose_tails()  # where rows are written to where they belong
        self.use(None)

    @property
    def num_episodes(self) -> int:
        return len(self._episodes)

    @property
    def geometry(self) -> str:
        chunks = self._chunks.starts  # one, where there are no rows
        return f"{len(chunks)}-{chunks[min(1, len(chunks) - 1)]}-{self.num_episodes}"

    @property
    def work_bytes(self) -> int:
        """Counts the bytes of the passes, and of putting the disk cache in order."""
        passes = self.num_episodes * self.features.spec.data_bytes
        return passes + self.placed.num_disk_rows * self._row_bytes

    def packed_bytes(self, packed_batch: int) -> int:
        """Counts the bytes of the rows of a batch that are packed."""
        return int(self.placed.num_packed[packed_batch]) * self._row_bytes

    def shift_bytes(self, packed_batch: int) -> int:
        """Counts the bytes before the first packed row of a batch."""
        return self.streams.shift_bytes(packed_batch)

    def note_packed(self, files: RowsFiles, packed_batch: int, ids: np.ndarray, writes: JoinedWrites) -> None:
        """Writes which rows of a batch are packed.

        Raises:
            FormatError: They are not as many as the plan says.
        """
        wanted = self.placed.num_packed[packed_batch]
        if len(ids) != wanted:
            raise FormatError(
                f"{self._placement.path}: mini-batch {self._placement.packed_batches[packed_batch]} has {len(ids)} "
                f"rows to pack, the plan says {wanted}; remove the folder and prepare the run again"
            )
        if len(ids):
            narrow = ids.astype(f"<i{self.section.id_bytes}")
            writes.write(files.packed_ids, files.packed_ids_at(packed_batch), narrow.view(np.uint8))

    @property
    def most_logged(self) -> int:
        """Counts the batches that a group of the log can have, so that the tables of an episode hold it."""
        return self._memory.table_bytes // 2 // self._per_batch(0)

    def has_room_for(self, log: PackLog) -> bool:
        """Tells whether each group of ``log`` can hold a page until it is written."""
        return self._tail_of(log) > 0

    def saved_by(self, log: PackLog) -> int:
        """Says what writing the rows to ``log`` costs less than writing them where they belong, in bytes that are read;
        it can be negative. That they are written and read once more is left out.
        """
        tail = self._tail_of(log)
        pieces = min(len(log) * max(len(self._chunks.starts) - 1, 1), self._packed_bytes // tail)
        passes = sum(1 for _ in self._cut_episodes(tail, log))
        return (
            self._cost_of(self._own_tail_bytes)
            - passes * self.features.spec.data_bytes
            - pieces * _WRITE_COST
        )

    def use(self, log: PackLog | None) -> None:
        """Has the rows of batches written to ``log``; None: to where they belong."""
        self._log, self._tail_bytes = log, self._own_tail_bytes if log is None else self._tail_of(log)
        self._episodes = list(self._cut_episodes(self._tail_bytes, log))

    def _tail_of(self, log: PackLog) -> int:
        """Returns the bytes that each group holds until they are written, whole pages; 0: there is no room."""
        most = self._memory.out_buffer - PAGE_BYTES - self._row_bytes
        room = min(self._memory.table_bytes // 2 // len(log), most, _TAIL_BYTES[-1])
        return max(room, 0) // PAGE_BYTES * PAGE_BYTES

    @property
    def _packed_bytes(self) -> int:
        return int(self.placed.num_packed.sum()) * self._row_bytes

    def _choose_tails(self) -> int:
        """Chooses how many bytes of each stream are held until they are written together; 0: none.

        Longer tails make fewer writes and more passes over the features, of which fewer streams fit one.
        """
        row, memory = self._row_bytes, self._memory
        tails = [tail for tail in _TAIL_BYTES if memory.has_room_for(tail, row, self._per_batch(tail))]
        return min([0, *tails], key=self._cost_of)

    def _cost_of(self, tail_bytes: int) -> int:
        """Says what passes with such tails cost, as bytes that are read: the features, and each write."""
        pieces = self.num_streams * max(len(self._chunks.starts) - 1, 1)
        if tail_bytes:
            written = min(pieces, self._packed_bytes // tail_bytes) * _WRITE_COST
        else:
            written = min(pieces, self._packed_bytes // self._row_bytes) * _CACHED_WRITE_COST
        return sum(1 for _ in self._cut_episodes(tail_bytes)) * self.features.spec.data_bytes + written

    def _per_stream(self, tail_bytes: int) -> int:
        return len(self._chunks.first_rows) * 4 + 64 + tail_bytes

    def _per_batch(self, tail_bytes: int) -> int:
        return self.section.num_runs * self._per_stream(tail_bytes)

    def _cut_episodes(self, tail_bytes: int, log: PackLog | None = None) -> Iterator[_Episode]:
        """Cuts the blocks of the disk cache, then the packed batches, so that the tables of an episode fit: those of
        whole groups, where there is a log.
        """
        per_stream = self._per_stream(0)  # of blocks
        per_batch, room = self._per_batch(0 if log else tail_bytes), self._memory.table_bytes
        if log is not None:
            room -= len(log) * tail_bytes
        if room < per_batch:
            raise BudgetError(
                f"packing needs {least_bytes(2 * per_batch)} for its tables and has {exact_bytes(room)}; raise "
                f"--memory by {least_bytes(2 * per_batch)}"
            )
        blocks, batches = self._num_blocks, len(self._placement.packed_batches)
        block = batch = 0
        while True:
            more_blocks = min(room // per_stream, blocks - block)
            more = min((room - more_blocks * per_stream) // per_batch, batches - batch)
            if log is not None:
                more = log.last_whole(batch + more) - batch
            yield _Episode(block == batch == 0, range(block, block + more_blocks), range(batch, batch + more))
            block, batch = block + more_blocks, batch + more
            if block == blocks and batch == batches:
                return

    def fill(self, files: OutputFiles, journal: Journal, number: int) -> None:
        """Makes the passes over the features, of row file ``number``."""
        size, runtime = self._memory, self._runtime
        if (journal.file, journal.episode) >= (number, self.num_episodes):
            return
        if journal.file < number:
            journal.file, journal.episode, journal.chunk = number, 0, 0
        own, noted = files.files[number], journal.files[number]
        chunk_bytes = size.headroom + size.chunk_pages * PAGE_BYTES
        buffers = [runtime.budget.empty("pack-chunk", chunk_bytes) for _ in range(2)]
        scatters = {
            width: _core.Scatter(
                runtime.io,
                runtime.budget,
                self._row_bytes,
                self._stride,
                width,
                size.ids_buffer,
                size.out_buffer,
            )
            for width in size.widths
        }
        for at, episode in enumerate(self._episodes):
            if at < journal.episode:
                runtime.progress.advance("pack", self.features.spec.data_bytes)
                continue
            groups = [
                *self.streams.of_batches(
                    files, own, noted, episode.batches, self._tail_bytes, self._places(number)
                ),
                self.streams.of_blocks(own, episode.blocks),
            ]
            if episode.caches:
                groups += self.streams.of_caches(own, noted)
            self._run_episode(files, journal, (number, at), groups, buffers, scatters)
            del groups  # before those of the next one take their place

    def _places(self, number: int) -> Callable[[range], tuple[np.ndarray, np.ndarray]] | None:
        if self._log is None:
            return None
        return partial(self._log.places, number, self.section.num_runs)

    def _run_episode(
        self,
        files: OutputFiles,
        journal: Journal,
        at: tuple[int, int],
        groups: list[Streams],
        buffers: list[np.ndarray],
        scatters: dict[int, _core.Scatter],
    ) -> None:
        number, episode = at
        own = files.files[number]
        start = journal.chunk if episode == journal.episode else 0
        self._runtime.progress.advance("pack", int(self._chunks.first_rows[start]) * self._stride)
        unsynced = written = 0
        tailed = [group for group in groups if len(group.tails)]
        # Pages that are read again to go on, if they are dropped.
        begun = PAGE_BYTES * sum(len(group.ids_start) for group in groups if not len(group.tails))
        for group in tailed if start else ():
            ends = group.ends(start, self._row_bytes)
            group.written[:] = np.maximum(group.out_start, ends // PAGE_BYTES * PAGE_BYTES)
            scatters[group.id_bytes].read_tails(group.out_file, ends, group.tails, group.written)
        with SyncInBackground(journal) as syncing:
            for chunk, data, first, rows in self._read_chunks(start, buffers):
                with self._runtime.trace.span("pack-chunk", episode=episode, chunk=chunk):
                    for group in groups:
                        self._scatter(scatters[group.id_bytes], group, chunk, data, first, rows)
                        written += int(np.diff(group.bounds[:, chunk : chunk + 2]).sum()) * self._row_bytes
                unsynced += len(data)
                self._runtime.progress.advance("pack", len(data))
                if unsynced >= min(_JOURNAL_EVERY_BYTES, self.features.spec.data_bytes // 8):
                    self._write_tails(scatters, tailed, chunk + 1)
                    journal.file, journal.episode, journal.chunk = number, episode, chunk + 1
                    syncing.begin(partial(files.sync, own, drop=begun <= written // _REREAD_SHARE))
                    unsynced = written = 0
            syncing.wait()
        self._write_tails(scatters, tailed, len(self._chunks.starts) - 1)
        files.sync(own)
        journal.file, journal.episode, journal.chunk = number, episode + 1, 0
        journal.save()

    def _write_tails(self, scatters: dict[int, _core.Scatter], tailed: list[Streams], chunk: int) -> None:
        """Writes what streams hold of the chunks before ``chunk``."""
        for group in tailed:
            ends = group.ends(chunk, self._row_bytes)
            scatters[group.id_bytes].write_tails(group.out_file, ends, group.tails, group.written)

    def _scatter(
        self, scatter: _core.Scatter, group: Streams, chunk: int, data: np.ndarray, first: int, rows: int
    ) -> None:
        before = group.bounds[:, chunk].astype(np.int64)
        counts = group.bounds[:, chunk + 1] - before
        scatter.run(
            data,
            first,
            rows,
            self._stride,
            group.ids_file,
            group.out_file,
            group.out_pages,
            group.ids_start + before * group.id_bytes,
            counts,
            group.ends(chunk, self._row_bytes),
            group.crc,
            group.tails,
            group.written,
            group.shared,
        )

    def order_disk_cache(self, files: OutputFiles, journal: Journal, number: int) -> None:
        """Puts the rows of each block in their order, a block's size further to the front of the file."""
        starts, row, budget = self.placed.disk_blocks, self._row_bytes, self._runtime.budget
        own, noted = files.files[number], journal.files[number]
        if noted.ordered == self._num_blocks:
            return
        sums = PageSums(own, self._runtime, int(starts[noted.ordered]) * row)
        most = self.placed.max_block_rows
        source, target = (budget.empty("pack-block", most * row) for _ in range(2))
        rank, counting = (budget.empty("pack-block", most * 4).view("<i4") for _ in range(2))
        counting[:] = np.arange(most)
        for k in range(noted.ordered, self._num_blocks):
            first, count = int(starts[k]), int(starts[k + 1] - starts[k])
            data, out = source[: count * row], target[: count * row]
            self._runtime.io.read(own.disk_cache, own.spare_bytes + first * row, data)
            self._runtime.io.read(own.disk_rank, first * 4, rank[:count].view(np.uint8))
            _core.fill_rows(out, count, row, rank[:count], counting[:count], data, row)
            self._runtime.io.write(own.disk_cache, first * row, out)
            sums.add(out, last=k + 1 == self._num_blocks)
            noted.disk_crc = _core.crc32c(out, noted.disk_crc)
            noted.ordered = k + 1
            self._runtime.progress.advance("pack", len(out))
            # The next block may overwrite what this one was made of.
            files.sync(own)
            journal.save()

    def _read_chunks(
        self, start: int, buffers: list[np.ndarray]
    ) -> Iterator[tuple[int, np.ndarray, int, int]]:
        """Yields (chunk, its bytes from the first row on, first row, rows); meanwhile the next one is read and its
        pages are compared with their checksums.
        """
        chunks, file, headroom = self._chunks, self.features, self._memory.headroom
        count = len(chunks.starts) - 1

        def pages(chunk: int) -> np.ndarray:
            begin, end = chunks.starts[chunk : chunk + 2].tolist()
            return buffers[chunk % 2][headroom : headroom + (end - begin) * PAGE_BYTES]

        def read(chunk: int) -> None:
            page, room = int(chunks.starts[chunk]), pages(chunk)
            file.submit(page * PAGE_BYTES, room).wait()
            file.check_pages(page, room)

        if start == count:
            return
        carry = self._carry_before(start)
        with InBackground("outcrop-chunk") as reading:
            reading.begin(partial(read, start))
            for chunk in range(start, count):
                reading.wait()
                room, (first, stop) = pages(chunk), chunks.first_rows[chunk : chunk + 2].tolist()
                buffer, begin = buffers[chunk % 2], headroom - len(carry)
                buffer[begin:headroom] = carry
                used = (stop - first) * self._stride
                carry = buffer[begin + used : headroom + len(room)].copy()
                if chunk + 1 < count:
                    reading.begin(partial(read, chunk + 1))
                yield chunk, buffer[begin : begin + used], first, stop - first

    def _carry_before(self, chunk: int) -> np.ndarray:
        """Returns the bytes of a row that begins before ``chunk`` and ends in it."""
        begin = int(self._chunks.starts[chunk]) * PAGE_BYTES
        count = begin - int(self._chunks.first_rows[chunk]) * self._stride
        out = np.zeros(count, np.uint8)
        if count:
            self.features.read_bytes(begin - count, out)
        return out

    def rows_crc(self, runs: np.ndarray) -> np.ndarray:
        """Returns the CRC of the packed rows of each record, uint32 [P], from those of its runs."""
        hops = self.section.num_runs
        out = np.zeros(len(self._placement.packed_batches), np.uint32)
        for p in range(len(out)):
            crc = 0
            for hop, rows in enumerate(self.placed.packed_per_hop[p]):
                crc = _core.crc32c_combine(crc, int(runs[p * hops + hop]), int(rows) * self._row_bytes)
            out[p] = crc
        return out
