"""The smallest memory budget that works, searched for when one was refused, and named in the refusal.

What fits is found out by trying, to the byte: a rehearsal (:class:`outcrop.runtime.runtime.Rehearsal`) takes
milliseconds. ``preparation/needs.py`` says how a budget is tried for preparing, ``loading/needs.py`` for loading.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outcrop.config import exact_bytes, least_bytes
from outcrop.errors import BudgetError
from outcrop.runtime.pages import PAGE_BYTES

_LEAST, _LARGEST, _STEPS = 1 << 14, 1 << 48, 16  # budgets that are tried, and how many in twice one
_ROUNDED = 64  # a share of a budget is a 64th of it or more
_PAGES = 4  # that shares of a budget become larger by at the same size of it, at most
SMALLER_BATCHES = "a lower --batch-size or --fanouts usually needs less"


def smallest(refused: int, fits: Callable[[int], bool]) -> int | None:
    """Finds the smallest budget above ``refused`` that ``fits``; None where there is none.

    A sixteenth more at a time is tried until one fits, because what is needed depends on how a budget is divided and
    may rise with it; then the bytes below it, by bisection. The sizes that are tried are the same whatever was refused,
    and so is what is found, unless a smaller budget than ``refused`` fits.
    """
    low, high = 0, _LEAST
    while high <= refused or not fits(high):
        low, high = high, high + max(high // _STEPS, 1)
        if high > _LARGEST:
            return None
    found = _least_between(low, high, 1, fits)
    return found if found > refused else _least_between(refused, high, refused + 1, fits)


def _least_between(low: int, high: int, least: int, fits: Callable[[int], bool]) -> int:
    """Returns the smallest budget from ``least`` on that fits, as ``high`` does and ``low`` does not."""
    while True:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        # Shares of a budget are whole bytes, or whole pages: where one more of them is taken too little may be left,
        # and a budget that is smaller by as much be enough.
        less = [*range(high - _ROUNDED, high), *range(high - _PAGES * PAGE_BYTES, high, PAGE_BYTES)]
        fitting = next((one for one in less if one >= least and fits(one)), None)
        if fitting is None:
            return high
        low, high = max(fitting - PAGE_BYTES, least - 1), fitting


@contextmanager
def _collecting_new_objects_alone() -> Iterator[None]:
    """Within the block garbage collection leaves what was there before alone: with torch loaded a full collection
    takes long, and rehearsals of mode ``online`` make one for each budget that is tried."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def naming_smallest(
    limit: int | None,
    needs: Callable[[], Callable[[int], bool]],
    what: str,
    advice: str | Callable[[], str] = SMALLER_BATCHES,
) -> Iterator[None]:
    """Refusals of a memory budget of ``limit`` bytes within the block name the smallest budget that is none.

    That may take as long as drawing the batches does; interrupted, the refusal comes as it was.

    Args:
        needs: Makes what says whether a budget fits; called where one was refused.
        what: What the budget cannot do, as in ``"prepare the run"``.
        advice: What helps besides a larger budget, where anything does; a function is called where one was refused.
    """

    def least() -> int | None:
        fits = needs()
        with _collecting_new_objects_alone():
            return None if limit is None or fits(limit) else smallest(limit, fits)

    with naming_least(limit, least, what, advice):
        yield


@contextmanager
def naming_least(
    limit: int | None, least: Callable[[], int | None], what: str, advice: str | Callable[[], str] = ""
) -> Iterator[None]:
    """Refusals of a memory budget of ``limit`` bytes within the block name what ``least`` finds, the smallest budget
    that is none; None: something else was refused. Interrupted, the refusal comes as it was.

    Args:
        what: What the budget cannot do.
        advice: What helps besides a larger budget, where anything does; a function is called where one was refused.
    """
    try:
        yield
    except BudgetError as error:
        if limit is None or error.smallest is not None or error.limit != "memory":
            raise
        try:
            found = least()
            advice = advice() if callable(advice) and found is not None else advice
        except KeyboardInterrupt:
            raise error from None
        if found is None:
            raise
        text = (
            f"a memory budget of {exact_bytes(limit)} cannot {what}; the smallest budget that can is "
            f"{least_bytes(found)}"
        )
        raise BudgetError(
            text + (f"; {advice}" if advice else ""), found
        ) from None  # it says all that matters
