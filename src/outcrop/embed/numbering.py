"""Which node lies where: rows of the whole table, and their slices.

Rows 0 .. n - 1 are divided into slices of consecutive rows; a numbering says which node has which row. ``random``
is a keyed bijection that needs no memory; ``id`` keeps the order of the ids; ``degree`` deals the nodes out by
descending degree, so that all slices have about as many edges, and holds 16 bytes a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

import outcrop._core as _core
from outcrop.runtime.runtime import Runtime

_SLICES, _MOST_SLICES = 8, 64  # of a partition, of all together


@dataclass(frozen=True)
class Division:
    """Divides ``rows`` into ``parts`` of consecutive ones; sizes differ by one at most, larger ones first.

    As core/embed/division.h has it; ``starts`` is int64 [parts + 1].
    """

    rows: int
    parts: int

    @cached_property
    def starts(self) -> np.ndarray:
        size, large = divmod(self.rows, self.parts)
        return np.concatenate([[0], np.cumsum(size + (np.arange(self.parts) < large))]).astype(np.int64)

    @property
    def most(self) -> int:
        """Returns rows of the largest slice."""
        return -(-self.rows // self.parts)

    def size(self, part: int) -> int:
        return int(self.starts[part + 1] - self.starts[part])

    def place(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (slice, number in it) of each row, int64."""
        part = np.searchsorted(self.starts, rows, side="right") - 1
        return part, rows - self.starts[part]


def default_slices(partitions: int, num_nodes: int) -> int:
    """Returns the slices of each partition, where there is more than one: few enough that buckets stay few."""
    return 1 if partitions == 1 else max(min(_SLICES, _MOST_SLICES // partitions, num_nodes // partitions), 1)


class NodeNumbering(Protocol):
    def rows(self, nodes: np.ndarray) -> np.ndarray: ...
    def nodes(self, rows: np.ndarray) -> np.ndarray: ...


class ById:
    def rows(self, nodes: np.ndarray) -> np.ndarray:
        return nodes

    def nodes(self, rows: np.ndarray) -> np.ndarray:
        return rows


class Random:
    def __init__(self, count: int, seed: int, runtime: Runtime):
        self._map = _core.Permutation(seed & (1 << 64) - 1, count)
        self._workers = runtime.workers

    def rows(self, nodes: np.ndarray) -> np.ndarray:
        return self._mapped(nodes, False)

    def nodes(self, rows: np.ndarray) -> np.ndarray:
        return self._mapped(rows, True)

    def _mapped(self, ids: np.ndarray, inverse: bool) -> np.ndarray:
        ids = np.ascontiguousarray(ids, np.int64)
        out = np.empty_like(ids)
        self._map.map(ids, out, inverse, self._workers)
        return out


class ListedOrder:
    """``order[row]`` is the node of each row."""

    def __init__(self, order: np.ndarray, runtime: Runtime):
        self._held = runtime.budget.reserve("numbering", 16 * len(order))
        self._nodes = np.asarray(order, np.int64)
        self._rows = np.empty_like(self._nodes)
        self._rows[self._nodes] = np.arange(len(order), dtype=np.int64)

    def rows(self, nodes: np.ndarray) -> np.ndarray:
        return self._rows[nodes]

    def nodes(self, rows: np.ndarray) -> np.ndarray:
        return self._nodes[rows]


def by_degree(degrees: np.ndarray, division: Division) -> np.ndarray:
    """Returns the node of each row, int64: dealt to the slices in turn by descending degree, back and forth."""
    order = np.argsort(-degrees.astype(np.int64), kind="stable")
    turn, seat = np.divmod(np.arange(len(order)), division.parts)
    whole = turn < division.rows // division.parts
    part = np.where(whole & (turn % 2 == 1), division.parts - 1 - seat, seat)
    nodes = np.empty(len(order), np.int64)
    nodes[division.starts[part] + turn] = order
    return nodes
