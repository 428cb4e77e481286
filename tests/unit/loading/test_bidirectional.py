"""Edges of batches both ways: sets in plain Python, and torch_geometric's own conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.sampler import NumNeighbors, SamplerOutput

import outcrop as oc
from outcrop.errors import ArgumentError, OutcropWarning
from outcrop.loading.bidirectional import both_ways
from outcrop.nn.convs import HeteroData
from outcrop.pyg import NeighborLoader

NODES, EDGES = 60, 400
LONELY = 17  # no edge leads there


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> oc.Graph:
    """Its edges have features and weights, each its own."""
    rng = np.random.default_rng(0)
    edges = np.unique(rng.integers(0, NODES, (2, EDGES)), axis=1)
    edges = edges[:, edges[1] != LONELY]
    number = np.arange(edges.shape[1], dtype=np.float32)
    parts = {
        "edges": edges,
        "features": np.eye(NODES, dtype="f4"),
        "edge_features": number[:, None],
        "edge_weight": number + 1,
        "labels": np.zeros(NODES, np.int64),
    }
    return oc.import_graph(
        parts, tmp_path_factory.mktemp("both") / "g.oc", oc.ImportConfig(num_nodes=NODES), progress=False
    )


def loader(
    graph: oc.Graph, subgraph_type: str, num_neighbors: Any = (3, 2), **options: Any
) -> NeighborLoader:
    return NeighborLoader(
        graph, num_neighbors, batch_size=7, seed=3, subgraph_type=subgraph_type, edge_ids=True, **options
    )


def pairs(edge_index: torch.Tensor) -> list[tuple[int, int]]:
    return list(zip(*edge_index.tolist(), strict=True))


def test_each_edge_has_the_one_that_leads_back(graph: oc.Graph) -> None:
    batches = 0
    for drawn, both in zip(loader(graph, "directional"), loader(graph, "bidirectional"), strict=True):
        known = set(pairs(drawn.edge_index))
        found = pairs(both.edge_index)
        assert len(found) == len(set(found))
        assert set(found) == known | {(b, a) for a, b in known}
        assert found == sorted(found, key=lambda edge: edge[::-1])
        theirs = SamplerOutput(both.n_id, *drawn.edge_index, edge=drawn.e_id).to_bidirectional()
        assert torch.equal(torch.stack([theirs.row, theirs.col]), both.edge_index)
        own = {edge: at for at, edge in enumerate(pairs(drawn.edge_index))}
        taken = [own[a, b] if (a, b) in own else own[b, a] for a, b in found]
        for name in ("e_id", "edge_attr", "edge_weight"):
            assert torch.equal(both[name], drawn[name][taken])
        assert torch.equal(both.n_id, drawn.n_id)
        assert torch.equal(both.x, drawn.x)
        assert "num_sampled_edges" not in both
        assert "num_sampled_nodes" not in both
        batches += 1
    assert batches == 9


def test_a_transform_sees_both_ways(graph: oc.Graph) -> None:
    seen = [batch for batch in loader(graph, "bidirectional", transform=lambda batch: batch.edge_index)]
    assert all(set(pairs(one)) == {(b, a) for a, b in pairs(one)} for one in seen)


def test_a_batch_without_edges(graph: oc.Graph) -> None:
    (batch,) = loader(graph, "bidirectional", input_nodes=[LONELY])
    assert batch.n_id.tolist() == [LONELY]
    assert batch.edge_index.shape == (2, 0)
    assert batch.edge_attr.shape == (0, 1)


def typed(folder: Path) -> oc.Graph:
    rng = np.random.default_rng(1)
    data = HeteroData()
    data["user"].x, data["item"].x = torch.eye(20), torch.eye(30)
    data["user"].y = torch.zeros(20, dtype=torch.int64)

    def edges(sources: int, targets: int) -> torch.Tensor:
        return torch.from_numpy(
            np.unique(np.stack([rng.integers(0, sources, 80), rng.integers(0, targets, 80)]), axis=1)
        )

    data["user", "buys", "item"].edge_index = edges(20, 30)
    data["item", "rev_buys", "user"].edge_index = edges(30, 20)
    data["user", "knows", "user"].edge_index = edges(20, 20)
    return oc.import_graph(data, folder / "typed.oc", progress=False)


def test_types_lead_back_in_their_reverse(tmp_path: Path) -> None:
    graph = typed(tmp_path)
    buys, back, knows = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")
    batches = 0
    for drawn, both in zip(loader(graph, "directional"), loader(graph, "bidirectional"), strict=True):
        forth = set(pairs(drawn[buys].edge_index)) | {(b, a) for a, b in pairs(drawn[back].edge_index)}
        assert set(pairs(both[buys].edge_index)) == forth
        assert set(pairs(both[back].edge_index)) == {(b, a) for a, b in forth}
        within = set(pairs(drawn[knows].edge_index))
        assert set(pairs(both[knows].edge_index)) == within | {(b, a) for a, b in within}
        assert all("e_id" not in both[key] for key in (buys, back, knows))
        assert both.validate()
        assert "num_sampled_nodes" not in both["user"]
        batches += 1
    assert batches == 3


def test_types_that_no_type_leads_back_from_are_told() -> None:
    batch = HeteroData()
    batch["user"].num_nodes = batch["item"].num_nodes = 2
    batch["user", "buys", "item"].edge_index = torch.tensor([[0], [1]])
    batch["user", "buys", "item"].e_id = torch.tensor([5])
    with pytest.warns(OutcropWarning, match=r"buys.*stay as they were drawn"):
        both = both_ways(batch)
    assert both["user", "buys", "item"].edge_index.tolist() == [[0], [1]]
    assert both["user", "buys", "item"].e_id.tolist() == [5]


def test_numbers_of_neighbours_as_torch_geometric_has_them(tmp_path: Path) -> None:
    graph = typed(tmp_path)
    given = {("user", "buys", "item"): [2, 1]}
    listed = {of.key: given.get(of.key, [3, 2]) for of in graph.edge_types}
    ours = loader(graph, "directional", NumNeighbors(given, default=[3, 2]))
    for one, other in zip(ours, loader(graph, "directional", listed), strict=True):
        assert all(torch.equal(one[key].edge_index, other[key].edge_index) for key in listed)
    with pytest.raises(
        ArgumentError, match=r"Missing number of neighbors.*knows|Missing number of neighbors"
    ):
        loader(graph, "directional", NumNeighbors(given))


def test_a_list_in_torch_geometrics_class(graph: oc.Graph) -> None:
    ours = loader(graph, "directional", NumNeighbors([3, 2]))
    assert [one.e_id.tolist() for one in ours] == [one.e_id.tolist() for one in loader(graph, "directional")]
