"""All places of numbers in a list that may have them several times."""

from __future__ import annotations

import numpy as np


def matches(where: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(i, j) of all pairs with ``wanted[i] == where[j]``, ascending by i: ``np.nonzero(wanted[:, None] == where)``."""
    order = np.argsort(where, kind="stable")
    ranked = where[order]
    begin, end = np.searchsorted(ranked, wanted, "left"), np.searchsorted(ranked, wanted, "right")
    counts = end - begin
    i = np.repeat(np.arange(len(wanted)), counts)
    within = np.arange(len(i)) - np.repeat(np.cumsum(counts) - counts, counts)
    return i, order[np.repeat(begin, counts) + within]
