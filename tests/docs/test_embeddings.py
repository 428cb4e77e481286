"""The code of docs/embeddings.md runs as it is written, top to bottom, and says what the page says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outcrop.cli.main import app
from support import REPOSITORY

pytestmark = pytest.mark.leaks(
    "env",
    "fd",
    reason="torch sets variables when it is imported; Arrow keeps a pipe when it first reads text",
)
PAGE = (REPOSITORY / "docs" / "embeddings.md").read_text()


def blocks(language: str) -> list[str]:
    return [text for name, text in re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL) if name == language]


def run(block: str) -> str:
    said = ""
    for line in block.splitlines():
        done = CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        said += done.output
    return said


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    chained, as_features = blocks("python")
    exec(chained, names)
    trained = names["trained"]
    assert len(trained.rankings) == len(trained.epochs)
    for folder in ("family.kg", "family.emb"):
        shutil.rmtree(folder)
    by_command, with_more = blocks("")
    said = run(by_command)
    assert "best epoch" in said
    assert "person" in said
    assert "of epoch 8" in run(with_more)
    exec(as_features, names)
