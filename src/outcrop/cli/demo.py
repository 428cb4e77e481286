"""``outcrop demo``: the main job on a graph it makes itself."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from outcrop.cli import common, printing
from outcrop.errors import OutcropError


def add_commands(app: typer.Typer) -> None:
    app.command(
        "demo",
        help="Make a graph, train it from disk in a tenth of its features' memory, and compare with "
        "training in memory. About two minutes on 2 cores.\n\nExample: outcrop demo",
    )(demo)


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", help="Keep graph and run here (default: a temporary folder, removed at the end)."
        ),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Size of the graph.")] = 1_000_000,
    epochs: Annotated[int, typer.Option("--epochs")] = 5,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.bench import demo as comparison
    from outcrop.bench.origin import origin

    with TemporaryDirectory(prefix="outcrop-demo-", dir=Path.cwd() if folder is None else None) as temporary:
        result = comparison.run(
            folder or Path(temporary),
            nodes=nodes,
            epochs=epochs,
            quiet=quiet,
            log=(lambda text: None) if quiet else printing.console.print,
        )
    common.write_json(json, {**origin("demo"), **result})
    if not quiet:
        printing.print_table(["", *result["columns"]], result["rows"], title=result["title"])
        printing.print_line(result["verdict"])
    if not result["identical_losses"]:
        raise OutcropError("the losses of the two runs differ: this is a bug, please report it")
