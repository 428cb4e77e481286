"""Benchmark ``pipeline``: overlapped stages against the same one after another (DiskGNN Table 8 and Figure 19).

The disk is slowed down to rates at which reading takes a half, the same and twice the time of computing, and is left
alone once; in mode ``packed``, whose epochs read and compute, and once in mode ``online``, whose epochs also sample and
look for pages. Computing has half of the cores, overlapped or not: as beside a GPU, loading has cores of its own.
Losses are compared: the order of the stages changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from outcrop.bench.epoch import Log, Setting, ensure_graph, ensure_run
from outcrop.config import IoConfig, ModelConfig, TrainConfig
from outcrop.errors import ArgumentError
from outcrop.loading.open import open_session
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from outcrop.training import loop as training
from outcrop.training.evaluate import evaluate
from outcrop.training.learning import LearningTask

_BALANCES = (0.5, 1.0, 2.0)  # of reading to computing
_TOLERANCE, _TRIES = 0.05, 4  # what computing takes changes from minute to minute


def run(folder: Path, setting: Setting, modes: list[str], log: Log) -> dict[str, Any]:
    """Measures cases of ``packed`` and of ``online``, as far as they are among ``modes``.

    Raises:
        ArgumentError: Neither of them is.
    """
    if not {"packed", "online"} & set(modes):
        raise ArgumentError(f"pipeline compares stages of packed and online, not of {', '.join(modes)}")
    path = ensure_graph(folder, setting.shape, log)
    run_folder, _ = ensure_run(folder, path, setting, log)
    graph = open_graph(path)
    threads = torch.get_num_threads()
    torch.set_num_threads(max(threads // 2, 1))
    cases = {}
    try:
        if "packed" in modes:
            cases = _packed(graph, run_folder, setting, log)
        if "online" in modes:
            cases["online, full rate"] = _epochs(graph, run_folder, setting, "online", 0, log)
    finally:
        torch.set_num_threads(threads)
    return {
        "experiment": "pipeline",
        "compute_threads": max(threads // 2, 1),
        "cases": cases,
        "columns": [
            "case",
            "one after another",
            "overlapped",
            "reading / computing",
            "speed-up",
            "same losses",
        ],
        "rows": [
            [
                name,
                f"{c['sequential']['seconds']:.2f} s",
                f"{c['overlapped']['seconds']:.2f} s",
                f"{c['sequential']['stages']['read'] / c['sequential']['stages']['compute']:.2f}",
                f"{c['speed_up']:.2f}x",
                "yes" if c["identical_losses"] else "NO",
            ]
            for name, c in cases.items()
        ],
    }


def _packed(graph: Graph, run_folder: Path, setting: Setting, log: Log) -> dict[str, dict[str, Any]]:
    cases = {"packed, full rate": _epochs(graph, run_folder, setting, "packed", 0, log)}
    sequential = cases["packed, full rate"]["sequential"]
    read, compute = sequential["bytes_read"], sequential["stages"]["compute"]
    for balance in _BALANCES:
        name = f"packed, reading {balance:g}x of computing"
        for _ in range(_TRIES):
            cases[name] = _epochs(graph, run_folder, setting, "packed", int(read / (compute * balance)), log)
            stages = cases[name]["sequential"]["stages"]
            compute = stages["compute"]
            if abs(stages["read"] / (compute * balance) - 1) < _TOLERANCE:
                break
    return cases


def _epochs(
    graph: Graph, run_folder: Path, setting: Setting, mode: str, rate: int, log: Log
) -> dict[str, Any]:
    log(f"{mode}: " + (f"disk at {rate / 1e6:.0f} MB/s" if rate else "disk at its own rate"))
    sequential, overlapped = (_train(graph, run_folder, setting, mode, rate, how) for how in (False, True))
    same = sequential.pop("losses") == overlapped.pop("losses")
    return {
        "sequential": sequential,
        "overlapped": overlapped,
        "speed_up": sequential["seconds"] / overlapped["seconds"],
        "identical_losses": same,
        "rate_bytes_per_s": rate or None,
    }


def _train(
    graph: Graph, run_folder: Path, setting: Setting, mode: str, rate: int, overlapped: bool
) -> dict[str, Any]:
    """Returns the median epoch after one to warm up, with the time that each stage was busy."""
    model = ModelConfig(setting.model, setting.hidden, layers=len(setting.fanouts.split(",")))
    learning = LearningTask(
        model, TrainConfig(epochs=4, trace_losses=True), graph.feature_dim, graph.num_classes
    )
    busy: dict[str, float] = defaultdict(float)

    def listen(record: dict[str, Any]) -> None:
        if "start_ns" in record:
            busy[record["name"]] += (record["end_ns"] - record["start_ns"]) / 1e9

    with (
        Runtime(setting.memory, io=IoConfig(rate_bytes_per_second=rate)) as runtime,
        open_session(graph, runtime, mode, run_folder=run_folder) as session,
        runtime.trace.listening(listen),
    ):
        read = runtime.io.counters.read_bytes

        def counters() -> dict[str, Any]:
            nonlocal read
            before, read = read, runtime.io.counters.read_bytes
            stages = dict(busy)
            busy.clear()
            return {"stages": stages, "bytes_read": read - before}

        result = training.train(
            lambda epoch: session.batches("train", epoch, overlapped=overlapped),
            None,
            learning,
            runtime,
            evaluate=evaluate,
            counters=counters,
        )
    warm = result.epochs[1:]
    names = {name for record in warm for name in record.counters["stages"]}
    return {
        "seconds": median(record.seconds for record in warm),
        "bytes_read": warm[-1].counters["bytes_read"],
        "stages": {n: median(r.counters["stages"].get(n, 0.0) for r in warm) for n in sorted(names)},
        "losses": result.batch_losses,
    }
