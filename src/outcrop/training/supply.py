"""What a training gets its batches from: a prepared run, sample pools, or drawing on the fly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from outcrop.advisor import epochs as epoch_choice
from outcrop.config import DeviceConfig, IoConfig, PlanConfig, SampleConfig
from outcrop.errors import BudgetError
from outcrop.loading.modes import Mode, Packed
from outcrop.loading.needs import BatchCounter, SessionNeeds
from outcrop.loading.open import open_session
from outcrop.loading.session import LoadSession
from outcrop.preparation.needs import RunNeeds
from outcrop.preparation.prepare import PrepareReport, PrepareRequest, prepare, with_rates
from outcrop.runtime.progress import Progress
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.training.pools import Pools


@dataclass(frozen=True)
class Wanted:
    """What is to be supplied.

    Attributes:
        epochs, next_epoch: Of the training, and the first of them that is still to be trained; None: all are done.
        refresh: Every epoch has batches of its own, instead of those of ``sampling.epochs`` epochs again and again.
        rate: Bytes per second of preparing beside training; None = no limit.
        beside: Prepare pools beside training where the budget is large enough.
        counter: Remembers how large batches are, where a budget is refused and modes are tried.
    """

    graph: Graph
    sampling: SampleConfig
    limits: PlanConfig
    epochs: int
    next_epoch: int | None
    refresh: bool = False
    rate: int | None = None
    beside: bool = True
    io: IoConfig = field(default_factory=IoConfig)
    progress: Progress | None = None
    counter: BatchCounter | None = None


@dataclass
class Supply:
    """Attributes:
    mode, folder: Of :func:`outcrop.loading.open.open_session`.
    report: Of what was prepared for it.
    spooled_epochs: That mode ``online`` spools at a time; 0: none.
    """

    wanted: Wanted
    mode: Mode
    folder: Path | None = None
    pools: Pools | None = None
    report: PrepareReport | None = None
    spooled_epochs: int = 0

    @property
    def memory(self) -> int | None:
        """Bytes of the budget that are for training."""
        return self.wanted.limits.memory if self.pools is None else self.pools.shares.runtime

    @property
    def run(self) -> Path | None:
        """The run that stays, and keeps the history of its trainings."""
        return None if self.pools or self.spooled_epochs else self.folder

    @property
    def kept(self) -> str | None:
        """The folder that stays when training ends, of a run or of sample pools; None where nothing does."""
        return None if self.spooled_epochs or self.folder is None else str(self.folder)

    @property
    def drawn(self) -> SampleConfig:
        """What is drawn; where every epoch has batches of its own, ``epochs`` are all that are trained."""
        config = self.wanted.sampling
        return replace(config, epochs=self.wanted.epochs) if self.wanted.refresh else config

    @property
    def prepared_epochs(self) -> int | None:
        """Epochs that are prepared at a time; None: batches are drawn as they are wanted."""
        return None if self.folder is None else self.wanted.sampling.epochs

    def counters(self, epoch: int) -> dict[str, Any]:
        """Of a trained epoch: whether its batches are its own, and its part of the seconds that preparing took."""
        return {
            "distinct_batches": self.drawn.epoch_number("train", epoch) == epoch,
            "prepare_seconds": self._prepare_seconds(epoch),
        }

    def _prepare_seconds(self, epoch: int) -> float:
        begun = self.wanted.next_epoch or 0
        first, seconds = begun, 0.0 if self.report is None else self.report.seconds
        last = self.wanted.epochs
        if self.pools is not None:
            each = self.wanted.sampling.epochs
            pool = next(p for p in self.pools.records if p.first_epoch <= epoch < p.first_epoch + each)
            first, last = max(pool.first_epoch, begun), min(pool.first_epoch + each, last)
            seconds = pool.waited_seconds + (seconds if pool is self.pools.records[0] else 0.0)
        return seconds / (last - first)

    def open(
        self, runtime: Runtime, to: DeviceConfig, epoch_splits: tuple[str, ...], closing: ExitStack
    ) -> tuple[Callable[[str, int], LoadSession], Callable[[], None] | None]:
        """What loads an epoch of a split, and what to call for every batch, if anything."""
        if self.pools is not None:
            closing.callback(self.pools.close)
            return partial(self.pools.session, runtime=runtime, to=to), self.pools.check
        session = open_session(
            self.wanted.graph,
            runtime,
            self.mode,
            run_folder=self.folder,
            config=self.drawn,
            to=to,
            epoch_splits=epoch_splits,
        )
        closing.enter_context(session)
        return (lambda split, epoch: session), None


def every_epoch(wanted: Wanted, say: Callable[[str], None]) -> Supply:
    """Batches of its own for every epoch, prepared: all in the run beside the graph, or in pools of as many as fit.

    Args:
        say: Told what was chosen, before anything is prepared.

    Raises:
        BudgetError: A limit cannot be met.
    """
    choice, folder = choose_epochs(wanted)
    say(choice.why)
    at_once = replace(wanted, sampling=replace(wanted.sampling, epochs=choice.count), refresh=False)
    if choice.all_at_once:
        return prepared(at_once, folder, say)
    limits = replace(wanted.limits, disk_space=choice.limit)
    try:
        return prepared(replace(at_once, limits=limits, refresh=True), folder)
    except BudgetError:  # not even one epoch: batches share rows
        epochs = replace(wanted.sampling, epochs=wanted.epochs)
        return prepared(replace(at_once, sampling=epochs, limits=limits), beside(wanted.graph, ".run"), say)


def choose_epochs(wanted: Wanted) -> tuple[epoch_choice.EpochChoice, Path]:
    """Chooses how many epochs with batches of their own are prepared at a time, and the folder of these."""
    run = beside(wanted.graph, ".run")
    choice = epoch_choice.for_training(wanted.graph, wanted.sampling, wanted.limits, wanted.epochs, run)
    return choice, run if choice.all_at_once else beside(wanted.graph, ".pools")


def beside(graph: Graph, suffix: str) -> Path:
    """Where what is made of ``graph`` lies, unless a folder was named."""
    return graph.path.with_name(graph.path.name + suffix)


def prepared(wanted: Wanted, folder: Path, say: Callable[[str], None] | None = None) -> Supply:
    """A run in ``folder``, or pools where they are to be refreshed.

    Args:
        say: Told what is replaced.

    Raises:
        BudgetError: A limit cannot be met.
    """
    graph, sampling, limits = wanted.graph, wanted.sampling, wanted.limits
    if wanted.refresh:
        pools = Pools(graph, folder, sampling, limits, wanted.epochs, wanted.rate, wanted.beside)
        return Supply(wanted, Packed(), folder, pools, pools.prepare(wanted.next_epoch, wanted.progress))
    with Runtime(limits.memory, io=wanted.io, progress=wanted.progress) as runtime:
        request = PrepareRequest(graph, folder, sampling, with_rates(limits, sampling, graph, folder))
        replaced = request.replacing(overwrite=True)

        def on_replaced() -> None:
            if say is not None:
                for line in replaced:
                    say(line)

        report = prepare(replace(request, chosen=replaced), runtime, on_replaced)
    return Supply(wanted, Packed(), folder, report=report)


def needs(
    wanted: Wanted, mode: Mode, folder: Path | None, epoch_splits: tuple[str, ...], test: bool, at_once: bool
) -> Callable[[int], bool]:
    """Which memory budgets are enough for a training, its evaluations included (``runtime/smallest_budget.py``).

    Args:
        epoch_splits: What one epoch goes over.
        test: It ends with the test nodes.
        at_once: A mode that prepares prepares all epochs in one run, if it has new batches in every epoch.
    """
    graph, config, epochs = wanted.graph, wanted.sampling, wanted.epochs
    counter = wanted.counter or BatchCounter(wanted.progress)
    scored = [s for s in ("valid", "test") if s in config.splits and (s == "valid" or test)]
    if mode.prepares and wanted.refresh and not at_once:
        pools = range(0, epochs, config.epochs)
        configs = [
            replace(config, splits=("train",), first_epoch=first, epochs=min(config.epochs, epochs - first))
            for first in pools
        ]
        if others := tuple(
            s for s in config.splits if s != "train" and graph.has(s) and graph.spec(s).shape[0]
        ):
            configs.append(replace(config, splits=others, epochs=1))
        unbounded = replace(wanted.limits, disk_space=None)
        runs = [RunNeeds(graph, one, unbounded, wanted.io, counter=counter) for one in configs]
        return lambda limit: all(run.fits(limit) for run in runs)
    if mode.prepares and folder is None:
        every = replace(config, epochs=epochs) if wanted.refresh else config
        return RunNeeds(graph, every, wanted.limits, wanted.io, counter=counter).fits
    if wanted.refresh:
        config = replace(config, epochs=epochs)
    first = epochs if wanted.next_epoch is None else wanted.next_epoch
    passes = [("train", epoch) for epoch in range(first, epochs)]
    passes += [(split, 0) for split in scored if graph.has(split)]
    return SessionNeeds(
        graph,
        mode,
        config,
        passes,
        run=None if wanted.refresh else folder,
        io=wanted.io,
        epoch_splits=epoch_splits,
        counter=counter,
    ).fits
