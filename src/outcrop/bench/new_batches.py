"""Benchmark ``new-batches``: training with new batches in every epoch, as ``outcrop train`` chooses, all counted.

It is compared with what cannot be undercut: training in memory that draws new batches too, and the disk's time, at the
rates measured in the same round, for the least bytes: the rows that no cache holds written once and read once, and all
features read once. Beside it, what preparing takes with each sampler, and the time from the command to the first batch.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.bench.epoch import (
    ALLOWANCE_BYTES,
    MEMORY_FRESH,
    Log,
    Setting,
    count_spooling,
    ensure_graph,
    plain,
    train_once,
)
from outcrop.bench.process import outcrop
from outcrop.runtime.machine import sequential_rate
from outcrop.runtime.runtime import Runtime

CAPS = (0.1, 0.25)
SAMPLERS: dict[str, list[str]] = {
    "neighbor": [],
    "labor": ["--sampler", "labor"],
    "labor, batches depend": ["--sampler", "labor", "--batch-dependency", "16"],
}
BAR, FIRST_EPOCH_BAR, SAMPLER_BAR, FIRST_BATCH_S = 1.3, 1.2, 1.2, 2.0
_WRITTEN_BYTES, _BLOCK_BYTES = 1 << 30, 8 << 20


def run(folder: Path, setting: Setting, caps: Sequence[float], log: Log) -> dict[str, Any]:
    """Measures each cap and each sampler ``setting.rounds`` times, in turn."""
    graph = ensure_graph(folder, setting.shape, log)
    measured: dict[str, list[dict[str, Any]]] = {f"{cap:.0%}": [] for cap in caps}
    prepared: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    first: list[float] = []
    for turn in range(setting.rounds):
        for cap in caps:
            log(f"round {turn + 1}/{setting.rounds}: {cap:.0%} of the features")
            measured[f"{cap:.0%}"].append(_compared(folder, graph, replace(setting, cap=cap)))
        for name, options in SAMPLERS.items():
            log(f"round {turn + 1}/{setting.rounds}: preparing with {name}")
            prepared[name].append(_preparing(graph, setting, options))
        first.append(_first_batch(graph, setting))
    cases = {name: _middle(found) for name, found in measured.items()}
    samplers = {name: median(found) for name, found in prepared.items()}
    base = samplers["neighbor"]
    return {
        "experiment": "new-batches",
        "setting": plain(setting),
        "cases": cases,
        "prepare_seconds": samplers,
        "first_batch_seconds": median(first),
        "holds": {
            "epoch": all(case["against_floor"] <= BAR for case in cases.values()),
            "first epoch": all(case["first_epoch"] <= FIRST_EPOCH_BAR for case in cases.values()),
            "samplers": all(seconds <= SAMPLER_BAR * base for seconds in samplers.values()),
            "first batch": median(first) <= FIRST_BATCH_S,
        },
        "columns": [
            "memory",
            "an epoch, all counted",
            "in memory",
            "disk's least",
            "to the larger",
            "first epoch",
        ],
        "rows": [
            [
                name,
                f"{case['seconds']:.2f} s",
                f"{case['memory_seconds']:.2f} s",
                f"{case['disk_seconds']:.2f} s",
                f"{case['against_floor']:.2f}x",
                f"{case['first_epoch']:.2f}x",
            ]
            for name, case in cases.items()
        ],
        "says": "preparing: "
        + ", ".join(f"{name} {seconds / base:.2f}x" for name, seconds in samplers.items())
        + f"; {median(first):.1f} s from the command to the first batch; "
        + "; ".join(dict.fromkeys(str(case["chosen"]) for case in cases.values())),
    }


def _compared(folder: Path, graph: Path, setting: Setting) -> dict[str, Any]:
    """Trains in memory, then as ``outcrop train`` does; with the disk's rates of the same minute."""
    epochs = train_once(graph, None, setting, MEMORY_FRESH, setting.epochs)["epochs"]
    memory_seconds = median(epoch["seconds"] for epoch in epochs[1:] or epochs)
    read_rate, write_rate = sequential_rate(graph / "features.bin", seconds=0.5), _write_rate(folder)
    result = _trained(graph, setting)
    of_training = [epoch["seconds"] for epoch in result["epochs"]]
    first = of_training[0] / median(of_training[1:] or of_training)
    needed = median(epoch["bytes_needed_from_disk"] for epoch in result["epochs"])
    count_spooling(result)
    seconds = median(epoch["seconds"] for epoch in result["epochs"])
    features = setting.shape.feature_bytes / setting.epochs
    disk_seconds = (needed + features) / read_rate + needed / write_rate
    return {
        "seconds": seconds,
        "memory_seconds": memory_seconds,
        "disk_seconds": disk_seconds,
        "against_floor": seconds / max(memory_seconds, disk_seconds),
        "first_epoch": first,
        "needed_bytes": needed,
        "read_bytes_per_s": read_rate,
        "write_bytes_per_s": write_rate,
        "chosen": f"{result['mode']}: {result['chosen']}",
        "limit_bytes": result["limit_bytes"],
        "peak_group_bytes": result["peak_group_bytes"],
    }


def _command(setting: Setting) -> list[str]:
    command = ["--fanouts", setting.fanouts, "--batch-size", str(setting.batch_size)]
    return [*command, "--memory", str(setting.memory)]


def _trained(graph: Path, setting: Setting, *more: str | Path, epochs: int | None = None) -> dict[str, Any]:
    """Trains as users do who name no mode, from nothing."""
    made = graph.with_name(graph.name + ".run")
    shutil.rmtree(made, ignore_errors=True)
    count = str(epochs or setting.epochs)
    command: list[str | Path] = ["train", graph, "--model", setting.model, "--hidden", str(setting.hidden)]
    command += [*_command(setting), "--epochs", count, "--evaluate-every", count, *more]
    try:
        done = outcrop(command, limit_bytes=setting.memory + ALLOWANCE_BYTES)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return {**done.result, "limit_bytes": done.limit_bytes, "peak_group_bytes": done.peak_group_bytes}


def _preparing(graph: Path, setting: Setting, options: list[str]) -> float:
    out = graph.with_name("bench-new-batches.run")
    shutil.rmtree(out, ignore_errors=True)
    command: list[str | Path] = ["prepare", graph, out, *_command(setting), *options]
    command += ["--epochs", str(setting.epochs)]
    try:
        return float(outcrop(command, limit_bytes=setting.memory + ALLOWANCE_BYTES).result["seconds"])
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _first_batch(graph: Path, setting: Setting) -> float:
    """Measures seconds from the command to the first batch that trains, one epoch being prepared before."""
    trace = graph.with_name("bench-new-batches.jsonl")
    trace.unlink(missing_ok=True)
    started = time.monotonic_ns()
    try:
        _trained(graph, setting, "--trace", trace, epochs=1)
        events = [json.loads(line) for line in trace.read_text().splitlines()]
    finally:
        trace.unlink(missing_ok=True)
    return float(min(e["start_ns"] for e in events if e["name"] == "compute") - started) / 1e9


def _write_rate(folder: Path) -> float:
    """Measures the bytes per second at which a file is written past the page cache, its flush included."""
    path = folder / "bench-new-batches.bin"
    block = np.random.default_rng(0).integers(0, 256, _BLOCK_BYTES, np.uint8)
    try:
        with Runtime() as runtime:
            file = runtime.io.open(str(path), _core.OpenMode.create)
            try:
                started = time.perf_counter()
                runtime.io.resize(file, _WRITTEN_BYTES)
                for offset in range(0, _WRITTEN_BYTES, _BLOCK_BYTES):
                    runtime.io.write(file, offset, block)
                runtime.io.sync(file)
                return _WRITTEN_BYTES / (time.perf_counter() - started)
            finally:
                runtime.io.close(file)
    finally:
        path.unlink(missing_ok=True)


def _middle(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the round with the median ratio, and the ratios of all."""
    ratios = [one["against_floor"] for one in found]
    typical = sorted(found, key=lambda one: one["against_floor"])[len(found) // 2]
    return {**typical, "all_against_floor": ratios}
