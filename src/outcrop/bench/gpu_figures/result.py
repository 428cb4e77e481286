"""What the GPU benchmarks write: cases, bars and a table, of a fixed schema; kept case by case and gone on with."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outcrop.bench.gpu_figures.measure import Case, Setup
from outcrop.errors import DeviceError, FormatError, OutcropError

SCHEMA = 1
Cases = Iterator[tuple[str, Callable[[], Case]]]


@dataclass(frozen=True)
class Bar:
    """Names a figure that has to be reached. ``value``: None where it was not measured."""

    what: str
    value: float | None
    least: float | None = None
    most: float | None = None

    @property
    def passed(self) -> bool | None:
        if self.value is None:
            return None
        return (self.least is None or self.value >= self.least) and (
            self.most is None or self.value <= self.most
        )


def no_bars(cases: dict[str, Case]) -> list[Bar]:
    return []


@dataclass(frozen=True)
class Benchmark:
    """Measures a figure or table of a paper with Outcrop.

    Attributes:
        source: Where it is from.
        cases: Names of cases, each with what measures it.
        bars: What the figures have to reach.
    """

    source: str
    cases: Callable[[Setup], Cases]
    bars: Callable[[dict[str, Case]], list[Bar]] = no_bars


def run_cases(name: str, benchmark: Benchmark, setup: Setup, path: Path | None = None) -> dict[str, Any]:
    """Measures what ``path`` does not hold of the same sources and sizes, and writes it there after each case.

    Raises:
        DeviceError: Cases failed; the others were measured all the same, and are in ``path``.
    """
    identity = _identity(setup)
    done = _done(path, name, identity)
    failures: dict[str, str] = {}

    def result(*, complete: bool = False) -> dict[str, Any]:
        return _result(name, benchmark, setup, identity, done, failures, complete=complete)

    for case, measured in benchmark.cases(setup):
        if case in done:
            setup.log(f"{name}: {case}: already measured")
            continue
        setup.log(f"{name}: {case}")
        try:
            done[case] = measured()
        except (OutcropError, RuntimeError) as error:  # the latter: torch's
            failures[case] = f"{type(error).__name__}: {error}"
            setup.log(f"{name}: {case}: {failures[case]}")
        if path is not None:
            _write(path, result())
    if failures:
        first = next(iter(failures.items()))
        raise DeviceError(f"{len(failures)} cases of {name} failed, first {first[0]}: {first[1]}")
    return result(complete=True)


def _write(path: Path, result: dict[str, Any]) -> None:
    made = path.with_name(f"{path.name}.{os.getpid()}")
    made.write_text(json.dumps(result, indent=2))
    made.replace(path)


def _result(
    name: str,
    benchmark: Benchmark,
    setup: Setup,
    identity: str,
    done: dict[str, Case],
    failures: dict[str, str],
    *,
    complete: bool,
) -> dict[str, Any]:
    bars = benchmark.bars(done) if complete else []
    columns, rows = _table(done)
    result = {
        "experiment": "gpu",
        "schema": SCHEMA,
        "name": name,
        "source": benchmark.source,
        "identity": identity,
        "complete": complete,
        "device": _device(setup),
        "cases": {case: asdict(measured) for case, measured in done.items()},
        "failures": dict(failures),
        "bars": [asdict(bar) | {"passed": bar.passed} for bar in bars],
        "columns": columns,
        "rows": rows,
    }
    if bars:
        result["says"] = "; ".join(_say(bar) for bar in bars)
    return result


def _say(bar: Bar) -> str:
    wanted = f">= {bar.least:g}" if bar.least is not None else f"<= {bar.most:g}"
    ended = {True: "reached", False: "NOT reached", None: "not measured"}[bar.passed]
    value = "-" if bar.value is None else f"{bar.value:.3f}"
    return f"{bar.what}: {value}, wanted {wanted}: {ended}"


def _table(done: dict[str, Case]) -> tuple[list[str], list[list[str]]]:
    ways = list(dict.fromkeys(way for case in done.values() for way in case.seconds))
    figures = list(dict.fromkeys(figure for case in done.values() for figure in case.figures))

    def cell(value: float | None, unit: str = "") -> str:
        return "-" if value is None else f"{value:.4g}{unit}"

    rows = [
        [
            name,
            *(cell(case.seconds.get(way), " s") for way in ways),
            *(cell(case.figures.get(figure)) for figure in figures),
        ]
        for name, case in done.items()
    ]
    return ["case", *ways, *figures], rows


def _device(setup: Setup) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"type": setup.device.type, "memory_bytes": setup.gpu.memory(setup.index)[1]}
    if setup.device.type == "cuda":
        about = torch.cuda.get_device_properties(setup.index)
        found |= {"name": about.name, "compute_capability": f"{about.major}.{about.minor}"}
    return found | {"torch": torch.__version__, "cuda": torch.version.cuda}


def _identity(setup: Setup) -> str:
    """Identifies the package's sources, the sizes and the device: cases of another are not gone on with."""
    package = Path(__file__).parents[2]
    made = hashlib.sha256(repr((setup.sizes, setup.rounds, _device(setup))).encode())
    for path in sorted(p for p in package.rglob("*") if p.suffix in (".py", ".cu", ".h")):
        made.update(path.read_bytes())
    return made.hexdigest()[:16]


def _done(path: Path | None, name: str, identity: str) -> dict[str, Case]:
    """Returns cases of an interrupted run at ``path``; none where it is complete, of another kind, or no JSON."""
    try:
        result = json.loads(path.read_text()) if path is not None else {}
        validate(result)
    except (OSError, ValueError, FormatError):
        return {}
    if result["complete"] or (result["name"], result["identity"]) != (name, identity):
        return {}
    return {case: Case(**fields) for case, fields in result["cases"].items()}


_FIELDS: dict[str, type] = {
    "experiment": str,
    "schema": int,
    "name": str,
    "source": str,
    "identity": str,
    "complete": bool,
    "device": dict,
    "cases": dict,
    "failures": dict,  # case: error
    "bars": list,
    "columns": list,
    "rows": list,
}
_CASE = {"parameters", "seconds", "samples", "figures", "series"}
_BAR = {"what", "value", "least", "most", "passed"}


def validate(result: dict[str, Any]) -> None:
    """Raises FormatError, naming the field, where ``result`` is none of this schema; more fields are let pass."""
    for field, kind in _FIELDS.items():
        if not isinstance(result.get(field), kind):
            raise FormatError(f"field {field} of a GPU benchmark is {result.get(field)!r}")
    if result["schema"] != SCHEMA:
        raise FormatError(f"schema {result['schema']} of a GPU benchmark is not {SCHEMA}")
    for name, case in result["cases"].items():
        numbers = [
            *case.get("seconds", {}).values(),
            *(n for n in case.get("figures", {}).values() if n is not None),
        ]
        if set(case) != _CASE or not all(isinstance(n, int | float) for n in numbers):
            raise FormatError(f"case {name!r} of a GPU benchmark is {case!r}")
    for bar in result["bars"]:
        if set(bar) != _BAR or (bar["least"] is None) == (bar["most"] is None):
            raise FormatError(f"a bar of a GPU benchmark is {bar!r}")
