"""Imports from an object store and to one: the graph of the same files here, gone on with, nothing left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import tree
from outcrop.errors import ArgumentError, FormatError, IoError
from outcrop.store import range_copy
from outcrop.store.remote import RemoteFolder, without_keys
from store_support import Store

QUIET = oc.Observer(progress=False)
pytestmark = pytest.mark.leaks("thread", "fd", reason="the library of S3 keeps a thread and connections")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder, rng = tmp_path / "source", np.random.default_rng(0)
    folder.mkdir()
    np.save(folder / "edges.npy", rng.integers(0, 900, (8000, 2)))
    np.save(folder / "features.npy", rng.normal(size=(900, 12)).astype(np.float32))
    np.save(folder / "labels.npy", rng.integers(0, 3, 900))
    np.save(folder / "train.npy", np.arange(420))
    (folder / "notes").mkdir()
    (folder / "notes" / "empty.txt").touch()
    return folder


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTCROP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(range_copy, "RANGE_BYTES", 20_000)


def put(folder: Path, uri: str) -> str:
    """Copies files to a store."""
    for path in folder.rglob("*"):
        if path.is_file():
            inner = RemoteFolder(uri)
            for part in path.relative_to(folder).parent.parts:
                inner = inner.within(part)
            inner.send(path.name, path)
    return uri


def graph_in(folder: Path) -> dict[str, bytes]:
    """The files of a graph, without what is kept of its source."""
    return {name: data for name, data in tree(folder).items() if name != "imported.json"}


def imported(source: Any, out: Path, **options: Any) -> Path:
    return oc.import_graph(source, out, progress=False, **options).path


@pytest.mark.parametrize("kind", ["arrays:", ""])
def test_a_folder(
    source: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    uri = put(source, store("data/source"))
    want = imported(f"arrays:{source}", tmp_path / "want.oc")
    out = imported(kind + uri, tmp_path / "in" / "g.oc")
    assert graph_in(out) == graph_in(want)
    assert oc.open_graph(out).digest() == oc.open_graph(want).digest()
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["g.oc"]
    kept = json.loads((out / "imported.json").read_text())
    assert kept["source"] == kind + without_keys(uri)
    assert set(kept["files"]) == {path.relative_to(source).as_posix() for path in source.rglob("*.*")}
    with monkeypatch.context() as patching:  # the same files are not read again
        patching.setattr(RemoteFolder, "read_range", None)
        again = oc.import_graph(kind + uri, out, progress=False)
    assert "is kept" in again.notes[0]
    time.sleep(1.1)  # stores tell seconds of a change apart, no less
    np.save(source / "labels.npy", np.zeros(900, np.int64))
    put(source, uri)
    with pytest.raises(ArgumentError, match=r"differs in.*labels.npy \(which changed\)"):
        imported(kind + uri, out)
    imported(kind + uri, out, overwrite=True)
    assert graph_in(out) == graph_in(imported(f"arrays:{source}", tmp_path / "want.oc", overwrite=True))


def test_files_and_triples(store: Store, tmp_path: Path) -> None:
    folder, rng = tmp_path / "files", np.random.default_rng(0)
    folder.mkdir()
    pairs, triples = rng.integers(0, 90, (500, 2)), rng.integers(0, 40, (300, 3))
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in pairs))
    (folder / "train.txt").write_text("".join(f"e{a}\tr{b % 3}\te{c}\n" for a, b, c in triples))
    uri = put(folder, store("files"))
    plain, mark, options = uri.partition("?")
    for name in ("edges:", ""):
        out = imported(f"{name}{plain}/edges.csv{mark}{options}", tmp_path / f"{name}g.oc")
        assert graph_in(out) == graph_in(
            imported(f"edges:{folder / 'edges.csv'}", tmp_path / f"{name}want.oc")
        )
    made = oc.import_triples(f"triples:{uri}", tmp_path / "kg.oc", progress=False).path
    want = oc.import_triples(f"triples:{folder}", tmp_path / "want-kg.oc", progress=False).path
    assert graph_in(made) == graph_in(want)
    assert oc.import_triples(f"triples:{uri}", tmp_path / "kg.oc", progress=False).path == made
    assert not list(tmp_path.glob(".*.source"))


def test_an_interrupted_copy_goes_on(
    source: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, was, asked = put(source, store("source")), RemoteFolder.read_range, list[str]()

    def read_range(self: RemoteFolder, name: str, *rest: int) -> bytes:
        asked.append(name)
        if len(asked) == 6:
            raise KeyboardInterrupt
        return was(self, name, *rest)

    monkeypatch.setattr(RemoteFolder, "read_range", read_range)
    out = tmp_path / "in" / "g.oc"
    with pytest.raises(KeyboardInterrupt):
        imported(f"arrays:{uri}", out)
    (staged,) = (tmp_path / "in").iterdir()
    assert staged.name == ".g.oc.source"
    assert "secret" not in (staged / ".fetched").read_text()
    first = len((staged / ".fetched").read_text().splitlines()) - 1
    assert first >= 5
    asked[:] = [""] * 6
    imported(f"arrays:{uri}", out)
    ranges = sum(-(-path.stat().st_size // 20_000) for path in source.rglob("*.*"))
    assert len(asked) - 6 == ranges - first
    assert graph_in(out) == graph_in(imported(f"arrays:{source}", tmp_path / "want.oc"))
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["g.oc"]


def test_what_changes_or_is_not_there_is_refused(
    source: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, was = put(source, store("source")), RemoteFolder.read_range
    place = without_keys(uri)
    out = tmp_path / "in" / "g.oc"

    def changing(self: RemoteFolder, name: str, *rest: int) -> bytes:
        if name == "labels.npy":
            np.save(source / "train.npy", np.arange(421))
            RemoteFolder(uri).send("train.npy", source / "train.npy")
        return was(self, name, *rest)

    with monkeypatch.context() as patching:
        patching.setattr(RemoteFolder, "read_range", changing)
        with pytest.raises(
            FormatError, match=rf"{place}.*(was changed while it was copied|cut short while it was read)"
        ):
            imported(f"arrays:{uri}", out)
    assert not out.exists()
    with monkeypatch.context() as patching:
        patching.setattr(range_copy.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
        with pytest.raises(IoError, match=r"has room for 1000 bytes, \d+ are to come"):
            imported(f"arrays:{uri}", tmp_path / "small.oc")
    imported(f"arrays:{uri}", out)  # of the new state
    assert graph_in(out) == graph_in(imported(f"arrays:{source}", tmp_path / "want.oc"))
    with pytest.raises(FormatError, match=r"nothing is not there, or holds no files"):
        imported(f"arrays:{store('nothing')}", tmp_path / "in" / "none.oc")
    (source / "labels.npy").write_bytes(b"no array")
    put(source, uri)
    with pytest.raises(FormatError) as caught:
        imported(f"arrays:{uri}", tmp_path / "in" / "bad.oc")
    assert f"{place}/labels.npy" in str(caught.value)
    assert ".source" not in str(caught.value)
    with pytest.raises(ArgumentError, match="kind 'arrows' is unknown"):
        imported(f"arrows:{uri}", tmp_path / "in" / "bad.oc")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "a//x"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    from pyarrow.fs import FileType

    folder = RemoteFolder(f"file://{tmp_path}/store")
    info = SimpleNamespace(path=f"{tmp_path}/store/{name}", size=3, mtime_ns=1, type=FileType.File)
    folder._system = SimpleNamespace(get_file_info=lambda _: [info])  # type: ignore[assignment]
    with pytest.raises(FormatError, match="cannot be copied to a folder"):
        folder.all_files()


def command(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    start = ["-c", code + "\nfrom outcrop.cli.start import run\nrun()"] if code else ["-m", "outcrop"]
    return subprocess.run([sys.executable, *start, *arguments], capture_output=True, text=True, timeout=300)


KILLED = """
import os
from outcrop.store.remote import RemoteFolder
write = RemoteFolder.write
def killing(self, name, content):
    if name == "manifest.json":
        os.kill(os.getpid(), 9)
    write(self, name, content)
RemoteFolder.write = killing
"""


def test_a_graph_is_made_for_a_store(source: Path, store: Store, tmp_path: Path) -> None:
    uri, cache = store("made/g.oc"), tmp_path / "cache"
    want = imported(f"arrays:{source}", tmp_path / "want.oc")
    killed = command("import", f"arrays:{source}", uri, "--quiet", code=KILLED)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert RemoteFolder(uri).size("manifest.json") is None
    done = command("import", f"arrays:{source}", uri, "--json", str(tmp_path / "report.json"))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["path"] == without_keys(uri)
    assert (
        "is kept: it was imported from the same files" in report["notes"][0]
    )  # what was killed is not done again
    oc.fetch(uri, tmp_path / "back.oc", observer=QUIET)
    assert graph_in(tmp_path / "back.oc") == graph_in(want)
    assert not list(cache.rglob("*.bin"))
    again = command("import", f"arrays:{source}", uri, "--quiet")
    assert again.returncode != 0
    assert "holds an artifact: choose another place, or replace it with --overwrite" in again.stderr
    np.save(source / "labels.npy", np.zeros(900, np.int64))
    assert command("import", f"arrays:{source}", uri, "--quiet", "--overwrite").returncode == 0
    oc.fetch(uri, tmp_path / "back.oc", overwrite=True, observer=QUIET)
    assert graph_in(tmp_path / "back.oc") == graph_in(imported(f"arrays:{source}", tmp_path / "w.oc"))


def test_python_makes_a_graph_for_a_store(source: Path, store: Store, tmp_path: Path) -> None:
    """Of files, and of objects in memory."""
    uri, want = store("made/g.oc"), imported(f"arrays:{source}", tmp_path / "want.oc")
    made = oc.import_graph(f"arrays:{source}", uri, progress=False)
    assert made.digest() == oc.open_graph(want).digest()
    assert "secret" not in str(made.path)
    oc.fetch(uri, tmp_path / "back.oc", observer=QUIET)
    assert graph_in(tmp_path / "back.oc") == graph_in(want)
    assert not list((tmp_path / "cache").rglob("*.bin"))
    with pytest.raises(
        FormatError, match="no folder of this machine: bring it here first, with outcrop fetch"
    ):
        oc.open_graph(made.path)
    edges = {"edges": np.array([[0, 1], [1, 2]])}
    with pytest.raises(ArgumentError, match="holds an artifact: choose another place, or replace it"):
        oc.import_graph(edges, uri, progress=False)
    assert oc.import_graph(edges, uri, overwrite=True, progress=False).num_nodes == 3
    oc.fetch(uri, tmp_path / "back.oc", overwrite=True, observer=QUIET)
    assert graph_in(tmp_path / "back.oc") == graph_in(imported(edges, tmp_path / "small.oc"))


def test_what_makes_folders_refuses_uris(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder called ``s3:`` comes about."""
    monkeypatch.chdir(tmp_path)
    graph = imported(f"arrays:{source}", tmp_path / "g.oc")
    uri = "s3://bucket/my.oc"
    for make in (
        lambda: oc.generate_graph(Path(uri), oc.GenerateConfig(nodes=10, edges=20), progress=False),
        lambda: oc.prepare(graph, uri, sampling=oc.SampleConfig(fanouts=(2,)), observer=QUIET),
    ):
        with pytest.raises(ArgumentError, match=r"is a URI, and here a folder is needed: .*outcrop upload"):
            make()
    with pytest.raises(
        FormatError, match=r"no folder of this machine: bring it here first, with outcrop fetch URI"
    ):
        oc.open_graph(uri)
    assert not (tmp_path / "s3:").exists()
