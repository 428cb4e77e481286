"""Benchmark ``infer``: inference layer by layer under the cap against the same in memory, and evaluation in training.

Each measurement is a process of its own, under a control group that caps it where there is a budget; the two take
turns. Models have random parameters: what is measured does not depend on them. Bytes are set against what layers that
hand rows to each other cannot save: each layer's input, lists and output once. The outputs of both are compared bit for
bit, and the bytes of every run with those that were predicted before it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from outcrop.api.graph import generate_graph
from outcrop.bench.epoch import Log, Setting, ensure_graph, plain
from outcrop.bench.kept import Kept
from outcrop.bench.origin import source_revision
from outcrop.bench.process import CommandResult, outcrop
from outcrop.config import ALLOWANCE_BYTES, format_bytes
from outcrop.errors import OutcropError
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.models import build_model
from outcrop.store.graph import Graph, open_graph

MODELS, LAYERS = ("sage", "gcn", "gat"), (2, 3)
_UNLIMITED = "1TiB"
_TRAIN_SHARE, _VALID_SHARE = 0.01, 0.05  # of the nodes, where evaluation is measured


def run(
    folder: Path,
    setting: Setting,
    log: Log,
    models: Sequence[str] = MODELS,
    layers: Sequence[int] = LAYERS,
) -> dict[str, Any]:
    """Infers with each model and number of layers, and evaluates a large validation split."""
    graph = open_graph(ensure_graph(folder, setting.shape, log))
    kept = Kept(folder / "infer.json", {"revision": source_revision(), **plain(setting)})
    evaluation = kept.measured("evaluation", lambda: evaluate(folder, setting, log))
    cases = []
    for model, depth in product(models, layers):
        of_model = replace(setting, model=model)
        compare = partial(_compare, folder, graph, of_model, depth, log)
        cases.append(kept.measured(f"{model}, {depth} layers", compare))
    return {
        "experiment": "infer",
        "setting": plain(setting),
        "cases": cases,
        "evaluation": evaluation,
        "columns": [
            "model",
            "layers",
            "in memory",
            "capped",
            "to memory",
            "moved",
            "to floor",
            "bits",
            "held",
        ],
        "rows": [
            [
                case["model"],
                str(case["layers"]),
                f"{case['memory']['seconds']:.1f} s",
                f"{case['capped']['seconds']:.1f} s",
                f"{case['against_memory']:.2f}x",
                format_bytes(case["capped"]["bytes_moved"]),
                f"{case['memory']['against_floor']:.2f}x, {case['capped']['against_floor']:.2f}x",
                "same" if case["same_bits"] else f"differ by {case['largest_difference']:.1e}",
                format_bytes(case["capped"]["peak_host_bytes"]),
            ]
            for case in cases
        ],
        "says": f"evaluation: {evaluation['valid_seconds_per_seed'] * 1e6:.1f} us a seed, training: "
        f"{evaluation['train_seconds_per_seed'] * 1e6:.1f} us, {evaluation['against_training']:.2f}x",
    }


def _compare(folder: Path, graph: Graph, setting: Setting, layers: int, log: Log) -> dict[str, Any]:
    """Infers in memory and within the budget, in turn."""
    turns: dict[str, list[dict[str, Any]]] = {"memory": [], "capped": []}
    checkpoint = _checkpoint(folder / "bench-infer.ckpt", graph, setting, layers)
    for turn in range(setting.rounds):
        for name, found in turns.items():
            log(f"round {turn + 1}/{setting.rounds}: {setting.model}, {layers} layers, {name}")
            memory = setting.memory if name == "capped" else None
            found.append(_infer(graph, checkpoint, folder / f"bench-infer-{name}.npy", memory))
    return _case(setting.model, layers, graph, turns, folder)


def _checkpoint(folder: Path, graph: Graph, setting: Setting, layers: int) -> Path:
    """Writes a model with random parameters, as training would leave it."""
    config = {
        "model": setting.model,
        "in_dim": graph.feature_dim,
        "hidden": setting.hidden,
        "num_classes": graph.num_classes,
        "layers": layers,
        "heads": 4,
        "dropout": 0.0,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(
            setting.model, graph.feature_dim, setting.hidden, graph.num_classes, layers, heads=4, dropout=0.0
        )
    shutil.rmtree(folder, ignore_errors=True)
    meta = checkpoints.Meta(1, 0, config, {"graph": graph.digest(), "sampling": {"fanouts": [10] * layers}})
    checkpoints.write(folder / checkpoints.BEST, checkpoints.Checkpoint(meta, dict(model.state_dict())))
    return folder


def _infer(graph: Graph, checkpoint: Path, out: Path, memory: int | None) -> dict[str, Any]:
    """Infers in a process, under the cap where there is a budget; its report, with the limit and the peak."""
    command: list[str | Path] = ["infer", graph.path, "--checkpoint", checkpoint, "--out", out]
    command += ["--memory", _UNLIMITED if memory is None else str(memory)]
    done = outcrop(command, limit_bytes=None if memory is None else memory + ALLOWANCE_BYTES)
    report = done.result
    layers_read = report["bytes_read"] - report["export_bytes_read"]
    for counted, predicted in (
        (layers_read, report["predicted_bytes_read"]),
        (report["bytes_written"], report["predicted_bytes_written"]),
    ):
        if predicted is not None and counted != predicted:
            raise OutcropError(f"{counted} bytes were moved, {predicted} predicted: {command}")
    return {
        **report,
        "bytes_moved": layers_read + report["bytes_written"],
        "predicted": report["predicted_bytes_read"] is not None,
        **_limits(done),
    }


def _limits(done: CommandResult) -> dict[str, int | None]:
    return {"limit_bytes": done.limit_bytes, "peak_group_bytes": done.peak_group_bytes}


def _case(
    model: str, layers: int, graph: Graph, turns: dict[str, list[dict[str, Any]]], folder: Path
) -> dict[str, Any]:
    floor = floor_bytes(graph, turns["memory"][0])
    found: dict[str, Any] = {}
    for name, reports in turns.items():
        last = reports[-1]
        found[name] = {
            **last,
            "seconds": median(one["seconds"] for one in reports),
            "all_seconds": [one["seconds"] for one in reports],
            "against_floor": last["bytes_moved"] / floor,
        }
    outputs = [np.load(folder / f"bench-infer-{name}.npy", mmap_mode="r") for name in turns]
    step, largest, same = 1 << 16, 0.0, True
    for start in range(0, len(outputs[0]), step):
        one, other = (output[start : start + step] for output in outputs)
        same = same and one.tobytes() == other.tobytes()
        largest = max(largest, float(np.abs(one - other).max(initial=0)))
    for name in turns:
        (folder / f"bench-infer-{name}.npy").unlink()
    return {
        "model": model,
        "layers": layers,
        **found,
        "floor_bytes": floor,
        "against_memory": found["capped"]["seconds"] / found["memory"]["seconds"],
        "same_bits": same,
        "largest_difference": largest,
    }


def floor_bytes(graph: Graph, report: dict[str, Any]) -> int:
    """Counts what layers that write rows for each other cannot save: of each its input, its lists and its output, each
    once.
    """
    outputs = [layer["output_bytes"] for layer in report["layers"]]
    inputs = [graph.feature_bytes, *outputs[:-1]]
    lists = sum(graph.spec(name).data_bytes for name in ("indptr", "indices"))
    return sum(inputs) + sum(outputs) + len(outputs) * lists


def evaluate(folder: Path, setting: Setting, log: Log) -> dict[str, Any]:
    """Trains on a graph with several validation nodes for each training node; gives what a seed takes in training and
    in evaluation, each with what is waited for.
    """
    shape = setting.shape
    path = folder / f"{shape.name}-valid.oc"
    if not (path / "manifest.json").is_file():
        log(f"generating {path.name}")
        shares = {"train_fraction": _TRAIN_SHARE, "valid_fraction": _VALID_SHARE, "test_fraction": 0.001}
        config = replace(shape.config, **shares)
        generate_graph(path, config, progress=False)
    graph, trace = open_graph(path), folder / "bench-infer.jsonl"
    train, valid = (graph.spec(name).shape[0] for name in ("train", "valid"))
    command: list[str | Path] = ["train", path, "--mode", "online", "--model", setting.model]
    command += ["--fanouts", setting.fanouts, "--batch-size", str(setting.batch_size)]
    command += ["--hidden", str(setting.hidden), "--epochs", "1", "--memory", str(setting.memory)]
    limits: dict[str, int | None] = {}
    seconds: dict[str, list[float]] = {"train.epoch": [], "train.validate": []}
    for turn in range(setting.rounds):
        log(f"round {turn + 1}/{setting.rounds}: evaluating {valid:,} nodes, training with {train:,}")
        trace.unlink(missing_ok=True)
        done = outcrop([*command, "--trace", trace], limit_bytes=setting.memory + ALLOWANCE_BYTES)
        limits = _limits(done)
        for line in trace.read_text().splitlines():
            if (event := json.loads(line))["name"] in seconds:
                seconds[event["name"]].append((event["end_ns"] - event["start_ns"]) / 1e9)
    trace.unlink()
    of_train, of_valid = (
        median(found) / seeds for found, seeds in zip(seconds.values(), (train, valid), strict=True)
    )
    return {
        "train_seeds": train,
        "valid_seeds": valid,
        "seconds": seconds,
        "train_seconds_per_seed": of_train,
        "valid_seconds_per_seed": of_valid,
        "against_training": of_valid / of_train,
        **limits,
    }
