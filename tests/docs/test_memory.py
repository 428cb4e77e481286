"""The tables of docs/memory.md are those that the code divides by, and its example runs."""

from __future__ import annotations

import re

from support import REPOSITORY, script


def test_the_page_has_the_tables_of_the_code() -> None:
    page = script("memory")
    assert page.PAGE.read_text() == page.wanted(), "run .venv/bin/python scripts/memory.py"


def test_the_example_runs(capsys) -> None:
    page = (REPOSITORY / "docs" / "memory.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    assert re.search(r"batch buffers +20.0 MiB .what the data need.\n", capsys.readouterr().out)
