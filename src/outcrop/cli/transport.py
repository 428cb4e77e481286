"""``outcrop fetch`` and ``upload``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outcrop.cli import common, printing
from outcrop.config import format_bytes

if TYPE_CHECKING:
    from outcrop.store.transport import TransportReport

Uri = Annotated[
    str,
    typer.Argument(help="s3://BUCKET/PATH, gs://, abfs://, hdfs:// or file:///PATH.", metavar="URI"),
]


def add_commands(app: typer.Typer) -> None:
    app.command(
        "fetch",
        help="Copy a graph or a run from an object store, checked; goes on where it was interrupted.\n\n"
        "Example: outcrop fetch s3://bucket/my.run my.run --graph my.oc",
    )(common.with_config(fetch))
    app.command(
        "upload",
        help="Copy a graph or a run to an object store, checked; goes on where it was interrupted.\n\n"
        "Example: outcrop upload my.oc s3://bucket/my.oc",
    )(common.with_config(upload))


def fetch(
    uri: Uri,
    out: Annotated[Path, typer.Argument(help="Folder to make.", metavar="OUT")],
    graph: Annotated[
        Path | None,
        typer.Option("--graph", help="Of a run: its graph here. Default: where the run says, seen from OUT."),
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(
            "--parts",
            help="Of a run in parts: those that are wanted here, such as 0,2, beside those that are there. "
            "Default: all.",
        ),
    ] = None,
    leave_features: Annotated[
        bool,
        typer.Option(
            "--leave-features",
            help="Of a graph: leave its features in the store, where outcrop prepare reads them, in large ranges.",
        ),
    ] = False,
    overwrite: common.Overwrite = False,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.cli.parsing import parse_parts
    from outcrop.store.transport import FetchRequest
    from outcrop.store.transport import fetch as copy

    with common.progress_bars(quiet) as progress:
        wanted = None if parts is None else parse_parts(parts)
        request = FetchRequest(out, graph, wanted, leave_features, overwrite)
        report = copy(uri, request, progress)
    _summarize(report, json, quiet)


def upload(
    folder: Annotated[Path, typer.Argument(help="A graph or a run.", metavar="FOLDER")],
    uri: Uri,
    overwrite: common.Overwrite = False,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.store.transport import upload as copy

    with common.progress_bars(quiet) as progress:
        report = copy(folder, uri, overwrite=overwrite, progress=progress)
    _summarize(report, json, quiet)


def _summarize(report: TransportReport, json: Path | None, quiet: bool) -> None:
    common.write_json(json, report.as_dict())
    if quiet:
        return
    facts: dict[str, object] = {"copied": f"{format_bytes(report.bytes)}, {report.files} files"}
    if report.resumed_bytes:
        facts["copied before"] = format_bytes(report.resumed_bytes)
    if report.skipped:
        facts["there already"] = f"{report.skipped} artifacts"
    printing.print_facts({**facts, "took": f"{report.seconds:.1f} s"})
