"""What tables make of a graph, in plain Python: rows by their keys, foreign keys as pairs of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def pairs(rows: Sequence[dict[str, Any]], column: str, listed: Sequence[Any]) -> np.ndarray:
    """Returns (row, row of the key) for each cell that is filled and listed, int64 [2, E]."""
    of_key = {key: number for number, key in enumerate(listed)}
    found = [(number, of_key[row[column]]) for number, row in enumerate(rows) if row[column] in of_key]
    return np.array(found, np.int64).reshape(-1, 2).T


def links(
    rows: Sequence[Sequence[Any]],
    sources: Sequence[Any],
    targets: Sequence[Any],
    ends: tuple[int, int] = (0, 1),
) -> np.ndarray:
    """Returns the rows of both ends of each link, int64 [2, E]."""
    first, second = ({key: number for number, key in enumerate(listed)} for listed in (sources, targets))
    found = [(first[row[ends[0]]], second[row[ends[1]]]) for row in rows]
    return np.array(found, np.int64).reshape(-1, 2).T


def in_order(edges: np.ndarray) -> np.ndarray:
    """Returns the distinct edges by target, then by source."""
    edges = np.unique(edges, axis=1)
    return edges[:, np.lexsort((edges[0], edges[1]))]


def standardised(cells: Sequence[Sequence[Any]]) -> np.ndarray:
    """Returns columns of numbers, None where a cell is empty, as features float32 [rows, columns]."""
    columns = [np.array([np.nan if cell is None else cell for cell in column], float) for column in cells]
    found = []
    for column in columns:
        deviation = np.nanstd(column)
        found.append(np.nan_to_num((column - np.nanmean(column)) / (deviation if deviation else 1)))
    return np.stack(found, axis=1).astype(np.float32)
