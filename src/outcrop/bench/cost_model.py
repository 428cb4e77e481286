"""Benchmark ``cost-model``: what the advisor predicts against what is measured, over settings with different bounds.

Memory caps, models, fanouts and modes, with the disk at its own rate and slowed down to rates at which reading takes a
half to four times as long as computing. Predictions take what advise takes: counts of sampled batches, the profile, and
computing timed on a few batches. Machines change from minute to minute, so in every round the rates of the disk and of
computing are taken right before and right after the epochs that they predict; what is reported is the median over the
rounds.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from outcrop.advisor import cost, machine
from outcrop.advisor.counting import EpochCount, Task, compute_seconds, count
from outcrop.api.prepare import PrepareOptions
from outcrop.api.prepare import prepare_with_report as prepare
from outcrop.bench.epoch import Log, Setting, ensure_graph, plain
from outcrop.config import IoConfig, Limits, ModelConfig, PlanConfig, SampleConfig, TrainConfig, format_bytes
from outcrop.config.models import wants_degrees
from outcrop.loading.modes import mode_named, mode_with
from outcrop.loading.open import open_session
from outcrop.runtime.hardware import Hardware
from outcrop.runtime.machine import read_rates
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from outcrop.store.profile import Profile
from outcrop.store.samples import open_samples
from outcrop.training import loop as training
from outcrop.training.evaluate import evaluate
from outcrop.training.learning import LearningTask

_TOPOLOGY = "map"  # of mode online: pages of the topology would be read besides, and depend on a cache
_EPOCHS = {"packed": 5, "online": 3}  # the first warms up
_REFRESH_S = 0.4
BAR = 0.1


@dataclass(frozen=True)
class Case:
    """Describes a case. ``balance``: of the disk's slowed-down rate, reading to computing; 0: its own rate."""

    mode: str = "packed"
    model: str = "sage"
    fanouts: str = "10,10"
    cap: float = 0.1
    balance: float = 0.0

    @property
    def name(self) -> str:
        rate = f", reading {self.balance:g}x of computing" if self.balance else ""
        return f"{self.mode} {self.model} {self.fanouts} at {self.cap:.0%}{rate}"


CASES = (
    Case(),
    Case(model="gcn"),
    Case(model="gat"),
    Case(cap=0.2),
    Case(cap=0.5),
    Case(fanouts="5,5"),
    Case(fanouts="15,10"),
    Case(balance=0.5),
    Case(balance=1.0),
    Case(balance=2.0),
    Case(balance=4.0),
    Case(model="gat", balance=2.0),
    Case(fanouts="5,5", balance=4.0),
    Case(mode="online"),
    Case(mode="online", cap=0.3),
    Case(mode="online", fanouts="5,5", model="gcn"),
)


def run(folder: Path, setting: Setting, log: Log, cases: tuple[Case, ...] = CASES) -> dict[str, Any]:
    """Predicts and measures every case ``setting.rounds`` times."""
    path = ensure_graph(folder, setting.shape, log)
    graph = open_graph(path)
    log("measuring the machine")
    profile = machine.measure_profile(folder)
    counted: dict[Case, tuple[Task, EpochCount]] = {}
    rounds: dict[Case, list[dict[str, Any]]] = {case: [] for case in cases}
    for turn in range(setting.rounds):
        for case in cases:
            log(f"round {turn + 1}/{setting.rounds}: {case.name}")
            if case not in counted:
                task = _task(graph, folder, setting, case)
                counted[case] = task, count(task, profile)
            rounds[case].append(_round(*counted[case], case, setting, profile))
    rows = {case.name: {**asdict(case), **_summary(found)} for case, found in rounds.items()}
    worst = max(rows.values(), key=lambda row: abs(row["error"]))
    return {
        "experiment": "cost-model",
        "setting": plain(setting),
        "profile": profile.to_json(),
        "cases": rows,
        "bytes_exact": all(row["bytes_exact"] for row in rows.values()),
        "worst_error": worst["error"],
        "within_bar": sum(abs(row["error"]) <= BAR for row in rows.values()),
        "columns": ["setting", "predicted", "measured", "error", "bound", "read", "bytes"],
        "rows": [
            [
                name,
                f"{row['predicted_seconds']:.3f} s",
                f"{row['seconds']:.3f} s",
                f"{row['error']:+.1%}",
                row["bound"],
                format_bytes(row["bytes_read"]),
                "exact" if row["bytes_exact"] else f"{row['predicted_bytes']} predicted",
            ]
            for name, row in rows.items()
        ],
        "says": f"{sum(abs(r['error']) <= BAR for r in rows.values())} of {len(rows)} within {BAR:.0%}, the worst "
        f"{worst['error']:+.1%}; bytes {'all exact' if all(r['bytes_exact'] for r in rows.values()) else 'DIFFER'}",
    }


def _task(graph: Graph, folder: Path, setting: Setting, case: Case) -> Task:
    """Returns the prepared run of a case, shared by cases that want the same batches and the same cap."""
    memory = int(graph.feature_bytes * case.cap)
    degrees = wants_degrees(case.model)
    name = f"{graph.path.stem}-cost-{case.fanouts.replace(',', '-')}-{case.cap:g}{'-degrees' if degrees else ''}.run"
    sampling = SampleConfig(tuple(map(int, case.fanouts.split(","))), setting.batch_size, degrees=degrees)
    prepare(PrepareOptions(graph, folder / name, sampling, Limits(memory), epochs=1, overwrite=True))
    model = ModelConfig(case.model, None if case.model == "gat" else setting.hidden)
    return Task(graph, model, sampling, PlanConfig(memory), run=folder / name, topology=_TOPOLOGY)


def _refreshed(profile: Profile, task: Task, case: Case) -> Hardware:
    """Returns the machine with the rates that the disk has now, measured on the file that the epochs read."""
    assert task.run is not None
    hardware = profile.hardware()
    path = task.run / "pack" / "records.bin"
    if not mode_named(case.mode).needs_run:
        path = task.graph.path / task.graph.row_file.spec.file
    rates = read_rates(path, seconds=_REFRESH_S)
    if rates is None:
        return hardware
    # Between the smallest and the largest request the shape of the curve stays, its ends move.
    small, large = hardware.disk.reads[0], hardware.disk.reads[-1]
    now = {small[0]: rates["random_ops_per_s"], large[0]: rates["sequential_bytes_per_s"] / large[0]}
    low, high = now[small[0]] / small[1], now[large[0]] / large[1]
    steps = max(len(hardware.disk.reads) - 1, 1)
    reads = tuple(
        (size, rate * low ** (1 - i / steps) * high ** (i / steps))
        for i, (size, rate) in enumerate(hardware.disk.reads)
    )
    return replace(hardware, disk=replace(hardware.disk, reads=reads))


def _round(task: Task, counted: EpochCount, case: Case, setting: Setting, profile: Profile) -> dict[str, Any]:
    before, compute = _refreshed(profile, task, case), _compute(task)
    work = counted.works[case.mode]
    rate = int(work.disk_bytes / (compute * case.balance)) if case.balance else 0
    seconds, read = _measure(task, case, setting, rate)
    after, compute_after = _refreshed(profile, task, case), _compute(task)
    limit = rate or math.inf
    predictions = [
        cost.predict(replace(hardware, disk_limit_bytes_per_s=limit), replace(work, compute_s=computing))
        for hardware, computing in ((before, compute), (after, compute_after))
    ]
    return {
        "predicted_seconds": (predictions[0].epoch_s + predictions[1].epoch_s) / 2,
        "predicted_bytes": int(predictions[0].bytes_read),
        "bound": predictions[0].bound,
        "parts": [
            {
                "disk_seconds": one.disk_s * one.batches,
                "host_seconds": one.host_s * one.batches,
                "compute_seconds": one.compute_s * one.batches,
                "epoch_seconds": one.epoch_s,
            }
            for one in predictions
        ],
        "rate_bytes_per_s": rate or None,
        "seconds": seconds,
        "bytes_read": read,
    }


def _compute(task: Task) -> float:
    """Returns the seconds of computing an epoch now, with nothing beside it."""
    assert task.run is not None
    with Runtime() as runtime:
        return compute_seconds(task, open_samples(runtime, task.run / "sample"), runtime)


def _measure(task: Task, case: Case, setting: Setting, rate: int) -> tuple[float, int]:
    """Returns the median seconds of an epoch after the first, and what the last one read."""
    epochs = min(_EPOCHS[case.mode], max(setting.epochs, 2))
    model = replace(task.model, layers=len(task.sampling.fanouts))
    mode = mode_with(case.mode, {"topology": _TOPOLOGY})
    learning = LearningTask(model, TrainConfig(epochs=epochs), task.graph.feature_dim, task.graph.num_classes)
    with (
        Runtime(task.limits.memory, io=IoConfig(rate_bytes_per_second=rate)) as runtime,
        open_session(task.graph, runtime, mode, run_folder=task.run) as session,
    ):
        before = runtime.io.counters.read_bytes

        def counters() -> dict[str, int]:
            nonlocal before
            start, before = before, runtime.io.counters.read_bytes
            return {"bytes_read": before - start}

        result = training.train(
            lambda epoch: session.batches("train", epoch),
            None,
            learning,
            runtime,
            evaluate=evaluate,
            counters=counters,
        )
    warm = result.epochs[1:]
    return median(record.seconds for record in warm), warm[-1].counters["bytes_read"]


def _summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the medians over the rounds; the error is that of a round, so that slow minutes count on both sides."""
    middle = {key: median(one[key] for one in rounds) for key in ("predicted_seconds", "seconds")}
    return {
        **middle,
        "error": median(one["predicted_seconds"] / one["seconds"] - 1 for one in rounds),
        "errors": [one["predicted_seconds"] / one["seconds"] - 1 for one in rounds],
        "bound": rounds[-1]["bound"],
        "bytes_read": rounds[-1]["bytes_read"],
        "predicted_bytes": rounds[-1]["predicted_bytes"],
        "bytes_exact": all(one["bytes_read"] == one["predicted_bytes"] for one in rounds),
        "rounds": rounds,
    }
