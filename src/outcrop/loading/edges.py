"""Which edges of the graph a batch has, and their weights: looked up while the batch is loaded."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store.batches import BatchGraph, Edges
from outcrop.store.graph import Graph
from outcrop.store.graph_types import EdgeType


class EdgeLookup:
    """Adds edge ids and edge weights to batches of ``graph``.

    Weights follow from the positions of edges. Of batches that were recorded without them they follow from the ids of
    an edge's ends, by a binary search in the list of in-neighbours of its target. The lists are then read through the
    system's page cache, as mode ``memmap`` reads rows, and once from end to end before, to compare their checksums.

    Args:
        ids: Whether batches get positions of edges. They get weights where the graph has some.
        keep: Whether positions that batches have stay, where they are not asked for.
    """

    def __init__(self, graph: Graph, runtime: Runtime, *, ids: bool, keep: bool = True):
        self._graph, self._runtime, self._ids, self._keep = graph, runtime, ids, keep
        weighted = [of.num_edges if of.weighted else 0 for of in graph.edge_types]
        self._first_weights = [0, *accumulate(weighted)]

    @cached_property
    def _lists(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns indptr and indices."""
        return self._mapped("indptr"), self._mapped("indices")

    @cached_property
    def _weights(self) -> np.ndarray:
        return self._mapped("edge_weight")

    def _mapped(self, name: str) -> np.ndarray:
        return np.asarray(self._graph.array(self._runtime, name).memmap(check=True))

    def __call__(self, batch: BatchGraph) -> BatchGraph:
        """Returns ``batch`` with positions and weights of its edges."""
        return replace(batch, edges=tuple(self._complete(batch, of) for of in self._graph.edge_types))

    def _complete(self, batch: BatchGraph, of: EdgeType) -> Edges:
        edges = batch.edges[of.number]
        positions, weight = edges.positions, edges.weight
        weighted = of.weighted and weight is None
        kept = self._ids or (self._keep and positions is not None)
        if weighted or self._ids:
            positions = self.find(batch, of) if positions is None else positions
            weight = self._weights[self._first_weights[of.number] + positions] if weighted else weight
        return replace(edges, positions=positions if kept else None, weight=weight)

    def find(self, batch: BatchGraph, of: EdgeType | None = None) -> np.ndarray:
        """Finds, int64 [num_edges], where each edge of a type stands in ``graph.edge_index(of)``.

        Equals ``[indptr[v] + list(indices[indptr[v]:indptr[v + 1]]).index(u) for u, v in edges]``.

        Args:
            of: The edge type; None: the only one.

        Raises:
            ArgumentError: The graph has an edge more than once: its ends do not say which of them it is.
            FormatError: An edge is not in the graph.
        """
        of = of or self._graph.edge_type()
        edges = batch.edges[of.number]
        indptr, indices = self._lists
        lists = batch.nodes[of.target.number].ids[: edges.num_rows] + of.first_list
        counts = np.diff(edges.rowptr)
        low = np.repeat(indptr[lists], counts)
        high = end = np.repeat(indptr[lists + 1], counts)
        sources = batch.nodes[of.source.number].ids[edges.col] + of.source.first
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle = (low + high) // 2
            right = (low < high) & (indices[np.minimum(middle, end - 1)] < sources)
            low, high = np.where(right, middle + 1, low), np.where(right, high, middle)
        there = low < end
        there[there] = indices[low[there]] == sources[there]
        if not there.all():
            raise FormatError(
                f"{self._graph.path} has no edge from node {sources[~there][0]} that a batch has: run outcrop verify, "
                "or prepare again from this graph"
            )
        again = low + 1 < end
        again[again] = indices[low[again] + 1] == sources[again]
        if again.any():
            at = int(np.argmax(again))
            ends = sources[at] - of.source.first, np.repeat(lists, counts)[at] - of.first_list
            raise ArgumentError(
                f"{self._graph.path} has the edge from node {ends[0]} to node {ends[1]} more than once, and batches "
                "were recorded without which of them they have: prepare with --edge-ids "
                "(SampleConfig(edge_ids=True)), or load with outcrop.pyg.NeighborLoader; mode partition cannot"
            )
        return low - of.first_edge
