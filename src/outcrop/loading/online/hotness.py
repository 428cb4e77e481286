"""How often features and neighbour lists are wanted: counted over batches that are drawn ahead.

Source: Hyperion, section III-B1 (an epoch of pre-sampling).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store import record
from outcrop.store.batches import BatchGraph

PRESAMPLED_BATCHES = 512  # at most: more of an epoch's batches say the same
_BLOCK_NODES = 1 << 20  # that who plans works on at a time
_TAG = "hotness"
_COUNTER_BYTES = 8  # of a node: two counters


@dataclass(frozen=True)
class AccessCounts:
    """Counts how often the features (``rows``, uint32) and the list (``lists``, uint32) of node ``first + i`` are
    wanted.
    """

    first: int
    rows: np.ndarray
    lists: np.ndarray


class Hotness:
    """Counts how often all nodes are wanted, a window of them at a time where the budget does not hold all.

    Args:
        draw: Makes an iterator over the batches that are counted; called once for each window and pass.
        expand_all: Every node's list is wanted, not only those of nodes before the last hop (ShaDow).
        memory_fraction: Part of the free budget that counters may take.
    """

    def __init__(
        self,
        num_nodes: int,
        draw: Callable[[], Iterator[BatchGraph]],
        runtime: Runtime,
        *,
        expand_all: bool = False,
        memory_fraction: float | Fraction = memory_tables.ACCESS_COUNTERS.fraction,
    ):
        self._num_nodes, self._draw, self._expand_all = num_nodes, draw, expand_all
        room = int(runtime.budget.free_bytes * memory_fraction)
        self.window = min(max(room // _COUNTER_BYTES, 1 << 10), max(num_nodes, 1))
        held = runtime.budget.empty(_TAG, self.window * _COUNTER_BYTES).view(np.uint32)
        self._rows, self._lists = held[: self.window], held[self.window :]
        self._held = self.window
        self._counted = -1  # first node of the window that is in the counters
        self.batches = self.most_nodes = self.most_seeds = self.most_record_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Counts the bytes of the budget that are held until :meth:`close`."""
        return self._held * _COUNTER_BYTES

    def close(self) -> None:
        self._rows = self._lists = np.zeros(0, np.uint32)
        self._held = 0

    def windows(self) -> Iterator[AccessCounts]:
        """Yields a bounded number of nodes at a time, in order; the arrays are used again for the next window."""
        for first in range(0, self._num_nodes, self.window):
            if self._counted != first:
                self._count(first)
            count = min(self.window, self._num_nodes - first)
            for at in range(0, count, _BLOCK_NODES):
                part = slice(at, min(at + _BLOCK_NODES, count))
                yield AccessCounts(first + at, self._rows[part], self._lists[part])

    def _count(self, first: int) -> None:
        self._counted = -1
        self._rows[:] = self._lists[:] = 0
        self.batches = 0
        for graph in self._draw():
            ids = graph.n_id
            expanded = len(ids) if self._expand_all else sum(graph.nodes_per_hop[:-1])
            self.most_nodes = max(self.most_nodes, len(ids))
            self.most_seeds = max(self.most_seeds, graph.num_seeds)
            self.most_record_bytes = max(self.most_record_bytes, record.bytes_of(graph))
            self._add(self._rows, ids, first)
            self._add(self._lists, ids[:expanded], first)
            self.batches += 1
        self._counted = first

    def _add(self, counters: np.ndarray, ids: np.ndarray, first: int) -> None:
        inside = ids[(ids >= first) & (ids < first + self.window)] - first
        counters[inside] += 1  # a batch names each node once
