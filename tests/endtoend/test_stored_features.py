"""A graph whose features stay in a store: prepared to the same bytes as one that is here, and checked on the way."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import manifest_at, small_graph, tree
from outcrop.cli.describing import describe_all
from outcrop.errors import ArgumentError, ChecksumError, FormatError, IoError
from outcrop.runtime.runtime import Runtime
from outcrop.store import remote, remote_array
from outcrop.store.elsewhere import ELSEWHERE
from outcrop.store.graph import open_graph
from outcrop.store.remote import RemoteFolder
from prepare_support import prepare as prepare_run
from store_support import Store

QUIET = oc.Observer(progress=False)
STAGES = ("sample", "plan", "pack")
OPTIONS: dict[str, Any] = {
    "fanouts": (4, 4),
    "batch_size": 40,
    "epochs": 2,
    "memory": "2300KiB",
    "gpu_memory": "620KiB",
    "layout": "6,1",
}
RANGE = 40_960
pytestmark = pytest.mark.leaks("thread", "fd", reason="the library of S3 keeps a thread and connections")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 404 bytes, which cross pages and chunks."""
    order = np.random.default_rng(0).permutation(6000)
    splits = {"train": order[:400], "valid": order[400:450], "test": order[450:500]}
    return small_graph(tmp_path_factory.mktemp("here") / "g.oc", splits=splits).path


@pytest.fixture(autouse=True)
def rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are taken from the environment, and ranges are small."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(remote_array, "LEAST_BYTES", RANGE)


def prepare(graph: Path, out: Path, *, memory_now: str = "100MiB", **options: Any) -> Any:
    with Runtime(memory_now, threads=1) as runtime:
        return prepare_run(graph, out, runtime=runtime, **{**OPTIONS, **options})


def files(run: Path) -> dict[str, bytes]:
    return {f"{stage}/{name}": data for stage in STAGES for name, data in tree(run / stage).items()}


def left_of(graph: Path, uri: str, out: Path) -> Path:
    """The graph, uploaded and fetched without its features."""
    oc.upload(graph, uri, observer=QUIET)
    oc.fetch(uri, out, leave_features=True, observer=QUIET)
    return out


class Asked:
    """Notes the ranges that are read of the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fail_after: int | None = None):
        self.ranges: list[tuple[str, int, int]] = []
        was = RemoteFolder.read_into

        def read_into(folder: RemoteFolder, name: str, offset: int, out: np.ndarray) -> None:
            if fail_after is not None and len(self.ranges) >= fail_after:
                raise KeyboardInterrupt
            self.ranges.append((name, offset, len(out)))
            was(folder, name, offset, out)

        monkeypatch.setattr(RemoteFolder, "read_into", read_into)

    @property
    def bytes(self) -> int:
        return sum(count for _, _, count in self.ranges)


def test_a_graph_without_its_features(graph: Path, store: Store, tmp_path: Path) -> None:
    uri, out = store("g.oc"), tmp_path / "left.oc"
    left_of(graph, uri, out)
    want = {path.name: path.read_bytes() for path in graph.iterdir() if path.name != "features.bin"}
    found = {path.name: path.read_bytes() for path in out.iterdir()}
    said = json.loads(found.pop(ELSEWHERE))
    assert found == want
    assert said["files"] == ["features.bin"]
    assert "secret" not in json.dumps(said)
    assert open_graph(out).digest() == open_graph(graph).digest()
    (told,) = describe_all(out)
    assert told["elsewhere"] == {"uri": remote.without_keys(uri), "files": ["features.bin"]}
    assert told["bytes"] == sum(
        path.stat().st_size for path in graph.glob("*.bin") if path.name != "features.bin"
    )
    assert oc.fetch(uri, out, leave_features=True, observer=QUIET).skipped == 1
    with pytest.raises(FormatError, match=r"has left features.bin in .*g.oc: fetch it first"):
        oc.upload(out, store("again.oc"), observer=QUIET)
    fetched = oc.fetch(uri, out, observer=QUIET)
    assert (fetched.files, fetched.bytes) == (1, (graph / "features.bin").stat().st_size)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        **want,
        "features.bin": (graph / "features.bin").read_bytes(),
    }
    assert oc.fetch(uri, out, leave_features=True, observer=QUIET).skipped == 1
    assert (out / "features.bin").exists()


def test_after_an_interrupted_fetch_of_all(
    graph: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had come of the features is not taken for them."""
    uri, was = store("g.oc"), RemoteFolder.read_range
    oc.upload(graph, uri, observer=QUIET)

    def read_range(folder: RemoteFolder, name: str, *rest: int) -> bytes:
        if name == "indices.bin":
            raise KeyboardInterrupt
        return was(folder, name, *rest)

    with monkeypatch.context() as patching:
        patching.setattr(RemoteFolder, "read_range", read_range)
        with pytest.raises(KeyboardInterrupt):
            oc.fetch(uri, tmp_path / "g.oc", observer=QUIET)
    assert (tmp_path / ".g.oc.partial" / "features.bin").exists()
    oc.fetch(uri, tmp_path / "g.oc", leave_features=True, observer=QUIET)
    assert not (tmp_path / "g.oc" / "features.bin").exists()


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("options", "memory_now"),
    [
        ({}, "100MiB"),
        ({"layout": "packed", "parts": 3}, "100MiB"),
        ({}, "2300KiB"),
        ({"workers": 2, "parts": 2}, "100MiB"),
    ],
    ids=["once", "parts", "chunks", "workers"],
)
def test_every_file_of_the_run_is_that_of_a_graph_that_is_here(
    graph: Path,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    memory_now: str,
) -> None:
    here = prepare(graph, tmp_path / "here.run", memory_now=memory_now, **options)
    left = left_of(graph, store("g.oc"), tmp_path / "left.oc")
    asked = Asked(monkeypatch)
    there = prepare(left, tmp_path / "there.run", memory_now=memory_now, **options)
    assert files(tmp_path / "there.run") == files(tmp_path / "here.run")
    assert there.stages["pack"]["bytes_read"] >= here.stages["pack"]["bytes_read"]
    if "workers" in options:  # others have read
        assert not asked.ranges
        return
    pages = -(-open_graph(graph).spec("features").data_bytes // 4096) * 4096
    assert asked.bytes == there.passes * pages
    assert {name for name, _, _ in asked.ranges} == {"features.bin"}
    short = [count for _, _, count in asked.ranges if count < RANGE]
    assert len(short) <= len(asked.ranges) / 2  # the last of each chunk
    assert len(asked.ranges) >= 8


def test_graphs_with_types(store: Store, tmp_path: Path) -> None:
    """Several row files."""
    config = oc.GenerateConfig(nodes=600, edges=9000, kind="typed", features=16, train_fraction=0.3)
    graph = oc.generate_graph(tmp_path / "g.oc", config, progress=False).path
    left = left_of(graph, store("g.oc"), tmp_path / "left.oc")
    assert len(json.loads((left / ELSEWHERE).read_text())["files"]) > 1
    for one, name in ((graph, "here"), (left, "there")):
        prepare(one, tmp_path / f"{name}.run")
    assert files(tmp_path / "there.run") == files(tmp_path / "here.run")


def test_an_interrupted_preparing_goes_on(
    graph: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(graph, tmp_path / "here.run", memory_now="2300KiB")
    left = left_of(graph, store("g.oc"), tmp_path / "left.oc")
    with monkeypatch.context() as patching:
        first = Asked(patching, fail_after=40)
        with pytest.raises(KeyboardInterrupt):
            prepare(left, tmp_path / "there.run", memory_now="2300KiB")
    second = Asked(monkeypatch)
    report = prepare(left, tmp_path / "there.run", memory_now="2300KiB")
    assert report.skipped == ["sample", "plan"]
    assert files(tmp_path / "there.run") == files(tmp_path / "here.run")
    whole = report.passes * (graph / "features.bin").stat().st_size
    assert second.bytes < whole <= first.bytes + second.bytes


def test_damage_is_refused_and_named(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = left_of(graph, f"file://{tmp_path}/store/g.oc", tmp_path / "left.oc")
    file = tmp_path / "store" / "g.oc" / "features.bin"
    was = file.read_bytes()
    place = re.escape(f"file://{file}")
    file.write_bytes(was[:1_000_000] + b"?" + was[1_000_001:])
    for workers in (1, 2):
        with pytest.raises(ChecksumError, match=rf"{place}.*upload the graph again"):
            prepare(left, tmp_path / "there.run", workers=workers)
    for content, said in ((was[:-4096], "has"), (was + was[:4096], "has"), (None, "is not there")):
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(FormatError, match=rf"{place} {said}.*fetch the graph again"):
            prepare(left, tmp_path / "there.run")
    file.write_bytes(was[: len(was) // 2])  # cut short while it is read
    size = RemoteFolder.size
    with monkeypatch.context() as patching:
        patching.setattr(
            RemoteFolder,
            "size",
            lambda self, name: len(was) if name == "features.bin" else size(self, name),
        )
        with pytest.raises(FormatError, match=rf"{place} ends at byte {len(was) // 2}, \d+ were wanted"):
            prepare(left, tmp_path / "there.run")
    file.write_bytes(was)
    prepare(left, tmp_path / "there.run")
    prepare(graph, tmp_path / "here.run")
    assert files(tmp_path / "there.run") == files(tmp_path / "here.run")


def test_a_store_that_fails_is_asked_again(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_FIRST_WAIT_S", 0.001)
    left = left_of(graph, f"file://{tmp_path}/store/g.oc", tmp_path / "left.oc")
    folder = RemoteFolder(f"file://{tmp_path}/store/g.oc")
    system, failures = folder._system, [3]

    class Failing:
        def open_input_file(self, path: str) -> Any:
            if failures[0]:
                failures[0] -= 1
                raise OSError(5, "try again")
            return system.open_input_file(path)

    folder._system = Failing()  # type: ignore[assignment]
    out = np.zeros(9000, np.uint8)
    folder.read_into("features.bin", 100, out)
    assert out.tobytes() == (graph / "features.bin").read_bytes()[100:9100]
    failures[0] = 9
    with pytest.raises(IoError, match=r"features.bin at byte 100: .*try again \(tried 4 times\)"):
        folder.read_into("features.bin", 100, out)
    assert not (left / "features.bin").exists()


def test_what_needs_rows_one_by_one_says_where_they_are(graph: Path, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/store/g.oc"
    left = left_of(graph, uri, tmp_path / "left.oc")
    said = rf"has left its features in {uri}, where only outcrop prepare reads them: outcrop fetch {uri} {left} brings"
    for mode in ("online", "memory", "memmap", "ondisk"):
        with pytest.raises(FormatError, match=said):
            oc.train(left, loading=mode, epochs=1, sampling=oc.SampleConfig(fanouts=(4, 4)), observer=QUIET)
    chosen: list[str] = []
    observer = oc.Observer(progress=False, on_choice=chosen.append)
    trained = oc.train(
        left, epochs=2, sampling=oc.SampleConfig(fanouts=(4, 4), batch_size=40), observer=observer
    )
    assert any(line.startswith("the test nodes are not scored") and re.search(said, line) for line in chosen)
    want = oc.train(graph, epochs=2, sampling=oc.SampleConfig(fanouts=(4, 4), batch_size=40), observer=QUIET)
    asked = {"sampling": oc.SampleConfig(fanouts=(4, 4)), "limits": oc.Limits(memory="auto"), "epochs": 1}
    assert oc.api.train.dry_run(left, asked)["mode"] == "packed"  # whatever would be sooner done
    assert [epoch["loss"] for epoch in trained.epochs] == [epoch["loss"] for epoch in want.epochs]
    assert [epoch["valid_accuracy"] for epoch in trained.epochs] == [e["valid_accuracy"] for e in want.epochs]
    assert trained.test_accuracy is None
    assert want.test_accuracy is not None
    with pytest.raises(FormatError, match=said):
        oc.predict(left, trained.model, [1, 2], any_graph=True, observer=QUIET)
    run = oc.open_run(left.with_name("left.oc.run"))
    assert len(list(run.loader(split="test")))  # few batches of test nodes are packed
    with pytest.raises(FormatError, match=said):
        list(run.loader(np.arange(3)))
    oc.fetch(uri, left, observer=QUIET)
    assert oc.predict(left, trained.model, [1, 2], observer=QUIET).shape[0] == 2


def test_what_cannot_be_left(graph: Path, tmp_path: Path) -> None:
    """Features that could not be checked, features that are not there, and those of a run."""
    uri = f"file://{tmp_path}/store/"
    plain = oc.import_graph({"edges": np.array([[0, 1], [1, 2]])}, tmp_path / "plain.oc", progress=False).path
    oc.upload(plain, uri + "plain.oc", observer=QUIET)
    with pytest.raises(ArgumentError, match="has no features of a graph"):
        oc.fetch(uri + "plain.oc", tmp_path / "a", leave_features=True, observer=QUIET)
    shutil.copytree(graph, tmp_path / "old.oc")
    manifest = manifest_at(tmp_path / "old.oc" / "manifest.json")
    del manifest["arrays"]["features_page_crc"]
    (tmp_path / "old.oc" / "manifest.json").write_text(json.dumps(manifest))
    oc.upload(tmp_path / "old.oc", uri + "old.oc", observer=QUIET)
    with pytest.raises(ArgumentError, match=r"features has no checksums of pages.*--add-checksums"):
        oc.fetch(uri + "old.oc", tmp_path / "b", leave_features=True, observer=QUIET)
    prepare(graph, tmp_path / "g.run")
    oc.upload(tmp_path / "g.run", uri + "g.run", observer=QUIET)
    with pytest.raises(ArgumentError, match="is a run: --leave-features is for graphs"):
        oc.fetch(uri + "g.run", tmp_path / "c", graph=graph, leave_features=True, observer=QUIET)
    assert not [name for name in "abc" if (tmp_path / name).exists()]
    left = left_of(graph, uri + "g.oc", tmp_path / "left.oc")
    os.truncate(left / "labels.bin", 4096)  # of what must be here nothing may be missing
    with pytest.raises(FormatError, match=r"labels.bin has 4096 bytes"):
        open_graph(left)
    (left / ELSEWHERE).write_text("[]")
    with pytest.raises(FormatError, match=r"elsewhere.json lacks or garbles"):
        open_graph(left)


@pytest.mark.parametrize("scale", ["column", "row"])
def test_features_in_few_bits_stay_there_too(store: Store, tmp_path: Path, scale: Any) -> None:
    """The scales come with the graph, the rows stay; what is prepared is that of a graph that is here."""
    rng = np.random.default_rng(0)
    here = oc.import_graph(
        rng.integers(0, 3000, (2, 9000)),
        tmp_path / "few.oc",
        features=rng.standard_normal((3000, 101)).astype(np.float32),
        labels=rng.integers(0, 3, 3000),
        splits={"train": np.arange(200), "valid": np.arange(200, 250)},
        config=oc.ImportConfig(feature_dtype="int8", scale=scale),
        progress=False,
    ).path
    left = left_of(here, store("few.oc"), tmp_path / "left.oc")
    assert not (left / "features.bin").exists()
    assert (left / "features_scale.bin").exists() == (scale == "column")
    options = {**OPTIONS, "memory": "4MiB"}
    for graph in (here, left):
        prepare(graph, tmp_path / f"{graph.stem}.run", **options)
    assert files(tmp_path / "few.run") == files(tmp_path / "left.run")
