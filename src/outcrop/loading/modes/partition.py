"""Mode ``partition``, a baseline: batches are drawn among the partitions that are in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from outcrop.errors import ArgumentError
from outcrop.loading.modes.base import Mode, SessionRequest
from outcrop.loading.session import LoadSession, scheduled_session
from outcrop.rows import PartitionRows, disk_rows
from outcrop.runtime import memory_tables
from outcrop.sampling.partitioned import PartitionStructures, fitting_partitions
from outcrop.sampling.sampler import BatchSampler


@final
@dataclass(frozen=True)
class Partition(Mode):
    """Changes what is learned: neighbours are those that are resident, and a budget holds so many partitions.

    Attributes:
        partitions: Partitions of the nodes, fewer where there are fewer nodes; None: 16, or more until four of them
            fit.
        resident: Partitions in memory at a time; None: as many as the budget allows.
    """

    partitions: int | None = None
    resident: int | None = None

    name = "partition"
    redraws = True
    any_nodes = False
    starts_within_epoch = False
    batches_by_budget = True

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = []
        if self.partitions is not None and self.partitions < 1:
            problems.append(f"partitions {self.partitions} is below 1")
        if self.resident is not None and not 1 <= self.resident <= (self.partitions or self.resident):
            problems.append(f"{self.resident} resident partitions are not 1 to {self.partitions or 'all'}")
        if problems:
            raise ArgumentError("; ".join(problems))

    def open(self, request: SessionRequest) -> LoadSession:
        """Gives half of what the sampler leaves to the partitions; drawing, and buffers that grow, have the rest."""
        graph, runtime, config = request.graph, request.runtime, request.config
        buffers_grow = request.recorded is None
        pool = request.make_pool()
        below = disk_rows(graph, runtime, graph.row_file)
        sampler, among = memory_tables.SAMPLER, memory_tables.PARTITION_SAMPLER
        if buffers_grow:
            sampler, among = memory_tables.GROWING_SAMPLER, memory_tables.GROWING_PARTITION_SAMPLER
        online = BatchSampler(
            graph, config, runtime, topology=self.topology, memory_fraction=sampler.fraction
        )
        shape = fitting_partitions(
            graph,
            self.partitions,
            self.resident,
            memory_tables.PARTITIONS.bytes_of(runtime.budget.free_bytes),
            config.seed,
        )
        rows = PartitionRows(graph.open_rows(runtime, graph.row_file), below, shape, runtime)
        structures = PartitionStructures(
            graph, config, shape, online, runtime, memory_fraction=among.fraction
        )
        return scheduled_session(graph, structures, (rows,), pool, runtime, request.device)

    def identity(self) -> dict[str, Any]:
        return {"partitions": {"partitions": self.partitions, "resident": self.resident}}
