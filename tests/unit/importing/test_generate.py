"""Generated graphs: exact counts, the same bytes for any budget and thread count, and labels that neighbours reveal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv

from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError
from outcrop.importing.generate import generate_graph
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.verify import describe, verify_artifact
from support import held_bytes, new_runtime

TORTURED = True
SMALL = {"nodes": 3000, "edges": 40_000, "features": 24, "classes": 5, "seed": 3}


def topology(graph: Graph, runtime: Runtime) -> tuple[np.ndarray, np.ndarray]:
    """(sources, targets) of all edges."""
    indptr, indices = (graph.array(runtime, name).memmap() for name in ("indptr", "indices"))
    return indices.astype(np.int64), np.repeat(np.arange(graph.num_nodes), np.diff(indptr))


@pytest.mark.parametrize("kind", ["sbm", "rmat"])
@pytest.mark.parametrize(
    ("nodes", "edges"), [(1, 0), (2, 2), (7, 42), (100, 0), (100, 9900), (1000, 1), (1025, 20_000)]
)
def test_exact_counts_and_distinct_edges(tmp_path: Path, kind: str, nodes: int, edges: int) -> None:
    runtime = new_runtime("16MiB")
    graph = generate_graph(
        tmp_path / "g", runtime, kind=kind, nodes=nodes, edges=edges, features=3, classes=1
    )
    src, dst = topology(graph, runtime)
    assert (graph.num_nodes, graph.num_edges, len(src)) == (nodes, edges, edges)
    assert len(set(zip(src.tolist(), dst.tolist(), strict=True))) == edges
    assert not (src == dst).any()
    verify_artifact(tmp_path / "g", runtime)
    assert held_bytes(runtime) == 0


@pytest.mark.parametrize("kind", ["sbm", "rmat"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_same_bytes_for_any_budget_and_threads(tmp_path: Path, kind: str, dtype: str) -> None:
    digests = set()
    for i, (memory, threads) in enumerate([("8MiB", 1), (None, 2), ("64MiB", 3)]):
        runtime = new_runtime(memory, threads=threads)
        graph = generate_graph(tmp_path / str(i), runtime, kind=kind, dtype=dtype, **SMALL)
        digests.add(graph.digest())
    assert len(digests) == 1
    other = generate_graph(tmp_path / "other", new_runtime(), kind=kind, dtype=dtype, **{**SMALL, "seed": 4})
    assert other.spec("indices").crc32c != graph.spec("indices").crc32c
    assert other.spec("features").crc32c != graph.spec("features").crc32c


def test_dtypes_hold_the_same_values(tmp_path: Path) -> None:
    runtime = new_runtime()
    features = {
        dtype: generate_graph(tmp_path / dtype, runtime, dtype=dtype, **SMALL)
        .array(runtime, "features")
        .memmap()
        for dtype in ("float32", "float16", "bfloat16", "int8")
    }
    wide = torch.tensor(np.array(features["float32"]))
    assert torch.equal(torch.tensor(np.array(features["float16"])), wide.half())
    assert torch.equal(
        torch.tensor(np.array(features["bfloat16"]).view(np.int16)).view(torch.bfloat16), wide.bfloat16()
    )
    scaled = describe(tmp_path / "int8")["attributes"]["feature_scale"] * features["int8"].astype(np.float32)
    assert np.abs(scaled - np.clip(features["float32"], -127 / 32, 127 / 32)).max() <= 1 / 64


def test_sbm_degrees_are_a_power_law_spread_over_the_ids(tmp_path: Path) -> None:
    runtime = new_runtime()
    graph = generate_graph(
        tmp_path / "g", runtime, nodes=20_000, edges=300_000, features=0, classes=10, seed=1, skew=0.6
    )
    src, dst = topology(graph, runtime)
    for ends in (src, dst):
        degree = np.sort(np.bincount(ends, minlength=graph.num_nodes))[::-1]
        share = degree[: graph.num_nodes // 10].sum() / graph.num_edges
        assert 0.3 < share < 0.5  # 0.1 ** (1 - skew) = 0.40
    hot = np.flatnonzero(np.bincount(dst) >= np.sort(np.bincount(dst))[-2000])
    assert np.abs(np.histogram(hot, 10, (0, graph.num_nodes))[0] - 200).max() < 80
    labels = graph.array(runtime, "labels").memmap()
    assert np.bincount(labels).tolist() == [2000] * 10
    assert abs((labels[src] == labels[dst]).mean() - (0.6 + 0.4 / 10)) < 0.02


def test_rmat_in_degrees_are_the_expected_ones(tmp_path: Path) -> None:
    runtime, scale, edges = new_runtime(), 10, 8000
    graph = generate_graph(
        tmp_path / "g", runtime, kind="rmat", nodes=1 << scale, edges=edges, features=0, classes=2
    )
    src, dst = topology(graph, runtime)
    ones = np.array([v.bit_count() for v in range(1 << scale)])
    expected = np.sort(edges * 0.24**ones * 0.76 ** (scale - ones))
    assert np.abs(np.sort(np.bincount(dst, minlength=1 << scale)) - expected).max() <= 2
    assert np.bincount(src).max() > 100


def test_splits_are_exact_disjoint_and_ascending(tmp_path: Path) -> None:
    runtime = new_runtime()
    graph = generate_graph(
        tmp_path / "g", runtime, train_fraction=0.01, valid_fraction=0.25, test_fraction=0.74, **SMALL
    )
    splits = [graph.split(runtime, name) for name in SPLITS]
    assert [len(ids) for ids in splits] == [30, 750, 2220]
    assert np.array_equal(np.sort(np.concatenate(splits)), np.arange(3000))
    assert all((np.diff(ids) > 0).all() for ids in splits)


def test_peak_memory_is_independent_of_size(tmp_path: Path) -> None:
    runtime = new_runtime("6MiB")
    graph = generate_graph(tmp_path / "g", runtime, nodes=50_000, edges=2_000_000, features=100, classes=4)
    assert graph.feature_bytes > 3 * (6 << 20)
    assert runtime.budget.peak_bytes <= 6 << 20
    verify_artifact(tmp_path / "g", runtime)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0},
        {"nodes": 10, "edges": 91},
        {"edges": -1},
        {"classes": 0},
        {"nodes": 3, "edges": 1, "classes": 4},
        {"homophily": 1.5},
        {"skew": 1.0},
        {"kind": "er"},
        {"dtype": "float64"},
        {"train_fraction": 0.9, "valid_fraction": 0.2},
        {"kind": "rmat", "a": 0.9},
        {"features": -1},
    ],
)
def test_impossible_graphs_are_refused(tmp_path: Path, wrong: dict) -> None:
    with pytest.raises(ArgumentError):
        generate_graph(tmp_path / "g", new_runtime(), **wrong)
    assert list(tmp_path.iterdir()) == []


class _Sage(torch.nn.Module):
    def __init__(self, dim: int, classes: int):
        super().__init__()
        self.first, self.second = SAGEConv(dim, 32), SAGEConv(32, classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.first(x, edge_index)), edge_index)


def _accuracy(
    model: torch.nn.Module, inputs: tuple, labels: torch.Tensor, train: torch.Tensor, test: torch.Tensor
) -> float:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03, weight_decay=1e-3)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(*inputs)[train], labels[train]).backward()
        optimizer.step()
    with torch.no_grad():
        return (model(*inputs)[test].argmax(1) == labels[test]).float().mean().item()


def test_neighbours_reveal_the_label(tmp_path: Path) -> None:
    """A linear model on single rows is right about half the time, two layers of GraphSAGE clearly more often."""
    torch.manual_seed(0)
    runtime = new_runtime()
    graph = generate_graph(
        tmp_path / "g", runtime, nodes=4000, edges=50_000, features=32, classes=8, train_fraction=0.4
    )
    x, labels, train, test = (
        torch.tensor(np.array(graph.array(runtime, name).memmap()))
        for name in ("features", "labels", "train", "test")
    )
    edge_index = torch.tensor(np.stack(topology(graph, runtime)))
    single = _accuracy(torch.nn.Linear(32, 8), (x,), labels, train, test)
    sage = _accuracy(_Sage(32, 8), (x, edge_index), labels, train, test)
    print("accuracy of single rows", single, "of GraphSAGE", sage)
    assert 0.35 < single < 0.65
    assert sage > 0.8
    assert sage > single + 0.2
