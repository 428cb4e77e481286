"""The topology read by ranges of targets: as many rows and edges at a time as the caller has memory for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray
from outcrop.store.graph import Graph

TAG = "topology"


@dataclass(frozen=True)
class Edges:
    """Holds edges by target, ascending within a target. ``row``: int32, number of the target; ``col``: ids of the
    sources.
    """

    row: np.ndarray
    col: np.ndarray


@dataclass(frozen=True)
class Span:
    """Targets ``ids`` (int64, ascending) out of ``first:stop``, and their edges, in pieces.

    One piece unless there is one target only, with more edges than were allowed.
    """

    first: int
    stop: int
    ids: np.ndarray
    rowptr: np.ndarray
    _indices: DiskArray
    _most_edges: int
    _num_nodes: int

    def ranges(self) -> list[tuple[int, int]]:
        """Returns the pieces, as ranges of edge numbers."""
        begin, end = int(self.rowptr[0]), int(self.rowptr[-1])
        starts = range(begin, end, self._most_edges)
        return [(start, min(start + self._most_edges, end)) for start in starts]

    def read(self, start: int, stop: int) -> Edges:
        """Reads edges ``start:stop``."""
        col = self._indices.read(TAG, start, stop)
        if not 0 <= col.min() <= col.max() < self._num_nodes:
            raise _damaged(self._indices)
        counts = np.diff(np.clip(self.rowptr, start, stop))
        if len(self.ids) < self.stop - self.first:
            wanted = np.zeros(self.stop - self.first, bool)
            wanted[self.ids - self.first] = True
            col, counts = col[np.repeat(wanted, counts)], counts[wanted]
        return Edges(np.repeat(np.arange(len(self.ids), dtype=np.int32), counts), col)


def _damaged(array: DiskArray) -> FormatError:
    return FormatError(
        f"{array.path} leads out of the graph, it was damaged after it was written: import it again"
    )


def spans(
    graph: Graph, runtime: Runtime, most_targets: int, most_edges: int, wanted: np.ndarray | None = None
) -> Iterator[Span]:
    """Cuts the nodes into runs of consecutive targets, from the first node to the last.

    Args:
        most_targets, most_edges: Limits of one span; a target with more edges has a span for itself.
        wanted: Only these nodes, int64, ascending, distinct; where there are none nothing is read.

    Raises:
        ArgumentError: The graph has types of nodes or edges.
    """
    graph.require_one_type()
    indptr, indices = graph.array(runtime, "indptr"), graph.array(runtime, "indices")
    try:
        first = 0
        while first < graph.num_nodes:
            if wanted is not None:
                at = int(np.searchsorted(wanted, first))
                if at == len(wanted):
                    return
                first = int(wanted[at])
            rowptr = indptr.read(TAG, first, min(first + most_targets, graph.num_nodes) + 1)
            if rowptr[0] < 0 or rowptr[-1] > graph.num_edges or (np.diff(rowptr) < 0).any():
                raise _damaged(indptr)
            count = max(int(np.searchsorted(rowptr, rowptr[0] + most_edges, side="right")) - 1, 1)
            stop = first + count
            ids = (
                np.arange(first, stop, dtype=np.int64)
                if wanted is None
                else wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, stop)]
            )
            yield Span(first, stop, ids, rowptr[: count + 1], indices, most_edges, graph.num_nodes)
            first = stop
    finally:
        indptr.close()
        indices.close()
