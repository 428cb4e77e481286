"""Which edges of the graph a batch has, and their weights: looked up while the batch is loaded."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np

from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store.batches import BatchGraph, Edges
from outcrop.store.graph import Graph
from outcrop.store.graph_types import EdgeType


class EdgeLookup:
    """Adds edge ids and edge weights to batches of ``graph``.

    Batches whose edges have no features are recorded without either; both follow from the ids of an edge's ends, by a
    binary search in the list of in-neighbours of its target (of an edge that the graph has twice, the first is found).
    The lists are read through the system's page cache, as mode ``memmap`` reads rows, and once from end to end before,
    to compare their checksums.

    Args:
        ids: Whether batches get positions of edges. They get weights where the graph has some.
    """

    def __init__(self, graph: Graph, runtime: Runtime, *, ids: bool):
        self._graph, self._ids = graph, ids
        names = [name for name in ("indptr", "indices", "edge_weight") if graph.has(name)]
        self._indptr, self._indices, *weights = (
            np.asarray(graph.array(runtime, n).memmap(check=True)) for n in names
        )
        self._weights = weights[0] if weights else None
        weighted = [of.num_edges if of.weighted else 0 for of in graph.edge_types]
        self._first_weights = [0, *accumulate(weighted)]

    def __call__(self, batch: BatchGraph) -> BatchGraph:
        """Returns ``batch`` with positions and weights of its edges."""
        return replace(batch, edges=tuple(self._complete(batch, of) for of in self._graph.edge_types))

    def _complete(self, batch: BatchGraph, of: EdgeType) -> Edges:
        edges = batch.edges[of.number]
        weighted = of.weighted and edges.weight is None
        if not weighted and (not self._ids or edges.positions is not None):
            return edges
        found = self.find(batch, of) if edges.positions is None else edges.positions
        weights, first = self._weights, self._first_weights[of.number]
        return replace(
            edges,
            positions=found if self._ids else edges.positions,
            weight=weights[first + found] if weighted and weights is not None else edges.weight,
        )

    def find(self, batch: BatchGraph, of: EdgeType | None = None) -> np.ndarray:
        """Finds, int64 [num_edges], where each edge of a type stands in ``graph.edge_index(of)``.

        Equals ``[indptr[v] + list(indices[indptr[v]:indptr[v + 1]]).index(u) for u, v in edges]``.

        Args:
            of: The edge type; None: the only one.

        Raises:
            FormatError: An edge is not in the graph.
        """
        of = of or self._graph.edge_type()
        edges = batch.edges[of.number]
        lists = batch.nodes[of.target.number].ids[: edges.num_rows] + of.first_list
        counts = np.diff(edges.rowptr)
        low = np.repeat(self._indptr[lists], counts)
        high = end = np.repeat(self._indptr[lists + 1], counts)
        sources = batch.nodes[of.source.number].ids[edges.col] + of.source.first
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
        return low - of.first_edge
