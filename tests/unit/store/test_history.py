"""The history of a run: what is recorded is what happened, it is bounded, and losing it loses nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest

from artifact_support import child_environment
from outcrop.api.train import train
from outcrop.errors import FormatError, OutcropWarning
from outcrop.runtime import recorder as metrics
from outcrop.runtime.progress import SilentProgress
from outcrop.runtime.recorder import Recorder, thinned
from outcrop.runtime.trace import Trace
from outcrop.store import history
from prepare_support import prepare
from run_support import a_graph

OPTIONS = {"fanouts": (3, 3), "batch_size": 30, "memory": "4MiB"}
TRAINING = {"hidden": 8, "epochs": 3}


@pytest.fixture
def made(tmp_path, make_runtime):
    """A graph and its prepared run."""
    graph = a_graph(tmp_path / "g", make_runtime(threads=1))
    report = prepare(graph, tmp_path / "r", **OPTIONS)
    return graph, tmp_path / "r", report


def without(record):
    """A record as earlier versions wrote it, without a checksum."""
    return {name: value for name, value in record.items() if name != "sha256"}


def latest(folder):
    return history.read(history.trainings(folder)[-1])


def test_preparing_is_recorded_stage_by_stage(made):
    graph, folder, report = made
    first = history.read_preparing(folder)
    assert list(first["stages"]) == ["sample", "plan", "pack"]
    for name, stage in first["stages"].items():
        assert {k: stage[k] for k in report.stages[name]} == report.stages[name]
    assert sum(s["bytes_written"] for s in first["stages"].values()) == report.bytes_written > 0
    assert first["budget_bytes"] == 4 << 20
    assert first["graph"]["nodes"] == graph.num_nodes
    again = prepare(graph, folder, **OPTIONS)
    assert again.skipped == ["sample", "plan", "pack"]
    second = history.read_preparing(folder)
    assert second["stages"] == first["stages"]


def test_a_training_is_recorded_as_reported(made):
    graph, folder, _ = made
    report = train(graph, run=folder, **TRAINING)
    record = latest(folder)
    result = json.loads(json.dumps(report.as_dict()))
    del result["batch_losses"]
    epochs = result.pop("epochs")
    assert record["report"] == result
    assert [{k: v for k, v in e.items() if k != "stage_seconds"} for e in record["epochs"]] == epochs
    assert (record["mode"], record["number"], record["training"]["hidden"]) == ("packed", 1, 8)
    batches = 3  # 90 training nodes in batches of 30
    spans = record["spans"]
    computed = [
        (e, b) for n, e, b in zip(spans["name"], spans["epoch"], spans["batch"], strict=True)
        if spans["names"][n] == "compute"
    ]  # fmt: skip
    assert computed == [(e, b) for e in range(3) for b in range(batches)]
    for epoch, about in enumerate(record["epochs"]):
        stages = about["stage_seconds"]
        assert {"draw", "lease", "submit", "read", "assemble", "transfer", "compute"} <= stages.keys()
        assert 0 < stages["compute"] <= about["seconds"] - about["load_seconds"]
        inside = [
            (end - start) / 1e6
            for n, e, s, start, end in zip(
                spans["name"], spans["epoch"], spans["split"], spans["start_us"], spans["end_us"], strict=True
            )
            if (spans["names"][n], spans["splits"][s], e) == ("read", "train", epoch)
        ]
        assert sum(inside) == pytest.approx(stages["read"], abs=2e-6 * len(inside))


def test_memory_over_time_stays_below_its_peaks(made):
    graph, folder, _ = made
    report = train(graph, run=folder, **TRAINING)
    samples = latest(folder)["samples"]
    for tag, values in samples["bytes_by_tag"].items():
        assert max(values) <= report.peak_by_tag[tag]
    totals = [sum(column) for column in zip(*samples["bytes_by_tag"].values(), strict=True)]
    assert 0 < max(totals) <= report.peak_host_bytes <= 4 << 20
    assert samples["read_bytes"] == sorted(samples["read_bytes"])
    assert samples["read_bytes"][-1] >= sum(e["bytes_read"] for e in report.epochs)


def test_the_last_trainings_are_kept(made, monkeypatch):
    graph, folder, _ = made
    monkeypatch.setattr(history, "KEEP", 2)
    for mode in ("packed", "online", "packed"):
        train(graph, run=folder, mode=mode, hidden=4, epochs=1)
    kept = history.trainings(folder)
    assert [p.name for p in kept] == ["train-2.json", "train-3.json"]
    assert history.read(kept[0])["mode"] == "online"


def test_history_does_not_count_and_nothing_depends_on_it(made):
    graph, folder, report = made
    without = report.disk_bytes
    train(graph, run=folder, **TRAINING)
    assert history.disk_bytes(folder) == without
    assert prepare(graph, folder, **OPTIONS).disk_bytes == without


def test_a_history_that_cannot_be_written_is_a_warning(made):
    graph, folder, _ = made
    wanted = train(graph, run=folder, trace_losses=True, **TRAINING)
    for file in (folder / "history").iterdir():
        file.unlink()
    (folder / "history").rmdir()
    (folder / "history").write_text("in the way")
    with pytest.warns(OutcropWarning, match="history was not kept"):
        report = train(graph, run=folder, trace_losses=True, **TRAINING)
    assert report.batch_losses == wanted.batch_losses
    with pytest.warns(OutcropWarning, match="history"):
        prepare(graph, folder, **OPTIONS)


@pytest.mark.parametrize("stages", [5, None, ["sample"], {"plan": 3}])
def test_a_record_that_says_something_else_is_replaced(made, stages):
    graph, folder, _ = made
    path = folder / "history" / "prepare.json"
    changed = json.loads(path.read_text()) | {"stages": stages}
    for record, said in ((changed, "says other than was written"), (without(changed), "does not say")):
        path.write_text(json.dumps(record))
        with pytest.warns(OutcropWarning, match=rf"history was not kept: .*prepare.json {said}"):
            prepare(graph, folder, **OPTIONS)
        assert history.read(path)["stages"] == {}  # all were there
        prepare(graph, folder, **OPTIONS)


def test_records_of_earlier_versions_are_read(made):
    path = made[1] / "history" / "prepare.json"
    wanted = history.read(path)
    path.write_text(json.dumps(without(json.loads(path.read_text()))))
    assert history.read(path) == wanted


def test_a_training_that_fails_leaves_its_epochs(made, monkeypatch):
    graph, folder, _ = made
    from outcrop.training import evaluate

    calls = []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise RuntimeError("on purpose")
        return evaluate_once(*arguments)

    evaluate_once = evaluate.evaluate
    monkeypatch.setattr(evaluate, "evaluate", failing)
    with pytest.raises(RuntimeError, match="on purpose"):
        train(graph, run=folder, **TRAINING)
    record = latest(folder)
    assert [e["epoch"] for e in record["epochs"]] == [0, 1]
    assert record["ended"] == "RuntimeError: on purpose"


def test_without_a_run_nothing_is_written(made, tmp_path):
    graph, *_ = made
    before = sorted(p.name for p in tmp_path.rglob("*"))
    train(graph, mode="online", fanouts=(2, 2), batch_size=30, hidden=4, epochs=1)
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_foreign_records_are_refused(tmp_path):
    path = tmp_path / "train-1.json"
    path.write_text('{"format": "outcrop.history", "version": 99}')
    with pytest.raises(FormatError, match="version 99"):
        history.read(path)
    path.write_text("[]")
    with pytest.raises(FormatError, match="delete it"):
        history.read(path)


class Clock:
    """Nanoseconds that the test sets."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def watched(monkeypatch):
    """A recorder over a runtime without the core, and its clock."""
    clock = Clock()
    monkeypatch.setattr(metrics.time, "monotonic_ns", clock)
    usage = SimpleNamespace(now_bytes=5)
    runtime = SimpleNamespace(
        trace=Trace(),
        progress=SilentProgress(),
        budget=SimpleNamespace(by_tag={"rows": usage}),
        io=SimpleNamespace(counters=SimpleNamespace(read_bytes=0, write_bytes=0)),
    )
    return Recorder(runtime), runtime, clock


def test_spans_are_bounded_and_the_ends_are_kept(watched, monkeypatch):
    monkeypatch.setattr(metrics, "FIRST_SPANS", 10)
    recorder, runtime, _ = watched
    recorder._last = type(recorder._last)(maxlen=20)
    with recorder.watching():
        for i in range(100):
            runtime.trace.event("read", start_ns=1000 * i, end_ns=1000 * i + 500, batch=i)
    spans = recorder.as_dict()["spans"]
    assert spans["batch"] == [*range(10), *range(80, 100)]
    assert spans["seen"] == 100
    assert spans["start_us"] == spans["batch"]
    runtime.trace.event("read", start_ns=0, end_ns=1, batch=7)  # nobody listens any more
    assert recorder.as_dict()["spans"]["seen"] == 100


def test_stage_times_are_exact_per_epoch_and_leave_validation_out(watched):
    recorder, runtime, _ = watched
    event = runtime.trace.event
    with recorder.watching():
        for epoch in range(2):
            for batch in range(3):
                event("read", start_ns=0, end_ns=1_000_000 * (epoch + 1), batch=batch)
            event("train.epoch", start_ns=0, end_ns=9, epoch=epoch)
            event("read", start_ns=0, end_ns=77_000_000)
            event("train.validate", start_ns=0, end_ns=9, epoch=epoch)
            event("train.record", epoch=epoch, seconds=1.0)
    assert [e["stage_seconds"] for e in recorder.epochs] == [{"read": 0.003}, {"read": 0.006}]


def test_samples_are_bounded_and_keep_first_and_last(watched):
    recorder, runtime, clock = watched
    with recorder.watching():
        for i in range(5000):
            clock.now = i * 100_000_000
            runtime.progress.advance("x", 1)
    times = recorder.as_dict()["samples"]["t_ms"]
    assert len(times) <= metrics.MAX_SAMPLES + 1
    assert (times[0], times[-1]) == (0, 499_900)
    gaps = [b - a for a, b in pairwise(times)]
    assert max(gaps) < 10_000
    assert isinstance(runtime.progress, SilentProgress)


def test_thinned_keeps_both_ends():
    assert thinned([1, 2, 3], 5) == [1, 2, 3]
    kept = thinned(list(range(1001)), 100)
    assert (len(kept), kept[0], kept[-1]) == (100, 0, 1000)
    assert kept == sorted(set(kept))


def test_recording_a_span_looks_at_the_budget_now_and_then_only(watched):
    recorder, runtime, _ = watched
    looked = []
    runtime.budget = type("B", (), {"by_tag": property(lambda self: looked.append(1) or {})})()
    with recorder.watching():
        for i in range(10_000):
            runtime.trace.event("read", start_ns=i, end_ns=i + 1)
    assert len(looked) <= 3  # the clock stands still: first and last look only


ADDING = """
import sys
from pathlib import Path
from outcrop.store import history
print("ready", flush=True)
sys.stdin.readline()
for step in range(int(sys.argv[3])):
    history.write_training(Path(sys.argv[1]), {"by": sys.argv[2], "step": step})
"""


def test_trainings_that_end_together_are_all_recorded(tmp_path):
    """Two processes add at the same time: each record has a number of its own, and none is replaced."""
    count = 40
    command = [sys.executable, "-c", ADDING, str(tmp_path)]
    adding = [
        subprocess.Popen(
            [*command, name, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        for name in ("first", "second")
    ]
    assert [process.stdout.readline() for process in adding] == ["ready\n", "ready\n"]
    for process in adding:
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate() and process.returncode for process in adding] == [0, 0]
    kept = [history.read(path) for path in history.trainings(tmp_path)]
    assert [record["number"] for record in kept] == list(range(2 * count - history.KEEP + 1, 2 * count + 1))
    for name in ("first", "second"):
        steps = [record["step"] for record in kept if record["by"] == name]
        assert steps == list(range(count - len(steps), count))
