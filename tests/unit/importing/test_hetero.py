"""Import of a HeteroData, in memory and from a file: what the object has is what the graph has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.transforms import ToUndirected

import outcrop as oc
from outcrop.importing.graph import import_graph
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph

PAPERS, AUTHORS = 30, 20


def hetero() -> HeteroData:
    torch.manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.rand(PAPERS, 5)
    data["paper"].y = torch.arange(PAPERS) % 3
    data["paper"].train_mask = torch.arange(PAPERS) < 10
    data["paper"].val_mask = torch.arange(PAPERS) >= 25
    data["paper"].year = torch.full((PAPERS,), 1999)
    data["author"].x = torch.randint(-9, 9, (AUTHORS, 2), dtype=torch.int16)
    data["venue"].num_nodes = 2
    data["author", "writes", "paper"].edge_index = torch.stack(
        [torch.randint(0, AUTHORS, (70,)), torch.randint(0, PAPERS, (70,))]
    )
    data["paper", "in", "venue"].edge_index = torch.tensor([[0, 3, 29], [1, 0, 1]])
    data["paper", "in", "venue"].edge_attr = torch.tensor([[0.5], [2.0], [1.0]])
    return data


def imported(data: Any, folder: Path, **options: Any) -> Graph:
    with Runtime() as runtime:
        return import_graph(data, folder / "g.oc", runtime, oc.ImportConfig(**options))


def saved(data: Any, folder: Path) -> str:
    torch.save(data, folder / "h.pt")
    return f"pyg:{folder / 'h.pt'}"


def read(graph: Graph, name: str) -> np.ndarray:
    with Runtime() as runtime:
        return graph.array(runtime, name).read("test")


def check(graph: Graph, data: HeteroData) -> None:
    assert [one.name for one in graph.node_types] == data.node_types
    assert [one.num_nodes for one in graph.node_types] == [data[t].num_nodes for t in data.node_types]
    assert [one.key for one in graph.edge_types] == data.edge_types
    for key in data.edge_types:
        edges = np.unique(data[key].edge_index.numpy(), axis=1)
        assert np.array_equal(graph.edge_index(key), edges[:, np.lexsort(edges)])
    assert np.array_equal(read(graph, "n0.features"), data["paper"].x.numpy())
    assert np.array_equal(read(graph, "n1.features"), data["author"].x.numpy())
    assert np.array_equal(read(graph, "n0.labels"), data["paper"].y.numpy())
    assert read(graph, "n0.train").tolist() == list(range(10))
    assert read(graph, "n0.valid").tolist() == list(range(25, 30))


def test_an_object(tmp_path):
    data = hetero()
    graph = imported(data, tmp_path)
    check(graph, data)
    assert read(graph, "edge_weight").tolist() == [2.0, 0.5, 1.0]
    assert any("the HeteroData: paper that are not imported: year" in note for note in graph.notes)


@pytest.mark.parametrize("form", [lambda data: data, lambda data: data.to_dict()])
def test_a_file(tmp_path, form):
    data = hetero()
    graph = imported(saved(form(data), tmp_path), tmp_path)
    check(graph, data)
    assert graph.digest() != imported(data, tmp_path).digest()  # the manifest says where it is from
    assert any("h.pt: paper that are not imported: year" in note for note in graph.notes)


def test_reverses_of_the_object_are_edge_types_as_they_are(tmp_path):
    data = ToUndirected()(hetero())
    graph = imported(data, tmp_path)
    check(graph, data)
    assert ("venue", "rev_in", "paper") in [one.key for one in graph.edge_types]


def test_lists_of_sources_in_place_of_pairs(tmp_path):
    data = hetero()
    index = data["author", "writes", "paper"].edge_index
    edges = torch.unique(index.flip(0), dim=1)
    adjacency = torch.sparse_coo_tensor(edges, torch.ones(edges.shape[1]), (PAPERS, AUTHORS)).to_sparse_csr()
    data["author", "writes", "paper"].adj_t = adjacency
    del data["author", "writes", "paper"].edge_index
    graph = imported(saved(data, tmp_path), tmp_path)
    found = graph.edge_index(("author", "writes", "paper"))
    wanted = np.unique(index.numpy(), axis=1)
    assert np.array_equal(found, wanted[:, np.lexsort(wanted)])


def _without(name: str, key: Any) -> HeteroData:
    data = hetero()
    del data[key][name]
    return data


def _with(key: Any, **values: Any) -> HeteroData:
    data = hetero()
    for name, value in values.items():
        data[key][name] = value
    return data


CASES = [
    (
        lambda: _without("num_nodes", "venue"),
        r"venue does not tell how many nodes .*data\['venue'\].num_nodes = N",
    ),
    (lambda: _without("edge_index", ("paper", "in", "venue")), "paper in venue has no edge_index"),
    (lambda: _with("author", num_nodes=7), "author.* has 7 rows, .*author: x has 20 rows"),
    (lambda: _with("paper", y=torch.zeros(4)), "paper: x has 30 rows, .*paper: y has 4 rows"),
    (
        lambda: _with(("paper", "in", "venue"), edge_index=torch.tensor([[0, 3, 9], [1, 0, 2]])),
        r"paper in venue: edge_index, edge 2 .* names node 2 of 'venue', but nodes 'venue' are 0 to 1",
    ),
    (
        lambda: _with(("paper", "in", "venue"), edge_index=torch.zeros(3, 2).long()),
        r"edge_index has shape \(3, 2\)",
    ),
    (
        lambda: _with(("paper", "in", "city"), edge_index=torch.zeros(2, 2).long()),
        "paper in city: 'city' is no node type",
    ),
    (lambda: _with("venue", num_nodes=1 << 40), "tells of 1099511627776 nodes 'venue', and has 73 edges"),
]


@pytest.mark.parametrize(("make", "match"), CASES[:-1])
def test_what_contradicts_itself_is_refused_in_memory(tmp_path, make, match):
    with pytest.raises((oc.ArgumentError, oc.FormatError), match=match):
        imported(make(), tmp_path)


@pytest.mark.parametrize(("make", "match"), CASES)
def test_what_contradicts_itself_is_refused_in_a_file(tmp_path, make, match):
    with pytest.raises((oc.ArgumentError, oc.FormatError), match=match) as caught:
        imported(saved(make(), tmp_path), tmp_path)
    if "shape" not in match:
        assert "h.pt" in str(caught.value)
