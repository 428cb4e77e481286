"""Small graphs in CSC form and mini-batches drawn from them by the core, for tests of samplers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from outcrop import _core
from outcrop.store.batches import BatchGraph

Csc = tuple[np.ndarray, np.ndarray]
RARE = 1e-6  # a correct sampler fails a frequency test with this probability; the keys are fixed, so it never does


def csc(adjacency: Sequence[Sequence[int]]) -> Csc:
    indptr = np.cumsum([0, *map(len, adjacency)]).astype(np.int64)
    return indptr, np.array([u for sources in adjacency for u in sources], np.int64)


def random_csc(nodes: int, edges: int, seed: int) -> Csc:
    """A simple graph with loops and isolated nodes, skewed: some nodes have most of the edges."""
    rng = np.random.default_rng(seed)
    pairs = np.unique((rng.random((edges, 2)) ** [3, 2] * nodes).astype(np.int64), axis=0)
    pairs = pairs[pairs[:, 1] % 7 != 6]
    indptr = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(pairs[:, 1], minlength=nodes), out=indptr[1:])
    return indptr, pairs[np.lexsort((pairs[:, 0], pairs[:, 1])), 0]


def draw(
    graph: Csc,
    seeds: Sequence[Sequence[int]],
    fanouts: Sequence[int],
    *,
    split: int = 0,
    epoch: int = 0,
    first_batch: int = 0,
    threads: int = 1,
    dtype: type = np.uint32,
    **options: Any,
) -> list[BatchGraph]:
    indptr, indices = graph
    sampler = _core.NeighborSampler(
        _core.WorkerPool(threads), indptr, indices.astype(dtype), list(fanouts), **options
    )
    flat = np.array([s for batch in seeds for s in batch], np.int64)
    offsets = np.cumsum([0, *map(len, seeds)]).astype(np.int64)
    drawn = sampler.sample(flat, offsets, split, epoch, first_batch)
    untrimmed = options.get("sampler") == "shadow"
    return [
        BatchGraph.of_one_type(
            n, r, c, tuple(nodes), tuple(edges), np.zeros(nodes[0], np.int64), untrimmed=untrimmed
        )
        for n, r, c, nodes, edges in drawn
    ]


def same(a: BatchGraph, b: BatchGraph) -> bool:
    return (a.nodes_per_hop, a.edges_per_hop) == (b.nodes_per_hop, b.edges_per_hop) and all(
        np.array_equal(x, y) for x, y in ((a.n_id, b.n_id), (a.rowptr, b.rowptr), (a.col, b.col))
    )
