"""``outcrop train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outcrop.cli import common, printing
from outcrop.config import format_bytes
from outcrop.errors import ArgumentError
from outcrop.loading.modes import BASELINES, CHOICES, names_of, taking
from outcrop.store.history import disk_bytes

GraphArg = Annotated[Path, typer.Argument(help="Graph folder.", metavar="GRAPH")]


def add_commands(app: typer.Typer) -> None:
    app.command(
        "train",
        help="Train a model from disk.\n\nExample: outcrop train papers.oc --run papers.run --model sage "
        "--epochs 20 --checkpoint ckpt",
    )(common.with_config(train))


def train(
    graph: GraphArg,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            help="Run made by outcrop prepare; training longer than its epochs replays them. None: one is made, of "
            "all epochs or as many at a time as the disk has room for. --refresh: folder for pools.",
        ),
    ] = None,
    model: Annotated[str, typer.Option("--model", help="sage, gat or gcn.")] = "sage",
    hidden: Annotated[
        int | None, typer.Option("--hidden", help="Width of hidden layers (default 256; gat 4 x 32).")
    ] = None,
    heads: Annotated[int, typer.Option("--heads", help="Attention heads of gat.")] = 4,
    dropout: Annotated[float, typer.Option("--dropout")] = 0.0,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", "--lr", help="Step size of Adam.")
    ] = 3e-3,
    weight_decay: Annotated[float, typer.Option("--weight-decay")] = 0.0,
    epochs: Annotated[int, typer.Option("--epochs")] = 10,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            help=f"{names_of(CHOICES, notes=True)}; to compare with: {names_of(BASELINES, notes=True)}.",
        ),
    ] = None,
    cache_policy: Annotated[
        str, typer.Option("--cache-policy", help=f"Of mode {taking('cache_policy')}: sieve, lru or s3fifo.")
    ] = "sieve",
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", help=f"Of mode {taking('partitions')}: parts of the nodes (default: as fits)."
        ),
    ] = None,
    resident: Annotated[
        int | None,
        typer.Option(
            "--resident", help=f"Of mode {taking('resident')}: parts in memory at a time (default: as fit)."
        ),
    ] = None,
    fanouts: Annotated[
        str | None, typer.Option("--fanouts", help="Without --run: neighbours per hop.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Without --run.")] = None,
    sampler: common.Sampler = "neighbor",
    batch_dependency: common.BatchDependency = 1,
    layers: Annotated[
        int | None, typer.Option("--layers", help="As many as hops; with ShaDow any number.")
    ] = None,
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
            help="packed: prepare the next epochs while these train, not all at once before. Other modes draw new "
            "batches anyway.",
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
    memory: common.Memory = None,
    gpu_memory: common.GpuMemory = "0",
    disk_space: Annotated[
        str | None,
        typer.Option(
            "--disk-space",
            help="Limit for the files made: 20GiB, or 3x the features. Mode online: 0 writes none.",
            metavar="SIZE",
        ),
    ] = None,
    topology: common.Topology = "automatic",
    io: Annotated[
        str, typer.Option("--io", help=f"Of mode {taking('io')}, who asks for rows on disk: engine or gpu.")
    ] = "engine",
    stripes: Annotated[
        list[Path] | None,
        typer.Option(
            "--stripe",
            help="Folder made by outcrop stripe, once for each: --io gpu reads several disks at once.",
            metavar="FOLDER",
        ),
    ] = None,
    device: common.Device = "cpu",
    sample_on: Annotated[
        str,
        typer.Option("--sample-on", help=f"gpu: the device draws the batches of mode {taking('sample_on')}."),
    ] = "cpu",
    cache_strategy: Annotated[
        str,
        typer.Option(
            "--cache-strategy",
            help=f"Of mode {taking('cache_strategy')} on a GPU, what --gpu-memory and "
            "--memory are filled with: auto (what saves most), or "
            "as Hyperion compares: GTCF (GPU: topology first, CPU: features), GFCT, CTGF, CFGT, hybrid.",
        ),
    ] = "auto",
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Folder; training goes on from it.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over even if the checkpoint folder holds one.")
    ] = False,
    checkpoint_minutes: Annotated[
        float | None,
        typer.Option("--checkpoint-minutes", help="Also checkpoints within an epoch, so far apart."),
    ] = None,
    evaluate_every: Annotated[
        int, typer.Option("--evaluate-every", help="Epochs between scores of the validation nodes.")
    ] = 1,
    patience: Annotated[
        int | None,
        typer.Option("--patience", help="End after so many scores of validation without a better one."),
    ] = None,
    schedule: Annotated[
        str, typer.Option("--schedule", help="Learning rate over the epochs: constant, cosine or step.")
    ] = "constant",
    warmup_steps: Annotated[
        int,
        typer.Option("--warmup-steps", help="Updates over which the learning rate rises at the beginning."),
    ] = 0,
    step_epochs: Annotated[
        int, typer.Option("--step-epochs", help="Of schedule step: epochs between its steps.")
    ] = 10,
    step_factor: Annotated[
        float, typer.Option("--step-factor", help="Of schedule step: what the rate is multiplied by.")
    ] = 0.1,
    class_weights: Annotated[
        str | None,
        typer.Option(
            "--class-weights", help="balanced, or a number per class, such as 1,1,4.", metavar="W,W"
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", help="Of dense products: float32 or bfloat16.")
    ] = "float32",
    loss: Annotated[
        str | None, typer.Option("--loss", help="Of regression: mse (default) or l1; others have one loss.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            help="What the best epoch goes by: accuracy, macro_f1, auc; multi-label: micro_f1, macro_f1, accuracy, "
            "auc; regression: mae, rmse.",
        ),
    ] = None,
    seed: common.Seed = 0,
    trace_losses: Annotated[
        bool, typer.Option("--trace-losses", help="List every batch's loss in the JSON.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write spans of all stages to this JSONL file.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check everything, say what would be done, and end: nothing is prepared."
        ),
    ] = False,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    common.load_torch(quiet)
    from outcrop.api.train import dry_run as tell
    from outcrop.api.train import train as run_training

    if io == "gpu" and device == "cpu" and not quiet:
        printing.console.print("--io gpu on the CPU: the kernels' twin reads through the rings.")
    options: dict[str, Any] = {
        "run": run,
        "mode": mode,
        "model": model,
        "hidden": hidden,
        "heads": heads,
        "dropout": dropout,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "epochs": epochs,
        "fanouts": None if fanouts is None else common.parse_fanouts(fanouts),
        "batch_size": batch_size,
        "sampler": sampler,
        "dependency": batch_dependency,
        "layers": layers,
        "sample_epochs": sample_epochs,
        "topology": topology,
        "io": io,
        "stripes": stripes or (),
        "refresh": refresh,
        "refresh_rate": refresh_rate,
        "memory": memory,
        "gpu_memory": gpu_memory,
        "disk_space": disk_space,
        "device": device,
        "sample_on": sample_on,
        "cache_strategy": cache_strategy,
        "cache_policy": cache_policy,
        "partitions": partitions,
        "resident": resident,
        "checkpoint": checkpoint,
        "resume": not fresh,
        "checkpoint_minutes": checkpoint_minutes,
        "evaluate_every": evaluate_every,
        "patience": patience,
        "schedule": schedule,
        "warmup_steps": warmup_steps,
        "step_epochs": step_epochs,
        "step_factor": step_factor,
        "class_weights": _parse_weights(class_weights),
        "precision": precision,
        "loss": loss,
        "metric": metric,
        "seed": seed,
        "trace_losses": trace_losses,
        "trace_path": trace,
    }
    if dry_run:
        found = tell(graph, options)
        common.write_json(json, found)
        if not quiet:
            printing.print_facts(_plan(found))
        return
    with common.progress_bars(quiet) as progress:
        report = run_training(
            graph,
            **options,
            progress=progress,
            on_choice=(lambda why: None) if quiet else common.say_choice,
        ).as_dict()
    common.write_json(json, report)
    if not quiet:
        summarize(report)


def _parse_weights(text: str | None) -> str | tuple[float, ...] | None:
    """``balanced``, or numbers with commas between them."""
    if text is None or text == "balanced":
        return text
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(
            f"class weights {text!r} are not understood; write balanced, or for example 1,1,4"
        ) from None


def _plan(found: dict[str, Any]) -> dict[str, str]:
    """What ``--dry-run`` prints: a line per question that a user has before a long training."""
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
        lines["prepared first"] = (
            f"{found['writes']}, {found['epochs_at_a_time']} of {distinct} epochs at a time"
        )
    lines["model file"] = _where_the_model_goes(found)
    return lines | {f"chosen {n}": line for n, line in enumerate(found["chosen"], 1)}


def _where_the_model_goes(found: dict[str, Any]) -> str:
    if found["checkpoint"] is None:
        return "not kept: train with --checkpoint FOLDER to keep it"
    if found["next_epoch"] is None:
        return f"{found['checkpoint']}: trained to the end already, nothing is left to do"
    done = found["next_epoch"]
    return f"{found['checkpoint']}" + (f", from which training goes on after {done} epochs" if done else "")


def summarize(report: dict[str, Any]) -> None:
    """A line per epoch, then the result."""
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
        f"{format_bytes(report['peak_host_bytes'])} of "
        f"{'no limit' if memory is None else format_bytes(memory)} "
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
    """What was written for the training: rows that are gone by now, or a run that stays."""
    facts: dict[str, object] = {}
    if report["spooled_epochs"]:
        facts["rows"] = f"spooled to disk, {report['spooled_epochs']} epochs at a time"
    if report["pools"]:
        how = "beside training" if report["pools"][0]["beside"] else "in turn: both at once exceed the budget"
        waited = sum(pool["waited_seconds"] for pool in report["pools"])
        facts["pools"] = f"{len(report['pools'])}, prepared {how}; waited for {waited:.2f} s"
    if report["kept_folder"] is not None:
        size = format_bytes(disk_bytes(Path(report["kept_folder"])))
        facts["stays on disk"] = f"{report['kept_folder']} ({size}), for the next training; it may be deleted"
    return facts


def _resumed(report: dict[str, Any]) -> str:
    """What the checkpoint had, and what was trained now."""
    before = report["resumed_from"]
    if report["trained_epochs"]:
        return f"went on after {before} epochs of the checkpoint"
    return f"already trained {before} epochs: nothing was left to do; more with --epochs, anew with --fresh"
