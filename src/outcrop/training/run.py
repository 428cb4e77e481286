"""A whole training: batches are supplied, the loop learns, the best model is tested, and all of it is reported."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outcrop import device as devices
from outcrop.errors import BudgetError
from outcrop.loading.modes import Mode
from outcrop.loading.passes import Passes
from outcrop.loading.ranks import Ranks
from outcrop.runtime.group import Group
from outcrop.runtime.import_ahead import ImportAhead
from outcrop.runtime.progress import Progress, shown
from outcrop.runtime.runtime import Runtime
from outcrop.store import identity
from outcrop.store.history import recording_training
from outcrop.store.lock import only_process_in
from outcrop.training import spool
from outcrop.training.batch_request import BatchRequest
from outcrop.training.choices import Choices
from outcrop.training.needs import TrainNeeds
from outcrop.training.parts import supply_within_disk
from outcrop.training.processes import name_of_kind, other_processors, processor_kind, usual_threads
from outcrop.training.report import TrainReport
from outcrop.training.request import TrainRequest
from outcrop.training.stored_checkpoints import StoredCheckpoints, facts_of, model_file_of
from outcrop.training.supply import (
    BatchSupply,
    folder_beside,
    prepare_supply,
    supply_every_epoch,
    supply_of_several,
)

if TYPE_CHECKING:
    from outcrop.training.evaluate import EvalResult
    from outcrop.training.loop import TrainResult

# What brings torch, and is needed when there are batches to learn from.
_LEARNING = ("outcrop.training.learn", "outcrop.loading.transfer")


def run(
    request: TrainRequest,
    said: Choices,
    *,
    callbacks: Sequence[Any] = (),
    trace: str | Path | None = None,
    progress: Progress | bool | None = None,
    group: Group | None = None,
) -> TrainReport:
    """Trains; ``said`` is told what is chosen on the way.

    Args:
        group: Processes that train together; None: this one trains alone.
        callbacks: Told of every update and epoch (:class:`outcrop.Callback`).
        trace: JSONL file for spans of all stages.

    Raises:
        BudgetError: A limit cannot be met; names the smallest that could.
        IoError: Another process trains with the same checkpoint.
    """
    graph, epochs = request.graph, request.training.epochs
    group = group or Group()
    if not group.leads:
        trace, progress, callbacks = None, None, ()
    with ExitStack() as closing:
        _begin(request, group, closing)
        told = shown(progress)
        budget = TrainNeeds(request, told)
        asked, mode = budget.asked, budget.mode
        with budget.naming_smallest_of_all():
            budget.require_learned()
            ahead = ImportAhead(*_LEARNING)
            with group.together("preparing", patient=True):
                try:
                    supply, why = _supply(request, asked, mode, said, closing, group)
                except BudgetError as error:
                    request, why = budget.fallback.give_up(error, budget.fits, budget.memory)
                    mode = request.mode
                    said.add(why)
                    supply, why = _supply(request, asked, mode, said, closing, group)
                _wait_for(ahead, told)
        closing.enter_context(budget.naming_smallest(mode))
        from outcrop.training.learn import learn

        _compare_processors(request, said, group)
        said.replay(supply.distinct_epochs, epochs, request.run)
        started = time.monotonic()
        runtime = closing.enter_context(_runtime(supply.memory, group, trace, progress))
        recorded = supply.run if group.leads else None
        finish = closing.enter_context(
            recording_training(recorded, graph, supply.drawn, _settings(request), mode.name, runtime)
        )
        ranks = Ranks(group.rank, group.world, request.training.step_batches, "short")
        with ExitStack() as opened:
            with group.together("opening the batches", patient=True):
                session, check = supply.open(runtime, request.device, request.epoch_splits, opened)
            said.add(why)  # not before it is clear that the budget does
            passes = Passes(session, runtime, check, supply.counters, request.batches_of, ranks)
            result, tested = learn(request, passes, runtime, callbacks, group)
        report = _report(request, supply, result, tested, runtime)
        report.ranks, report.peak_host_bytes = _of_ranks(group, ranks, report.peak_host_bytes)
        report.seconds = time.monotonic() - started
        report.chosen, report.choice_seconds = said.text, said.seconds
        finish(report.as_dict())
        return report


def _begin(request: TrainRequest, group: Group, closing: ExitStack) -> None:
    """Checks the folders, and that all processes train the same; ``closing`` gives the folder of checkpoints back."""
    kept = request.checkpoints
    with group.together("opening the checkpoints"):
        if kept is not None and group.leads:
            closing.enter_context(only_process_in(kept.path))
        request.check_folders()
    if group.alone:
        return
    group.require_same(
        {
            "Outcrop": metadata.version("outcrop"),
            **request.learning.identity,
            **asdict(replace(request.training, device="")),
            **request.learning.inputs,
            "mode": repr(request.mode),
            "run": None if request.run is None else str(request.run),
            "checkpoints": None if kept is None else facts_of(kept),
        }
    )
    if kept is not None and not isinstance(kept, StoredCheckpoints):
        group.require_shared(kept.path)


def _wait_for(ahead: ImportAhead, progress: Progress) -> None:
    """Waits for what is imported beside preparing, which may take long from a busy disk."""
    waits = ahead.running
    if waits:
        progress.start("load torch", len(_LEARNING), "modules")
    ahead.join()
    if waits:
        progress.finish("load torch")


def _compare_processors(request: TrainRequest, said: Choices, group: Group) -> None:
    """Sets the threads of this process, and says it where processors differ among processes, or from those of the
    checkpoint that is gone on from.
    """
    import torch

    kept = request.checkpoints
    if threads := usual_threads(group):
        torch.set_num_threads(threads)
    kinds = group.gather((processor_kind(), torch.get_num_threads()))
    group.processors = sorted([name_of_kind(kind), threads] for kind, threads in dict.fromkeys(kinds))
    if kept is not None and kept.resume and group.leads and request.training.device == "cpu":
        said.warn(other_processors(kept.path, group.processors))
    other = next((rank for rank, kind in enumerate(kinds) if kind != kinds[0]), None)
    group.alike = other is None
    if other is not None:
        said.add(
            f"rank {other} has another kind of processor than rank 0, or other threads ({kinds[other][1]} and "
            f"{kinds[0][1]}), and so adds up in another order: all ranks take the parameters of rank 0 after every "
            "epoch, and the result is not to the bit that of one process"
        )


def _runtime(
    memory: int | None, group: Group, trace: str | Path | None, progress: Progress | bool | None
) -> Runtime:
    """Makes the runtime of this process, with its part of a machine's memory and cores."""
    return Runtime(
        None if memory is None else memory // group.local_world,
        threads=usual_threads(group),
        trace_path=trace,
        progress=progress,
        sharing=group.memory,
    )


def _of_ranks(group: Group, ranks: Ranks, peak: int) -> tuple[dict[str, Any], int]:
    """Returns what the report says of processes, and the bytes that they held together on a machine, at most."""
    if group.alone:
        return {}, peak
    found = {
        "world": group.world,
        "accumulate": ranks.accumulate,
        "peak_host_bytes": group.gather(peak),
    }
    return found, max(group.machine_sums(peak))


def _supply(
    request: TrainRequest,
    asked: BatchRequest,
    mode: Mode,
    said: Choices,
    closing: ExitStack,
    group: Group,
) -> tuple[BatchSupply, str]:
    """Supplies the batches, and says why so, where that is to be said when they do; ``closing`` removes what goes."""
    if request.spools:
        return spool.supply(asked, request.learning, closing, request.spooling)
    if not (mode.prepares and request.prepares):
        return BatchSupply(asked, mode, request.run), ""
    if not group.alone and request.refresh is not None:
        return prepare_supply(asked, request.place, group=group), ""
    if not group.alone:
        return supply_of_several(asked, folder_beside(request.graph, ".run"), group), ""
    if request.refresh is not None:
        return prepare_supply(asked, request.place), ""
    supplied = (
        partial(supply_every_epoch, asked, said.add)
        if asked.refresh
        else partial(prepare_supply, asked, request.place)
    )
    return supply_within_disk(asked, request.learning, said.add, supplied), ""


def _settings(request: TrainRequest) -> dict[str, Any]:
    """Returns how the model is trained, for the history of the run."""
    kept = request.checkpoints
    return {
        **identity.model_fields(request.model),
        **asdict(request.training),
        "checkpoint_every": 1 if kept is None else kept.every,
        "checkpoint_minutes": None if kept is None else kept.minutes,
        "checkpoint_steps": None if kept is None else kept.steps,
    }


def _report(
    request: TrainRequest,
    supply: BatchSupply,
    result: TrainResult,
    tested: EvalResult | None,
    runtime: Runtime,
) -> TrainReport:
    config, metric, limits = request.training, request.learning.objective.metric, request.batches.limits
    is_class = request.graph.label_kind == "class"
    learned = request.learning.learned_bytes
    by_tag = {tag: usage.peak_bytes for tag, usage in runtime.budget.by_tag.items()}
    return TrainReport(
        mode=request.mode.name,
        model_name=request.model.name,
        device=config.device,
        epochs=[record.to_json() for record in result.epochs],
        best_epoch=result.best_epoch,
        test_accuracy=tested.accuracy if tested is not None and is_class else None,
        metric=metric,
        test_metric=None if tested is None else tested.metrics[metric],
        batch_losses=result.batch_losses,
        seconds=0.0,
        peak_host_bytes=runtime.budget.peak_bytes + learned,
        peak_device_bytes=_peak_device_bytes(config.device),
        peak_device_by_tag=dict(runtime.device_peaks),
        peak_by_tag=by_tag | ({"learned-rows": learned} if learned else {}),
        peak_process_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        budget={name: getattr(limits, name) for name in ("memory", "gpu_memory", "disk_space")},
        io_backend=runtime.io.backend_name,
        prepare=supply.report.as_dict() if supply.report else {},
        pools=supply.pools.as_dicts() if supply.pools else [],
        spooled_epochs=supply.spooled_epochs,
        cache_strategy=request.device.cache_strategy,
        distinct_epochs=min(supply.distinct_epochs, config.epochs),
        prepared_epochs=supply.prepared_epochs,
        model_file=None if request.checkpoints is None else model_file_of(request.checkpoints),
        resumed_from=result.resumed_from,
        trained_epochs=len(result.epochs) - (result.resumed_from or 0),
        stopped_early=result.stopped_early,
        kept_folder=None if request.run is not None else supply.kept,
        model=result.model.eval(),
    )


def _peak_device_bytes(name: str) -> int:
    gpu = devices.gpu_named(name)
    return 0 if gpu is None else gpu.peak_bytes(devices.resolve(name).index or 0)
