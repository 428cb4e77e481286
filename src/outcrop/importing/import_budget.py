"""The smallest memory budget with which an import works, measured when one was refused.

A measurement is the import itself, with a budget that divides the memory as the given one would and grants more:
its peak is what the import needs. Nothing is written; features, and edges where they decide nothing, are not read. The
smallest budget is the one that needs no more than itself. Most of what an import takes is the same whatever the budget
is, so that two measurements mostly find it; with names of nodes, which are held beside the memory for sorting, a few
more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from outcrop.config import Size, parse_size
from outcrop.errors import OutcropError
from outcrop.importing import graph, triples
from outcrop.runtime import system
from outcrop.runtime.progress import Progress, shown
from outcrop.runtime.runtime import Runtime
from outcrop.runtime.smallest_budget import naming_least

_PASSES = 60  # measurements at the most; a handful is usual
_SHARE = 0.75  # of the memory that the machine has available, for a measurement


@contextmanager
def runtime_of_import(
    source: Any, config: graph.ImportConfig, memory: Size | None, progress: Progress | bool | None
) -> Iterator[Runtime]:
    """Opens a runtime to import ``source`` in; a refusal of ``memory`` names the smallest budget that works."""
    what = f"import {source}" if isinstance(source, str) else "import this graph"
    measure = partial(graph.measure_import, source, config=config)
    with _naming(what, memory, None if _is_read_once(source) else measure, progress) as runtime:
        yield runtime


@contextmanager
def runtime_of_triples(
    source: str, memory: Size | None, progress: Progress | bool | None
) -> Iterator[Runtime]:
    """Opens a runtime to import the triples of the folder ``source`` in, likewise."""
    measure = partial(triples.measure_import, source)
    with _naming(f"import triples:{source}", memory, measure, progress) as runtime:
        yield runtime


@contextmanager
def _naming(
    what: str,
    memory: Size | None,
    measure: Callable[..., None] | None,
    progress: Progress | bool | None,
) -> Iterator[Runtime]:
    limit = None if memory is None else parse_size(memory)

    def need(budget: int) -> int:
        assert measure is not None
        most = int(_SHARE * system.available_memory())
        with Runtime(budget, measure_bytes=most, progress=_MeasurementProgress(shown(progress))) as runtime:
            measure(runtime=runtime)
            return runtime.budget.peak_bytes

    def least() -> int | None:
        try:
            return None if limit is None or measure is None else smallest_of_need(limit, need)
        except (
            OutcropError,
            OSError,
        ):  # more than the machine has, or what the import itself would say later
            return None

    with naming_least(limit, least, what), Runtime(limit, progress=progress) as runtime:
        yield runtime


def _is_read_once(source: Any) -> bool:
    """Tells streams, which measuring would use up, from what can be read again."""
    parts = source.values() if isinstance(source, Mapping) else (source,)
    return any(type(part).__name__ == "RecordBatchReader" for part in parts)


def smallest_of_need(refused: int, need: Callable[[int], int]) -> int | None:
    """Finds the smallest budget above ``refused`` that is no less than its ``need``; None where ``refused`` is enough.

    ``need`` must not fall where the budget rises. Then whatever is less than the need of a budget that was too small is
    too small, too, and the need of a budget that was enough is enough: each measurement moves an end of what is left,
    and the next is where the line through the last two meets the budget.
    """
    needed = need(refused)
    if needed <= refused:
        return None
    points = [(refused, needed)]
    too_small, enough = needed - 1, 0  # 0: not known
    for _ in range(_PASSES):
        budget = _between(points, too_small, enough)
        needed = need(budget)
        points.append((budget, needed))
        if needed > budget:
            too_small = max(too_small, needed - 1)
        else:
            enough = max(needed, too_small + 1)
        if enough and enough - too_small <= 1:
            break
    fitting = [budget for budget, needed in points if needed <= budget]
    if enough and enough not in fitting and need(enough) <= enough:
        return enough
    return min(fitting, default=None)


def _between(points: list[tuple[int, int]], too_small: int, enough: int) -> int:
    """Says which budget to measure next: above ``too_small`` and, where that is known, below ``enough``."""
    guess = too_small + 1
    if len(points) > 1:
        (a, of_a), (b, of_b) = sorted(points[-2:])
        if b - a > of_b - of_a:
            guess = max(guess, b + (of_b - b) * (b - a) // ((b - a) - (of_b - of_a)))
        elif not enough:
            guess = 2 * guess
    if enough and guess >= enough:
        # The line says that nothing less is enough: a byte less shows whether that is so.
        twice = all(needed <= budget for budget, needed in points[-2:])
        guess = (too_small + enough) // 2 if twice else enough - 1
    return guess


class _MeasurementProgress:
    """Shows the progress of a measurement under names of its own."""

    def __init__(self, to: Progress):
        self._to = to

    def start(self, task: str, total: int, unit: str) -> None:
        self._to.start(self._name(task), total, unit)

    def advance(self, task: str, amount: int) -> None:
        self._to.advance(self._name(task), amount)

    def note(self, task: str, text: str) -> None:
        self._to.note(self._name(task), text)

    def finish(self, task: str) -> None:
        self._to.finish(self._name(task))

    @staticmethod
    def _name(task: str) -> str:
        return f"{task}, for the smallest budget"
