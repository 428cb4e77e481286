"""How modes with a cache for each row file divide their memory: in proportion to the bytes that an epoch wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from outcrop.loading.feeders import BatchStructures
from outcrop.loading.online.hotness import PRESAMPLED_BATCHES
from outcrop.rows import RowSource

if TYPE_CHECKING:
    from outcrop.loading.modes.base import SessionRequest  # whose modes divide memory

S = TypeVar("S", bound=RowSource)


def make_caches(
    below: Sequence[RowSource],
    wanted: Sequence[int],
    room: int,
    make: Callable[[int, int], tuple[S, int]],
) -> list[S]:
    """Makes a cache over each of ``below``; what one with few rows needs no longer is for the others.

    Args:
        wanted: Bytes of each that an epoch wants.
        room: What there is for all, in bytes or rows.
        make: Makes a cache over one, by its number, in so much room; returns it and how much it takes.
    """
    made: dict[int, S] = {}
    for number in sorted(range(len(below)), key=lambda k: _bytes_of(below[k]) / max(wanted[k], 1)):
        of_all = sum(count for k, count in enumerate(wanted) if k not in made)
        made[number], taken = make(number, room * wanted[number] // max(of_all, 1))
        room -= taken
    return [made[number] for number in range(len(below))]


def bytes_wanted(
    below: Sequence[RowSource], request: SessionRequest, structures: BatchStructures
) -> list[int]:
    """Counts the bytes of each row file that batches of the first epoch want; where none are drawn, those it has."""
    if len(below) == 1:
        return [1]  # which has everything
    splits, recorded = request.config.splits, request.recorded
    split = "train" if "train" in splits else splits[0]
    files = request.graph.row_files
    if recorded is not None:
        batches = recorded.group(split).batches(0)
        rows = [int(recorded.section(file).num_rows[list(batches)].sum()) for file in files]
    elif request.runtime.rehearsal is not None:
        rows = [source.num_rows for source in below]
    else:
        rows = [0] * len(below)
        for batch in islice(structures.batches(split, 0), PRESAMPLED_BATCHES):
            rows = [a + b for a, b in zip(rows, batch.num_rows(files), strict=True)]
    return [count * source.row_bytes for count, source in zip(rows, below, strict=True)]


def _bytes_of(rows: RowSource) -> int:
    return rows.num_rows * rows.row_bytes
