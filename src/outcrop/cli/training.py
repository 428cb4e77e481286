"""``outcrop train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outcrop.cli import common, printing
from outcrop.config import format_bytes
from outcrop.errors import ArgumentError

GraphArg = Annotated[Path, typer.Argument(help="Graph folder.", metavar="GRAPH")]


def add_commands(app: typer.Typer) -> None:
    app.command(
        "train",
        help="Train a model from disk.\n\nExample: outcrop train papers.oc --run papers.run --model sage "
        "--epochs 20 --checkpoint ckpt",
    )(train)


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
            help="packed (default), online (nothing prepared), memory, memmap, ondisk, dynamic, belady (with --run), "
            "partition.",
        ),
    ] = None,
    cache_policy: Annotated[
        str, typer.Option("--cache-policy", help="Of mode dynamic: sieve, lru or s3fifo.")
    ] = "sieve",
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", help="Of mode partition: parts of the nodes (default: as fits)."),
    ] = None,
    resident: Annotated[
        int | None,
        typer.Option("--resident", help="Of mode partition: parts in memory at a time (default: as fit)."),
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
        str, typer.Option("--io", help="Of mode online, who asks for rows on disk: engine or gpu.")
    ] = "engine",
    device: common.Device = "cpu",
    sample_on: Annotated[
        str, typer.Option("--sample-on", help="gpu: the device draws the batches of mode online.")
    ] = "cpu",
    cache_strategy: Annotated[
        str,
        typer.Option(
            "--cache-strategy",
            help="Of mode online on a GPU, what --gpu-memory and --memory are filled with: auto (what saves most), or "
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
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    common.load_torch(quiet)
    from outcrop.api.train import train as run_training

    if io == "gpu" and device == "cpu" and not quiet:
        printing.console.print("--io gpu on the CPU: the kernels' twin reads through the rings.")
    with common.progress_bars(quiet) as progress:
        report = run_training(
            graph,
            run=run,
            mode=mode,
            model=model,
            hidden=hidden,
            heads=heads,
            dropout=dropout,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            epochs=epochs,
            fanouts=None if fanouts is None else common.parse_fanouts(fanouts),
            batch_size=batch_size,
            sampler=sampler,
            dependency=batch_dependency,
            layers=layers,
            sample_epochs=sample_epochs,
            topology=topology,
            io=io,
            refresh=refresh,
            refresh_rate=refresh_rate,
            memory=memory,
            gpu_memory=gpu_memory,
            disk_space=disk_space,
            device=device,
            sample_on=sample_on,
            cache_strategy=cache_strategy,
            cache_policy=cache_policy,
            partitions=partitions,
            resident=resident,
            checkpoint=checkpoint,
            resume=not fresh,
            checkpoint_minutes=checkpoint_minutes,
            evaluate_every=evaluate_every,
            patience=patience,
            schedule=schedule,
            warmup_steps=warmup_steps,
            step_epochs=step_epochs,
            step_factor=step_factor,
            class_weights=_parse_weights(class_weights),
            precision=precision,
            loss=loss,
            metric=metric,
            seed=seed,
            trace_losses=trace_losses,
            trace_path=trace,
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
    if report["model_file"] is not None:
        facts["model"] = report["model_file"]
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
    if report["spooled_epochs"]:
        facts["rows"] = f"spooled to disk, {report['spooled_epochs']} epochs at a time"
    if report["pools"]:
        how = "beside training" if report["pools"][0]["beside"] else "in turn: both at once exceed the budget"
        waited = sum(pool["waited_seconds"] for pool in report["pools"])
        facts["pools"] = f"{len(report['pools'])}, prepared {how}; waited for {waited:.2f} s"
    printing.print_facts(facts)


def _resumed(report: dict[str, Any]) -> str:
    """What the checkpoint had, and what was trained now."""
    before = report["resumed_from"]
    if report["trained_epochs"]:
        return f"went on after {before} epochs of the checkpoint"
    return f"already trained {before} epochs: nothing was left to do; more with --epochs, anew with --fresh"
