"""Benchmark ``regimes``: which way of training is fastest where, and whether Outcrop takes it by itself.

A cell of the grid is a setting: bytes of a row, share of the nodes that train, memory as a share of the features, a
disk, epochs, new batches or the same again, flat or skewed degrees. In each cell every way trains from nothing, in a
process of its own under the kernel's limit with the page cache empty, and so does ``auto``, which names none. What
counts is the whole time, preparing included, less what the same command takes on a graph of a thousand nodes. The way
that ``auto`` took is not trained once more: it takes as long, but for choosing. The regret of ``auto`` is its time over
that of the best way.

The first cells differ from the middle one in one factor; then come cells drawn at random, always the same. Cells whose
training would take very long are left out, and so are ways in which memory is too small. A way that takes half as long
again as the best of its round is stopped: it is not the best. What was measured is kept in ``regimes.json`` in the
folder of the benchmark: the same command goes on where it was stopped. Cells say of which revision they are.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, product
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from outcrop.bench.cgroup import SlowDisk, drop_page_cache, kernel_slows
from outcrop.bench.epoch import ALLOWANCE_BYTES, Log, ensure_graph
from outcrop.bench.graphs import GraphShape
from outcrop.bench.kept import Kept
from outcrop.bench.origin import source_revision
from outcrop.bench.process import outcrop
from outcrop.errors import OutcropError
from outcrop.runtime.machine import read_rates

AUTO = "auto"
WAYS: dict[str, list[str]] = {
    AUTO: [],
    "packed": ["--mode", "packed"],
    "online, spooled": ["--mode", "online"],
    "online": ["--mode", "online", "--disk-space", "0"],
}
BARS = {"most": (0.95, 1.10), "all": (1.0, 1.25)}  # share of the cells, regret
_FANOUTS = "5,5"
_MOST_BATCHES = 5000  # of a training
_SLOWEST = 1.5  # times the best so far: no longer is waited for a way
_LEAST_BYTES = 24 << 20  # of memory
_NODES = {64: 2_000_000, 256: 2_000_000, 1024: 1_000_000, 4096: 250_000}  # by the bytes of a row
_DISKS = ("its own", "a third", "a tenth", "random at a tenth")
_FACTORS: dict[str, tuple[Any, ...]] = {
    "row_bytes": tuple(_NODES),
    "train": (0.01, 0.1, 0.6),
    "memory": (0.03, 0.1, 0.3),
    "disk": _DISKS,
    "epochs": (1, 5, 30),
    "new_batches": (True, False),
    "skew": (0.0, 0.67),
}


@dataclass(frozen=True)
class Cell:
    """Describes a cell of the grid; the default is its middle.

    Attributes:
        train: Share of the nodes that train.
        memory: Budget as a share of the features.
        disk: One of its own rate, slowed down, or slowed down in requests alone.
        new_batches: Whether each epoch draws new batches; else the first epoch's are used again.
    """

    row_bytes: int = 256
    train: float = 0.1
    memory: float = 0.1
    disk: str = "its own"
    epochs: int = 5
    new_batches: bool = True
    skew: float = 0.67

    @property
    def name(self) -> str:
        batches = "new batches" if self.new_batches else "the same batches"
        return (
            f"{self.row_bytes} B, {self.train:.0%} train, {self.memory:.0%} memory, disk {self.disk}, "
            f"{self.epochs} epochs, {batches}, skew {self.skew:g}"
        )

    @property
    def shape(self) -> GraphShape:
        nodes = _NODES[self.row_bytes]
        return GraphShape(
            f"regimes-{self.row_bytes}-{self.train:g}-{self.skew:g}",
            nodes=nodes,
            edges=15 * nodes,
            features=self.row_bytes // 4,
            train_fraction=self.train,
            eval_fraction=0.002,
            skew=self.skew,
        )

    @property
    def batch_size(self) -> int:
        """Returns the seeds of a batch: few enough for its rows to fit the smallest budget."""
        return 256 if self.row_bytes <= 1024 else 64

    @property
    def batches(self) -> int:
        """Counts the batches of the whole training."""
        return -(-int(self.shape.nodes * self.train) // self.batch_size) * self.epochs

    @property
    def memory_bytes(self) -> int:
        return max(int(self.shape.feature_bytes * self.memory), _LEAST_BYTES)


def cells(seed: int = 0) -> Iterator[Cell]:
    """Yields every cell that does not take too long: those that differ from the middle in one factor first."""
    middle, seen = Cell(), set()
    near = [replace(middle, **{name: value}) for name, values in _FACTORS.items() for value in values]
    near.sort(key=lambda cell: cell.disk != middle.disk)  # slow disks take longest
    rest = [Cell(*values) for values in product(*_FACTORS.values())]
    random.Random(seed).shuffle(rest)
    for cell in [middle, *near, *rest]:
        if cell not in seen and cell.batches <= _MOST_BATCHES:
            seen.add(cell)
            yield cell


def run(folder: Path, count: int, rounds: int, log: Log) -> dict[str, Any]:
    """Measures the first ``count`` cells, those that were measured before as they were."""
    kept, found = Kept(folder / "regimes.json", {"rounds": rounds, "fanouts": _FANOUTS}), {}
    for number, cell in enumerate(islice(cells(), count)):
        log(f"cell {number + 1} of {count}: {cell.name}")
        found[cell.name] = kept.measured(cell.name, partial(_measure, folder, cell, rounds, log))
    return {"experiment": "regimes", "factors": {k: list(v) for k, v in _FACTORS.items()}, **summary(found)}


def summary(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the table, and how often ``auto`` is how far from the best way: where it fails alone, infinitely far.

    Args:
        found: By the name of a cell what :func:`_measure` gave.
    """
    found = {name: {**cell, **_compared(cell)} for name, cell in found.items()}
    regrets = {
        name: inf if cell["regret"] is None else cell["regret"]
        for name, cell in found.items()
        if cell["best"] is not None
    }
    shares = {
        name: sum(one <= regret for one in regrets.values()) / max(len(regrets), 1)
        for name, (_, regret) in BARS.items()
    }
    held = all(shares[name] >= share for name, (share, _) in BARS.items())
    return {
        "cells": dict(found),
        "shares": shares,
        "most_regret": max((one for one in regrets.values() if one < inf), default=None),
        "holds": held,
        "columns": ["cell", *WAYS, "best", "regret"],
        "rows": [
            [
                name,
                *(_said(cell, way) for way in WAYS),
                cell["best"] or "-",
                "-" if cell["regret"] is None else f"{cell['regret']:.2f}",
            ]
            for name, cell in found.items()
        ],
        "says": f"auto is within 1.10 of the best way in {shares['most']:.0%} of {len(regrets)} cells, within 1.25 in "
        f"{shares['all']:.0%}",
    }


def _said(cell: Mapping[str, Any], way: str) -> str:
    """Returns the seconds of a way, or that it took more than those after which it was stopped."""
    if (seconds := cell["seconds"][way]) is not None:
        return f"{seconds:.1f} s"
    return "-" if (late := cell["stopped"].get(way)) is None else f"> {late:.0f} s"


def _compared(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds of each way, None where it was not trained to its end in every round; the best way; and the
    regret of ``auto``, None where one of them is not known.
    """
    seconds = {
        way: max(median(times) - cell["start_seconds"], 0.0) if times and way not in cell["stopped"] else None
        for way, times in cell["all_seconds"].items()
    }
    ways = {way: s for way, s in seconds.items() if way != AUTO and s is not None}
    best = min(ways, key=lambda way: ways[way]) if ways else None
    mine = seconds[AUTO]
    regret = None if best is None or mine is None else mine / ways[best]
    return {"seconds": seconds, "best": best, "regret": regret}


class _Trainings:
    """Trains in one cell, and keeps what each way took.

    Attributes:
        seconds: Those of each training, by way.
        problems: Why a way was not trained to its end.
        stopped: Seconds after which a way was stopped.
        taken: The way that each ``auto`` took.
        chosen, choice_seconds: Why, and how long it took to choose.
    """

    def __init__(self, graph: Path, cell: Cell, disk: SlowDisk | None):
        self._graph, self._cell, self._disk = graph, cell, disk
        self.seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        self.problems: dict[str, str] = {}
        self.stopped: dict[str, float] = {}
        self._known: list[float] = []  # seconds of this round
        self.taken: list[str] = []
        self.chosen: list[str] = []
        self.choice_seconds: list[float] = []

    def begin_round(self) -> None:
        """Forgets how fast the disk was: ways are stopped by those of their round."""
        self._known = []

    def train(self, way: str) -> None:
        """Trains once, unless the way was stopped before, or ``auto`` has just gone it."""
        if way in self.problems or way in self.taken[-1:]:
            return
        limit = _SLOWEST * min(self._known) if self._known and way != AUTO else None
        try:
            seconds, result = _train(self._graph, self._cell, WAYS[way], self._disk, limit)
        except subprocess.TimeoutExpired as late:
            self.problems[way], self.stopped[way] = f"stopped after {late.timeout:.1f} s", late.timeout
        except OutcropError as error:
            self.problems[way] = str(error)
        else:
            self.seconds[way].append(seconds)
            self._known.append(seconds)
            if way == AUTO:
                self._note(seconds, result)

    def _note(self, seconds: float, result: Mapping[str, Any]) -> None:
        way = "online, spooled" if result["spooled_epochs"] else result["mode"]
        self.taken.append(way)
        self.chosen.append(result["chosen"])
        self.choice_seconds.append(result["choice_seconds"])
        self.seconds[way].append(seconds - result["choice_seconds"])
        self._known.append(self.seconds[way][-1])


def _measure(folder: Path, cell: Cell, rounds: int, log: Log) -> dict[str, Any]:
    graph = ensure_graph(folder, cell.shape, log)
    small = ensure_graph(folder, replace(cell.shape, name="regimes-start", nodes=1000, edges=5000), log)
    disk = _slowed(graph, cell.disk)
    done, starts = _Trainings(graph, cell, disk), []
    for _ in range(rounds):
        starts.append(_train(small, cell, WAYS["packed"], disk)[0])
        done.begin_round()
        for way in WAYS:
            done.train(way)
    return {
        "revision": source_revision(),
        "cell": asdict(cell),
        "disk": None if disk is None else _told(disk),
        "memory_bytes": cell.memory_bytes,
        "start_seconds": median(starts),
        "all_seconds": done.seconds,
        "stopped": {way: late - median(starts) for way, late in done.stopped.items()},
        "taken": done.taken,
        "chosen": done.chosen,
        "choice_seconds": done.choice_seconds,
        "problems": done.problems,
    }


def _slowed(graph: Path, disk: str) -> SlowDisk | None:
    """Returns what makes this disk one of another rate; None: it is to be as it is."""
    if disk == "its own":
        return None
    path = graph / "features.bin"
    rates = read_rates(path)
    assert rates is not None
    if disk == "random at a tenth":
        return SlowDisk(path, None, int(rates["random_ops_per_s"] / 10))
    share = {"a third": 3, "a tenth": 10}[disk]
    return SlowDisk(
        path, int(rates["sequential_bytes_per_s"] / share), int(rates["random_ops_per_s"] / share)
    )


def _told(disk: SlowDisk) -> dict[str, Any]:
    rates = {"bytes_per_second": disk.bytes_per_second, "requests_per_second": disk.requests_per_second}
    return {**rates, "slowed_by": "kernel" if kernel_slows(disk) else "engine"}


def _train(
    graph: Path, cell: Cell, way: list[str], disk: SlowDisk | None, limit: float | None = None
) -> tuple[float, dict[str, Any]]:
    """Trains from nothing; returns the seconds of the whole command, and its result.

    Raises:
        subprocess.TimeoutExpired: It took longer than ``limit`` seconds.
    """
    made = graph.with_name(graph.name + ".run")
    shutil.rmtree(made, ignore_errors=True)
    drop_page_cache()
    command: list[str | Path] = [
        "train",
        graph,
        *way,
        "--model",
        "sage",
        "--hidden",
        "64",
        "--fanouts",
        _FANOUTS,
    ]
    command += ["--batch-size", str(cell.batch_size), "--memory", str(cell.memory_bytes)]
    command += ["--epochs", str(cell.epochs), "--evaluate-every", str(cell.epochs)]
    command += [] if cell.new_batches else ["--sample-epochs", "1"]
    capped = cell.memory_bytes + ALLOWANCE_BYTES
    started = time.perf_counter()
    try:
        done = outcrop(command, limit_bytes=capped, disk=disk, timeout_seconds=limit)
        return time.perf_counter() - started, done.result
    finally:
        shutil.rmtree(made, ignore_errors=True)
