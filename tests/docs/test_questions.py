"""The code of docs/questions.md runs as it is written, and learns to tell edges from others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import REPOSITORY

pytestmark = pytest.mark.leaks("env", reason="torch sets variables when it is imported")
PAGE = (REPOSITORY / "docs" / "questions.md").read_text()


def test_links_are_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    # Ten groups: of the pairs that are no edges about a tenth look like edges, so that 0.95 is the most.
    assert 0.65 < float(names["auc"]) < 0.97
    assert len(names["scores"]) == 2 * len(names["held_out"])
