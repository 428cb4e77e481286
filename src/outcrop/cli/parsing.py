"""Lists as people write them on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from outcrop.config import parse_size
from outcrop.errors import ArgumentError


def parse_fanouts(text: str) -> tuple[int, ...]:
    """Fanouts with commas between them.

    Raises:
        ArgumentError: They are no integers.
    """
    return _integers("fanouts", text, "10,15,20")


def parse_parts(text: str) -> tuple[int, ...]:
    """Reads numbers of parts with commas between them.

    Raises:
        ArgumentError: They are no integers.
    """
    return _integers("parts", text, "0,2")


def _integers(what: str, text: str, example: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"{what} {text!r} are not understood; write for example {example}") from None


def parse_fanouts_by_type(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Reads texts such as ``author writes paper=5,5``.

    Raises:
        ArgumentError: One is none.
    """
    found = {}
    for text in given:
        name, equals, fanouts = text.rpartition("=")
        if not equals or len(name.split()) != 3:
            raise ArgumentError(
                f"{text!r} names no edge type and its fanouts: write them as 'author writes paper=5,5'"
            )
        found[" ".join(name.split())] = parse_fanouts(fanouts)
    return found


def parse_weights(text: str) -> str | tuple[float, ...]:
    """Reads ``balanced``, or numbers with commas between them.

    Raises:
        ArgumentError: They are neither.
    """
    if text == "balanced":
        return text
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(
            f"class weights {text!r} are not understood; write balanced, or for example 1,1,4"
        ) from None


def parse_rates(text: str) -> tuple[float, float]:
    """Reads bytes per second in order, and random reads of 4 KiB per second.

    Raises:
        ArgumentError: They are not two numbers.
    """
    try:
        sequential, random = text.split(",")
        return parse_size(sequential), float(random)
    except ValueError:
        raise ArgumentError(
            f"disk rates {text!r} are not understood; write for example 1826915173,75041 or 2GB,80000"
        ) from None
