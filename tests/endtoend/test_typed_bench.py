"""Benchmarks of graphs with types, of a size at which they measure nothing: what they count must be right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from outcrop.bench import epoch, typed_models
from outcrop.bench.compute import bare_typed_products
from outcrop.bench.epoch import Setting, ensure_graph, ensure_run
from outcrop.bench.graphs import TYPED
from outcrop.loading.open import open_session
from outcrop.nn import sparse
from outcrop.nn.models import build_model
from outcrop.nn.schema import GraphSchema
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph

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
    assert graph.feature_bytes == SHAPE.feature_bytes
    assert TYPED.feature_bytes == 1_200_000 * 512 + 1_000_000 * 128 + 20_000 * 32


@pytest.mark.slow
def test_epochs_are_compared_with_bare_products(folder: Path) -> None:
    result = epoch.epoch(folder, SETTING, ["memory", "packed"], silent)
    assert result["first_20_losses_identical"]
    assert result["modes"]["packed"]["against_memory"] > 0
    assert result["bare_products_seconds"] > 0


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
