"""Negatives: nodes that stand in for an end of an edge, shared by a chunk of edges.

They are drawn from the slices that are resident and stay so, never from one that is being swapped, and only from
rows that are there; which these are follows from the order alone, so that the draws do not depend on what is in memory.
Draws are keyed by (seed, epoch, unit of training, chunk).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import outcrop._core as _core
from outcrop.embed.numbering import Division
from outcrop.store.arrays import DiskArray
from outcrop.store.record import align_page

_TAG = "degrees"
_BLOCK = 32  # rows whose degrees are summed ahead
_TARGETS = 1024  # that are found at a time


def degree_bytes(division: Division, slices: int) -> int:
    """Counts the bytes that :class:`Degrees` of so many slices take: 4.25 per row, whole pages of each slice."""
    rows = slices * _slot_rows(division)
    return 4 * rows + align_page(8 * (rows // _BLOCK))


def _slot_rows(division: Division) -> int:
    return align_page(4 * division.most) // 4


class Degrees:
    """Finds rows of some slices in proportion to their degrees, with sums of 32 rows at a time in place of each row's.

    Args:
        array: uint32, the degrees of all rows.
        slices: How many are held at most.
    """

    def __init__(self, array: DiskArray, division: Division, slices: int, budget: _core.Budget):
        self._division, self._array, self.close = division, array, array.close
        array.verify()  # parts of it are read from now on, which have no checksums
        rows = budget.empty(_TAG, 4 * slices * _slot_rows(division))
        self._rows = rows.view(np.uint32).reshape(slices, -1)
        self._ends = budget.empty(_TAG, 8 * (self._rows.size // _BLOCK)).view(np.int64)
        self._slots: dict[int, int] = {}

    def enter(self, slices: Sequence[int]) -> None:
        """Has ``slices`` be those that rows are found in, one after the other; reads those that were not there."""
        starts = self._division.starts
        stay = {part: self._slots[part] for part in slices if part in self._slots}
        free = [slot for slot in range(len(self._rows)) if slot not in stay.values()]
        self._slots = stay
        for part in slices:
            if part in stay:
                continue
            slot, size = free.pop(), self._division.size(part)
            self._rows[slot, size:] = 0
            self._array.read_bytes(4 * int(starts[part]), self._rows[slot, :size].view(np.uint8))
            stay[part] = slot
        blocks = [-(-self._division.size(part) // _BLOCK) for part in slices]
        self._starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
        self._slot_of = np.array([stay[part] for part in slices], np.int64)
        for at, slot in enumerate(self._slot_of):
            rows = self._rows[slot, : blocks[at] * _BLOCK].reshape(-1, _BLOCK)
            rows.sum(axis=1, dtype=np.int64, out=self._ends[self._starts[at] : self._starts[at + 1]])
        ends = self._ends[: self._starts[-1]]
        np.cumsum(ends, out=ends)

    @property
    def total(self) -> int:
        """Sums the degrees of all rows."""
        return int(self._ends[self._starts[-1] - 1]) if self._starts[-1] else 0

    def find(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (place in the sequence of slices, number of the row in its slice) of each of ``targets`` < total.

        Equals ``np.searchsorted(np.cumsum(degrees), targets, side="right")``, of the degrees of all rows.
        """
        at, rows = np.empty_like(targets), np.empty_like(targets)
        for first in range(0, len(targets), _TARGETS):
            some = slice(first, first + _TARGETS)
            at[some], rows[some] = self._find(targets[some])
        return at, rows

    def _find(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        block = np.searchsorted(self._ends[: self._starts[-1]], targets, side="right")
        left = targets - np.where(block, self._ends[block - 1], 0)
        at = np.searchsorted(self._starts, block, side="right") - 1
        first = (block - self._starts[at]) * _BLOCK
        degrees = self._rows[self._slot_of[at][:, None], first[:, None] + np.arange(_BLOCK)]
        return at, first + (np.cumsum(degrees, axis=1, dtype=np.int64) <= left[:, None]).sum(axis=1)


class Pool:
    """Numbers the rows of some slices one after the other, in the sequence given.

    Args:
        degrees: Those of all rows, for the degree-weighted share; they enter these slices.
    """

    def __init__(self, slices: Sequence[int], division: Division, degrees: Degrees | None = None):
        self.slices = np.array(slices, np.int64)
        sizes = [division.size(part) for part in slices]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._degrees = degrees
        if degrees is not None:
            degrees.enter(slices)

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
        weighted = 0
        if self._degrees is not None and self._degrees.total:
            weighted = round(count * by_degree)
        part, row = self._places(random.integers(0, len(self), count - weighted))
        if self._degrees is None or not weighted:
            return part, row
        at, found = self._degrees.find(random.integers(0, self._degrees.total, weighted))
        return np.concatenate([part, self.slices[at]]), np.concatenate([row, found])

    def _places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = np.searchsorted(self._starts, numbers, side="right") - 1
        return self.slices[at], numbers - self._starts[at]
