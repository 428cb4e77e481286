"""Pools that are refreshed while training: the losses of preparing all epochs at once, and what goes wrong."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifact_support import child_environment, python, small_graph
from outcrop.api.train import train
from outcrop.bench import process
from outcrop.config import IoConfig, SampleConfig
from outcrop.errors import ArgumentError, BudgetError, OutcropError
from outcrop.runtime import parent
from outcrop.runtime.runtime import Runtime
from outcrop.store import run as runs
from outcrop.store import samples
from outcrop.store.graph import Graph
from outcrop.training import pools
from prepare_support import prepare

SAMPLING: dict[str, Any] = {"fanouts": (3, 3), "batch_size": 15, "seed": 4}
LEARNING: dict[str, Any] = {"hidden": 8, "trace_losses": True, "dropout": 0.3}
EPOCHS = 5


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return small_graph(tmp_path_factory.mktemp("refresh") / "graph")


@pytest.fixture(scope="module")
def at_once(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The oracle: all epochs prepared before."""
    run = tmp_path_factory.mktemp("at-once") / "run"
    prepare(graph, run, epochs=EPOCHS, memory="64MiB", **SAMPLING)
    return train(graph, run=run, epochs=EPOCHS, seed=SAMPLING["seed"], **LEARNING)


def refreshed(graph: Graph, folder: Path, **changes: Any) -> Any:
    options = {"epochs": EPOCHS, "sample_epochs": 2, "memory": "64MiB", "run": folder, **SAMPLING, **LEARNING}
    return train(graph, refresh=True, **{**options, **changes})


def pool_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def losses(report: Any) -> tuple[list[float], list[float], float]:
    return report.batch_losses, [e["valid_accuracy"] for e in report.epochs], report.test_accuracy


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("per_pool", [1, 2, 5, 7])
def test_equals_preparing_all_epochs_at_once(
    graph: Graph, at_once: Any, tmp_path: Path, per_pool: int
) -> None:
    report = refreshed(graph, tmp_path / "pools", sample_epochs=per_pool)
    assert losses(report) == losses(at_once)
    assert [p["first_epoch"] for p in report.pools] == list(range(0, EPOCHS, per_pool))
    assert pool_names(tmp_path / "pools") == ["eval", f"pool-{(EPOCHS - 1) // per_pool}"]
    assert report.peak_host_bytes <= 48 << 20  # the rest is for preparing


def test_replaying_is_something_else(graph: Graph, at_once: Any, tmp_path: Path) -> None:
    prepare(graph, tmp_path / "run", epochs=2, memory="64MiB", **SAMPLING)
    report = train(graph, run=tmp_path / "run", epochs=EPOCHS, seed=SAMPLING["seed"], **LEARNING)
    count = len(report.batch_losses) // EPOCHS
    assert report.batch_losses[: 2 * count] == at_once.batch_losses[: 2 * count]
    assert report.batch_losses[2 * count] != at_once.batch_losses[2 * count]


@pytest.mark.parametrize("mode", ["online", "memory"])
def test_batches_drawn_on_the_fly_are_refreshed_too(graph: Graph, at_once: Any, mode: str) -> None:
    report = refreshed(graph, Path(), run=None, mode=mode)
    assert losses(report) == losses(at_once)


@pytest.mark.slow
def test_gcn_and_every_seed(graph: Graph, tmp_path: Path) -> None:
    found = []
    for seed in (0, 1):
        run = tmp_path / f"run-{seed}"
        prepare(graph, run, epochs=3, **{**SAMPLING, "seed": seed}, degrees=True)
        want = train(graph, run=run, model="gcn", epochs=3, seed=seed, **LEARNING)
        report = refreshed(
            graph, tmp_path / f"{seed}", model="gcn", epochs=3, seed=seed, sample_epochs=1, memory=None
        )
        assert losses(report) == losses(want)
        found.append(report.batch_losses)
    assert found[0] != found[1]


def test_goes_on_in_the_middle_of_a_pool(graph: Graph, at_once: Any, tmp_path: Path) -> None:
    for epochs in (1, 3, 4, EPOCHS, EPOCHS):
        report = refreshed(graph, tmp_path / "pools", epochs=epochs, checkpoint=tmp_path / "ckpt")
    assert losses(report) == losses(at_once)
    assert report.pools == []  # the last call found everything done


def test_goes_on_without_any_pool(graph: Graph, at_once: Any, tmp_path: Path) -> None:
    refreshed(graph, tmp_path / "pools", epochs=3, checkpoint=tmp_path / "ckpt")
    report = refreshed(graph, tmp_path / "elsewhere", checkpoint=tmp_path / "ckpt")
    assert losses(report) == losses(at_once)
    assert [p["pool"] for p in report.pools] == [1, 2]


def test_a_checkpoint_of_replaying_is_another_training(graph: Graph, tmp_path: Path) -> None:
    refreshed(graph, tmp_path / "pools", epochs=3, checkpoint=tmp_path / "ckpt")
    with pytest.raises(ArgumentError, match="sampling"):
        train(graph, mode="online", sample_epochs=2, checkpoint=tmp_path / "ckpt", **SAMPLING, **LEARNING)


class Watch:
    """Progress that looks at the folder at every step."""

    def __init__(self, folder: Path):
        self.folder, self.most, self.names = folder, 0, set[str]()

    def start(self, task: str, total: int, unit: str) -> None:
        self.names.add(task)
        self.look()

    def advance(self, task: str, amount: int) -> None:
        self.look()

    def note(self, task: str, text: str) -> None: ...
    def finish(self, task: str) -> None:
        self.look()

    def look(self) -> None:
        pools = [p for p in self.folder.glob("pool-*")] if self.folder.exists() else []
        self.most = max(self.most, len(pools))


def test_two_pools_at_most_and_half_the_space_each(graph: Graph, tmp_path: Path) -> None:
    watch = Watch(tmp_path / "pools")
    report = refreshed(graph, tmp_path / "pools", sample_epochs=1, disk_space="3MiB", progress=watch)
    assert watch.most == 2
    limits = [runs.read(p).plan.disk_space for p in sorted((tmp_path / "pools").iterdir())]
    held = sum(f.stat().st_size for f in (tmp_path / "pools" / "eval").rglob("*") if f.is_file())
    assert limits == [(3 << 20) // 2, ((3 << 20) - held) // 2]
    assert all(p["disk_bytes"] <= limits[1] for p in report.pools)


def test_too_little_space_or_memory_fails_before_training(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"disk|space"):
        refreshed(graph, tmp_path / "pools", disk_space="200KiB")
    with pytest.raises(BudgetError, match=r"train in mode packed; the smallest budget that can is \d+"):
        refreshed(graph, tmp_path / "pools", memory="1MiB")


class Names(Watch):
    """Progress that keeps which pools were there at a time."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.seen = set[tuple[str, ...]]()

    def look(self) -> None:
        super().look()
        self.seen.add(tuple(sorted(p.name for p in self.folder.glob("pool-*"))))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("per_pool", [1, 2])
def test_a_small_budget_prepares_and_trains_in_turn(
    graph: Graph, at_once: Any, tmp_path: Path, per_pool: int
) -> None:
    """2 MiB do for a run, and so for its pools: the same losses, one pool at a time, never more than the budget."""
    folder = tmp_path / "pools"
    watch = Names(folder)
    options = {"memory": "2MiB", "sample_epochs": per_pool, "progress": watch, "disk_space": "2MiB"}
    report = refreshed(graph, folder, **options)
    assert losses(report) == losses(at_once)
    assert watch.most == 1
    assert {name for names in watch.seen for name in names} == {
        f"pool-{n}" for n in range(-(-EPOCHS // per_pool))
    }
    assert [p["beside"] for p in report.pools] == [False] * -(-EPOCHS // per_pool)
    assert report.pools[0]["bytes_read"] == 0  # prepared before
    assert all(p["bytes_read"] and p["bytes_written"] > p["disk_bytes"] // 2 for p in report.pools[1:])
    assert 1 << 20 < report.peak_host_bytes <= 2 << 20
    space = (
        runs.read(folder / "eval").plan.disk_space,
        runs.read(folder / pool_names(folder)[-1]).plan.disk_space,
    )
    held = sum(f.stat().st_size for f in (folder / "eval").rglob("*") if f.is_file())
    assert space == (1 << 20, (2 << 20) - held)


@pytest.mark.slow
def test_in_turn_goes_on_after_an_interruption(graph: Graph, at_once: Any, tmp_path: Path) -> None:
    for epochs in (1, 3, 4, EPOCHS):
        options = {"epochs": epochs, "memory": "2MiB", "checkpoint": tmp_path / "ckpt"}
        report = refreshed(graph, tmp_path / "pools", **options)
    assert losses(report) == losses(at_once)
    assert report.pools[-1]["beside"] is False
    for epochs in (EPOCHS + 1, EPOCHS + 3):  # and with a budget for both at once, from the same checkpoint
        report = refreshed(graph, tmp_path / "pools", epochs=epochs, checkpoint=tmp_path / "ckpt")
    assert report.pools[-1]["beside"] is True
    want = refreshed(graph, tmp_path / "others", epochs=EPOCHS + 3)
    assert losses(report) == losses(want)


def test_evaluation_has_more_memory_where_it_needs_it(graph: Graph, at_once: Any, tmp_path: Path) -> None:
    report = refreshed(graph, tmp_path / "pools", memory="8MiB")
    assert losses(report) == losses(at_once)
    assert report.peak_host_bytes <= 6 << 20
    assert runs.read(tmp_path / "pools" / "eval").plan.memory in [(8 << 20) // n for n in (6, 4, 3)]


def test_evaluation_is_prepared_once(graph: Graph, tmp_path: Path) -> None:
    refreshed(graph, tmp_path / "pools", epochs=1)
    before = {f: f.stat().st_mtime_ns for f in (tmp_path / "pools" / "eval").rglob("*.bin")}
    assert before
    refreshed(graph, tmp_path / "pools")
    assert {f: f.stat().st_mtime_ns for f in before} == before
    info = runs.read(tmp_path / "pools" / "pool-2")
    assert (info.sample.splits, info.sample.first_epoch, info.sample.epochs) == (
        ("train",),
        4,
        1,
    )  # the last epoch


def test_first_epoch_of_a_pool(graph: Graph, tmp_path: Path) -> None:
    """Epochs 4 and 5 of a pool from 4 on, or from 3, are those of a pool from 0 on, byte for byte."""
    from outcrop.preparation.sample import sample

    with Runtime() as runtime:
        batches = []
        for first, epochs in ((0, 6), (4, 2), (3, 5)):
            config = SampleConfig((3, 3), 15, epochs=epochs, first_epoch=first, splits=("train",))
            sample(graph, config, tmp_path / f"{first}", runtime)
            found = samples.open_samples(runtime, tmp_path / f"{first}")
            buffer = np.zeros(found.max_record_bytes, np.uint8)
            batches.append(
                [
                    found.read(b, buffer).n_id.tolist()
                    for epoch in (4, 5)
                    for b in found.group("train").batches(epoch)
                ]
            )
            found.files.close()
    assert batches[0] == batches[1] == batches[2]


def slow(monkeypatch: pytest.MonkeyPatch) -> list[pools.Background]:
    """Background processes that never come to their end by themselves; returns those that were started."""
    started: list[pools.Background] = []
    original = pools.Background.__init__

    def init(self: pools.Background, folder: Path, memory: int | None, rate: int | None) -> None:
        original(self, folder, memory, 1)
        started.append(self)

    monkeypatch.setattr(pools.Background, "__init__", init)
    return started


class KillAfter:
    """Progress that kills the background process at the first finished epoch of training."""

    def __init__(self, started: list[pools.Background], how: int):
        self.started, self.how = started, how

    def start(self, task: str, total: int, unit: str) -> None: ...

    def advance(self, task: str, amount: int) -> None:
        if task == "train" and self.started and amount:
            os.kill(self.started[0].pid, self.how)

    def note(self, task: str, text: str) -> None: ...
    def finish(self, task: str) -> None: ...


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def test_a_killed_preparation_ends_the_training(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = slow(monkeypatch)
    with pytest.raises(OutcropError, match="pool-1 in the background failed: it was killed by SIGKILL"):
        refreshed(graph, tmp_path / "pools", progress=KillAfter(started, signal.SIGKILL))
    assert gone(started[0].pid)
    monkeypatch.undo()
    refreshed(graph, tmp_path / "pools")  # and the same command goes on


def test_a_failed_preparation_ends_the_training_with_its_error(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = pools.Pools._describe_pool

    def spoil(self: pools.Pools, number: int) -> None:
        describe(self, number)
        if number == 1:
            (tmp_path / "pools" / "pool-1" / "run.json").write_text("{}")

    monkeypatch.setattr(pools.Pools, "_describe_pool", spoil)
    with pytest.raises(
        OutcropError, match=r"pool-1 in the background failed: .*run.json cannot be read as a run"
    ):
        refreshed(graph, tmp_path / "pools")


def test_leaving_ends_the_background(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = slow(monkeypatch)

    class Leave(KillAfter):
        def advance(self, task: str, amount: int) -> None:
            if task == "train" and started:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        refreshed(graph, tmp_path / "pools", progress=Leave(started, 0))
    assert len(started) == 1
    assert gone(started[0].pid)


DYING = """
import os, sys
from outcrop.training import pools
from outcrop.api.train import train
original = pools.Background.__init__
def init(self, folder, memory, rate):
    original(self, folder, memory, 1)
    print(self.pid, flush=True)
pools.Background.__init__ = init
class Progress:
    def start(self, task, total, unit): ...
    def note(self, task: str, text: str) -> None: ...
    def finish(self, task): ...
    def advance(self, task, amount):
        if task == "train" and amount:
            os.kill(os.getpid(), 9)
train(sys.argv[1], run=sys.argv[2], refresh=True, fanouts=(3, 3), batch_size=15, epochs=4, hidden=8,
      progress=Progress())
"""


def test_the_background_dies_with_its_parent(graph: Graph, tmp_path: Path) -> None:
    ended = python(DYING, graph.path, tmp_path / "pools")
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    pid = int(ended.stdout.split()[-1])
    deadline = time.monotonic() + 120
    while not gone(pid):
        assert time.monotonic() < deadline, "it outlived its parent"
        time.sleep(0.02)


def test_without_its_parent_it_does_not_begin(graph: Graph, tmp_path: Path) -> None:
    prepare(graph, tmp_path / "run", stop_after="sample", **SAMPLING)
    code = "import sys; from outcrop.cli.main import run; sys.argv = ['outcrop', *sys.argv[1:]]; run()"
    ended = python(code, "prepare-pool", tmp_path / "run", "--parent", 1)
    assert ended.returncode == 1
    assert not (tmp_path / "run" / "pack").exists()
    ended = python(code, "prepare-pool", tmp_path / "run", "--parent", os.getpid(), "--rate", "100MiB")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "run" / "pack" / "manifest.json").is_file()


def test_nothing_in_the_working_folder_is_executed(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by the background nor by benchmarks, which start the command too."""
    prepare(graph, tmp_path / "run", epochs=1, stop_after="sample", **SAMPLING)
    for name in ("numpy.py", "typer.py", "outcrop.py"):
        (tmp_path / name).write_text("open('hijacked', 'w').close(); raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)
    started = pools.Background(tmp_path / "run", None, None)
    while not started.check():
        started.wait(0.05)
    started.close()
    assert (tmp_path / "run" / "pack" / "manifest.json").is_file()
    assert process.outcrop(["info", graph.path]).result
    assert not (tmp_path / "hijacked").exists()


def test_priority_of_the_background() -> None:
    code = f"import os; from outcrop.runtime.parent import serve; serve({os.getpid()}); print(os.nice(0))"
    assert python(code).stdout.split() == ["19"]
    assert parent.__doc__


def test_other_folders_are_not_touched(graph: Graph, tmp_path: Path) -> None:
    prepare(graph, tmp_path / "run", **SAMPLING)
    before = sorted((tmp_path / "run").rglob("*"))
    with pytest.raises(ArgumentError, match="is no folder of sample pools"):
        refreshed(graph, tmp_path / "run")
    assert sorted((tmp_path / "run").rglob("*")) == before


def test_the_rate_reaches_the_engine(tmp_path: Path) -> None:
    """Three writes of a quarter of a second's bytes."""
    from outcrop import _core

    with Runtime(io=IoConfig(rate_bytes_per_second=1 << 20)) as runtime:
        file = runtime.io.open(str(tmp_path / "x"), _core.OpenMode.create)
        started = time.monotonic()
        for _ in range(3):
            runtime.io.write(file, 0, np.zeros(1 << 18, np.uint8))
        assert time.monotonic() - started >= 0.75
        runtime.io.close(file)


def test_command(graph: Graph, tmp_path: Path) -> None:
    code = "import sys; from outcrop.cli.main import run; sys.argv = ['outcrop', *sys.argv[1:]]; run()"
    options = [
        "--refresh",
        "--refresh-rate",
        "200MiB",
        "--run",
        tmp_path / "pools",
        "--epochs",
        3,
        "--hidden",
        8,
    ]
    ended = python(code, "train", graph.path, *options, "--fanouts", "3,3", "--batch-size", 15)
    assert ended.returncode == 0, ended.stderr
    assert "best epoch" in ended.stdout
    assert child_environment()
