"""The smallest memory budget that works, worked out when one was refused.

What fits is found out by a rehearsal: the code that prepares and loads reserves its memory from a budget as for the
real thing, but reads no large arrays and draws nothing (:class:`outcrop.runtime.Rehearsal`). It has to know how large
the batches are: they are drawn once, without a limit, and only counted. A rehearsal takes milliseconds, so the
smallest budget is found by trying, to the byte. (Mode ``partition`` is another training with every budget that holds
other partitions: there the smallest of those like the first that works is named.)
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from outcrop.api.run import open_session
from outcrop.config import BaselineConfig, IoConfig, PlanConfig, SampleConfig, exact_bytes
from outcrop.errors import BudgetError
from outcrop.hotness import PRESAMPLED_BATCHES
from outcrop.progress import Progress
from outcrop.runtime import Rehearsal, Runtime
from outcrop.sampling import BatchSampler, Ids
from outcrop.stages import pack, plan, sample
from outcrop.store import record
from outcrop.store.graph import Graph
from outcrop.store.samples import BatchSizes

_LEAST, _LARGEST, _STEPS = 1 << 14, 1 << 48, 16  # budgets that are tried, and how many in twice one
_ROUNDED = 64  # a share of a budget is a 64th of it or more
_TASK = "count batches, for the smallest budget"
Pass = tuple[str, int]  # a split and an epoch


class CountedBatches(Rehearsal):
    """How large the mini-batches of ``passes`` are, epochs by the numbers they are drawn by.

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
        ids: Mapping[str, Ids] | None = None,
    ):
        self._graph, self._config, self._progress, self._ids = graph, config, progress, ids or {}
        self._passes = [
            one
            for one in dict.fromkeys(passes)
            if one[0] in self._ids or graph.has(one[0]) or config.task == "link"
        ]
        self._most: dict[bool, int] = {}
        self.id_bytes, self.hops = record.id_bytes_for(graph.num_nodes), len(config.fanouts)
        ahead = ("train" if "train" in config.splits else config.splits[0], config.first_epoch)
        sizes: dict[Pass, list[tuple[int, int]]] = {}
        self._most[False] = self._draw("map", [*self._passes, ahead], sizes)
        self.num_nodes = np.array([n for one in self._passes for n, _ in sizes[one]], np.int64)
        self.max_record_bytes = max(
            (r for one in self._passes for _, r in sizes[one]), default=record.PAGE_BYTES
        )
        self._counted_nodes = max((n for n, _ in sizes[ahead][:PRESAMPLED_BATCHES]), default=0)

    @property
    def num_batches(self) -> int:
        return len(self.num_nodes)

    @property
    def max_nodes(self) -> int:
        return int(self.num_nodes.max(initial=0))

    @property
    def counted_nodes(self) -> int:
        return self._counted_nodes

    def batch_bytes(self, paged: bool) -> int:
        if paged not in self._most:
            self._most[paged] = self._draw("paged", self._passes, {})
        return self._most[paged]

    def _draw(self, topology: str, passes: Sequence[Pass], sizes: dict[Pass, list[tuple[int, int]]]) -> int:
        io = IoConfig(topology=topology)  # type: ignore[arg-type]
        with Runtime(io=io, progress=self._progress) as runtime:
            sampler = BatchSampler(self._graph, self._config, runtime, ids=self._ids)
            each = dict.fromkeys(passes)
            with runtime.task(_TASK, sum(sampler.num_batches(split) for split, _ in each), "batches"):
                for one in each:
                    sizes[one] = []
                    for batch in sampler.epoch(*one):
                        encoded = record.encode(batch, record.AddressTable(), self.id_bytes)
                        sizes[one].append((batch.num_nodes, len(encoded)))
                        runtime.progress.advance(_TASK, 1)
            return sampler.most_batch_bytes


class RunNeeds:
    """What preparing a run and loading it takes, as far as memory goes.

    Args:
        config: Of the run; its splits that are empty are left out.
        plan: Its ``memory`` does not matter.
        drawn: The batches where they were sampled already: then sampling is left out.
    """

    def __init__(
        self,
        graph: Graph,
        config: SampleConfig,
        plan: PlanConfig,
        io: IoConfig | None = None,
        drawn: BatchSizes | None = None,
        progress: Progress | bool | None = None,
    ):
        self._graph, self._config, self._plan, self._io = graph, config, plan, io
        self._drawn, self._progress = drawn, progress
        self._counted: CountedBatches | None = None

    @property
    def sizes(self) -> BatchSizes:
        return self._drawn or self._count()

    def _count(self) -> CountedBatches:
        if self._counted is None:
            passes = passes_of(self._config, self._graph)
            self._counted = CountedBatches(self._graph, self._config, passes, self._progress)
        return self._counted

    def fits(self, limit: int) -> bool:
        return (self._drawn is not None or self._samples(limit)) and self.packs(limit, limit)

    def _samples(self, limit: int) -> bool:
        try:
            with Runtime(limit, io=self._io, rehearsal=self._count()) as runtime:
                sample.rehearse(self._graph, self._config, runtime)
        except BudgetError:
            return False
        return True

    def packs(self, limit: int, memory: int | None) -> bool:
        """Whether a plan for loading in ``memory`` can be made, and packed within ``limit``."""
        config, spec, sizes = replace(self._plan, memory=memory), self._graph.spec("features"), self.sizes
        try:
            divided = plan.divide_host_memory(sizes, config, spec.stride_bytes)
            with Runtime(limit, io=self._io, rehearsal=_NOTHING) as runtime:
                free = (
                    runtime.budget.free_bytes
                    - 8 * sizes.num_batches * (sizes.hops + 5)
                    - 4 * record.PAGE_BYTES
                )
                rows = divided.cache_bytes // spec.stride_bytes
                rows += plan.device_cache_rows(sizes, config, spec.stride_bytes)
                rows = min(rows, self._graph.num_nodes, free // plan.ID_BYTES, int(sizes.num_nodes.sum()))
                shared = config.disk_space is not None or config.layout not in ("cost", "heuristic", "packed")
                blocks = plan.block_rows(config, spec.stride_bytes) if shared else 0
                return pack.fits(
                    self._graph.array(runtime, "features"),
                    sizes,
                    sizes.num_batches,
                    rows,
                    min(blocks, self._graph.num_nodes),
                    free,
                )
        except BudgetError:
            return False


class _Nothing(Rehearsal):
    """Of sizes that a run has."""

    @property
    def max_nodes(self) -> int:
        return 0

    @property
    def counted_nodes(self) -> int:
        return 0

    def batch_bytes(self, paged: bool) -> int:
        return 0


_NOTHING = _Nothing()


class SessionNeeds:
    """What loading in ``mode`` takes.

    Args:
        config: Of what is drawn; of a ``run``, the run's.
        passes: What is loaded, epochs as training counts them.
        ids: Of batches drawn on the fly: nodes of a split, in place of those that the graph has.
    """

    def __init__(
        self,
        graph: Graph,
        mode: str,
        config: SampleConfig,
        passes: Sequence[Pass],
        *,
        run: Path | None = None,
        io: IoConfig | None = None,
        baseline: BaselineConfig | None = None,
        progress: Progress | bool | None = None,
        ids: Mapping[str, Ids] | None = None,
    ):
        self._ids = ids
        self._graph, self._mode, self._config, self._passes = graph, mode, config, passes
        self._run, self._io, self._baseline, self._progress = run, io, baseline, progress
        self._counted: Rehearsal | None = None

    def fits(self, limit: int) -> bool:
        try:
            return self._partitioned(limit) if self._mode == "partition" else self._rehearsed(limit)
        except BudgetError:
            return False

    def _rehearsed(self, limit: int) -> bool:
        if self._counted is None:
            draws = self._config.sampler != "foreign" and (self._run is None or self._mode == "online")
            numbers = [(split, self._config.epoch_number(split, epoch)) for split, epoch in self._passes]
            self._counted = (
                CountedBatches(self._graph, self._config, numbers, self._progress, self._ids)
                if draws
                else _NOTHING
            )
        with Runtime(limit, io=self._io, rehearsal=self._counted) as runtime, self._open(runtime) as session:
            if self._run is None:  # else the run says how large batches are
                session.make_room(self._counted.max_nodes)
        return True

    def _partitioned(self, limit: int) -> bool:
        """Which partitions fit, and so which batches there are, depends on the budget: they are drawn, but not read."""
        with Runtime(limit, io=self._io) as runtime, self._open(runtime) as session:
            for split, epoch in self._passes:
                for _, batch in session.feeder.source(split, epoch) if self._graph.has(split) else ():
                    session.make_room(batch.num_nodes)
        return True

    def _open(self, runtime: Runtime):
        return open_session(
            self._graph,
            runtime,
            self._mode,
            run_folder=self._run,
            config=self._config,
            baseline=self._baseline,
            ids=self._ids,
        )


def passes_of(config: SampleConfig, graph: Graph) -> list[Pass]:
    """The passes that sampling ``config`` makes."""
    splits = [s for s in config.splits if config.task == "link" or (graph.has(s) and graph.spec(s).shape[0])]
    return [
        (split, config.epoch_number(split, config.first_epoch + epoch))
        for split in splits
        for epoch in range(config.epochs if split == "train" else 1)
    ]


def smallest(refused: int, fits: Callable[[int], bool]) -> int | None:
    """The smallest budget above ``refused`` that ``fits``; None where there is none.

    A sixteenth more at a time is tried until one fits, because what is needed depends on how a budget is divided and
    may rise with it; then the bytes below it, by bisection.
    """
    low, high = refused, max(refused + refused // _STEPS, _LEAST)
    while not fits(high):
        low, high = high, high + max(high // _STEPS, 1)
        if high > _LARGEST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    # Shares of a budget are whole bytes: next to the edge one more of them may be taken than is there.
    return next((less for less in range(max(high - _ROUNDED, refused + 1), high) if fits(less)), high)


@contextmanager
def _collecting_new_objects_alone() -> Iterator[None]:
    """Within the block garbage collection leaves what was there before alone: with torch loaded a full collection
    takes long, and rehearsals of mode ``online`` make one for each budget that is tried."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def naming_smallest(
    limit: int | None, needs: Callable[[], Callable[[int], bool]], what: str
) -> Iterator[None]:
    """Refusals of a memory budget of ``limit`` bytes within the block name the smallest budget that is none.

    That may take as long as drawing the batches does; interrupted, the refusal comes as it was.

    Args:
        needs: Makes what says whether a budget fits; called where one was refused.
        what: What the budget cannot do, as in ``"prepare the run"``.
    """
    try:
        yield
    except BudgetError as error:
        if limit is None or error.smallest is not None or error.limit != "memory":
            raise
        try:
            fits = needs()
            with _collecting_new_objects_alone():
                found = None if fits(limit) else smallest(limit, fits)  # None: something else was refused
        except KeyboardInterrupt:
            raise error from None
        if found is None:
            raise
        raise refusal(limit, what, found) from error


def refusal(limit: int, what: str, least: int) -> BudgetError:
    """What every refused memory budget says."""
    return BudgetError(
        f"a memory budget of {exact_bytes(limit)} cannot {what}; the smallest budget that can is "
        f"{exact_bytes(least)}; a lower --batch-size or --fanouts needs less",
        least,
    )
