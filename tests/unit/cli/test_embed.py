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


def test_validation_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    edges = tmp_path / "edges.csv"
    edges.write_text("".join(f"{i},{(i * k) % 97}\n" for i in range(97) for k in range(2, 9)))
    graph, run = str(tmp_path / "g"), str(tmp_path / "e")
    held = ["--valid-fraction", "0.1"]
    for command in (["import", f"edges:{edges}", graph], ["embed", "prepare", graph, run, *held]):
        assert CliRunner().invoke(app, [*command, "--quiet"], catch_exceptions=False).exit_code == 0
    small = [run, "--model", "dot", "--dim", "4", "--epochs", "3", "--evaluate-every", "2"]
    text = said([*small, "--no-keep-best"])
    assert "valid MRR" in text
    assert "on the validation edges; its vectors are not kept" in text
    assert not [*Path(run).glob("best-*")]
    assert "on the validation edges;" not in said([*small, "--fresh", "--keep-best", "--candidates", "20"])
    assert len([*Path(run).glob("best-*")]) == 1
    for epoch in ("best", "last"):
        done = CliRunner().invoke(app, ["embed", "eval", run, "--split", "valid", "--epoch", epoch])
        assert "of epoch " in done.output, done.output
    refused = CliRunner().invoke(app, ["embed", "train", run, "--model", "dot", "--candidates", "5"])
    assert refused.exit_code == 1
