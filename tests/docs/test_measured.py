"""Tables of the pages are what the JSON of the benchmarks says: no number is typed by hand."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from support import REPOSITORY, script


@pytest.fixture
def tables() -> ModuleType:
    return script("tables")


def test_the_pages_have_the_tables_of_the_results(tables: ModuleType) -> None:
    used = []
    for page, text in tables.wanted().items():
        assert page.read_text() == text, "run python scripts/tables.py"
        used += re.findall(r"<!-- table: (\S+) -->", text)
    assert sorted(used) == sorted(tables.TABLES)  # each once


def test_no_measured_number_stands_outside_the_tables(tables: ModuleType) -> None:
    for page in (*tables.PAGES, REPOSITORY / "ARCHITECTURE.md"):
        prose = re.sub(
            r"<!-- table: .*?<!-- end -->|```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL
        )
        found = re.findall(r"\b\d+(?:\.\d+)?x\b|\b\d+\.\d+ s\b|± \d", prose)
        assert found == [], f"{page.name}: {found}"


def test_numbers_come_from_the_file(tables: ModuleType, tmp_path: Path, monkeypatch) -> None:
    """Other results give other tables, whatever modes they have, and say of what source they are."""
    result = json.loads(tables.path_of(tables.REFERENCE).read_text())
    shutil.copytree(tables.RESULTS, tmp_path / "results")
    times = {}
    for number, record in enumerate(result["modes"].values()):
        record["seconds"], record["against_memory"] = number + 0.25, number + 0.5
    times = {mode: record["seconds"] for mode, record in result["modes"].items()}
    result["modes"]["new mode"] = {**result["modes"]["memory"], "seconds": 99.0}
    (tmp_path / "results" / tables.MACHINE / "memory-curve.json").write_text(
        json.dumps({**result, "columns": ["a", "b"], "rows": [[1, 2]], "revision": "123-dirty"})
    )
    (tmp_path / "results" / tables.MACHINE / tables.REFERENCE).write_text(json.dumps(result))
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    table = tables.render("epoch")
    for mode, seconds in times.items():
        line = next(x for x in table.splitlines() if x.startswith(f"| {tables._MODES[mode]} "))
        assert line.split(" | ")[1:3] == [f"{seconds:.2f} s", f"{seconds + 0.25:.2f}x"]
    assert "| `new mode` | 99.00 s |" in table
    curve = tables.render("memory-curve")
    assert "| a | b |\n| --- | --- |\n| 1 | 2 |" in curve
    assert "not committed" in curve
    assert f"another than that of the first table ({result['revision']})" in curve


def test_the_text_of_a_package_index_stands_alone(tables: ModuleType) -> None:
    """No link leads nowhere; without a public repository what were links are paths of files that exist."""
    readme = (REPOSITORY / "README.md").read_text()
    targets = set(re.findall(r"\]\((?!https?:)([^)#]+)", readme))
    assert len(targets) > 5
    alone = tables.for_an_index(readme, None)
    assert re.findall(r"\]\((?!https?:)[^)]*\)|<!--", alone) == []
    for target in targets:
        assert (REPOSITORY / target).exists()
        assert f"`{target}`" in alone
    linked = tables.for_an_index(readme, "https://example.org/outcrop")
    found = re.findall(r"\]\(([^)]+)\)", linked)
    assert {
        link.removeprefix("https://example.org/outcrop/blob/main/").partition("#")[0] for link in found
    } >= targets
    assert all(link.startswith("https://") for link in found)
    explained = "are those of files in the source repository"
    assert explained in alone.partition("##")[0]
    assert explained not in linked
