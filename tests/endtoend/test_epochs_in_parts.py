"""Epochs that are prepared in parts: the batches and losses of whole epochs, within the disk that there is."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import python, small_graph
from outcrop.advisor import choose
from outcrop.api.train import train
from outcrop.config import Checkpoints, PlanConfig, SampleConfig
from outcrop.errors import ArgumentError, BudgetError
from outcrop.loading.open import open_session
from outcrop.preparation.sample import sample
from outcrop.runtime.progress import SilentProgress
from outcrop.runtime.runtime import Runtime
from outcrop.store import samples
from outcrop.store.graph import Graph
from outcrop.training import parts, pools, spool
from outcrop.training.batch_request import BatchRequest
from typed_training_support import EPOCHS as TYPED_EPOCHS
from typed_training_support import OPTIONS

SAMPLING: dict[str, Any] = {
    "fanouts": (3, 3),
    "batch_size": 13,
    "seed": 4,
}  # of 60 seeds: four batches, and one of 8
LEARNING: dict[str, Any] = {"hidden": 8, "trace_losses": True, "dropout": 0.3}
BATCHES, EPOCHS = 5, 3
IN_TURN, CONCURRENT = "2MiB", "64MiB"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return small_graph(tmp_path_factory.mktemp("parts") / "graph")


def trained(graph: Graph, **changes: Any) -> Any:
    return train(graph, **{"epochs": EPOCHS, "memory": IN_TURN, **SAMPLING, **LEARNING, **changes})


def losses(report: Any) -> tuple[list[float], list[float], float]:
    return report.batch_losses, [e["valid_accuracy"] for e in report.epochs], report.test_accuracy


@pytest.fixture(scope="module")
def in_memory(graph: Graph) -> dict[bool, Any]:
    """The oracle, with new batches in every epoch and with those of two epochs again and again."""
    return {
        fresh: losses(trained(graph, mode="memory", memory=None, **({} if fresh else {"sample_epochs": 2})))
        for fresh in (True, False)
    }


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how many batches a part has, and within how much disk."""

    def take(batches: int, limit: int = 8 << 20) -> None:
        choice = parts.PartChoice(batches, limit, "as the test says")
        monkeypatch.setattr(parts, "choose_parts", lambda *_: choice)

    return take


class Watch(SilentProgress):
    """Looks at how much lies in the folder of pools, and at which pools there are."""

    def __init__(self, folder: Path):
        self.folder, self.most, self.pools = folder, 0, 0

    def advance(self, task: str, amount: int) -> None:
        found = 0
        for file in self.folder.rglob("*"):
            try:
                found += file.stat().st_size if file.is_file() and "history" not in file.parts else 0
            except FileNotFoundError:  # renamed while this looks
                continue
        self.most = max(self.most, found)
        self.pools = max(self.pools, len(list(self.folder.glob("pool-*"))))


def folder_of(graph: Graph) -> Path:
    return graph.path.with_name("graph.pools")


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("memory", [IN_TURN, CONCURRENT])
@pytest.mark.parametrize("each", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 5, 9))])
def test_losses_are_those_in_memory(
    graph: Graph, in_memory: Any, in_parts: Any, fresh: bool, memory: str, each: int
) -> None:
    in_parts(each)
    watch = Watch(folder_of(graph))
    report = trained(graph, memory=memory, progress=watch, **({} if fresh else {"sample_epochs": 2}))
    assert losses(report) == in_memory[fresh]
    firsts = range(0, BATCHES, each)
    want = [(epoch, (first, min(each, BATCHES - first))) for epoch in range(EPOCHS) for first in firsts]
    assert [(pool["first_epoch"], pool["batches"]) for pool in report.pools] == want
    assert [pool["pool"] for pool in report.pools] == list(range(len(want)))
    assert {pool["beside"] for pool in report.pools} == {memory == CONCURRENT}
    assert watch.pools == (2 if memory == CONCURRENT else 1)
    assert report.chosen.startswith("as the test says")
    assert report.kept_folder == str(folder_of(graph))
    assert report.peak_host_bytes <= (2 << 20 if memory == IN_TURN else 48 << 20)
    assert [e["distinct_batches"] for e in report.epochs] == [True, True, fresh]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("memory", [IN_TURN, CONCURRENT])
def test_what_an_epoch_counts_is_its_own(graph: Graph, in_parts: Any, memory: str) -> None:
    """Rows by level and bytes read as of whole epochs; what preparing took and read is counted apart."""
    in_parts(2)
    report = trained(graph, memory=memory)
    seconds = report.prepare["seconds"] + sum(pool["waited_seconds"] for pool in report.pools)
    assert sum(e["prepare_seconds"] for e in report.epochs) == pytest.approx(seconds)
    assert all(e["seconds"] >= e["load_seconds"] >= 0 for e in report.epochs)
    rows = [sum(e["rows_by_level"].values()) for e in report.epochs]
    whole = trained(graph, mode="online", memory=None)
    assert rows == [sum(e["rows_by_level"].values()) for e in whole.epochs]
    assert all(e["bytes_needed_from_disk"] <= e["bytes_read"] for e in report.epochs)
    if memory == IN_TURN:
        assert all(pool["bytes_read"] and pool["bytes_written"] for pool in report.pools[1:])
        prepared = sum(pool["bytes_read"] for pool in report.pools)
        assert all(e["bytes_read"] < prepared / EPOCHS for e in report.epochs)


def drawn(path: Path, config: SampleConfig, graph: Graph) -> list[list[np.ndarray]]:
    """What the records of each batch hold."""
    with Runtime() as runtime:
        sample(graph, config, path, runtime)
        found = samples.open_samples(runtime, path)
        buffer = np.zeros(found.max_record_bytes, np.uint8)
        read = [found.read(b, buffer) for b in range(0)]
        for b in found.group("train").all_batches():
            batch = found.read(b, buffer)
            read.append([batch.n_id.copy(), *(np.array(e.col) for e in batch.edges), np.array(batch.labels)])
        found.files.close()
    return read


@pytest.mark.parametrize(("sampler", "dependency"), [("neighbor", 1), ("labor", 1), ("labor", 3)])
def test_batches_of_a_part_are_those_of_the_epoch(
    graph: Graph, tmp_path: Path, sampler: Any, dependency: int
) -> None:
    config = SampleConfig(
        (3, 3), 13, epochs=2, first_epoch=1, splits=("train",), sampler=sampler, batch_dependency=dependency
    )
    whole = drawn(tmp_path / "whole", config, graph)
    for first, count in ((0, 2), (1, 1), (2, None), (3, 2), (0, 5)):
        part = replace(config, first_batch=first, batches=count)
        found = drawn(tmp_path / f"{first}-{count}", part, graph)
        stop = BATCHES if count is None else first + count
        want = whole[first:stop] + whole[BATCHES + first : BATCHES + stop]
        assert len(found) == len(want)
        for one, other in zip(found, want, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_parts_that_are_none_are_refused(graph: Graph, tmp_path: Path) -> None:
    for changes, said in (
        ({"first_batch": -1}, "first batch -1 is negative"),
        ({"batches": 0}, "batches 0 is below 1"),
        ({"first_batch": 1, "splits": ("valid",)}, "splits are valid"),
        ({"batches": 2, "sampler": "foreign"}, "batches from elsewhere have whole epochs"),
    ):
        with pytest.raises(ArgumentError, match=said):
            SampleConfig(**changes)
    for first, count in ((5, None), (4, 2), (0, 6)):
        config = SampleConfig((3, 3), 13, splits=("train",), first_batch=first, batches=count)
        with Runtime() as runtime, pytest.raises(ArgumentError, match="it has 5, 0 to 4: change first_batch"):
            sample(graph, config, tmp_path / "sample", runtime)
    with pytest.raises(ArgumentError, match="first_batch=0 and batches=2: leave both out"):
        train(graph, sampling=SampleConfig((3, 3), batches=2))
    with Runtime() as runtime, pytest.raises(ArgumentError, match="mode online draws whole epochs"):
        open_session(graph, runtime, "online", config=SampleConfig((3, 3), 13, batches=2))


def test_whole_epochs_are_stored_as_they_were() -> None:
    assert not {"first_batch", "batches"} & SampleConfig().as_stored().keys()
    part = SampleConfig(first_batch=2, batches=3)
    assert SampleConfig.from_stored(part.as_stored()) == part


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("memory", [IN_TURN, CONCURRENT])
def test_goes_on_from_any_batch(
    graph: Graph, in_memory: Any, in_parts: Any, tmp_path: Path, fresh: bool, memory: str
) -> None:
    """Stopped after every update, within parts, between them and between epochs; parts of another size afterwards."""
    options = {"memory": memory, "checkpoint": Checkpoints(tmp_path / "ckpt", steps=1)}
    options |= {} if fresh else {"sample_epochs": 2}

    class Stop:
        def __init__(self, update: int):
            self.update = update

        def on_step(self, update: int, values: Any) -> None:
            if update == self.update:
                raise KeyboardInterrupt

    for update, each in ((2, 2), (4, 2), (5, 1), (8, 3), (9, 2), (12, 4)):
        in_parts(each)
        with pytest.raises(KeyboardInterrupt):
            trained(graph, callbacks=[Stop(update)], **options)
    in_parts(2)
    report = trained(graph, **options)
    assert losses(report) == in_memory[fresh]
    assert report.pools[0]["first_epoch"] == 2
    assert report.pools[0]["batches"][0] > 0  # what was trained already is not prepared again
    assert trained(graph, **options).pools == []


DYING = """
import os, sys
from pathlib import Path
from outcrop.api.train import train
from outcrop.config import Checkpoints
from outcrop.training import parts, pools
parts.choose_parts = lambda *_: parts.PartChoice(2, 8 << 20, "")
switch = pools.Pools._switch
def die(self, number, *rest):
    if number == int(sys.argv[3]):
        os.kill(os.getpid(), 9)
    return switch(self, number, *rest)
pools.Pools._switch = die
train(sys.argv[1], fanouts=(3, 3), batch_size=13, seed=4, epochs=3, hidden=8, dropout=0.3, trace_losses=True,
      memory=sys.argv[4], checkpoint=Checkpoints(sys.argv[2], steps=1))
"""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("memory", [IN_TURN, CONCURRENT])
def test_goes_on_where_it_was_killed_between_parts(
    graph: Graph, in_memory: Any, in_parts: Any, tmp_path: Path, memory: str
) -> None:
    for number in (1, 4):
        ended = python(DYING, graph.path, tmp_path / "ckpt", number, memory)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    in_parts(2)
    report = trained(graph, memory=memory, checkpoint=tmp_path / "ckpt")
    assert losses(report) == in_memory[True]
    assert sorted(path.name for path in folder_of(graph).iterdir()) == ["eval", "pool-8"]


def test_parts_of_spooled_epochs(graph: Graph, in_memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for fresh in (True, False):
        decision = choose.SpoolDecision(1 if fresh else 2, 8 << 20, "as the test says", parts=3)
        monkeypatch.setattr(spool, "decide_spooling", lambda *_, decision=decision: decision)
        report = trained(graph, mode="online", **({} if fresh else {"sample_epochs": 2}))
        assert losses(report) == in_memory[fresh]
        assert [pool["batches"] for pool in report.pools] == [(0, 2), (2, 2), (4, 1)] * EPOCHS
        assert "as the test says" in report.chosen
        assert not list(graph.path.parent.glob("graph.spool-*"))


WIDE = {"fanouts": (3, 3), "batch_size": 4, "seed": 4}  # fifteen batches of about 50 rows of 4000 bytes


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """24 MB of features, ten times what fits the memory, of which an epoch wants about 2.5 MB."""
    rng = np.random.default_rng(1)
    return small_graph(
        tmp_path_factory.mktemp("wide") / "graph",
        features=rng.standard_normal((6000, 1000)).astype(np.float32),
        splits={
            "train": np.sort(rng.choice(6000, 60, replace=False)),
            "valid": np.arange(4),
            "test": np.arange(4, 6),
        },
    )


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("disk_space", "fresh"),
    [("1200KiB", True), ("1700KiB", False), pytest.param("2300KiB", True, marks=pytest.mark.slow)],
)
def test_an_epoch_larger_than_the_disk_is_trained_within_it(
    wide: Graph, disk_space: str, fresh: bool
) -> None:
    """Which nothing could be trained in before: batches can share rows in 1.2 times the features, 29 MB."""
    options: dict[str, Any] = {**WIDE, **LEARNING, "epochs": 2, "memory": "2MiB", "mode": "packed"}
    options |= {} if fresh else {"sample_epochs": 1}
    watch = Watch(folder_of(wide))
    report = train(wide, disk_space=disk_space, progress=watch, **options)
    limit = int(disk_space.removesuffix("KiB")) << 10
    assert limit // 4 < watch.most <= limit  # a part is sized for two at a time
    assert losses(report) == losses(train(wide, **{**options, "mode": "memory", "memory": None}))
    each = len(report.pools) // 2
    assert f"an epoch is prepared in {each} parts" in report.chosen
    assert each > 1
    assert sum(pool["batches"][1] for pool in report.pools) == 2 * 15


def test_a_dry_run_says_so(wide: Graph) -> None:
    code = "import sys; from outcrop.cli.main import run; sys.argv = ['outcrop', *sys.argv[1:]]; run()"
    options = ["--fanouts", "3,3", "--batch-size", 4, "--epochs", 2, "--memory", "2MiB", "--mode", "packed"]
    found = python(code, "train", wide.path, *options, "--disk-space", "1200KiB", "--dry-run")
    assert found.returncode == 0, found.stderr
    assert "an epoch is prepared in" in found.stdout
    assert "of 15 batches of an epoch at a time" in " ".join(found.stdout.split())
    assert str(folder_of(wide)) in found.stdout.replace("\n", "")
    whole = python(code, "train", wide.path, *options, "--disk-space", "90MiB", "--dry-run")
    assert "in parts" not in whole.stdout
    assert "2 of 2 epochs at a time" in " ".join(whole.stdout.split())


def test_where_parts_do_not_fit_either_it_does_as_before(wide: Graph) -> None:
    with pytest.raises(BudgetError, match="smallest --disk-space"):
        train(wide, **WIDE, epochs=1, memory="2MiB", mode="packed", disk_space="100KiB")


def test_parts_that_turn_out_not_to_fit_leave_the_disk_to_whole_epochs(
    tmp_path: Path, in_memory: Any, in_parts: Any
) -> None:
    """Parts of all batches in too little disk; without the limit of the choice whole epochs have room."""
    graph = small_graph(tmp_path / "graph")
    in_parts(5, limit=50 << 10)
    report = trained(graph)
    assert losses(report) == in_memory[True]
    assert "whole epochs are prepared instead" in report.chosen
    assert report.pools == []
    assert not folder_of(graph).exists()


def test_parts_of_a_graph_with_types(tmp_path: Path, in_parts: Any) -> None:
    """Rows of several files, learned rows among them, and dropout: the losses in memory."""
    shape = oc.GenerateConfig(nodes=600, edges=9000, kind="typed", features=16, train_fraction=0.3)
    graph = oc.generate_graph(tmp_path / "g.oc", shape, progress=False)
    options = {**OPTIONS, "observer": oc.Observer(progress=False)}
    want = oc.train(graph, loading="memory", **{**options, "memory": None})
    in_parts(3)
    report = oc.train(graph, loading="packed", **options)
    assert report.batch_losses == want.batch_losses
    assert [e["valid_accuracy"] for e in report.epochs] == [e["valid_accuracy"] for e in want.epochs]
    assert [pool["batches"] for pool in report.pools] == [(0, 3), (3, 3), (6, 1)] * TYPED_EPOCHS
    files = [[sum(rows.values()) for rows in e["rows_by_file"]] for e in report.epochs]
    assert files == [[sum(rows.values()) for rows in e["rows_by_file"]] for e in want.epochs]


def test_several_processes_have_whole_epochs(graph: Graph, tmp_path: Path) -> None:
    request = BatchRequest(graph, SampleConfig((3, 3), 13), PlanConfig(), 1, 0, pool_batches=2)
    with pytest.raises(ArgumentError, match="2 processes train on whole epochs"):
        pools.Pools(request, tmp_path / "pools", SimpleNamespace(alone=False, world=2))  # type: ignore[arg-type]
