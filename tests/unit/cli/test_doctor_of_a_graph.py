"""``outcrop doctor`` in the folder of a graph with types: what it holds, whether that fits, what training takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import outcrop as oc
from advisor_support import a_profile
from outcrop.advisor import machine
from outcrop.cli.main import app
from outcrop.store.graph import Graph
from outcrop.store.graph_types import name_of

COMMAND = ["doctor", "--folder"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    config = oc.GenerateConfig(nodes=3000, edges=20_000, kind="typed", train_fraction=0.5)
    return oc.generate_graph(tmp_path_factory.mktemp("typed") / "g.oc", config, progress=False)


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "measure_profile", lambda folder, say: a_profile({}))
    monkeypatch.setattr(machine, "direct_works", lambda folder: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def told(graph: Graph, tmp_path: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Returns what is printed, line breaks as spaces, and the JSON."""
    out = tmp_path / "out.json"
    arguments = [*COMMAND, str(graph.path), "--json", str(out), *options]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split()), json.loads(out.read_text())


def test_doctor_says_what_a_graph_with_types_takes(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, about = told(graph, tmp_path)
    found = about["graph"]
    # Sizes are those of the arrays, as NumPy reads them.
    nodes = {of["name"]: of for of in found["node_types"]}
    edges = {of["name"]: of for of in found["edge_types"]}
    for rows in graph.row_files:
        owner = nodes[name_of(rows)]
        width = np.dtype(rows.spec.dtype).itemsize * rows.spec.shape[1]
        assert (owner["row_bytes"], owner["bytes"]) == (width, width * owner["num_nodes"])
        assert f"{owner['num_nodes']:,} nodes, rows of {width} bytes" in said
    assert nodes["institution"]["row_bytes"] == 0
    assert found["feature_bytes"] == sum(of["bytes"] for of in found["node_types"])
    for of in graph.edge_types:
        ends = graph.edge_index(of)
        name = " ".join(of.key)
        assert edges[name]["num_edges"] == ends.shape[1]
        assert edges[name]["num_lists"] == nodes[of.target.name]["num_nodes"]
        assert (
            f"{name} {ends.shape[1]:,} edges in {nodes[of.target.name]['num_nodes']:,} neighbor lists" in said
        )
    lists = sum(of["num_lists"] for of in found["edge_types"])
    assert found["topology_bytes"] == 8 * (lists + 1) + 4 * sum(of["num_edges"] for of in found["edge_types"])
    assert found["fits"] == {"rows": True, "lists": True}
    assert "of memory that training may hold here" in said
    # Training, in the words of advise.
    training = found["training"]
    train = graph.spec("train").shape[0]
    assert training["batches"] == -(-train // 1024)
    assert training["graph"]["edges"] == sum(of["num_edges"] for of in found["edge_types"])
    assert list(training["batch"]["rows"]) == ["paper", "author", "topic"]
    assert 0 < training["batch"]["rows"]["paper"] <= nodes["paper"]["num_nodes"]
    assert [way["mode"] for way in training["ways"]] == ["memory", "packed", "online"]
    assert all(way["fits"] for way in training["ways"])
    for line in training["assumptions"]:
        assert f"assumed: {line}" in said
    assert "one wants about" in said
    assert not list(graph.path.parent.glob(".outcrop-describe-*"))
    # Where memory is short, it says so.
    monkeypatch.setattr("outcrop.api.describe.choose.memory_within", lambda available: 100_000)
    said, about = told(graph, tmp_path)
    assert about["graph"]["fits"] == {"rows": False, "lists": False}
    assert about["graph"]["training"] is None
    assert "do not fit the 97.7 KiB" in said
    assert "what training takes is not said: " in said


def test_doctor_without_measuring_or_without_training_nodes(graph: Graph, tmp_path: Path) -> None:
    said, about = told(graph, tmp_path, "--no-measure")
    assert about["graph"]["training"] is None
    assert "leave --no-measure out" in said
    assert about["graph"]["node_types"][0]["name"] == "paper"
    flat = oc.generate_graph(tmp_path / "flat.oc", oc.GenerateConfig(nodes=300, edges=2000), progress=False)
    said, about = told(flat, tmp_path, "--no-measure")
    assert "graph" not in about  # only of graphs with types


def test_doctor_of_a_graph_that_nobody_trains_on(tmp_path: Path) -> None:
    import torch
    from torch_geometric.data import HeteroData

    data = HeteroData()
    data["a"].x, data["b"].num_nodes = torch.ones(5, 3, dtype=torch.float64), 4
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 4], [0, 3, 3]])
    graph = oc.import_graph(data, tmp_path / "g.oc", progress=False)
    said, about = told(graph, tmp_path)
    assert about["graph"]["training"] is None
    assert "what training takes is not said: none of the node types" in said
    bare = HeteroData()
    bare["a"].num_nodes, bare["b"].num_nodes = 5, 4
    bare["a", "to", "b"].edge_index = data["a", "to", "b"].edge_index
    bare["b"].y, bare["b"].train_mask = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.bool)
    said_of_bare, _ = told(oc.import_graph(bare, tmp_path / "bare.oc", progress=False), tmp_path)
    assert "have no features" in said_of_bare
    assert about["graph"]["feature_bytes"] == 5 * 3 * 8
    assert "b 4 nodes, no rows" in said
