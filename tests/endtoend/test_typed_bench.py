"""Benchmarks of graphs with types, of a size at which they measure nothing: what they count must be right."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from outcrop.bench import epoch, row_files, typed_models, typed_quality
from outcrop.bench.compute import bare_typed_products
from outcrop.bench.epoch import Setting, ensure_graph, ensure_run
from outcrop.bench.graphs import TYPED
from outcrop.cli.main import app
from outcrop.config import ModelConfig
from outcrop.loading.open import open_session
from outcrop.nn import sparse
from outcrop.nn.models import build_model
from outcrop.nn.schema import GraphSchema
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from outcrop.store.levels import Level

SHAPE = replace(TYPED, name="tiny", nodes=30_000, edges=200_000, features=64, train_fraction=0.05)
SETTING = Setting(SHAPE, "4,4", 40, cap=2.0, model="rgcn", hidden=16, epochs=2, rounds=1, no_rows="random:16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


def silent(text: str) -> None:
    assert text


def test_bytes_of_the_rows_are_those_of_the_graph(folder: Path) -> None:
    graph = open_graph(ensure_graph(folder, SHAPE, silent))
    assert graph.is_typed
    assert graph.with_edge_rows(False).feature_bytes == SHAPE.feature_bytes
    assert TYPED.feature_bytes == 1_200_000 * 512 + 1_000_000 * 128 + 20_000 * 32
    cites = graph.manifest.attributes["edge_types"][0]
    dropped = 2 * (cites["edges_listed"] - cites["num_edges"]) * 32
    assert graph.feature_bytes == SHAPE.feature_bytes + SHAPE.edge_row_bytes - dropped
    assert TYPED.edge_row_bytes == 2 * 12_000_000 * 32
    assert replace(SETTING, edge_rows=True).memory == 2 * (SHAPE.feature_bytes + SHAPE.edge_row_bytes)
    assert replace(SETTING, model="rgat").memory == replace(SETTING, edge_rows=True).memory > SETTING.memory


def wanted_rows(graph: Graph, run: Path) -> list[int]:
    """Counts the rows that the batches of an epoch want of each row file."""
    with Runtime() as runtime, open_session(graph, runtime, "memory", run_folder=run) as session:
        wants = [[len(rows) for rows in batch.rows] for batch in session.batches("train", 0)]
    return [sum(of) for of in zip(*wants, strict=True)]


@pytest.mark.slow
def test_epochs_are_compared_with_bare_products(folder: Path) -> None:
    """Rows and bytes of each row file add up to what was wanted and read."""
    setting = replace(SETTING, edge_rows=True, cap=0.3)
    result = epoch.epoch(folder, setting, ["memory", "packed"], silent)
    assert result["first_20_losses_identical"]
    packed = result["modes"]["packed"]
    assert packed["against_memory"] > 0
    assert result["bare_products_seconds"] > 0

    graph, run = open_graph(folder / "tiny.oc"), folder / "tiny-4-4-edges-cap0.3.run"
    wanted = wanted_rows(graph, run)
    assert len(wanted) == 5
    for mode in ("memory", "packed"):
        files = result["modes"][mode]["row_files"]
        assert [of["of"] for of in files] == [
            "paper",
            "author",
            "topic",
            "paper cites paper",
            "paper rev_cites paper",
        ]
        assert [of["row_bytes"] for of in files] == [256, 64, 16, 32, 32]
        assert [sum(of["rows_by_level"].values()) for of in files] == wanted
    files = packed["row_files"]
    assert files[0]["rows_by_level"]["host"] > 0  # some are cached
    assert all(of["bytes_needed"] == of["rows_by_level"]["packed"] * of["row_bytes"] for of in files)
    predicted = sum(of["bytes_predicted"] for of in files) + packed["structure_bytes"]
    assert predicted == packed["bytes_predicted"] == packed["bytes_read"]
    assert all(of["bytes_needed"] <= of["bytes_predicted"] for of in files)
    assert (
        files[3]["bytes_needed"]
        > 0
        == sum(of["bytes_needed"] for of in result["modes"]["memory"]["row_files"])
    )


def test_other_bytes_than_the_plan_has_are_an_error(folder: Path) -> None:
    path = ensure_graph(folder, SHAPE, silent)
    run, prepared = ensure_run(folder, path, SETTING, silent)
    graph = open_graph(path).with_edge_rows(False)
    predicted = prepared["predicted"]["epochs"]["train"][0]
    with (
        Runtime(SETTING.memory) as runtime,
        open_session(graph, runtime, "packed", run_folder=run) as session,
    ):
        batches = session.batches("train", 0)
        for batch in batches:
            del batch
        levels = batches.stats.rows_by_file
    summary = {"rows_by_file": levels, "bytes_read": predicted["bytes_read"]}
    model = ModelConfig("rgcn", no_rows=SETTING.no_rows)
    row_files.add({"packed": dict(summary)}, graph, run, model)
    with pytest.raises(AssertionError, match=f"packed read {summary['bytes_read'] + 1} bytes in an epoch"):
        row_files.add({"packed": {**summary, "bytes_read": summary["bytes_read"] + 1}}, graph, run, model)
    other = [{**levels[0], Level.PACKED: levels[0][Level.PACKED] + 1}, *levels[1:]]
    with pytest.raises(AssertionError, match="packed took rows of 'paper'"):
        row_files.add({"packed": {**summary, "rows_by_file": other}}, graph, run, model)


@pytest.mark.parametrize("name", ["rgcn", "rsage"])
def test_bare_products_are_those_of_a_step(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The multiplications and additions of both, counted as they are done: a model adds those of its loss at most."""
    path = ensure_graph(folder, SHAPE, silent)
    run, _ = ensure_run(folder, path, SETTING, silent)
    graph = open_graph(path)
    schema = GraphSchema.of(graph, no_rows=SETTING.no_rows)
    model: Any = build_model(name, schema, 16, graph.seed_type.num_classes, 2)
    summed: list[int] = []
    bag_sum = sparse.bag_sum

    def counting(x: torch.Tensor, rowptr: torch.Tensor, col: torch.Tensor, weights=None) -> torch.Tensor:
        summed.append(len(col) * x.shape[1])
        return bag_sum(x, rowptr, col, weights)

    monkeypatch.setattr(sparse, "bag_sum", counting)
    with Runtime() as runtime, open_session(graph, runtime, "memory", run_folder=run) as session:
        batch = next(iter(session.batches("train", 0)))
        found = []
        for call in (
            bare_typed_products(batch, model),
            lambda: model(batch).sum().backward(),
        ):
            summed.clear()
            with FlopCounterMode(display=False) as dense:
                call()
            found.append((dense.get_total_flops(), sum(summed)))
    (bare, sparse_bare), (step, sparse_step) = found
    assert sparse_bare == sparse_step > 0
    assert 0 < bare <= step <= 1.01 * bare


@pytest.mark.slow
def test_models_are_those_of_torch_geometric(folder: Path) -> None:
    """Timing raises where scores differ."""
    result = typed_models.run(folder, SETTING, silent)
    assert list(result["models"]) == ["rgcn", "rsage", "rgat", "hgt"]
    assert all(one["times_as_fast"] > 0 for one in result["models"].values())
    assert len(result["rows"][0]) == len(result["columns"])


@pytest.mark.slow
def test_models_that_see_less_see_the_same_papers(folder: Path) -> None:
    """The graph of citations has their lists, rows, labels and splits; each model learns something of the classes."""
    result = typed_quality.run(folder, replace(SETTING, epochs=2, no_rows="random:8"), silent, seeds=(3, 4))
    graph, alone = open_graph(folder / "tiny.oc"), open_graph(folder / "tiny-cites.oc")
    assert np.array_equal(alone.edge_index(), graph.edge_index(("paper", "cites", "paper")))
    with Runtime() as runtime:
        for name in ("features", "labels", "train", "valid", "test"):
            mine, theirs = (
                alone.array(runtime, name).read("test"),
                graph.array(runtime, f"n0.{name}").read("test"),
            )
            assert np.array_equal(mine, theirs)
    tests = {name: one["test_accuracy"] for name, one in result["models"].items()}
    assert list(tests) == ["rgcn", "sage on citations", "MLP on papers"]
    assert all(len(found) == 2 and 0.07 < min(found) <= max(found) < 1 for found in tests.values())
    for name, ahead in result["rgcn_ahead_by"].items():
        assert ahead == pytest.approx(sum(tests["rgcn"]) / 2 - sum(tests[name]) / 2, abs=1e-12)
    assert all(1 <= epoch <= 2 for epoch in result["models"]["rgcn"]["best_epochs"])


def test_the_command_offers_what_is_measured_of_types(folder: Path) -> None:
    out = folder / "sampling.json"
    options = ["--nodes", "2230", "--fanouts", "2", "--quiet", "--json", str(out)]
    done = CliRunner().invoke(app, ["bench", "typed-sampling", "--folder", str(folder), *options])
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    assert result["setting"]["shape"] == asdict(
        replace(TYPED, name="typed-edge-rows-2230", nodes=2230, edges=20_070)
    )
    assert [row[0] for row in result["rows"]] == ["every edge type", "one list a node"]
