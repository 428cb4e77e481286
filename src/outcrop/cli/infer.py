"""``outcrop infer``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outcrop.cli import common, printing
from outcrop.cli.options import Fields, with_options
from outcrop.config import InferSampling, format_bytes, format_use
from outcrop.runtime.observer import Observer


def add_commands(app: typer.Typer) -> None:
    app.command(
        "infer",
        help="Write a trained model's predictions, for all nodes or some, out of core.\n\nExample: outcrop infer "
        "papers.oc --checkpoint ckpt --out predictions.parquet --output classes --memory 2GiB",
    )(
        common.with_config(
            with_options(
                infer, sampling=(InferSampling, Fields(("fanouts", "batch_size", "seed", "paranoid")))
            )
        )
    )


def infer(
    graph: Annotated[Path, typer.Argument(help="Graph folder.", metavar="GRAPH")],
    checkpoint: Annotated[
        str,
        typer.Option("--checkpoint", help="Folder made by outcrop train, or its URI.", metavar="FOLDER"),
    ],
    out: Annotated[Path, typer.Option("--out", help="File to write: .npy or .parquet.", metavar="FILE")],
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes",
            help="all; train, valid or test; a .npy file of node numbers, or a table with your ids in a column id.",
        ),
    ] = "all",
    node_type: Annotated[
        str | None,
        typer.Option(
            "--node-type",
            help="Type of the nodes, in a graph with types; with --output embeddings another than that of the labels.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", help="layerwise (all neighbours, exact) or sampled.")
    ] = "layerwise",
    output: Annotated[
        str,
        typer.Option("--output", help="logits, classes, probabilities, values (regression) or embeddings."),
    ] = "logits",
    *,
    sampling: InferSampling,
    any_graph: Annotated[
        bool, typer.Option("--any-graph", help="Also a graph that the model was not trained on.")
    ] = False,
    memory: common.Memory = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write spans of all stages to this JSONL file.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything, say what would be read and written, and end: nothing is computed.",
        ),
    ] = False,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    common.load_torch(quiet)
    from outcrop.api.infer import dry_run as tell
    from outcrop.api.infer import infer as run

    options: dict[str, Any] = {
        "model": checkpoint,
        "out": out,
        "nodes": nodes if node_type is None else (node_type, nodes),
        "method": method,
        "output": output,
        "sampling": sampling,
        "any_graph": any_graph,
        "memory": memory,
        "device": device,
    }
    if dry_run:
        found = tell(graph, options)
        common.write_json(json, found)
        if not quiet:
            _print_plan(found)
        return
    with common.progress_bars(quiet) as progress:
        report = run(graph, **options, observer=Observer(progress, trace)).as_dict()
    common.write_json(json, report)
    if not quiet:
        summarize(out, report)


def summarize(out: Path, report: dict[str, Any]) -> None:
    rows = [
        [
            " ".join([str(layer["layer"]), *([layer["node_type"]] if "node_type" in layer else [])]),
            f"columns, {layer['passes']} passes" if layer["passes"] else f"{layer['spans']} spans",
            layer["parts"],
            f"{layer['seconds']:.2f} s",
            format_bytes(layer["bytes_read"]),
            format_bytes(layer["bytes_written"]),
        ]
        for layer in report["layers"]
    ]
    if rows:
        printing.print_table(["layer", "by", "parts", "time", "read", "written"], rows)
    memory = report["budget"]["memory"]
    printing.print_facts(
        {
            "written": f"{out}: {report['rows']} rows of {report['output']} in {report['seconds']:.1f} s",
            **_metric(report["metrics"]),
            **_predicted(report),
            "peak memory": f"{format_use(report['peak_host_bytes'], memory)} "
            f"(whole process {format_bytes(report['peak_process_bytes'])})",
        }
    )


def _metric(metrics: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Returns the first metric of the kind of labels, of each split that was written whole."""
    found = ((split, next(iter(values.items()))) for split, values in metrics.items())
    listed = [(name, f"{split} {value:.4f}") for split, (name, value) in found]
    return {listed[0][0]: ", ".join(text for _, text in listed)} if listed else {}


def _print_plan(found: dict[str, Any]) -> None:
    """Prints what ``--dry-run`` found."""
    rows = [
        [
            " ".join([str(layer["layer"]), *([layer["node_type"]] if "node_type" in layer else [])]),
            f"columns, {layer['passes']} passes" if layer["passes"] else "spans",
            "depends on the graph" if layer["bytes_read"] is None else format_bytes(layer["bytes_read"]),
            format_bytes(layer["bytes_written"]),
        ]
        for layer in found["layers"]
    ]
    if rows:
        printing.print_table(["layer", "by", "read", "written"], rows)
    lines = {
        "graph": f"{found['graph']}: {found['nodes']:,} nodes, {found['edges']:,} edges",
        "writes": f"{found['out']}: {found['rows']:,} rows of {found['columns']} {found['output']}",
        "method": found["method"],
        "memory": format_bytes(found["memory"]),
    }
    if found["batches"] is not None:
        lines["batches"] = f"{found['batches']:,}"
    else:
        read = "" if found["bytes_read"] is None else f"{format_bytes(found['bytes_read'])} read, "
        lines["all layers"] = f"{read}{format_bytes(found['bytes_written'])} written"
        lines["disk space"] = f"{format_bytes(found['disk_bytes'])} at a time, {found['out']} with them"
    printing.print_facts(lines)


def _predicted(report: dict[str, Any]) -> dict[str, str]:
    """Returns what was predicted before the first layer, where it was."""
    written, read = report["predicted_bytes_written"], report["predicted_bytes_read"]
    if written is None:
        return {}
    known = "" if read is None else f"{format_bytes(read)} read, "
    return {"predicted": f"{known}{format_bytes(written)} written by all layers"}
