"""What mode ``online`` feeds: batches that are drawn hop by hop, and their rows as soon as a hop is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from outcrop.errors import BudgetError
from outcrop.loading.buffers import HostBuffer, Lease, RowBuffer
from outcrop.loading.feeders import BatchInFlight, InPlace, RecordedStructures, room_bytes
from outcrop.rows import HotRows, LocatedRows, PendingReads
from outcrop.sampling.sampler import BatchSampler
from outcrop.sampling.seeds import Seeds
from outcrop.store.address_table import AddressTable
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.graph_types import EdgeType, NodeType
from outcrop.store.levels import Level, LevelCounts


class HopwiseSampler(Protocol):
    """Samples batches one at a time, and tells of the nodes that a hop meets first as soon as they are known, in the
    numbering of all nodes.
    """

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

    def __init__(self, structures: RecordedStructures, graph: Graph):
        self._structures, self._types = structures, graph.node_types

    def seeds(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[BatchGraph]:
        return self._structures.batches(split, epoch, numbers)

    def sample(
        self,
        seeds: BatchGraph,
        on_new_nodes: Callable[[np.ndarray], None],
        on_located: Callable[[int, LocatedRows], None] | None = None,
    ) -> BatchGraph:
        for of, nodes in zip(self._types, seeds.nodes, strict=True):
            on_new_nodes(nodes.ids + of.first if of.first else nodes.ids)
        return seeds

    def drop_lists(self) -> None: ...


class OnlineFeeder(InPlace):
    """Feeds mode online: rows are asked for hop by hop while the batch is drawn, and waited for when it is needed.

    Source: Hyperion, sections III (pipeline) and III-A. The nodes of a type first met in a hop are consecutive in the
    batch, so their rows, from the cache or from the disk, go straight to their places. Rows of edges are asked for when
    the batch is drawn.

    Args:
        graph: The graph that the batches are of.
        rows: Where the rows of each row file lie.
        defer_cached: Cached rows are left to the transfer, which a table tells where they are; of one row file.
    """

    def __init__(
        self, sampler: HopwiseSampler, graph: Graph, rows: Sequence[HotRows], *, defer_cached: bool = False
    ):
        self._sampler, self._rows, self._defer_cached = sampler, tuple(rows), defer_cached
        self._files, self._has_types = graph.row_files, len(graph.node_types) > 1

    def source(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterable[Any]:
        return self._sampler.seeds(split, epoch, numbers)

    def submit(self, what: Any, lease: Lease[HostBuffer]) -> BatchInFlight:
        reads = [
            _RowReads(rows, held, self._defer_cached, self._grow)
            for rows, held in zip(self._rows, lease.buffer.rows, strict=True)
        ]
        of_nodes = [
            (of.add, file.owner)
            for of, file in zip(reads, self._files, strict=True)
            if isinstance(file.owner, NodeType)
        ]

        def add(nodes: np.ndarray) -> None:
            for ask, owner in of_nodes:
                ask(_ids_within(owner, nodes) if self._has_types else nodes)

        graph = self._sampler.sample(what, add, reads[0].add_located if reads else None)
        for of, file in zip(reads, self._files, strict=True):
            if isinstance(file.owner, EdgeType):
                for run in graph.section(file).split():
                    of.add(run)
        needed = sum(
            of.levels.get(Level.DISK, 0) * rows.row_bytes for of, rows in zip(reads, self._rows, strict=True)
        )
        return BatchInFlight(
            graph,
            lease,
            reads=_Together(reads),
            table=reads[0].table() if self._defer_cached else None,
            levels=[of.levels for of in reads],
            needed=needed,
        )

    def read(self, batch: BatchInFlight) -> BatchInFlight:
        batch.wait()
        return batch

    def missing_rows(self, ids: np.ndarray, row_file: int = 0) -> np.ndarray:
        """Returns those of ``ids``, of one row file, whose rows are read from disk, ascending."""
        return self._rows[row_file].missing(ids)

    def make_room(self, buffer: HostBuffer, num_rows: Sequence[int]) -> None:
        for held, rows, count in zip(buffer.rows, self._rows, num_rows, strict=True):
            self._grow(held, count * rows.row_bytes, count)

    def _grow(self, held: RowBuffer, rows_bytes: int, count: int) -> None:
        """Grows ``held``; what is cached gives way to a batch that is larger than those that were counted."""
        try:
            held.make_room(room_bytes(rows_bytes), count)
        except BudgetError:
            if self._defer_cached:  # addresses of cached rows are under way
                raise
            for rows in self._rows:
                rows.drop_cache()
            self._sampler.drop_lists()
            held.make_room(room_bytes(rows_bytes), count)

    def close(self) -> None:
        for rows in self._rows:
            rows.close()


def _ids_within(of: NodeType, nodes: np.ndarray) -> np.ndarray:
    """Returns those of ``nodes``, in the numbering of all nodes, that are of one type, counted within it."""
    return nodes[(nodes >= of.first) & (nodes < of.first + of.num_nodes)] - of.first


class _Together(PendingReads):
    """Stands for the rows of several row files that are under way."""

    def __init__(self, reads: Sequence[PendingReads]):
        self._reads = reads

    def wait(self) -> None:
        for one in self._reads:
            one.wait()


class _RowReads:
    """Holds the rows of one batch that were asked for so far of one row file."""

    def __init__(
        self, rows: HotRows, held: RowBuffer, defer_cached: bool, grow: Callable[[RowBuffer, int, int], None]
    ):
        self._rows, self._held, self._defer_cached, self._grow = rows, held, defer_cached, grow
        self._tables: list[AddressTable] = []
        self._added: list[np.ndarray] = []
        self._jobs: list[PendingReads] = []
        self._end, self._is_located = 0, False
        self.levels: LevelCounts = {}

    def add(self, ids: np.ndarray) -> None:
        """Asks for the next rows of the section, ids rising."""
        end = self._end + len(ids) * self._rows.row_bytes
        again = () if self._has(end) else self._make_room(end)
        for part in (*again, ids):
            self._ask(part)
        self._added.append(ids)

    def add_located(self, num_nodes: int, rows: LocatedRows) -> None:
        """Asks for all rows of the batch, which a GPU has looked up: their addresses are there, and need no table."""
        self._end = num_nodes * self._rows.row_bytes
        if not self._has(self._end):
            self._grow(self._held, self._end, num_nodes)
        self._jobs.append(self._rows.submit_located(rows, self._held.x[: self._end]))
        self.levels, self._is_located = rows.levels, True

    def _ask(self, ids: np.ndarray) -> None:
        begin, self._end = self._end, self._end + len(ids) * self._rows.row_bytes
        out = self._held.x[begin : self._end]
        if self._defer_cached:
            job, table = self._rows.submit_uncached(ids, out)
            self._tables.append(table.moved(begin // self._rows.row_bytes))
            cached = {Level.HOST: len(table.host_rows), Level.DEVICE: len(table.device_rows)}
            levels = {**cached, Level.DISK: len(ids) - table.num_cached}
        else:
            job, levels = self._rows.submit(ids, out)
        self._jobs.append(job)
        for level, count in levels.items():
            self.levels[level] = self.levels.get(level, 0) + count

    def _has(self, count: int) -> bool:
        """Tells whether ``count`` bytes of rows have room."""
        return self._held.has(room_bytes(count), count // self._rows.row_bytes)

    def _make_room(self, count: int) -> list[np.ndarray]:
        """Makes room for a batch that is larger than any before; returns the ids that must be asked for again."""
        self.wait()
        self._grow(self._held, count, count // self._rows.row_bytes)
        self._end, self.levels = 0, {}
        self._tables.clear()
        return self._added

    def table(self) -> AddressTable | None:
        """Returns where cached rows lie; None where the GPU that drew the batch knows."""
        return None if self._is_located else AddressTable.joined(self._tables)

    def wait(self) -> None:
        while self._jobs:
            self._jobs.pop().wait()
