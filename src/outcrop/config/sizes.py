"""Sizes and counts as people type and read them."""

from __future__ import annotations

import re
from collections.abc import Callable

from outcrop.errors import ArgumentError

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}iB"] = 1024**_power
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[_letter] = 1024**_power

_SPELLINGS = {unit.lower(): count for unit, count in _UNITS.items()}
_PRINTED_UNITS = ("KiB", "MiB", "GiB", "TiB")
Size = int | str


LARGEST_COUNT = 2**31 - 1
"""Of what options count: batches, epochs, widths. More is a slip of the keys, and would overflow on the way."""


def out_of_range(**counts: int | None) -> list[str]:
    """Returns a sentence for each of ``counts`` that is not within 1 and ``LARGEST_COUNT``; None is left out."""
    given = {name: count for name, count in counts.items() if count is not None}
    low = [f"{name} {count} is below 1" for name, count in given.items() if count < 1]
    return low + [
        f"{name} {count} is above {LARGEST_COUNT}" for name, count in given.items() if count > LARGEST_COUNT
    ]


def parse_size(size: Size, *, feature_bytes: int | None = None) -> int:
    """Returns the bytes meant by ``size``: an int, ``"512MiB"``, ``"4GiB"``, or ``"3x"`` = 3 times ``feature_bytes``.

    Letters may be small or large: ``"64mb"`` is ``"64MB"``, 64,000,000 bytes, and ``"64m"`` is ``"64MiB"``.

    Raises:
        ArgumentError: Not understood, negative, or 2^63 bytes and more.
    """
    if isinstance(size, int):
        if size < 0:
            raise ArgumentError(f"size {size} is negative")
        return _checked_size(size, size)
    if not isinstance(size, str):
        raise ArgumentError(f"size {size!r} is not possible: give whole bytes, or text such as 4GiB")
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", size, re.ASCII)
    if match:
        number, unit = float(match[1]), match[2].lower()
        if unit == "x" and feature_bytes is not None:
            return _checked_size(size, number * feature_bytes)
        if unit in _SPELLINGS:
            return _checked_size(size, number * _SPELLINGS[unit])
    raise ArgumentError(
        f"size {size!r} is not understood; write for example 512MiB, 4GiB, or 3x for disk space"
    )


def _checked_size(size: Size, count: float) -> int:
    if count >= 2**63:
        raise ArgumentError(f"size {size!r} is 2^63 bytes or more, which no machine has")
    return int(count)


def format_bytes(count: float) -> str:
    """Writes ``count`` bytes for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_use(used: int, limit: int | None) -> str:
    """Writes ``used`` bytes of what was allowed, for people: ``11.5 MiB of 64.0 MiB``; ``11.5 MiB, no limit``."""
    return (
        f"{format_bytes(used)}, no limit"
        if limit is None
        else f"{format_bytes(used)} of {format_bytes(limit)}"
    )


def exact_bytes(count: int) -> str:
    """Writes ``count`` bytes for people who go on with the number: ``1572864 bytes (1.5 MiB)``; below 10000 ``512
    bytes``. The size in units is rounded down, so that it is no more than what there is."""
    return _with_units(count, lambda unit: 10 * count // _UNITS[unit])


def least_bytes(count: int) -> str:
    """Writes ``count`` bytes that are the least that works: as :func:`exact_bytes`, with the size rounded up, so that
    given as an option the size works as well as the number."""
    return _with_units(count, lambda unit: -(-10 * count // _UNITS[unit]))


def _with_units(count: int, tenths: Callable[[str], int]) -> str:
    """Writes ``count`` bytes, and from 10,000 on the ``tenths`` of a unit that leaves at most four digits."""
    if count < 10_000:
        return f"{count} bytes"
    unit = next((u for u in _PRINTED_UNITS[:-1] if tenths(u) < 10_240), _PRINTED_UNITS[-1])
    whole, tenth = divmod(tenths(unit), 10)
    return f"{count} bytes ({whole}.{tenth} {unit})"
