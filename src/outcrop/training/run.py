"""A whole training: batches are supplied, the loop learns, the best model is tested, and all of it is reported."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from outcrop import device as devices
from outcrop.config import BaselineConfig, DeviceConfig, IoConfig, SampleConfig, TrainConfig
from outcrop.errors import ArgumentError
from outcrop.loading.modes import Mode, Online
from outcrop.loading.needs import BatchCounter, other_modes
from outcrop.loading.passes import Passes
from outcrop.nn import checkpoint as checkpoints
from outcrop.runtime.progress import Progress, shown
from outcrop.runtime.runtime import Runtime
from outcrop.runtime.smallest_budget import naming_smallest
from outcrop.store import identity
from outcrop.store.graph import Graph
from outcrop.store.history import recording_training
from outcrop.store.lock import only_process_in
from outcrop.training import evaluate as evaluation
from outcrop.training import loop as training
from outcrop.training import spool
from outcrop.training.checks import check_checkpoint
from outcrop.training.choices import BatchChoice, Choices
from outcrop.training.objectives import Objective
from outcrop.training.report import TrainReport
from outcrop.training.supply import Supply, Wanted, beside, every_epoch, needs, prepared
from outcrop.training.weights import class_weights as resolve_class_weights


@dataclass(frozen=True)
class TrainRequest:
    """A training, every choice made and every option checked; nothing is prepared yet.

    Attributes:
        batches: Which, in which mode, under which limits.
        run: A prepared run, or with ``refresh`` the folder of sample pools.
        refresh: Epochs are prepared while those before them train; ``refresh_rate``: no faster than so many bytes per
            second.
        checkpoint: Folder of checkpoints; ``resume``: training goes on from the one there.
        test: The test nodes are scored at the end.
    """

    graph: Graph
    batches: BatchChoice
    config: TrainConfig
    objective: Objective
    device: DeviceConfig
    baseline: BaselineConfig
    io: IoConfig
    run: Path | None = None
    refresh: bool = False
    refresh_rate: int | None = None
    checkpoint: Path | None = None
    resume: bool = True
    test: bool = True

    def __post_init__(self) -> None:
        if not self.mode.prepares and self.batches.new_batches and self.run is not None:
            raise ArgumentError(
                f"mode {self.mode} draws the batches of every epoch itself: leave --run {self.run} out"
            )

    @property
    def mode(self) -> Mode:
        return self.batches.mode

    @property
    def inputs(self) -> dict[str, Any]:
        """What must be equal for a training to go on."""
        return {
            "graph": self.graph.digest(),
            "sampling": identity.sampling_fields(self.batches.sampling, fresh=self.batches.new_batches),
            **self.mode.identity(self.baseline),
        }

    @property
    def wanted(self) -> Wanted:
        """The batches, for who supplies them."""
        return Wanted(
            self.graph,
            self.batches.sampling,
            self.batches.limits,
            self.config.epochs,
            next_epoch=_next_epoch(self.checkpoint if self.resume else None, self.config),
            refresh=self.batches.new_batches,
            rate=self.refresh_rate,
            io=self.io,
        )

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches of an epoch of training; None where the mode decides it, or there are no training nodes."""
        count = _batch_counter(self.graph, self.batches.sampling, self.mode)
        return None if count is None or not self.graph.has("train") else count("train")

    @property
    def spools(self) -> bool:
        """Whether rows may be written in the order of their use first, where that is sooner done."""
        drawn_here = self.io.initiator == "engine" and not self.device.draws
        return self.mode.spools and self.run is None and drawn_here and self.device.cache_strategy == "auto"


def run(
    request: TrainRequest,
    said: Choices,
    *,
    callbacks: Sequence[Any] = (),
    trace_path: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> TrainReport:
    """Trains; ``said`` is told what is chosen on the way.

    Raises:
        BudgetError: A limit cannot be met; names the smallest that could.
        IoError: Another process trains with the same checkpoint.
    """
    graph, config, batches = request.graph, request.config, request.batches
    with ExitStack() as closing:
        if request.checkpoint is not None:
            closing.enter_context(only_process_in(request.checkpoint))
            check_checkpoint(
                request.checkpoint, request.resume, graph, config, request.inputs, request.objective
            )
        told = shown(progress)
        wanted = replace(request.wanted, progress=told, counter=BatchCounter(told))
        rest = {
            "folder": request.run,
            "baseline": request.baseline,
            "test": request.test,
            "at_once": not request.refresh,
        }
        memory, mode = batches.limits.memory, request.mode
        refused = partial(needs, wanted, mode, **rest)
        advice = partial(other_modes, memory, mode, lambda other: needs(wanted, other, **rest))
        closing.enter_context(naming_smallest(memory, refused, f"train in mode {mode}", advice))
        supply, why = _supply(request, wanted, said, closing)
        said.replay(supply.drawn.epochs, config.epochs, request.run)
        started = time.monotonic()
        runtime = closing.enter_context(
            Runtime(supply.memory, io=request.io, trace_path=trace_path, progress=progress)
        )
        finish = closing.enter_context(
            recording_training(supply.run, graph, supply.drawn, config, mode.name, runtime)
        )
        with ExitStack() as opened:
            session, check = supply.open(runtime, request.device, request.baseline, opened)
            said.add(why)  # not before it is clear that the budget does
            num_batches = _batch_counter(graph, batches.sampling, mode)
            passes = Passes(session, runtime, check, supply.counters, num_batches)
            result, tested = _learn(request, passes, runtime, callbacks)
        report = _report(request, supply, result, tested, runtime)
        report.seconds, report.chosen = time.monotonic() - started, said.text
        finish(report.as_dict())
        return report


def _supply(request: TrainRequest, wanted: Wanted, said: Choices, closing: ExitStack) -> tuple[Supply, str]:
    """Where batches come from, and why, where that is to be said when they do; ``closing`` removes what goes."""
    mode, folder = request.mode, request.run
    if mode.prepares and folder is None and wanted.next_epoch is None:
        return Supply(wanted, Online()), ""  # nothing is left to train: only nodes to be scored
    if request.spools:
        return spool.supply(wanted, request.config, closing)
    if mode.prepares and folder is None and wanted.refresh and not request.refresh:
        return every_epoch(wanted, said.add), ""
    if mode.prepares and (wanted.refresh or folder is None):
        place = folder or beside(wanted.graph, ".pools" if wanted.refresh else ".run")
        return prepared(wanted, place), ""
    return Supply(wanted, mode, folder), ""


def _next_epoch(checkpoint: Path | None, config: TrainConfig) -> int | None:
    """The epoch that training begins with, or goes on within; None where there is nothing left to train."""
    path = None if checkpoint is None else checkpoint / checkpoints.LAST
    if path is None or not path.exists():
        return 0
    meta = checkpoints.read(path).meta
    ended = training.stopped_early(meta.history, meta.best_epoch, config.patience)
    return None if ended or meta.epochs_done >= config.epochs else meta.epochs_done


def _batch_counter(graph: Graph, sampling: SampleConfig, mode: Mode) -> Callable[[str], int] | None:
    """What tells how many batches an epoch of a split has; None where loading cannot begin within an epoch."""
    if sampling.sampler == "foreign" or not mode.starts_within_epoch:
        return None
    return lambda split: -(-graph.spec(split).shape[0] // sampling.batch_size)


def _learn(
    request: TrainRequest, passes: Passes, runtime: Runtime, callbacks: Sequence[Any]
) -> tuple[training.TrainResult, evaluation.EvalResult | None]:
    """What the loop learned, and how the best model does on the test nodes."""
    graph, config, objective = request.graph, request.config, request.objective
    splits = request.batches.sampling.splits
    result = training.train(
        lambda epoch, first=0: passes.start("train", epoch, first),
        (lambda: passes.start("valid", 0)) if graph.has("valid") and "valid" in splits else None,
        config,
        request.checkpoint,
        runtime,
        in_dim=graph.feature_dim,
        num_classes=graph.num_classes,
        evaluate=lambda model, batches: evaluation.evaluate(model, batches, objective),
        inputs=request.inputs,
        counters=passes.counters,
        resume=request.resume,
        class_weights=resolve_class_weights(graph, config.class_weights, runtime),
        callbacks=callbacks,
        objective=objective,
        num_batches=passes.num_batches("train") if graph.has("train") else None,
    )
    tested = None
    if request.test and graph.has("test") and "test" in splits:
        tested = evaluation.evaluate(result.model, passes.start("test", 0), objective)
    return result, tested


def _report(
    request: TrainRequest,
    supply: Supply,
    result: training.TrainResult,
    tested: evaluation.EvalResult | None,
    runtime: Runtime,
) -> TrainReport:
    config, metric, limits = request.config, request.objective.metric, request.batches.limits
    is_class = request.graph.label_kind == "class"
    return TrainReport(
        mode=request.mode.name,
        model_name=config.model,
        device=config.device,
        epochs=[record.to_json() for record in result.epochs],
        best_epoch=result.best_epoch,
        test_accuracy=tested.accuracy if tested is not None and is_class else None,
        metric=metric,
        test_metric=None if tested is None else tested.metrics[metric],
        batch_losses=result.batch_losses,
        seconds=0.0,
        peak_host_bytes=runtime.budget.peak_bytes,
        peak_device_bytes=_peak_device_bytes(config.device),
        peak_device_by_tag=dict(runtime.device_peaks),
        peak_by_tag={tag: usage.peak_bytes for tag, usage in runtime.budget.by_tag.items()},
        peak_process_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        budget={name: getattr(limits, name) for name in ("memory", "gpu_memory", "disk_space")},
        io_backend=runtime.io.backend_name,
        prepare=supply.report.as_dict() if supply.report else {},
        pools=supply.pools.as_dicts() if supply.pools else [],
        spooled_epochs=supply.spooled_epochs,
        cache_strategy=request.device.cache_strategy,
        distinct_epochs=min(supply.drawn.epochs, config.epochs),
        prepared_epochs=supply.prepared_epochs,
        model_file=None if request.checkpoint is None else str(request.checkpoint / checkpoints.BEST),
        resumed_from=result.resumed_from,
        trained_epochs=len(result.epochs) - (result.resumed_from or 0),
        stopped_early=result.stopped_early,
        kept_folder=None if request.run is not None else supply.kept,
        model=result.model.eval(),
    )


def _peak_device_bytes(name: str) -> int:
    gpu = devices.gpu_named(name)
    return 0 if gpu is None else gpu.peak_bytes(devices.resolve(name).index or 0)
