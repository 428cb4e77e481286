"""Which tests are of the quick tier, and which share of a tier runs.

- ``@pytest.mark.quick_cases(n)``: of the cases of a test ``n`` are quick, evenly spread; the others are slow.
- ``pytest --share K/N`` (``make slow ARGS="--share 1/3"``): of all tests each N-th one, from the K-th on.
"""

from __future__ import annotations

import re

import pytest

QUICK_CASES = "quick_cases"


def mark_slow_cases(items: list[pytest.Item]) -> None:
    """Marks as slow what ``quick_cases`` leaves; cases that are slow or soak already are not counted."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if QUICK_CASES in marks and not marks & {"slow", "soak"}:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        mark = cases[0].get_closest_marker(QUICK_CASES)
        assert mark is not None
        (quick,) = mark.args
        kept = {len(cases) * number // quick for number in range(quick)}
        for number, item in enumerate(cases):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


def share_of(text: str) -> tuple[int, int]:
    """Reads "K/N", K from 1 to N.

    Raises:
        pytest.UsageError: It is something else.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"--share is {text!r}: it is K/N, K from 1 to N, as 2/3")
    return int(found[1]), int(found[2])


def in_share(items: list[pytest.Item], share: tuple[int, int]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Returns the tests of a share, and the others."""
    first, every = share
    others = items.copy()
    del others[first - 1 :: every]
    return items[first - 1 :: every], others
