"""The code of docs/inference.md runs as it is written, top to bottom, and finds what the made-up tables say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outcrop.cli.main import app
from support import REPOSITORY

pytestmark = pytest.mark.leaks("env", reason="torch sets variables when it is imported")
PAGE = (REPOSITORY / "docs" / "inference.md").read_text()


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pd = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
    for language, block in blocks:
        if language == "python":
            exec(block, names)
    for line in "".join(block for language, block in blocks if not language).splitlines():
        done = CliRunner().invoke(app, [*shlex.split(line)[1:], "--quiet"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    found, labels = pd.read_parquet("kinds.parquet"), names["labels"]
    known = dict(zip(labels["id"], labels["label"], strict=True))
    assert sorted(found["name"]) == sorted(known)
    assert (
        found["class_name"] == found["name"].map(known)
    ).mean() > 0.8  # three equal classes: 1/3 by chance
    assert pd.read_parquet("mine.parquet")["name"].tolist() == labels["id"][:50].tolist()
    with names["oc"].Runtime() as runtime:
        valid = names["graph"].split(runtime, "valid").tolist()
    assert pd.read_parquet("valid.parquet")["node"].tolist() == valid
