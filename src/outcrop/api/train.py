"""train: load, learn, validate and test, in any mode, with the same result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outcrop.api.old_keywords import accepts_old_keywords, merged, named
from outcrop.config import (
    Checkpoints,
    Limits,
    ModelConfig,
    Refresh,
    Replay,
    SampleConfig,
    Size,
    TrainConfig,
    as_fanouts,
    with_epochs,
    with_memory,
)
from outcrop.config.declared import checks_arguments
from outcrop.errors import ArgumentError
from outcrop.loading.modes import Mode, Packed, mode_named, mode_with
from outcrop.runtime.group import Group, joined
from outcrop.runtime.observer import Observer
from outcrop.runtime.progress import Progress
from outcrop.store.graph import Graph, open_graph
from outcrop.training.choices import Choices, TrainOptions, with_seeds_of
from outcrop.training.dry_run import facts
from outcrop.training.report import TrainReport
from outcrop.training.request import TrainRequest
from outcrop.training.run import run as train_on
from outcrop.training.stored_checkpoints import begun, with_folder

_OLD = {
    "mode": "loading",
    "topology": "loading.topology",
    "io": "loading.row_reads",
    "stripes": "loading.stripes",
    "sample_on": "loading.sample_on",
    "cache_strategy": "loading.cache_strategy",
    "cache_policy": "loading.cache_policy",
    "partitions": "loading.partitions",
    "resident": "loading.resident",
    "hidden": "model.hidden",
    "heads": "model.heads",
    "dropout": "model.dropout",
    "layers": "model.layers",
    "fanouts": "sampling.fanouts",
    "batch_size": "sampling.batch_size",
    "sampler": "sampling.sampler",
    "dependency": "sampling.batch_dependency",
    "sample_epochs": "run",
    "refresh": "run",
    "refresh_rate": "run",
    "gpu_memory": "limits.gpu_memory",
    "disk_space": "limits.disk_space",
    "resume": "checkpoint.resume",
    "checkpoint_minutes": "checkpoint.minutes",
    "trace_path": "observer.trace",
    "progress": "observer.progress",
    "on_choice": "observer.on_choice",
} | {
    name: f"training.{name}"
    for name in (
        "learning_rate", "weight_decay", "device", "evaluate_every", "patience", "schedule", "warmup_steps",
        "step_epochs", "step_factor", "class_weights", "precision", "loss", "metric", "seed", "trace_losses", "test",
    )
}  # fmt: skip


def _objects(old: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Makes the objects that :func:`train` takes now from keywords that it took before."""
    run, replays = given.get("run"), old.get("sample_epochs")
    made: dict[str, Any] = {}
    if old.get("refresh"):
        made["run"] = Refresh(1 if replays is None else replays, old.get("refresh_rate"), run)
    elif replays is not None and run is None:
        made["run"] = Replay(replays)
    if options := named(_OLD, "model", old):
        model = given.get("model", ModelConfig())
        made["model"] = merged(ModelConfig, ModelConfig(model) if isinstance(model, str) else model, options)
    if options := named(_OLD, "training", old):
        made["training"] = merged(TrainConfig, given.get("training"), options)
    sampling = {name: value for name, value in named(_OLD, "sampling", old).items() if value is not None}
    if "fanouts" in sampling:
        sampling["fanouts"] = as_fanouts(sampling["fanouts"])
    has_its_own = run is not None and not old.get("refresh")
    if has_its_own and not {"fanouts", "batch_size"} & sampling.keys():
        sampling = {}  # which a run overruled
    if sampling:
        seed = {"seed": old["seed"]} if "seed" in old else {}
        made["sampling"] = merged(SampleConfig, given.get("sampling"), seed | sampling)
    if options := named(_OLD, "limits", old):
        made["limits"] = merged(Limits, given.get("limits"), options)
    made |= _mode(old, given) | _checkpoints(old, given)
    if options := named(_OLD, "observer", old):
        made["observer"] = merged(Observer, given.get("observer"), options)
    return made


def _mode(old: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Makes the mode of its name and options; those that have their default meant nothing in other modes."""
    options = named(_OLD, "loading", old)
    usual = {"row_reads": "engine", "stripes": (), "sample_on": "cpu", "cache_strategy": "auto"}
    usual |= {"topology": "automatic", "cache_policy": "sieve", "partitions": None, "resident": None}
    asked = {name: value for name, value in options.items() if value != usual[name]}
    mode = old.get("mode", given.get("loading"))
    if not asked:
        return {} if "mode" not in old else {"loading": None if mode is None else mode_named(mode)}
    if "stripes" in asked:
        asked["stripes"] = tuple(asked["stripes"])
    taken = {name: value for name, value in asked.items() if name not in _OF_BASELINES}
    named_mode = Packed() if mode is None else mode_named(mode)
    taken |= {name: asked[name] for name in _OF_BASELINES if name in asked and named_mode.takes(name)}
    return {"loading": mode_with(named_mode, taken)}


_OF_BASELINES = ("cache_policy", "partitions", "resident")  # which other modes overlooked


def _checkpoints(old: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    options, folder = named(_OLD, "checkpoint", old), given.get("checkpoint")
    if folder is None:
        if options.get("minutes") is not None:
            raise ArgumentError(
                "checkpoint_minutes needs a folder for checkpoints: checkpoint=Checkpoints(folder)"
            )
        return {}
    if not options:
        return {}
    kept = folder if isinstance(folder, Checkpoints) else Checkpoints(folder)
    return {"checkpoint": replace(kept, **options)}


@accepts_old_keywords(_OLD, _objects)
@checks_arguments
def train(
    graph: Graph | str | Path,
    *,
    model: str | ModelConfig = "sage",
    sampling: SampleConfig | None = None,
    loading: str | Mode | None = None,
    limits: Limits | None = None,
    training: TrainConfig | None = None,
    run: str | Path | Replay | Refresh | None = None,
    checkpoint: str | Path | Checkpoints | None = None,
    callbacks: Sequence[Any] = (),
    observer: Observer | None = None,
    memory: Size | None = None,
    epochs: int | None = None,
) -> TrainReport:
    """Trains a model on ``graph`` from disk, inside ``memory``, with the result that training in memory would have.

    Every epoch has new batches (as with ``NeighborLoader(shuffle=True)``), the same in every mode for the same seed,
    unless ``run`` has fewer: then these are replayed.

    Started by torchrun, or where there is a process group of torch.distributed, the processes train one model: each
    computes a part of a step's batches, and the result is, to the bit, that of one process with the same ``accumulate``
    on the same kind of CPU. ``memory`` is that of a machine.

    Args:
        graph: Graph, or its folder.
        model: ``sage``, ``gat`` or ``gcn``, or :class:`outcrop.ModelConfig` with its size.
        sampling: How batches are drawn (:class:`outcrop.SampleConfig`); a run has its own. None: fanouts 10,10,
            batches of 1024 seeds, and the seed of ``training``.
        loading: Where rows come from: ``packed``, ``online``, ``memory``, or a baseline: ``memmap``, ``ondisk``,
            ``dynamic``, ``belady`` (with a run), ``partition`` (which also changes what is learned). Where a mode has
            options it is an object: ``outcrop.Online(topology="paged")``. None: ``packed``, or ``online`` where that
            is predicted to be done sooner, preparing included, and nothing is prepared yet.
        limits: Memory, device memory and disk space (:class:`outcrop.Limits`).
        training: How the model is trained (:class:`outcrop.TrainConfig`).
        run: Where batches come from. A prepared run: training longer than it has epochs replays them.
            :class:`outcrop.Replay`: those of a few epochs, again and again. :class:`outcrop.Refresh`: the next epochs
            are prepared while these train. None: new ones in every epoch; mode packed prepares all epochs in
            ``<graph>.run`` first, which replaces another run there, or as many at a time as the disk has room for in
            ``<graph>.pools``. That folder stays for the next training and may be deleted. Other modes draw their
            batches on the fly.
        checkpoint: Folder for checkpoints, or a URI such as ``s3://bucket/folder``, or :class:`outcrop.Checkpoints`
            with how often; training goes on from the one that is there. :func:`outcrop.load_model` reads the trained
            model from it. A checkpoint that has replayed batches goes on so.
        callbacks: Objects with ``on_step(step, values)`` or ``on_epoch(epoch, values)``: :class:`outcrop.Callback`,
            with examples for TensorBoard, Weights & Biases and MLflow in :mod:`outcrop.training.callbacks`.
        observer: Progress, traces, and what was chosen (:class:`outcrop.Observer`).
        memory: Short for ``limits=Limits(memory=...)``: the budget for everything Outcrop holds.
        epochs: Short for ``training=TrainConfig(epochs=...)``.

    Raises:
        BudgetError: A limit cannot be met; names the smallest that could.
        IoError: Another process trains with this ``checkpoint``.
        OutcropError: See the messages.
    """
    watched = Observer() if observer is None else observer
    asked = _asked(
        graph,
        model=model,
        sampling=sampling,
        loading=loading,
        limits=limits,
        training=training,
        run=run,
        checkpoint=checkpoint,
        memory=memory,
        epochs=epochs,
    )
    with joined(asked.training.device) as group, watched.watching() as progress:
        said = Choices(watched.on_choice if group.leads else lambda line: None)
        with begun(asked.checkpoints, group):
            with group.together("checking the options", patient=True):
                request = TrainRequest.resolve(asked, said, group)
            return train_on(
                request, said, callbacks=callbacks, trace=watched.trace, progress=progress, group=group
            )


def dry_run(
    graph: Graph | str | Path, options: Mapping[str, Any], progress: Progress | None = None
) -> dict[str, Any]:
    """Tells what ``train(graph, **options)`` would do, after all of its checks; prepares and writes nothing. Where the
    memory has a limit, mini-batches are drawn and counted.

    Returns:
        What :func:`outcrop.training.dry_run.facts` lists, as plain values.

    Raises:
        OutcropError: As :func:`train` does before it prepares anything.
    """
    said = Choices(lambda line: None)
    asked = _asked(graph, **options)
    with begun(asked.checkpoints, Group()):
        return facts(TrainRequest.resolve(asked, said), said.text.splitlines(), progress)


@accepts_old_keywords(_OLD, _objects)
@checks_arguments
def _asked(
    graph: Graph | str | Path,
    *,
    model: str | ModelConfig = "sage",
    sampling: SampleConfig | None = None,
    loading: str | Mode | None = None,
    limits: Limits | None = None,
    training: TrainConfig | None = None,
    run: str | Path | Replay | Refresh | None = None,
    checkpoint: str | Path | Checkpoints | None = None,
    memory: Size | None = None,
    epochs: int | None = None,
    callbacks: Sequence[Any] = (),
    observer: Observer | None = None,
) -> TrainOptions:
    """Returns what :func:`train` was asked for, shortcuts resolved; who watches decides nothing."""
    run = Path(run) if isinstance(run, str) else run
    return TrainOptions(
        with_seeds_of(graph if isinstance(graph, Graph) else open_graph(graph), sampling, run),
        ModelConfig(model) if isinstance(model, str) else model,
        sampling,
        None if loading is None else mode_named(loading),
        with_memory(limits, memory),
        with_epochs(training, epochs),
        run,
        with_folder(Checkpoints(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint),
    )
