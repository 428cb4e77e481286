"""What a training gets its batches from: a prepared run, sample pools, or drawing on the fly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from outcrop.api.pools import Pools
from outcrop.api.prepare import PrepareReport, prepare
from outcrop.api.run import open_session
from outcrop.config import BaselineConfig, DeviceConfig, IoConfig, PlanConfig, SampleConfig
from outcrop.runtime import Progress, Runtime
from outcrop.stages.load import LoadSession
from outcrop.store.graph import Graph


@dataclass(frozen=True)
class Wanted:
    """What is to be supplied.

    Attributes:
        epochs, next_epoch: Of the training, and the first of them that is still to be trained; None: all are done.
        refresh: Every epoch has batches of its own, instead of those of ``sampling.epochs`` epochs again and again.
        rate: Bytes per second of preparing beside training; None = no limit.
        beside: Prepare pools beside training where the budget is large enough.
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


@dataclass
class Supply:
    """Attributes:
    mode, folder: Of :func:`outcrop.api.run.open_session`.
    report: Of what was prepared for it.
    spooled_epochs: That mode ``online`` spools at a time; 0: none.
    """

    wanted: Wanted
    mode: str
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

    def open(
        self, runtime: Runtime, to: DeviceConfig, baseline: BaselineConfig, closing: ExitStack
    ) -> tuple[Callable[[str, int], LoadSession], Callable[[], None] | None]:
        """What loads an epoch of a split, and what to call for every batch, if anything."""
        if self.pools is not None:
            closing.callback(self.pools.close)
            return partial(self.pools.session, runtime=runtime, to=to), self.pools.check
        config = self.wanted.sampling
        if self.wanted.refresh:
            config = replace(config, epochs=self.wanted.epochs)  # drawn by their numbers
        session = open_session(
            self.wanted.graph,
            runtime,
            self.mode,
            run_folder=self.folder,
            config=config,
            to=to,
            baseline=baseline,
        )
        closing.enter_context(session)
        return (lambda split, epoch: session), None


def prepared(wanted: Wanted, folder: Path) -> Supply:
    """A run in ``folder``, or pools where they are to be refreshed.

    Raises:
        BudgetError: A limit cannot be met.
    """
    graph, sampling, limits = wanted.graph, wanted.sampling, wanted.limits
    if wanted.refresh:
        pools = Pools(graph, folder, sampling, limits, wanted.epochs, wanted.rate, wanted.beside)
        return Supply(wanted, "packed", folder, pools, pools.prepare(wanted.next_epoch, wanted.progress))
    with Runtime(limits.memory, io=wanted.io, progress=wanted.progress) as runtime:
        report = prepare(
            graph,
            folder,
            fanouts=sampling.fanouts,
            batch_size=sampling.batch_size,
            epochs=sampling.epochs,
            degrees=sampling.degrees,
            sampler=sampling.sampler,
            dependency=sampling.dependency,
            memory=limits.memory,
            gpu_memory=limits.gpu_memory,
            disk_space=limits.disk_space,
            seed=sampling.seed,
            runtime=runtime,
        )
    return Supply(wanted, "packed", folder, report=report)
