"""Numbers for people: scales with round ticks, and values with their units."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outcrop.config import format_bytes

_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_COUNTS = ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"), (1, ""))
_SECONDS = ((60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))


@dataclass(frozen=True)
class Unit:
    """Names a unit. ``factor``: how much one of it is."""

    factor: float
    name: str


def unit_for(kind: str, largest: float) -> Unit:
    """Returns the unit in which an axis up to ``largest`` reads best.

    Kinds: bytes, rate, seconds, count, share, number.
    """
    if kind == "share":
        return Unit(0.01, "%")
    if kind == "rate":
        unit = _pick(_BINARY, largest)
        return Unit(unit.factor, f"{unit.name}/s")
    tables = {"bytes": _BINARY, "seconds": _SECONDS, "count": _COUNTS}
    return _pick(tables[kind], largest) if kind in tables else Unit(1, "")


def _pick(table: tuple[tuple[float, str], ...], largest: float) -> Unit:
    # Minutes only from two of them on, thousands only from ten: small numbers read better as they are.
    for factor, name in table:
        least = {"min": 2, "thousand": 10}.get(name, 1)
        if largest >= least * factor:
            return Unit(factor, name)
    return Unit(*table[-1])


def format_value(kind: str, value: float | None) -> str:
    """Formats ``value`` with its unit, three digits."""
    if value is None or not math.isfinite(value):
        return "–"
    if kind == "bytes":
        return format_bytes(value)
    if kind == "rate":
        return format_bytes(value) + "/s"
    if kind == "share":
        return f"{100 * value:.1f} %" if 0 < value < 0.1 or 0.99 < value < 1 else f"{100 * value:.0f} %"
    if kind == "seconds":
        unit = unit_for(kind, abs(value))
        return f"{digits(value / unit.factor)} {unit.name}"
    if kind == "count":
        return f"{value:,.0f}"
    return digits(value)


def digits(value: float) -> str:
    """Formats three significant digits, without an exponent where that is short."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    size = math.floor(math.log10(abs(value)))
    if size >= 5 or size < -4:
        return f"{value:.3g}"
    return f"{value:.{max(0, 2 - size)}f}"


def ticks(low: float, high: float, most: int = 5, step_of: float = 1.0) -> list[float]:
    """Returns round values from ``low`` to at least ``high``; at most ``most`` + 1 of them. ``step_of``: least step."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low, low + 1]
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    step = max(step, step_of) if step_of != 1.0 else step
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def tick_text(value: float, step: float) -> str:
    """Formats a tick with as many decimals as the distance between ticks needs."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step < 1 else 0
    if step % 1:
        decimals = max(decimals, 1)
    if abs(step * 10**decimals - round(step * 10**decimals)) > 1e-6:
        decimals += 1
    return f"{value:,.{decimals}f}"
