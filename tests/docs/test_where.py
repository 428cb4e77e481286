"""Each row of docs/where.md names a file that is there, and a name that the file defines."""

from __future__ import annotations

import re

from support import REPOSITORY


def test_each_behaviour_is_where_the_page_says() -> None:
    page = (REPOSITORY / "docs" / "where.md").read_text()
    rows = re.findall(r"^\| (.+\?) \| (\S+) \| `(\w+)` \|$", page, re.MULTILINE)
    assert len(rows) >= 20
    for question, path, name in rows:
        place = REPOSITORY / "src" / ("" if path.endswith((".h", ".cpp")) else "outcrop") / path
        assert place.is_file(), f"{question} {path}"
        defined = rf"^\s*(def|class) {name}\b|^{name}\b.* = |\b{name}\b.*\("
        assert re.search(defined, place.read_text(), re.MULTILINE), f"{question} {name} in {path}"
