"""Sources of which the system cannot say which files they have, for a moment: nothing is imported of fewer."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from outcrop.importing.graph import import_record

TOML = """
[[tables]]
name = "a"
file = "a.csv"
key = "id"
foreign_keys = { to = "a" }
"""
TYPES = """
[[nodes]]
name = "a"
num_nodes = 3

[[edges]]
source = "a"
relation = "to"
target = "a"
file = "edges.npy"
"""


def tables(folder: Path) -> str:
    (folder / "a.csv").write_text("id,to\n1,2\n2,1\n")
    (folder / "tables.toml").write_text(TOML)
    return "tables.toml"


def types(folder: Path) -> str:
    np.save(folder / "edges.npy", np.array([[0, 1], [1, 2]]))
    (folder / "graph.toml").write_text(TYPES)
    return "graph.toml"


def database(folder: Path) -> str:
    with closing(sqlite3.connect(folder / "a.sqlite")) as base:
        base.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, other INTEGER REFERENCES a)")
        base.execute("INSERT INTO a VALUES (1, 1)")
        base.commit()
    return "a.sqlite"


def failing_once(real: Callable[..., Any], name: str) -> Callable[..., Any]:
    left = [1]

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if left and Path(os.fsdecode(path)).name == name:
            left.pop()
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *arguments, **options)

    return call


@pytest.mark.parametrize(("kind", "make"), [("tables", tables), ("arrays", types)])
def test_a_description_that_is_not_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, make: Callable[[Path], str]
) -> None:
    """The import that comes next finds the same files, so it may not have been kept as made of others."""
    source = tmp_path / "source"
    source.mkdir()
    name, asked = make(source), f"{kind}:{source}"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", failing_once(Path.read_bytes, name))
        with pytest.raises(oc.IoError, match=rf"{name} cannot be read: Input/output error"):
            oc.import_graph(asked, tmp_path / "g.oc", progress=False)
    assert not (tmp_path / "g.oc").exists()
    oc.import_graph(asked, tmp_path / "g.oc", progress=False)
    before = (tmp_path / "g.oc" / "manifest.json").stat().st_mtime_ns
    oc.import_graph(asked, tmp_path / "g.oc", progress=False)
    assert (tmp_path / "g.oc" / "manifest.json").stat().st_mtime_ns == before


def test_a_folder_that_is_not_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", failing_once(os.listdir, tmp_path.name))
        with pytest.raises(oc.IoError, match=rf"{tmp_path.name} cannot be read: Input/output error"):
            import_record(f"tables:{tmp_path}", oc.ImportConfig())
    assert list(import_record(f"tables:{tmp_path}", oc.ImportConfig())["files"]) == ["a.sqlite"]


def test_a_database_that_is_not_read_is_not_taken_for_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = database(tmp_path)
    monkeypatch.setattr(Path, "open", failing_once(Path.open, name))
    with pytest.raises(oc.IoError, match=rf"{name} cannot be read: Input/output error"):
        oc.import_graph(f"tables:{tmp_path / name}", tmp_path / "g.oc", progress=False)
    oc.import_graph(f"tables:{tmp_path / name}", tmp_path / "g.oc", progress=False)


def test_what_is_not_there_is_said_by_the_import(tmp_path: Path) -> None:
    for kind in ("tables", "ntriples", "arrays"):
        with pytest.raises(oc.OutcropError, match="gone"):
            oc.import_graph(f"{kind}:{tmp_path / 'gone'}", tmp_path / "g.oc", progress=False)
