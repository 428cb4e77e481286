"""The scripts in examples/, each run as its head says; those on published graphs where these lie on the machine."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from foreign_layouts import foreign_graph, write_ogb_text
from support import REPOSITORY, import_ogb, shared_path

EXAMPLES = REPOSITORY / "examples"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def run(script: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> dict[str, Any]:
    """Runs a script and returns its variables."""
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    torch.manual_seed(0)
    return runpy.run_path(str(EXAMPLES / script), run_name="__main__")


def accuracy(script: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> float:
    return run(script, monkeypatch, *arguments)["accuracy"]


def test_every_example_is_short_and_runs_here() -> None:
    others = ("test_pyg_example.py", "test_several_processes.py", "test_on_ray.py")
    tested = "".join(Path(__file__).with_name(name).read_text() for name in (Path(__file__).name, *others))
    for script in EXAMPLES.glob("*.py"):
        assert len(script.read_text().splitlines()) < 80, script.name
        assert script.name in tested


def test_node_classification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"npz:{shared_path('gnnbench-cora') / 'cora.npz'}"
    found = accuracy("node_classification.py", monkeypatch, source, tmp_path / "cora.oc", "--epochs", 10)
    assert found > 0.7


def test_typed_acm_and_a_model_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, graph = shared_path("heco-acm"), tmp_path / "acm.oc"
    assert accuracy("typed_acm.py", monkeypatch, folder, graph) > 0.8
    assert accuracy("own_typed_model.py", monkeypatch, graph) > 0.8


def test_purchases_are_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the pairs that were not bought are of the group that a user likes: nothing gets beyond 0.9."""
    found = run("pyg_link_prediction.py", monkeypatch, tmp_path / "shop.oc")
    assert 0.72 < float(found["auc"]) < 0.92
    assert len(found["labels"]) == 2 * int(found["labels"].sum())


def test_typed_dblp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "four-area"
    shutil.copytree(shared_path("dblp-four-area"), folder)
    assert accuracy("typed_dblp.py", monkeypatch, folder, tmp_path / "dblp.oc") > 0.8


def test_typed_aifb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert accuracy("typed_aifb.py", monkeypatch, shared_path("aifb"), tmp_path / "aifb.oc") > 0.8


def test_ogb_products_in_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small graph in the files of OGB. What its Evaluator says is what counting the test nodes in its files says, and
    scores are in its format."""
    folder = write_ogb_text(tmp_path / "ogbn_products", foreign_graph())
    found = run("ogb_products.py", monkeypatch, folder, tmp_path / "products.oc", "--epochs", 2)
    test = np.sort(np.loadtxt(next(folder.glob("split/*/test.csv.gz")), dtype=np.int64))
    labels = pd.read_csv(folder / "raw/node-label.csv.gz", header=None).to_numpy()[
        test, 0
    ]  # empty cells: no label
    assert found["given"]["y_pred"].shape == found["given"]["y_true"].shape == (len(test), 1)
    assert np.array_equal(found["given"]["y_true"][:, 0], np.nan_to_num(labels, nan=-1))
    assert found["accuracy"] == np.count_nonzero(found["given"]["y_pred"][:, 0] == labels) / len(test)
    metrics = ModuleType("sklearn.metrics")
    metrics.__dict__["roc_auc_score"] = None  # of other data sets
    monkeypatch.setitem(sys.modules, "sklearn", ModuleType("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.metrics", metrics)
    evaluator = import_ogb("nodeproppred", monkeypatch).Evaluator("ogbn-products")
    assert found["accuracy"] == evaluator.eval(found["given"])["acc"]


def test_edge_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run("edge_features.py", monkeypatch, shared_path("eukloc"), tmp_path / "eukloc.oc")
    graph = found["graph"]
    assert graph.has_edge_rows
    assert (graph.num_classes, graph.label_kind) == (22, "multilabel")
    assert found["name"] == "micro_f1"
    assert found["metric"] > 0.2
