"""The example for torch_geometric: two changed lines, and the accuracy of the same script in memory."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import numpy_loader
import outcrop
from outcrop.store.graph import Graph
from sparse_reference import features_of
from support import REPOSITORY, shared_path

importlib.import_module("torch_geometric")

EXAMPLE = REPOSITORY / "examples" / "pyg_neighbor_sampling.py"
SEEDS = range(5)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """OpenMP's threads spin at barriers, which takes minutes while others use the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def in_memory(graph: Graph) -> Data:
    masks = {}
    for name, split in (("train_mask", "train"), ("test_mask", "test")):
        ids = np.fromfile(graph.path / f"{split}.bin", "<i8", graph.spec(split).shape[0])
        masks[name] = torch.zeros(graph.num_nodes, dtype=torch.bool)
        masks[name][torch.from_numpy(ids)] = True
    return Data(
        x=torch.from_numpy(features_of(graph)),
        edge_index=torch.from_numpy(graph.edge_index()),
        y=torch.from_numpy(np.fromfile(graph.path / "labels.bin", "<i8", graph.num_nodes)),
        **masks,
    )


def accuracy(source: str, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, **names: Any) -> float:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(folder), str(seed)])
    space: dict[str, Any] = {"__name__": "example", **names}
    exec(compile(source, str(EXAMPLE), "exec"), space)
    return space["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_two_changed_lines_learn_what_the_script_learns_in_memory(name, tmp_path, monkeypatch):
    """Over five seeds, the means of batches from disk and of a plain sampler in memory differ within their noise."""
    place = shared_path(f"gnnbench-{name}", f"{name}.npz")
    graph = outcrop.import_graph(
        f"npz:{place}", tmp_path / "graph", outcrop.ImportConfig(split_protocol="planetoid")
    )
    data = in_memory(graph)
    lines = EXAMPLE.read_text().splitlines()
    before = [
        "from numpy_loader import NeighborLoader" if "# was: from torch_geometric.loader" in line
        else "data = in_memory" if "# was: data = " in line
        else line
        for line in lines
    ]  # fmt: skip
    assert sum(a != b for a, b in zip(before, lines, strict=True)) == 2
    monkeypatch.setitem(sys.modules, "numpy_loader", numpy_loader)
    ours, theirs = (
        [accuracy("\n".join(text), graph.path, seed, monkeypatch, in_memory=data) for seed in SEEDS]
        for text in (lines, before)
    )
    noise = np.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / len(SEEDS))
    assert abs(np.mean(ours) - np.mean(theirs)) <= 3 * noise, (ours, theirs)
    assert min(np.mean(ours), np.mean(theirs)) > {"cora": 0.75, "citeseer": 0.62}[name]


def test_the_numpy_sampler_has_neighborloaders_semantics():
    """What the comparison rests on: distinct in-neighbours, as many as the fanout, each about equally often."""
    source, target = torch.arange(1, 21), torch.zeros(20, dtype=torch.long)
    data = Data(
        x=torch.eye(21), edge_index=torch.stack([source, target]), y=torch.zeros(21, dtype=torch.long)
    )
    torch.manual_seed(0)
    mask = torch.arange(21) == 0
    loader = numpy_loader.NeighborLoader(data, [5], mask, batch_size=1)
    counts = np.zeros(21)
    for _ in range(400):
        for batch in loader:
            assert batch.n_id[0] == 0
            assert len(set(batch.n_id.tolist())) == 6
            assert batch.edge_index.tolist() == [[1, 2, 3, 4, 5], [0] * 5]
            counts[batch.n_id[1:].numpy()] += 1
    assert abs(counts[1:] - 100).max() < 5 * np.sqrt(400 * 0.25 * 0.75)
