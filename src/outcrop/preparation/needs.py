"""Which memory budgets are enough to prepare a run, worked out when one was refused.

A rehearsal samples and packs: memory is reserved from a budget as for the real thing, but no large arrays are read and
nothing is drawn (:class:`outcrop.runtime.runtime.Rehearsal`).
"""

from __future__ import annotations

from dataclasses import replace

from outcrop.config import PlanConfig, SampleConfig
from outcrop.errors import BudgetError
from outcrop.loading.needs import BatchCounter, CountedBatches, Pass
from outcrop.preparation import cached_rows, pack_memory, plan_memory, sample
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import UNCOUNTED, Runtime
from outcrop.store.graph import Graph
from outcrop.store.samples import BatchSizes


class RunNeeds:
    """Says what preparing a run and loading it takes, as far as memory goes.

    Args:
        config: Sampling of the run; its splits that are empty are left out.
        plan: Limits of the run; its ``memory`` does not matter.
        topology: Where neighbour lists are read from.
        drawn: The batches where they were sampled already: then sampling is left out.
    """

    def __init__(
        self,
        graph: Graph,
        config: SampleConfig,
        plan: PlanConfig,
        topology: str = "automatic",
        drawn: BatchSizes | None = None,
        counter: BatchCounter | None = None,
    ):
        self._graph = graph.with_edge_rows(config.edge_rows)
        self._config, self._plan, self._topology = config, plan, topology
        self._drawn, self._counter = drawn, counter or BatchCounter()
        self._counted: CountedBatches | None = None

    @property
    def sizes(self) -> BatchSizes:
        return self._drawn or self._count()

    def _count(self) -> CountedBatches:
        if self._counted is None:
            passes = passes_of(self._config, self._graph)
            self._counted = self._counter.count(self._graph, self._config, passes)
        return self._counted

    def fits(self, limit: int) -> bool:
        return (self._drawn is not None or self._samples(limit)) and self.packs(limit, limit)

    def _samples(self, limit: int) -> bool:
        try:
            with Runtime(limit, rehearsal=self._count()) as runtime:
                sample.rehearse(self._graph, self._config, runtime, self._topology, self._plan.parts or 1)
        except BudgetError:
            return False
        return True

    def packs(self, limit: int, memory: int | None) -> bool:
        """Tells whether a plan for loading in ``memory`` can be made, and packed within ``limit``."""
        config, sizes, files = replace(self._plan, memory=memory), self.sizes, self._graph.row_files
        try:
            divided = plan_memory.divide_host_memory(sizes, config, files)
            device_bytes = plan_memory.device_cache_bytes(self._graph, sizes, config)
            with Runtime(limit, rehearsal=UNCOUNTED) as runtime:
                free = runtime.budget.free_bytes - 4 * PAGE_BYTES
                free -= sum(8 * sizes.num_batches * (sizes.section(rows).num_runs + 4) for rows in files)
                cached = [
                    min(
                        divided.cache_bytes // rows.row_bytes + device_bytes // rows.row_bytes,
                        rows.num_rows,
                        free // cached_rows.ID_BYTES,
                        int(sizes.section(rows).num_rows.sum()),
                    )
                    for rows in files
                ]
                shared = config.disk_space is not None or config.layout not in ("cost", "heuristic", "packed")
                blocks = [
                    min(plan_memory.block_rows(config, rows.row_bytes), rows.num_rows) if shared else 0
                    for rows in files
                ]
                held = [  # ids of what a row file has in memory, and what finds its shared rows: of all at once
                    8 * count + pack_memory.shared_bytes(sizes.section(rows), rows.row_bytes, block)
                    for rows, count, block in zip(files, cached, blocks, strict=True)
                ]
                return all(
                    pack_memory.fits(
                        self._graph.open_sequential(runtime, rows),
                        sizes,
                        rows,
                        cached[k],
                        blocks[k],
                        free - (sum(held) - held[k]),
                    )
                    for k, rows in enumerate(files)
                )
        except BudgetError:
            return False


def passes_of(config: SampleConfig, graph: Graph) -> list[Pass]:
    """Returns the passes that sampling ``config`` makes."""
    splits = [s for s in config.splits if config.task == "link" or (graph.has(s) and graph.spec(s).shape[0])]
    return [
        (split, config.epoch_number(split, config.first_epoch + epoch))
        for split in splits
        for epoch in range(config.epochs if split == "train" else 1)
    ]
