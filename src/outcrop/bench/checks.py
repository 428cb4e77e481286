"""Benchmark ``checks``: what it costs to compare the checksums of the pages that are read.

Preparing, and training in mode ``online`` with new batches in every epoch, on a graph and on the same graph without
checksums of its pages, in turn. Both check every page they read. What is compared is processor time of all threads,
which other work on the machine and the disk's rate move less than the clock; the clock is reported beside it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from outcrop.api.prepare import PrepareOptions
from outcrop.api.prepare import prepare_with_report as prepare
from outcrop.api.train import train
from outcrop.bench.epoch import Log, Setting, ensure_graph, plain
from outcrop.config import Limits, ModelConfig, SampleConfig, TrainConfig, as_fanouts
from outcrop.runtime.observer import Observer
from outcrop.store import manifest as manifests

_CHECKED, _UNCHECKED = "checked", "unchecked"


def run(folder: Path, setting: Setting, log: Log) -> dict[str, Any]:
    """Prepares and trains ``setting.rounds`` times with and without checks, in the order A B, B A, A B ..."""
    graph = ensure_graph(folder, setting.shape, log)
    graphs = {_CHECKED: graph, _UNCHECKED: without_checks(graph, folder / f"{graph.stem}-unchecked.oc")}
    out = folder / "bench-checks.run"
    sampling = SampleConfig(as_fanouts(map(int, setting.fanouts.split(","))), setting.batch_size)

    def prepares(path: Path) -> None:
        shutil.rmtree(out, ignore_errors=True)
        prepare(PrepareOptions(path, out, sampling, Limits(setting.memory), epochs=1))

    def trains(path: Path) -> None:
        train(
            path,
            loading="online",
            model=ModelConfig(setting.model, setting.hidden),
            sampling=sampling,
            memory=setting.memory,
            training=TrainConfig(epochs=setting.epochs, evaluate_every=setting.epochs, test=False),
            observer=Observer(progress=False),
        )

    cases = {}
    for name, work in (("prepare", prepares), (f"{setting.epochs} epochs, online", trains)):
        turns = {kind: partial(work, path) for kind, path in graphs.items()}
        cases[name] = compare(name, turns, setting.rounds, log)
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(graphs[_UNCHECKED])
    return {
        "experiment": "checks",
        "setting": plain(setting),
        "cases": cases,
        "columns": [
            "work",
            "processor time",
            "without checks",
            "cost",
            "clock",
            "clock without checks",
            "cost by the clock",
        ],
        "rows": rows_of(cases, tuple(graphs)),
        "says": f"medians of {setting.rounds} rounds; cost is the median of the rounds' ratios",
    }


def rows_of(cases: Mapping[str, dict[str, Any]], kinds: Sequence[str]) -> list[list[str]]:
    """Returns a row of the table for each case of :func:`compare`, whose turns are called ``kinds``."""
    return [
        [
            name,
            *(f"{case[kind]['cpu_seconds']:.3f} s" for kind in kinds),
            f"{case['cost']:+.1%}",
            *(f"{case[kind]['seconds']:.2f} s" for kind in kinds),
            f"{case['clock_cost']:+.1%}",
        ]
        for name, case in cases.items()
    ]


def without_checks(graph: Path, out: Path) -> Path:
    """Makes ``out``, the same graph (hard links to its files) as one that was imported without checksums of pages."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    manifest = manifests.read_any(graph)
    arrays = {name: spec for name, spec in manifest.arrays.items() if not name.endswith(manifests.PAGE_SUMS)}
    for spec in arrays.values():
        os.link(graph / spec.file, out / spec.file)
    manifests.write(out, replace(manifest, arrays=arrays))
    return out


def compare(name: str, turns: Mapping[str, Callable[[], None]], rounds: int, log: Log) -> dict[str, Any]:
    """Times two ways of doing the same, in the order A B, B A, A B ...; a round before the first warms up and is not
    counted.

    Args:
        turns: What is done with checks, and without.

    Returns:
        ``{name of a turn: {"cpu_seconds", "seconds", "all_cpu_seconds", "all_seconds"}, "cost", "clock_cost"}``:
        medians, and the median of the rounds' ratios of processor times, and of times by the clock, less one.
    """
    measured: dict[str, list[tuple[float, float]]] = {kind: [] for kind in turns}
    for turn in range(rounds + 1):
        log(f"{name}: round {turn}/{rounds}")
        for kind in sorted(turns, reverse=turn % 2 == 1):
            clock, cpu = time.perf_counter(), time.process_time()
            turns[kind]()
            if turn:
                measured[kind].append((time.process_time() - cpu, time.perf_counter() - clock))
    checked, unchecked = measured.values()
    ratios = [(a[0] / b[0], a[1] / b[1]) for a, b in zip(checked, unchecked, strict=True)]
    return {
        **{
            kind: {
                "cpu_seconds": median(cpu for cpu, _ in times),
                "seconds": median(clock for _, clock in times),
                "all_cpu_seconds": [cpu for cpu, _ in times],
                "all_seconds": [clock for _, clock in times],
            }
            for kind, times in measured.items()
        },
        "cost": median(cpu for cpu, _ in ratios) - 1,
        "clock_cost": median(clock for _, clock in ratios) - 1,
    }
