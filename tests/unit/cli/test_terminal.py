"""Names in the data, of files and of folders are shown, and steer no terminal: through the commands themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from outcrop.cli.main import app

pytestmark = pytest.mark.leaks("env", reason="torch sets variables when it is imported")
STEERS = "\x1b]0;owned\x07"
NODES = 60


def source(folder: Path, broken: str = "") -> Path:
    """A folder of tables whose nodes, classes and columns have hostile names; an edge names the node ``broken``."""
    pa, csv = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.csv")
    folder.mkdir()
    rng, names = np.random.default_rng(0), [f"{STEERS}{node}" for node in range(NODES)]
    ends = rng.integers(0, NODES, (2, 400))
    edges = {"src": [names[i] for i in ends[0]], "dst": [names[i] for i in ends[1]]}
    if broken:
        edges["dst"][7] = broken
    tables = {
        "edges": edges,
        "features": {"id": names, f"{STEERS}x": rng.random(NODES), "y": rng.random(NODES)},
        "labels": {"id": names, "label": [f"{STEERS}{node % 3}" for node in range(NODES)]},
        "nodes": {"id": names},
    }
    for name, columns in tables.items():
        csv.write_csv(pa.table(columns), folder / f"{name}.csv")
    return folder


def test_commands_over_hostile_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data, graph = source(tmp_path / "data"), f"{STEERS}g.oc"
    wrong = source(tmp_path / "wrong", broken=f"{STEERS}nobody")
    (tmp_path / "ids.txt").write_text(f"{STEERS}nobody\n")
    small = ["--fanouts", "3,3", "--batch-size", "16"]
    commands = [
        ["import", f"arrays:{data}", graph, "--train-fraction", "0.5"],
        ["import", f"arrays:{wrong}", "w.oc"],
        ["info", graph],
        ["prepare", graph, f"{STEERS}run", *small, "--epochs", "1"],
        ["info", f"{STEERS}run"],
        ["train", graph, *small, "--epochs", "1", "--hidden", "4", "--checkpoint", f"{STEERS}ckpt"],
        ["info", f"{STEERS}ckpt"],
        ["infer", graph, "--checkpoint", f"{STEERS}ckpt", "--out", f"{STEERS}scores.parquet"],
        ["infer", graph, "--checkpoint", f"{STEERS}ckpt", "--out", "s.npy", "--nodes", "ids.txt"],
        ["train", graph, "--mode", STEERS],
        ["verify", graph],
        ["embed", "prepare", graph, "e.emb"],
        ["embed", "train", "e.emb", "--dim", "4", "--epochs", "1", "--batch", "50", "--chunk", "10"],
        ["embed", "neighbors", "e.emb", f"{STEERS}1"],
        ["info", f"{STEERS}nowhere"],
    ]
    ended = []
    for command in commands:
        done = CliRunner().invoke(app, command)
        ended.append(done.exit_code == 0)
        assert not {"\x1b", "\x07"} & set(done.output), command
    assert ended == [number not in (1, 8, 9, 14) for number in range(len(commands))]
