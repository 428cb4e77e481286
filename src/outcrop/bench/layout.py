"""Benchmark ``layout``: the segmented disk cache under bounds on disk space (DiskGNN Figures 5 and 16, Tables 3 and 7).

Everything is counted exactly on the ids of one sampled pool; nothing is packed but what is timed: the layouts that the
cost model weighed, each packed and loaded.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from outcrop.api.prepare import PrepareOptions
from outcrop.api.prepare import prepare_with_report as prepare
from outcrop.bench.epoch import Log, Setting, ensure_graph
from outcrop.config import Limits, PackConfig, SampleConfig
from outcrop.errors import BudgetError
from outcrop.loading.open import open_session
from outcrop.preparation import segments as layouts
from outcrop.preparation.segments import (
    BatchIds,
    LayoutSearch,
    LayoutSizes,
    SegmentArranger,
    SegmentLayout,
    SharedCounts,
    WantSketch,
)
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from outcrop.store.placement import open_placement
from outcrop.store.samples import open_samples

_EPOCHS = 10  # of the pool, so that copies of the rows take several times the features
_SEGMENTS = (50, 100, 150)  # as in Figure 16
_BRUTE_STEP = 10  # of segment sizes in the brute-force search
_THRESHOLDS = (1, 2, 4, 8)
_TIMED = (3, 1.5)  # bounds whose layouts are packed and loaded
_TABLE_BYTES = 256 << 20


class _Bench:
    """Holds one sampled pool, its host cache chosen, open for counting."""

    def __init__(self, graph: Graph, run: Path, runtime: Runtime):
        self.graph, self.runtime = graph, runtime
        self.samples = open_samples(runtime, run / "sample")
        placement = open_placement(runtime, run / "plan")
        (rows,) = placement.files
        self.section = rows.section(self.samples)
        self.row_bytes, self.packed = rows.row_bytes, placement.packed_batches
        self.hot = [rows.host_ids]
        # What a plan with everything packed takes besides the rows and their ids.
        self.wants = rows.num_packed
        self.fixed = placement.predicted["disk_bytes"] - int(self.wants.sum()) * (
            self.row_bytes + self.section.id_bytes
        )
        wanted = BatchIds(self.section, self.packed, runtime, keep_bytes=1 << 30)
        self.arranger = SegmentArranger(
            wanted, graph.num_nodes, self.row_bytes, self.hot, 0, runtime, table_bytes=_TABLE_BYTES
        )

    @property
    def sizes(self) -> LayoutSizes:
        width = self.section.id_bytes
        return LayoutSizes(self.row_bytes, int(self.wants.sum()), width + 4, width, 8, 0)

    def disk_bytes(self, shared: float, packed: float, wants: float) -> float:
        """Counts the bytes that a run takes on disk."""
        return self.fixed + self.sizes.disk_bytes(shared, packed, wants)

    def search(self) -> LayoutSearch:
        wanted = BatchIds(self.section, self.packed, self.runtime)
        sketch = WantSketch(wanted, self.hot, self.sizes, self.runtime, table_bytes=_TABLE_BYTES)
        return LayoutSearch([sketch], self.fixed, len(self.packed))

    def bytes_read(self, shared: SharedCounts) -> int:
        """Gives the bytes of rows that are read in a pass over everything: packed ones and pages of the disk cache."""
        packed = int(self.wants.sum() - shared.per_hop.sum())
        return packed * self.row_bytes + int(shared.pages.sum()) * PAGE_BYTES

    def amplification(self, shared: SharedCounts) -> float:
        return self.bytes_read(shared) / (int(self.wants.sum()) * self.row_bytes)

    def access_shares(self) -> dict[str, float]:
        """Returns the share of all wants that goes to the most wanted 1, 5, 10, 20, 50 % of the nodes (Table 3)."""
        counts = np.zeros(self.graph.num_nodes, np.int64)
        buffer = np.zeros(self.section.buffer_bytes, np.uint8)
        for batch in self.packed:
            counts[self.section.read_ids(int(batch), buffer)] += 1
        counts[::-1].sort()
        total = counts.sum()
        return {f"{p}%": float(counts[: len(counts) * p // 100].sum() / total) for p in (1, 5, 10, 20, 50)}


@contextmanager
def _opened(folder: Path, setting: Setting, epochs: int, log: Log) -> Iterator[tuple[_Bench, Path]]:
    path = ensure_graph(folder, setting.shape, log)
    graph, run = open_graph(path), folder / f"{path.stem}-layout.run"
    log(f"sampling {epochs} epochs")
    fanouts = tuple(map(int, setting.fanouts.split(",")))
    asked = PrepareOptions(
        graph,
        run,
        sampling=SampleConfig(fanouts, setting.batch_size),
        epochs=epochs,
        limits=Limits(setting.memory),
        overwrite=True,
    )
    prepare(asked, stop_after="plan")
    with Runtime() as runtime:
        yield _Bench(graph, run, runtime), run


def run(folder: Path, setting: Setting, log: Log) -> dict[str, Any]:
    with _opened(folder, setting, _EPOCHS, log) as (bench, _):
        everything = bench.disk_bytes(0, int(bench.wants.sum()), 0)
        features = setting.shape.feature_bytes
        bounds = [m for m in (7, 5, 3, 2, 1.5, 1) if m * features < everything]
        log("reordering: none, whole, segments")
        result: dict[str, Any] = {
            "experiment": "layout",
            "epochs": _EPOCHS,
            "batches": len(bench.packed),
            "packed_everything": everything / features,
            "access_shares": bench.access_shares(),
            "reordering": _reordering(bench),
        }
        log("brute force over segment sizes and thresholds")
        tried, brute = _brute_force(bench)
        result["search"] = {f"{m:g}x": _searched(bench, int(m * features), tried, brute, log) for m in bounds}
    result["timed"] = {
        f"{m:g}x": timed
        for m in bounds
        if m in _TIMED and (timed := _timed(folder, setting, m, log)) is not None
    }
    result["columns"] = ["bound", "heuristic s", "amplification", "brute force", "search", "speed-up"]
    result["rows"] = [
        [
            bound,
            str(r["heuristic"]["segment"]) if r["heuristic"] else "-",
            f"{r['heuristic']['amplification']:.3f}" if r["heuristic"] else "does not fit",
            f"{r['brute_force']['amplification']:.3f}" if r["brute_force"] else "-",
            f"{r['search_seconds'] * 1e3:.0f} ms",
            f"{r['speed_up']:.0f}x",
        ]
        for bound, r in result["search"].items()
    ]
    return result


def _reordering(bench: _Bench) -> dict[str, dict[str, float]]:
    """Measures amplification of one cache for all batches and of segments, in id order and reordered (Figures 5 and
    16).
    """
    results = {}
    batches = len(bench.packed)
    for segment in (batches, *(s for s in _SEGMENTS if s < batches)):
        name = "whole" if segment == batches else f"{segment} batches"
        layout = SegmentLayout(segment, 1)
        shared = bench.arranger.arrange(layout)
        plain = bench.arranger.arrange(layout, reorder=False)
        ratio = shared.pages / np.maximum(plain.pages, 1)
        accesses = int(shared.per_hop.sum())
        results[name] = {
            "amplification": bench.amplification(shared),
            "not_reordered": bench.amplification(plain),
            "cache_amplification": float(shared.pages.sum() * PAGE_BYTES / (accesses * bench.row_bytes)),
            "cache_not_reordered": float(plain.pages.sum() * PAGE_BYTES / (accesses * bench.row_bytes)),
            "batches_halved": float((ratio < 0.5).mean()),
            "disk_over_features": bench.disk_bytes(shared.rows, int(bench.wants.sum()) - accesses, accesses)
            / (bench.graph.num_nodes * bench.row_bytes),
        }
    return results


def _brute_force(bench: _Bench) -> tuple[dict[SegmentLayout, tuple[int, float]], float]:
    """Returns disk bytes and amplification of every layout of the grid, arranged in full; and the seconds that took.

    It is the same for every bound: what a bound forbids is known only afterwards.
    """
    begin, costs = time.perf_counter(), {}
    for layout in _grid(len(bench.packed)):
        shared = bench.arranger.arrange(layout)
        wants = int(shared.per_hop.sum())
        size = bench.disk_bytes(shared.rows, int(bench.wants.sum()) - wants, wants)
        costs[layout] = (int(size), bench.amplification(shared))
    return costs, time.perf_counter() - begin


def _searched(
    bench: _Bench, limit: int, tried: dict[SegmentLayout, tuple[int, float]], brute: float, log: Log
) -> dict[str, Any]:
    """Compares the heuristic against brute force over segment sizes and thresholds (Table 7)."""
    log(f"bound {limit / 2**30:.2f} GiB: heuristic")
    begin = time.perf_counter()
    search = bench.search()
    counted = time.perf_counter()
    chosen = layouts.heuristic(search, limit)
    done = time.perf_counter()
    heuristic = None
    if chosen is not None:
        shared = bench.arranger.arrange(chosen)
        heuristic = {
            "segment": chosen.segment,
            "threshold": chosen.threshold,
            "amplification": bench.amplification(shared),
        }
    best = min(
        ((amplification, layout) for layout, (size, amplification) in tried.items() if size <= limit),
        key=lambda found: found[0],
        default=None,
    )
    return {
        "heuristic": heuristic,
        "brute_force": None
        if best is None
        else {"amplification": best[0], "segment": best[1].segment, "threshold": best[1].threshold},
        "sketch_seconds": counted - begin,
        "search_seconds": done - counted,
        "brute_force_seconds": brute,
        "speed_up": brute / (done - counted),
        "speed_up_with_sketch": brute / (done - begin),
        "against_brute_force": heuristic["amplification"] / best[0] if heuristic and best else None,
    }


def _grid(batches: int) -> Sequence[SegmentLayout]:
    sizes = sorted({*range(_BRUTE_STEP, batches, _BRUTE_STEP), batches})
    return [SegmentLayout(s, m) for s in sizes for m in _THRESHOLDS if m < s]


def _timed(folder: Path, setting: Setting, bound: float, log: Log) -> dict[str, Any] | None:
    """Gives epochs of loading under the bound: what the cost model chose against the other layouts that it weighed."""
    graph = open_graph(ensure_graph(folder, setting.shape, log))
    run = folder / "bench-layout.run"
    asked = PrepareOptions(
        graph,
        run,
        sampling=SampleConfig(tuple(map(int, setting.fanouts.split(","))), setting.batch_size),
        epochs=_EPOCHS,
        limits=Limits(setting.memory, disk_space=f"{bound:g}x"),
        overwrite=True,
    )
    try:
        chosen = prepare(asked)
    except BudgetError as error:
        log(f"bound {bound:g}x: {error}")
        return None
    rows = {"cost": {**_load(graph, run, setting), "disk_bytes": chosen.disk_bytes}}
    others = sorted(
        (a for a in chosen.predicted["alternatives"] if not a["chosen"]), key=lambda a: a["seconds"]
    )
    for other in others[:2]:
        name = f"{other['segment']},{other['threshold']}"
        try:
            report = prepare(replace(asked, packing=PackConfig(layout=name)))
        except BudgetError:  # it was priced from a sketch, and does not fit by a little
            continue
        rows[name] = {**_load(graph, run, setting), "disk_bytes": report.disk_bytes}
    shutil.rmtree(run)
    best = min(r["seconds"] for r in rows.values())
    return {"layouts": rows, "chosen_against_best": rows["cost"]["seconds"] / best}


def _load(graph: Graph, run: Path, setting: Setting) -> dict[str, float]:
    """Returns the median seconds of loading an epoch of the pool, after one to warm up, and what it read."""
    seconds, read = [], []
    with (
        Runtime(setting.memory) as runtime,
        open_session(graph, runtime, "packed", run_folder=run) as session,
    ):
        for epoch in range(4):
            before, begin = runtime.io.counters.read_bytes, time.perf_counter()
            for batch in session.batches("train", epoch):
                del batch
            seconds.append(time.perf_counter() - begin)
            read.append(runtime.io.counters.read_bytes - before)
    return {"seconds": median(seconds[1:]), "bytes_read": median(read[1:])}
