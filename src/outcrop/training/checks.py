"""Checks of the arguments of a training, before anything is prepared or read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outcrop import device as devices
from outcrop.config import DeviceConfig, TrainConfig
from outcrop.errors import ArgumentError
from outcrop.loading.modes import Mode, taking
from outcrop.nn import checkpoint as checkpoints
from outcrop.store import manifest as manifests
from outcrop.store.graph import Graph
from outcrop.training import loop as training
from outcrop.training.objectives import Objective


def check_minutes(minutes: float | None, checkpoint: str | Path | None) -> None:
    if minutes is not None and checkpoint is None:
        raise ArgumentError("--checkpoint-minutes needs a folder for checkpoints: name one with --checkpoint")


def plain_weights(weights: str | Sequence[float] | None) -> str | tuple[float, ...] | None:
    return weights if weights is None or isinstance(weights, str) else tuple(map(float, weights))


def check_sample_on(sample_on: str, mode: Mode, device: str) -> None:
    on_gpu = devices.gpu_named(device) is not None
    if sample_on not in ("cpu", "gpu"):
        raise ArgumentError(f"--sample-on {sample_on!r} is unknown; write cpu or gpu")
    if sample_on == "gpu" and not (on_gpu and "sample_on" in mode.options):
        raise ArgumentError(
            f"--sample-on gpu needs --mode {taking('sample_on')} and a GPU as --device, not {mode} and {device}"
        )


def check_cache_strategy(strategy: str, mode: Mode) -> None:
    """Raises ArgumentError where there is no such strategy, or ``mode`` has no cache that it could fill."""
    DeviceConfig(cache_strategy=strategy)  # which knows the names
    if strategy != "auto" and "cache_strategy" not in mode.options:
        raise ArgumentError(
            f"--cache-strategy is for --mode {taking('cache_strategy')}, not {mode}: leave it out"
        )


def check_evaluation(mode: Mode, evaluate_every: int) -> None:
    if mode.plans_evaluation and evaluate_every != 1:
        raise ArgumentError(f"mode {mode} plans for a validation in every epoch: leave --evaluate-every out")


def check_initiator(io: str, mode: Mode) -> None:
    """Raises ArgumentError where rows are to be asked for by whom ``mode`` does not know."""
    if io != "engine" and "io" not in mode.options:
        raise ArgumentError(f"io {io} is for mode {taking('io')}, not {mode}")


def check_complete(graph: Graph) -> None:
    """Raises ArgumentError where the graph lacks what training needs."""
    if not graph.has("train") or graph.spec("train").shape[0] == 0:
        raise ArgumentError(
            f"{graph.path} has no training nodes: import it again with a train split, or "
            "with --train-fraction 0.6 --overwrite"
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
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file: checkpoints need a folder")
    if manifests.exists(folder):  # which goes as a whole when it is made again
        raise ArgumentError(f"{folder} is a graph: checkpoints need a folder of their own")
    if resume and (folder / checkpoints.LAST).exists():
        training.read_checkpoint(folder, config, graph.feature_dim, graph.num_classes, inputs, objective)
