"""``outcrop derive``."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from outcrop.cli import common, printing
from outcrop.config import format_bytes


def add_commands(app: typer.Typer) -> None:
    app.command(
        "derive",
        help="Give the nodes of a type that has no features the mean over those of their neighbors, stored in the "
        "graph.\n\nExample: outcrop derive mag.oc author --mean paper --by rev_writes --memory 32GiB",
    )(derive)


def derive(
    path: Annotated[Path, typer.Argument(help="The graph.", metavar="GRAPH")],
    node_type: Annotated[str, typer.Argument(help="Type whose nodes get features.", metavar="TYPE")],
    mean: Annotated[str, typer.Option("--mean", help="Type whose features are averaged.", metavar="TYPE")],
    by: Annotated[
        str,
        typer.Option(
            "--by", help="Relation of the edges that lead from these nodes to those.", metavar="RELATION"
        ),
    ],
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", help="float32, float16 or bfloat16; without it that of the features, or float32."
        ),
    ] = None,
    memory: common.Memory = None,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    common.load_torch(quiet)
    from outcrop.api.derive import derived

    started = time.monotonic()
    with common.progress_bars(quiet) as progress:
        report = derived(path, (mean, by, node_type), dtype, memory, progress)
    seconds = time.monotonic() - started
    common.write_json(json, {**asdict(report), "seconds": seconds})
    if not quiet:
        rows = f"{report.rows} x {report.columns} {report.dtype}"
        printing.print_facts(
            {
                report.array: rows if report.made else f"{rows}, there already",
                "written": format_bytes(report.bytes_written),
                "peak memory": format_bytes(report.peak_host_bytes),
                "took": f"{seconds:.1f} s",
            }
        )
