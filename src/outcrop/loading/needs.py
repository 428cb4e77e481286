"""Which memory budgets are enough to load mini-batches, worked out when one was refused.

A rehearsal opens the session of the mode: memory is reserved from a budget as for the real thing, but no large arrays
are read and nothing is drawn (:class:`outcrop.runtime.runtime.Rehearsal`). It has to know how large the batches are:
they are drawn once, without a limit, and only counted. (Mode ``partition`` is another training with every budget that
holds other partitions: there the smallest of those like the first that works is named.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from outcrop.config import SampleConfig
from outcrop.config.sampling import EXTERNAL
from outcrop.errors import BudgetError
from outcrop.loading.modes import Mode, OnDisk, Online, mode_named
from outcrop.loading.online.hotness import PRESAMPLED_BATCHES
from outcrop.loading.open import open_session
from outcrop.runtime.progress import Progress
from outcrop.runtime.runtime import UNCOUNTED, Rehearsal, Runtime
from outcrop.runtime.sharing import Among
from outcrop.runtime.smallest_budget import SMALLER_BATCHES
from outcrop.sampling.sampler import BatchSampler
from outcrop.sampling.seeds import Chosen
from outcrop.sampling.typed import wants_distinct_edges
from outcrop.store import record
from outcrop.store.graph import Graph
from outcrop.store.graph_types import RowFile
from outcrop.store.samples import SectionSizes, shape_columns

_ALTERNATIVES = (Online(), OnDisk())  # that prepare nothing, the faster one first
_TASK = "count batches, for the smallest budget"
Pass = tuple[str, int]  # a split and an epoch


@dataclass
class _CountedSection:
    """Says how many rows of a row file counted batches want."""

    num_rows: np.ndarray
    id_bytes: int
    num_runs: int

    @property
    def max_rows(self) -> int:
        return int(self.num_rows.max(initial=0))


class CountedBatches(Rehearsal):
    """Counts how large the mini-batches of ``passes`` are, epochs by the numbers they are drawn by.

    They are drawn without a limit, once, and not kept. With many of them that takes as long as drawing an epoch does.

    Args:
        ids: Nodes of a split in place of those that the graph has.
    """

    def __init__(
        self,
        graph: Graph,
        config: SampleConfig,
        passes: Sequence[Pass],
        progress: Progress | bool | None = None,
        ids: Mapping[str, Chosen] | None = None,
    ):
        graph = graph.with_edge_rows(config.edge_rows)
        self._graph, self._config, self._progress, self._ids = graph, config, progress, ids or {}
        self._passes = [
            one
            for one in dict.fromkeys(passes)
            if one[0] in self._ids or graph.has(one[0]) or config.task == "link"
        ]
        self._most: dict[bool, int] = {}
        self.max_seeds = 0
        self.id_bytes, self.hops = record.id_bytes_for(graph.num_nodes), len(config.fanouts)
        ahead = ("train" if "train" in config.splits else config.splits[0], config.first_epoch)
        sizes: dict[Pass, list[_BatchSize]] = {}
        self._most[False] = self._draw("map", [*self._passes, ahead], sizes)
        every = [size for one in self._passes for size in sizes[one]]
        self.num_nodes = np.array([size.nodes for size in every], np.int64)
        self._most_indexed = max((size.indexed for size in every), default=0)
        self.max_record_bytes = max((size.record_bytes for size in every), default=record.PAGE_BYTES)
        self._max_rows = self._most_rows(every)
        self._counted_rows = self._most_rows(sizes[ahead][:PRESAMPLED_BATCHES])
        self._sections = [
            _CountedSection(
                np.array([size.rows[rows.number] for size in every], np.int64),
                self._width(rows),
                self.hops + (rows.kind == "nodes"),
            )
            for rows in graph.row_files
        ]

    def _width(self, rows: RowFile) -> int:
        return self.id_bytes if rows.kind == "nodes" else record.POSITION_BYTES

    def section(self, rows: RowFile) -> SectionSizes:
        """Says what the batches want of ``rows``."""
        return self._sections[rows.number]

    @property
    def columns(self) -> int:
        graph = self._graph
        by_type = graph.is_typed or graph.has_edge_rows or self._config.edge_ids
        distinct = wants_distinct_edges(self._config, graph)
        return shape_columns(len(graph.node_types), len(graph.edge_types), self.hops, by_type, distinct)

    @property
    def decoded_bytes(self) -> int:
        return self.max_nodes * (8 - self.id_bytes) + record.POSITION_BYTES * self._most_indexed

    @property
    def num_batches(self) -> int:
        return len(self.num_nodes)

    @property
    def max_nodes(self) -> int:
        return int(self.num_nodes.max(initial=0))

    @property
    def max_rows(self) -> tuple[int, ...]:
        return self._max_rows

    @property
    def counted_rows(self) -> tuple[int, ...]:
        return self._counted_rows

    def _most_rows(self, sizes: Sequence[_BatchSize]) -> tuple[int, ...]:
        files = range(len(self._graph.row_files))
        return tuple(max((size.rows[file] for size in sizes), default=0) for file in files)

    def batch_bytes(self, paged: bool) -> int:
        if paged not in self._most:
            self._most[paged] = self._draw("paged", self._passes, {})
        return self._most[paged]

    def _draw(self, topology: str, passes: Sequence[Pass], sizes: dict[Pass, list[_BatchSize]]) -> int:
        with Runtime(progress=self._progress) as runtime:
            sampler = BatchSampler(self._graph, self._config, runtime, topology=topology, ids=self._ids)
            each = dict.fromkeys(passes)
            with runtime.task(_TASK, sum(sampler.num_batches(split) for split, _ in each), "batches"):
                for one in each:
                    sizes[one] = []
                    for batch in sampler.epoch(*one):
                        encoded = record.encode(batch, (), self.id_bytes)
                        rows = batch.num_rows(self._graph.row_files)
                        indexed = batch.num_edges if wants_distinct_edges(self._config, self._graph) else 0
                        sizes[one].append(_BatchSize(batch.num_nodes, len(encoded), rows, indexed))
                        self.max_seeds = max(self.max_seeds, batch.num_seeds)
                        runtime.progress.advance(_TASK, 1)
            return sampler.most_batch_bytes


class _BatchSize(NamedTuple):
    nodes: int
    record_bytes: int
    rows: tuple[int, ...]  # of each row file
    indexed: int  # edges whose positions follow from an index


class BatchCounter:
    """Counts batches, the same ones once: what several modes need is worked out from one drawing."""

    def __init__(self, progress: Progress | bool | None = None):
        self._progress = progress
        self._counted: dict[tuple[SampleConfig, frozenset[Pass]], CountedBatches] = {}

    def count(
        self,
        graph: Graph,
        config: SampleConfig,
        passes: Sequence[Pass],
        ids: Mapping[str, Chosen] | None = None,
    ) -> CountedBatches:
        """Returns how large the batches are; those around ``ids`` are drawn in any case."""
        if ids:
            return CountedBatches(graph, config, passes, self._progress, ids)
        key = config, frozenset(passes)
        if key not in self._counted:
            self._counted[key] = CountedBatches(graph, config, passes, self._progress)
        return self._counted[key]


class SessionNeeds:
    """Says what loading in ``mode`` takes.

    Args:
        config: Of what is drawn; of a ``run``, the run's.
        passes: What is loaded, epochs as training counts them.
        ids: Of batches drawn on the fly: nodes of a split, in place of those that the graph has.
    """

    def __init__(
        self,
        graph: Graph,
        mode: str | Mode,
        config: SampleConfig,
        passes: Sequence[Pass],
        *,
        run: Path | None = None,
        epoch_splits: tuple[str, ...] = ("train",),
        counter: BatchCounter | None = None,
        ids: Mapping[str, Chosen] | None = None,
    ):
        self._ids = ids
        self._graph = graph.with_edge_rows(config.edge_rows)
        self._config, self._passes = config, passes
        self._mode = replace(mode_named(mode), paranoid=False)  # what is compared takes nothing of a budget
        self._run, self._epoch_splits = run, epoch_splits
        self._counter = counter or BatchCounter()
        self._counted: Rehearsal | None = None

    def fits(self, limit: int, processes: int = 1) -> bool:
        """Tells whether ``limit`` bytes are enough for so many processes of a machine that load at the same time."""
        try:
            return (
                self._partitioned(limit)
                if self._mode.batches_by_budget
                else self._rehearsed(limit, processes)
            )
        except BudgetError:
            return False

    def _rehearsed(self, limit: int, processes: int) -> bool:
        if self._counted is None:
            draws = self._config.sampler != EXTERNAL and (self._run is None or self._mode.redraws)
            numbers = [(split, self._config.epoch_number(split, epoch)) for split, epoch in self._passes]
            self._counted = (
                self._counter.count(self._graph, self._config, numbers, self._ids) if draws else UNCOUNTED
            )
        sharing = Among(processes) if processes > 1 else None
        rehearsing = Runtime(limit // processes, rehearsal=self._counted, sharing=sharing)
        with rehearsing as runtime, self._open(runtime) as session:
            if self._run is None:  # else the run says how large batches are
                session.make_room(self._counted.max_rows)
        return True

    def _partitioned(self, limit: int) -> bool:
        """Tells whether batches fit that depend on the budget, as partitions do: they are drawn, but not read."""
        with Runtime(limit) as runtime, self._open(runtime) as session:
            for split, epoch in self._passes:
                for _, batch in session.drawn(split, epoch) if self._graph.has(split) else ():
                    session.make_room(batch.num_rows(self._graph.row_files))
        return True

    def _open(self, runtime: Runtime):
        return open_session(
            self._graph,
            runtime,
            self._mode,
            run_folder=self._run,
            config=self._config,
            epoch_splits=self._epoch_splits,
            ids=self._ids,
        )


def other_modes(limit: int | None, mode: Mode, fits: Callable[[Mode], Callable[[int], bool]]) -> str:
    """Says what helps where ``mode`` was refused a memory budget of ``limit`` bytes: another mode that works with it.

    Args:
        fits: Makes what says whether a budget is enough for a mode.
    """
    for other in (replace(one, **mode.common) for one in _ALTERNATIVES):
        if limit is not None and other.name != mode.name and fits(other)(limit):
            return f"--mode {other} works with this budget"
    return SMALLER_BATCHES
