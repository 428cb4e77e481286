"""Mini-batches by brute force, in plain Python: what samplers and loaders are compared with, and models are fed by."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outcrop.store.batches import BatchGraph, Edges, Nodes
from outcrop.store.minibatch import MiniBatch

Adjacency = list[list[int]]


def random_adjacency(num_nodes: int, degree: int, seed: int, *, loops: bool = True) -> Adjacency:
    """In-neighbours per node, ascending, 0 to 2 * degree of them."""
    rng = random.Random(seed)
    out = []
    for node in range(num_nodes):
        chosen = set(rng.sample(range(num_nodes), rng.randint(0, min(2 * degree, num_nodes))))
        out.append(sorted(chosen if loops else chosen - {node}))
    return out


def symmetric(adjacency: Adjacency) -> Adjacency:
    pairs = {(u, v) for v, sources in enumerate(adjacency) for u in sources}
    pairs |= {(v, u) for u, v in pairs}
    return [sorted(u for u in range(len(adjacency)) if (u, v) in pairs) for v in range(len(adjacency))]


def sample(
    adjacency: Adjacency,
    seeds: Sequence[int],
    fanouts: Sequence[int],
    seed: int = 0,
    labels: Sequence[int] | None = None,
) -> BatchGraph:
    """Neighbour sampling without replacement: at most fanout (-1: all) in-neighbours per node and hop."""
    rng = random.Random(seed)
    n_id, nodes_per_hop, edges_per_hop = list(seeds), [len(seeds)], []
    frontier, rows = list(seeds), []
    for fanout in fanouts:
        picks = [
            list(adjacency[v])
            if fanout < 0 or len(adjacency[v]) <= fanout
            else rng.sample(adjacency[v], fanout)
            for v in frontier
        ]
        new = sorted({u for pick in picks for u in pick} - set(n_id))
        n_id += new
        rows += picks
        nodes_per_hop.append(len(new))
        edges_per_hop.append(sum(map(len, picks)))
        frontier = new
    local = {node: index for index, node in enumerate(n_id)}
    return BatchGraph.of_one_type(
        np.array(n_id, np.int64),
        np.cumsum([0, *map(len, rows)]).astype(np.int32),
        np.array([local[u] for pick in rows for u in pick], np.int32),
        tuple(nodes_per_hop),
        tuple(edges_per_hop),
        np.array([-1] * len(seeds) if labels is None else [labels[v] for v in seeds], np.int64),
    )


def parts_of(graph: BatchGraph) -> dict[str, Any]:
    """What a batch of one type consists of, by name: what :func:`made_of` puts together again."""
    nodes, edges = vars(graph.nodes[0]), vars(graph.edges[0])
    rest = {name: value for name, value in vars(graph).items() if name not in ("nodes", "edges")}
    return {
        "n_id": nodes["ids"],
        "nodes_per_hop": nodes["per_hop"],
        "edges_per_hop": edges["per_hop"],
        **{name: value for name, value in edges.items() if name != "per_hop"},
        **rest,
    }


def made_of(parts: dict[str, Any]) -> BatchGraph:
    """The batch of one type that consists of ``parts``."""
    rest = dict(parts)
    nodes = Nodes(rest.pop("n_id"), rest.pop("nodes_per_hop"))
    csr = {name: rest.pop(name) for name in ("rowptr", "col", "positions", "weight", "distinct")}
    return BatchGraph((nodes,), (Edges(per_hop=rest.pop("edges_per_hop"), **csr),), **rest)


def deliver(graph: BatchGraph, features: torch.Tensor, degrees: Sequence[int] | None = None) -> MiniBatch:
    """The batch with its rows: ``x = features[n_id]``."""
    n_id = torch.from_numpy(graph.n_id)
    degree = None if degrees is None else torch.tensor(degrees, dtype=torch.int32)[n_id]
    return MiniBatch(graph, (features[n_id],), torch.from_numpy(graph.labels.copy()), degree)


def loopless_degrees(adjacency: Adjacency) -> list[int]:
    return [sum(u != v for u in sources) for v, sources in enumerate(adjacency)]


def shared_data(name: str) -> Path:
    """Folder ``name`` of the shared graphs; skips the test where it is absent."""
    root = Path(
        os.environ.get("OUTCROP_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
    )
    if not (root / name).is_dir():
        pytest.skip(f"{root / name} is not there")
    return root / name
