"""Makes a failing sequence short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .operations import Operation

Fails = Callable[[Sequence[Operation]], bool]


def shrunk(operations: Sequence[Operation], fails: Fails, tries: int = 200) -> list[Operation]:
    """Returns a sequence of fewer operations, with fewer disturbances, that ``fails`` still.

    Halves, quarters and so on down to single operations are left out as long as it fails without them (ddmin: Zeller
    and Hildebrandt 2002); then what disturbs each one that is left.

    Args:
        fails: Whether a sequence fails in the same way.
        tries: Sequences that are tried at the most.
    """
    left, found = tries, list(operations)

    def still(candidate: list[Operation]) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    size = max(len(found) // 2, 1)
    while size:
        first = 0
        while first < len(found):
            without = found[:first] + found[first + size :]
            if without and still(without):
                found = without
            else:
                first += size
        size //= 2
    for at, one in enumerate(found):
        plain = replace(Operation(one.name), artifact=one.artifact, how=one.how, place=one.place)
        candidate = [*found[:at], plain, *found[at + 1 :]]
        if one != plain and still(candidate):
            found = candidate
    return found
