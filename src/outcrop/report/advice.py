"""The page or drawing of ``outcrop advise``: what an epoch takes where, and what money buys."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from outcrop.errors import ArgumentError
from outcrop.report import charts
from outcrop.report.benches import drawing
from outcrop.report.canvas import Canvas
from outcrop.report.charts import Bar, Series
from outcrop.report.page import Figure, Section, Table, render, write
from outcrop.report.units import digits, format_value

_COLORS = {"packed": "s-c0", "online": "s-c1"}
_ENDINGS = (".html", ".svg", ".png")


def check_plot(path: Path) -> None:
    """Raises ArgumentError for an ending that is none of .html, .svg and .png."""
    if path.suffix not in _ENDINGS:
        raise ArgumentError(f"{path} is no .html, .svg or .png file: give --out one of these endings")


def figures(result: dict[str, Any]) -> list[Figure]:
    """Draws epoch times by machine and mode; throughput per cost over the number of disks."""
    return [_times(result), *(_curve(result, name) for name in result["disk_curve"])]


def _times(result: dict[str, Any]) -> Figure:
    rows = result["predictions"]
    items = [
        Bar(
            f"{r['hardware']}, {r['mode']}",
            r["epoch_seconds"],
            _COLORS[r["mode"]],
            detail=f"bound by {r['bound']}",
        )
        for r in rows
    ]
    first = min(rows, key=lambda r: r["epoch_seconds"])
    table = Table(
        ["", "epoch", "bound by"],
        [
            [item.label, format_value("seconds", item.value), row["bound"]]
            for item, row in zip(items, rows, strict=True)
        ],
        words=(2,),
    )

    def draw(width: float) -> Canvas:
        return charts.bars(width, items, kind="seconds")

    title = (
        f"An epoch takes {format_value('seconds', first['epoch_seconds'])} at best ({first['hardware']}, "
        f"{first['mode']})"
    )
    return Figure("epoch-seconds", title, draw, "Predicted time of an epoch", table)


def _curve(result: dict[str, Any], name: str) -> Figure:
    curve = result["disk_curve"][name]
    points = curve["points"]
    xs = [p["disks"] for p in points]
    ys = [p["samples_per_s_and_unit"] for p in points]
    currency = result.get("currency", "")

    def draw(width: float) -> Canvas:
        series = [Series(curve["mode"], _COLORS[curve["mode"]], ys)]
        return charts.lines(
            width, xs, series, kind="number", x_kind="epoch", x_name="disks",
            y_name=f"samples/s per {currency}", best=curve["best_disks"],
        )  # fmt: skip

    table = Table(
        ["disks", "samples/s per " + currency, "epoch", "bound by"],
        [
            [
                str(p["disks"]),
                digits(p["samples_per_s_and_unit"]),
                format_value("seconds", p["epoch_seconds"]),
                p["bound"],
            ]
            for p in points
        ],
        bold=None if curve["best_disks"] is None else xs.index(curve["best_disks"]),
        words=(3,),
    )
    title = (
        f"{name}: {curve['best_disks']} disks do most for the money"
        if points
        else f"{name}: beyond the budget"
    )
    slug = "".join(c if c.isalnum() else "-" for c in name.lower())
    return Figure(f"disks-{slug}", title, draw, f"Throughput per cost of {name} by number of disks", table)


def page(result: dict[str, Any]) -> str:
    """Returns the HTML of a result of :func:`outcrop.advise`."""
    drawn = figures(result)
    sections = [Section("results", "Predictions", list(drawn))]
    if result["changes"]:
        changes = Table(
            ["", "change", "costs", "epoch then", "epochs/h more per 1000 " + result["currency"]],
            [
                [
                    c["hardware"], c["change"], f"{c['price']:,.2f}", format_value("seconds", c["epoch_seconds"]),
                    digits(c["epochs_per_hour_more_per_1000"]),
                ]
                for c in result["changes"]
            ],
            words=(1,),
        )  # fmt: skip
        sections.append(Section("changes", "One change", [("What one changed component gains", changes)]))
    sections.append(Section("assumed", "Assumed", list(result["assumptions"])))
    return render(
        "Advice",
        f"{result['graph']}, {result['model']}",
        f"{drawn[0].title}.",
        "",
        [],
        sections,
        "Made by outcrop advise: predictions of the cost model, not measurements.",
    )


def save(result: dict[str, Any], path: Path) -> None:
    """Writes a page (.html) or a drawing (.svg; .png with matplotlib, which the extra ``bench`` brings).

    Raises:
        ArgumentError: Another ending, or .png without matplotlib.
        IoError: The file cannot be written.
    """
    check_plot(path)
    if path.suffix == ".png":
        _png(result, path)
    else:
        write(path, page(result) if path.suffix == ".html" else drawing(figures(result), "outcrop advise"))


def _png(result: dict[str, Any], path: Path) -> None:
    try:
        canvas: Any = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg
        figure: Any = importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise ArgumentError(
            f"{path}: .png needs matplotlib (pip install 'outcrop[bench]'); .svg does not"
        ) from None
    curves = result["disk_curve"]
    drawing = figure(figsize=(8, 3 + 3 * bool(curves)), layout="constrained")
    axes = drawing.subplots(1 + bool(curves), 1, squeeze=False)[:, 0]
    rows = result["predictions"][::-1]
    axes[0].barh([f"{r['hardware']}, {r['mode']}" for r in rows], [r["epoch_seconds"] for r in rows])
    axes[0].set_xlabel("epoch (s)")
    for name, curve in curves.items():
        points = curve["points"]
        axes[1].plot(
            [p["disks"] for p in points], [p["samples_per_s_and_unit"] for p in points], "o-", label=name
        )
        axes[1].set_xlabel("disks")
        axes[1].set_ylabel(f"samples/s per {result['currency']}")
    if curves:
        axes[1].legend()
    canvas(drawing)
    drawing.savefig(path)
