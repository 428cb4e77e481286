"""Epochs of training on a GPU by where rows come from: modes, budgets, cache placements, cost, accuracy.

Hyperion, Figures 7, 8 and 10; DiskGNN, Figures 8 and 10. All but ``partition`` replay the same batches of the standard
graph, so that they differ in nothing but where rows and neighbour lists are. Nothing is cached on the GPU but for
Hyperion's Figure 7. Other systems are not run: their kind of access is a
mode of Outcrop (``ondisk``: row by row without a cache; ``belady``: Ginex's cache; ``partition``: MariusGNN's).
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from outcrop.api.prepare import PrepareOptions
from outcrop.api.prepare import prepare_with_report as prepare
from outcrop.api.train import train
from outcrop.bench.epoch import ensure_graph
from outcrop.bench.gpu_figures.measure import Case, Setup
from outcrop.bench.gpu_figures.result import Bar, Benchmark, Cases
from outcrop.config import CACHE_STRATEGIES, Limits, Replay, SampleConfig, TrainConfig
from outcrop.config.models import wants_degrees
from outcrop.errors import BudgetError
from outcrop.loading.modes import mode_named, mode_with
from outcrop.runtime.observer import Observer

_OF_MODES = ("cache_strategy", "sample_on", "row_reads")
_BATCHES = SampleConfig((10, 10), 1024)
_CAPS = (0.1, 0.3, 0.5)
_LEAST_MEMORY = 16 << 20
_GPU_BATCHES = 768 << 20  # device memory for batches and their drawing, beside what is cached
_ACCURACY_EPOCHS = 10
_MOST_EPOCHS = {"online": 2, "belady": 2}  # of what waits for a disk row by row: long ones, all alike
# Hyperion, section VI: five years of a machine and of a GPU (H800), and its electricity, in dollars.
_MACHINE, _GPU, _ELECTRICITY = 14_098, 44_000, 17_000


def _graph(setup: Setup) -> Path:
    return ensure_graph(setup.folder, setup.sizes.graph, setup.log)


def _memory(setup: Setup, cap: float) -> int:
    return max(int(setup.sizes.graph.feature_bytes * cap), _LEAST_MEMORY)


def _train(setup: Setup, mode: str, cap: float | None = 0.1, *, on_gpu: bool = True, **more: Any) -> Any:
    """Returns the report of a training in ``mode`` within ``cap`` of the features; None: no limit.

    ``packed`` and ``belady`` replay a run, which is prepared before.
    """
    graph, device = _graph(setup), str(setup.device) if on_gpu else "cpu"
    memory = None if cap is None else _memory(setup, cap)
    epochs = more.get("epochs", setup.sizes.epochs)
    model = more.get("model", "sage")
    options: dict[str, Any] = {
        "model": model,
        "training": TrainConfig(
            epochs=epochs,
            test=False,
            device=device,
            evaluate_every=1 if mode_named(mode).plans_evaluation else more.get("evaluate_every", epochs),
        ),
        "limits": Limits(memory, more.get("gpu_memory", 0), more.get("disk_space")),
        "loading": mode_with(mode, {name: more[name] for name in _OF_MODES if name in more}),
        "observer": Observer(progress=False, on_choice=_quiet),
    }
    if not mode_named(mode).needs_run:
        return train(graph, sampling=_BATCHES, run=Replay(1), **options)
    run = graph.with_suffix(f".{mode}.run")
    shutil.rmtree(run, ignore_errors=True)
    sampling = replace(_BATCHES, degrees=wants_degrees(model))
    prepare(PrepareOptions(graph, run, sampling, Limits(memory), epochs=1))
    try:
        return train(graph, run=run, **options)
    finally:
        shutil.rmtree(run)


def _quiet(text: str) -> None: ...


def _seconds(report: Any) -> list[float]:
    return [epoch["seconds"] for epoch in report.epochs[1:] or report.epochs]


def _compare(parameters: dict[str, Any], reports: dict[str, Any]) -> Case:
    samples = {way: _seconds(report) for way, report in reports.items()}
    figures: dict[str, float | None] = {}
    for way, report in reports.items():
        figures[f"{way}: waiting_seconds"] = median(e["load_seconds"] for e in report.epochs)
        figures[f"{way}: bytes_read"] = report.epochs[-1]["bytes_read"]
    return Case(parameters, {way: median(of) for way, of in samples.items()}, samples, figures)


def _caches(setup: Setup) -> Cases:
    """Returns the fixed placements of topology (T) and features (F) on the GPU (G) and in the host (C), and the unified
    one.
    """
    for strategy in (*CACHE_STRATEGIES[1:], CACHE_STRATEGIES[0]):
        yield "unified" if strategy == "auto" else strategy, partial(_cached, setup, strategy)


def _cached(setup: Setup, strategy: str) -> Case:
    room = _memory(setup, 0.3)
    on_gpu = room + _GPU_BATCHES
    report = _train(
        setup, "online", 0.3, gpu_memory=on_gpu, disk_space=0, cache_strategy=strategy, sample_on="gpu"
    )
    parameters = {"memory_bytes": room, "gpu_memory_bytes": on_gpu, "cache_strategy": strategy}
    return _compare(parameters, {"online": report})


def _modes(setup: Setup) -> Cases:
    for model in ("sage", "gcn", "gat"):
        yield model, partial(_end_to_end, setup, model)


def _end_to_end(setup: Setup, model: str) -> Case:
    reports = {
        "online, by the engine": _train(setup, "online", model=model, disk_space=0),
        "online, by rings": _train(setup, "online", model=model, disk_space=0, row_reads="gpu"),
        "online, spooling": _train(setup, "online", model=model),
        "row by row": _train(setup, "ondisk", model=model, epochs=1),
        "memory": _train(setup, "memory", None, model=model),
    }
    return _compare({"model": model, "memory_bytes": _memory(setup, 0.1)}, reports)


def _costs(setup: Setup) -> Cases:
    for name, mode, cap, on_gpu in (
        ("GPU, online", "online", 0.1, True),
        ("GPU, memory", "memory", None, True),
        ("CPU, online", "online", 0.1, False),
        ("CPU, memory", "memory", None, False),
    ):
        yield name, partial(_cost, setup, mode, cap, on_gpu)


def _cost(setup: Setup, mode: str, cap: float | None, on_gpu: bool) -> Case:
    seconds = _seconds(_train(setup, mode, cap, on_gpu=on_gpu))
    price, middle = _MACHINE + _ELECTRICITY + (_GPU if on_gpu else 0), median(seconds)
    return Case(
        {"mode": mode, "dollars": price},
        {"epoch": middle},
        {"epoch": seconds},
        {"epochs_per_hour": 3600 / middle, "epochs_per_hour_per_1000_dollars": 3600 / middle / price * 1000},
    )


def _accuracies(setup: Setup) -> Cases:
    for mode in ("packed", "online", "memory", "partition"):
        yield mode, partial(_accuracy, setup, mode)


def _accuracy(setup: Setup, mode: str) -> Case:
    epochs = max(setup.sizes.epochs, min(_ACCURACY_EPOCHS, 3 * setup.sizes.epochs))
    report = _train(
        setup, mode, 0.3 if mode_named(mode).takes_run_budget else None, epochs=epochs, evaluate_every=1
    )
    seconds = [epoch["seconds"] for epoch in report.epochs]
    curve = [epoch["valid_accuracy"] for epoch in report.epochs]
    ends = list(accumulate(seconds))
    figures: dict[str, float | None] = {"best_accuracy": max(curve), "training_seconds": ends[-1]}
    return Case(
        {"mode": mode},
        {"epoch": median(_seconds(report))},
        {"epoch": seconds},
        figures,
        {"accuracy": curve, "seconds": ends},
    )


def _budgets(setup: Setup) -> Cases:
    """Returns a case for each way, so that what one of them cannot do leaves the others."""
    yield "memory", partial(_budget, setup, "memory", None)
    for cap in _CAPS:
        for mode in ("packed", "online", "belady", "partition"):
            yield f"{mode}, {cap:.0%}", partial(_budget, setup, mode, cap)


def _budget(setup: Setup, mode: str, cap: float | None) -> Case:
    """Trains; no seconds where a mode needs more memory."""
    epochs = min(setup.sizes.epochs, _MOST_EPOCHS.get(mode, setup.sizes.epochs))
    parameters = {"mode": mode, "cap": cap, "memory_bytes": None if cap is None else _memory(setup, cap)}
    try:
        return _compare(parameters, {mode: _train(setup, mode, cap, epochs=epochs)})
    except BudgetError as error:
        return Case(parameters | {"refused": str(error)}, {})


def _packed_bar(cases: dict[str, Case]) -> list[Bar]:
    least = cases[f"packed, {min(_CAPS):.0%}"].seconds["packed"]
    what = f"packed epoch in {min(_CAPS):.0%} of the features against memory"
    return [Bar(what, least / cases["memory"].seconds["memory"], most=1.15)]


BENCHMARKS = {
    "hyperion-figure-7": Benchmark("Hyperion, Figure 7", _caches),
    "hyperion-figure-8": Benchmark("Hyperion, Figure 8", _modes),
    "hyperion-figure-10": Benchmark("Hyperion, Figure 10", _costs),
    "diskgnn-figure-8": Benchmark("DiskGNN, Figure 8", _accuracies),
    "diskgnn-figure-10": Benchmark("DiskGNN, Figure 10", _budgets, _packed_bar),
}
