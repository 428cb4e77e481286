"""The commands on a graph with types, one after the other as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import outcrop as oc
from outcrop.cli.main import app

SAMPLING = ["--fanouts", "4,4", "--batch-size", "100"]
BUDGET = ["--memory", "32MiB"]
MODEL = ["--model", "rgcn", "--hidden", "16", "--no-rows", "random:8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("typed")


def said(*words: object) -> str:
    """Runs a command and returns what it printed."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


def test_from_a_graph_to_what_is_predicted(folder: Path) -> None:
    graph, run, kept = folder / "g.oc", folder / "g.run", folder / "g.ckpt"
    said("generate", graph, "--kind", "typed", "--nodes", 6000, "--edges", 40_000, "--train-fraction", 0.2)
    assert "paper" in said("info", graph)
    for stage in ("sample", "plan", "pack"):
        said(stage, graph, run, *SAMPLING, *BUDGET, "--epochs", 2)
    again = folder / "again.run"
    assert "rows of an epoch" in said("prepare", graph, again, *SAMPLING, *BUDGET, "--epochs", 2)
    assert (run / "pack" / "records.bin").read_bytes() == (again / "pack" / "records.bin").read_bytes()
    assert "every checksum right" in said("verify", run)
    report = folder / "t.json"
    said("train", graph, "--run", run, *MODEL, "--epochs", 2, *BUDGET, "--checkpoint", kept, "--json", report)
    assert len(json.loads(report.read_text())["epochs"]) == 2
    said("report", run, "--out", folder / "t.html")
    said("info", kept)
    said("infer", graph, "--checkpoint", kept, "--out", folder / "o.npy")
    assert len(np.load(folder / "o.npy")) == oc.open_graph(graph).node_type("paper").num_nodes
    options = ["--node-type", "author", "--output", "embeddings"]
    said("infer", graph, "--checkpoint", kept, "--out", folder / "a.npy", *options)
    assert np.load(folder / "a.npy").shape[1] == 16
    assert "paper" in said("advise", graph, *MODEL, *SAMPLING, *BUDGET)
    said("derive", graph, "institution", "--mean", "author", "--by", "affiliated")
    assert oc.open_graph(graph).has("n3.features")
