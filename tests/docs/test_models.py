"""The code of docs/models.md runs as it is written, and its table names every model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outcrop.config.models import EDGE_ROW_MODELS, MODELS, TYPED_MODELS
from support import REPOSITORY

pytestmark = pytest.mark.leaks("env", reason="torch sets variables when it is imported")
PAGE = (REPOSITORY / "docs" / "models.md").read_text()


def test_models_of_graphs_with_types_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    assert float(names["accuracy"]) > 0.8  # a model that sees no authors tells half of them
    assert [(node.name, node.made) for node in names["schema"].node_types][-1] == ("institution", "random:16")


def test_all_models_are_named() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert named == {*MODELS, *EDGE_ROW_MODELS, *TYPED_MODELS}
