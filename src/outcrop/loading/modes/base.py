"""What a mode of loading is, what it is asked for, and what the modes that fetch rows by node id share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from outcrop.config import DeviceConfig, SampleConfig, TopologyChoice, check_topology
from outcrop.config.declared import check_types
from outcrop.loading.buffers import BufferPool, HostBuffer
from outcrop.loading.feeders import BatchStructures, RecordedStructures, SampledStructures
from outcrop.loading.session import LoadSession, make_pool, row_session
from outcrop.rows import RowSource
from outcrop.runtime import memory_tables
from outcrop.runtime.memory_plan import Part
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.sampling.seeds import Chosen
from outcrop.store.graph import Graph
from outcrop.store.graph_types import RowFile
from outcrop.store.samples import SampleSet


@dataclass(frozen=True)
class SessionRequest:
    """Says what is to be loaded, whatever the mode.

    Attributes:
        config: How batches are drawn; of a run, how its batches were.
        epoch_splits: What one epoch goes over; mode ``belady`` plans for it.
        ids: Of batches drawn on the fly: nodes of a split, or edges to be predicted, in place of those that the graph
            has.
        run: Folder of the run that has the batches, and
        recorded: its batches; None: they are drawn on the fly.
    """

    graph: Graph
    runtime: Runtime
    config: SampleConfig
    device: DeviceConfig
    epoch_splits: tuple[str, ...] = ("train",)
    ids: Mapping[str, Chosen] | None = None
    run: Path | None = None
    recorded: SampleSet | None = None

    def make_pool(self) -> BufferPool[HostBuffer]:
        """Makes batch buffers; without a run nobody knows how large they must be, and they grow."""
        return make_pool(
            self.graph,
            self.runtime,
            buffers=memory_tables.BATCH_BUFFERS,
            max_rows=self.max_rows,
            device=self.device,
        )

    @property
    def max_rows(self) -> tuple[int, ...] | None:
        """Counts the rows of each row file in any batch, at most; None where nobody knows."""
        recorded = self.recorded
        if recorded is None:
            return None
        return tuple(recorded.section(rows).max_rows for rows in self.graph.row_files)

    def cache_bytes(self, part: Part) -> int:
        """Counts the bytes of ``part`` of what the budget has left."""
        return part.bytes_of(self.runtime.budget.free_bytes - memory_tables.CACHE_MARGIN.least)


@dataclass(frozen=True)
class Mode(ABC):
    """Says where the rows of mini-batches come from, and what follows from that for who trains with it.

    Each class is listed once, in ``outcrop.loading.modes``, where names become modes. What users may choose of a mode
    is a field of its class.

    Attributes:
        topology: Where neighbour lists are read from: ``memory``; ``paged``, from disk, with a cache of the pages that
            are wanted most; ``map``, through the system's page cache; ``automatic``: memory where it fits its share of
            the budget, else map where the system has twice the room for it, else paged. Batches are the same.
        paranoid: Whether every row of every mini-batch is compared with its checksum when the batch is ready, behind
            all caches and buffers, so that memory that loses bits is noticed. The checksums, 4 bytes a row, are kept
            beside the graph, and made in one pass over the rows when they are first asked for.
        name: What users write, and what reports and histories hold.
        note: What help texts say of it.
        needs_run: It loads nothing but what a prepared run has.
        prepares: Training makes the run where none is given.
        redraws: It draws its batches itself, even where a run has them.
        any_nodes: It loads batches around any nodes, not only those of splits.
        takes_run_budget: The memory that a run was planned for is meant for it, too.
        plans_evaluation: It plans for one pass over the validation nodes in every epoch.
        starts_within_epoch: Loading can begin with any batch of an epoch.
        batches_by_budget: The memory budget decides which batches there are, and so what is learned.
        loads_types: It loads graphs with several types of nodes or edges, and rows of each.
    """

    topology: TopologyChoice = field(default="automatic", kw_only=True)
    paranoid: bool = field(default=False, kw_only=True)

    name: ClassVar[str]
    note: ClassVar[str] = ""
    needs_run: ClassVar[bool] = False
    prepares: ClassVar[bool] = False
    redraws: ClassVar[bool] = False
    any_nodes: ClassVar[bool] = True
    takes_run_budget: ClassVar[bool] = True
    plans_evaluation: ClassVar[bool] = False
    starts_within_epoch: ClassVar[bool] = True
    batches_by_budget: ClassVar[bool] = False
    loads_types: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_types(self)
        check_topology(self.topology)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def takes(cls, option: str) -> bool:
        """Tells whether ``option`` is a field of this mode."""
        return any(field.name == option for field in fields(cls))

    @property
    def common(self) -> dict[str, Any]:
        """Returns the fields that every mode has: another mode that stands in for this one gets them, too."""
        return {"topology": self.topology, "paranoid": self.paranoid}

    @property
    def spools(self) -> bool:
        """Tells whether training may write the rows of a few epochs in the order of their use, where that is sooner
        done.
        """
        return False

    def device(self, name: str, memory_bytes: int) -> DeviceConfig:
        """Describes where the batches of this mode go: a device, and how many bytes of it."""
        return DeviceConfig(name, memory_bytes)

    def check(self, graph: Graph, device: str) -> None:
        """Raises ArgumentError where this mode cannot load ``graph`` for ``device`` as its fields ask."""

    @abstractmethod
    def open(self, request: SessionRequest) -> LoadSession:
        """Opens a session.

        Raises:
            BudgetError: The mode does not fit, for example ``memory`` in less than the features.
        """

    def identity(self) -> dict[str, Any]:
        """Returns what must be equal for a training to go on, beside what is the same in every mode."""
        return {}


class RowMode(Mode):
    """Fetches the rows of a batch by their ids when the batch is there."""

    loads_types = True

    def open(self, request: SessionRequest) -> LoadSession:
        """Opens buffers first: what is left afterwards is for topology and caches."""
        graph, runtime = request.graph, request.runtime
        pool = request.make_pool()
        below = [self.open_rows(request, file) for file in graph.row_files]
        structures: RecordedStructures | SampledStructures
        if request.recorded is not None:
            structures = RecordedStructures(request.recorded, runtime)
        else:  # a good part of the budget is left for the buffers, which grow to the size of batches
            structures = SampledStructures(
                BatchSampler(
                    graph,
                    request.config,
                    runtime,
                    topology=self.topology,
                    memory_fraction=memory_tables.GROWING_SAMPLER.fraction,
                    ids=request.ids,
                )
            )
        rows = self.cached(below, request, structures)
        return row_session(graph, structures, rows, pool, runtime, request.device)

    @abstractmethod
    def open_rows(self, request: SessionRequest, file: RowFile) -> RowSource:
        """Opens where the rows of a row file lie."""

    def cached(
        self, rows: list[RowSource], request: SessionRequest, structures: BatchStructures
    ) -> list[RowSource]:
        """Returns ``rows``, one source for each row file, or caches over them.

        Args:
            structures: The batches.
        """
        return rows
