"""What a training gets its batches from: a prepared run, sample pools, or drawing on the fly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from outcrop.advisor import epochs_at_a_time as epoch_choice
from outcrop.config import DeviceConfig, SampleConfig, exact_bytes, least_bytes
from outcrop.errors import BudgetError
from outcrop.loading.consecutive import ConsecutiveSession
from outcrop.loading.modes import Mode
from outcrop.loading.needs import BatchCounter, SessionNeeds
from outcrop.loading.open import open_session
from outcrop.loading.session import LoadSession
from outcrop.preparation.needs import RunNeeds
from outcrop.preparation.prepare import PrepareReport, PrepareRequest, prepare, with_rates
from outcrop.runtime.group import Group
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.training.batch_request import BatchRequest
from outcrop.training.begun import giving_up
from outcrop.training.pools import Pools


@dataclass
class BatchSupply:
    """Opens the batches that a training asked for, and says what was prepared for them.

    Attributes:
        request: The batches that were asked for.
        mode, folder: Mode and folder of the run, as :func:`outcrop.loading.open.open_session` takes them.
        pools: Sample pools; None where the batches are not refreshed in pools.
        report: Report of what was prepared; None where nothing was.
        spooled_epochs: Number of epochs that mode ``online`` spools at a time; 0: none.
        behind: Number of epochs that were trained before the prepared ones, on batches of their own.
    """

    request: BatchRequest
    mode: Mode
    folder: Path | None = None
    pools: Pools | None = None
    report: PrepareReport | None = None
    spooled_epochs: int = 0
    behind: int = 0

    @property
    def memory(self) -> int | None:
        """Counts the bytes of the budget that are for training."""
        return self.request.limits.memory if self.pools is None else self.pools.budget.runtime

    @property
    def run(self) -> Path | None:
        """Returns the run that stays, and keeps the history of its trainings."""
        return None if self.pools or self.spooled_epochs else self.folder

    @property
    def kept(self) -> str | None:
        """Returns the folder that stays when training ends, of a run or of sample pools; None where nothing does."""
        return None if self.spooled_epochs or self.folder is None else str(self.folder)

    @property
    def drawn(self) -> SampleConfig:
        """Returns what is drawn; where every epoch has batches of its own, ``epochs`` are all that are trained."""
        config = self.request.sampling
        return replace(config, epochs=self.request.epochs) if self.request.refresh else config

    @property
    def distinct_epochs(self) -> int:
        """Counts the epochs that have batches of their own, those behind included; others replay some of these."""
        return self.behind + self.drawn.epochs

    @property
    def prepared_epochs(self) -> int | None:
        """Counts the epochs that are prepared at a time; None: batches are drawn as they are needed."""
        return None if self.folder is None else self.request.sampling.epochs

    def counters(self, epoch: int) -> dict[str, Any]:
        """Says of a trained epoch whether its batches are its own, and how long its part of preparing took."""
        return {
            "distinct_batches": epoch < self.distinct_epochs,
            "prepare_seconds": self._prepare_seconds(epoch),
        }

    def _prepare_seconds(self, epoch: int) -> float:
        begun, end = self.request.next_epoch or 0, self.request.epochs
        before = 0.0 if self.report is None else self.report.seconds
        if self.pools is None:
            return before / (end - begun)
        seconds = 0.0
        for pool in self.pools.records:
            first, last = pool.first_epoch, pool.first_epoch + pool.epochs
            if first <= epoch < last:
                waited = pool.waited_seconds + (before if pool is self.pools.records[0] else 0.0)
                seconds += waited / (min(last, end) - max(first, begun))
        return seconds

    def open(
        self, runtime: Runtime, device: DeviceConfig, epoch_splits: tuple[str, ...], closing: ExitStack
    ) -> tuple[Callable[[str, int], LoadSession | ConsecutiveSession], Callable[[], None] | None]:
        """Returns what loads an epoch of a split, and what to call for every batch, if anything."""
        if self.pools is not None:
            closing.callback(self.pools.close)
            return partial(self.pools.session, runtime=runtime, device=device), self.pools.check
        session = open_session(
            self.request.graph,
            runtime,
            self.mode,
            run_folder=self.folder,
            config=self.drawn,
            device=device,
            epoch_splits=epoch_splits,
        )
        closing.enter_context(session)
        return (lambda split, epoch: session), None


def supply_every_epoch(request: BatchRequest, say: Callable[[str], None]) -> BatchSupply:
    """Prepares batches of its own for every epoch that is still to be trained: all in the run beside the graph, or in
    pools of as many as fit.

    Args:
        say: Told what was chosen, before anything is prepared.

    Raises:
        BudgetError: A limit cannot be met.
    """
    choice, folder = choose_epochs(request)
    say(choice.why)
    prepared = replace(request.sampling, first_epoch=choice.first, epochs=choice.count)
    at_once = replace(request, sampling=prepared, refresh=False)
    if choice.all_at_once:
        return replace(prepare_supply(at_once, folder, say), behind=choice.first)
    limits = replace(request.limits, disk_space=choice.limit)
    try:
        with giving_up(folder):
            return prepare_supply(replace(at_once, limits=limits, refresh=True), folder)
    except BudgetError as error:
        named = request.limits.disk_space is not None
        return _sharing(replace(at_once, limits=limits), error, say, named)


def _sharing(
    request: BatchRequest, refused: BudgetError, say: Callable[[str], None], named: bool
) -> BatchSupply:
    """Prepares batches of all epochs to come that share rows, where not even one epoch fits the disk without.

    Args:
        named: Whether the user named the limit of the disk; else it is what is free, but for a tenth.

    Raises:
        BudgetError: They do not fit either; names a limit that is enough for one of the two. Or ``refused``, where that
            is not about the disk.
    """
    graph, limits, run = request.graph, request.limits, folder_beside(request.graph, ".run")
    limit, begin = limits.disk_space, request.next_epoch or 0
    epochs = request.epochs - begin
    if refused.limit != "disk" or limit is None:
        raise refused
    try:
        size = epoch_choice.measured_bytes(graph, request.sampling, limits)
    except BudgetError:  # preparing says what it needs
        size = None
    enough = [None if size is None else size.enough]
    if size is None or size.can_share(epochs, limit):
        every = replace(request.sampling, first_epoch=begin, epochs=epochs)
        try:
            with giving_up(run):
                return replace(prepare_supply(replace(request, sampling=every), run, say), behind=begin)
        except BudgetError as error:
            if error.limit != "disk":
                raise
            enough.append(error.smallest)
    known = [one for one in enough if one is not None]
    if not known:
        raise refused
    remedy = "--disk-space {} is enough" if named else "{} free are enough"
    least = min(known) if named else -(-10 * min(known) // 9)
    raise BudgetError(
        f"{exact_bytes(limit)} of disk{'' if named else ', nine tenths of what is free,'} hold not one epoch with the "
        f"batches of evaluation, and not all epochs with rows that batches share; {remedy.format(least_bytes(least))} "
        f"({str(refused).partition('; --disk-space')[0]})",
        min(known),
        "disk",
    ) from None


def supply_of_several(request: BatchRequest, folder: Path, group: Group) -> BatchSupply:
    """Prepares a run in ``folder`` once on each machine, and returns the supply of its batches.

    Batches of their own for every epoch are prepared all at once.

    Raises:
        BudgetError: A limit cannot be met.
    """
    if request.refresh:
        epochs = replace(request.sampling, epochs=request.epochs)
        request = replace(request, sampling=epochs, refresh=False)
    made = group.once_a_machine(lambda: prepare_supply(request, folder))
    return made or BatchSupply(request, request.packed, folder)


def choose_epochs(request: BatchRequest) -> tuple[epoch_choice.EpochChoice, Path]:
    """Chooses how many epochs with batches of their own are prepared at a time, and the folder of these.

    A training that went from pool to pool goes on so: its pools are there, and take disk.
    """
    run, pools = (folder_beside(request.graph, suffix) for suffix in (".run", ".pools"))
    begin = 0 if pools.exists() else request.next_epoch or 0
    choice = epoch_choice.for_training(
        request.graph, request.sampling, request.limits, request.epochs, run, begin=begin
    )
    return choice, run if choice.all_at_once else pools


def folder_beside(graph: Graph, suffix: str) -> Path:
    """Names the folder of what is made of ``graph``, where the user named none."""
    return graph.path.with_name(graph.path.name + suffix)


def prepare_supply(
    request: BatchRequest,
    folder: Path,
    say: Callable[[str], None] | None = None,
    group: Group | None = None,
) -> BatchSupply:
    """Prepares a run in ``folder``, or pools where they are to be refreshed, or hold parts of an epoch, and returns the
    supply of its batches.

    Args:
        say: Told what is replaced.
        group: Processes that train on the pools, which all call this.

    Raises:
        BudgetError: A limit cannot be met.
    """
    graph, sampling, limits = request.graph, request.sampling, request.limits
    if request.refresh or request.pool_batches is not None:
        pools = Pools(request, folder, group)
        return BatchSupply(
            request, request.packed, folder, pools, pools.prepare(request.next_epoch, request.progress)
        )
    with Runtime(limits.memory, progress=request.progress) as runtime:
        planned = with_rates(limits, sampling, graph, folder)
        preparation = PrepareRequest(graph, folder, sampling, planned, topology=request.topology)
        replaced = preparation.replacing(overwrite=True)

        def on_replaced() -> None:
            if say is not None:
                for line in replaced:
                    say(line)

        report = prepare(replace(preparation, chosen=replaced), runtime, on_replaced)
    return BatchSupply(request, request.packed, folder, report=report)


def needs(
    request: BatchRequest,
    mode: Mode,
    folder: Path | None,
    epoch_splits: tuple[str, ...],
    test: bool,
    at_once: bool,
) -> Callable[[int], bool]:
    """Returns what says whether a memory budget is enough for a training, its evaluations included.

    :mod:`outcrop.runtime.smallest_budget` asks it.

    Args:
        epoch_splits: What one epoch goes over.
        test: Whether it ends with the test nodes.
        at_once: Whether a mode that prepares prepares all epochs in one run, if it has new batches in every epoch.
    """
    graph, config, epochs = request.graph, request.sampling, request.epochs
    counter = request.counter or BatchCounter(request.progress)
    scored = [s for s in ("valid", "test") if s in config.splits and (s == "valid" or test)]
    if mode.prepares and request.refresh and not at_once:
        pools = range(0, epochs, config.epochs)
        configs = [
            replace(config, splits=("train",), first_epoch=first, epochs=min(config.epochs, epochs - first))
            for first in pools
        ]
        if others := tuple(
            s for s in config.splits if s != "train" and graph.has(s) and graph.spec(s).shape[0]
        ):
            configs.append(replace(config, splits=others, epochs=1))
        unbounded = replace(request.limits, disk_space=None)
        runs = [RunNeeds(graph, one, unbounded, request.topology, counter=counter) for one in configs]
        return lambda limit: all(run.fits(limit) for run in runs)
    if mode.prepares and folder is None:
        every = replace(config, epochs=epochs) if request.refresh else config
        return RunNeeds(graph, every, request.limits, request.topology, counter=counter).fits
    if request.refresh:
        config = replace(config, epochs=epochs)
    first = epochs if request.next_epoch is None else request.next_epoch
    trained = [("train", epoch) for epoch in range(first, epochs)]
    others = [(split, 0) for split in scored if graph.has_nodes_of(split)]
    # Buffers that validation has made larger are so when the next epoch is drawn.
    between = [one for one in others if one[0] == "valid"] if mode.batches_by_budget else []
    passes = trained[:1] + between + trained[1:] + others
    loading = SessionNeeds(
        graph,
        mode,
        config,
        passes,
        run=None if request.refresh else folder,
        epoch_splits=epoch_splits,
        counter=counter,
    )
    return partial(loading.fits, processes=request.limits.processes or 1)
