"""What the tests of inference share: a graph with every oddity, checkpoints without training, and the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.checkpoint import Checkpoint, Meta
from outcrop.nn.convs import GINConv
from outcrop.nn.models import Model, build_model
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.testing import write_graph
from run_support import random_features

HUB = 3
# Begins a script whose process is killed when progress has been told DIE_AFTER times.
DYING_PROGRESS = """
import os, sys
class Progress:
    left = int(os.environ["DIE_AFTER"])
    def start(self, *a): self.step()
    def finish(self, *a): self.step()
    def advance(self, *a): self.step()
    def step(self):
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), 9)
"""


def odd_edges(nodes: int, edges: int, seed: int = 0, hub_edges: int = 0) -> np.ndarray:
    """Skewed sources; some loops, repeated edges, a hub, and the last tenth of the nodes without any edge."""
    rng = np.random.default_rng(seed)
    live = nodes - nodes // 10
    found = [np.stack([(rng.random(edges) ** 2 * live).astype(np.int64), rng.integers(0, live, edges)])]
    loops = rng.choice(live, 20)
    found += [np.stack([loops, loops]), found[0][:, :15]]
    found.append(np.stack([rng.integers(0, live, hub_edges), np.full(hub_edges, HUB)]))
    return np.concatenate(found, 1)


def odd_graph(
    path: Path,
    runtime: Runtime,
    *,
    nodes: int = 3000,
    edges: int = 20000,
    width: int = 50,
    dtype: str = "float32",
    hub_edges: int = 6000,
) -> tuple[Graph, np.ndarray]:
    """The graph, and its edges int64 [2, E]."""
    edge_index = odd_edges(nodes, edges, hub_edges=hub_edges)
    graph = write_graph(
        path,
        edge_index,
        nodes,
        runtime,
        features=random_features(nodes, width, dtype),
        feature_dtype=dtype,
        labels=np.arange(nodes) % 5,
        splits={"train": np.arange(0, nodes, 7)},
    )
    return graph, edge_index


def as_float(features: np.ndarray, dtype: str) -> torch.Tensor:
    if dtype == "bfloat16":
        features = (features.astype(np.uint32) << 16).view(np.float32)
    return torch.from_numpy(features.astype(np.float32))


def a_model(
    name: str, in_dim: int, classes: int, *, layers: int = 2, hidden: int = 16, heads: int = 2
) -> Model:
    """With biases that are not zero."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = build_model(name, in_dim, hidden, classes, layers, heads=heads, dropout=0.5)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def a_conv(name: str, width: int, out: int) -> torch.nn.Module:
    """A layer alone, of torch_geometric."""
    if name != "gin":
        return a_model(name, width, 3, hidden=out).convs[0]
    with torch.random.fork_rng():
        torch.manual_seed(4)
        network = torch.nn.Sequential(torch.nn.Linear(width, 9), torch.nn.ReLU(), torch.nn.Linear(9, out))
        return GINConv(network, eps=0.3)


def save(folder: Path, graph: Graph, name: str, model: Model, **changes: object) -> Path:
    """As training would have left it."""
    conv = model.convs[0]
    config = {
        "model": name,
        "in_dim": graph.feature_dim,
        "hidden": 16,
        "num_classes": graph.num_classes,
        "layers": model.num_layers,
        "heads": getattr(conv, "heads", 2) if model.num_layers > 1 else 2,
        "dropout": 0.5,
        **changes,
    }
    inputs = {"graph": graph.digest(), "sampling": {"fanouts": [4, 3], "batch_size": 16}}
    checkpoints.write(
        folder / checkpoints.BEST, Checkpoint(Meta(1, 0, config, inputs), dict(model.state_dict()))
    )
    return folder


@torch.no_grad()
def reference(model: Model, x: torch.Tensor, edge_index: np.ndarray, depth: int | None = None) -> np.ndarray:
    """torch_geometric's layers on the whole graph in memory."""
    edges = torch.from_numpy(edge_index)
    depth = model.num_layers if depth is None else depth
    for index in range(depth):
        conv = model.convs[index]
        x = conv(x, edges)
        if index < model.num_layers - 1:
            x = F.elu(x) if type(conv).__name__ == "GATConv" else F.relu(x)
    return x.numpy()
