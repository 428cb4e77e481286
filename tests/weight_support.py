"""A graph with edge weights, some of them 0, with loops and a hub: what tests of weights share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import outcrop as oc
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph

NODES, EDGES, CLASSES, DIM = 600, 5000, 4, 6
HUB, SILENT = 3, 7  # a node with many edges, one whose edges all weigh nothing


def parts_of(weights: str = "any") -> dict[str, np.ndarray]:
    """Edges of two kinds: heavy ones lead from nodes of the class, light ones from any; some are loops."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, NODES)
    edges = rng.integers(0, NODES, (EDGES, 2))
    edges[: EDGES // 10, 1] = HUB
    loops = np.union1d(rng.choice(NODES, 40, replace=False), [SILENT])
    edges = np.unique(np.concatenate([edges, np.stack([loops, loops], 1)]), axis=0)
    rng.shuffle(edges)
    heavy = labels[edges[:, 0]] == labels[edges[:, 1]]
    weight = np.where(heavy, 4.0, 0.1) * rng.random(len(edges))
    weight[rng.random(len(edges)) < 0.05] = 0
    weight[edges[:, 1] == SILENT] = 0
    features = rng.normal(size=(NODES, DIM)) + 0.8 * np.eye(CLASSES, DIM)[labels]
    found = {"edges": edges, "features": features.astype(np.float32), "labels": labels}
    if weights == "none":
        return found
    return found | {"edge_weight": (np.ones(len(edges)) if weights == "ones" else weight).astype(np.float32)}


def imported(path: Path, weights: str = "any") -> Graph:
    splits = {"train": np.arange(300), "valid": np.arange(300, 450), "test": np.arange(450, NODES)}
    return oc.import_graph(parts_of(weights), path, splits=splits, progress=False)


def whole(weights: str = "any") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, edge_index and weights of the whole graph in float64, of the parts that it was imported from."""
    parts = parts_of(weights)
    weight = parts.get("edge_weight", np.ones(len(parts["edges"])))
    return (
        torch.from_numpy(parts["features"]).double(),
        torch.from_numpy(parts["edges"].T.copy()),
        torch.from_numpy(weight).double(),
    )


def draw(graph: Graph, topology: str = "memory", steps: bool = False, **options: Any) -> list[BatchGraph]:
    options = {"degrees": options.get("sampler") != "shadow", "edge_weights": True, **options}
    config = oc.SampleConfig(**{"fanouts": (6, 4), "batch_size": 40, **options})
    with Runtime("16MiB", threads=2) as runtime:
        sampler = BatchSampler(graph, config, runtime, topology=topology)
        if steps:
            return [sampler.sample(seeds, lambda nodes: None) for seeds in sampler.seeds("train", 0)]
        return list(sampler.epoch("train", 0))
