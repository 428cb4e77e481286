"""``outcrop verify`` of what is in an object store: every byte is compared, and what is wrong is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import outcrop as oc
from artifact_support import manifest_at
from outcrop.cli.main import app
from outcrop.errors import ArgumentError, ChecksumError, FormatError
from outcrop.runtime.progress import SilentProgress
from outcrop.store import remote_verify
from outcrop.store.objects import INDEX, Entry, IndexedObjects
from outcrop.store.remote import RemoteFolder, without_keys
from outcrop.store.remote_verify import verify_stored
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
    packing, sampling = oc.PackConfig(parts=2), oc.SampleConfig(fanouts=(4, 3), batch_size=60)
    return oc.prepare(
        graph, graph.parent / "g.run", sampling=sampling, packing=packing, epochs=2, observer=QUIET
    ).path


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_verify, "RANGE_BYTES", 20_000)


def verified(uri: str) -> dict[str, Any]:
    return verify_stored(uri, SilentProgress())


def arrays_of(folder: Path) -> dict[str, int]:
    """The files that a manifest lists, with the bytes of their data."""
    arrays = manifest_at(folder / "manifest.json")["arrays"].values()
    return {spec["file"]: spec["shape"][0] * spec["stride_bytes"] for spec in arrays}


def test_what_is_right(
    graph: Path, run: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, read, was = store("g.oc"), [0], RemoteFolder.read_range
    oc.upload(graph, uri, observer=QUIET)
    oc.upload(run, store("g.run"), observer=QUIET)

    def read_range(self: RemoteFolder, name: str, offset: int, count: int) -> bytes:
        read[0] += count if name.endswith(".bin") else 0
        return was(self, name, offset, count)

    monkeypatch.setattr(RemoteFolder, "read_range", read_range)
    files = arrays_of(graph)
    want = {"format": "outcrop.graph", "arrays": len(files), "bytes": sum(files.values())}
    assert verified(uri) == {without_keys(uri): want}
    assert read == [sum((graph / name).stat().st_size for name in files)]  # what fills pages up, too
    found = verified(store("g.run"))
    place = without_keys(store("g.run"))
    assert list(found) == [f"{place}/{stage}" for stage in ("sample", "plan", "pack")]
    for stage in ("sample", "plan", "pack"):
        files = arrays_of(run / stage)
        one = found[f"{place}/{stage}"]
        assert (one["arrays"], one["bytes"], "elsewhere" in one) == (len(files), sum(files.values()), False)
    done = CliRunner().invoke(app, ["verify", uri, "--json", str(tmp_path / "report.json")])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "report.json").read_text()) == want
    assert "secret" not in done.output


def test_what_is_wrong_is_named(graph: Path, run: Path, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/store/"
    oc.upload(graph, uri + "g.oc", observer=QUIET)
    for name, size in arrays_of(graph).items():
        file = tmp_path / "store" / "g.oc" / name
        was = file.read_bytes()
        for at in {0, size // 2, size - 1} if size else ():
            file.write_bytes(was[:at] + bytes([was[at] ^ 1]) + was[at + 1 :])
            with pytest.raises(ChecksumError, match=rf"{uri}g.oc/{name}: checksum is .*upload it again"):
                verified(uri + "g.oc")
        for content, said in ((was + b"0", "has"), (was[:-1], "has"), (None, "is not there")):
            file.unlink() if content is None else file.write_bytes(content)
            with pytest.raises(FormatError, match=rf"{uri}g.oc/{name} {said}"):
                verified(uri + "g.oc")
        file.write_bytes(was)
    verified(uri + "g.oc")
    with pytest.raises(FormatError, match="holds no graph and no finished run"):
        verified(uri + "nothing")
    done = CliRunner().invoke(app, ["verify", uri + "g.oc", "--add-checksums"])
    assert isinstance(done.exception, ArgumentError)
    oc.upload(run, uri + "g.run", observer=QUIET)
    (tmp_path / "store" / "g.run" / "pack" / "records.1.bin").unlink()  # a part that no machine has sent
    assert verified(uri + "g.run")[f"{uri}g.run/pack"]["elsewhere"] == 1


def test_stages_that_are_missing_or_of_another_run(graph: Path, run: Path, tmp_path: Path) -> None:
    uri, there = f"file://{tmp_path}/store/g.run", tmp_path / "store" / "g.run"
    oc.upload(run, uri, observer=QUIET)
    shutil.rmtree(there / "sample")
    with pytest.raises(
        FormatError, match=r"g.run/sample/manifest.json is not there, though pack was made of it"
    ):
        verified(uri)
    other = oc.prepare(
        graph, tmp_path / "o.run", sampling=oc.SampleConfig(fanouts=(2,), batch_size=60), observer=QUIET
    ).path
    shutil.copytree(other / "sample", there / "sample")
    with pytest.raises(
        FormatError, match=r"g.run/p\w+ was made of another sample stage .*upload the run again"
    ):
        verified(uri)
    for stage in ("sample", "plan", "pack"):
        shutil.rmtree(there / stage)
    with pytest.raises(FormatError, match="no stage is finished yet: prepare it, and upload it again"):
        verified(uri)


def test_checkpoints(graph: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a training, and objects of several kinds as copies of embeddings have."""
    uri = store("ckpt")
    options = {"fanouts": (3,), "batch_size": 60, "hidden": 4, "epochs": 1, "mode": "memory"}
    oc.train(graph, checkpoint=uri, progress=False, **options)
    entries = IndexedObjects(RemoteFolder(uri), (), "").entries(RemoteFolder(uri).read(INDEX))
    assert set(entries) == {"last.safetensors", "best.safetensors"}
    total = sum(entry.bytes for entry in entries.values())
    assert verified(uri) == {without_keys(uri): {"format": "outcrop.mirror", "arrays": 2, "bytes": total}}
    copy, contents = (
        f"file://{tmp_path}/copy",
        {"slice-0.bin": b"a" * 70_000, "slice-1.bin": b"", "m.json": b"2"},
    )
    objects, entries = IndexedObjects(RemoteFolder(copy), list(contents), ""), {}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        entries[name] = objects.send(name, tmp_path / name, {})
    objects.publish(entries)
    want = {"format": "outcrop.mirror", "arrays": 3, "bytes": 70_001}
    assert verified(copy) == {copy: want}
    done = CliRunner().invoke(app, ["verify", copy])
    assert done.exit_code == 0, done.output
    assert "every checksum right" in done.output
    for name in ("slice-0.bin", "m.json"):
        file = tmp_path / "copy" / entries[name].object
        was = file.read_bytes()
        file.write_bytes(was[:-1] + b"x")
        with pytest.raises(ChecksumError, match=rf"{file.name} is not what index.json there says"):
            verified(copy)
        file.write_bytes(was + b"more")
        with pytest.raises(ChecksumError, match=rf"{file.name} is not what"):
            verified(copy)
        file.unlink()
        with pytest.raises(FormatError, match=rf"{file.name}.*not there"):
            verified(copy)
        file.write_bytes(was)
    read_entries, replaced = IndexedObjects.entries, list[bytes]()

    def entries_of(self: IndexedObjects, content: bytes) -> dict[str, Entry]:
        """A training writes another index, and removes what the one before named, when that was read."""
        found = read_entries(self, content)
        if not replaced:
            replaced.append(content)
            (tmp_path / "m.json").write_bytes(b"later")
            after = entries | {"m.json": objects.send("m.json", tmp_path / "m.json", {})}
            objects.publish(after)
            objects.remove_others(after)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(IndexedObjects, "entries", entries_of)
        assert verified(copy) == {copy: {"format": "outcrop.mirror", "arrays": 3, "bytes": 70_005}}
    assert not (tmp_path / "copy" / entries["m.json"].object).exists()

    def gone(self: IndexedObjects, entry: Entry) -> Any:
        (tmp_path / "copy" / INDEX).unlink(missing_ok=True)
        raise FormatError(f"{entry.object} is not there")

    with monkeypatch.context() as patched:
        patched.setattr(IndexedObjects, "chunks", gone)
        with pytest.raises(FormatError, match=r"index.json is gone"):
            verified(copy)
    (tmp_path / "copy" / INDEX).write_bytes(b"{}")
    with pytest.raises(FormatError, match="is not what Outcrop writes"):
        verified(copy)
