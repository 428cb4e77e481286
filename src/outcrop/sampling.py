"""Drawing mini-batches: which seeds a batch has, and the sampler over a graph on disk.

Epoch e of split s always consists of the same batches for the same seed, whatever the budget, the threads, and whether
they are drawn ahead (stages/sample.py) or on the fly (stages/load.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from outcrop import _core
from outcrop.config import SampleConfig
from outcrop.errors import FormatError
from outcrop.runtime import Runtime
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.topology import load_topology

SPLIT_CODES = {"train": 0, "valid": 1, "test": 2, "infer": 3}
_MIB = 1 << 20


def _mix64(x: np.ndarray) -> np.ndarray:
    """splitmix64 finaliser on uint64, as core/base/random.h."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def epoch_seeds(ids: np.ndarray, config: SampleConfig, split: str, epoch: int) -> np.ndarray:
    """Seeds of all batches of one epoch in order, int64: shuffled for training, ascending within a batch.

    The shuffle is keyed by (seed, epoch, node): ``ids[argsort(hash(seed, epoch, ids))]``.
    """
    if split != "train":
        return np.ascontiguousarray(ids, np.int64)
    with np.errstate(over="ignore"):
        key = _mix64(_mix64(np.array([config.seed], np.uint64)) ^ np.uint64(epoch))
        order = np.argsort(_mix64(_mix64(ids.astype(np.uint64)) ^ key), kind="stable")
    seeds = np.ascontiguousarray(ids[order], np.int64)
    for start in range(0, len(seeds), config.batch_size):
        seeds[start : start + config.batch_size].sort()
    return seeds


class BatchSampler:
    """Draws batches on the fly: the same that the sample stage writes.

    Holds the topology (memory or map), the sampler's scratch memory and the labels.

    Args:
        share: Of the free budget, how much the scratch memory may take, and then how much the topology.
    """

    def __init__(self, graph: Graph, config: SampleConfig, runtime: Runtime, *, share: float = 0.5):
        self.graph, self.config = graph, config
        self._runtime = runtime
        # The sampler's scratch and the results that wait first: the topology can also be mapped.
        # Each batch that is drawn takes its worst case twice. Where memory is short, fewer are drawn at a time.
        worst, most = _worst_case_bytes(config, graph), int(runtime.budget.free_bytes * share) // 2
        threads = min(max(most // worst, 1), runtime.workers.threads)
        self._workers = runtime.workers if threads == runtime.workers.threads else _core.WorkerPool(threads)
        per_batch = max(min(worst, most // threads), 1)
        self._scratch = runtime.budget.reserve("sampler", 2 * threads * per_batch)
        self.topology = load_topology(graph, runtime, share=share)
        self._sampler = _core.NeighborSampler(
            self._workers,
            self.topology.indptr,
            self.topology.indices,
            list(config.fanouts),
            config.replace,
            config.seed,
            per_batch,
        )
        self._labels = graph.array(runtime, "labels").memmap() if graph.has("labels") else None

    def batches(self, split: str, epoch: int, seeds: np.ndarray) -> Iterator[BatchGraph]:
        """All batches of one epoch, in order, as many at a time as there are threads."""
        size, wave = self.config.batch_size, self._workers.threads
        count = -(-len(seeds) // size)
        for first in range(0, count, wave):
            offsets = np.minimum(
                np.arange(first, min(first + wave, count) + 1, dtype=np.int64) * size, len(seeds)
            )
            for parts in self._sampler.sample(seeds, offsets, SPLIT_CODES[split], epoch, first):
                yield self._finish(*parts)

    def _finish(
        self, n_id: np.ndarray, rowptr: np.ndarray, col: np.ndarray, nodes: list[int], edges: list[int]
    ) -> BatchGraph:
        seeds = n_id[: nodes[0]]
        labels = (
            np.full(len(seeds), -1, np.int64)
            if self._labels is None
            else self._labels[seeds].astype(np.int64)
        )
        degree = None
        if self.config.degrees:
            degree = np.zeros(len(n_id), np.int32)
            self._sampler.degrees(n_id, degree)
        if len(labels) and not -1 <= labels.min() <= labels.max() < self.graph.num_classes:
            raise FormatError(
                f"{self.graph.path}: labels from {labels.min()} to {labels.max()} were read, there are "
                f"{self.graph.num_classes} classes; run outcrop verify"
            )
        return BatchGraph(n_id, rowptr, col, tuple(nodes), tuple(edges), labels, degree)


def _worst_case_bytes(config: SampleConfig, graph: Graph) -> int:
    """Bytes that one batch can need at the most while it is sampled (core/graph/sampler.cpp, check_memory)."""
    frontier, edges, last = min(config.batch_size, graph.num_nodes), 0, 0
    for fanout in config.fanouts:
        last = graph.num_edges if fanout == -1 else min(frontier * fanout, graph.num_edges)
        edges += last
        frontier = min(last, graph.num_nodes)
    nodes = min(config.batch_size + edges, graph.num_nodes) + last
    return 12 * nodes + 2 * 12 * 4 * max(nodes, 64) + 4 * edges + 20 * last + _MIB


def split_ids(graph: Graph, runtime: Runtime, split: str) -> np.ndarray:
    """Node ids of ``split``; empty where the graph has none."""
    return graph.split(runtime, split) if graph.has(split) else np.zeros(0, np.int64)
