"""One process at a time writes to a run, an embedding run or a checkpoint folder; the others say whose turn it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from artifact_support import child_environment, prepare, small_graph
from embed_support import buckets_of, fit, knowledge_graph, random_triples
from outcrop.api.embed import embed_prepare, embed_train
from outcrop.api.infer import infer
from outcrop.api.train import train
from outcrop.config import BucketConfig, EmbedConfig
from outcrop.embed.model import open_model
from outcrop.errors import BudgetError, ChecksumError, IoError
from outcrop.store import lock
from outcrop.store.manifest import partial_folder
from support import HANGS_SECONDS

HOLDING = """
import sys
from pathlib import Path
from outcrop.store.lock import only_process_in
with only_process_in(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
CONFIG = EmbedConfig(dim=4, epochs=1, batch=64, chunk=64, negatives=5)


@contextmanager
def another_process_in(folder: Path) -> Iterator[None]:
    command = [sys.executable, "-c", HOLDING, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield
        finally:
            other.kill()  # the kernel gives the lock back


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE_S", 0.0)


@pytest.mark.parametrize("job", ["prepare", "train", "embed prepare", "embed train"])
@pytest.mark.usefixtures("impatient")
def test_the_second_process_is_refused_with_the_folder(tmp_path, make_runtime, job) -> None:
    folder = tmp_path / "contested"
    jobs: dict[str, Callable[[], object]]
    if job.startswith("embed"):
        runtime = make_runtime()
        source = knowledge_graph(tmp_path, runtime, train=random_triples(60, 3, 300))
        jobs = {
            "embed prepare": lambda: embed_prepare(source, folder, BucketConfig(partitions=2)),
            "embed train": lambda: embed_train(folder, CONFIG, fresh=True),
        }
        if job == "embed train":
            embed_prepare(source, folder, BucketConfig(partitions=2))
    else:
        graph = small_graph(tmp_path / "graph")
        jobs = {
            "prepare": lambda: prepare(graph, folder),
            "train": lambda: train(graph, mode="memory", epochs=1, hidden=4, fanouts=[2], checkpoint=folder),
        }
    before = sorted(folder.rglob("*"))
    with another_process_in(folder), pytest.raises(IoError, match=r"contested is in use: another process"):
        jobs[job]()
    assert sorted(folder.rglob("*")) == before  # nothing was begun
    jobs[job]()  # the other was killed: nothing is in the way


@pytest.mark.usefixtures("impatient")
def test_the_second_process_that_builds_a_graph_is_refused(tmp_path) -> None:
    """It used to remove what the first was writing, which then published what the second had written of it."""
    work = partial_folder(tmp_path / "graph")
    with another_process_in(work):
        (work / "written").write_text("by the first")
        with pytest.raises(IoError, match=r"graph\.partial is in use: another process"):
            small_graph(tmp_path / "graph")
        assert (work / "written").read_text() == "by the first"
    small_graph(tmp_path / "graph")
    assert not work.exists()


def test_a_graph_that_another_process_made_meanwhile_is_not_replaced(tmp_path, monkeypatch) -> None:
    small_graph(tmp_path / "other")
    final = tmp_path / "graph"
    partial_folder(final).mkdir()
    with lock.opened(partial_folder(final)) as first:
        assert lock.try_lock(first)

        def nap(seconds: float) -> None:
            shutil.copytree(tmp_path / "other", final)
            (final / "mine").touch()
            partial_folder(final).rmdir()
            lock.fcntl.flock(first, lock.fcntl.LOCK_UN)

        monkeypatch.setattr(lock.time, "sleep", nap)
        with pytest.raises(IoError, match="graph has just been made by another process"):
            small_graph(final)
    assert (final / "mine").exists()
    assert not partial_folder(final).exists()


@pytest.mark.usefixtures("impatient")
def test_the_second_process_that_writes_the_same_predictions_is_refused(tmp_path) -> None:
    """Each would compute a layer from what the other left there, perhaps of another model."""
    graph, out, work = small_graph(tmp_path / "graph"), tmp_path / "p.npy", tmp_path / ".p.npy.infer"
    train(graph, mode="memory", epochs=1, hidden=4, fanouts=[2], checkpoint=tmp_path / "ck")
    with (
        another_process_in(work),
        pytest.raises(IoError, match=r"\.p\.npy\.infer is in use: another process"),
    ):
        infer(graph, checkpoint=tmp_path / "ck", out=out)
    assert not out.exists()
    assert not list(work.iterdir())  # nothing was begun
    infer(graph, checkpoint=tmp_path / "ck", out=out)
    assert out.exists()
    with pytest.raises(BudgetError):
        infer(graph, checkpoint=tmp_path / "ck", out=out, memory=1)
    assert not work.exists()


def test_a_folder_that_its_owner_removes_is_made_and_locked_anew(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    with lock.opened(folder) as first:
        assert lock.try_lock(first)

        def nap(seconds: float) -> None:
            folder.rmdir()
            lock.fcntl.flock(first, lock.fcntl.LOCK_UN)

        monkeypatch.setattr(lock.time, "sleep", nap)
        with lock.only_process_in(folder):
            assert lock.in_use(folder)
    assert not lock.in_use(folder)


def test_who_comes_second_waits_for_one_that_is_just_ending(tmp_path, monkeypatch) -> None:
    with lock.opened(tmp_path) as first:
        assert lock.try_lock(first)
        assert lock.in_use(tmp_path)
        naps = []

        def nap(seconds: float) -> None:
            naps.append(seconds)
            lock.fcntl.flock(first, lock.fcntl.LOCK_UN)

        monkeypatch.setattr(lock.time, "sleep", nap)
        with lock.only_process_in(tmp_path):
            assert len(naps) == 1
    assert not lock.in_use(tmp_path)


def test_without_locks_nothing_is_refused(tmp_path, monkeypatch) -> None:
    def no_locks(handle: int, how: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    with lock.only_process_in(tmp_path / "a"), lock.only_process_in(tmp_path / "a"):
        assert not lock.in_use(tmp_path / "a")


def test_reading_vectors_that_are_being_trained_is_no_damage(tmp_path, make_runtime) -> None:
    runtime, run = make_runtime(), tmp_path / "run"
    source = knowledge_graph(tmp_path, runtime, train=random_triples(60, 3, 300))
    fit(buckets_of(source, run, runtime, 2), run, CONFIG, runtime)
    trained = open_model(run, runtime)
    try:
        path = trained.table.of(0).path
        path.write_bytes(bytes(np.frombuffer(path.read_bytes(), np.uint8) ^ 1))
        with another_process_in(run), pytest.raises(IoError, match="run this again"):
            list(trained.slices())
        with pytest.raises(ChecksumError, match=r"tables\.bin.*damaged"):
            list(trained.slices())
    finally:
        trained.close()


def refuse(folder: Path, change: Callable[[], object] = lambda: None) -> None:
    """Locks ``folder`` and is refused there, after a ``change``."""

    def enter() -> None:
        with lock.only_process_in(folder):
            change()
            raise BudgetError

    with pytest.raises(BudgetError):
        enter()


def test_a_block_that_fails_leaves_no_folder_that_was_made_for_it(tmp_path) -> None:
    refuse(tmp_path / "a" / "b" / "c")
    assert not list(tmp_path.iterdir())
    (tmp_path / "a").mkdir()
    refuse(tmp_path / "a" / "b" / "c")
    assert [*tmp_path.rglob("*")] == [tmp_path / "a"]
    refuse(tmp_path / "a")  # it was there before, and stays, though it is empty
    assert (tmp_path / "a").is_dir()
    refuse(tmp_path / "x" / "y" / "z", (tmp_path / "x" / "other").touch)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", tmp_path / "x", tmp_path / "x" / "other"]
    refuse(tmp_path / "x" / "y" / "z", (tmp_path / "x" / "y" / "z" / "left").touch)
    assert (tmp_path / "x" / "y" / "z" / "left").exists()


def test_a_folder_in_the_place_of_one_that_is_gone_is_not_removed(tmp_path) -> None:
    """Another process made it; it may be locked already, and about to be written to."""

    def exchange() -> None:
        (tmp_path / "a").rename(tmp_path / "published")
        (tmp_path / "a").mkdir()

    refuse(tmp_path / "a", exchange)
    assert (tmp_path / "a").is_dir()


@pytest.mark.parametrize("deep", ["a", "a/b/c"])
def test_refused_and_writing_threads_do_not_meet(tmp_path, monkeypatch, deep) -> None:
    """Locks are of descriptors, so threads stand for processes: while some are refused, others write there."""
    folder, failures = tmp_path / deep, []
    monkeypatch.setattr(lock, "_STEP_S", 0.0)
    monkeypatch.setattr(lock, "PATIENCE_S", HANGS_SECONDS)

    def write_there() -> None:
        try:
            for number in range(100):
                with lock.only_process_in(folder):
                    (folder / "one").write_text(str(number))
                    (folder / "one").unlink()
                    if number % 3 == 0:
                        folder.rmdir()
        except BaseException as error:
            failures.append(error)

    def be_refused() -> None:
        try:
            for _ in range(100):
                refuse(folder)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=job) for job in (write_there, be_refused, be_refused)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_commands_that_are_refused_leave_nothing_behind(tmp_path, make_runtime) -> None:
    """A budget that is too small for it, before anything is made."""
    graph, runtime = small_graph(tmp_path / "graph"), make_runtime()
    source = knowledge_graph(tmp_path, runtime, train=random_triples(60, 3, 300))
    embed_prepare(source, tmp_path / "embedding", BucketConfig(partitions=2))
    before = sorted(tmp_path.rglob("*"))
    for mode in ("memory", "online", "packed"):
        with pytest.raises(BudgetError):
            train(
                graph,
                mode=mode,
                epochs=1,
                hidden=4,
                fanouts=[2],
                memory=1000,
                checkpoint=tmp_path / "x" / "ck",
            )
    with pytest.raises(BudgetError):
        prepare(graph, tmp_path / "new" / "run", memory=1000)
    with pytest.raises(BudgetError):
        embed_prepare(source, tmp_path / "buckets", memory=1000)
    for memory in (1000, 100_000):  # the second with a table already
        with pytest.raises(BudgetError):
            embed_train(tmp_path / "embedding", CONFIG, memory=memory)
    assert sorted(tmp_path.rglob("*")) == before
