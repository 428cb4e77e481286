"""Batches of graphs with types in torch_geometric's form: by hand, and whatever the reference draws."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import trim_to_layer

from outcrop.config import SampleConfig
from outcrop.loading.modes import base
from outcrop.loading.open import open_session
from outcrop.pyg import to_pyg
from outcrop.store.batches import BatchGraph, Edges, Nodes
from outcrop.store.graph import Graph
from outcrop.store.minibatch import MiniBatch
from run_support import a_graph
from section_support import ReferenceSampler, SectionGraph, section_graph

PAPER, AUTHOR, TOPIC = range(3)
CITES, WRITES, ABOUT = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("topic", "about", "paper")


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Papers with rows of 128, cited with rows of 1; authors of 64, writing with 16; topics of 32."""
    return section_graph(tmp_path / "g", names=("paper", "author", "topic"))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def by_hand() -> MiniBatch:
    """Seeds are papers 7 and 9; 7 is cited by 3 and written by author 5, 9 by authors 5 and 6, who no paper follows."""
    nodes = (
        Nodes(ints(7, 9, 3), (2, 1, 0)),
        Nodes(ints(5, 6), (0, 2, 0)),
        Nodes(ints(), (0, 0, 0)),
    )
    cites = Edges(np.array([0, 1, 1, 2], np.int32), np.array([2, 1], np.int32), (1, 1), ints(40, 12))
    writes = Edges(np.array([0, 1, 3, 3], np.int32), np.array([0, 0, 1], np.int32), (3, 0), ints(8, 10, 11))
    about = Edges(np.zeros(4, np.int32), np.zeros(0, np.int32), (0, 0), weight=np.zeros(0, np.float32))
    structure = BatchGraph(nodes, (cites, writes, about), ints(1, -1))
    widths = ((3, 128), (2, 64), (0, 32), (2, 1), (3, 16))  # of the row files: node types, then edge types
    rows = tuple(torch.rand(shape) for shape in widths)
    return MiniBatch(structure, rows, torch.from_numpy(structure.labels))


def test_fields_of_a_batch_made_by_hand(graph):
    batch = by_hand()
    data = to_pyg(batch, graph, number=4, input_id=ints(70, 90))
    assert isinstance(data, HeteroData)
    assert data.validate()
    assert data.node_types == ["paper", "author", "topic"]
    assert data.edge_types == [CITES, WRITES, ABOUT]
    assert data["paper"].n_id.tolist() == [7, 9, 3]
    assert data["author"].n_id.tolist() == [5, 6]
    assert data["topic"].n_id.tolist() == []
    assert data.num_sampled_nodes_dict == {"paper": [2, 1, 0], "author": [0, 2, 0], "topic": [0, 0, 0]}
    assert data.num_sampled_edges_dict == {CITES: [1, 1], WRITES: [3, 0], ABOUT: [0, 0]}
    assert data[CITES].edge_index.tolist() == [[2, 1], [0, 2]]
    assert data[WRITES].edge_index.tolist() == [[0, 0, 1], [0, 1, 1]]
    assert data[ABOUT].edge_index.shape == (2, 0)
    assert data[CITES].e_id.tolist() == [40, 12]
    assert data[WRITES].e_id.tolist() == [8, 10, 11]
    assert "e_id" not in data[ABOUT]
    assert data[ABOUT].edge_weight.shape == (0,)
    assert "edge_weight" not in data[CITES]
    shared = [data[name].x for name in ("paper", "author", "topic")]
    shared += [data[name].edge_attr for name in (CITES, WRITES)]
    assert all(a is b for a, b in zip(shared, batch.rows, strict=True))
    assert "edge_attr" not in data[ABOUT]
    assert (data["paper"].y.tolist(), data["paper"].batch_size) == ([1, -1], 2)
    assert data["paper"].input_id.tolist() == [70, 90]
    assert data.number == 4
    assert not {"y", "batch_size", "input_id"} & {*data["author"].keys(), *data["topic"].keys()}
    assert all(data[name].n_id.dtype == torch.int64 for name in data.node_types)
    assert all(data[name].edge_index.dtype == torch.int64 for name in data.edge_types)


def test_seeds_may_be_of_any_type(graph):
    batch = by_hand()
    structure = batch.graph
    authors = Nodes(ints(5, 6), (2, 0, 0))
    swapped = replace(structure, nodes=(structure.nodes[0], authors, structure.nodes[2]), seed_type=AUTHOR)
    data = to_pyg(MiniBatch(swapped, batch.rows, batch.y), graph)
    assert data["author"].batch_size == 2
    assert data["author"].y.tolist() == [1, -1]
    assert "y" not in data["paper"]
    assert "number" not in data


def test_an_untrimmed_batch_has_no_lists_per_hop(graph):
    batch = by_hand()
    whole = to_pyg(MiniBatch(replace(batch.graph, untrimmed=True), batch.rows, batch.y), graph)
    assert whole.validate()
    assert not any("num_sampled_nodes" in store for store in whole.node_stores)
    assert not any("num_sampled_edges" in store for store in whole.edge_stores)


def test_a_graph_without_types_gives_data(tmp_path, make_runtime):
    structure = BatchGraph.of_one_type(
        ints(4, 2), np.array([0, 1], np.int32), np.array([1], np.int32), (1, 1), (1,), ints(0)
    )
    batch = MiniBatch(structure, (torch.rand(2, 3),), torch.zeros(1))
    unnamed = a_graph(tmp_path / "one", make_runtime(threads=1))
    assert isinstance(to_pyg(batch, unnamed), Data)
    assert isinstance(to_pyg(batch), Data)


@pytest.fixture
def all_types(tmp_path: Path) -> SectionGraph:
    return section_graph(tmp_path / "all")


def test_loaded_batches_are_those_of_the_graph(all_types, make_runtime, monkeypatch):
    graph = all_types
    monkeypatch.setattr(base, "BatchSampler", ReferenceSampler)
    config = SampleConfig(fanouts=(4, 3), batch_size=20, edge_rows=True)
    with open_session(graph, make_runtime(threads=1), "memory", config=config) as session:
        for batch in session.batches("train", 0):
            data: Any = to_pyg(batch, graph)
            assert data.validate()
            check_edges(data, all_types)
            x_dict = {name: store.x for name, store in data.node_items() if "x" in store}
            assert set(x_dict) == {of.name for of in graph.node_types} - {"school"}
            del batch, data


def check_edges(data: HeteroData, graph: SectionGraph) -> None:
    """Fails unless each edge stands in its target's list, at the position that ``e_id`` says."""
    for of, lists in zip(graph.edge_types, graph.lists.lists, strict=True):
        store = data[of.key]
        listed = [(source, target) for target, sources in enumerate(lists) for source in sources]
        source, target = store.edge_index
        pairs = zip(
            data[of.source.name].n_id[source].tolist(),
            data[of.target.name].n_id[target].tolist(),
            strict=True,
        )
        assert [listed[at] for at in store.e_id.tolist()] == list(pairs)


def test_torch_geometric_trims_layer_by_layer(all_types, make_runtime, monkeypatch):
    """Before the last layer are left the seeds' edges and what these lead from."""
    graph = all_types
    monkeypatch.setattr(base, "BatchSampler", ReferenceSampler)
    config = SampleConfig(fanouts=(4, 3), batch_size=20, edge_rows=True)
    with open_session(graph, make_runtime(threads=1), "memory", config=config) as session:
        batch = next(session.batches("train", 0))
        data: Any = to_pyg(batch, graph)
        x = {name: store.n_id[:, None].float() for name, store in data.node_items()}
        edges = data.edge_index_dict
        sampled = data.num_sampled_nodes_dict, data.num_sampled_edges_dict
        trimmed: Any = trim_to_layer(1, *sampled, x, edges)
        x, edges, _ = trimmed
        for of, nodes in zip(graph.node_types, batch.graph.nodes, strict=True):
            assert x[of.name][:, 0].tolist() == nodes.ids[: sum(nodes.per_hop[:-1])].tolist()
        for of, structure in zip(graph.edge_types, batch.graph.edges, strict=True):
            assert edges[of.key].tolist() == structure.edge_index()[:, : structure.per_hop[0]].tolist()
        del batch, data, trimmed, x, edges
