"""``infer --dry-run`` against what the same call then reads, writes and leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import outcrop
from infer_support import a_model, odd_graph, save
from outcrop.api.infer import dry_run
from outcrop.cli.main import app
from outcrop.errors import ArgumentError, BudgetError
from outcrop.inference.division import UNLIMITED_BYTES, memory_of
from outcrop.runtime.runtime import Runtime

NODES, CLASSES = 3000, 5


@pytest.fixture
def options(tmp_path: Path, make_runtime) -> dict[str, object]:
    """Those of ``infer`` on a graph with every oddity, and the graph among them."""
    graph, _ = odd_graph(tmp_path / "g.oc", make_runtime(), nodes=NODES)
    folder = save(tmp_path / "checkpoint", graph, "sage", a_model("sage", 50, CLASSES))
    return {"graph": graph.path, "model": folder, "out": tmp_path / "out.npy"}


@pytest.mark.parametrize("memory", ["700KiB", "1MiB", "3MiB", "64MiB"])
def test_it_tells_what_is_read_and_written(options, tmp_path: Path, memory: str) -> None:
    graph = options.pop("graph")
    before = sorted(tmp_path.rglob("*"))
    found = dry_run(graph, {**options, "memory": memory})
    assert sorted(tmp_path.rglob("*")) == before
    report = outcrop.infer(graph, **options, memory=memory)
    assert (found["rows"], found["columns"]) == (NODES, CLASSES) == (report.rows, report.columns)
    assert found["bytes_read"] == report.predicted_bytes_read
    assert found["bytes_written"] == report.predicted_bytes_written
    for told, layer in zip(found["layers"], report.layers, strict=True):
        by_columns = told["by"] == "columns"
        assert told["layer"] == layer["layer"]
        assert (told["passes"] or 0) == layer["passes"]
        assert told["bytes_written"] == layer["bytes_written"]
        assert told["bytes_read"] == (layer["bytes_read"] if by_columns else None)


def test_sampled_batches_are_counted(options) -> None:
    graph = options.pop("graph")
    sampling = outcrop.InferSampling(batch_size=512)
    found = dry_run(graph, {**options, "method": "sampled", "sampling": sampling})
    assert (found["batches"], found["layers"], found["bytes_written"]) == (6, [], None)


def test_what_cannot_be_is_refused(options) -> None:
    graph = options.pop("graph")
    with pytest.raises(BudgetError, match="smallest"):
        dry_run(graph, {**options, "memory": "1KiB"})
    with pytest.raises(ArgumentError, match="output"):
        dry_run(graph, {**options, "output": "nonsense"})


def test_the_command_prints_and_writes_it(options, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    command = ["infer", str(options["graph"]), "--checkpoint", str(options["model"])]
    command += ["--out", str(options["out"]), "--memory", "64MiB", "--dry-run", "--json", str(told)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert json.loads(told.read_text())["layers"][0]["by"] == "columns"
    assert "3,000 rows of 5 logits" in " ".join(done.output.split())
    assert not Path(str(options["out"])).exists()


def test_a_budget_is_used_whole() -> None:
    assert memory_of(Runtime("16GiB")) == 16 << 30
    assert memory_of(Runtime()) == UNLIMITED_BYTES
