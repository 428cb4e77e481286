"""``outcrop train``."""

from __future__ import annotations

import os
from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from outcrop.cli import common, printing
from outcrop.cli.options import Fields, described, with_options
from outcrop.config import (
    Checkpoints,
    Limits,
    ModelConfig,
    Refresh,
    Replay,
    SampleConfig,
    TrainConfig,
    format_bytes,
    format_use,
)
from outcrop.config.declared import type_hints
from outcrop.errors import ArgumentError
from outcrop.loading.modes import BASELINES, CHOICES, MODES, Mode, Online, mode_with, names_of, taking
from outcrop.runtime.observer import Observer
from outcrop.store.history import disk_bytes

GraphArg = Annotated[Path, typer.Argument(help="Graph folder.", metavar="GRAPH")]


def add_commands(app: typer.Typer) -> None:
    app.command(
        "train",
        help="Train a model from disk.\n\nExample: outcrop train papers.oc --run papers.run --model sage "
        "--epochs 20 --checkpoint ckpt",
    )(common.with_config(with_options(train, **_OBJECTS)))


def _any_mode() -> type:
    """Makes a class with the name of a mode and the fields of all modes, each described with the modes that have it."""
    about = [f"mode: {names_of(CHOICES, notes=True)}; to compare with: {names_of(BASELINES, notes=True)}."]
    found: list[Any] = [("mode", str | None, None)]
    for name in dict.fromkeys(
        field.name for mode in MODES for field in fields(mode) if field.name != _NOT_HERE
    ):
        having = [mode for mode in MODES if mode.takes(name)]
        (field,) = (field for field in fields(having[0]) if field.name == name)
        of = "" if len(having) == len(MODES) else f"Of mode {taking(name)}. "
        about.append(f"{name}: {of}{described(type(having[0]), name)}")
        found.append((name, type_hints(type(having[0]))[name], field.default))
    text = "The fields of all modes.\n\nAttributes:\n" + "\n".join("    " + line for line in about)
    return make_dataclass("AnyMode", found, namespace={"__doc__": text})


_NOT_HERE = "cache_rows"  # of tests and of programs: who has a budget has no use for it


def _mode(mode: str | None = None, stripes: list[Path] | None = None, **fields: Any) -> Mode:
    return mode_with(mode, fields | ({"stripes": tuple(stripes)} if stripes else {}))


def _checkpoints(
    folder: str | None = None, minutes: float | None = None, steps: int | None = None
) -> Checkpoints:
    if folder is None:
        flag = "--checkpoint-steps" if minutes is None else "--checkpoint-minutes"
        raise ArgumentError(f"{flag} needs a folder for checkpoints: name one with --checkpoint")
    return Checkpoints(folder, minutes, steps=steps)


AnyMode = _any_mode()
_OBJECTS = {
    "model": (
        ModelConfig,
        Fields(
            ("name", "hidden", "layers", "heads", "dropout", "no_rows", "edge_weights"),
            {"name": ("--model",)},
        ),
    ),
    "training": (
        TrainConfig,
        Fields(
            (
                "epochs",
                "learning_rate",
                "weight_decay",
                "seed",
                "device",
                "evaluate_every",
                "patience",
                "schedule",
                "warmup_steps",
                "step_epochs",
                "step_factor",
                "class_weights",
                "precision",
                "loss",
                "metric",
                "trace_losses",
                "accumulate",
            ),
            {"learning_rate": ("--learning-rate", "--lr")},
        ),
    ),
    "sampling": (
        SampleConfig,
        Fields(
            (
                "fanouts",
                "fanouts_by_type",
                "node_type",
                "batch_size",
                "sampler",
                "batch_dependency",
                "replace",
                "edge_rows",
            ),
            {"fanouts_by_type": ("--fanout",)},
            always=False,
        ),
    ),
    "loading": (
        AnyMode,
        Fields(
            [field.name for field in fields(AnyMode)],
            {"row_reads": ("--io",), "stripes": ("--stripe",)},
            always=False,
            make=_mode,
        ),
    ),
    "limits": (Limits, Fields(("memory", "gpu_memory", "disk_space"))),
    "checkpoint": (
        Checkpoints,
        Fields(
            ("folder", "minutes", "steps"),
            {
                "folder": ("--checkpoint",),
                "minutes": ("--checkpoint-minutes",),
                "steps": ("--checkpoint-steps",),
            },
            always=False,
            make=_checkpoints,
        ),
    ),
}


def train(
    graph: GraphArg,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            help="Run made by outcrop prepare; training longer than its epochs replays them. Default: one is made, of "
            "all epochs or as many at a time as the disk has room for. --refresh: folder for what is prepared.",
        ),
    ] = None,
    *,
    model: ModelConfig,
    training: TrainConfig,
    sampling: SampleConfig | None,
    sample_epochs: Annotated[
        int | None,
        typer.Option(
            "--sample-epochs",
            help="Without --run: replay the batches of so many epochs (default: new ones in every epoch); with "
            "--refresh: epochs prepared at a time.",
        ),
    ] = None,
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh",
            help="Mode packed prepares the next epochs while these train, not all at once before. Other modes draw "
            "new batches anyway.",
        ),
    ] = False,
    refresh_rate: Annotated[
        str | None,
        typer.Option(
            "--refresh-rate",
            help="Disk bytes per second of preparing beside training, such as 200MiB.",
            metavar="SIZE",
        ),
    ] = None,
    loading: Mode | None,
    limits: Limits,
    checkpoint: Checkpoints | None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over even if the checkpoint folder holds one.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write spans of all stages to this JSONL file.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything, say what would be done, and end: nothing is prepared.",
        ),
    ] = False,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    leads = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun has started
    quiet = quiet or not leads
    batches = _batches(run, sample_epochs, refresh, refresh_rate)
    if not (dry_run or _prepares(loading, batches)):
        common.load_torch(quiet)
    from outcrop.api.train import dry_run as tell
    from outcrop.api.train import train as run_training

    if isinstance(loading, Online) and loading.row_reads == "gpu" and training.device == "cpu" and not quiet:
        printing.console.print("--io gpu on the CPU: kernels of the CPU read through the rings.")
    options: dict[str, Any] = {
        "model": model,
        "training": training,
        "sampling": None if sampling is None else replace(sampling, seed=training.seed),
        "loading": loading,
        "limits": limits,
        "run": batches,
        "checkpoint": None if checkpoint is None else replace(checkpoint, resume=not fresh),
    }
    if dry_run:
        from outcrop.runtime.progress import shown

        with common.progress_bars(quiet) as progress:
            found = tell(graph, options, shown(progress))
        common.write_json(json, found)
        if not quiet:
            printing.print_facts(_plan(found))
        return
    with common.progress_bars(quiet) as progress:
        on_choice = (lambda why: None) if quiet else common.say_choice
        watching = Observer(progress, trace, on_choice)
        report = run_training(graph, **options, observer=watching).as_dict()
    if leads:
        common.write_json(json, report)
    if not quiet:
        summarize(report)


def _batches(
    run: Path | None, sample_epochs: int | None, refresh: bool, rate: str | None
) -> Path | Replay | Refresh | None:
    """Returns where batches come from, of the four options that say it."""
    if refresh:
        return Refresh(1 if sample_epochs is None else sample_epochs, rate, run)
    return run if run is not None or sample_epochs is None else Replay(sample_epochs)


def _prepares(loading: Mode | None, batches: Path | Replay | Refresh | None) -> bool:
    """Tells whether preparing comes first, beside which torch is imported; several processes meet by torch before."""
    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    return alone and (loading is None or loading.prepares) and not isinstance(batches, Path)


def _plan(found: dict[str, Any]) -> dict[str, str]:
    """Returns what ``--dry-run`` prints: a line per question that a user has before a long training."""
    batches = found["batches_per_epoch"]
    distinct, epochs = found["distinct_epochs"], found["epochs"]
    lines = {
        "graph": f"{found['graph']}: {found['nodes']:,} nodes, {found['edges']:,} edges, "
        f"{format_bytes(found['feature_bytes'])} of features",
        "mode": found["mode"],
        "model": f"{found['model']}, {found['layers']} layers of width {found['hidden']}, on {found['device']}",
        "batches": f"{'' if batches is None else f'{batches:,} an epoch, '}of {found['batch_size']} nodes each, "
        f"{found['sampler']} sampling of {','.join(map(str, found['fanouts']))}",
        "epochs": f"{epochs}, new batches in every epoch"
        if distinct >= epochs
        else f"{epochs}, which replay {distinct}",
        "memory": "no limit" if found["memory"] is None else format_bytes(found["memory"]),
    }
    if found["gpu_memory"]:
        lines["GPU memory"] = format_bytes(found["gpu_memory"])
    if found["disk_space"] is not None:
        lines["disk space"] = format_bytes(found["disk_space"])
    if found["run"] is not None:
        lines["run"] = found["run"]
    if found["writes"] is not None:
        some = f"{found['epochs_at_a_time']} of {distinct} epochs"
        if found["batches_at_a_time"] is not None:
            some = f"{found['batches_at_a_time']:,} of {found['batches_per_epoch']:,} batches of an epoch"
        lines["prepared first"] = f"{found['writes']}, {some} at a time"
    lines["model file"] = _where_the_model_goes(found)
    chosen = found["chosen"]
    return lines | {f"chosen {n}" if len(chosen) > 1 else "chosen": line for n, line in enumerate(chosen, 1)}


def _where_the_model_goes(found: dict[str, Any]) -> str:
    if found["checkpoint"] is None:
        return "not kept: train with --checkpoint FOLDER to keep it"
    if found["next_epoch"] is None:
        return f"{found['checkpoint']}: trained to the end already, nothing is left to do"
    done = found["next_epoch"]
    return f"{found['checkpoint']}" + (f", from which training goes on after {done} epochs" if done else "")


def summarize(report: dict[str, Any]) -> None:
    """Prints a line per epoch, then the result."""
    rows = []
    prepared = any(e.get("prepare_seconds") for e in report["epochs"])
    for e in report["epochs"]:
        score = e["valid_accuracy"] if e.get("valid_metric") is None else e["valid_metric"]
        valid = "" if score is None else f"{score:.4f}"
        rows.append(
            [
                e["epoch"],
                f"{e['loss']:.4f}",
                valid,
                f"{e['seconds']:.2f} s",
                f"{e['load_seconds']:.2f} s",
                *([f"{e.get('prepare_seconds', 0.0):.2f} s"] if prepared else []),
                format_bytes(e["bytes_read"]),
            ]
        )
    # What drawing and writing this epoch's batches took, before it began or beside the epochs before it.
    preparing = ["preparing"] if prepared else []
    printing.print_table(["epoch", "loss", "valid", "time", "waiting", *preparing, "read"], rows)
    facts: dict[str, object] = {"mode": report["mode"], "best epoch": report["best_epoch"]}
    if report["resumed_from"] is not None:
        facts["training"] = _resumed(report)
    if report["stopped_early"]:
        facts["stopped early"] = "validation got no better for as long as --patience asks"
    facts["model"] = report["model_file"] or "not kept: train with --checkpoint FOLDER to keep it"
    if report["test_accuracy"] is not None:
        facts["test accuracy"] = f"{report['test_accuracy']:.4f}"
    if report["metric"] != "accuracy" and report["test_metric"] is not None:
        facts[f"test {report['metric'].replace('_', ' ')}"] = f"{report['test_metric']:.4f}"
    memory = report["budget"]["memory"]
    facts["peak memory"] = (
        f"{format_use(report['peak_host_bytes'], memory)} "
        f"(whole process {format_bytes(report['peak_process_bytes'])})"
    )
    trained, distinct = len(report["epochs"]), report["distinct_epochs"]
    facts["batches"] = (
        "new ones in every epoch"
        if distinct >= trained
        else f"of {distinct} epochs, replayed in all {trained}"
    )
    if report["cache_strategy"] != "auto":
        facts["cache"] = f"filled by the fixed strategy {report['cache_strategy']}"
    printing.print_facts(facts | _on_disk(report))


def _on_disk(report: dict[str, Any]) -> dict[str, object]:
    """Says what was written for the training: rows that are gone by now, or a run that stays."""
    facts: dict[str, object] = {}
    if report["spooled_epochs"]:
        some = f"{report['spooled_epochs']} epochs"
        if report["pools"] and "batches" in report["pools"][0]:
            some = "a part of an epoch"
        facts["rows"] = f"spooled to disk, {some} at a time"
    if report["pools"]:
        how = "beside training" if report["pools"][0]["beside"] else "in turn: both at once exceed the budget"
        waited = sum(pool["waited_seconds"] for pool in report["pools"])
        facts["pools"] = f"{len(report['pools'])}, prepared {how}; waited for {waited:.2f} s"
    if report["kept_folder"] is not None:
        size = format_bytes(disk_bytes(Path(report["kept_folder"])))
        facts["stays on disk"] = f"{report['kept_folder']} ({size}), for the next training; it may be deleted"
    return facts


def _resumed(report: dict[str, Any]) -> str:
    """Says what the checkpoint had, and what was trained now."""
    before = report["resumed_from"]
    if report["trained_epochs"]:
        return f"went on after {before} epochs of the checkpoint"
    return f"already trained {before} epochs: nothing was left to do; more with --epochs, anew with --fresh"
