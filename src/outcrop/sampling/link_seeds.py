"""Seeds for link prediction: positive edges, and negative ones that are drawn, keyed by batch.

Batch b of epoch e of a split always has the same edges, whatever the threads, the budget, and where the topology lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

import outcrop._core as _core
from outcrop.config import SampleConfig
from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime.keyed_random import key_of, mix64
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.topology import Topology
from outcrop.store.graph import Graph
from outcrop.store.graph_manifest import EDGE_SPLITS
from outcrop.store.graph_types import EdgeType

_MAX_ATTEMPTS = 200
_NEGATIVES = 0x6E6567  # separates the keys of negatives from those of shuffling
# Of each edge: both ends while they are drawn, sorted and looked for; what a batch has of it, twice.
_DRAWING_BYTES, _WAITING_BYTES = 160, 40


@dataclass(frozen=True)
class ChosenEdges:
    """Says which edges are the positive ones, in place of those that the graph lists for a split.

    Attributes:
        edge_type: What they lead from and to.
        count: How many there are.
        index: [2, n] of integers, ids within the types of the ends, which need not be edges of the graph; None: all
            edges of the type, in the order of ``graph.edge_index(edge_type)``, or
        listed: those that the graph lists for this split.
    """

    edge_type: EdgeType
    count: int
    index: np.ndarray | None = None
    listed: str | None = None

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class LinkBatch:
    """Holds the edges of a batch.

    Attributes:
        seeds: int64, all ends of the edges, in the numbering of all nodes, ascending.
        index: int32 [2, L], places of both ends among the seeds of their types.
        label: float32 [L], 1 = positive, 0 = negative.
        edge_type: Number of the type of the edges.
        positions: int64 [P], which of the chosen edges the positive ones are; None: none were chosen.
    """

    seeds: np.ndarray
    index: np.ndarray
    label: np.ndarray
    edge_type: int = 0
    positions: np.ndarray | None = None


class LinkSeeds:
    """Draws the edges of each batch: ``config.batch_size`` positive ones, then the negatives.

    Training edges are shuffled by a keyed permutation (and ascending within a batch); other splits keep their order.
    Negatives are uniform pairs of nodes, or begin where a positive one does; with ``filter_negatives`` those that are
    edges are drawn again.

    Args:
        chosen: Edges of splits, in place of those that the graph lists.
        waiting: Batches that are drawn and wait, at the most: memory for their edges is taken from the budget.

    Raises:
        BudgetError: The budget has no memory for the edges of so many batches.
    """

    def __init__(
        self,
        graph: Graph,
        config: SampleConfig,
        topology: Topology,
        runtime: Runtime,
        chosen: Mapping[str, ChosenEdges] | None = None,
        waiting: int = 1,
    ):
        self._graph, self._config, self._topology, self._runtime = graph, config, topology, runtime
        self._listed: dict[str, np.ndarray] = {}
        self._chosen = chosen or {}
        most = max((self.num_edges(split) for split in config.splits), default=0)
        positive = min(config.batch_size, most)
        edges = positive + math.ceil(config.negatives * positive)
        self._held = runtime.budget.reserve("links", edges * (_DRAWING_BYTES + waiting * _WAITING_BYTES))
        for one in self._chosen.values():  # before caches take what is left
            if one.listed is not None:
                self._listed_edges(one.listed)

    def num_edges(self, split: str) -> int:
        """Counts the positive edges of ``split``."""
        if self._chosen:
            return len(self._chosen[split]) if split in self._chosen else 0
        name = f"{split}_edges"
        if self._graph.has(name):
            return self._graph.spec(name).shape[0]
        listed = any(self._graph.has(edges) for edges in EDGE_SPLITS)
        return self._graph.num_edges if split == "train" and not listed else 0

    def batch(self, split: str, code: int, epoch: int, number: int) -> LinkBatch:
        """Draws mini-batch ``number`` of ``epoch``; ``code`` is the split's part of the key."""
        size, total = self._config.batch_size, self.num_edges(split)
        first, count = number * size, min(size, total - number * size)
        if split == "train":
            at = np.empty(count, np.int64)
            key = int(key_of(self._config.seed, code, epoch)[0])
            _core.Permutation(key, total).forward(first, at)
            at.sort()
        else:
            at = np.arange(first, first + count, dtype=np.int64)
        of = self._chosen[split].edge_type if split in self._chosen else self._graph.edge_types[0]
        positive = self._edges(split, of, at)
        negative = self._negatives(of, key_of(self._config.seed, code, epoch, number, _NEGATIVES), positive)
        pairs = np.concatenate([positive, negative])
        first_nodes = np.array([of.source.first, of.target.first])
        seeds, index = np.unique(pairs + first_nodes, return_inverse=True)
        before = np.searchsorted(seeds, first_nodes)  # seeds of types with lower numbers
        label = np.repeat(np.array([1, 0], np.float32), [len(positive), len(negative)])
        local = np.ascontiguousarray((index.reshape(-1, 2) - before).T, np.int32)
        return LinkBatch(seeds, local, label, of.number, at if split in self._chosen else None)

    def _edges(self, split: str, of: EdgeType, at: np.ndarray) -> np.ndarray:
        """Returns int64 [n, 2], ids within the types of the ends."""
        chosen = self._chosen.get(split)
        if chosen is not None and chosen.index is not None:
            return chosen.index[:, at].T.astype(np.int64, copy=False)
        listed = split if chosen is None else chosen.listed
        if listed is None or not self._graph.has(f"{listed}_edges"):
            lists = range(of.first_list, of.first_list + of.target.num_nodes)
            return self._topology.edges(of.first_edge + at, lists) - [of.source.first, of.first_list]
        return self._listed_edges(listed)[at]

    def _listed_edges(self, split: str) -> np.ndarray:
        """Returns the edges that the graph lists for ``split``, int64 [n, 2], which are held from then on."""
        if split not in self._listed:
            name = f"{split}_edges"
            edges = self._graph.array(self._runtime, name).read(f"split-{split}")
            if len(edges) and not 0 <= edges.min() <= edges.max() < self._graph.num_nodes:
                raise FormatError(f"{self._graph.path}: {name} leave the graph; run outcrop verify")
            self._listed[split] = edges
        return self._listed[split]

    def _negatives(self, of: EdgeType, key: np.ndarray, positive: np.ndarray) -> np.ndarray:
        """Draws int64 [count, 2]; attempt a of end k of pair i is ``hash(key + (a, i, k)) % num_nodes``."""
        count = int(np.ceil(self._config.negatives * len(positive)))
        pairs = np.empty((count, 2), np.int64)
        bad = np.arange(count)
        sizes = np.array([of.source.num_nodes, of.target.num_nodes], np.uint64)
        for attempt in range(_MAX_ATTEMPTS):
            with np.errstate(over="ignore"):
                draws = key + np.uint64(2 * attempt * count) + np.arange(2 * count, dtype=np.uint64)
            ends = (mix64(draws).reshape(count, 2) % sizes).astype(np.int64)
            if self._config.negative_mode == "triplet":
                ends[:, 0] = np.repeat(positive[:, 0], int(self._config.negatives))
            pairs[bad] = ends[bad]
            if not self._config.filter_negatives or not len(bad):
                return pairs
            bad = bad[
                self._topology.has_edges(pairs[bad, 0] + of.source.first, pairs[bad, 1] + of.first_list)
            ]
            if not len(bad):
                return pairs
        raise ArgumentError(
            f"{self._graph.path}: no pairs of nodes without an edge were found in {_MAX_ATTEMPTS} draws each; "
            "the graph is too dense to filter negatives: leave --filter-negatives out"
        )
