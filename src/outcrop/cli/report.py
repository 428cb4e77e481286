"""``outcrop report``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outcrop.cli import common, printing
from outcrop.config import format_bytes
from outcrop.errors import FormatError, OutcropError
from outcrop.runtime.trace import to_perfetto

if TYPE_CHECKING:
    from outcrop.report.collect import RunFacts


def add_commands(app: typer.Typer) -> None:
    app.command(
        "report",
        help="Draw a run, or the JSON of a benchmark, as one self-contained HTML page.\n\n"
        "Example: outcrop report papers.run --out report.html",
    )(report)


def report(
    source: Annotated[
        Path,
        typer.Argument(
            help="Run made by outcrop prepare or embed prepare, FILE of bench --json, or a --trace "
            "FILE.jsonl, rewritten for ui.perfetto.dev.",
            metavar="RUN",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The page to write.", metavar="FILE")] = Path(
        "report.html"
    ),
    training: Annotated[
        int | None,
        typer.Option("--training", help="Which recorded training; default: the latest.", metavar="N"),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure", help="Measure the disk (half a second) where no rate is on record."
        ),
    ] = True,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.report import benches, collect, embedding, page, runs

    if source.suffix == ".jsonl":
        to_perfetto(source, out)
        common.write_json(json, {"out": str(out)})
        return
    if source.is_file():
        result = collect.read_bench(source)
        about, text = {"experiment": result["experiment"]}, benches.bench_page(result)
    elif (source / "buckets").is_dir():
        facts = embedding.collect(source)
        about, text = {"epochs": len(facts.records)}, embedding.page(facts)
    else:
        if not source.exists():
            raise FormatError(
                f"{source} does not exist: pass the folder of a run, or the JSON of a benchmark"
            )
        facts, measured = collect.collect_run(source, training), "right after the training"
        if facts.disk is None and facts.training is not None and measure:
            facts, measured = dataclasses.replace(facts, disk=_measured(facts)), "when this page was made"
        about, text = _about(facts), runs.run_page(facts, measured)
    page.write(out, text)
    common.write_json(json, {"out": str(out), "bytes": len(text.encode()), **about})
    if not quiet:
        if "verdict" in about:
            printing.print_line(str(about["verdict"]))
        printing.print_facts({"page": f"{out} ({format_bytes(len(text.encode()))})"})


def _about(facts: RunFacts) -> dict[str, object]:
    from outcrop.report.verdict import judge

    verdict = judge(facts.training, facts.disk)
    number = facts.training["number"] if facts.training else None
    return {"limit": verdict.limit, "verdict": verdict.sentence, "training": number}


def _measured(facts: RunFacts) -> dict[str, float] | None:
    """Rates of the disk under the run, None where they cannot be measured."""
    from outcrop.runtime.machine import read_rates
    from outcrop.store.graph import open_graph
    from outcrop.store.history import largest_file

    try:
        return read_rates(largest_file(facts.path, open_graph(facts.info.graph_path(facts.path))))
    except OutcropError:
        return None
