"""Files kept at a URI: all of one moment, whoever is killed when, and refused where they were damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outcrop.errors import ArgumentError, ChecksumError, FormatError, IoError
from outcrop.store import mirror, remote
from outcrop.store.mirror import FolderMirror, fetched
from outcrop.store.objects import INDEX
from outcrop.store.remote import RemoteFolder
from store_support import Store

NAMES = ("last.safetensors", "best.safetensors")
pytestmark = pytest.mark.leaks("thread", "fd", reason="the library of S3 keeps a thread and connections")


class Killed(BaseException):
    """In place of a signal: no cleaning up but that of ``finally``."""


def machine(uri: str, folder: Path) -> FolderMirror:
    return FolderMirror(uri, folder, NAMES)


def begun(uri: str, folder: Path) -> FolderMirror:
    found = machine(uri, folder)
    found.pull()
    return found


def write(folder: Path, last: bytes, best: bytes = b"") -> None:
    for name, content in zip(NAMES, (last, best), strict=True):
        if content:
            (folder / name).write_bytes(content)


def there(uri: str, folder: Path) -> dict[str, bytes]:
    """What a machine finds that has nothing yet."""
    begun(uri, folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def killed_in(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: Callable[..., bool]) -> None:
    was = getattr(owner, name)

    def call(*args: Any) -> Any:
        if at(*args):
            raise Killed
        return was(*args)

    monkeypatch.setattr(owner, name, call)


def test_another_machine_finds_what_was_pushed(store: Store, tmp_path: Path) -> None:
    uri = store("deep/in/ckpt")
    assert there(uri, tmp_path / "none") == {}
    one = begun(uri, tmp_path / "one")
    for content in (b"1" * 10, b"2" * 9_000_000, b"3"):
        write(tmp_path / "one", content, b"best")
        one.push()
        assert there(uri, tmp_path / f"at-{content[:1].decode()}") == dict(
            zip(NAMES, (content, b"best"), strict=True)
        )
    files = RemoteFolder(uri).sizes()
    assert list(files.values()) == [4, files["index.json"], 1]  # nothing of before is left
    assert [name.partition("-")[0] for name in files] == ["best", "index.json", "last"]
    with fetched(uri, "no.safetensors", "best.safetensors", "last.safetensors") as folder:
        assert (folder / "best.safetensors").read_bytes() == b"best"
        assert not (folder / "last.safetensors").exists()
    assert not folder.exists()


@pytest.mark.parametrize("what", ["tensors", "second", "index"])
def test_killed_before_the_index_others_see_what_was(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    uri, own = store("ckpt"), tmp_path / "own"
    one = begun(uri, own)
    write(own, b"old", b"old best")
    one.push()
    write(own, b"new", b"new best")
    with monkeypatch.context() as patching:
        if what == "index":
            killed_in(patching, RemoteFolder, "write", lambda _, name, content: name == INDEX)
        else:
            name = "last" if what == "tensors" else "best"
            killed_in(patching, RemoteFolder, "send", lambda _, one, path: one.startswith(name))
        with pytest.raises(Killed):
            one.push()
    assert there(uri, tmp_path / "other") == dict(zip(NAMES, (b"old", b"old best"), strict=True))
    again = machine(uri, own)
    assert again.is_ahead()
    again.push()
    assert not again.is_ahead()
    assert there(uri, tmp_path / "third") == dict(zip(NAMES, (b"new", b"new best"), strict=True))
    assert len(RemoteFolder(uri).sizes()) == 3


def test_killed_in_the_first_copy_nothing_is_there_and_nothing_lost(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, own = store("ckpt"), tmp_path / "own"
    one = begun(uri, own)
    write(own, b"new")
    with monkeypatch.context() as patching:
        killed_in(patching, RemoteFolder, "write", lambda *_: True)
        with pytest.raises(Killed):
            one.push()
    assert there(uri, tmp_path / "other") == {}
    assert machine(uri, own).is_ahead()


def test_killed_after_the_index_it_is_there(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, own = store("ckpt"), tmp_path / "own"
    one = begun(uri, own)
    write(own, b"old")
    one.push()
    write(own, b"new")
    with monkeypatch.context() as patching:
        killed_in(patching, mirror, "write_atomic", lambda *_: True)
        with pytest.raises(Killed):
            one.push()
        assert len(RemoteFolder(uri).sizes()) == 3  # what is not needed is there
    again = machine(uri, own)
    assert not again.is_ahead()
    with monkeypatch.context() as patching:  # nothing comes that is here
        killed_in(patching, RemoteFolder, "read_range", lambda _, name, *rest: name != INDEX)
        again.pull()
    write(own, b"newer")
    again.push()
    assert there(uri, tmp_path / "other") == {NAMES[0]: b"newer"}
    assert len(RemoteFolder(uri).sizes()) == 2


def test_what_is_replaced_while_it_is_read_is_read_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both files are then of the later moment."""
    uri = store("ckpt")
    one = begun(uri, tmp_path / "one")
    write(tmp_path / "one", b"old", b"old best")
    one.push()
    was, times = RemoteFolder.read_range, [0]

    def read_range(self: RemoteFolder, name: str, *rest: int) -> bytes:
        if name.startswith("best") and not times[0]:
            times[0] += 1
            write(tmp_path / "one", b"new", b"new best")
            one.push()
        return was(self, name, *rest)

    monkeypatch.setattr(RemoteFolder, "read_range", read_range)
    assert there(uri, tmp_path / "two") == dict(zip(NAMES, (b"new", b"new best"), strict=True))
    assert times == [1]


def test_two_writers_are_told(store: Store, tmp_path: Path) -> None:
    uri = store("ckpt")
    one, two = begun(uri, tmp_path / "one"), begun(uri, tmp_path / "two")
    write(tmp_path / "one", b"one")
    write(tmp_path / "two", b"two")
    one.push()
    with pytest.raises(ArgumentError, match=r"ckpt was written by another process since"):
        two.push()
    assert there(uri, tmp_path / "other") == {NAMES[0]: b"one"}
    assert not two.is_ahead()  # it takes what the other wrote
    two.pull()
    assert (tmp_path / "two" / NAMES[0]).read_bytes() == b"one"
    write(tmp_path / "two", b"two")
    two.start_over()
    assert not (tmp_path / "two" / NAMES[0]).exists()
    assert not two.is_ahead()
    write(tmp_path / "two", b"anew")
    two.push()
    assert there(uri, tmp_path / "third") == {NAMES[0]: b"anew"}


def test_damage_is_refused_and_named(tmp_path: Path) -> None:
    uri, place = f"file://{tmp_path}/ckpt", tmp_path / "ckpt"
    one = begun(uri, tmp_path / "one")
    write(tmp_path / "one", b"0123456789")
    one.push()
    (file,) = place.glob("last-*")
    for content, kind, said in (
        (b"01234x6789", ChecksumError, "is not what index.json there says"),
        (b"0123456789a", ChecksumError, "is not what index.json there says"),
        (b"012345678", FormatError, "ends at byte 9, 10 were wanted"),
        (None, FormatError, "the file is not there"),
    ):
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(kind, match=rf"{file}.*{said}"):
            begun(uri, tmp_path / "two")
        assert not (tmp_path / "two").exists() or not list((tmp_path / "two").glob("[!.]*"))
    index = json.loads((place / "index.json").read_text())
    for broken in (
        {**index, "version": 2},
        {**index, "files": {"last.safetensors": {**index["files"]["last.safetensors"], "object": "../x"}}},
        [],
    ):
        (place / "index.json").write_text(json.dumps(broken))
        with pytest.raises(FormatError, match=r"ckpt/index.json is not what Outcrop writes"):
            begun(uri, tmp_path / "two")


def test_a_store_that_fails_is_tried_again_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_FIRST_WAIT_S", 0.001)
    uri = f"file://{tmp_path}/ckpt"
    one = begun(uri, tmp_path / "one")
    failures = [3]
    system = one._remote._system

    class Failing:
        type_name = "local"

        def open_output_stream(self, path: str) -> Any:
            if failures[0]:
                failures[0] -= 1
                raise OSError(5, "try again")
            return system.open_output_stream(path)

        def __getattr__(self, name: str) -> Any:
            return getattr(system, name)

    one._remote._system = Failing()
    write(tmp_path / "one", b"one")
    one.push()
    assert there(uri, tmp_path / "two") == {NAMES[0]: b"one"}
    write(tmp_path / "one", b"two")
    failures[0] = 4
    with pytest.raises(
        IoError, match=rf"^\[Errno 5\] {uri}/last-[0-9a-f]+.safetensors: .*try again \(tried 4 times\)"
    ):
        one.push()
    assert one.is_ahead()


def test_keys_are_not_said(tmp_path: Path) -> None:
    """A URI may hold them; messages and logs do not."""
    folder = RemoteFolder("s3://AKIA:secret@bucket/a/b/?region=eu-west-1&scheme=http")
    assert folder.uri == "s3://bucket/a/b"
    assert folder.within("c").uri == "s3://bucket/a/b/c"
