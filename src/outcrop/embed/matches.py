"""Places of numbers in a list that may have them several times, and the numbers of several ranges."""

from __future__ import annotations

import numpy as np


def matches(where: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (i, j) of all pairs with ``wanted[i] == where[j]``, ascending by i:
    ``np.nonzero(wanted[:, None] == where)``.
    """
    order = np.argsort(where, kind="stable")
    ranked = where[order]
    begin, end = np.searchsorted(ranked, wanted, "left"), np.searchsorted(ranked, wanted, "right")
    return np.repeat(np.arange(len(wanted)), end - begin), order[ranges(begin, end)]


def ranges(first: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Returns int64: ``np.concatenate([np.arange(a, b) for a, b in zip(first, stop)])``."""
    lengths = stop - first
    return np.arange(int(lengths.sum())) + np.repeat(first - np.cumsum(lengths) + lengths, lengths)
