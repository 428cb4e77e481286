"""Where memory goes: one table of named parts for each activity; whoever divides a budget asks it.

A part is a fraction of something: of the limit, of what is free when it is taken, or of another part. Its bytes are
``base * numerator // denominator`` between ``least`` and ``most``, a multiple of ``unit``: integers, so that a plan is
the same on every machine. A part without a fraction takes what the data need. :func:`divide` goes through an activity's
parts in the order in which they are taken and says what each of them has at most.

The tables of activities are in :mod:`outcrop.runtime.memory_tables`; docs/memory.md shows them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

from outcrop.config import exact_bytes, format_bytes, least_bytes
from outcrop.errors import ArgumentError, BudgetError

_LARGEST_BYTES = 1 << 62
_NEEDED = "what the data need"


class Of(Enum):
    """Names what a part is a fraction of; ``it``: the part that it lies within."""

    LIMIT = "the limit"
    FREE = "what is free"  # when it is taken: what the parts before it have left
    PART = "it"
    REST = "what is left of it"


@dataclass(frozen=True)
class Part:
    """Describes a named part of a budget.

    Attributes:
        name: Unique within an activity.
        purpose: A sentence that says what it holds.
        fraction: Fraction of ``of``; 0: what the data need, or ``least``.
        of: What the fraction is taken of.
        least, most: Bytes that it never falls below or exceeds, whatever the fraction gives; None: no such bound.
        unit: Bytes that it is a whole multiple of.
        copies: Buffers of this size that are held at a time.
        within: The name of the part that it lies in; empty: it lies in none.
    """

    name: str
    purpose: str
    fraction: Fraction
    of: Of = Of.FREE
    least: int = 0
    most: int | None = None
    unit: int = 1
    copies: int = 1
    within: str = ""

    def __post_init__(self) -> None:
        if (self.of in (Of.PART, Of.REST)) != bool(self.within):
            raise ArgumentError(
                f"part {self.name!r} is a fraction of {self.of.value}, within {self.within!r}"
            )

    def bytes_of(self, base: int, least: int = 0) -> int:
        """Counts the bytes of one copy where ``base`` bytes are divided, and at least ``least``.

        Equals ``max(min(max(int(base * fraction), self.least), self.most) // unit * unit, least)``.
        """
        found = max(base * self.fraction.numerator // self.fraction.denominator, self.least)
        if self.most is not None:
            found = min(found, self.most)
        return max(found // self.unit * self.unit, least)

    @property
    def rule(self) -> str:
        """Says how large it is, in words: ``1/32 of the limit, 64.0 KiB to 16.0 MiB``."""
        if not self.fraction:
            return format_bytes(self.least) if self.least else _NEEDED
        text = f"{self.fraction} of {self.of.value}" if self.fraction != 1 else self.of.value
        if self.least and self.most is not None:
            text += f", {format_bytes(self.least)} to {format_bytes(self.most)}"
        elif self.least:
            text += f", at least {format_bytes(self.least)}"
        elif self.most is not None:
            text += f", at most {format_bytes(self.most)}"
        return f"{self.copies} times {text}" if self.copies > 1 else text


@dataclass(frozen=True)
class Activity:
    """Names what a budget is divided for: its parts in the order in which they are taken, inner parts after those
    around.
    """

    name: str
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for part in self.parts:
            if part.name in seen or (part.within and part.within not in seen):
                raise ArgumentError(
                    f"{self.name}: part {part.name!r} is there twice, or before {part.within!r}"
                )
            seen.add(part.name)


@dataclass(frozen=True)
class PlannedPart:
    """Says how many ``bytes`` ``part`` has at most, all copies together; ``needed``: the data decided it."""

    part: Part
    bytes: int
    needed: bool = False

    @property
    def rule(self) -> str:
        """Says how large it is, in words."""
        return _NEEDED if self.needed else self.part.rule


@dataclass(frozen=True)
class MemoryPlan:
    """Says what each part of ``activity`` has at most of ``limit`` bytes."""

    activity: str
    limit: int
    parts: tuple[PlannedPart, ...]

    def __getitem__(self, part: Part | str) -> int:
        """Returns the bytes of the part of this name."""
        name = part if isinstance(part, str) else part.name
        return next(planned.bytes for planned in self.parts if planned.part.name == name)

    @property
    def left_bytes(self) -> int:
        """Counts the bytes that no part has."""
        return self.limit - sum(planned.bytes for planned in self.parts if not planned.part.within)

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return {
            "activity": self.activity,
            "limit_bytes": self.limit,
            "parts": [
                {"name": p.part.name, "bytes": p.bytes, "within": p.part.within, "rule": p.rule}
                for p in self.parts
            ],
            "left_bytes": self.left_bytes,
        }

    def lines(self) -> Iterator[tuple[str, str]]:
        """Returns (name, bytes and rule) of each part, inner parts indented, then what is left."""
        for planned in self.parts:
            indent = "  " if planned.part.within else ""
            yield indent + planned.part.name, f"{format_bytes(planned.bytes)} ({planned.rule})"
        if self.left_bytes:
            yield "left", format_bytes(self.left_bytes)

    def __str__(self) -> str:
        rows = list(self.lines())
        width = max(len(name) for name, _ in rows)
        body = "".join(f"\n  {name:{width}}  {text}" for name, text in rows)
        return f"{self.activity}: {format_bytes(self.limit)}{body}"


def divide(activity: Activity, limit: int, needs: Mapping[str, int] | None = None) -> MemoryPlan:
    """Says what each part of ``activity`` has at most of ``limit`` bytes.

    Args:
        needs: Bytes of parts whose size the data decide, by name, in place of their fractions.

    Raises:
        BudgetError: A part that needs so much, or its ``least``, does not fit; names the smallest limit that works.
        ArgumentError: ``needs`` names a part that is not there, or has too little for what lies within it.
    """
    needs = needs or {}
    unknown = set(needs) - {part.name for part in activity.parts}
    if unknown:
        raise ArgumentError(f"{activity.name} has no part {', '.join(sorted(unknown))}")
    parts, missing = _divided(activity, limit, needs)
    if missing is None:
        return MemoryPlan(activity.name, limit, parts)
    # What is left rises with the limit, but for a few bytes of rounding; so bisection, from the limit upwards.
    smallest = (
        limit
        + 1
        + bisect_left(
            range(limit + 1, _LARGEST_BYTES),
            True,
            key=lambda total: _divided(activity, total, needs)[1] is None,
        )
    )
    if smallest == _LARGEST_BYTES:
        raise ArgumentError(
            f"{activity.name} has no room for {missing.name}, whatever the limit: {dict(needs)}"
        )
    raise BudgetError(
        f"{activity.name}: {exact_bytes(limit)} have no room for {missing.name}; the smallest memory budget that has "
        f"is {least_bytes(smallest)}"
    )


def _divided(
    activity: Activity, limit: int, needs: Mapping[str, int]
) -> tuple[tuple[PlannedPart, ...], Part | None]:
    """Returns the parts, up to the first that does not fit, and that one."""
    whole: dict[str, int] = {"": limit}
    left: dict[str, int] = {"": limit}
    found = []
    for part in activity.parts:
        around, rest = whole[part.within], left[part.within]
        base = around if part.of in (Of.LIMIT, Of.PART) else rest
        needed = needs.get(part.name)
        wanted = part.copies * part.bytes_of(base) if needed is None else needed
        if wanted > rest:
            if needed is not None or part.copies * part.least > rest:
                return tuple(found), part
            wanted = rest
        whole[part.name] = left[part.name] = wanted
        left[part.within] -= wanted
        found.append(PlannedPart(part, wanted, needed is not None))
    return tuple(found), None
