"""The topology read by ranges of targets: as many rows and edges at a time as the caller has memory for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray
from outcrop.store.graph import Graph
from outcrop.store.graph_types import EdgeType, ListsTo

TAG = "topology"


@dataclass(frozen=True)
class Edges:
    """Holds edges by target, ascending within a target. ``row``: int32, number of the target; ``col``: ids of the
    sources, within their type.
    """

    row: np.ndarray
    col: np.ndarray


@dataclass(frozen=True)
class SpanLists:
    """Reads what the lists of one edge type hold for the targets of a span, in pieces.

    One piece unless there is one target only, with more edges than were allowed.

    Attributes:
        number: Place of the edge type among those that were asked for.
        rowptr: int64 [targets of the span, wanted or not, + 1]: where lists begin among all edges.
        kept: bool, which of these targets are wanted; None: all.
    """

    number: int
    edge_type: EdgeType
    rowptr: np.ndarray
    kept: np.ndarray | None
    _indices: DiskArray
    _most_edges: int

    @property
    def counts(self) -> np.ndarray:
        """Returns int64 [targets that are wanted]: the edges of each."""
        return self._of_wanted(np.diff(self.rowptr))

    def ranges(self) -> list[tuple[int, int]]:
        """Returns the pieces, as ranges of edge numbers."""
        begin, end = int(self.rowptr[0]), int(self.rowptr[-1])
        starts = range(begin, end, self._most_edges)
        return [(start, min(start + self._most_edges, end)) for start in starts]

    def read(self, start: int, stop: int) -> Edges:
        """Reads edges ``start:stop``."""
        source = self.edge_type.source
        col = self._indices.read(TAG, start, stop)
        if not source.first <= col.min() <= col.max() < source.first + source.num_nodes:
            raise _damaged(self._indices)
        if source.first:
            col -= col.dtype.type(source.first)
        counts = np.diff(np.clip(self.rowptr, start, stop))
        if self.kept is not None:
            col = col[np.repeat(self.kept, counts)]
        counts = self._of_wanted(counts)
        return Edges(np.repeat(np.arange(len(counts), dtype=np.int32), counts), col)

    def _of_wanted(self, counts: np.ndarray) -> np.ndarray:
        return counts if self.kept is None else counts[self.kept]


@dataclass(frozen=True)
class Span:
    """Holds targets ``ids`` (int64, ascending) out of ``first:stop``, and the lists that lead to them, of each edge
    type.
    """

    first: int
    stop: int
    ids: np.ndarray
    lists: tuple[SpanLists, ...]


def _damaged(array: DiskArray) -> FormatError:
    return FormatError(
        f"{array.path} leads out of the graph, it was damaged after it was written: import it again"
    )


def spans(
    graph: Graph,
    runtime: Runtime,
    most_targets: int,
    most_edges: int,
    wanted: np.ndarray | None = None,
    to: ListsTo | None = None,
) -> Iterator[Span]:
    """Cuts the nodes of a type into runs of consecutive targets, from the first node to the last.

    Args:
        most_targets, most_edges: Limits of one span, of edges for each edge type; a target with more edges of a type
            has a span for itself.
        wanted: Only these nodes, int64, ascending, distinct; where there are none nothing is read.
        to: The targets, and the edge types that are read; None: those of a graph without types.

    Raises:
        ArgumentError: The graph has types of nodes or edges, and nothing says which are wanted.
    """
    if to is None:
        graph.require_one_type()
        to = graph.lists_to(graph.node_types[0])
    indptr, indices = graph.array(runtime, "indptr"), graph.array(runtime, "indices")
    count, first = to.target.num_nodes, 0
    try:
        while first < count:
            if wanted is not None:
                at = int(np.searchsorted(wanted, first))
                if at == len(wanted):
                    return
                first = int(wanted[at])
            stop = min(first + most_targets, count)
            rowptrs = [_starts(indptr, one, first, stop) for one in to.edge_types]
            for rowptr in rowptrs:
                fitting = int(np.searchsorted(rowptr, rowptr[0] + most_edges, side="right")) - 1
                stop = min(stop, first + max(fitting, 1))
            ids, kept = np.arange(first, stop, dtype=np.int64), None
            if wanted is not None:
                ids = wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, stop)]
                if len(ids) < stop - first:
                    kept = np.zeros(stop - first, bool)
                    kept[ids - first] = True
            lists = tuple(
                SpanLists(number, one, rowptr[: stop - first + 1], kept, indices, most_edges)
                for number, (one, rowptr) in enumerate(zip(to.edge_types, rowptrs, strict=True))
            )
            yield Span(first, stop, ids, lists)
            first = stop
    finally:
        indptr.close()
        indices.close()


def _starts(indptr: DiskArray, of: EdgeType, first: int, stop: int) -> np.ndarray:
    """Reads where the lists of targets ``first:stop`` begin, and where the last one ends."""
    rowptr = indptr.read(TAG, of.first_list + first, of.first_list + stop + 1)
    begin, end = of.first_edge, of.first_edge + of.num_edges
    if rowptr[0] < begin or rowptr[-1] > end or (np.diff(rowptr) < 0).any():
        raise _damaged(indptr)
    return rowptr
