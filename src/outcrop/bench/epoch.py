"""Benchmarks ``epoch``, ``loader`` and ``prepare``: the modes against each other on one graph, at one memory cap.

Every measurement is a process of its own under a control group that caps it (and its page cache) at the budget plus
the documented allowance, where the system lets us. Modes take turns (A, B, A, B), medians are reported; bytes and peaks
are exact. Mode ``memory`` runs without a cap: it is what the others are compared with.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from outcrop.api.graph import generate_graph
from outcrop.bench import row_files
from outcrop.bench.graphs import GraphShape
from outcrop.bench.process import outcrop
from outcrop.config import ALLOWANCE_BYTES, ModelConfig, format_bytes
from outcrop.config.models import wants_edge_rows
from outcrop.loading.modes import InMemory, Mode, Online, Packed, mode_named
from outcrop.loading.open import open_session
from outcrop.nn.models import build_model
from outcrop.nn.schema import GraphSchema
from outcrop.runtime.runtime import Runtime
from outcrop.store import run as runs
from outcrop.store.graph import open_graph

Log = Callable[[str], None]
# Mode online as a user gets it, of the batches that the others replay (``online``) and of new ones in every epoch
# (``fresh``); packed pools of one new epoch each; mode online that reads the run's rows as batches are drawn.
ONLINE, FRESH, REFRESH, DIRECT = "online", "fresh", "refresh", "direct"
# New batches in every epoch, drawn in memory, and all packed before the first.
MEMORY_FRESH, PACKED_FRESH = "memory-fresh", "packed-fresh"
NEW_BATCHES = (FRESH, REFRESH, MEMORY_FRESH, PACKED_FRESH)
WITHOUT_RUN = (ONLINE, FRESH, MEMORY_FRESH, PACKED_FRESH)
SPREAD = (ONLINE, FRESH, PACKED_FRESH)  # what is prepared for several epochs counts in all of them
_UNLIMITED = "1TiB"


@dataclass(frozen=True)
class Setting:
    """Says what is measured.

    Attributes:
        cap: Share of the bytes of the rows that the budget allows: those of nodes, and of edges where they are loaded.
        no_rows: What nodes of a type without features get, as of ``outcrop train``.
        edge_rows: Batches have the rows of their edges; so they have for models that take some.
    """

    shape: GraphShape = field(default_factory=GraphShape)
    fanouts: str = "10,10"
    batch_size: int = 1024
    cap: float = 0.1
    model: str = "sage"
    hidden: int = 256
    epochs: int = 5
    rounds: int = 2
    sampler: str = "neighbor"
    dependency: int = 1
    no_rows: str | None = None
    edge_rows: bool = False

    @property
    def batches(self) -> str:
        """Names the batches, for names of runs."""
        drawn = "" if self.sampler == "neighbor" else f"-{self.sampler}{self.dependency}"
        return self.fanouts.replace(",", "-") + drawn + ("-edges" if self.loads_edge_rows else "")

    @property
    def loads_edge_rows(self) -> bool:
        """Tells whether batches have rows of their edges."""
        return self.edge_rows or wants_edge_rows(self.model, self.shape.edge_features > 0)

    @property
    def memory(self) -> int:
        edges = self.shape.edge_row_bytes if self.loads_edge_rows else 0
        return int((self.shape.feature_bytes + edges) * self.cap)


def ensure_graph(folder: Path, shape: GraphShape, log: Log) -> Path:
    """Returns the graph of ``shape`` in ``folder``, generated unless it is there."""
    path = folder / f"{shape.name}.oc"
    if not (path / "manifest.json").is_file():
        log(
            f"generating {shape.name}: {format_bytes(shape.feature_bytes + shape.edge_row_bytes)} of features"
        )
        generate_graph(path, shape.config, progress=False)
    return path


def ensure_run(folder: Path, graph: Path, setting: Setting, log: Log) -> tuple[Path, dict[str, Any]]:
    """Returns the prepared run of ``setting``, made under its cap."""
    run = folder / f"{graph.stem}-{setting.batches}-cap{setting.cap:g}.run"
    log(f"preparing {run.name} in {format_bytes(setting.memory)}")
    return run, prepared_run(graph, run, setting)


def prepared_run(graph: Path, run: Path, setting: Setting) -> dict[str, Any]:
    """Prepares ``run`` in a process under the cap; its report, with the limit and the peak of the process."""
    command = ["prepare", graph, run, *_batches(setting), "--memory", str(setting.memory)]
    command += ["--epochs", "1", "--overwrite"]  # which training replays
    done = outcrop(command, limit_bytes=setting.memory + ALLOWANCE_BYTES)
    return {**done.result, "peak_group_bytes": done.peak_group_bytes, "limit_bytes": done.limit_bytes}


def _batches(setting: Setting) -> list[str]:
    drawn = ["--sampler", setting.sampler, "--batch-dependency", str(setting.dependency)]
    drawn += ["--edge-rows"] if setting.loads_edge_rows else []
    return ["--fanouts", setting.fanouts, "--batch-size", str(setting.batch_size), *drawn]


def train_once(graph: Path, run: Path | None, setting: Setting, mode: str, epochs: int) -> dict[str, Any]:
    """Trains in a process, under the cap but for mode ``memory``; its report, with the limit and the peak.

    The baselines that cannot keep to a budget are given the same cap by the kernel alone.
    """
    named = mode_of(mode)
    capped = named.takes_run_budget
    pools = graph.with_suffix(".pools") if mode == REFRESH else None
    run = None if mode in WITHOUT_RUN else run
    fresh_run = graph.with_name(graph.name + ".run") if mode == PACKED_FRESH else None
    if fresh_run is not None:
        shutil.rmtree(fresh_run, ignore_errors=True)  # preparing is part of what is measured
    command: list[str | Path] = ["train", graph, "--mode", named.name, "--model", setting.model]
    command += ["--hidden", str(setting.hidden), "--epochs", str(epochs), "--trace-losses"]
    command += [] if setting.no_rows is None else ["--no-rows", setting.no_rows]
    source = pools or run
    command += [] if source is None else ["--run", source]
    command += _batches(setting) if run is None or pools else []
    command += ["--refresh"] if mode == REFRESH else []
    command += ["--sample-epochs", "1"] if run is None and mode in ("memory", ONLINE) else []
    command += ["--memory", str(setting.memory) if capped else _UNLIMITED]
    if not named.plans_evaluation:  # scores are not what is measured
        command += ["--evaluate-every", str(epochs)]
    done = outcrop(command, limit_bytes=setting.memory + ALLOWANCE_BYTES if capped else None)
    if mode in SPREAD:
        count_spooling(done.result)
    if fresh_run is not None:
        shutil.rmtree(fresh_run)
    if pools:
        for pool in done.result["pools"]:  # an epoch of its own each: what it waited for is part of it
            record = done.result["epochs"][pool["first_epoch"]]
            record["seconds"] += pool["waited_seconds"]
            record["load_seconds"] += pool["waited_seconds"]
            record["bytes_read"] += pool["bytes_read"]
        shutil.rmtree(pools)
    return {**done.result, "limit_bytes": done.limit_bytes, "peak_group_bytes": done.peak_group_bytes}


_MODES = {
    REFRESH: Packed.name,
    FRESH: Online.name,
    DIRECT: Online.name,
    MEMORY_FRESH: InMemory.name,
    PACKED_FRESH: Packed.name,
}


def mode_of(name: str) -> Mode:
    """Returns the mode that a measurement called ``name`` trains in."""
    return mode_named(_MODES.get(name, name))


def count_spooling(result: dict[str, Any]) -> None:
    """Adds to every epoch its part of what spooling or packing took, that of the first epochs included."""
    made = [result["prepare"]] if result["prepare"] else []
    seconds = sum(pool["waited_seconds"] for pool in result["pools"]) + sum(one["seconds"] for one in made)
    read = sum(pool["bytes_read"] for pool in result["pools"]) + sum(one["bytes_read"] for one in made)
    for record in result["epochs"]:
        record["seconds"] += seconds / len(result["epochs"])
        record["load_seconds"] += seconds / len(result["epochs"])
        record["bytes_read"] += read // len(result["epochs"])


def epoch(folder: Path, setting: Setting, modes: Sequence[str], log: Log) -> dict[str, Any]:
    """Trains in each mode and compares epoch times with ``memory`` and with the bare products of its shapes.

    Like is compared with like: modes with new batches in every epoch with ``memory-fresh``, which is measured too.
    """
    if "memory" in modes and MEMORY_FRESH not in modes and any(mode in NEW_BATCHES for mode in modes):
        modes = [*modes, MEMORY_FRESH]
    graph = ensure_graph(folder, setting.shape, log)
    run, prepared = ensure_run(folder, graph, setting, log)
    results: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    for turn in range(setting.rounds):
        for mode in modes:
            log(f"round {turn + 1}/{setting.rounds}: {mode}")
            results[mode].append(train_once(graph, run, setting, mode, _epochs(mode, setting)))
    bare = bare_epoch_seconds(graph, run, setting)
    rows = {mode: _summary(mode, runs_of_mode) for mode, runs_of_mode in results.items()}
    model = ModelConfig(setting.model, setting.hidden, no_rows=setting.no_rows)
    row_files.add(rows, open_graph(graph).with_edge_rows(setting.loads_edge_rows), run, model)
    base = rows["memory"]["seconds"] if "memory" in rows else None
    for mode, row in rows.items():
        like = rows.get(MEMORY_FRESH if mode in NEW_BATCHES else "memory")
        row["against_memory"] = None if like is None else row["seconds"] / like["seconds"]
    losses = {
        tuple(r["batch_losses"][: len(next(iter(results.values()))[0]["batch_losses"])])[:20]
        for mode, rs in results.items()
        for r in rs
        if not mode_of(mode).batches_by_budget  # draws other batches, on purpose
    }
    return {
        "experiment": "epoch",
        "setting": plain(setting),
        "modes": rows,
        "bare_products_seconds": bare,
        "memory_against_bare": None if base is None or bare is None else base / bare,
        "prepare": prepared,
        "first_20_losses_identical": len(losses) == 1,
    }


def _epochs(mode: str, setting: Setting) -> int:
    """Says how many epochs a process has: slow modes go over the data once, those with a cache that must fill twice."""
    many = ("packed", "memory", REFRESH, *WITHOUT_RUN)
    return setting.epochs if mode in many else {"dynamic": 2, "belady": 2}.get(mode, 1)


def middle(mode: str, seconds: Iterable[float]) -> float:
    """Returns the median; of spooled epochs the mean: the first of each spool is the slower one, and what it takes
    counts.
    """
    return fmean(seconds) if mode in SPREAD else median(seconds)


def _summary(mode: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    # The first epoch of a process pays for warming up; where there are more it is left out.
    epochs = [e for r in results for e in (r["epochs"][1:] or r["epochs"])]
    last = epochs[-1]
    return {
        "seconds": middle(mode, (e["seconds"] for e in epochs)),
        "load_seconds": middle(mode, (e["load_seconds"] for e in epochs)),
        "all_seconds": [e["seconds"] for e in epochs],
        "bytes_read": last["bytes_read"],
        "read_ops": last["read_ops"],
        "bytes_needed_from_disk": last["bytes_needed_from_disk"],
        "read_amplification": last["bytes_read"] / last["bytes_needed_from_disk"]
        if last["bytes_needed_from_disk"]
        else None,
        "rows_by_level": last["rows_by_level"],
        **({"rows_by_file": last["rows_by_file"]} if "rows_by_file" in last else {}),
        "peak_host_bytes": max(r["peak_host_bytes"] for r in results),
        "peak_process_bytes": max(r["peak_process_bytes"] for r in results),
        "limit_bytes": results[-1].get("limit_bytes"),
        "mode": mode,
        "distinct_epochs": results[-1]["distinct_epochs"],
    }


def bare_epoch_seconds(graph_path: Path, run: Path, setting: Setting, rounds: int = 3) -> float | None:
    """Gives seconds that the bare dense and sparse products of one epoch's batches take, batches already in memory.

    None: of other models of graphs with types than ``rgcn`` and ``rsage`` they are not known.
    """
    from outcrop.bench.compute import bare_products, bare_typed_products

    graph = open_graph(graph_path)
    model: Any = None
    if graph.is_typed:
        if setting.model not in ("rgcn", "rsage"):
            return None
        schema, layers = GraphSchema.of(graph, no_rows=setting.no_rows), len(setting.fanouts.split(","))
        model = build_model(setting.model, schema, setting.hidden, graph.seed_type.num_classes, layers)
    with Runtime() as runtime, open_session(graph, runtime, "memory", run_folder=run) as session:
        totals = []
        for _ in range(rounds):
            total = 0.0
            for batch in session.batches("train", 0):
                products = (
                    bare_products(batch, setting.hidden, graph.num_classes)
                    if model is None
                    else bare_typed_products(batch, model)
                )
                begin = time.perf_counter()
                products()
                total += time.perf_counter() - begin
                del batch, products
            totals.append(total)
    return median(totals[1:] or totals)


def loader(folder: Path, setting: Setting, modes: Sequence[str], log: Log) -> dict[str, Any]:
    """Delivers the batches of an epoch without a model; packed against the disk's rate and the copy rate."""
    from outcrop.advisor.machine import measure_disk
    from outcrop.runtime.machine import sequential_rate

    graph = ensure_graph(folder, setting.shape, log)
    run, _ = ensure_run(folder, graph, setting, log)
    disk, copy = measure_disk(folder), copy_rate()
    rows: dict[str, Any] = {}
    rates = []
    for _ in range(setting.rounds):
        rates.append(sequential_rate(run / "pack" / "records.bin", seconds=1.0))
        for mode in modes:
            log(f"loading: {mode}")
            row = _load_once(graph, run, mode, setting, _epochs(mode, setting))
            if mode not in rows or row["seconds"] < rows[mode]["seconds"]:
                rows[mode] = row
    disk["records_bytes_per_s"] = median(rates)  # of the very file, while the others were measured
    limit = min(disk["records_bytes_per_s"], copy)
    for row in rows.values():
        row["of_limit"] = row["bytes_read"] / row["seconds"] / limit
    return {
        "experiment": "loader",
        "setting": plain(setting),
        "modes": rows,
        "disk": disk,
        "copy_bytes_per_s": copy,
        "limit_bytes_per_s": limit,
    }


def _load_once(graph_path: Path, run: Path, mode: str, setting: Setting, epochs: int) -> dict[str, Any]:
    graph, info = open_graph(graph_path).with_edge_rows(setting.loads_edge_rows), runs.read(run)
    named = mode_named(ONLINE if mode == DIRECT else mode)
    memory = info.plan.memory if named.takes_run_budget else None
    with Runtime(memory) as runtime, open_session(graph, runtime, named, run_folder=run) as session:
        seconds, read, batches = [], 0, session.batches("train", 0)
        batches.close()
        for number in range(epochs):
            before, begin = runtime.io.counters, time.perf_counter()
            batches = session.batches("train", number)
            for batch in batches:
                del batch
            seconds.append(time.perf_counter() - begin)
            read = runtime.io.counters.read_bytes - before.read_bytes
        return {
            "seconds": median(seconds),
            "bytes_read": read,
            "bytes_needed": batches.stats.bytes_needed,
            "rows_by_level": batches.stats.rows_by_level,
            "peak_host_bytes": runtime.budget.peak_bytes,
            "delivered_bytes_per_s": sum(
                sum(levels.values()) * rows.row_bytes
                for rows, levels in zip(graph.row_files, batches.stats.rows_by_file, strict=True)
            )
            / median(seconds),
        }


def copy_rate(size_bytes: int = 256 << 20, rounds: int = 5) -> float:
    """Returns bytes per second of one thread copying memory that fits in no cache."""
    import numpy as np

    source, target = np.ones(size_bytes, np.uint8), np.ones(size_bytes, np.uint8)
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begin)
    return size_bytes / best


def plain(setting: Setting) -> dict[str, Any]:
    return {**asdict(setting), "memory": setting.memory}
