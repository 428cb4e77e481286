"""Checks of the arguments of a training, before anything is prepared or read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outcrop import checkpoint as checkpoints
from outcrop import device as devices
from outcrop.config import CACHE_STRATEGIES, TrainConfig
from outcrop.errors import ArgumentError
from outcrop.stages import train as training
from outcrop.stages.load import MODES
from outcrop.store.graph import Graph
from outcrop.training.objectives import Objective


def check_minutes(minutes: float | None, checkpoint: str | Path | None) -> None:
    if minutes is not None and checkpoint is None:
        raise ArgumentError("--checkpoint-minutes needs a folder for checkpoints: name one with --checkpoint")


def plain_weights(weights: str | Sequence[float] | None) -> str | tuple[float, ...] | None:
    return weights if weights is None or isinstance(weights, str) else tuple(map(float, weights))


def check_sample_on(sample_on: str, mode: str, device: str) -> None:
    on_gpu = devices.gpu_named(device) is not None
    if sample_on not in ("cpu", "gpu"):
        raise ArgumentError(f"--sample-on {sample_on!r} is unknown; write cpu or gpu")
    if sample_on == "gpu" and not (on_gpu and mode == "online"):
        raise ArgumentError(
            f"--sample-on gpu needs --mode online and a GPU as --device, not {mode} and {device}"
        )


def check_cache_strategy(strategy: str, mode: str) -> None:
    if strategy not in CACHE_STRATEGIES:
        known = ", ".join(CACHE_STRATEGIES)
        raise ArgumentError(f"cache strategy {strategy!r} is unknown; known: {known}")
    if strategy != "auto" and mode != "online":
        raise ArgumentError(f"--cache-strategy is for --mode online, not {mode}: leave it out")


def check_mode(mode: str, evaluate_every: int) -> None:
    if mode not in MODES:
        raise ArgumentError(f"mode {mode!r} is unknown; known: {', '.join(MODES)}")
    if mode == "belady" and evaluate_every != 1:
        raise ArgumentError("mode belady plans for a validation in every epoch: leave --evaluate-every out")


def check_complete(graph: Graph) -> None:
    """Raises ArgumentError where the graph lacks what training needs."""
    if not graph.has("train") or graph.spec("train").shape[0] == 0:
        raise ArgumentError(
            f"{graph.path} has no training nodes: import a train split, or use --train-fraction"
        )
    if not graph.has("labels") or graph.num_classes < 1:
        raise ArgumentError(f"{graph.path} has no labels to learn: import them with the graph")
    if graph.feature_bytes == 0:
        raise ArgumentError(f"{graph.path} has no features to learn from: import them with the graph")


def check_checkpoint(
    folder: Path,
    resume: bool,
    graph: Graph,
    config: TrainConfig,
    inputs: dict[str, Any],
    objective: Objective,
) -> None:
    """Raises ArgumentError where checkpoints cannot lie, or those there are of another training."""
    if not folder.is_dir():
        raise ArgumentError(f"{folder} is a file: checkpoints need a folder")
    if resume and (folder / checkpoints.LAST).exists():
        training.read_checkpoint(folder, config, graph.feature_dim, graph.num_classes, inputs, objective)
