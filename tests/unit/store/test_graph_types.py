"""What a graph says of its node types, edge types and row files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from outcrop.store.graph_types import EdgeType, NodeType, row_files_of
from outcrop.store.manifest import ArraySpec


@pytest.fixture
def edges():
    return np.array([[0, 1, 2, 3], [1, 2, 3, 0]])


def test_a_graph_without_types_has_one_of_each(edges, tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    graph = oc.import_graph(
        {"edges": edges, "features": x, "labels": np.array([0, 1, 2, 1])}, tmp_path / "g.oc"
    )
    (nodes,), (relation,), (rows,) = graph.node_types, graph.edge_types, graph.row_files
    assert (nodes.name, nodes.first, nodes.num_nodes, nodes.num_classes) == ("", 0, 4, 3)
    assert relation.key == ("", "", "")
    assert relation.num_edges == 4
    assert (relation.first_list, relation.first_edge) == (0, 0)
    assert relation.source is relation.target is rows.owner is nodes
    assert (rows.num_rows, rows.row_bytes, rows.data_bytes) == (4, 12, 48)
    assert graph.row_file is rows
    assert graph.feature_bytes == 48
    with Runtime() as runtime:
        assert np.array_equal(graph.open_rows(runtime, rows).read("rows"), x)


def test_a_graph_without_features_has_no_row_file(edges, tmp_path):
    graph = oc.import_graph({"edges": edges}, tmp_path / "g.oc")
    assert graph.row_files == ()
    assert graph.feature_bytes == 0
    with pytest.raises(oc.FormatError, match=r"g\.oc holds no features: import them with the graph"):
        _ = open_graph(graph.path).row_file


def test_row_files_are_those_of_the_types_that_have_features():
    papers = NodeType(0, "paper", 0, 5, 2, prefix="n0.")
    authors = NodeType(1, "author", 5, 3, 0, prefix="n1.")
    cites = EdgeType(0, papers, "cites", papers, 7, 0, 0, prefix="e0.")
    rows = ArraySpec("n1.features.bin", "float16", (3, 4), 8, 0, 4096)
    weights = ArraySpec("e0.features.bin", "int8", (7, 2), 2, 0, 4096)
    files = row_files_of({"n1.features": rows, "e0.features": weights}, (papers, authors, cites), Path("g"))
    assert [(one.number, one.owner, one.array) for one in files] == [
        (0, authors, "n1.features"),
        (1, cites, "e0.features"),
    ]
    assert [one.data_bytes for one in files] == [24, 14]
    assert authors.array("labels") == "n1.labels"
