"""``outcrop sample``, ``plan``, ``pack`` and ``prepare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outcrop.cli import common, printing
from outcrop.cli.options import Fields, with_options
from outcrop.config import IoConfig, Limits, PackConfig, SampleConfig, format_bytes, parse_size
from outcrop.runtime.observer import Observer

if TYPE_CHECKING:
    from outcrop.preparation.prepare import PrepareReport

GraphArg = Annotated[
    Path, typer.Argument(help="Graph folder, made by outcrop import or generate.", metavar="GRAPH")
]
RunArg = Annotated[Path, typer.Argument(help="Folder of the run to make.", metavar="RUN")]
Epochs = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        help="Epochs to prepare, each with new batches; longer training replays them. Default: 10, as training has, "
        "or fewer where the disk has no room; a run that is there keeps its number.",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a run of other options in this folder.")
]
_OBJECTS = {
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
                "degrees",
                "edge_rows",
                "edge_weights",
                "edge_ids",
                "task",
                "negatives",
                "negative_mode",
                "filter_negatives",
                "seed",
            ),
            {"fanouts_by_type": ("--fanout",)},
        ),
    ),
    "limits": (Limits, Fields(("memory", "gpu_memory", "disk_space", "processes"))),
    "packing": (
        PackConfig,
        Fields(("layout", "rates", "parts", "workers", "ray", "own_disks"), {"rates": ("--disk-rates",)}),
    ),
}
_EXAMPLE = "Example: outcrop {} papers.oc papers.run --fanouts 10,15,20 --memory 4GiB"


def add_commands(app: typer.Typer) -> None:
    for name, stop, help in (
        ("prepare", None, "Sample, plan and pack: all that training from disk needs. Resumable."),
        ("sample", "sample", "Draw the mini-batches ahead of training."),
        ("plan", "plan", "Decide what lives where, and say what it costs."),
        ("pack", None, "Write the mini-batches' rows; samples and plans first where needed."),
    ):
        app.command(name, help=help + "\n\n" + _EXAMPLE.format(name))(
            common.with_config(with_options(_command(stop), **_OBJECTS))
        )
    app.command("prepare-pool", hidden=True)(prepare_pool)


def prepare_pool(
    run: RunArg,
    parent: Annotated[int, typer.Option("--parent", help="Process to die with.")],
    memory: common.Memory = None,
    rate: Annotated[str | None, typer.Option("--rate", help="Disk bytes per second.")] = None,
) -> None:
    """Prepares the run that RUN describes: what ``outcrop train --refresh`` starts in the background."""
    from outcrop.runtime.parent import serve

    serve(parent)
    from outcrop.preparation.prepare import prepare_described

    io = IoConfig(rate_bytes_per_second=0 if rate is None else parse_size(rate))
    with common.runtime_for(memory, True, io=io) as runtime:
        prepare_described(run, runtime)


def _command(stop_after: str | None) -> Any:
    def command(
        graph: GraphArg,
        run: RunArg,
        *,
        sampling: SampleConfig,
        epochs: Epochs = None,
        limits: Limits,
        packing: PackConfig,
        overwrite: Overwrite = False,
        topology: common.Topology = "automatic",
        json: common.Json = None,
        quiet: common.Quiet = False,
    ) -> None:
        from outcrop.api.prepare import PrepareOptions, prepare_with_report

        asked = PrepareOptions(
            graph,
            run,
            sampling=sampling,
            limits=limits,
            packing=packing,
            epochs=epochs,
            topology=topology,
            overwrite=overwrite,
        )
        with common.progress_bars(quiet) as progress:
            observer = Observer(progress, on_choice=None if quiet else common.say_choice)
            report = prepare_with_report(asked, observer=observer, stop_after=stop_after)
        seconds = _load_seconds(graph, report)
        common.write_json(json, {**report.as_dict(), "predicted_load_seconds": seconds})
        if not quiet:
            summarize(report, seconds)
            if stop_after == "plan" and report.memory is not None:
                print_memory(report.memory)

    return command


def _load_seconds(graph: Path, report: PrepareReport) -> float | None:
    """Says how long loading an epoch takes at the rate at which the graph's disk reads now; None without a new plan."""
    from outcrop.runtime.machine import sequential_rate
    from outcrop.store.graph import open_graph

    if "plan" not in report.stage_seconds:
        return None
    rate = sequential_rate(open_graph(graph).measured_file)
    return report.predicted["epochs"]["train"][0]["bytes_read"] / rate if rate else None


def summarize(report: PrepareReport, load_seconds: float | None) -> None:
    """Prints what was done, and what an epoch will read."""
    done = (
        ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.stage_seconds.items())
        or "nothing to do"
    )
    facts: dict[str, object] = {"done": done}
    if report.skipped:
        facts["already there"] = ", ".join(report.skipped)
    facts["epochs"] = f"{report.epochs}, each with batches of its own; longer training replays them"
    facts["read, written"] = f"{format_bytes(report.bytes_read)}, {format_bytes(report.bytes_written)}"
    if report.cluster is not None:
        rows, ids, spilled = (
            format_bytes(report.cluster[f"{what}_bytes{sent}"])
            for what, sent in (("rows", "_sent"), ("ids", "_sent"), ("spilled", ""))
        )
        facts["between machines"] = (
            f"{rows} of rows and {ids} of ids, of {report.cluster['machines']}; spilled {spilled}"
        )
    if report.machines is not None:
        facts["parts"] = "; ".join(
            f"node rank {rank} ({address}): {', '.join(map(str, parts)) or 'none'}"
            for rank, (address, parts) in enumerate(report.machines["parts"].items())
        )
    facts["run on disk"] = format_bytes(report.disk_bytes)
    if report.disk_rates:
        rates = [round(rate) for rate in report.disk_rates.values()]
        facts["disk rates"] = f"{rates[0]},{rates[1]} (with --disk-rates the same files again)"
    if report.predicted:
        epochs = report.predicted["epochs"]["train"]
        rows = epochs[0]["rows_by_level"]
        total = max(sum(rows.values()), 1)
        facts["cached"] = ", ".join(
            f"{level} {format_bytes(count)}" for level, count in report.predicted["cache_bytes"].items()
        )
        facts["rows of an epoch"] = ", ".join(
            f"{level} {100 * n / total:.0f} %" for level, n in rows.items() if n
        )
        facts["an epoch reads"] = (
            f"{format_bytes(epochs[0]['bytes_read'])} for {format_bytes(epochs[0]['bytes_needed'])} "
            f"needed ({report.predicted['read_amplification']:.3f}x)"
        )
        if load_seconds is not None:
            facts["loading an epoch"] = f"about {load_seconds:.2f} s at this disk's rate"
        if report.disk_bytes and not report.stage_seconds.get("pack"):
            facts["the run will take"] = format_bytes(report.predicted["disk_bytes"])
    printing.print_facts(facts)


def print_memory(memory: dict[str, Any]) -> None:
    """Prints what each part of loading has of the memory budget."""
    rows = [(part["name"], format_bytes(part["bytes"]), part["rule"]) for part in memory["parts"]]
    title = f"{memory['activity']}: {format_bytes(memory['limit_bytes'])} of memory"
    printing.print_table(("part", "bytes", "how much"), rows, title=title)
