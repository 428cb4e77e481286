"""What models need to know of a graph with types, and rows that are made."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from outcrop.errors import ArgumentError
from outcrop.nn.made_rows import random_rows
from outcrop.nn.schema import GraphSchema, NodeSchema
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from outcrop.store.graph_types import EdgeType, NodeType, RowFile
from outcrop.store.manifest import ArraySpec
from run_support import a_graph

PAPER, AUTHOR = NodeType(0, "paper", 0, 5, 3), NodeType(1, "author", 5, 4, 0)
WRITES = EdgeType(0, AUTHOR, "writes", PAPER, 6, 0, 0, "e0.")


def row_file(number: int, owner: NodeType | EdgeType, width: int, dtype: str) -> RowFile:
    stride = width * np.dtype(dtype).itemsize
    return RowFile(number, owner, "features", ArraySpec("rows", dtype, (5, width), stride, 0, 0))


def a_typed_graph(*row_files: RowFile, node_types=(PAPER, AUTHOR), edge_types=(WRITES,)) -> SimpleNamespace:
    return SimpleNamespace(node_types=node_types, edge_types=edge_types, row_files=row_files)


def test_a_schema_describes_types_and_rows_of_a_graph():
    rows = (
        row_file(0, AUTHOR, 6, "float16"),
        row_file(1, WRITES, 2, "float32"),
    )  # those of edges are not taken
    schema = GraphSchema.of(a_typed_graph(*rows), no_rows={"paper": "random:9"}, row_seed=4)
    assert schema == GraphSchema(
        (NodeSchema("paper", 9, made="random:9"), NodeSchema("author", 6, "float16")),
        (("author", "writes", "paper"),),
        "paper",
        3,
        4,
    )
    assert (schema.seed_number, schema.ends, schema.row_numbers) == (0, ((1, 0),), (None, 0))
    assert GraphSchema.of(a_typed_graph(*rows), "paper", no_rows="random:9", row_seed=4) == schema
    assert GraphSchema.from_stored(json.loads(json.dumps(schema.as_stored()))) == schema


def test_a_graph_on_disk_without_types_has_one_of_each(tmp_path: Path, runtime: Runtime):
    a_graph(tmp_path / "graph", runtime, nodes=60)
    graph = open_graph(tmp_path / "graph")
    schema = GraphSchema.of(graph)
    dtype = graph.spec("features").dtype
    assert schema == GraphSchema(
        (NodeSchema("", graph.feature_dim, dtype),), (("", "", ""),), "", graph.num_classes
    )


def test_what_is_missing_is_named():
    with pytest.raises(ArgumentError, match=r"node type 'paper' has no rows.*no_rows='random:64'"):
        GraphSchema.of(a_typed_graph(row_file(0, AUTHOR, 6, "float16")))
    for wrong in ("random", "random:0", "learned:0", "taught:64"):
        with pytest.raises(ArgumentError, match=f"no_rows '{wrong}' of node type 'paper'"):
            GraphSchema.of(a_typed_graph(), no_rows=wrong)
    with pytest.raises(ArgumentError, match="node type 'topic' of the seeds is none of 'paper', 'author'"):
        GraphSchema.of(a_typed_graph(), "topic", no_rows="random:4")
    with pytest.raises(ArgumentError, match="0 node types of 'author' have labels: name the one"):
        GraphSchema.of(a_typed_graph(node_types=(AUTHOR,), edge_types=()), no_rows="random:4")


def test_schemas_of_no_graph_are_refused_with_all_reasons():
    paper = NodeSchema("paper", 2)
    reasons = (
        "'paper' stands twice.*'x' have width 0.*'x' are made as 'once'.*'a___b___c' stands twice.*"
        "between types that are not there: paper, paper, x are.*'author' of the seeds.*num_classes 0"
    )
    with pytest.raises(ArgumentError, match=reasons):
        GraphSchema(
            (paper, paper, NodeSchema("x", 0, made="once")),
            (("a", "b", "c"), ("a", "b", "c")),
            "author",
            0,
        )


@pytest.mark.parametrize(
    "change",
    [
        {"num_classes": "3"},
        {"seed_type": None},
        {"node_types": [{"name": "paper", "width": 2.5}]},
        {"node_types": [{"name": "paper", "height": 2}]},
        {"edge_types": [["paper", "paper"]]},
        {"edge_types": [["paper", 5, "paper"]]},
    ],
)
def test_other_values_are_no_schema(change):
    stored = GraphSchema((NodeSchema("paper", 2),), (), "paper", 3).as_stored()
    with pytest.raises((TypeError, ValueError)):
        GraphSchema.from_stored({**stored, **change})


def test_a_made_row_follows_from_seed_type_and_node_alone():
    ids = np.array([5, 0, 7, 2**40], np.int64)
    rows = random_rows(3, 1, ids, 7)
    assert (rows.dtype, rows.shape) == (torch.float32, (4, 7))
    assert torch.equal(random_rows(3, 1, ids[::-1].copy(), 7).flip(0), rows)
    assert torch.equal(random_rows(3, 1, ids[2:3], 7)[0], rows[2])
    assert torch.equal(random_rows(3, 1, ids, 4), rows[:, :4])
    for other in (random_rows(4, 1, ids, 7), random_rows(3, 2, ids, 7)):
        assert not (other == rows).any()
    assert random_rows(3, 1, ids[:0], 7).shape == (0, 7)


def mixed(x: int) -> int:
    """The finaliser of splitmix64, in integers of Python."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def test_made_rows_keep_their_bits():
    """They are stored nowhere: a model that was trained with them must find the same."""
    key = mixed(mixed(mixed(0x524F5753) ^ 11) ^ 2)
    for node in (0, 3, 2**40):
        words = [mixed(mixed(key ^ node) ^ pair) for pair in range(2)]
        whole = [part for word in words for part in (word >> 40, word % 2**24)][:3]
        expected = (np.array(whole, np.float32) - 2**23) * np.float32(math.sqrt(3) / 2**23)
        found = random_rows(11, 2, np.array([node]), 3)
        assert found.numpy().tobytes() == expected.astype(np.float32).tobytes()


def test_made_values_are_even_and_independent():
    rows = random_rows(0, 0, np.arange(4000), 32).double()
    assert float(rows.abs().max()) <= math.sqrt(3)
    # Within four standard errors of uniform numbers: the mean, the variance, and products of two columns.
    assert abs(float(rows.mean())) < 4 / math.sqrt(rows.numel())
    assert abs(float(rows.square().mean()) - 1) < 4 * math.sqrt(0.8 / rows.numel())
    products = (rows.T @ rows / len(rows)).fill_diagonal_(0)
    assert float(products.abs().max()) < 5 / math.sqrt(len(rows))
