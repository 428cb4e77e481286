"""The page, or the plain drawing, of a benchmark's JSON.

Benchmarks differ in what they measure and not in shape: somewhere in the result there are groups of cases (a mode, a
stage, a setting) with the same numbers. Groups are found by that shape, so a new experiment needs nothing here: cases
named by words become bars, cases along a number become lines.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from outcrop.errors import ArgumentError, FormatError
from outcrop.report import charts
from outcrop.report.canvas import Canvas
from outcrop.report.charts import Bar, Series
from outcrop.report.page import WIDE, Figure, Section, Table, render
from outcrop.report.units import digits, format_value

# What is worth a chart, in order, with what it is called; other numbers are in the tables.
_FIELDS = {
    "seconds": "time",
    "epoch_seconds": "epoch time",
    "load_seconds": "waiting for data",
    "search_seconds": "time of the search",
    "read_amplification": "bytes read / bytes needed",
    "amplification": "bytes read / bytes needed",
    "bytes_read": "bytes read",
    "disk_bytes": "bytes on disk",
    "peak_host_bytes": "memory held",
    "delivered_bytes_per_s": "rows delivered",
    "of_limit": "share of the limit",
    "test_accuracy": "test accuracy",
    "accuracy": "accuracy",
    "ours": "Outcrop",
    "fio": "fio",
}
_MAX_CHARTS = 6
_LEFT_OUT = ("setting", "machine", "prepare", "revision", "experiment")


@dataclass(frozen=True)
class Group:
    """Holds cases with the same numbers. ``along``: the field of numbers that they lie along, None = named by words."""

    name: str
    cases: dict[str, dict[str, float]]
    along: str | None = None

    @property
    def fields(self) -> list[str]:
        found: dict[str, None] = {}
        for case in self.cases.values():
            found.update(dict.fromkeys(case))
        ranked = sorted(found, key=lambda f: list(_FIELDS).index(f) if f in _FIELDS else len(_FIELDS))
        return [f for f in ranked if f != self.along]


def kind_of(field: str) -> str:
    """Returns what a number is, by its name."""
    if field.endswith("bytes_per_s"):
        return "rate"
    if field.endswith("seconds"):
        return "seconds"
    if "bytes" in field:
        return "bytes"
    if "accuracy" in field or field in ("of_limit", "cap", "share"):
        return "share"
    return "count" if re.search(r"ops|rows|reads|nodes|edges|count", field) else "number"


def groups_of(result: dict[str, Any]) -> list[Group]:
    """Returns the groups of cases in a result, the outermost first."""
    groups: list[Group] = []
    for key, value in result.items():
        if key in _LEFT_OUT or not isinstance(value, (dict, list)):
            continue
        if isinstance(value, list) and value and all(isinstance(case, dict) for case in value):
            group = _listed(key, value)
        elif isinstance(value, dict):
            group = _named(key, value)
        else:
            continue
        if group is not None:
            groups.append(group)
        elif isinstance(value, dict):
            groups += groups_of(value)
    if not groups and (group := _named("cases", result)) is not None:
        groups.append(group)
    return groups


def _numbers(case: dict[str, Any]) -> dict[str, float]:
    return {k: v for k, v in case.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def _named(name: str, value: dict[str, Any]) -> Group | None:
    cases = {k: _numbers(v) for k, v in value.items() if isinstance(v, dict) and k not in _LEFT_OUT}
    cases = {k: v for k, v in cases.items() if v}
    if cases:
        return Group(name, cases)
    numbers = _numbers(value)
    if len(numbers) > 1 and kind_of(name) == "seconds":  # such as stage_seconds
        return Group(name, {k: {"seconds": v} for k, v in numbers.items()})
    return None


def _listed(name: str, value: list[dict[str, Any]]) -> Group | None:
    first = next(iter(value[0]), "")
    numeric = [first in _numbers(case) for case in value]
    if all(numeric) and len({case[first] for case in value}) == len(value):
        return Group(name, {digits(case[first]): _numbers(case) for case in value}, along=first)
    cases = {}
    for i, case in enumerate(value):
        words = " ".join(str(v) for v in case.values() if isinstance(v, str))
        label = words or str(i + 1)
        cases[label if label not in cases else f"{label} ({i + 1})"] = _numbers(case)
    return Group(name, cases) if any(cases.values()) else None


def figures(result: dict[str, Any]) -> list[Figure]:
    """Draws charts of a benchmark's result.

    Raises:
        FormatError: It holds nothing that can be drawn.
    """
    drawn = []
    for group in groups_of(result):
        shown = [f for f in group.fields if f in _FIELDS] or group.fields[:1]
        for field in shown[:_MAX_CHARTS]:
            cases = {k: v[field] for k, v in group.cases.items() if field in v}
            if cases and any(cases.values()):
                drawn.append(_figure(group, field, cases))
    if not drawn:
        raise FormatError(f"the result of experiment {result.get('experiment')!r} holds no numbers to draw")
    return drawn


def _figure(group: Group, field: str, cases: dict[str, float]) -> Figure:
    kind, words = kind_of(field), _FIELDS.get(field, field.replace("_", " "))
    low, high = min(cases, key=lambda k: cases[k]), max(cases, key=lambda k: cases[k])
    title = f"{words[:1].upper()}{words[1:]}: {format_value(kind, cases[low])} ({low})"
    if len(cases) > 1:
        title += f" to {format_value(kind, cases[high])} ({high})"
        title += f", {digits(cases[high] / cases[low])} times as much" if cases[low] > 0 else ""
    name = re.sub(r"[^a-z0-9]+", "-", f"{group.name}-{field}".lower()).strip("-")
    table = Table([group.along or group.name, words], [[k, format_value(kind, v)] for k, v in cases.items()])
    if group.along is not None and len(cases) > 2:
        along = group.along
        pairs = sorted((group.cases[k][along], v) for k, v in cases.items())

        def draw(width: float) -> Canvas:
            return charts.lines(
                width, [x for x, _ in pairs], [Series(words, "s-c0", [y for _, y in pairs])], kind=kind,
                x_kind=kind_of(along), x_name=along.replace("_", " "), y_name=words,
            )  # fmt: skip
    else:
        items = [Bar(k, v, "s-c0" if k in ("packed", "outcrop") else "s-c7") for k, v in cases.items()]
        if all(item.color == "s-c7" for item in items):
            items = [Bar(k, v) for k, v in cases.items()]

        def draw(width: float) -> Canvas:
            return charts.bars(width, items, kind=kind)

    return Figure(name, title, draw, f"{words[:1].upper()}{words[1:]} by {group.along or group.name}", table)


def bench_page(result: dict[str, Any]) -> str:
    """Returns the HTML of a benchmark's JSON."""
    drawn = figures(result)
    machine, setting = result.get("machine", {}), result.get("setting", {})
    about = [[k, _plain(v)] for k, v in {**setting, **machine, "revision": result.get("revision")}.items()]
    groups = groups_of(result)
    tables: list[Any] = [(f"Every number of {group.name}", _table(group)) for group in groups]
    sections = [
        Section("results", "Results", list(drawn)),
        Section("numbers", "All numbers", tables),
        Section(
            "machine",
            "Setting and machine",
            [("What was run, and where", Table(["", ""], about, wraps=True))],
        ),
    ]
    subtitle = ", ".join(
        str(v)
        for v in (machine.get("cpu"), f"{machine.get('cores', '?')} cores", result.get("revision"))
        if v
    )
    first = drawn[0].title
    return render(
        f"Benchmark {result['experiment']}",
        subtitle,
        f"{first}.",
        "",
        [],
        sections,
        "Made from the JSON of outcrop bench.",
    )


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items())
    return str(value)


def _table(group: Group) -> Table:
    columns = [group.along or group.name, *(f.replace("_", " ") for f in group.fields)]
    rows = [
        [name, *(format_value(kind_of(f), case.get(f)) for f in group.fields)]
        for name, case in group.cases.items()
    ]
    return Table(columns, rows)


def drawing(made: Sequence[Figure], title: str) -> str:
    """Draws the figures below each other as one SVG file, with its colours written out, for papers and programs."""
    parts, y = [], 34.0
    for figure in made:
        canvas = figure.draw(WIDE)
        inner = canvas.svg(figure.title, figure.description, figure.name)
        lines = textwrap.wrap(figure.title, 92)
        for line in lines:
            parts.append(f'<text x="0" y="{y + 8:g}" class="title">{escape(line)}</text>')
            y += 19
        parts.append(inner.replace("<svg ", f'<svg y="{y:g}" ', 1))
        y += canvas.height + 26
    style = _style() + ".title{font-weight:600;font-size:14px}.head{font-weight:700;font-size:16px}"
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="-12 -6 {WIDE + 24} {y + 6:g}" '
        f'width="{WIDE + 24}" height="{y + 6:g}" role="img"><title>{escape(title)}</title><style>{style}</style>'
        f'<rect x="-12" y="-6" width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="0" y="14" class="head">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def _style() -> str:
    """Returns the rules of the page's style sheet for drawings, with the light colours in place of the variables."""
    css = (Path(__file__).parent / "page.css").read_text()
    colors = dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6});", css.split("}", 1)[0]))
    rules = re.findall(r"^(?:svg \.?[a-z]+|\.s-)[^{]*\{[^}]*\}", css, re.MULTILINE)
    text = "".join(rule.replace("svg ", "") for rule in rules if ":hover" not in rule)
    return re.sub(r"var\(--([a-z0-9]+)\)", lambda m: colors[m[1]], text)


def plot(result: dict[str, Any], path: Path) -> str:
    """Writes what ``--plot path`` writes, by its ending.

    Raises:
        ArgumentError: Neither .svg nor .html.
    """
    check_plot(path)
    if path.suffix == ".svg":
        return drawing(figures(result), f"outcrop bench {result['experiment']}")
    return bench_page(result)


def check_plot(path: Path) -> None:
    if path.suffix not in (".svg", ".html"):
        raise ArgumentError(
            f"{path} names neither an .svg nor an .html file: give --plot one of these endings"
        )
