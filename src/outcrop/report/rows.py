"""Rows that a training wanted, by the row file that they are of: what they are called, how large they are, a figure."""

from __future__ import annotations

from typing import Any

from outcrop.report import charts
from outcrop.report.charts import Bar
from outcrop.report.page import Figure, Table
from outcrop.report.units import format_value
from outcrop.report.verdict import steady

LEVELS = {
    "host": "host cache", "device": "device cache", "disk_cache": "disk cache", "packed": "packed",
    "disk": "disk, row by row", "map": "memory map",
}  # fmt: skip

Record = dict[str, Any]


def row_bytes(training: Record) -> int:
    """Returns the mean bytes of a row of a graph with one row file."""
    graph = training["graph"]
    return graph["feature_bytes"] // max(graph["nodes"], 1)


def _mean_by_file(training: Record) -> list[dict[str, float]]:
    """Returns the rows of each row file by level, means of the steady epochs; none of a graph with one row file."""
    epochs = [
        e["rows_by_file"] for e in training["epochs"][1:] or training["epochs"] if e.get("rows_by_file")
    ]
    return [
        {
            level: sum(e[k].get(level, 0) for e in epochs) / len(epochs)
            for level in {v for e in epochs for v in e[k]}
        }
        for k in range(len(epochs[0]) if epochs else 0)
    ]


def _files_of(training: Record, count: int) -> list[Record]:
    """Describes the row files of a graph that has several; records from before do not name them."""
    known = training["graph"].get("row_files", [])
    return known if len(known) == count else [{"of": f"row file {k}", "row_bytes": 0} for k in range(count)]


def level_bytes(training: Record, levels: list[str]) -> dict[str, float]:
    """Returns the bytes of the rows of a steady epoch that come from each level."""
    by_file, facts = _mean_by_file(training), steady(training)
    if not by_file:
        return {level: facts.rows[level] / facts.epochs * row_bytes(training) for level in levels}
    widths = [of["row_bytes"] for of in _files_of(training, len(by_file))]
    return {
        level: sum(of.get(level, 0) * width for of, width in zip(by_file, widths, strict=True))
        for level in levels
    }


def row_sizes(training: Record) -> str:
    """Says in a sentence how large rows are."""
    by_file = _mean_by_file(training)
    if not by_file:
        return f"A row has {row_bytes(training)} bytes."
    files = ", ".join(f"{of['of']} {of['row_bytes']}" for of in _files_of(training, len(by_file)))
    return f"Bytes of a row: {files}."


def rows_by_file(training: Record) -> Figure | None:
    """Draws the rows of each type that has some, of a graph with several."""
    by_file = _mean_by_file(training)
    if not by_file:
        return None
    files = _files_of(training, len(by_file))
    bars = [
        Bar(of["of"], sum(levels.values()) * of["row_bytes"], f"s-c{k % 2}", detail=_of_levels(levels))
        for k, (of, levels) in enumerate(zip(files, by_file, strict=True))
    ]
    total = sum(bar.value for bar in bars)
    most = max(bars, key=lambda bar: bar.value)
    table = [
        [
            of["of"],
            LEVELS.get(level, level),
            format_value("count", rows),
            format_value("bytes", rows * of["row_bytes"]),
        ]
        for of, levels in zip(files, by_file, strict=True)
        for level, rows in sorted(levels.items())
        if rows
    ]
    return Figure(
        "rows-by-type",
        f"{format_value('share', most.value / total if total else 0.0)} of the bytes of rows are of {most.label}",
        lambda width: charts.bars(width, bars, kind="bytes"),
        "Bytes of rows that an epoch wants, by the type of nodes or edges that they are of",
        Table(["rows of", "level", "rows", "bytes"], table),
        "The mean of the steady epochs.",
    )


def _of_levels(levels: dict[str, float]) -> str:
    parts = (
        f"{format_value('count', rows)} {LEVELS.get(v, v)}" for v, rows in sorted(levels.items()) if rows
    )
    return ", ".join(parts) or "none"
