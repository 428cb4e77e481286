"""Benchmark ``papers100m``: a graph of the size of ogbn-papers100M, generated, in a few GiB that the kernel enforces.

Every step is a command that a user would type, in a process of its own: the edges are imported from a file, as somebody
has them who downloaded them; then the whole graph is generated, prepared, trained for an epoch, and every node gets a
prediction. What was measured of a step is kept in ``papers100m.json`` in the folder of the benchmark: the same command
goes on with the next one. ``--nodes`` makes everything smaller in proportion, the memory too.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from outcrop.bench.epoch import ALLOWANCE_BYTES, Log
from outcrop.bench.kept import Kept
from outcrop.bench.process import outcrop
from outcrop.config import format_bytes
from outcrop.errors import OutcropError
from outcrop.store.graph import open_graph

NODES, EDGES = 111_059_956, 1_615_685_872
TRAIN, VALID, TEST = 1_207_179, 125_265, 214_338
FEATURES, DTYPE, ITEM_BYTES, CLASSES = 128, "float16", 2, 172
MEMORY = 4 << 30
HIDDEN = 16  # activations of all nodes lie on disk while predictions are made: so 70 GB hold everything
_CHUNK = 1 << 24  # edges that are written at a time


@dataclass(frozen=True)
class Size:
    """Says how large everything is.

    Attributes:
        nodes: Number of nodes; the edges, the seeds and the memory are as many in proportion.
        fanouts: Neighbours per hop.
        batch_size: Seeds of a batch.
    """

    nodes: int = NODES
    fanouts: str = "10,10"
    batch_size: int = 1024

    @property
    def edges(self) -> int:
        return EDGES * self.nodes // NODES

    @property
    def memory(self) -> int:
        """Counts the bytes of the budget of every command."""
        return MEMORY * self.nodes // NODES

    @property
    def feature_bytes(self) -> int:
        return self.nodes * FEATURES * ITEM_BYTES


class _Steps:
    """Runs the steps, and keeps what they gave."""

    def __init__(self, folder: Path, size: Size, log: Log):
        self.folder, self.size, self._log = folder, size, log
        self._kept = Kept(folder / "papers100m.json", {**vars(size), "hidden": HIDDEN})

    def path(self, name: str) -> Path:
        return self.folder / f"papers100m-{self.size.nodes}{name}"

    def step(self, name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns what step ``name`` gave, before or now."""
        self._log(name)
        found = self._kept.measured(name, run)
        self._log(f"{name}: {found['seconds']:.1f} s")
        return found

    def command(self, *arguments: str | Path) -> dict[str, Any]:
        """Runs a command in the budget, under the kernel's limit.

        Returns:
            Its report, with the seconds of the whole command and the peak of its group, page cache included.
        """
        limit = self.size.memory + ALLOWANCE_BYTES
        started = time.monotonic()
        done = outcrop([*arguments, "--memory", str(self.size.memory)], limit_bytes=limit)
        return {
            "seconds": time.monotonic() - started,
            "limit_bytes": done.limit_bytes,
            "peak_group_bytes": done.peak_group_bytes,
            "report": done.result,
        }


def run(folder: Path, size: Size, log: Log) -> dict[str, Any]:
    """Takes every step, the import first: its files are gone before the features need their room on the disk."""
    steps = _Steps(folder, size, log)
    graph, packed, trained = steps.path(".oc"), steps.path(".run"), steps.path(".ckpt")
    imported = steps.step("import", lambda: _import(steps))
    generated = steps.step("generate", lambda: _generated(steps, graph))
    batches = ["--fanouts", size.fanouts, "--batch-size", str(size.batch_size)]
    prepared = steps.step(
        "prepare",
        lambda: steps.command("prepare", graph, packed, *batches, "--epochs", "1", "--overwrite"),
    )
    train: list[str | Path] = [
        "train",
        graph,
        "--run",
        packed,
        "--model",
        "sage",
        "--hidden",
        str(HIDDEN),
        "--epochs",
        "1",
    ]
    train += ["--checkpoint", trained, "--fresh"]
    of_training = steps.step("train", lambda: _then(steps.command(*train), lambda: shutil.rmtree(packed)))
    predictions = steps.path("-classes.npy")
    infer = ["infer", graph, "--checkpoint", trained, "--out", predictions, "--output", "classes"]
    inferred = steps.step("infer", lambda: _then(steps.command(*infer), predictions.unlink))
    rows = [
        ["import the edges", *_row(imported)],
        ["generate the graph", *_row(generated)],
        ["prepare an epoch", *_row(prepared)],
        ["train an epoch, score validation and test", *_row(of_training)],
        ["predict every node", *_row(inferred)],
    ]
    return {
        "experiment": "papers100m",
        "size": {**vars(size), "edges": size.edges, "feature_bytes": size.feature_bytes},
        "memory": size.memory,
        "hidden": HIDDEN,
        "steps": {
            "import": imported,
            "generate": generated,
            "prepare": prepared,
            "train": of_training,
            "infer": inferred,
        },
        "columns": ["step", "whole command", "read", "written", "peak of the group", "limit"],
        "rows": rows,
        "says": f"{size.nodes:,} nodes, {size.edges:,} edges, {format_bytes(size.feature_bytes)} of features; "
        f"every command has --memory {format_bytes(size.memory)}",
    }


def _then(result: dict[str, Any], do: Callable[[], object]) -> dict[str, Any]:
    do()
    return result


def _generated(steps: _Steps, graph: Path) -> dict[str, Any]:
    size = steps.size
    shares = [f"{count / NODES:.9f}" for count in (TRAIN, VALID, TEST)]
    return steps.command(
        *("generate", graph, "--nodes", str(size.nodes), "--edges", str(size.edges)),
        *("--features", str(FEATURES), "--dtype", DTYPE, "--classes", str(CLASSES)),
        *("--train-fraction", shares[0], "--valid-fraction", shares[1], "--test-fraction", shares[2]),
    )


def _import(steps: _Steps) -> dict[str, Any]:
    """Imports the edges from a file in which they lie in no order."""
    size, lists, source, out = (
        steps.size,
        steps.path("-lists.oc"),
        steps.path("-edges.npy"),
        steps.path("-imported.oc"),
    )
    steps.command(
        *("generate", lists, "--nodes", str(size.nodes), "--edges", str(size.edges), "--features", "0"),
        *("--classes", str(CLASSES)),
    )
    _write_edges(lists, source)
    shutil.rmtree(lists)
    result = steps.command(
        "import", f"edges:{source}", out, "--num-nodes", str(size.nodes), "--keep-duplicates"
    )
    edges = open_graph(out).num_edges
    if edges != size.edges:
        raise OutcropError(f"{out} has {edges} edges, {source} has {size.edges}")
    source.unlink()
    shutil.rmtree(out)
    return result


def _write_edges(lists: Path, path: Path) -> None:
    """Writes the edges of a graph as int32 [E, 2], sources and targets: parts of its lists, shuffled."""
    graph = open_graph(lists)
    indptr = np.memmap(lists / graph.spec("indptr").file, np.int64, "r", shape=(graph.num_nodes + 1,))
    indices = np.memmap(lists / graph.spec("indices").file, np.uint32, "r", shape=(graph.num_edges,))
    edges = open_memmap(path, "w+", np.int32, (graph.num_edges, 2))
    count, filled = graph.num_edges, 0
    rng = np.random.default_rng(0)
    for first in rng.permutation(-(-count // _CHUNK)) * _CHUNK:
        last = min(first + _CHUNK, count)
        low, high = int(np.searchsorted(indptr, first, "right")) - 1, int(np.searchsorted(indptr, last))
        degrees = np.diff(np.clip(indptr[low : high + 1], first, last))
        targets = np.repeat(np.arange(low, high, dtype=np.int32), degrees)
        order = rng.permutation(last - first)
        part = edges[filled : filled + len(order)]
        part[:, 0], part[:, 1] = indices[first:last][order], targets[order]
        filled += len(order)
    edges.flush()


def _row(step: dict[str, Any]) -> list[str]:
    report = step["report"]
    read, written = (_total(report, name) for name in ("bytes_read", "bytes_written"))
    return [
        f"{step['seconds']:.0f} s",
        "-" if read is None else format_bytes(read),
        "-" if written is None else format_bytes(written),
        "-" if step["peak_group_bytes"] is None else format_bytes(step["peak_group_bytes"]),
        "none" if step["limit_bytes"] is None else format_bytes(step["limit_bytes"]),
    ]


def _total(report: dict[str, Any], name: str) -> int | None:
    """Returns bytes of a report, of all epochs where it has some; None where it does not count them."""
    if name in report:
        return int(report[name])
    if "epochs" in report and isinstance(report["epochs"], list):
        found = [epoch[name] for epoch in report["epochs"] if name in epoch]
        return sum(found) if found else None
    return None
