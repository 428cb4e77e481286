"""train: load, learn, validate and test, in any mode, with the same result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from outcrop.api.results import TrainReport
from outcrop.config import (
    BaselineConfig,
    DeviceConfig,
    IoConfig,
    SampleConfig,
    Size,
    TrainConfig,
    as_fanouts,
    hidden_width,
    parse_size,
)
from outcrop.config.models import wants_degrees
from outcrop.loading.modes import Packed, mode_named
from outcrop.runtime.progress import Progress, shows_progress
from outcrop.store.graph import Graph, open_graph
from outcrop.store.stripes import open_stripes
from outcrop.training.checks import (
    check_cache_strategy,
    check_complete,
    check_evaluation,
    check_initiator,
    check_minutes,
    check_sample_on,
    plain_weights,
)
from outcrop.training.choices import BatchOptions, Choices, choose_batches
from outcrop.training.dry_run import facts
from outcrop.training.objectives import choose_objective
from outcrop.training.run import TrainRequest
from outcrop.training.run import run as train_on
from outcrop.training.weights import check_class_weights


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
    stripes: Sequence[Path | str] = (),
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
            has room for in ``<graph>.pools``. That folder stays for the next training and may be deleted. Other modes
            draw their batches on the fly.
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
        io: Of mode ``online``, who asks for rows on disk: ``engine``, or ``gpu`` (:mod:`outcrop.rows.rings`).
        stripes: Folders made by :func:`outcrop.stripe_features`, all of them: ``io="gpu"`` reads the graph's disk and
            theirs at the same time.
        disk_space: Limit of the files that are made, as in :func:`outcrop.prepare`. Mode ``online`` spools
            (:mod:`outcrop.training.spool`) where that is predicted to be done sooner: within this limit, or nine tenths
            of what is free; 0: never.
        refresh: In mode ``packed``, do not prepare all epochs at once: prepare the next ``sample_epochs`` (None: one)
            while these train; ``run`` is then the folder for the pools (none: ``<graph>.pools``). Where the budget is
            too small for both at once, in turn. See :mod:`outcrop.training.pools`. Modes that draw on the fly prepare
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
        progress: Whether to show progress (:mod:`outcrop.runtime.progress`), or a receiver of it.
        on_choice: Told, before anything is prepared, what was chosen and why: by memory ``"auto"``, by mode
            ``online``, and how many epochs are prepared or replayed. None: a warning where epochs are replayed though
            nobody asked for it.

    Raises:
        BudgetError: A limit cannot be met.
        IoError: Another process trains with this ``checkpoint``.
        OutcropError: See the messages.
    """
    given = SimpleNamespace(**locals())
    said = Choices(on_choice)
    request = _resolve(given, said)
    return train_on(request, said, callbacks=callbacks, trace_path=trace_path, progress=progress)


def dry_run(graph: Graph | str | Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Tells what ``train(graph, **options)`` would do, after all of its checks; prepares, draws and writes nothing.

    Returns:
        What :func:`outcrop.training.dry_run.facts` lists, as plain values.

    Raises:
        OutcropError: As :func:`train` does before it prepares anything.
    """
    call = signature(train).bind(graph, **options)
    call.apply_defaults()
    said = Choices(lambda line: None)
    return facts(_resolve(SimpleNamespace(**call.arguments), said), said.text.splitlines())


def _resolve(given: SimpleNamespace, said: Choices) -> TrainRequest:
    """Checks the arguments of :func:`train` and chooses what was left open, before anything is prepared or read."""
    asked = None if given.mode is None else mode_named(given.mode)
    check_evaluation(asked or Packed(), given.evaluate_every)
    check_sample_on(given.sample_on, asked or Packed(), given.device)
    check_cache_strategy(given.cache_strategy, asked or Packed())
    check_minutes(given.checkpoint_minutes, given.checkpoint)
    graph = given.graph if isinstance(given.graph, Graph) else open_graph(given.graph)
    sampling = SampleConfig(
        fanouts=(10, 10) if given.fanouts is None else as_fanouts(given.fanouts),
        batch_size=1024 if given.batch_size is None else given.batch_size,
        epochs=1 if given.sample_epochs is None else given.sample_epochs,
        seed=given.seed,
        degrees=wants_degrees(given.model, given.sampler),
        sampler=given.sampler,
        dependency=given.dependency,
    )
    io_config = _io_config(graph, given.topology, given.io, given.stripes)
    check_initiator(given.io, asked or Packed())
    check_complete(graph)
    objective = choose_objective(graph.label_kind, given.loss, given.metric)
    weights = plain_weights(given.class_weights)
    check_class_weights(graph, weights)
    baseline = BaselineConfig(
        cache_policy=given.cache_policy,
        partitions=given.partitions,
        resident=given.resident,
        passes=("train", "valid") if graph.has("valid") else ("train",),
    )
    folder = None if given.checkpoint is None else Path(given.checkpoint)
    batches = choose_batches(
        BatchOptions(
            graph=graph,
            run=None if given.run is None else Path(given.run),
            mode=asked,
            sampling=sampling,
            replays=given.sample_epochs is not None,
            samples=given.fanouts is not None or given.batch_size is not None,
            epochs=given.epochs,
            model=given.model,
            hidden=hidden_width(given.model, given.hidden, given.heads),
            memory=given.memory,
            gpu_memory=given.gpu_memory,
            disk_space=given.disk_space,
            refresh=given.refresh,
            goes_on=folder if given.resume else None,
        ),
        said,
    )
    config = TrainConfig(
        model=given.model,
        hidden=given.hidden,
        layers=len(batches.sampling.fanouts) if given.layers is None else given.layers,
        heads=given.heads,
        dropout=given.dropout,
        epochs=given.epochs,
        learning_rate=given.learning_rate,
        weight_decay=given.weight_decay,
        seed=given.seed,
        device=given.device,
        trace_losses=given.trace_losses,
        evaluate_every=given.evaluate_every,
        patience=given.patience,
        schedule=given.schedule,
        warmup_steps=given.warmup_steps,
        step_epochs=given.step_epochs,
        step_factor=given.step_factor,
        class_weights=weights,
        precision=given.precision,
        loss=given.loss,
        metric=given.metric,
        checkpoint_minutes=given.checkpoint_minutes,
    )
    return TrainRequest(
        graph,
        batches,
        config,
        objective,
        DeviceConfig(
            given.device,
            batches.gpu_memory,
            draws=given.sample_on == "gpu",
            cache_strategy=given.cache_strategy,
        ),
        baseline,
        io_config,
        run=None if given.run is None else Path(given.run),
        refresh=given.refresh,
        refresh_rate=None if given.refresh_rate is None else parse_size(given.refresh_rate),
        checkpoint=folder,
        resume=given.resume,
        test=given.test,
    )


def _io_config(graph: Graph, topology: str, io: str, stripes: Sequence[Path | str]) -> IoConfig:
    open_stripes(graph, stripes)  # raises where they are not those of this graph
    return IoConfig(topology=topology, initiator=io, stripes=tuple(map(str, stripes)))  # type: ignore[arg-type]
