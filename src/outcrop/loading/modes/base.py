"""What a mode of loading is, what it is asked for, and what the modes that fetch rows by node id share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from outcrop.config import BaselineConfig, DeviceConfig, SampleConfig
from outcrop.loading.buffers import BufferPool, HostBuffer
from outcrop.loading.feeders import RecordedStructures, SampledStructures
from outcrop.loading.session import LoadSession, make_pool, row_session
from outcrop.rows import RowSource, rows_within
from outcrop.runtime import memory_tables
from outcrop.runtime.memory_plan import Part
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler, Ids
from outcrop.store.graph import Graph
from outcrop.store.samples import SampleSet


@dataclass(frozen=True)
class SessionRequest:
    """What is to be loaded, whatever the mode.

    Attributes:
        config: How batches are drawn; of a run, how its batches were.
        baseline: Options of the baselines.
        ids: Of batches drawn on the fly: nodes of a split, in place of those that the graph has.
        run: Folder of the run that has the batches, and
        recorded: its batches; None: they are drawn on the fly.
    """

    graph: Graph
    runtime: Runtime
    config: SampleConfig
    device: DeviceConfig
    baseline: BaselineConfig
    ids: Mapping[str, Ids] | None = None
    run: Path | None = None
    recorded: SampleSet | None = None

    def make_pool(self) -> BufferPool[HostBuffer]:
        """Batch buffers; without a run nobody knows how large they must be, and they grow."""
        most = 0 if self.recorded is None else self.recorded.max_nodes
        return make_pool(
            self.graph, self.runtime, buffers=memory_tables.BATCH_BUFFERS, max_nodes=most, device=self.device
        )

    def cache_rows(self, rows: RowSource, policy: str, part: Part, cycle: int = 1) -> int:
        """Rows of a cache over ``rows``: as many as were asked for, or as fit ``part`` of what the budget has left."""
        if self.baseline.cache_rows is not None:
            return min(self.baseline.cache_rows, rows.num_rows)
        left = part.bytes_of(self.runtime.budget.free_bytes - memory_tables.CACHE_MARGIN.least)
        return rows_within(policy, left, rows.row_bytes, rows.num_rows, cycle)


class Mode(ABC):
    """Where the rows of mini-batches come from, and what follows from that for who trains with it.

    The objects have no state, so two of a class are equal. Each class is listed once, in ``outcrop.loading.modes``,
    where names become modes.

    Attributes:
        name: What users write, and what reports and histories hold.
        note: What help texts say of it.
        needs_run: It loads nothing but what a prepared run has.
        prepares: Training makes the run where none is given.
        redraws: It draws its batches itself, even where a run has them.
        spools: Training may write the rows of a few epochs in the order of their use, where that is sooner done.
        any_nodes: It loads batches around any nodes, not only those of splits.
        takes_run_budget: The memory that a run was planned for is meant for it, too.
        plans_evaluation: It plans for one pass over the validation nodes in every epoch.
        starts_within_epoch: Loading can begin with any batch of an epoch.
        batches_by_budget: The memory budget decides which batches there are, and so what is learned.
        options: Options of training that mean something in this mode alone.
    """

    name: ClassVar[str]
    note: ClassVar[str] = ""
    needs_run: ClassVar[bool] = False
    prepares: ClassVar[bool] = False
    redraws: ClassVar[bool] = False
    spools: ClassVar[bool] = False
    any_nodes: ClassVar[bool] = True
    takes_run_budget: ClassVar[bool] = True
    plans_evaluation: ClassVar[bool] = False
    starts_within_epoch: ClassVar[bool] = True
    batches_by_budget: ClassVar[bool] = False
    options: ClassVar[frozenset[str]] = frozenset()

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @abstractmethod
    def open(self, request: SessionRequest) -> LoadSession:
        """Opens a session.

        Raises:
            BudgetError: The mode does not fit, for example ``memory`` in less than the features.
        """

    def identity(self, baseline: BaselineConfig) -> dict[str, Any]:
        """What must be equal for a training to go on, beside what is the same in every mode."""
        return {}


class RowMode(Mode):
    """A mode that fetches the rows of a batch by node id when the batch is there."""

    def open(self, request: SessionRequest) -> LoadSession:
        """Buffers first: what is left afterwards is for topology and caches."""
        graph, runtime = request.graph, request.runtime
        pool = request.make_pool()
        below = self.open_rows(request)
        structures: RecordedStructures | SampledStructures
        if request.recorded is not None:
            structures = RecordedStructures(request.recorded, runtime)
        else:  # a good part of the budget is left for the buffers, which grow to the size of batches
            structures = SampledStructures(
                BatchSampler(
                    graph,
                    request.config,
                    runtime,
                    memory_fraction=memory_tables.GROWING_SAMPLER.fraction,
                    ids=request.ids,
                )
            )
        rows = self.cached(below, request)
        return row_session(graph, structures, rows, pool, runtime, request.device)

    @abstractmethod
    def open_rows(self, request: SessionRequest) -> RowSource:
        """Opens where the rows lie."""

    def cached(self, rows: RowSource, request: SessionRequest) -> RowSource:
        """``rows``, or a cache over them."""
        return rows
