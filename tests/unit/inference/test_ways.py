"""Which way layers are computed, in what budgets, and what is left where writing their output fails."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import outcrop
from infer_support import a_model, odd_graph, save
from outcrop.api.infer import dry_run
from outcrop.errors import BudgetError
from outcrop.inference import column_sums
from outcrop.inference.in_order import Lists
from outcrop.store import arrays
from outcrop.store.graph import Graph

WIDTH, CLASSES = 16, 5


def trained(folder: Path, runtime, name: str, nodes: int, layers: int = 1) -> tuple[Graph, Path]:
    graph, _ = odd_graph(folder / "g.oc", runtime, nodes=nodes, edges=8 * nodes, width=WIDTH)
    return graph, save(folder / "checkpoint", graph, name, a_model(name, WIDTH, CLASSES, layers=layers))


@pytest.mark.parametrize("name", ["sage", "gcn"])
def test_a_few_nodes_do_not_read_the_whole_input(tmp_path: Path, make_runtime, name: str) -> None:
    graph, model = trained(tmp_path, make_runtime(), name, 40_000)
    every = outcrop.infer(graph, model=model, out=tmp_path / "all.npy", memory="64MiB")
    few = outcrop.infer(graph, model=model, out=tmp_path / "few.npy", nodes=[5, 39_999], memory="64MiB")
    assert every.layers[0]["passes"] == 1
    assert few.layers[0]["passes"] == 0
    assert few.layers[0]["bytes_read"] < every.layers[0]["bytes_read"] / 2
    found = np.load(tmp_path / "few.npy")
    np.testing.assert_allclose(found, np.load(tmp_path / "all.npy")[[5, 39_999]], rtol=1e-5, atol=1e-6)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", ["sage", "gcn"])
@pytest.mark.parametrize("listed", [False, True])
def test_what_is_said_to_be_enough_is_enough(tmp_path: Path, make_runtime, name: str, listed: bool) -> None:
    """Counting edges, too, and where the nodes that were asked for are held."""
    graph, model = trained(tmp_path, make_runtime(), name, 5_000, layers=2)
    nodes = np.arange(5_000)[::-1].copy() if listed else "all"
    options = {"model": model, "out": tmp_path / "out.npy", "nodes": nodes}
    done = 0
    for kib in (700, 1000, 2000) if listed else (500, 550, 600, 700):
        try:
            dry_run(graph, {**options, "memory": kib << 10})
        except BudgetError:
            continue
        outcrop.infer(graph, **options, memory=kib << 10)
        done += 1
    assert done > 1


@pytest.mark.parametrize("memory", ["64MiB", "3MiB"])
def test_nothing_runs_on_after_writing_failed(
    tmp_path: Path, make_runtime, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    graph, model = trained(tmp_path, make_runtime(), "sage", 40_000)
    append = arrays.ArrayWriter.append

    def full(self: arrays.ArrayWriter, rows: np.ndarray) -> None:
        if rows.shape[1:] == (CLASSES,):
            raise OSError(28, "No space left on device")
        append(self, rows)

    monkeypatch.setattr(arrays.ArrayWriter, "append", full)
    before = {*threading.enumerate()}
    with pytest.raises(OSError, match="No space") as refused:
        outcrop.infer(graph, model=model, out=tmp_path / "out.npy", memory=memory)
    assert {*threading.enumerate()} <= before  # while the traceback is held
    assert refused.value.__traceback__ is not None


def test_loops_of_nodes_with_large_numbers_are_left_out() -> None:
    first = 2**31 + 3
    lists = Lists(first, np.array([0, 2, 3], np.int32), np.array([first, 7, first + 1], np.int64))
    found = lists.without_loops()
    assert found.rowptr.tolist() == [0, 1, 1]
    assert found.col.tolist() == [7]


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
@pytest.mark.parametrize("method", ["layerwise", "sampled"])
def test_classes_alone_are_kept_of_the_last_layer(
    tmp_path: Path, make_runtime, suffix: str, method: str
) -> None:
    graph, model = trained(tmp_path, make_runtime(), "sage", 3000)
    options = {"model": model, "method": method, "memory": "64MiB"}
    if method == "sampled":
        options["sampling"] = outcrop.InferSampling(fanouts=(-1,))
    scores = outcrop.infer(graph, out=tmp_path / "scores.npy", **options)
    classes = outcrop.infer(graph, out=tmp_path / f"classes{suffix}", output="classes", **options)
    expected = np.load(tmp_path / "scores.npy").argmax(1)
    if suffix == ".npy":
        found = np.load(tmp_path / "classes.npy")
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        found = parquet.read_table(tmp_path / "classes.parquet")["class"].to_numpy()
    assert found.dtype == np.int64
    assert found.tolist() == expected.tolist()
    if method == "layerwise":
        assert classes.layers[0]["output_bytes"] == 8 * 3000
        assert classes.bytes_written < scores.bytes_written


def test_columns_are_computed_with_a_thread_less(
    tmp_path: Path, make_runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only while a layer is computed: what comes afterwards has all threads."""
    graph, model = trained(tmp_path, make_runtime(), "sage", 4_000)
    found = set()
    add = column_sums._Sage.add

    def counting(*arguments) -> None:
        found.add((threading.current_thread().name, torch.get_num_threads()))
        add(*arguments)

    monkeypatch.setattr(column_sums._Sage, "add", counting)
    before = torch.get_num_threads()
    try:
        for threads in (3, 1):
            found.clear()
            torch.set_num_threads(threads)
            outcrop.infer(graph, model=model, out=tmp_path / f"{threads}.npy", memory="64MiB")
            assert found == {("infer-compute", max(threads - 1, 1))}
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
