"""Seeds for link prediction: positive edges, and negative ones that are drawn, keyed by batch.

Batch b of epoch e of a split always has the same edges, whatever the threads, the budget, and where the topology lies.
"""

from __future__ import annotations

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

_MAX_ATTEMPTS = 200
_NEGATIVES = 0x6E6567  # separates the keys of negatives from those of shuffling


@dataclass(frozen=True)
class LinkBatch:
    """Holds the edges of a batch. ``seeds`` int64, ascending: all ends of the edges; ``index`` int32 [2, L] in the
    seeds; ``label`` float32 [L].
    """

    seeds: np.ndarray
    index: np.ndarray
    label: np.ndarray


class LinkSeeds:
    """Draws the edges of each batch: ``config.batch_size`` positive ones, then the negatives.

    Training edges are shuffled by a keyed permutation (and ascending within a batch); other splits keep their order.
    Negatives are uniform pairs of nodes; with ``filter_negatives`` those that are edges are drawn again.
    """

    def __init__(self, graph: Graph, config: SampleConfig, topology: Topology, runtime: Runtime):
        self._graph, self._config, self._topology, self._runtime = graph, config, topology, runtime
        self._listed: dict[str, np.ndarray] = {}

    def num_edges(self, split: str) -> int:
        """Counts the positive edges of ``split``."""
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
        positive = self._edges(split, at)
        negative = self._negatives(code, epoch, number, int(np.ceil(self._config.negatives * count)))
        pairs = np.concatenate([positive, negative])
        seeds, index = np.unique(pairs, return_inverse=True)
        label = np.repeat(np.array([1, 0], np.float32), [len(positive), len(negative)])
        return LinkBatch(seeds, np.ascontiguousarray(index.reshape(-1, 2).T, np.int32), label)

    def _edges(self, split: str, at: np.ndarray) -> np.ndarray:
        name = f"{split}_edges"
        if not self._graph.has(name):
            return self._topology.edges(at)
        if name not in self._listed:
            edges = self._graph.array(self._runtime, name).read(f"split-{split}")
            if len(edges) and not 0 <= edges.min() <= edges.max() < self._graph.num_nodes:
                raise FormatError(f"{self._graph.path}: {name} leave the graph; run outcrop verify")
            self._listed[name] = edges
        return self._listed[name][at]

    def _negatives(self, code: int, epoch: int, number: int, count: int) -> np.ndarray:
        """Draws int64 [count, 2]; attempt a of end k of pair i is ``hash(key + (a, i, k)) % num_nodes``."""
        key = key_of(self._config.seed, code, epoch, number, _NEGATIVES)
        pairs = np.empty((count, 2), np.int64)
        bad = np.arange(count)
        for attempt in range(_MAX_ATTEMPTS):
            with np.errstate(over="ignore"):
                draws = key + np.uint64(2 * attempt * count) + np.arange(2 * count, dtype=np.uint64)
            ends = (mix64(draws) % np.uint64(self._graph.num_nodes)).astype(np.int64).reshape(count, 2)
            pairs[bad] = ends[bad]
            if not self._config.filter_negatives or not len(bad):
                return pairs
            bad = bad[self._topology.has_edges(pairs[bad, 0], pairs[bad, 1])]
            if not len(bad):
                return pairs
        raise ArgumentError(
            f"{self._graph.path}: no pairs of nodes without an edge were found in {_MAX_ATTEMPTS} draws each; "
            "the graph is too dense to filter negatives: leave --filter-negatives out"
        )
