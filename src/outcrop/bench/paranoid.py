"""Benchmark ``paranoid``: what it costs to compare every row of every mini-batch with its checksum.

The same training with and without ``paranoid``, in turn: in modes ``packed`` and ``memory`` from one prepared run, in
mode ``online`` with new batches. What is compared is processor time of all threads, as in benchmark ``checks``; the
clock is reported beside it. The checksums are made before; how long that takes is reported by itself.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from outcrop.api.prepare import PrepareOptions
from outcrop.api.prepare import prepare_with_report as prepare
from outcrop.api.train import train
from outcrop.bench.checks import compare, rows_of
from outcrop.bench.epoch import Log, Setting, ensure_graph, plain
from outcrop.config import Limits, ModelConfig, SampleConfig, TrainConfig, as_fanouts
from outcrop.loading.modes import Mode, mode_with
from outcrop.runtime.observer import Observer
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from outcrop.store.row_sums import open_row_sums, row_sums_folder

MODES = ("packed", "online", "memory")
_WITH, _WITHOUT = "paranoid", "plain"


def run(folder: Path, setting: Setting, log: Log, modes: Sequence[str] = MODES) -> dict[str, Any]:
    """Trains ``setting.rounds`` times in each mode, with and without."""
    graph = ensure_graph(folder, setting.shape, log)
    out = folder / "bench-paranoid.run"
    sampling = SampleConfig(as_fanouts(map(int, setting.fanouts.split(","))), setting.batch_size)
    shutil.rmtree(out, ignore_errors=True)
    prepare(PrepareOptions(graph, out, sampling, Limits(setting.memory), epochs=setting.epochs))

    def trains(mode: Mode) -> None:
        from_run = mode.needs_run or mode.takes_run_budget is False
        train(
            graph,
            loading=mode,
            model=ModelConfig(setting.model, setting.hidden),
            run=out if from_run else None,
            sampling=None if from_run else sampling,
            memory=setting.memory if mode.takes_run_budget else None,
            training=TrainConfig(epochs=setting.epochs, evaluate_every=setting.epochs, test=False),
            observer=Observer(progress=False),
        )

    made = _make_sums(graph)
    cases = {}
    for mode in modes:
        turns = {
            kind: partial(trains, mode_with(mode, {"paranoid": on}))
            for kind, on in ((_WITH, True), (_WITHOUT, False))
        }
        name = f"{setting.epochs} epochs, {mode}"
        cases[name] = compare(name, turns, setting.rounds, log)
    shutil.rmtree(out, ignore_errors=True)
    return {
        "experiment": "paranoid",
        "setting": plain(setting),
        "cases": cases,
        "checksums": made,
        "columns": [
            "work",
            "processor time",
            "without --paranoid",
            "cost",
            "clock",
            "clock without --paranoid",
            "cost by the clock",
        ],
        "rows": rows_of(cases, (_WITH, _WITHOUT)),
        "says": f"medians of {setting.rounds} rounds; cost is the median of the rounds' ratios; "
        f"making the checksums once took {made['seconds']:.2f} s and {made['bytes']} bytes",
    }


def _make_sums(path: Path) -> dict[str, Any]:
    """Makes the checksums of the rows anew; returns the seconds that it took, and their bytes."""
    graph = open_graph(path)
    shutil.rmtree(row_sums_folder(graph), ignore_errors=True)
    started = time.perf_counter()
    with Runtime() as runtime:
        sums = open_row_sums(graph, runtime)
    return {"seconds": time.perf_counter() - started, "bytes": sum(of.nbytes for of in sums)}
