"""Commands of embeddings: what they print where there is nothing left to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from outcrop.cli.main import app


def said(arguments: list[str]) -> str:
    done = CliRunner().invoke(app, ["embed", "train", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return " ".join(done.output.split())


def test_a_finished_training_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    edges = tmp_path / "edges.csv"
    edges.write_text("".join(f"{i},{(i + 1) % 40}\n" for i in range(40)))
    graph, run = str(tmp_path / "g"), str(tmp_path / "e")
    for command in (["import", f"edges:{edges}", graph], ["embed", "prepare", graph, run]):
        assert CliRunner().invoke(app, [*command, "--quiet"], catch_exceptions=False).exit_code == 0
    small = [run, "--model", "dot", "--dim", "4"]
    assert "training " not in said([*small, "--epochs", "1"])
    assert "went on from epoch 1 of the checkpoint" in said([*small, "--epochs", "2"])
    assert "already trained 2 epochs: nothing was left to do" in said([*small, "--epochs", "2"])
