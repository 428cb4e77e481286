"""How often rows and neighbour lists are wanted: counted over batches that are drawn ahead.

Source: Hyperion, section III-B1 (an epoch of pre-sampling).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import accumulate

import numpy as np

from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store import record
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.graph_types import EdgeType

PRESAMPLED_BATCHES = 512  # at most: more of an epoch's batches say the same
_BLOCK = 1 << 20  # rows or lists that who plans works on at a time
_TAG = "hotness"
_PAIR_BYTES = 8  # of two counters


@dataclass(frozen=True)
class AccessKind:
    """Describes something that batches want: the rows of a row file, or neighbour lists.

    Attributes:
        count: How many there are.
        wanted: Returns the numbers, int64, of those that a batch wants, each once.
    """

    count: int
    wanted: Callable[[BatchGraph], np.ndarray]


def rows_and_lists(graph: Graph, *, expand_all: bool = False) -> tuple[AccessKind, ...]:
    """Describes the rows of each row file of ``graph``, and, at the end, the neighbour lists of all its edge types.

    Args:
        expand_all: Every node's list is wanted, not only those of nodes before the last hop (ShaDow).
    """
    rows = [
        AccessKind(file.num_rows, lambda batch, file=file: batch.section(file).ids)
        for file in graph.row_files
    ]
    return (*rows, AccessKind(graph.num_lists, partial(_lists_of, graph.edge_types, expand_all)))


def _lists_of(edge_types: Sequence[EdgeType], expand_all: bool, batch: BatchGraph) -> np.ndarray:
    parts = []
    for of in edge_types:
        nodes = batch.nodes[of.target.number]
        expanded = len(nodes.ids) if expand_all else sum(nodes.per_hop[:-1])
        parts.append(nodes.ids[:expanded] + of.first_list)
    return np.concatenate(parts)


@dataclass(frozen=True)
class AccessCounts:
    """Counts how often some rows or lists are wanted.

    Attributes:
        kind: Which of the things that are counted.
        first: Number of the first of them.
        wanted: uint32, how often number ``first + i`` is wanted.
    """

    kind: int
    first: int
    wanted: np.ndarray


class Hotness:
    """Counts how often all rows and lists are wanted, a window of them at a time where the budget does not hold all.

    Args:
        kinds: What is counted.
        draw: Makes an iterator over the batches that are counted; called once for each window and pass.
        memory_fraction: Part of the free budget that counters may take.

    Attributes:
        most: How many of each kind a batch wants, at most.
    """

    def __init__(
        self,
        kinds: Sequence[AccessKind],
        draw: Callable[[], Iterator[BatchGraph]],
        runtime: Runtime,
        *,
        memory_fraction: float | Fraction = memory_tables.ACCESS_COUNTERS.fraction,
    ):
        self._kinds, self._draw = tuple(kinds), draw
        # All kinds are counted as if they had one numbering, one kind after the other.
        self._firsts = [0, *accumulate(kind.count for kind in kinds)]
        room = int(runtime.budget.free_bytes * memory_fraction)
        pairs = min(max(room // _PAIR_BYTES, 1 << 10), max(-(-self._firsts[-1] // 2), 1))
        self.window = 2 * pairs
        self._held = runtime.budget.empty(_TAG, pairs * _PAIR_BYTES).view(np.uint32)
        self._counted = -1  # first of the window that is in the counters
        self.batches = self.most_seeds = self.most_record_bytes = 0
        self.most = [0] * len(self._kinds)

    @property
    def held_bytes(self) -> int:
        """Counts the bytes of the budget that are held until :meth:`close`."""
        return self._held.nbytes

    def close(self) -> None:
        self._held = np.zeros(0, np.uint32)

    def windows(self) -> Iterator[AccessCounts]:
        """Yields a bounded number of one kind at a time, in order; the arrays are used again for the next window."""
        for first in range(0, self._firsts[-1], self.window):
            if self._counted != first:
                self._count(first)
            for kind, begin in enumerate(self._firsts[:-1]):
                low, high = max(first, begin), min(first + self.window, self._firsts[kind + 1])
                for at in range(low, high, _BLOCK):
                    part = self._held[at - first : min(at + _BLOCK, high) - first]
                    yield AccessCounts(kind, at - begin, part)

    def _count(self, first: int) -> None:
        self._counted = -1
        self._held[:] = 0
        self.batches = 0
        for graph in self._draw():
            self.most_seeds = max(self.most_seeds, graph.num_seeds)
            if len(graph.nodes) == len(graph.edges) == 1:  # for GPUs, which no others go to
                self.most_record_bytes = max(self.most_record_bytes, record.bytes_of(graph))
            for number, (kind, begin) in enumerate(zip(self._kinds, self._firsts, strict=False)):
                wanted = kind.wanted(graph)
                self.most[number] = max(self.most[number], len(wanted))
                if begin < first + self.window and first < begin + kind.count:
                    self._add(wanted + (begin - first))
            self.batches += 1
        self._counted = first

    def _add(self, numbers: np.ndarray) -> None:
        inside = numbers[(numbers >= 0) & (numbers < self.window)]
        self._held[inside] += 1  # a batch names each once
