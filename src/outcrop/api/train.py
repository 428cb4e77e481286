"""train: load, learn, validate and test, in any mode, with the same result."""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from outcrop import checkpoint as checkpoints
from outcrop import device as devices
from outcrop.api import auto, history, spool
from outcrop.api.budgets import naming_smallest
from outcrop.api.results import TrainReport
from outcrop.api.supply import Supply, Wanted, beside, every_epoch, needs, prepared
from outcrop.api.train_checks import (
    check_cache_strategy,
    check_checkpoint,
    check_complete,
    check_minutes,
    check_mode,
    check_sample_on,
    plain_weights,
)
from outcrop.config import (
    BaselineConfig,
    DeviceConfig,
    IoConfig,
    PlanConfig,
    SampleConfig,
    Size,
    TrainConfig,
    as_fanouts,
    parse_size,
)
from outcrop.errors import ArgumentError, OutcropWarning
from outcrop.loading.passes import Passes
from outcrop.progress import Progress, shown, shows_progress
from outcrop.runtime import Runtime
from outcrop.stages import evaluate as evaluation
from outcrop.stages import train as training
from outcrop.store import identity
from outcrop.store import run as runs
from outcrop.store.graph import Graph, open_graph
from outcrop.store.lock import only_process_in
from outcrop.training.objectives import Objective, choose_objective
from outcrop.training.weights import class_weights as resolve_class_weights


@shows_progress
def train(
    graph: Graph | str | Path,
    *,
    run: str | Path | None = None,
    mode: str | None = None,
    model: str = "sage",
    hidden: int | None = None,
    heads: int = 4,
    dropout: float = 0.0,
    learning_rate: float = 3e-3,
    weight_decay: float = 0.0,
    epochs: int = 10,
    fanouts: Sequence[int] | None = None,
    batch_size: int | None = None,
    sampler: str = "neighbor",
    dependency: int = 1,
    layers: int | None = None,
    sample_epochs: int | None = None,
    topology: str = "automatic",
    io: str = "engine",
    refresh: bool = False,
    refresh_rate: Size | None = None,
    memory: Size | None = None,
    gpu_memory: Size = 0,
    disk_space: Size | None = None,
    device: str = "cpu",
    sample_on: str = "cpu",
    cache_strategy: str = "auto",
    cache_policy: str = "sieve",
    partitions: int | None = None,
    resident: int | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = True,
    checkpoint_minutes: float | None = None,
    evaluate_every: int = 1,
    patience: int | None = None,
    schedule: str = "constant",
    warmup_steps: int = 0,
    step_epochs: int = 10,
    step_factor: float = 0.1,
    class_weights: str | Sequence[float] | None = None,
    precision: str = "float32",
    loss: str | None = None,
    metric: str | None = None,
    callbacks: Sequence[Any] = (),
    seed: int = 0,
    trace_losses: bool = False,
    trace_path: str | Path | None = None,
    test: bool = True,
    progress: Progress | bool = True,
    on_choice: Callable[[str], None] | None = None,
) -> TrainReport:
    """Trains a model on ``graph`` from disk, inside ``memory``, with the result that training in memory would have.

    Every epoch has new batches (as with ``NeighborLoader(shuffle=True)``), the same in every mode for the same seed,
    unless ``run`` or ``sample_epochs`` has fewer: then these are replayed.

    Args:
        graph: Graph, or its folder.
        run: A prepared run; training longer than it has epochs replays them. Without one, mode ``packed`` prepares
            all epochs in ``<graph>.run`` first, which replaces another run there, or as many at a time as the disk
            has room for in ``<graph>.pools``; other modes draw their batches on the fly.
        mode: Where rows come from: ``packed``, ``online``, ``memory``, or a baseline: ``memmap``, ``ondisk``,
            ``dynamic``, ``belady`` (with a run), ``partition`` (which also changes what is learned). None: ``packed``,
            with memory ``"auto"`` whichever of packed and online is predicted to be done sooner.
        model: ``sage``, ``gat`` or ``gcn``.
        hidden: Width between layers, for gat of all heads together; None: 256, for gat 32 per head.
        heads: Attention heads of gat.
        dropout: Share of hidden values zeroed between layers.
        learning_rate, weight_decay: Of Adam.
        epochs: Epochs in all, those before the checkpoint included.
        fanouts, batch_size, sampler, dependency: As in :func:`outcrop.prepare`; a run has its own.
        sample_epochs: Replay the batches of so many epochs; with ``refresh``, epochs in a pool. None: no epoch is
            replayed, unless ``checkpoint`` has replayed some: then it goes on so.
        layers: None = as many as hops, which is what sampled batches allow; ShaDow's take any number.
        topology: Where neighbour lists are read from (:class:`outcrop.config.IoConfig`).
        io: Of mode ``online``, who asks for rows on disk: ``engine``, or ``gpu`` (:mod:`outcrop.gpuio`).
        disk_space: Limit of the files that are made, as in :func:`outcrop.prepare`. Mode ``online`` spools
            (:mod:`outcrop.api.spool`) where that is predicted to be done sooner: within this limit, or nine tenths of
            what is free; 0: never.
        refresh: In mode ``packed``, do not prepare all epochs at once: prepare the next ``sample_epochs`` (None: one)
            while these train; ``run`` is then the folder for the pools (none: ``<graph>.pools``). Where the budget is
            too small for both at once, in turn. See :mod:`outcrop.api.pools`. Modes that draw on the fly prepare
            nothing, with or without it.
        refresh_rate: Bytes per second that preparing the next pool beside training reads and writes at the most.
        memory: Budget for everything Outcrop holds; the interpreter, torch and the model come on top.
            None takes the budget the run was planned for (mode ``memory``: none); ``"auto"`` what the machine has left.
        gpu_memory: Bytes of the device for cached rows and lists, batches and sampling; 0: what the run was planned
            for, else nothing is cached there, and batches and sampling take what they need of what is free.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        sample_on: ``gpu``: ``device`` draws the batches of mode ``online``, the same as the CPU draws. The topology
            stays in host memory and is read in place, but for the hottest lists where ``gpu_memory`` is given.
        cache_strategy: Of mode ``online`` on a GPU: what its memory and the host's are filled with
            (:class:`outcrop.config.DeviceConfig`): ``auto``; to compare with, ``GTCF``, ``GFCT``, ``CTGF``, ``CFGT``,
            ``hybrid``.
        cache_policy: Of mode ``dynamic``: ``sieve``, ``lru`` or ``s3fifo``.
        partitions, resident: Of mode ``partition``: how many, and how many are in memory at a time (None: as fits).
        checkpoint: Folder for checkpoints; training goes on from the one it holds, unless ``resume`` is false.
            :func:`outcrop.load_model` reads the trained model from it.
        resume: Whether to go on from the checkpoint that is there.
        evaluate_every: Epochs between scores of the validation nodes, which are drawn and read on the fly: with many of
            them that takes longer than an epoch. The last epoch always has one.
        checkpoint_minutes: Time between checkpoints within an epoch, from which training goes on with the next batch;
            None: only between epochs.
        patience: Ends the training when the validation nodes were scored so many times without a better score.
        schedule: Learning rate from epoch to epoch: ``constant``, ``cosine`` (to 0 after the last epoch), or ``step``:
            times ``step_factor`` after every ``step_epochs``. torch's CosineAnnealingLR and StepLR.
        step_epochs, step_factor: Of schedule ``step``.
        warmup_steps: Updates over which the learning rate rises linearly at the beginning; torch's LinearLR.
        class_weights: What the loss of a seed counts, by its label: one number per class, or ``"balanced"``.
        precision: Of dense products: ``float32``, or ``bfloat16`` as under ``torch.autocast``; parameters stay float32.
        loss: ``cross_entropy`` of classes; ``bce`` of multi-label targets; ``mse`` (default) or ``l1`` of regression.
        metric: What the best epoch and ``patience`` go by: ``accuracy`` (default), ``macro_f1`` or ``auc``
            (each class against the others, the mean; of two, of the second) of classes;
            ``micro_f1`` (default), ``macro_f1``, ``accuracy`` or ``auc`` of multi-label targets; ``mae`` (default) or
            ``rmse`` of regression.
        callbacks: Objects with ``on_step(step, values)`` or ``on_epoch(epoch, values)``: :class:`outcrop.Callback`,
            with examples for TensorBoard, Weights & Biases and MLflow in :mod:`outcrop.training.callbacks`.
        seed: Of sampling (without a run) and of the model.
        trace_losses: Keep the loss of every batch.
        trace_path: JSONL file for spans of all stages.
        test: Whether the test nodes are scored at the end.
        progress: Whether to show progress (:mod:`outcrop.progress`), or a receiver of it.
        on_choice: Told, before anything is prepared, what was chosen and why: by memory ``"auto"``, by mode
            ``online``, and how many epochs are prepared or replayed. None: a warning where epochs are replayed though
            nobody asked for it.

    Raises:
        BudgetError: A limit cannot be met.
        IoError: Another process trains with this ``checkpoint``.
        OutcropError: See the messages.
    """
    # Every argument is checked before anything is prepared or read.
    check_mode(mode or "packed", evaluate_every)
    check_sample_on(sample_on, mode or "packed", device)
    check_cache_strategy(cache_strategy, mode or "packed")
    check_minutes(checkpoint_minutes, checkpoint)
    graph = graph if isinstance(graph, Graph) else open_graph(graph)
    sampling = SampleConfig(
        fanouts=(10, 10) if fanouts is None else as_fanouts(fanouts),
        batch_size=1024 if batch_size is None else batch_size,
        epochs=1 if sample_epochs is None else sample_epochs,
        seed=seed,
        # ShaDow's subgraphs have degrees of their own.
        degrees=model == "gcn" and sampler != "shadow",
        sampler=sampler,  # type: ignore[arg-type]
        dependency=dependency,
    )
    io_config = IoConfig(topology=topology, initiator=io)  # type: ignore[arg-type]
    if io != "engine" and mode != "online":
        raise ArgumentError(f"io {io} is for mode online, not {mode}")
    check_complete(graph)
    objective = choose_objective(graph.label_kind, loss, metric)
    baseline = BaselineConfig(
        cache_policy=cache_policy,
        partitions=partitions,
        resident=resident,
        passes=("train", "valid") if graph.has("valid") else ("train",),
    )
    folder = None if run is None else Path(run)
    said = _Choices(on_choice)
    new_batches = refresh or (folder is None and sample_epochs is None)
    replayed = _replayed_epochs(checkpoint if resume else None)
    if new_batches and not refresh and replayed:
        new_batches, sampling = False, replace(sampling, epochs=replayed)
        said.add(
            f"{checkpoint} was begun replaying batches, and goes on so: --fresh starts over with new ones"
        )
    least = epochs if new_batches and not refresh else None
    memory, mode, disk_space, why = _choose(
        graph, folder, sampling, mode, epochs, model, hidden, memory, disk_space, refresh, least
    )
    said.add(why)
    planned = 0  # bytes on the device
    if folder is not None and not refresh:
        info = runs.read(folder)
        if fanouts is not None or batch_size is not None:
            raise ArgumentError(
                f"{folder} has its own fanouts and batch size: leave them out, or prepare another run"
            )
        sampling = info.sample
        memory = _memory_of(info, mode) if memory is None else memory
        planned = info.plan.gpu_memory
        if sampling.task == "link":
            raise ArgumentError(
                f"{folder} holds edges to be predicted: train on Run({str(folder)!r}).loader() with a loop of your own"
            )
    config = TrainConfig(
        model=model,
        hidden=hidden,
        layers=len(sampling.fanouts) if layers is None else layers,
        heads=heads,
        dropout=dropout,
        epochs=epochs,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        seed=seed,
        device=device,
        trace_losses=trace_losses,
        evaluate_every=evaluate_every,
        patience=patience,
        schedule=schedule,  # type: ignore[arg-type]
        warmup_steps=warmup_steps,
        step_epochs=step_epochs,
        step_factor=step_factor,
        class_weights=plain_weights(class_weights),
        precision=precision,  # type: ignore[arg-type]
        loss=loss,
        metric=metric,
        checkpoint_minutes=checkpoint_minutes,
    )
    limits = _limits(graph, memory, gpu_memory, disk_space)
    inputs: dict[str, Any] = {
        "graph": graph.digest(),
        "sampling": identity.sampling_fields(sampling, fresh=new_batches),
    }
    if mode == "partition":
        inputs["partitions"] = {"partitions": partitions, "resident": resident}
    with ExitStack() as closing:
        if checkpoint is not None:
            closing.enter_context(only_process_in(Path(checkpoint)))
            check_checkpoint(Path(checkpoint), resume, graph, config, inputs, objective)
        wanted = Wanted(
            graph,
            sampling,
            limits,
            epochs,
            next_epoch=_next_epoch(checkpoint if resume else None, config),
            refresh=new_batches,
            rate=None if refresh_rate is None else parse_size(refresh_rate),
            io=io_config,
            progress=shown(progress),
        )
        refused = partial(needs, wanted, mode, folder, baseline, test, at_once=not refresh)
        closing.enter_context(naming_smallest(limits.memory, refused, f"train in mode {mode}"))
        why = ""
        if (
            mode == "online"
            and folder is None
            and io == "engine"
            and sample_on == "cpu"
            and cache_strategy == "auto"
        ):
            supply, why = spool.supply(wanted, config, closing)
        elif mode == "packed" and folder is None and new_batches and not refresh:
            supply = every_epoch(wanted, said.add)
        else:
            supply = _supply(wanted, mode, folder)
        said.replay(supply.drawn.epochs, epochs, folder)
        started = time.monotonic()
        to = DeviceConfig(
            device, limits.gpu_memory or planned, draws=sample_on == "gpu", cache_strategy=cache_strategy
        )
        runtime = closing.enter_context(
            Runtime(supply.memory, io=io_config, trace_path=trace_path, progress=progress)
        )
        finish = closing.enter_context(
            history.training(supply.run, graph, supply.drawn, config, mode, runtime)
        )
        with ExitStack() as opened:
            session, check = supply.open(runtime, to, baseline, opened)
            said.add(why)  # not before it is clear that the budget does
            num_batches = _batch_counter(graph, sampling, mode)
            passes = Passes(session, runtime, check, supply.counters, num_batches)
            result, tested = _train(
                graph,
                passes,
                sampling.splits,
                config,
                runtime,
                checkpoint,
                resume,
                test,
                inputs,
                callbacks,
                objective,
            )
        trained = TrainReport(
            mode=mode,
            model_name=model,
            device=device,
            epochs=[record.to_json() for record in result.epochs],
            best_epoch=result.best_epoch,
            test_accuracy=tested.accuracy if tested is not None and graph.label_kind == "class" else None,
            metric=objective.metric,
            test_metric=None if tested is None else tested.metrics[objective.metric],
            batch_losses=result.batch_losses,
            seconds=time.monotonic() - started,
            peak_host_bytes=runtime.budget.peak_bytes,
            peak_device_bytes=_peak_device_bytes(device),
            peak_device_by_tag=dict(runtime.device_peaks),
            peak_by_tag={tag: usage.peak_bytes for tag, usage in runtime.budget.by_tag.items()},
            peak_process_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            budget={name: getattr(limits, name) for name in ("memory", "gpu_memory", "disk_space")},
            io_backend=runtime.io.backend_name,
            prepare=supply.report.as_dict() if supply.report else {},
            pools=supply.pools.as_dicts() if supply.pools else [],
            spooled_epochs=supply.spooled_epochs,
            cache_strategy=cache_strategy,
            distinct_epochs=min(supply.drawn.epochs, epochs),
            prepared_epochs=supply.prepared_epochs,
            chosen=said.text,
            model_file=None if checkpoint is None else str(Path(checkpoint) / checkpoints.BEST),
            resumed_from=result.resumed_from,
            trained_epochs=len(result.epochs) - (result.resumed_from or 0),
            stopped_early=result.stopped_early,
            model=result.model.eval(),
        )
        return finish(trained)


def _supply(wanted: Wanted, mode: str, folder: Path | None) -> Supply:
    if mode != "packed" and wanted.refresh and folder is not None:
        raise ArgumentError(f"mode {mode} draws the batches of every epoch itself: leave --run {folder} out")
    if mode == "packed" and (wanted.refresh or folder is None):
        return prepared(wanted, folder or beside(wanted.graph, ".pools" if wanted.refresh else ".run"))
    return Supply(wanted, mode, folder)


class _Choices:
    """What was chosen for the user: told when it is, and kept for the report."""

    def __init__(self, on_choice: Callable[[str], None] | None):
        self._on_choice = on_choice
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    def add(self, why: str) -> None:
        if not why:
            return
        self._lines.append(why)
        if self._on_choice is not None:
            self._on_choice(why)

    def replay(self, distinct: int, epochs: int, run: Path | None) -> None:
        """Says it where epochs are replayed; a warning where nobody asked for that and nobody listens."""
        if distinct >= epochs:
            return
        have = "1 epoch" if distinct == 1 else f"{distinct} epochs"
        if run is None:
            self.add(f"the batches of {have} are replayed in all {epochs}, as asked for (sample epochs)")
            return
        why = (
            f"{run} has {have} prepared, {epochs} are trained: batches are replayed; outcrop prepare --epochs {epochs} "
            "--overwrite makes new ones for every epoch"
        )
        if self._on_choice is None:
            warnings.warn(why, OutcropWarning, stacklevel=3)
        self.add(why)


def _replayed_epochs(checkpoint: str | Path | None) -> int | None:
    """How many epochs ``checkpoint`` has replayed, as was usual before new batches were; None: it has not yet."""
    path = None if checkpoint is None else Path(checkpoint) / checkpoints.LAST
    if path is None or not path.exists():
        return None
    meta = checkpoints.read(path).meta
    sampled = meta.inputs.get("sampling", {}).get("epochs")
    return sampled if sampled is not None and sampled < meta.epochs_done else None


def _choose(
    graph: Graph,
    folder: Path | None,
    sampling: SampleConfig,
    mode: str | None,
    epochs: int,
    model: str,
    hidden: int | None,
    memory: Size | None,
    disk_space: Size | None,
    refresh: bool,
    least_epochs: int | None,
) -> tuple[Size | None, str, Size | None, str]:
    """(memory, mode, disk space, why) in place of ``"auto"``; a run that was named has its own batches and limits."""
    if not auto.is_auto(memory):
        return memory, mode or "packed", disk_space, ""
    out = graph.path.with_name(graph.path.name + ".run") if folder is None else folder
    if folder is not None and (folder / runs.RUN_FILE).is_file():
        sampling = runs.read(folder).sample
    choice = auto.settle(
        graph,
        sampling,
        out if mode in (None, "packed") else None,
        epochs=epochs,
        model=model,
        hidden=hidden,
        disk_space=disk_space,
        refresh=refresh,
        least_epochs=None if folder is not None else least_epochs,
    )
    mode = mode or choice.mode
    return choice.memory, mode, choice.disk_space if mode == "packed" else disk_space, choice.why


def _memory_of(run: runs.RunInfo, mode: str) -> int | None:
    """The budget of a run, but of mode ``memory``: it has all features in memory, whatever the run was made for."""
    return None if mode == "memory" else run.plan.memory


def _limits(graph: Graph, memory: Size | None, gpu_memory: Size, disk_space: Size | None) -> PlanConfig:
    return PlanConfig(
        memory=None if memory is None else parse_size(memory),
        gpu_memory=parse_size(gpu_memory),
        disk_space=None if disk_space is None else parse_size(disk_space, feature_bytes=graph.feature_bytes),
    )


def _next_epoch(checkpoint: str | Path | None, config: TrainConfig) -> int | None:
    """The epoch that training begins with, or goes on within; None where there is nothing left to train."""
    path = None if checkpoint is None else Path(checkpoint) / checkpoints.LAST
    if path is None or not path.exists():
        return 0
    meta = checkpoints.read(path).meta
    ended = training.stopped_early(meta.history, meta.best_epoch, config.patience)
    return None if ended or meta.epochs_done >= config.epochs else meta.epochs_done


def _batch_counter(graph: Graph, sampling: SampleConfig, mode: str) -> Callable[[str], int] | None:
    """What tells how many batches an epoch of a split has; None where loading cannot begin within an epoch."""
    if sampling.sampler == "foreign" or mode in ("belady", "partition"):
        return None
    return lambda split: -(-graph.spec(split).shape[0] // sampling.batch_size)


def _train(
    graph: Graph,
    passes: Passes,
    splits: tuple[str, ...],
    config: TrainConfig,
    runtime: Runtime,
    checkpoint: str | Path | None,
    resume: bool,
    test: bool,
    inputs: dict[str, Any],
    callbacks: Sequence[Any],
    objective: Objective,
) -> tuple[training.TrainResult, evaluation.EvalResult | None]:
    result = training.train(
        lambda epoch, first=0: passes.start("train", epoch, first),
        (lambda: passes.start("valid", 0)) if graph.has("valid") and "valid" in splits else None,
        config,
        None if checkpoint is None else Path(checkpoint),
        runtime,
        in_dim=graph.feature_dim,
        num_classes=graph.num_classes,
        evaluate=lambda model, batches: evaluation.evaluate(model, batches, objective),
        inputs=inputs,
        counters=passes.counters,
        resume=resume,
        class_weights=resolve_class_weights(graph, config.class_weights, runtime),
        callbacks=callbacks,
        objective=objective,
        num_batches=passes.num_batches("train") if graph.has("train") else None,
    )
    tested = None
    if test and graph.has("test") and "test" in splits:
        tested = evaluation.evaluate(result.model, passes.start("test", 0), objective)
    return result, tested


def _peak_device_bytes(name: str) -> int:
    gpu = devices.gpu_named(name)
    return 0 if gpu is None else gpu.peak_bytes(devices.resolve(name).index or 0)
