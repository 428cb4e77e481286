"""Which rows of a source put a node into a split: the first and the last, which messages name."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from outcrop.importing.sources.base import SplitRow
from outcrop.importing.sources.tables import Place


def ends_of(rows: Iterable[tuple[str, str, Place, int]]) -> list[SplitRow]:
    """Returns the first and the last of rows; one where there is one, none where there is none.

    Finding out where a row is may take reading the file up to it, so it is done for these alone.

    Args:
        rows: Split, name of the node, place of the list, and the row in it.
    """
    first = last = None
    for row in rows:
        first, last = (row, None) if first is None else (first, row)
    found = [row for row in (first, last) if row is not None]
    return [SplitRow(split, node, place.at(row)) for split, node, place, row in found]


def rows_of_lists(node: int, lists: Iterable[tuple[str, Place, Iterable[np.ndarray]]]) -> list[SplitRow]:
    """Returns the first and the last row that put ``node`` into a split.

    Args:
        node: Number of the node.
        lists: Split, place of the list, and blocks of its node ids, int64 [n] each.
    """
    return ends_of(
        (split, str(node), place, row)
        for split, place, blocks in lists
        for row in first_and_last(blocks, node)
    )


def first_and_last(blocks: Iterable[np.ndarray], node: int) -> list[int]:
    """Returns the first and the last row of ``node`` among blocks of ids [n] each; a row that is both comes once.

    Equals ``numpy.unique(numpy.flatnonzero(numpy.concatenate(blocks) == node)[[0, -1]])``, empty where it is nowhere.
    """
    ends: list[int] = []
    row = 0
    for block in blocks:
        here = block == node
        if here.any():
            first, last = int(np.argmax(here)), len(here) - 1 - int(np.argmax(here[::-1]))
            ends = [*ends[:1], row + first, row + last]
        row += len(block)
    return sorted({ends[0], ends[-1]}) if ends else []
