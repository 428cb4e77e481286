"""Impossible wishes: one clear line that names the value and what to do, before anything is written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from artifact_support import NODES, fresh_runtime, memory_folder, prepare, small_graph, tree
from forked import python
from outcrop.api.train import train
from outcrop.config import parse_size
from outcrop.errors import (
    ArgumentError,
    BudgetError,
    DeviceError,
    FormatError,
    IoError,
    NumericError,
    OutcropError,
)
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.testing import write_graph
from prepare_support import prepare as prepare_run

OPTIONS: dict[str, Any] = {"fanouts": [3, 3], "batch_size": 15}


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as path:
        yield path


@pytest.fixture
def graph(folder: Path) -> Graph:
    return small_graph(folder / "graph")


def refused(kind: type[OutcropError], match: str, call: Any, *args: Any, **options: Any) -> str:
    """``call`` raises ``kind`` with one line that has ``match``. The line."""
    with pytest.raises(kind, match=match) as caught:
        call(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) > 15
    return message


@pytest.mark.parametrize("memory", [0, 1, 4096, "1KiB", "100KiB", "1MiB", "1200000"])
def test_budgets_that_cannot_be_kept(graph: Graph, folder: Path, memory: int | str) -> None:
    refused(BudgetError, r"bud|memory", prepare_run, graph, folder / "run", memory=memory, **OPTIONS)
    assert not (folder / "run" / "plan").exists()


def test_the_smallest_budget_that_is_named_is_enough(graph: Graph, folder: Path) -> None:
    message = refused(
        BudgetError, "smallest", prepare_run, graph, folder / "run", memory=1_200_000, **OPTIONS
    )
    smallest = int(message.split("the smallest budget that can is ")[1].split()[0])
    prepare_run(graph, folder / "run", memory=smallest, **OPTIONS)
    assert train(graph, run=folder / "run", epochs=1).peak_host_bytes <= smallest


def test_the_smallest_device_budget_and_disk_space_that_are_named_are_enough(
    graph: Graph, folder: Path
) -> None:
    options = {**OPTIONS, "memory": "2MiB"}
    message = refused(
        BudgetError, "device memory", prepare_run, graph, folder / "run", gpu_memory=1000, **options
    )
    smallest = int(message.split("smallest that can is ")[1].split()[0])
    prepare_run(graph, folder / "run", gpu_memory=smallest, **options)
    message = refused(
        BudgetError, "--disk-space", prepare_run, graph, folder / "small", disk_space=5000, **options
    )
    smallest = int(message.split("--disk-space that does is ")[1].split()[0])
    report = prepare_run(graph, folder / "small", disk_space=smallest, **options)
    assert report.predicted["disk_bytes"] == smallest


@pytest.mark.parametrize(("options", "match"), [
    ({"fanouts": [0]}, "fanout 0"), ({"fanouts": [-2, 3]}, "fanout -2"), ({"fanouts": []}, "0 fanouts"),
    ({"fanouts": [2] * 16}, "16 fanouts"), ({"fanouts": [3, -1], "replace": True}, "fanout -1"),
    ({"batch_size": 0}, "batch size 0"), ({"batch_size": -5}, "batch size -5"), ({"epochs": 0}, "epochs 0"),
    ({"sampler": "labour"}, "sampler 'labour'"), ({"seed": -1}, "seed -1"), ({"seed": 1 << 64}, "64 bits"),
    ({"memory": "much"}, "size 'much'"), ({"memory": "-3MiB"}, "size '-3MiB'"), ({"memory": -3}, "size -3"),
    ({"memory": "3x"}, "size '3x'"), ({"gpu_memory": "1 XiB"}, "XiB"), ({"disk_space": "x"}, "size 'x'"),
])  # fmt: skip
def test_options_of_prepare(graph: Graph, folder: Path, options: dict[str, Any], match: str) -> None:
    before = tree(folder)
    refused(ArgumentError, match, prepare_run, graph, folder / "run", **{**OPTIONS, **options})
    assert tree(folder) == before
    assert not (folder / "run").exists()


@pytest.mark.parametrize(("options", "kind", "match"), [
    ({"mode": "quick"}, ArgumentError, "mode 'quick' is unknown; known: packed"),
    ({"model": "mlp"}, ArgumentError, "model 'mlp' is unknown; known: sage"),
    ({"model": "rgcn"}, ArgumentError, "no types of nodes or edges: for model 'rgcn' choose sage, gat, gcn"),
    ({"device": "tpu9"}, ArgumentError, "device 'tpu9'"), ({"device": "meta"}, DeviceError, "device 'meta'"),
    ({"epochs": 0}, ArgumentError, "epochs 0"), ({"epochs": -1}, ArgumentError, "epochs -1"),
    ({"hidden": 0}, ArgumentError, "hidden 0"), ({"model": "gat", "hidden": 10}, ArgumentError, "multiple of heads"),
    ({"dropout": 1.0}, ArgumentError, "dropout 1.0"), ({"dropout": math.nan}, ArgumentError, "dropout nan"),
    ({"learning_rate": 0.0}, ArgumentError, "learning rate 0"), ({"learning_rate": math.inf}, ArgumentError, "inf"),
    ({"weight_decay": -1.0}, ArgumentError, "weight decay"), ({"batch_size": 0}, ArgumentError, "batch size 0"),
    ({"fanouts": []}, ArgumentError, "0 fanouts"), ({"sample_epochs": 0}, ArgumentError, "epochs 0"),
    ({"seed": -3}, ArgumentError, "seed -3"),
])  # fmt: skip
def test_options_of_train(graph: Graph, folder: Path, options: dict[str, Any], kind: Any, match: str) -> None:
    """All are refused before a run is prepared."""
    refused(kind, match, train, graph, **{**OPTIONS, "memory": "3MiB", **options})
    assert sorted(p.name for p in folder.iterdir()) == ["graph"]


def test_options_that_contradict_the_run(graph: Graph, folder: Path) -> None:
    prepare(graph, folder / "run")
    refused(ArgumentError, "fanouts and batch size", train, graph, run=folder / "run", fanouts=[2, 2])
    refused(BudgetError, "budget", train, graph, run=folder / "run", memory="300KiB")
    refused(BudgetError, "budget", train, graph, run=folder / "run", mode="memory", memory="2MiB")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_cuda_where_there_is_none(graph: Graph, folder: Path, name: str) -> None:
    refused(DeviceError, "--device cpu", train, graph, device=name, memory="3MiB", **OPTIONS)
    assert sorted(p.name for p in folder.iterdir()) == ["graph"]


SPLIT_ERRORS = [
    ({"train": np.array([3, NODES])}, f"node {NODES}"), ({"train": np.array([-1, 5])}, "node -1"),
    ({"train": np.array([7, 7])}, "7"), ({"valid": np.array([2, 1 << 40]), "train": np.arange(9)}, "1099511627776"),
]  # fmt: skip


@pytest.mark.parametrize(("splits", "match"), SPLIT_ERRORS)
def test_seeds_that_are_no_nodes(folder: Path, splits: dict[str, np.ndarray], match: str) -> None:
    """An import refuses them; a graph that was written otherwise is refused when it is sampled."""
    graph = small_graph(folder / "graph", splits=splits)
    message = refused(OutcropError, match, prepare_run, graph, folder / "run", memory="3MiB", **OPTIONS)
    assert "node" in message
    refused(OutcropError, match, train, graph, mode="ondisk", memory="6MiB", epochs=1, **OPTIONS)


@pytest.mark.parametrize(("changes", "match"), [
    ({"splits": {}}, "no training nodes"), ({"splits": {"train": np.zeros(0, np.int64)}}, "no training nodes"),
    ({"features": None}, "no features"), ({"labels": None}, "no labels"),
])  # fmt: skip
@pytest.mark.parametrize("mode", ["packed", "online", "memory", "memmap", "ondisk", "dynamic", "partition"])
def test_graphs_without_something(folder: Path, changes: dict[str, Any], match: str, mode: str) -> None:
    graph = small_graph(folder / "graph", **changes)
    message = refused(OutcropError, match, train, graph, mode=mode, memory="6MiB", epochs=1, **OPTIONS)
    assert str(folder) in message


BASELINE_ERRORS = [
    ({"mode": "belady"}, ArgumentError, "mode belady needs a run"),
    ({"mode": "dynamic", "cache_policy": "clock"}, ArgumentError, "'clock' is unknown; known: sieve, lru, s3fifo"),
    ({"mode": "partition", "partitions": 0}, ArgumentError, "partitions 0 is below 1"),
    ({"mode": "partition", "partitions": 4, "resident": 5}, ArgumentError, "5 resident partitions are not 1 to 4"),
    ({"mode": "partition", "resident": 0}, ArgumentError, "0 resident"),
    ({"mode": "partition", "partitions": 1, "memory": "300KiB"}, BudgetError, "mode partition; the smallest"),
    ({"mode": "dynamic", "memory": "20KiB"}, BudgetError, "KiB|bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "match"), BASELINE_ERRORS)
def test_impossible_baselines(folder: Path, options: dict[str, Any], kind: type, match: str) -> None:
    graph = small_graph(folder / "graph", features=np.ones((NODES, 400), np.float32))
    refused(kind, match, train, graph, **{"memory": "6MiB", "epochs": 1, **OPTIONS, **options})


def test_a_graph_without_nodes(folder: Path) -> None:
    with fresh_runtime() as runtime:
        graph = write_graph(folder / "graph", np.zeros((2, 0), np.int64), 0, runtime, labels=np.zeros(0, np.int64),
                            features=np.zeros((0, 4), np.float32), splits={"train": np.zeros(0, np.int64)})  # fmt: skip
    for mode in ("packed", "online", "memory", "dynamic", "partition"):
        refused(OutcropError, "training nodes", train, graph, mode=mode, memory="6MiB", epochs=1, **OPTIONS)


def test_a_graph_without_edges_works(folder: Path) -> None:
    rng = np.random.default_rng(0)
    with fresh_runtime() as runtime:
        graph = write_graph(folder / "graph", np.zeros((2, 0), np.int64), 50, runtime, labels=rng.integers(0, 2, 50),
                            features=rng.random((50, 4), np.float32), splits={"train": np.arange(20)})  # fmt: skip
    losses = [train(graph, mode=mode, memory="6MiB", epochs=2, trace_losses=True, **OPTIONS).batch_losses
              for mode in ("packed", "online", "memory", "dynamic", "partition")]  # fmt: skip
    assert all(found == losses[0] for found in losses)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("mode", ["packed", "ondisk"])
def test_features_that_are_no_numbers(folder: Path, bad: float, mode: str) -> None:
    features = np.zeros((NODES, 8), np.float32)
    features[:, 3] = bad
    graph = small_graph(folder / "graph", features=features)
    message = refused(
        NumericError, "epoch 0, batch 0", train, graph, mode=mode, memory="6MiB", epochs=1, **OPTIONS
    )
    assert "features" in message


def test_places_that_are_taken_or_missing(graph: Graph, folder: Path) -> None:
    file = folder / "file"
    file.write_text("mine")
    foreign = folder / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    refused(FormatError, "nowhere", prepare_run, folder / "nowhere", folder / "run", **OPTIONS)
    refused(FormatError, "file", prepare_run, file, folder / "run", **OPTIONS)
    refused(FormatError, "foreign", prepare_run, foreign, folder / "run", **OPTIONS)
    for taken in (file, foreign, graph.path):
        refused(ArgumentError, "in the way", prepare_run, graph, taken, **OPTIONS)
    refused(IoError, "file", prepare_run, graph, file / "run", **OPTIONS)
    refused(FormatError, "does not exist: make the run", train, graph, run=folder / "nowhere")
    refused(FormatError, "no Outcrop run", train, graph, run=graph.path)
    assert file.read_text() == "mine"
    assert (foreign / "thesis.txt").read_text() == "mine"


def test_runtime_options() -> None:
    refused(BudgetError, "budget", Runtime, 100)
    assert parse_size("1.5KiB") == parse_size("1.5kib") == parse_size("1.5k") == 1536
    assert parse_size("64mb") == parse_size("64MB") == 64_000_000


CLI = "from outcrop.cli.main import run; import sys; sys.argv[0] = 'outcrop'; run()"


def outcrop(*arguments: object) -> tuple[int, str]:
    """Exit status and standard error as one line."""
    ended = python(CLI, *arguments)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, " ".join(ended.stderr.split())


def test_command_line(graph: Graph, folder: Path) -> None:
    run, small = folder / "run", ["--batch-size", "15", "--fanouts", "3,3"]
    for arguments, *wanted in (
        (["prepare", folder / "nowhere", run], "nowhere", "error:"),
        (["prepare", graph.path, run, "--memory", "10KiB", *small], "budget", "10240"),
        (["prepare", graph.path, run, "--memory", "much"], "'much'", "512MiB"),
        (["prepare", graph.path, run, "--fanouts", "abc"], "'abc'", "10,15,20"),
        (["prepare", graph.path, run, "--fanouts", ""], "''", "10,15,20"),
        (["prepare", graph.path, graph.path, *small], "in the way", str(graph.path)),
        (["train", graph.path, "--mode", "quick"], "'quick'", "packed, online"),
        (["train", graph.path, "--model", "mlp"], "'mlp'", "sage, gat, gcn"),
        (["train", graph.path, "--run", folder / "nowhere"], "nowhere", "outcrop prepare"),
        (["info", folder], str(folder), "manifest.json"),
        (["verify", folder / "nowhere"], "nowhere", "does not exist"),
        (["generate", graph.path / "features.bin" / "x"], "features.bin", "error:"),
        (["import", "floppy:A", folder / "new"], "'floppy'", "arrays"),
    ):
        status, message = outcrop(*arguments)
        assert status == 1, (arguments, message)
        for part in wanted:
            assert part in message, (arguments, message)
    assert not run.exists() or not (run / "sample").exists()


@pytest.mark.parametrize("arguments", [
    ["prepare"], ["prepare", "a"], ["prepare", "a", "b", "--memroy", "3"], ["prepare", "a", "b", "--batch-size", "x"],
    ["fly"], ["train", "a", "--epochs", "many"],
])  # fmt: skip
def test_wrong_usage(arguments: list[str]) -> None:
    status, message = outcrop(*arguments)
    assert status == 2
    assert "Usage" in message
