"""Which edges of the graph a batch has, and their weights: looked up while the batch is loaded."""

from __future__ import annotations

import numpy as np

from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph


class EdgeLookup:
    """Adds edge ids and edge weights to batches of ``graph``.

    Batches are recorded without either; both follow from the ids of an edge's ends, by a binary search in the list of
    in-neighbours of its target. The lists are read through the system's page cache, as mode ``memmap`` reads rows, and
    once from end to end before, to compare their checksums.

    Args:
        ids: Whether batches get ``edge_ids``. They get ``edge_weight`` where the graph has weights.
    """

    def __init__(self, graph: Graph, runtime: Runtime, *, ids: bool):
        self._graph, self._ids = graph, ids
        names = [name for name in ("indptr", "indices", "edge_weight") if graph.has(name)]
        self._indptr, self._indices, *weights = (
            np.asarray(graph.array(runtime, n).memmap(check=True)) for n in names
        )
        self._weights = weights[0] if weights else None

    def __call__(self, batch: BatchGraph) -> BatchGraph:
        """Returns ``batch`` with ``edge_ids`` and ``edge_weight``."""
        found = self.find(batch)
        weights = None if self._weights is None else self._weights[found]
        return batch.with_edges(0, weight=weights, positions=found if self._ids else None)

    def find(self, batch: BatchGraph) -> np.ndarray:
        """Finds, int64 [num_edges], where each edge of ``batch`` stands in ``graph.edge_index()``.

        Equals ``[indptr[v] + list(indices[indptr[v]:indptr[v + 1]]).index(u) for u, v in edges]``.

        Raises:
            FormatError: An edge is not in the graph.
        """
        targets = batch.n_id[: len(batch.rowptr) - 1]
        counts = np.diff(batch.rowptr)
        low = np.repeat(self._indptr[targets], counts)
        high = end = np.repeat(self._indptr[targets + 1], counts)
        sources = batch.n_id[batch.col]
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle = (low + high) // 2
            right = (low < high) & (self._indices[np.minimum(middle, end - 1)] < sources)
            low, high = np.where(right, middle + 1, low), np.where(right, high, middle)
        there = low < end
        there[there] = self._indices[low[there]] == sources[there]
        if not there.all():
            raise FormatError(
                f"{self._graph.path} has no edge from node {sources[~there][0]} that a batch has: run outcrop verify, "
                "or prepare again from this graph"
            )
        return low
