"""Graphs and runs to and from object stores: the same bytes, gone on with, and what is damaged refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import manifest_at
from outcrop.errors import ArgumentError, ChecksumError, FormatError, IoError
from outcrop.store import range_copy, remote, transport
from outcrop.store.remote import RemoteFolder
from store_support import Store

QUIET = oc.Observer(progress=False)
pytestmark = pytest.mark.leaks("thread", "fd", reason="the library of S3 keeps a thread and connections")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("here"), np.random.default_rng(0)
    parts = {
        "edges": rng.integers(0, 900, (8000, 2)),
        "features": rng.normal(size=(900, 40)).astype(np.float32),
        "labels": rng.integers(0, 3, 900),
    }
    splits = {"train": np.arange(420), "valid": np.arange(420, 530)}
    return oc.import_graph(parts, folder / "g.oc", splits=splits, progress=False).path


@pytest.fixture(scope="module")
def run(graph: Path) -> Path:
    sampling = oc.SampleConfig(fanouts=(4, 3), batch_size=60)
    return oc.prepare(graph, graph.parent / "g.run", sampling=sampling, epochs=2, observer=QUIET).path


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "history" not in path.parts
    }


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of several ranges, the last of them short."""
    monkeypatch.setattr(range_copy, "RANGE_BYTES", 20_000)
    monkeypatch.setattr(transport, "RANGE_BYTES", 20_000)


def test_a_graph_comes_back(graph: Path, store: Store, tmp_path: Path) -> None:
    sent = oc.upload(graph, store("graphs/g.oc"), observer=QUIET)
    found = oc.fetch(store("graphs/g.oc"), tmp_path / "in" / "g.oc", observer=QUIET)
    assert content(tmp_path / "in" / "g.oc") == content(graph)
    assert oc.open_graph(tmp_path / "in" / "g.oc").digest() == oc.open_graph(graph).digest()
    whole = sum(path.stat().st_size for path in graph.glob("*.bin"))
    assert (sent.bytes, found.bytes, found.resumed_bytes, found.skipped) == (whole, whole, 0, 0)
    assert found.files == sent.files == len(list(graph.glob("*.bin")))
    again = oc.fetch(store("graphs/g.oc"), tmp_path / "in" / "g.oc", observer=QUIET)
    assert (again.bytes, again.skipped) == (0, 1)
    assert oc.upload(graph, store("graphs/g.oc"), observer=QUIET).skipped == 1


def test_a_run_comes_back_and_trains_as_it_did(graph: Path, run: Path, store: Store, tmp_path: Path) -> None:
    oc.upload(run, store("my.run"), observer=QUIET)
    with pytest.raises(ArgumentError, match=r"is a run of a graph that it looks for at .*--graph"):
        oc.fetch(store("my.run"), tmp_path / "r", observer=QUIET)
    assert not (tmp_path / "r").exists()
    shutil.copytree(graph, tmp_path / "copy.oc")
    oc.fetch(store("my.run"), tmp_path / "r", graph=tmp_path / "copy.oc", observer=QUIET)
    want, found = content(run), content(tmp_path / "r")
    assert json.loads(found.pop("run.json"))["graph"] == "../copy.oc"
    del want["run.json"]
    assert found == want
    losses = [
        oc.train(folder, run=made, epochs=2, observer=QUIET).epochs[-1]["loss"]
        for folder, made in ((graph, run), (tmp_path / "copy.oc", tmp_path / "r"))
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("after", [0, 1, 7])
def test_an_interrupted_fetch_goes_on(
    graph: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """What had come is not asked for again, unless it is not what came."""
    oc.upload(graph, store("g.oc"), observer=QUIET)
    read, asked = RemoteFolder.read_range, []

    def failing(self: RemoteFolder, name: str, offset: int, count: int) -> bytes:
        if name.endswith(".bin"):
            asked.append((name, offset))
            if len(asked) > after:
                raise IoError(5, "the network is gone")
        return read(self, name, offset, count)

    monkeypatch.setattr(RemoteFolder, "read_range", failing)
    with pytest.raises(IoError, match="the network is gone"):
        oc.fetch(store("g.oc"), tmp_path / "g.oc", observer=QUIET)
    assert not (tmp_path / "g.oc").exists()
    monkeypatch.setattr(RemoteFolder, "read_range", read)
    found = oc.fetch(store("g.oc"), tmp_path / "g.oc", observer=QUIET)
    whole = sum(path.stat().st_size for path in graph.glob("*.bin"))
    assert found.bytes + found.resumed_bytes == whole
    assert (found.resumed_bytes > 0) == (after > 0)
    assert content(tmp_path / "g.oc") == content(graph)


def test_what_was_fetched_and_changed_is_fetched_again(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/store/g.oc"
    oc.upload(graph, uri, observer=QUIET)
    monkeypatch.setattr(transport._Fetch, "_check", stop)
    with pytest.raises(KeyboardInterrupt):
        oc.fetch(uri, tmp_path / "g.oc", observer=QUIET)
    monkeypatch.undo()
    monkeypatch.setattr(range_copy, "RANGE_BYTES", 20_000)
    monkeypatch.setattr(transport, "RANGE_BYTES", 20_000)
    half = tmp_path / ".g.oc.partial" / "features.bin"
    with half.open("r+b") as file:
        file.seek(25_000)
        file.write(b"changed")
    found = oc.fetch(uri, tmp_path / "g.oc", observer=QUIET)
    assert found.bytes == 20_000
    assert content(tmp_path / "g.oc") == content(graph)


def stop(*_: Any) -> None:
    raise KeyboardInterrupt


def test_damage_is_found_and_mended(graph: Path, tmp_path: Path) -> None:
    uri, there = f"file://{tmp_path}/store/g.oc", tmp_path / "store" / "g.oc"
    oc.upload(graph, uri, observer=QUIET)
    damaged = bytearray((there / "features.bin").read_bytes())
    damaged[30_000] ^= 1
    (there / "features.bin").write_bytes(damaged)
    with pytest.raises(ChecksumError, match=r"store/g.oc/features.bin: checksum of what came is"):
        oc.fetch(uri, tmp_path / "g.oc", observer=QUIET)
    assert not (tmp_path / "g.oc").exists()
    shutil.copyfile(graph / "features.bin", there / "features.bin")
    found = oc.fetch(uri, tmp_path / "g.oc", observer=QUIET)
    assert found.bytes == (graph / "features.bin").stat().st_size
    assert content(tmp_path / "g.oc") == content(graph)


def test_what_is_cut_short_or_gone_is_refused(graph: Path, tmp_path: Path) -> None:
    uri, there = f"file://{tmp_path}/store/g.oc", tmp_path / "store" / "g.oc"
    oc.upload(graph, uri, observer=QUIET)
    os.truncate(there / "indices.bin", 4096)
    with pytest.raises(FormatError, match=r"indices.bin has 4096 bytes, and its manifest says \d+"):
        oc.fetch(uri, tmp_path / "g.oc", observer=QUIET)
    (there / "indices.bin").unlink()
    with pytest.raises(FormatError, match=r"indices.bin is not there"):
        oc.fetch(uri, tmp_path / "g.oc", observer=QUIET)
    (there / "manifest.json").write_text("{")
    with pytest.raises(FormatError, match=r"g.oc/manifest.json is no Outcrop manifest"):
        oc.fetch(uri, tmp_path / "g.oc", observer=QUIET)
    (there / "manifest.json").unlink()
    with pytest.raises(FormatError, match="holds no graph and no run"):
        oc.fetch(uri, tmp_path / "g.oc", observer=QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


HOSTILE = [
    *(
        "../../evil.bin",
        "/tmp/evil.bin",
        "a/b.bin",
        "..",
        "a\0b.bin",
        "\ud800.bin",
        ".fetched",
        "manifest.json",
    ),
    *("imported.json", ".manifest.json.tmp", "..\\x.bin", "a" * 300 + ".bin", "labels.bin", ""),
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_manifest_cannot_write_elsewhere(graph: Path, tmp_path: Path, name: str) -> None:
    """Nor over what fetching itself writes, nor may two arrays lie in one file."""
    uri, there = f"file://{tmp_path}/store/g.oc", tmp_path / "store" / "g.oc"
    oc.upload(graph, uri, observer=QUIET)
    manifest = manifest_at(there / "manifest.json")
    manifest["arrays"]["features"]["file"] = name
    (there / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match=r"points outside its folder|no name of a file|where another lies"):
        oc.fetch(uri, tmp_path / "g.oc", observer=QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_an_upload_refuses_damage_and_goes_on(
    graph: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(graph, tmp_path / "g.oc")
    with (tmp_path / "g.oc" / "labels.bin").open("r+b") as file:
        file.write(b"\x01")
    with pytest.raises(ChecksumError, match=r"labels.bin: checksum is"):
        oc.upload(tmp_path / "g.oc", store("up.oc"), observer=QUIET)
    assert not list(tmp_path.rglob(".*.part"))
    with pytest.raises(FormatError, match="holds no graph and no run"):
        oc.fetch(store("up.oc"), tmp_path / "back", observer=QUIET)
    shutil.copyfile(graph / "labels.bin", tmp_path / "g.oc" / "labels.bin")
    sent = oc.upload(tmp_path / "g.oc", store("up.oc"), observer=QUIET)
    whole = sum(path.stat().st_size for path in graph.glob("*.bin"))
    assert sent.bytes + sent.resumed_bytes == whole
    assert sent.resumed_bytes > 0
    oc.fetch(store("up.oc"), tmp_path / "back", observer=QUIET)
    assert content(tmp_path / "back") == content(graph)


def test_nothing_is_replaced_unasked(graph: Path, store: Store, tmp_path: Path) -> None:
    parts = {"edges": np.array([[0, 1], [1, 2]]), "features": np.ones((3, 2), np.float32)}
    other = oc.import_graph(parts, tmp_path / "other.oc", progress=False).path
    oc.upload(graph, store("g.oc"), observer=QUIET)
    with pytest.raises(ArgumentError, match="holds another artifact"):
        oc.upload(other, store("g.oc"), observer=QUIET)
    with pytest.raises(ArgumentError, match="overwrite"):
        oc.fetch(store("g.oc"), other, observer=QUIET)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ArgumentError, match="in the way"):
        oc.fetch(store("g.oc"), tmp_path / "taken", observer=QUIET)
    oc.upload(other, store("g.oc"), overwrite=True, observer=QUIET)
    oc.fetch(store("g.oc"), tmp_path / "taken2", observer=QUIET)
    assert content(tmp_path / "taken2") == content(other)


def test_a_store_that_fails_is_asked_again(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/store/g.oc"
    oc.upload(graph, uri, observer=QUIET)
    monkeypatch.setattr(remote, "_FIRST_WAIT_S", 0.001)
    folder, failures = RemoteFolder(uri), [3]

    class Failing:
        def open_input_file(self, path: str) -> Any:
            if failures[0]:
                failures[0] -= 1
                raise OSError(5, "try again")
            return folder._system.open_input_file(path)

    flaky = RemoteFolder(uri)
    flaky._system = Failing()
    assert flaky.read_range("labels.bin", 0, 100) == (graph / "labels.bin").read_bytes()[:100]
    failures[0] = 9
    with pytest.raises(IoError, match=r"labels.bin at byte 40: .*try again \(tried 4 times\)"):
        flaky.read_range("labels.bin", 40, 100)


@pytest.mark.parametrize(("number", "begins"), [(0, "file://"), (5, "[Errno 5] file://")])
def test_the_number_of_an_error_is_said_where_there_is_one(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, begins: str
) -> None:
    """A store that cannot be reached has none: curl's reason is all that there is."""
    monkeypatch.setattr(remote, "_FIRST_WAIT_S", 0.001)

    class Away:
        def get_file_info(self, path: str) -> Any:
            raise OSError(*([number] if number else []), "no connection")

    folder = RemoteFolder(f"file://{tmp_path}/store/g.oc")
    folder._system = Away()
    with pytest.raises(IoError, match=r"store/g.oc/a.bin: .*no connection \(tried 4 times\)") as found:
        folder.size("a.bin")
    assert str(found.value).startswith(begins)


def test_a_folder_that_comes_while_it_is_listed_is_listed_again(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes it between two calls of one listing, which then says that it is not there."""
    monkeypatch.setattr(remote, "_FIRST_WAIT_S", 0.001)
    uri = f"file://{tmp_path}/store/g.oc"
    folder, listings = RemoteFolder(uri), list[str]()

    class Late:
        def get_file_info(self, selector: Any) -> Any:
            listings.append(selector.base_dir)
            if len(listings) % 2:
                oc.upload(graph, uri, overwrite=len(listings) > 1, observer=QUIET)
                raise FileNotFoundError(2, f"Cannot list directory {selector.base_dir!r}")
            return folder._system.get_file_info(selector)

    late = RemoteFolder(uri)
    late._system = Late()
    wanted = {path.name: path.stat().st_size for path in graph.iterdir() if not path.name.startswith(".")}
    assert {name: size for name, size in late.sizes().items() if name in wanted} == wanted
    assert {name: state.size for name, state in late.all_files().items() if name in wanted} == wanted
    assert listings == [f"{tmp_path}/store/g.oc"] * 4
    assert RemoteFolder(f"file://{tmp_path}/nowhere").sizes() == {}


@pytest.mark.parametrize(
    ("uri", "said"),
    [("nowhere", "cannot be used"), ("ftp://host/x", "known are s3://"), ("s3://", "cannot be used")],
)
def test_what_is_no_uri_is_refused(tmp_path: Path, uri: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        oc.fetch(uri, tmp_path / "g.oc", observer=QUIET)


def test_a_full_disk_is_told_before_anything_is_fetched(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/store/g.oc"
    oc.upload(graph, uri, observer=QUIET)

    class Usage:
        free = 1000

    monkeypatch.setattr(range_copy.shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(IoError, match=r"has room for 1000 bytes, \d+ are to come"):
        oc.fetch(uri, tmp_path / "g.oc", observer=QUIET)


def test_another_run_is_not_mixed_in(graph: Path, run: Path, tmp_path: Path) -> None:
    """Neither here nor there; and where it is refused, what was there trains as before."""
    sampling = oc.SampleConfig(fanouts=(2, 2), batch_size=50)
    other = oc.prepare(graph, tmp_path / "other.run", sampling=sampling, epochs=1, observer=QUIET).path
    shutil.rmtree(other / "pack")
    first, second = f"file://{tmp_path}/first", f"file://{tmp_path}/second"
    oc.upload(run, first, observer=QUIET)
    oc.upload(other, second, observer=QUIET)
    oc.fetch(first, tmp_path / "r", graph=graph, observer=QUIET)
    before = content(tmp_path / "r")
    with pytest.raises(ArgumentError, match="holds another run"):
        oc.fetch(second, tmp_path / "r", graph=graph, observer=QUIET)
    assert content(tmp_path / "r") == before
    oc.fetch(second, tmp_path / "r", graph=graph, overwrite=True, observer=QUIET)
    assert not (tmp_path / "r" / "pack").exists()
    there = content(tmp_path / "first")
    with pytest.raises(ArgumentError, match="first holds another run"):
        oc.upload(other, first, observer=QUIET)
    assert content(tmp_path / "first") == there
    oc.upload(other, first, overwrite=True, observer=QUIET)
    oc.fetch(first, tmp_path / "again", graph=graph, observer=QUIET)
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == ["plan", "run.json", "sample"]


def test_a_run_may_not_name_any_path(run: Path, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/r"
    oc.upload(run, uri, observer=QUIET)
    for name in ("../" * 5000 + "g.oc", "a\0b", "/nowhere"):
        described = json.loads((run / "run.json").read_text()) | {"graph": name}
        (tmp_path / "r" / "run.json").write_text(json.dumps(described))
        with pytest.raises((ArgumentError, FormatError), match=r"--graph|cannot be read as a run"):
            oc.fetch(uri, tmp_path / "out", observer=QUIET)
        assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def in_parts(graph: Path) -> Path:
    sampling, packing = oc.SampleConfig(fanouts=(4, 3), batch_size=60), oc.PackConfig(parts=3)
    out = graph.parent / "parts.run"
    return oc.prepare(graph, out, sampling=sampling, packing=packing, epochs=2, observer=QUIET).path


def files_of(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and "history" not in path.parts and path.name != "run.json"
    }


def without_parts(run: Path, *gone: int) -> None:
    for part in gone:
        (run / "sample" / f"batches.{part}.bin").unlink()
        (run / "pack" / f"records.{part}.bin").unlink()


def test_parts_are_fetched_alone_and_added(graph: Path, in_parts: Path, store: Store, tmp_path: Path) -> None:
    oc.upload(in_parts, store("my.run"), observer=QUIET)
    want, out = files_of(in_parts), tmp_path / "r"
    first = oc.fetch(store("my.run"), out, graph=graph, parts=[0, 2], observer=QUIET)
    others = {"sample/batches.1.bin", "pack/records.1.bin"}
    assert files_of(out) == {name: data for name, data in want.items() if name not in others}
    assert first.bytes == sum(len(data) for name, data in files_of(out).items() if name.endswith(".bin"))
    ours = [batch.n_id.tolist() for batch in oc.open_run(out).loader(rank=2, world=3)]
    assert ours == [batch.n_id.tolist() for batch in oc.open_run(in_parts).loader(rank=2, world=3)]
    again = oc.fetch(store("my.run"), out, graph=graph, parts=[2], observer=QUIET)
    assert (again.bytes, again.skipped) == (0, 3)
    added = oc.fetch(store("my.run"), out, graph=graph, parts=[1], observer=QUIET)
    assert added.bytes == sum(len(want[name]) for name in others)
    assert files_of(out) == want
    with pytest.raises(ArgumentError, match=r"has parts 0 to 2, and --parts names 3"):
        oc.fetch(store("my.run"), tmp_path / "other", graph=graph, parts=[3], observer=QUIET)


def test_parts_of_an_interrupted_fetch_are_not_taken_for_whole(
    graph: Path, in_parts: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All were to come, then fewer: what there is of the others is no part."""
    oc.upload(in_parts, store("my.run"), observer=QUIET)
    with monkeypatch.context() as patching:
        patching.setattr(transport._Fetch, "_check", stop)
        with pytest.raises(KeyboardInterrupt):
            oc.fetch(store("my.run"), tmp_path / "r", graph=graph, observer=QUIET)
    assert (tmp_path / "r" / ".sample.partial" / "batches.1.bin").exists()
    oc.fetch(store("my.run"), tmp_path / "r", graph=graph, parts=[0], observer=QUIET)
    others = {f"{name}.{part}.bin" for name in ("sample/batches", "pack/records") for part in (1, 2)}
    want = files_of(in_parts)
    assert files_of(tmp_path / "r") == {name: data for name, data in want.items() if name not in others}


def test_a_damaged_part_is_not_added(graph: Path, in_parts: Path, tmp_path: Path) -> None:
    uri, out = f"file://{tmp_path}/store", tmp_path / "r"
    oc.upload(in_parts, uri, observer=QUIET)
    oc.fetch(uri, out, graph=graph, parts=[0], observer=QUIET)
    part = tmp_path / "store" / "pack" / "records.1.bin"
    good = part.read_bytes()
    part.write_bytes(good[:-1] + bytes([good[-1] ^ 1]) if good[-1] else bytes([good[0] ^ 1]) + good[1:])
    with pytest.raises(ChecksumError, match=r"records\.1\.bin"):
        oc.fetch(uri, out, graph=graph, parts=[1], observer=QUIET)
    assert not (out / "pack" / "records.1.bin").exists()
    part.write_bytes(good)
    oc.fetch(uri, out, graph=graph, observer=QUIET)
    assert files_of(out) == files_of(in_parts)


def test_machines_upload_their_parts_in_any_order(
    graph: Path, in_parts: Path, store: Store, tmp_path: Path
) -> None:
    """Also over those of another run, whose files have the same names and sizes."""
    other = oc.prepare(
        graph,
        tmp_path / "other.run",
        sampling=oc.SampleConfig(fanouts=(4, 3), batch_size=60, seed=1),
        packing=oc.PackConfig(parts=3),
        epochs=2,
        observer=QUIET,
    )
    oc.upload(other.path, store("my.run"), observer=QUIET)
    for here, gone in ((2, (0, 1)), (0, (1, 2)), (1, (0, 2))):
        machine = tmp_path / f"machine{here}"
        shutil.copytree(in_parts, machine)
        raw = json.loads((machine / "run.json").read_text())
        raw["graph"] = os.path.relpath(graph, machine)
        (machine / "run.json").write_text(json.dumps(raw))
        without_parts(machine, *gone)
        oc.upload(machine, store("my.run"), overwrite=True, observer=QUIET)
    oc.fetch(store("my.run"), tmp_path / "r", graph=graph, observer=QUIET)
    assert files_of(tmp_path / "r") == files_of(in_parts)
    assert oc.upload(in_parts, store("my.run"), overwrite=True, observer=QUIET).skipped == 3


def test_parts_of_a_run_that_has_none(graph: Path, run: Path, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/store"
    oc.upload(run, uri, observer=QUIET)
    with pytest.raises(ArgumentError, match="has no parts, and --parts names 1"):
        oc.fetch(uri, tmp_path / "r", graph=graph, parts=[1], observer=QUIET)
    oc.upload(graph, f"file://{tmp_path}/graph", observer=QUIET)
    with pytest.raises(ArgumentError, match="is no run: --parts"):
        oc.fetch(f"file://{tmp_path}/graph", tmp_path / "g", parts=[0], observer=QUIET)
