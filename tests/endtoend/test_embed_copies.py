"""Checkpoints of embeddings that are copied to a store: what is lost with a disk comes from there, to the last bit."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from embed_processes import GROUPS, assert_equal, scripted, stopped, trained
from embed_support import knowledge_graph, random_triples, table_of
from outcrop.embed.checkpoint import CHECKPOINT, FOLDER
from outcrop.errors import ArgumentError, BudgetError, ChecksumError, FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import objects
from outcrop.store.remote import RemoteFolder
from store_support import Store

PARTITIONS, SLICES = 8, 2
QUIET = oc.Observer(progress=False)
pytestmark = pytest.mark.leaks("thread", "fd", reason="the library of S3 keeps a thread and connections")
only_file = pytest.mark.parametrize("store", ["file"], indirect=True)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return knowledge_graph(tmp_path_factory.mktemp("copies"), Runtime(), train=random_triples(500, 6, 4000))


def prepare(graph: Path, run: Path) -> Path:
    """Buckets that nothing was trained on: of a new machine, as far as they go."""
    config = oc.BucketConfig(PARTITIONS, slices=SLICES)
    return oc.embed_prepare(graph, run, config, progress=False).path.parent


@pytest.fixture(scope="module")
def want(graph: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process learns that is not disturbed, and keeps no copy."""
    return trained(1, prepare(graph, tmp_path_factory.mktemp("one") / "run"))


@pytest.fixture
def run(graph: Path, tmp_path: Path) -> Path:
    return prepare(graph, tmp_path / "run")


@pytest.fixture
def renewed(graph: Path, run: Path) -> Callable[[], Path]:
    """Takes the whole folder away, and prepares the buckets again."""

    def renew() -> Path:
        shutil.rmtree(run)
        return prepare(graph, run)

    return renew


def kinds(uri: str) -> list[str]:
    """What is in a store: how names of files begin."""
    return sorted({name.partition("-")[0] for name in RemoteFolder(uri).sizes()})


@pytest.mark.quick_cases(1)
def test_one_process_goes_on_without_its_folder(
    run: Path, want: dict[str, Any], store: Store, renewed: Callable[[], Path], tmp_path: Path
) -> None:
    """It was killed within an epoch; with other processes that would be a machine that is replaced."""
    uri = store("runs/copy")
    done = scripted(1, run, 30, KILLED_RANK="0", KILLED_MARK=str(tmp_path / "killed"), COPY=uri)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert kinds(uri) == ["checkpoint", "index.json", "slice"]
    renewed()
    found = trained(1, run, "--checkpoint-copy", uri)
    assert_equal(found, want)
    assert found["resumed_epoch"] is not None
    assert len(RemoteFolder(uri).sizes()) == PARTITIONS * SLICES + 2
    # All of a training that has ended comes back, too.
    renewed()
    assert_equal(trained(1, run, "--checkpoint-copy", uri), want)


def test_a_copy_changes_nothing(run: Path, want: dict[str, Any], tmp_path: Path) -> None:
    """A folder is a place, too."""
    found = trained(1, run, "--checkpoint-copy", str(tmp_path / "copy of it"))
    assert_equal(found, want)
    assert found["resumed_epoch"] is None
    assert len([*(tmp_path / "copy of it").iterdir()]) == PARTITIONS * SLICES + 2


@pytest.mark.slow
@only_file
def test_two_processes_go_on_without_the_file_of_one(
    run: Path, want: dict[str, Any], store: Store, tmp_path: Path
) -> None:
    uri = store("copy")
    done = scripted(2, run, 20, KILLED_RANK="1", KILLED_MARK=str(tmp_path / "killed"), COPY=uri)
    assert done.returncode != 0
    first, other = sorted((run / FOLDER).glob("tables-*.bin"))
    first.unlink()
    found = trained(2, run, "--checkpoint-copy", uri)
    assert_equal(found, want)
    assert found["resumed_epoch"] is not None
    assert other in (run / FOLDER).glob("tables-*.bin")  # what was there is gone on from
    assert len(RemoteFolder(uri).sizes()) == PARTITIONS * SLICES + 2


@only_file
@pytest.mark.parametrize(
    "worlds",
    [(2, 1), pytest.param((1, 2), marks=pytest.mark.slow), pytest.param((4, 3), marks=pytest.mark.slow)],
)
def test_other_machines_go_on_from_the_copy_alone(
    run: Path, want: dict[str, Any], store: Store, renewed: Callable[[], Path], worlds: tuple[int, int]
) -> None:
    uri = store("copy")
    stopped(worlds[0], run, 20, COPY=uri)
    renewed()
    found = trained(worlds[1], run, "--checkpoint-copy", uri, groups=None)  # as the copy has it
    assert_equal(found, want)
    assert found["resumed_epoch"] is not None
    assert len([*(run / FOLDER).glob("tables*.bin")]) == worlds[1]


@only_file
@pytest.mark.parametrize("worlds", [(2, 1), pytest.param((1, 2), marks=pytest.mark.slow)])
def test_what_moved_from_process_to_process_is_copied_when_it_changes(
    run: Path, want: dict[str, Any], store: Store, renewed: Callable[[], Path], worlds: tuple[int, int]
) -> None:
    """The files of all are there; the copy is that of the second, which is lost after a round."""
    uri, after_a_round = store("copy"), 1 + GROUPS // worlds[1]
    stopped(worlds[0], run, 20, COPY=uri)
    stopped(worlds[1], run, after_a_round, COPY=uri)
    renewed()
    assert_equal(trained(1, run, "--checkpoint-copy", uri), want)


@pytest.mark.quick_cases(2)
@only_file
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(
    "step",
    [
        *("send 21", "publish 2", "note 2"),
        *(
            pytest.param(step, marks=pytest.mark.slow)
            for step in ("send 3", "publish 0", "note 3", "remove 0", "remove 5")
        ),
    ],
)
def test_killed_while_it_copies(
    run: Path, want: dict[str, Any], store: Store, renewed: Callable[[], Path], step: str, lost: bool
) -> None:
    """The copy is that of the checkpoint before, or the new one; a disk that is not lost is not behind."""
    uri = store("copy")
    done = scripted(1, run, COPY=uri, KILLED_IN_COPY=step)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if lost:
        renewed()
    found = trained(1, run, "--checkpoint-copy", uri)
    assert_equal(found, want)
    assert (found["resumed_epoch"] is None) == (lost and step in ("send 3", "publish 0"))
    assert len(RemoteFolder(uri).sizes()) == PARTITIONS * SLICES + 2


@only_file
@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "rank"),
    [("send 9", 0), ("send 9", 1), ("send 14", 0), ("send 14", 1), ("publish 1", 0), ("note 2", 0)],
)
def test_one_of_two_killed_while_it_copies(
    run: Path, want: dict[str, Any], store: Store, renewed: Callable[[], Path], step: str, rank: int
) -> None:
    uri = store("copy")
    assert scripted(2, run, COPY=uri, KILLED_IN_COPY=step, KILLED_RANK=str(rank)).returncode != 0
    renewed()
    assert_equal(trained(2, run, "--checkpoint-copy", uri), want)


@pytest.mark.quick_cases(1)
@only_file
@pytest.mark.parametrize("world", [1, 2])
def test_killed_while_it_fetches(
    run: Path, want: dict[str, Any], store: Store, renewed: Callable[[], Path], world: int
) -> None:
    uri = store("copy")
    stopped(world, run, 20, COPY=uri)
    shutil.rmtree(run / FOLDER) if world == 1 else renewed()
    assert scripted(world, run, COPY=uri, KILLED_IN_COPY="load 3").returncode != 0
    assert_equal(trained(world, run, "--checkpoint-copy", uri), want)


@pytest.mark.slow
@only_file
def test_a_file_is_lost_while_its_checkpoint_is_there(run: Path, want: dict[str, Any], store: Store) -> None:
    """Killed while slices come, which then are in a file of the name that the checkpoint has."""
    uri = store("copy")
    stopped(1, run, 20, COPY=uri)
    (run / FOLDER / "tables.bin").unlink()
    assert scripted(1, run, COPY=uri, KILLED_IN_COPY="load 3").returncode == -signal.SIGKILL
    assert_equal(trained(1, run, "--checkpoint-copy", uri), want)


# In this process, and with one group.


def train(run: Path, place: str | Path | None, epochs: int, fresh: bool = False, **options: Any) -> Any:
    config = oc.EmbedConfig(
        **{"dim": 8, "epochs": epochs, "negatives": 20, "chunk": 16, "batch": 64, "start": 0.1, "seed": 5}
        | options,
        checkpoint_copy=place,
    )
    return oc.embed_train(run, config, fresh=fresh, resident=False, observer=QUIET)


def learned(run: Path, report: Any) -> tuple[Any, Any, Any]:
    return (*table_of(run, Runtime()), [epoch["loss"] for epoch in report.epochs])


def assert_same(found: tuple[Any, Any, Any], want: tuple[Any, Any, Any]) -> None:
    for one, other in zip(found[:2], want[:2], strict=True):
        np.testing.assert_array_equal(one, other)
    assert found[2] == want[2]


@pytest.fixture(scope="module")
def want_of_one(graph: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    run = prepare(graph, tmp_path_factory.mktemp("alone") / "run")
    return learned(run, train(run, None, 3))


def test_what_is_sent_and_fetched(
    graph: Path, run: Path, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each slice once an epoch, in which all are trained; nothing where nothing is new."""
    uri, sent, loaded = store("copy"), list[str](), list[str]()
    send, read_into = RemoteFolder.send, RemoteFolder.read_into
    monkeypatch.setattr(
        RemoteFolder, "send", lambda self, name, source: (sent.append(name), send(self, name, source))[1]
    )
    monkeypatch.setattr(
        RemoteFolder,
        "read_into",
        lambda self, name, *more: (loaded.append(name), read_into(self, name, *more))[1],
    )
    train(run, uri, 2)
    assert len(sent) == 2 * (PARTITIONS * SLICES + 1)
    sent.clear()
    assert train(run, uri, 2).resumed_epoch == 2
    assert (sent, loaded) == ([], [])
    other = prepare(graph, tmp_path / "other")
    assert train(other, uri, 2).resumed_epoch == 2
    assert len(set(loaded)) == len(loaded) == PARTITIONS * SLICES
    assert [name.partition("-")[0] for name in sent] == ["checkpoint"]
    table = (other / FOLDER / "tables.bin").read_bytes()
    assert not any(
        "secret" in text.decode(errors="replace")
        for text in ((run / FOLDER / CHECKPOINT).read_bytes(), table)
    )


@only_file
def test_the_further_one_is_gone_on_from(
    graph: Path, run: Path, want_of_one: Any, store: Store, tmp_path: Path
) -> None:
    """A training that had no copy gets one; a machine that is behind it takes it."""
    uri, other = store("copy"), prepare(graph, tmp_path / "other")
    train(run, None, 1)
    assert train(run, uri, 1).resumed_epoch == 1
    assert train(other, uri, 2).resumed_epoch == 1
    found = train(run, uri, 3)
    assert found.resumed_epoch == 2
    assert_same(learned(run, found), want_of_one)
    # Epochs without the copy are not lost to it.
    train(other, None, 3)
    (other / FOLDER / objects.FOLLOWS).unlink()
    train(run, uri, 1, fresh=True)
    found = train(other, uri, 3)
    assert found.resumed_epoch == 3
    assert_same(learned(other, found), want_of_one)


@only_file
def test_starting_over_replaces_the_copy_at_its_first_checkpoint(
    graph: Path, run: Path, want_of_one: Any, store: Store, tmp_path: Path
) -> None:
    uri, other = store("copy"), prepare(graph, tmp_path / "other")
    train(run, uri, 1, seed=6)
    with pytest.raises(
        ArgumentError, match=rf"^{uri}/checkpoint.safetensors comes from another training, .*seed"
    ):
        train(other, uri, 3)
    assert not (other / FOLDER).exists()
    assert_same(learned(other, train(other, uri, 3, fresh=True)), want_of_one)
    with pytest.raises(
        ArgumentError, match=rf"^{uri}/checkpoint.safetensors comes from another training, .*seed"
    ):
        train(run, uri, 1, seed=6)


def test_damage_is_named_with_its_remedy(graph: Path, run: Path, want_of_one: Any, tmp_path: Path) -> None:
    place, other = tmp_path / "copy", prepare(graph, tmp_path / "other")
    train(run, place, 2)
    slab = next(place.glob("slice-*"))
    kept = slab.read_bytes()
    for content, kind, said in (
        (bytes([kept[0] ^ 1]) + kept[1:], ChecksumError, "is not what index.json there says"),
        (kept + b"0", ChecksumError, "is not what index.json there says"),
        (kept[:-1], FormatError, r"slice \d+ of the copy is missing: .*ends at byte"),
        (None, FormatError, r"slice \d+ of the copy is missing: .*the file is not there"),
    ):
        slab.unlink() if content is None else slab.write_bytes(content)
        with pytest.raises(kind, match=said) as caught:
            train(other, place, 3)
        assert slab.name in str(caught.value)
        assert "bring back the disks that hold the vectors, or train again with --fresh" in str(caught.value)
    # The machine that has the vectors needs none of it.
    assert_same(learned(run, train(run, place, 3)), want_of_one)
    assert_same(learned(other, train(other, place, 3)), want_of_one)


@only_file
def test_what_was_damaged_on_disk_is_not_copied(run: Path, want_of_one: Any, store: Store) -> None:
    uri = store("copy")
    train(run, uri, 1)
    train(run, None, 2)
    table = run / FOLDER / "tables.bin"
    with table.open("r+b") as file:
        file.write(b"x" * table.stat().st_size)
    with pytest.raises(
        ChecksumError, match=r"tables.bin: slice 0 has checksum .*damaged before it was copied; remove"
    ):
        train(run, uri, 3)
    table.unlink()
    found = train(run, uri, 3)
    assert found.resumed_epoch == 1
    assert_same(learned(run, found), want_of_one)


def test_fetching_takes_no_more_memory_than_training(graph: Path, run: Path, tmp_path: Path) -> None:
    def trained_in(memory: int, folder: Path, epochs: int) -> Any:
        config = oc.EmbedConfig(
            dim=400, epochs=epochs, negatives=20, chunk=16, batch=64, checkpoint_copy=tmp_path / "copy"
        )
        return oc.embed_train(folder, config, memory=memory, observer=QUIET)

    with pytest.raises(BudgetError, match=r"the smallest budget that can is \d+ bytes") as caught:
        trained_in(100_000, run, 2)
    (smallest,) = re.findall(r"smallest budget that can is (\d+) bytes", str(caught.value))
    trained_in(int(smallest), run, 1)
    found = trained_in(int(smallest), prepare(graph, tmp_path / "other"), 2)
    assert found.resumed_epoch == 1
    assert found.peak_host_bytes <= int(smallest)


@only_file
def test_two_trainings_cannot_write_one_place(
    run: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = store("copy")
    train(run, uri, 1)
    send = RemoteFolder.send

    def sending(self: RemoteFolder, name: str, source: Any) -> None:
        send(self, name, source)
        RemoteFolder(uri).write(objects.INDEX, b'{"format": "outcrop.mirror", "version": 1, "files": {}}')

    monkeypatch.setattr(RemoteFolder, "send", sending)
    with pytest.raises(ArgumentError, match=r"copy was written by another process since"):
        train(run, uri, 2)


def test_keys_are_not_said(run: Path, store: Store) -> None:
    uri = store("copy")
    assert "secret" not in repr(oc.EmbedConfig(checkpoint_copy=uri))
    with pytest.raises(ArgumentError, match="is a URI in a Path"):
        train(run, Path(uri), 1)


@pytest.mark.quick_cases(1)
@only_file
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("place", "ranks 0 and 1 do not train the same: they differ in checkpoint_copy"),
        (
            "folder",
            r"FormatError: .*/slice-.*.bin is not there, though a process has copied slice-\d+.bin to it: name",
        ),
    ],
)
def test_all_processes_see_one_place(run: Path, store: Store, wrong: str, said: str) -> None:
    done = scripted(2, run, COPY=store("copy"), WRONG=wrong)
    assert done.returncode != 0
    assert re.search(said, done.stderr), done.stderr
