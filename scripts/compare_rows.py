#!/usr/bin/env python3
"""Compares every row that every mode delivers with the features that a graph was made of, bit for bit.

    scripts/compare_rows.py [KIND ...] [--rows N] [--seed S] [--json FILE]     10^9 rows in all, seed 0

Graphs have the same skewed edges and features of several kinds: narrow rows, several to a page; rows that cross pages;
values in a byte; rows that are mostly zeros, stored sparse. For each kind and each mode, batches are loaded until the
mode has had its share of the rows, within a memory budget that holds a part of the features; modes that need a run
prepare one, and all that read themselves must have read from the disk. NumPy holds the features meanwhile,
``features[n_id]`` is wanted, and batches must have the same nodes in all modes that draw the same. Ends with status 1
where a row differs.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from add_run import RunList

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import outcrop as oc
from outcrop.loading.modes import Partition
from outcrop.loading.open import open_session
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from quantised_reference import dequantised

NODES, EDGES, TRAIN = 1_600_000, 12_000_000, 0.025
MEMORY = 64 << 20  # the budget: a part of the features
SAMPLING = oc.SampleConfig(fanouts=(10, 10), batch_size=512)
EPOCHS = 2  # of a run; then the next seed
MODES = ("memory", "packed", "online", "ondisk", "memmap", "dynamic", "belady", "partition")
OTHER_BATCHES = ("partition",)  # draws of what is in memory
IN_MEMORY = ("memory", "memmap")  # read by nobody, and by the system
QUIET = oc.Observer(progress=False)


@dataclass(frozen=True)
class Kind:
    """A kind of features: how they are made and stored, and what loaders must deliver of them."""

    make: Callable[[np.random.Generator], np.ndarray]
    stored: dict[str, Any] = field(default_factory=dict)
    delivered: Callable[[np.ndarray], np.ndarray] = lambda x: x


def _normal(columns: int, dtype: str) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.standard_normal((NODES, columns), np.float32).astype(dtype)


def _mostly_zeros(rng: np.random.Generator) -> np.ndarray:
    x = np.zeros((NODES, 96), np.float32)
    for _ in range(6):  # values of a row, or fewer where two fall on one column
        x[np.arange(NODES), rng.integers(0, 96, NODES)] = rng.standard_normal(NODES, np.float32)
    return x


KINDS = {
    "16 float32": Kind(_normal(16, "float32")),
    "101 float16": Kind(_normal(101, "float16")),
    "48 in int8": Kind(
        _normal(48, "float32"),
        {"feature_dtype": "int8", "scale": "row"},
        partial(dequantised, dtype="int8", by="row"),
    ),
    "96, 6 not 0": Kind(_mostly_zeros),
}


@dataclass
class Compared:
    """Says what came of one mode on one kind of features: rows and bytes that were compared, rows that differed."""

    rows: int = 0
    read: int = 0  # bytes, from the disk
    bytes: int = 0
    wrong: int = 0
    batches: dict[tuple[int, int], str] = field(default_factory=dict)  # digests of nodes, by seed and epoch


def different_rows(found: np.ndarray, wanted: np.ndarray) -> int:
    """Counts the rows of which a bit, the type or the width differs."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return len(wanted)
    bits = f"u{found.itemsize}"
    a, b = np.ascontiguousarray(found).view(bits), wanted.view(bits)
    return 0 if np.array_equal(a, b) else int((a != b).any(axis=1).sum())


class Comparison:
    """Loads a graph in every mode, and compares.

    Args:
        share: Rows that each mode is to deliver.
    """

    def __init__(self, folder: Path, kind: str, share: int, seed: int):
        self._folder, self._share, self._seed = folder, share, seed
        rng = np.random.default_rng(seed)
        sources = (rng.random(EDGES) ** 3 * NODES).astype(np.int64)
        of = KINDS[kind]
        x = of.make(rng)
        train = np.sort(rng.choice(NODES, int(NODES * TRAIN), replace=False))
        self._graph = oc.import_graph(
            {
                "edges": np.stack([sources, rng.integers(0, NODES, EDGES)]),
                "features": x,
                "labels": np.zeros(NODES, np.int64),
                "train": train,
            },
            folder / "g.oc",
            oc.ImportConfig(**of.stored),
            progress=False,
        ).path
        self._wanted = of.delivered(x)
        self._memory = MEMORY
        self.found = {mode: Compared() for mode in MODES}

    def compare(self) -> None:
        """Goes on until every mode has delivered its share: seed after seed, in every mode."""
        for seed in itertools.count(self._seed):
            left = [mode for mode, found in self.found.items() if found.rows < self._share]
            if not left:
                return
            sampling = replace(SAMPLING, seed=seed)
            run = self._folder / "run"
            oc.prepare(
                self._graph,
                run,
                sampling=sampling,
                epochs=EPOCHS,
                memory=self._memory,
                observer=QUIET,
                overwrite=True,
            )
            for mode in left:
                before = self.found[mode].rows
                self._load(mode, seed, replace(sampling, epochs=EPOCHS), run)
                if self.found[mode].rows == before:
                    raise SystemExit(f"mode {mode} delivers no batch")

    def _load(self, mode: str, seed: int, sampling: oc.SampleConfig, run: Path) -> None:
        found = self.found[mode]
        given: Partition | str = mode
        memory = None if mode == "memory" else self._memory
        own = run if mode in ("packed", "ondisk", "belady") else None
        with Runtime(memory=memory) as runtime:
            graph = open_graph(self._graph)
            if mode == "partition":  # as few as fit
                given = Partition(partitions=max(20 * graph.feature_bytes // self._memory, 32), resident=4)
            with open_session(graph, runtime, given, run_folder=own, config=sampling) as session:
                for epoch in range(EPOCHS):
                    nodes = hashlib.blake2b(digest_size=16)
                    for n_id, x in self._batches(session, epoch):
                        wanted = self._wanted[n_id]
                        found.rows += len(n_id)
                        found.bytes += wanted.nbytes
                        found.wrong += different_rows(x, wanted)
                        nodes.update(np.ascontiguousarray(n_id, np.int64).data)
                    found.batches[seed, epoch] = nodes.hexdigest()
                found.read += runtime.io.counters.read_bytes

    def _batches(self, session: Any, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        with session.batches("train", epoch) as batches:
            for batch in batches:
                yield np.asarray(batch.graph.n_id), batch.x.numpy()
                del batch

    def unread(self) -> list[str]:
        """Returns the modes that have read nothing but what memory held."""
        return [mode for mode, found in self.found.items() if mode not in IN_MEMORY and not found.read]

    def unlike(self) -> list[str]:
        """Returns the modes that had other batches than mode memory."""
        wanted = self.found["memory"].batches
        return [
            mode
            for mode, found in self.found.items()
            if mode not in OTHER_BATCHES
            and any(found.batches[key] != wanted[key] for key in found.batches.keys() & wanted.keys())
        ]


def rows_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Adds up what runs compared."""
    sums: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        for kind, modes in run["compared"].items():
            for mode, counted in modes.items():
                old = sums.get((kind, mode), [0, 0, 0])
                sums[kind, mode] = [a + b for a, b in zip(old, counted, strict=True)]
    return {
        "rows_compared": sum(rows for rows, _, _ in sums.values()),
        "wrong": sum(wrong for _, _, wrong in sums.values()) + sum(len(run["unlike"]) for run in runs),
        "columns": ["features", "mode", "rows", "bytes", "wrong"],
        "rows": [
            [kind, mode, f"{rows / 1e6:,.1f} M", f"{size / 2**30:.1f} GiB", str(wrong)]
            for (kind, mode), (rows, size, wrong) in sums.items()
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "kinds", nargs="*", default=list(KINDS), help=f"of {', '.join(KINDS)}; all unless given"
    )
    parser.add_argument("--rows", type=float, default=1e9, help="in all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="adds what was compared to what this file lists")
    asked = parser.parse_args()
    noted, began = RunList(asked.json, "compare-rows", rows_of), time.monotonic()
    compared: dict[str, dict[str, list[int]]] = {}
    unlike = list[str]()
    if unknown := set(asked.kinds) - set(KINDS):
        parser.error(f"{min(unknown)!r} is none of {', '.join(KINDS)}")
    share = -(-int(asked.rows) // (len(asked.kinds) * len(MODES)))
    for kind in asked.kinds:
        folder = Path(tempfile.mkdtemp(prefix="outcrop-rows-"))
        try:
            one = Comparison(folder, kind, share, asked.seed)
            one.compare()
        finally:
            shutil.rmtree(folder)
        compared[kind] = {mode: [f.rows, f.bytes, f.wrong] for mode, f in one.found.items()}
        unlike += [f"{kind}: mode {mode} has read nothing from the disk" for mode in one.unread()]
        unlike += [f"{kind}: mode {mode} has other batches than mode memory" for mode in one.unlike()]
        noted.add({"seed": asked.seed, "compared": compared, "unlike": unlike}, again=len(compared) > 1)
        rows, wrong = (sum(counts[at] for counts in compared[kind].values()) for at in (0, 2))
        print(f"{kind}: {rows:,} rows, {wrong} wrong, {time.monotonic() - began:.0f} s", flush=True)
    for line in unlike:
        print(f"WRONG {line}")
    told = rows_of([{"compared": compared, "unlike": unlike}])
    print(f"{told['rows_compared']:,} rows, {told['wrong']} wrong")
    return told["wrong"] > 0


if __name__ == "__main__":
    sys.exit(main())
