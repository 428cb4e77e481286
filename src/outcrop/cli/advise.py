"""``outcrop advise``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from outcrop.advisor.market import Market
from outcrop.cli import common, printing
from outcrop.cli.options import Fields, with_options
from outcrop.config import ClusterConfig, Limits, ModelConfig, Replay, SampleConfig, format_bytes
from outcrop.errors import ArgumentError

# What the columns of the prediction mean; docs/advise.md says the same.
MEANINGS = {
    "epoch": "seconds of one pass over the training nodes, validation and checkpoints not counted",
    "bound": "which of the next four takes longest: the epoch waits for it",
    "disk": "milliseconds in which the disk reads rows for a mini-batch",
    "bus": "milliseconds in which its rows go from the host to the GPU",
    "host": "milliseconds in which the processor draws it and puts its rows together",
    "compute": "milliseconds in which the model computes with it, forward and backward",
    "read": "bytes that an epoch reads from the disk; ~ where they are estimated, not counted",
}


def add_commands(app: typer.Typer) -> None:
    app.command(
        "advise",
        help="Predict epochs here and on other machines, and what to buy.\n\n"
        "Machines and prices are TOML files (docs/advise.md shows one of each); those of the Hyperion paper are built "
        "in and go by the names machine-a, machine-a-980pro, machine-b, machine-c and prices; "
        "workstation is a usual one.\n\n"
        "With --describe it needs no graph: sizes are in a TOML file; those of MAG240M and of IGB go by the names "
        "mag240m and igbh-full.\n\n"
        "Example: outcrop advise papers.oc --memory 4GiB --machine server.toml --prices shop.toml --out advice.html",
    )(common.with_config(with_options(advise, **_OBJECTS)))


_OBJECTS = {
    "model": (ModelConfig, Fields(("name", "hidden", "heads", "no_rows"), {"name": ("--model",)})),
    "sampling": (
        SampleConfig,
        Fields(
            ("fanouts", "fanouts_by_type", "node_type", "batch_size", "sampler", "seed"),
            {"fanouts_by_type": ("--fanout",)},
            always=False,
        ),
    ),
    "limits": (Limits, Fields(("memory", "gpu_memory", "disk_space"))),
    "cluster": (
        ClusterConfig,
        Fields(
            ("most_machines", "network", "processes", "accumulate", "latency", "shared_rate"),
            {"most_machines": ("--machines",)},
            always=False,
        ),
    ),
    "market": (Market, Fields(("machines", "prices", "budget"), {"machines": ("--machine",)})),
}


def advise(
    graph: Annotated[
        Path | None, typer.Argument(help="Graph folder, or a run made of one.", metavar="GRAPH")
    ] = None,
    *,
    model: ModelConfig,
    sampling: SampleConfig | None,
    sample_epochs: Annotated[
        int | None,
        typer.Option("--sample-epochs", help="Epochs with batches of their own. Default: one."),
    ] = None,
    limits: Limits,
    device: common.Device = "cpu",
    market: Market,
    cluster: ClusterConfig | None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="Made by outcrop doctor --save.", metavar="FILE")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Draw it: .html, .svg or .png.", metavar="FILE")
    ] = None,
    described: Annotated[
        str | None,
        typer.Option("--describe", help="Sizes of a graph that is not there yet, TOML.", metavar="FILE"),
    ] = None,
    scale: Annotated[
        float, typer.Option("--scale", help="Of a described graph: share that is generated to count on.")
    ] = 0.01,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.api.advise import advise as run
    from outcrop.report import advice
    from outcrop.store import run as runs

    if described is not None:
        other = graph is not None or out is not None or sample_epochs is not None or cluster is not None
        if other or len(market.machines) > 1:
            raise ArgumentError(
                "--describe takes no GRAPH, --out, --sample-epochs or --machines, and one --machine at the most"
            )
        plan_described(described, model, sampling, limits, market, scale, json, quiet)
        return
    if graph is None:
        raise ArgumentError("name a GRAPH, or describe one that is not there yet with --describe FILE")
    if out is not None:
        advice.check_plot(out)
    is_run = (graph / runs.RUN_FILE).is_file()
    replayed = None if sample_epochs is None else Replay(sample_epochs)
    result = run(
        runs.read(graph).graph_path(graph) if is_run else graph,
        model=model,
        sampling=sampling,
        limits=limits,
        run=graph if is_run else replayed,
        market=market,
        device=device,
        profile=profile,
        cluster=cluster,
    )
    common.write_json(json, result)
    if out is not None:
        advice.save(result, out)
    if not quiet:
        summarize(result)


def plan_described(
    described: str,
    model: ModelConfig,
    sampling: SampleConfig | None,
    limits: Limits,
    market: Market,
    scale: float,
    json: Path | None,
    quiet: bool,
) -> None:
    """Says what training a described graph takes."""
    from outcrop.advisor.described import read_description, with_sampling
    from outcrop.api.describe import describe

    description = read_description(described)
    if sampling is not None:
        description = with_sampling(description, sampling)
    usual = ModelConfig().name
    result = describe(
        description,
        model=replace(model, name="rsage") if model.name == usual else model,
        limits=limits,
        hardware=market.machines[0] if market.machines else None,
        scale=scale,
    )
    common.write_json(json, result)
    if not quiet:
        summarize_described(result)


def summarize_described(result: dict[str, Any]) -> None:
    """Prints what a described graph takes: a row for each way, and what was assumed."""
    say, graph, setting = printing.print_line, result["graph"], result["setting"]
    disk = setting["disk_bytes"]
    say(
        f"{result['described']}: {graph['nodes']:,} nodes, {graph['edges']:,} edges with reverses; rows "
        f"{format_bytes(graph['feature_bytes'])}, neighbor lists {format_bytes(graph['topology_bytes'])}"
    )
    rows = ", ".join(f"{count:,} of {name}" for name, count in result["batch"]["rows"].items())
    say(
        f"an epoch has {result['batches']:,} batches; one wants about {result['batch']['nodes']:,} nodes, and rows "
        f"{rows}: {format_bytes(result['batch']['bytes'])}"
    )
    say(
        f"on {setting['hardware']}: {format_bytes(setting['memory'])} of memory may be held"
        + ("" if disk is None else f", {format_bytes(disk)} of disk may be taken")
    )
    table = [
        [
            way["mode"],
            "yes" if way["fits"] else "no",
            format_bytes(way["memory"]),
            format_bytes(way["disk_bytes"]),
            _long(way["prepare_seconds"]),
            _long(way["epoch_seconds"]),
            way["bound"],
            format_bytes(way["bytes_read"]),
            f"{way['cached_share']:.0%}",
        ]
        for way in result["ways"]
    ]
    columns = ["mode", "fits", "memory", "on disk", "prepare", "epoch", "bound", "read", "cached"]
    printing.print_table(
        columns, table, "Estimated; read: of an epoch; cached: share of the rows that it wants"
    )
    for way in result["ways"]:
        if way["run_bytes"]:
            say(
                f"{way['mode']}: {format_bytes(way['run_bytes'])} of what is on disk is prepared, the rest is the graph"
            )
        if way["why"]:
            say(f"{way['mode']}: {way['why']}")
    for line in result["assumptions"]:
        say(f"- assumed: {line}")


def _long(seconds: float) -> str:
    return _seconds(seconds) if seconds < 120 else f"{seconds / 60:.0f} min"


def summarize(result: dict[str, Any]) -> None:
    """Prints the tables and sentences of a result."""
    parts = ("disk_seconds", "bus_seconds", "host_seconds", "compute_seconds")
    rows = [
        [
            r["hardware"],
            r["mode"],
            _seconds(r["epoch_seconds"]),
            r["bound"],
            *(_milliseconds(r[part]) for part in parts),
            ("" if r["exact"] else "~") + format_bytes(r["bytes_read"]),
        ]
        for r in result["predictions"]
    ]
    columns = ["machine", "mode", "epoch", "bound", "disk", "bus", "host", "compute", "read"]
    printing.print_table(columns, rows, "Predicted; disk to compute: ms of a mini-batch; ~: about")
    printing.print_facts(MEANINGS)
    priced = [
        [r["hardware"], r["mode"], f"{r['cost']:,.0f}", f"{r['samples_per_s_and_unit']:.3g}"]
        for r in result["predictions"]
        if r["cost"] is not None
    ]
    if priced:
        money = result["currency"]
        printing.print_table(["machine", "mode", money, f"samples/s per {money}"], priced)
    say = printing.print_line
    fresh = result["fresh"]
    at_once = f"{fresh['epochs']} {'epoch' if fresh['epochs'] == 1 else 'epochs'} at a time"
    ways = [
        f"{_seconds(fresh['spooled'])} an epoch if rows are first written in the order in which they are used, for "
        f"{at_once} ({_seconds(fresh['preparing'])} of it for writing)"
    ]
    ways += (
        [f"{_seconds(fresh['online'])} if they are read as batches are drawn"] if "online" in fresh else []
    )
    way = "train --mode online" if "online" in fresh else "train"  # which may not fit the memory
    say(f"new batches in every epoch ({way}): {', '.join(ways)}")
    for name, curve in result["disk_curve"].items():
        if curve["best_disks"] is None:
            say(f"{name}: no number of disks is within the budget")
        else:
            disks = f"{curve['best_disks']} disk{'s' * (curve['best_disks'] != 1)}"
            say(f"{name}: with {disks} a unit of money trains on most nodes (mode {curve['mode']})")
    for change in result["changes"][:1]:
        better = change["epochs_per_hour_more_per_1000"]
        say(
            f"the best single change: {change['hardware']}, {change['change']} for {change['price']:,.2f} "
            f"{result['currency']}: an epoch takes {_seconds(change['epoch_seconds'])}"
            if better > 0
            else "no single change makes an epoch faster"
        )
    for line in _by_file(result):
        say(line)
    if "cluster" in result:
        _print_cluster(result["cluster"], result.get("currency"))
    for line in result["assumptions"]:
        say(f"- assumed: {line}")


def _print_cluster(found: dict[str, Any], currency: str | None) -> None:
    """Prints what several machines take."""
    priced = any(row["cost_of_an_epoch"] is not None for row in found["rows"])
    table = [
        [
            str(row["machines"]),
            str(row["processes"]),
            str(row["accumulate"]),
            _seconds(row["epoch_seconds"]),
            row["bound"],
            _seconds(row["exchange_seconds"]),
            format_bytes(row["bytes_sent"]),
            _long(row["prepare_seconds"]),
            *([f"{row['cost_of_an_epoch']:.2g}"] if priced else []),
        ]
        for row in found["rows"]
    ]
    columns = ["machines", "processes", "step", "epoch", "bound", "exchange", "sent", "prepare"]
    title = (
        f"Several of {found['hardware']}, mode packed; sent: by a machine in an epoch; step: batches of one"
    )
    printing.print_table([*columns, *([f"{currency} an epoch"] if priced else [])], table, title)
    printing.print_line(
        f"gradients are {format_bytes(found['gradient_bytes'])}; prepare: {found['packed_epochs']} epochs, batches "
        "drawn by one machine. Scores, checkpoints and starting are not counted"
    )


def _by_file(result: dict[str, Any]) -> list[str]:
    """Says what each mode takes of the rows of each type, of a graph with types."""
    lines = []
    for mode, counts in result.get("by_file", {}).items():
        for rows, of in zip(result["row_files"], counts, strict=True):
            levels = ", ".join(f"{level} {count}" for level, count in of["rows_by_level"].items() if count)
            lines.append(
                f"rows of {rows['of']} an epoch, {mode}: {levels or 'none'}; {format_bytes(of['bytes_read'])} read"
            )
    return lines


def _milliseconds(seconds: float) -> str:
    """Writes three digits, and never more than five characters below 100 s."""
    return f"{1e3 * seconds:.3g}" if seconds < 0.9995 else f"{1e3 * seconds:.0f}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"
