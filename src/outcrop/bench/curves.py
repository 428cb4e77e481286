"""Benchmarks ``memory-curve`` and ``scale``: what changes along the memory budget, and along the size of the graph.

``memory-curve`` (DiskGNN Figures 10 to 14): each mode at budgets of 1 to 50 % of the features. ``scale``: preparing and
an epoch on graphs of growing size with a budget that stays the same; time against bytes is fitted by a line.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from outcrop.bench.epoch import (
    MEMORY_FRESH,
    NEW_BATCHES,
    WITHOUT_RUN,
    Log,
    Setting,
    ensure_graph,
    middle,
    plain,
    prepared_run,
    train_once,
)
from outcrop.bench.graphs import GraphShape
from outcrop.config import format_bytes
from outcrop.errors import OutcropError


def memory_curve(
    folder: Path, setting: Setting, modes: Sequence[str], caps: Sequence[float], log: Log
) -> dict[str, Any]:
    """Measures epoch time, bytes and disk space of each mode at each cap; nothing where two mini-batches do not fit.

    Times at a cap are compared with training in memory right before: on replayed batches, or on new ones.
    """
    graph = ensure_graph(folder, setting.shape, log)
    bases: dict[float, float] = {}
    points: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    for cap in caps:
        capped = replace(setting, cap=cap)
        run = folder / "bench-curve.run"
        shutil.rmtree(run, ignore_errors=True)
        try:
            prepared = prepared_run(graph, run, capped)
        except OutcropError as error:
            log(f"cap {cap:.0%}: {error}")
            continue
        base = bases[cap] = _seconds_in_memory(graph, setting, "memory")
        new_base = (
            _seconds_in_memory(graph, setting, MEMORY_FRESH) if {*NEW_BATCHES} & {*modes} else float("nan")
        )
        for mode in modes:
            log(f"cap {cap:.0%}: {mode}")
            try:
                done = train_once(
                    graph, run, capped, mode, setting.epochs if mode in ("packed", *WITHOUT_RUN) else 2
                )
            except OutcropError as error:
                log(str(error))
                continue
            epochs = done["epochs"][1:] or done["epochs"]
            seconds = middle(mode, (e["seconds"] for e in epochs))
            points[mode].append(
                {
                    "cap": cap,
                    "seconds": seconds,
                    "against_memory": seconds / (new_base if mode in NEW_BATCHES else base),
                    "bytes_read": epochs[-1]["bytes_read"],
                    "disk_bytes": prepared["disk_bytes"] if mode in ("packed", "belady") else 0,
                    "peak_host_bytes": done["peak_host_bytes"],
                }
            )
    shutil.rmtree(folder / "bench-curve.run", ignore_errors=True)
    return {
        "experiment": "memory-curve",
        "setting": plain(setting),
        "memory_seconds": {f"{cap:g}": seconds for cap, seconds in bases.items()},
        "modes": points,
        "columns": ["mode", *(f"{cap:.0%}" for cap in caps)],
        "rows": [[mode, *(_at(points[mode], cap) for cap in caps)] for mode in modes],
        "says": "epoch time, and against everything in memory measured beside it: "
        + ", ".join(f"{seconds:.2f} s at {cap:.0%}" for cap, seconds in bases.items()),
    }


def _seconds_in_memory(graph: Path, setting: Setting, mode: str) -> float:
    epochs = train_once(graph, None, setting, mode, setting.epochs)["epochs"]
    return median(e["seconds"] for e in epochs[1:] or epochs)


def _at(points: list[dict[str, Any]], cap: float) -> str:
    found = [p for p in points if p["cap"] == cap]
    return f"{found[0]['seconds']:.2f} s ({found[0]['against_memory']:.1f}x)" if found else "-"


def scale(folder: Path, setting: Setting, sizes: Sequence[int], log: Log) -> dict[str, Any]:
    """Measures graphs of growing size, the same budget, the same share of training nodes."""
    points = []
    budget = int(min(sizes) * setting.shape.features * 4 * setting.cap)
    for nodes in sizes:
        shape = GraphShape(name=f"sbm-{nodes}", nodes=nodes, edges=15 * nodes)
        at = replace(setting, shape=shape, cap=budget / shape.feature_bytes)
        graph, run = ensure_graph(folder, shape, log), folder / "bench-scale.run"
        shutil.rmtree(run, ignore_errors=True)
        log(f"{nodes:,} nodes")
        prepared = prepared_run(graph, run, at)
        done = train_once(graph, run, at, "packed", setting.epochs)
        epochs = done["epochs"][1:] or done["epochs"]
        points.append(
            {
                "nodes": nodes,
                "prepare_seconds": prepared["seconds"],
                "epoch_seconds": median(e["seconds"] for e in epochs),
                "prepare_bytes": prepared["bytes_read"] + prepared["bytes_written"],
                "bytes_read": epochs[-1]["bytes_read"],
                "peak_host_bytes": max(done["peak_host_bytes"], 0),
            }
        )
    shutil.rmtree(folder / "bench-scale.run", ignore_errors=True)
    fits = {
        name: _r_squared([p[x] for p in points], [p[name] for p in points])
        for name, x in (("prepare_seconds", "prepare_bytes"), ("epoch_seconds", "bytes_read"))
    }
    return {
        "experiment": "scale",
        "setting": plain(setting),
        "memory": budget,
        "points": points,
        "r_squared": fits,
        "columns": ["nodes", "prepare", "epoch", "moved by preparing", "read by an epoch", "held"],
        "rows": [
            [
                f"{p['nodes']:,}",
                f"{p['prepare_seconds']:.2f} s",
                f"{p['epoch_seconds']:.2f} s",
                format_bytes(p["prepare_bytes"]),
                format_bytes(p["bytes_read"]),
                format_bytes(p["peak_host_bytes"]),
            ]
            for p in points
        ],
        "says": "R2 of time against bytes: "
        + ", ".join(f"{name.removesuffix('_seconds')} {value:.4f}" for name, value in fits.items()),
    }


def _r_squared(x: list[float], y: list[float]) -> float:
    """Returns the coefficient of determination of the least-squares line."""
    if len(x) < 3:
        return float("nan")
    residual = np.array(y) - np.polyval(np.polyfit(x, y, 1), x)
    return float(1 - (residual**2).sum() / ((np.array(y) - np.mean(y)) ** 2).sum())
