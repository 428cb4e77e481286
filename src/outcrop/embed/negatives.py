"""Negatives: nodes that stand in for an end of an edge, shared by a chunk of edges.

They are drawn from the slices that are resident and stay so, never from one that is being swapped, and only from
rows that are there; which these are follows from the order alone, so that the draws do not depend on what is in memory.
Draws are keyed by (seed, epoch, unit of training, chunk).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outcrop.embed.numbering import Division


class Pool:
    """Numbers the rows of some slices one after the other, in the sequence given.

    Args:
        degrees: Degrees of the rows by slice, uint32; for the degree-weighted share.
    """

    def __init__(
        self, slices: Sequence[int], division: Division, degrees: Sequence[np.ndarray] | None = None
    ):
        self.slices = np.array(slices, np.int64)
        sizes = [division.size(part) for part in slices]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._ends = (
            np.cumsum(np.concatenate([np.asarray(d, np.int64) for d in degrees])) if degrees else None
        )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def draw(self, count: int, key: tuple[int, int], by_degree: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns (slice, number in it) of ``count`` rows with replacement; of all rows, once, where these are no more.

        Args:
            by_degree: Share that is drawn in proportion to degree; the rest uniformly.
        """
        if count >= len(self):
            return self._places(np.arange(len(self), dtype=np.int64))
        random = np.random.Generator(np.random.Philox(key=np.array(key, np.uint64)))
        weighted = round(count * by_degree) if self._ends is not None and self._ends[-1] else 0
        uniform = random.integers(0, len(self), count - weighted)
        if not weighted:
            return self._places(uniform)
        ends = self._ends
        assert ends is not None
        picked = np.searchsorted(ends, random.integers(0, ends[-1], weighted), side="right")
        return self._places(np.concatenate([uniform, picked]))

    def _places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = np.searchsorted(self._starts, numbers, side="right") - 1
        return self.slices[at], numbers - self._starts[at]
