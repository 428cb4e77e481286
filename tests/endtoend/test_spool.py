"""Mode online that spools: the losses of reading rows as batches are drawn, and nothing left behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import child_environment, python, small_graph
from outcrop.advisor import auto
from outcrop.advisor.choose import Choice, SpoolDecision
from outcrop.api.train import train
from outcrop.config import parse_size
from outcrop.errors import ArgumentError, BudgetError, OutcropError
from outcrop.nn.models import build_model
from outcrop.runtime.hardware import Disk, Hardware
from outcrop.store import lock
from outcrop.store.graph import Graph
from outcrop.training import request, spool
from prepare_support import prepare

SAMPLING: dict[str, Any] = {"fanouts": (3, 3), "batch_size": 15, "seed": 4}
LEARNING: dict[str, Any] = {"hidden": 8, "trace_losses": True, "dropout": 0.3}
EPOCHS = 5
SLOW_SEEKS = Hardware("here", Disk("here", ((4096, 1e3), (1 << 20, 1e3))))
FAST_SEEKS = Hardware("here", Disk("here", ((4096, 1e9), (1 << 20, 1e3))))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return small_graph(tmp_path_factory.mktemp("spool") / "graph")


@pytest.fixture(autouse=True)
def nothing_left(graph: Graph) -> Iterator[None]:
    yield
    assert left(graph) == []


def left(graph: Graph) -> list[str]:
    return sorted(path.name for path in graph.path.parent.iterdir() if path.name != graph.path.name)


@pytest.fixture(autouse=True)
def never_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no mode is named it is chosen by predictions, however little there is to be done."""
    monkeypatch.setattr(request, "_SMALL_BYTES", 0)


def online(graph: Graph, **changes: Any) -> Any:
    options = {"epochs": EPOCHS, "memory": "2MiB", "mode": "online", **SAMPLING, **LEARNING, **changes}
    return train(graph, **options)


def losses(report: Any) -> tuple[list[float], list[float], float]:
    return report.batch_losses, [e["valid_accuracy"] for e in report.epochs], report.test_accuracy


@pytest.fixture
def spools(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how many epochs are spooled."""

    def take(epochs: int, disk_space: int | None = None) -> None:
        monkeypatch.setattr(
            spool, "decide_spooling", lambda *_: SpoolDecision(epochs, disk_space, "as the test says")
        )

    return take


@pytest.mark.parametrize(
    ("epochs", "memory"),
    [
        (1, "2MiB"),
        pytest.param(2, "64MiB", marks=pytest.mark.slow),
        (3, "2MiB"),
        pytest.param(5, "2MiB", marks=pytest.mark.slow),
    ],
)
def test_new_batches_every_epoch(graph: Graph, spools: Any, epochs: int, memory: str) -> None:
    direct = online(graph, refresh=True, memory=memory)
    assert (direct.spooled_epochs, direct.pools) == (0, [])  # so few features are read in no time
    spools(epochs)
    report = online(graph, refresh=True, memory=memory)
    assert losses(report) == losses(direct)
    assert (report.mode, report.spooled_epochs, report.chosen) == ("online", epochs, "as the test says")
    assert [pool["first_epoch"] for pool in report.pools] == list(range(0, EPOCHS, epochs))
    assert not any(pool["beside"] for pool in report.pools)  # the CPU trains
    assert report.peak_host_bytes <= parse_size(memory)


@pytest.mark.parametrize("model", ["sage", pytest.param("gcn", marks=pytest.mark.slow)])
def test_replayed_batches(graph: Graph, spools: Any, tmp_path: Path, model: str) -> None:
    options = {"sample_epochs": 2, "model": model, "memory": "1640KiB"}
    direct = online(graph, **options)
    spools(2)
    report = online(graph, **options)
    prepare(graph, tmp_path / "run", epochs=2, degrees=model == "gcn", memory="1640KiB", **SAMPLING)
    packed = train(graph, run=tmp_path / "run", epochs=EPOCHS, model=model, seed=SAMPLING["seed"], **LEARNING)
    assert losses(report) == losses(direct) == losses(packed)
    assert report.epochs[0]["rows_by_level"]["packed"] > 0
    assert report.prepare["bytes_written"] > 0
    with pytest.raises(ArgumentError, match="leave --run"):
        train(graph, mode="online", refresh=True, run=tmp_path / "run")


def test_what_is_chosen_by_is_the_model_that_is_trained(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three heads of width 2, of which one with four heads cannot be built; and without a width, 32 for each head."""
    monkeypatch.setattr(spool, "LEAST_BYTES", 0)
    assert len(online(graph, model="gat", hidden=6, heads=3).epochs) == EPOCHS
    asked: list[auto.TrainingAhead] = []

    def choose_limits(_: Graph, sampling: Any, out: Path | None, ahead: auto.TrainingAhead) -> Choice:
        asked.append(ahead)
        return Choice(2 << 20, "online", None, "as the test says")

    monkeypatch.setattr(auto, "choose_limits", choose_limits)
    online(graph, model="gat", hidden=None, heads=8, memory="auto", epochs=1)
    first = build_model("gat", graph.feature_dim, None, graph.num_classes, 2, heads=8).convs[0]
    (ahead,) = asked
    assert auto.shapes.network_of(graph, ahead.model).hidden == (first.heads * first.out_channels)


def test_goes_on_in_either_way(graph: Graph, spools: Any, tmp_path: Path) -> None:
    """A checkpoint does not know how rows came: spooled, directly, and as packed pools."""
    want = online(graph, refresh=True)
    options = {"refresh": True, "checkpoint": tmp_path / "ckpt"}
    online(graph, epochs=1, **options)
    spools(2)
    report = online(graph, epochs=4, **options)
    assert [pool["pool"] for pool in report.pools] == [0, 1]
    report = online(graph, mode="packed", run=tmp_path / "pools", **options)
    assert losses(report) == losses(want)
    assert online(graph, **options).pools == []  # nothing was left to be trained


def test_it_chooses_by_what_the_disk_does(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "LEAST_BYTES", 0)
    monkeypatch.setattr(
        spool, "_step_seconds", lambda *_: 1e-4
    )  # on a busy machine nothing but steps would matter
    said: list[str] = []
    found = []
    for disk in (SLOW_SEEKS, FAST_SEEKS):
        monkeypatch.setattr(spool.machine, "rough_hardware", lambda path, disk=disk: disk)
        found.append(online(graph, refresh=True, on_choice=said.append))
    assert [bool(report.spooled_epochs) for report in found] == [True, False]
    assert losses(found[0]) == losses(found[1])
    assert [report.chosen for report in found] == said
    assert "spooled to disk at a time" in said[0]
    assert "rows are read as batches are drawn" in said[1]
    # With slow seeks again, but reasons not to.
    monkeypatch.setattr(spool.machine, "rough_hardware", lambda path: SLOW_SEEKS)
    for reason in ({"disk_space": 0}, {"memory": None}, {"disk_space": "1KiB"}):
        assert online(graph, refresh=True, **reason).spooled_epochs == 0
    monkeypatch.setattr(spool.os, "access", lambda path, mode: False)
    report = online(graph, refresh=True)
    assert f"nothing may be written to {graph.path.parent}" in report.chosen


def test_what_does_not_fit_is_read_directly(graph: Graph, spools: Any) -> None:
    spools(2, 100 << 10)
    report = online(graph, refresh=True)
    assert report.spooled_epochs == 0
    assert "spooling does not fit" in report.chosen
    assert losses(report) == losses(online(graph, mode="memory", memory=None, refresh=True))


def test_an_error_in_training_leaves_nothing(graph: Graph, spools: Any) -> None:
    spools(1)

    class Fails:
        def start(self, task: str, total: int, unit: str) -> None: ...
        def advance(self, task: str, amount: int) -> None:
            if task == "train":
                assert len(left(graph)) == 1
                raise OutcropError("as the test wants")

        def note(self, task: str, text: str) -> None: ...
        def finish(self, task: str) -> None: ...

    with pytest.raises(OutcropError, match="as the test wants"):
        online(graph, refresh=True, progress=Fails())


FOREVER = """
import sys, time
from contextlib import contextmanager
from outcrop.training import request, spool
from outcrop.store.graph import open_graph
with spool.folder(open_graph(sys.argv[1])) as made:
    (made / "rows").mkdir()
    (made / "rows" / "records.bin").write_bytes(b"x" * 1000)
    print(made, flush=True)
    time.sleep(600)
"""


def test_folders_of_killed_trainings_are_removed_and_no_others(graph: Graph) -> None:
    others = graph.path.with_name(f"{graph.path.name}.spool-notes")
    others.mkdir()
    (others / "mine.txt").touch()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", FOREVER, str(graph.path)],
            env=child_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        made = [Path(process.stdout.readline().strip()) for process in running if process.stdout]
        assert len({*made}) == 2
        running[0].send_signal(signal.SIGKILL)
        running[0].wait()
        assert made[0].is_dir()
        with spool.folder(graph) as mine:
            assert not made[0].exists()
            assert made[1].is_dir()  # its training goes on
            assert others.is_dir()  # and what holds other files is none of ours
            with spool.folder(graph) as another:
                assert mine.is_dir()
                assert another != mine
        running[1].send_signal(signal.SIGINT)
        running[1].wait()
        assert not made[1].exists()
    finally:
        for process in running:
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()
        shutil.rmtree(others)


TERMINATED = """
import os, signal, sys, threading, time
from pathlib import Path
from outcrop.advisor.choose import SpoolDecision
from outcrop.training import request, spool
from outcrop.cli import main
spool.decide_spooling = lambda *_: SpoolDecision(2, None, "")
graph = Path(sys.argv[1])
def terminate():
    while not list(graph.parent.glob("*.spool-*/rows/pool-1/pack/manifest.json")):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=terminate, daemon=True).start()
sys.argv[2:] = "--mode online --refresh --epochs 1000 --fanouts 3,3 --batch-size 15 --memory 2MiB --hidden 8".split()
sys.argv[1:1] = ["train"]
main.run()
"""


def test_terminated_in_training_it_leaves_nothing(graph: Graph) -> None:
    ended = python(TERMINATED, graph.path)
    assert (ended.returncode, left(graph)) == (128 + signal.SIGTERM, [])
    assert "run the same command again" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_locks_nothing_is_taken_for_left(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(handle: int, how: int) -> None:
        raise OSError("no locks available")

    kept = graph.path.with_name(f"{graph.path.name}.spool-kept")
    kept.mkdir()
    (kept / "rows").mkdir()
    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    with ExitStack() as both:
        made = [both.enter_context(spool.folder(graph)) for _ in range(2)]
        assert left(graph) == sorted([kept.name, *(path.name for path in made)])
    assert kept.is_dir()
    shutil.rmtree(kept)


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize(
    ("direct_s", "fits", "mode"), [(5.0, True, "online"), (20.0, True, "packed"), (5.0, False, "packed")]
)
def test_without_a_mode_the_sooner_one_trains(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, direct_s: float, fits: bool, mode: str, replayed: bool
) -> None:
    """And on the same batches."""
    options: dict[str, Any] = {"memory": "2MiB", "mode": None} | ({"sample_epochs": 2} if replayed else {})
    named = online(graph, **options | {"mode": "online"})
    made = SpoolDecision(3, None, "never said", spooled_s=10.0, direct_s=direct_s, direct_fits=fits)
    monkeypatch.setattr(spool, "decide_spooling", lambda *_: made)
    try:
        found = online(graph, **options)
        assert (found.mode, found.spooled_epochs) == (mode, 0)
        assert losses(found) == losses(named)
        said = "mode online: 5 epochs are predicted to take 5 s so, 10 s packed, preparing included"
        assert (said in found.chosen) == (mode == "online")
        if mode == "packed":  # what is there is used, whatever is predicted
            made = SpoolDecision(0, None, "", spooled_s=10.0, direct_s=1.0)
            assert online(graph, **options).mode == "packed"
    finally:
        for path in graph.path.parent.iterdir():
            if path.name != graph.path.name:
                shutil.rmtree(path)


def test_nobody_looks_where_little_is_to_be_done(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "_SMALL_BYTES", 1 << 30)
    monkeypatch.setattr(spool, "decide_spooling", lambda *_: pytest.fail("somebody looks"))
    try:
        assert online(graph, mode=None, epochs=1).mode == "packed"
    finally:
        shutil.rmtree(graph.path.with_name(graph.path.name + ".run"))


def test_a_mode_that_was_named_is_kept(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    sooner = SpoolDecision(0, None, "", spooled_s=10.0, direct_s=1.0)
    monkeypatch.setattr(spool, "decide_spooling", lambda *_: sooner)
    try:
        assert online(graph, mode="packed", epochs=1).mode == "packed"
    finally:
        shutil.rmtree(graph.path.with_name(graph.path.name + ".run"))


def test_looking_at_batches_says_whether_they_fit(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "LEAST_BYTES", 0)
    monkeypatch.setattr(spool, "WORTH_MEASURING", (0.0, 1.0))  # of a small graph nothing takes seconds
    monkeypatch.setattr("outcrop.advisor.machine.rough_hardware", lambda _: FAST_SEEKS)
    found: list[SpoolDecision] = []
    decide = spool.decide_spooling
    monkeypatch.setattr(spool, "decide_spooling", lambda *a: found.append(decide(*a)) or found[-1])
    assert online(graph, mode=None, memory="2MiB").mode == "online"  # seeks cost nothing
    monkeypatch.setattr("outcrop.advisor.auto._buffer_bytes", lambda *_: (1 << 20) + 1)
    try:
        assert online(graph, mode=None, memory="2MiB").mode == "packed"
    finally:
        shutil.rmtree(graph.path.with_name(graph.path.name + ".run"), ignore_errors=True)
    assert [one.direct_fits for one in found] == [True, False]


@pytest.mark.parametrize("mode", ["online", None])
def test_a_step_that_wants_features_of_edges_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    monkeypatch.setattr(spool, "LEAST_BYTES", 0)
    monkeypatch.setattr("outcrop.advisor.machine.rough_hardware", lambda _: FAST_SEEKS)
    measured, rng = [], np.random.default_rng(0)
    steps_of = spool._step_seconds
    monkeypatch.setattr(spool, "_step_seconds", lambda *a: measured.append(steps_of(*a)) or measured[-1])
    parts = {
        "edges": rng.integers(0, 2000, (8000, 2)),
        "features": rng.random((2000, 32), np.float32),
        "edge_features": rng.random((8000, 3), np.float32),
        "labels": rng.integers(0, 3, 2000),
    }
    splits = {name: np.arange(at, 600, 3) for at, name in enumerate(("train", "valid", "test"))}
    made = oc.import_graph(parts, tmp_path / "edges.oc", splits=splits, progress=False)
    sampling = oc.SampleConfig(fanouts=(3, 3), batch_size=20, edge_rows=True)
    asked: dict[str, Any] = {"sampling": sampling, "memory": "4MiB", "epochs": 1, "mode": mode}
    done = train(made, model=oc.ModelConfig("gine", hidden=4), **asked)
    assert measured[0] > 0
    assert len(done.epochs) == 1


def test_what_is_chosen_from_knows_the_parts_of_an_epoch(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preparing in parts takes longer: whether a step has to be measured depends on them, too."""
    monkeypatch.setattr(spool, "LEAST_BYTES", 0)
    monkeypatch.setattr("outcrop.advisor.machine.rough_hardware", lambda _: FAST_SEEKS)
    monkeypatch.setattr(spool.epochs_at_a_time, "parts_of_epoch", lambda *_: 7)
    seen: list[int] = []
    monkeypatch.setattr(
        spool.SpoolingFacts, "direct_may_be_sooner", lambda self, *_: bool(seen.append(self.workload.parts))
    )
    try:
        assert online(graph, mode=None, memory="2MiB", epochs=1).mode == "packed"
    finally:
        for path in graph.path.parent.iterdir():
            if path.name != graph.path.name:
                shutil.rmtree(path)
    assert seen == [7]


def test_a_budget_too_small_to_look_is_refused_with_the_smallest(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "LEAST_BYTES", 0)
    monkeypatch.setattr("outcrop.advisor.machine.rough_hardware", lambda _: FAST_SEEKS)
    with pytest.raises(BudgetError, match="the smallest budget that can is"):
        online(graph, mode=None, memory="16KiB")
    shutil.rmtree(graph.path.with_name(graph.path.name + ".run"), ignore_errors=True)
