"""Benchmark ``small-batches``: what a row costs where batches are small, against batches of 1024, in turn.

Preparing runs in a process under the cap, loading in this one, without a model. Smaller batches of the same seeds want
a few more rows, because fewer are shared; times are per row that batches want.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from outcrop.bench.epoch import ALLOWANCE_BYTES, Log, Setting, ensure_graph, plain
from outcrop.bench.process import outcrop
from outcrop.loading.modes import Packed
from outcrop.loading.open import open_session
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from outcrop.store.samples import open_samples

SIZES = (1024, 256, 64)  # the first is what the others are compared with


def run(folder: Path, setting: Setting, log: Log) -> dict[str, Any]:
    """Prepares ``setting.epochs`` epochs and loads them, for each size of batches."""
    path = ensure_graph(folder, setting.shape, log)
    rounds: dict[int, list[dict[str, Any]]] = {size: [] for size in SIZES}
    for turn in range(setting.rounds):
        for size in SIZES:
            log(f"round {turn + 1}/{setting.rounds}: batches of {size}")
            rounds[size].append(_measured(open_graph(path), folder / "bench-small.run", setting, size))
    cases = {size: _middle(found) for size, found in rounds.items()}
    base = cases[SIZES[0]]
    for case in cases.values():
        for name in ("prepare", "load"):
            case[f"{name}_against_{SIZES[0]}"] = case[f"{name}_ns_per_row"] / base[f"{name}_ns_per_row"]
    return {
        "experiment": "small-batches",
        "setting": plain(replace(setting, batch_size=0)),
        "cases": {str(size): case for size, case in cases.items()},
        "columns": ["batch size", "batches", "rows", "prepare, a row", "to 1024", "load, a row", "to 1024"],
        "rows": [
            [
                str(size),
                f"{case['batches']:,}",
                f"{case['rows']:,}",
                f"{case['prepare_ns_per_row']:.0f} ns",
                f"{case['prepare_against_1024']:.2f}x",
                f"{case['load_ns_per_row']:.0f} ns",
                f"{case['load_against_1024']:.2f}x",
            ]
            for size, case in cases.items()
        ],
    }


def _measured(graph: Graph, out: Path, setting: Setting, size: int) -> dict[str, Any]:
    shutil.rmtree(out, ignore_errors=True)
    command = ["prepare", graph.path, out, "--fanouts", setting.fanouts, "--batch-size", str(size)]
    command += ["--memory", str(setting.memory), "--epochs", str(setting.epochs)]
    done = outcrop(command, limit_bytes=setting.memory + ALLOWANCE_BYTES)
    with Runtime(setting.memory) as runtime:
        samples = open_samples(runtime, out / "sample", graph)
        every = samples.group("train").all_batches()
        rows, batches = int(samples.num_nodes.sum()), samples.num_batches
        loaded = int(samples.num_nodes[every.start : every.stop].sum())
    with (
        Runtime(setting.memory) as runtime,
        open_session(graph, runtime, Packed(), run_folder=out) as session,
    ):
        started = time.perf_counter()
        for epoch in range(setting.epochs):
            for batch in session.batches("train", epoch):
                del batch
        seconds = time.perf_counter() - started
    shutil.rmtree(out)
    return {
        "batches": batches,
        "rows": rows,
        "prepare_seconds": done.result["seconds"],
        "stage_seconds": done.result["stage_seconds"],
        "bytes_written": done.result["bytes_written"],
        "prepare_ns_per_row": done.result["seconds"] / rows * 1e9,
        "load_ns_per_row": seconds / loaded * 1e9,
        "limit_bytes": done.limit_bytes,
    }


def _middle(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the median round, by what preparing took, with the median of loading."""
    typical = sorted(found, key=lambda one: one["prepare_seconds"])[len(found) // 2]
    return {
        **typical,
        "load_ns_per_row": median(one["load_ns_per_row"] for one in found),
        "all_prepare_seconds": [one["prepare_seconds"] for one in found],
    }
