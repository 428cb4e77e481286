"""The code of docs/sources.md runs as it is written, top to bottom, and the page names all that is looked for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outcrop.cli.main import app
from outcrop.importing.sources import edge_list, features, folder, kinds, matlab, objects, parts
from support import REPOSITORY

pytestmark = pytest.mark.leaks("env", reason="torch sets variables when it is imported")
PAGE = (REPOSITORY / "docs" / "sources.md").read_text()


def blocks(language: str) -> list[str]:
    return [text for name, text in re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL) if name == language]


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("networkx")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("python"):
        exec(block, names)
    for line in "".join(blocks("")).splitlines():
        done = CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False)
        assert done.exit_code == 0, done.output


def test_every_name_is_on_the_page() -> None:
    known = {
        f"`{name}`" for name in (*folder.FILES, *objects.KINDS, *parts.LABEL_COLUMNS, *features.ID_COLUMNS)
    }
    known |= {
        f"`{name}`"
        for name in (*edge_list.WEIGHT_COLUMNS, *edge_list.SOURCE_COLUMNS, *edge_list.TARGET_COLUMNS)
    }
    known |= {f"`{kind}:" for kind in kinds.OPENERS}
    assert sorted(name for name in known if name not in PAGE) == []
    for names in matlab.NAMES.values():
        assert [name for name in names if f"`{name}`" not in PAGE and f"`{name.upper()}`" not in PAGE] in (
            [],
            ["feature"],
        )
