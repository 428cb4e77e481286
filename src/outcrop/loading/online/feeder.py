"""What mode ``online`` feeds: batches that are drawn hop by hop, and their rows as soon as a hop is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from outcrop.errors import BudgetError
from outcrop.loading.buffers import HostBuffer, Lease
from outcrop.loading.feeders import BatchInFlight, InPlace, RecordedStructures, room_bytes
from outcrop.rows import HotRows, LocatedRows, PendingReads
from outcrop.sampling.sampler import BatchSampler
from outcrop.sampling.seeds import Seeds
from outcrop.store.address_table import AddressTable
from outcrop.store.batches import BatchGraph
from outcrop.store.levels import Level, LevelCounts


class HopwiseSampler(Protocol):
    """Samples batches one at a time, and tells of the nodes that a hop meets first as soon as they are known."""

    def seeds(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[Any]: ...
    def sample(
        self,
        seeds: Any,
        on_new_nodes: Callable[[np.ndarray], None],
        on_located: Callable[[int, LocatedRows], None] | None = None,
    ) -> BatchGraph:
        """Does what :meth:`outcrop.sampling.sampler.BatchSampler.sample` does."""
        ...

    def drop_lists(self) -> None:
        """Gives back neighbour lists that are cached; also from within ``on_new_nodes``."""
        ...


class LiveSampler:
    """Draws batches on the fly, a hop at a time."""

    def __init__(self, sampler: BatchSampler):
        self._sampler = sampler

    def seeds(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[Seeds]:
        return self._sampler.seeds(split, self._sampler.config.epoch_number(split, epoch), numbers)

    def sample(
        self,
        seeds: Seeds,
        on_new_nodes: Callable[[np.ndarray], None],
        on_located: Callable[[int, LocatedRows], None] | None = None,
    ) -> BatchGraph:
        return self._sampler.sample(seeds, on_new_nodes, on_located)

    def cache_lists(self, index: Any, ids: np.ndarray) -> None:
        """Does what :meth:`outcrop.sampling.sampler.BatchSampler.cache_lists` does."""
        self._sampler.cache_lists(index, ids)

    def look_up_rows(self, index: Any, tiers: np.ndarray | None, missing_stay: bool) -> None:
        """Does what :meth:`outcrop.sampling.sampler.BatchSampler.look_up_rows` does."""
        self._sampler.look_up_rows(index, tiers, missing_stay)

    def drop_lists(self) -> None:
        self._sampler.topology.drop_lists()


class ReplayedSamples:
    """Replays recorded batches that nothing here could draw again."""

    def __init__(self, structures: RecordedStructures):
        self._structures = structures

    def seeds(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[BatchGraph]:
        return self._structures.batches(split, epoch, numbers)

    def sample(
        self,
        seeds: BatchGraph,
        on_new_nodes: Callable[[np.ndarray], None],
        on_located: Callable[[int, LocatedRows], None] | None = None,
    ) -> BatchGraph:
        on_new_nodes(seeds.n_id)
        return seeds

    def drop_lists(self) -> None: ...


class OnlineFeeder(InPlace):
    """Feeds mode online: rows are asked for hop by hop while the batch is drawn, and waited for when it is needed.

    Source: Hyperion, sections III (pipeline) and III-A. The nodes first met in a hop are consecutive in the batch, so
    their rows, from the cache or from the disk, go straight to their places.

    Args:
        defer_cached: Cached rows are left to the transfer, which a table tells where they are.
    """

    def __init__(self, sampler: HopwiseSampler, rows: HotRows, *, defer_cached: bool = False):
        self._sampler, self.rows, self._defer_cached = sampler, rows, defer_cached
        self.row_bytes = rows.row_bytes

    def source(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterable[Any]:
        return self._sampler.seeds(split, epoch, numbers)

    def submit(self, what: Any, lease: Lease[HostBuffer]) -> BatchInFlight:
        reads = _RowReads(self.rows, lease.buffer, self._defer_cached, self._grow)
        graph = self._sampler.sample(what, reads.add, reads.add_located)
        table = reads.table() if self._defer_cached else None
        needed = reads.levels.get(Level.DISK, 0) * self.row_bytes
        return BatchInFlight(graph, lease, reads=reads, table=table, levels=(reads.levels,), needed=needed)

    def read(self, batch: BatchInFlight) -> BatchInFlight:
        batch.wait()
        return batch

    def missing_rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns those of ``ids`` whose rows are read from disk, ascending."""
        return self.rows.missing(ids)

    def make_room(self, buffer: HostBuffer, num_rows: Sequence[int]) -> None:
        (count,) = num_rows
        self._grow(buffer, count * self.row_bytes)

    def _grow(self, buffer: HostBuffer, rows_bytes: int) -> None:
        """Grows ``buffer``; what is cached gives way to a batch that is larger than those that were counted."""
        try:
            buffer.rows[0].make_room(room_bytes(rows_bytes))
        except BudgetError:
            if self._defer_cached:  # addresses of cached rows are under way
                raise
            self.rows.drop_cache()
            self._sampler.drop_lists()
            buffer.rows[0].make_room(room_bytes(rows_bytes))

    def close(self) -> None:
        self.rows.close()


class _RowReads:
    """Holds the rows of one batch that were asked for so far."""

    def __init__(
        self, rows: HotRows, buffer: HostBuffer, defer_cached: bool, grow: Callable[[HostBuffer, int], None]
    ):
        self._rows, self._buffer, self._defer_cached, self._grow = rows, buffer, defer_cached, grow
        self._tables: list[AddressTable] = []
        self._added: list[np.ndarray] = []
        self._jobs: list[PendingReads] = []
        self._end, self._is_located = 0, False
        self.levels: LevelCounts = {}

    def add(self, nodes: np.ndarray) -> None:
        end = self._end + len(nodes) * self._rows.row_bytes
        again = self._make_room(end) if room_bytes(end) > len(self._buffer.x) else ()
        for part in (*again, nodes):
            self._ask(part)
        self._added.append(nodes)

    def add_located(self, num_nodes: int, rows: LocatedRows) -> None:
        """Asks for all rows of the batch, which a GPU has looked up: their addresses are there, and need no table."""
        self._end = num_nodes * self._rows.row_bytes
        if room_bytes(self._end) > len(self._buffer.x):
            self._grow(self._buffer, self._end)
        self._jobs.append(self._rows.submit_located(rows, self._buffer.x[: self._end]))
        self.levels, self._is_located = rows.levels, True

    def _ask(self, nodes: np.ndarray) -> None:
        begin, self._end = self._end, self._end + len(nodes) * self._rows.row_bytes
        out = self._buffer.x[begin : self._end]
        if self._defer_cached:
            job, table = self._rows.submit_uncached(nodes, out)
            self._tables.append(table.moved(begin // self._rows.row_bytes))
            cached = {Level.HOST: len(table.host_rows), Level.DEVICE: len(table.device_rows)}
            levels = {**cached, Level.DISK: len(nodes) - table.num_cached}
        else:
            job, levels = self._rows.submit(nodes, out)
        self._jobs.append(job)
        for level, count in levels.items():
            self.levels[level] = self.levels.get(level, 0) + count

    def _make_room(self, count: int) -> list[np.ndarray]:
        """Makes room for a batch that is larger than any before; returns the nodes that must be asked for again."""
        self.wait()
        self._grow(self._buffer, count)
        self._end, self.levels = 0, {}
        self._tables.clear()
        return self._added

    def table(self) -> AddressTable | None:
        """Returns where cached rows lie; None where the GPU that drew the batch knows."""
        return None if self._is_located else AddressTable.joined(self._tables)

    def wait(self) -> None:
        while self._jobs:
            self._jobs.pop().wait()
