"""Checks of the arguments of a training, before anything is prepared or read."""

from __future__ import annotations

import errno
import os

from outcrop.config import Checkpoints, ModelConfig
from outcrop.config.models import MODELS, TYPED_MODELS
from outcrop.errors import ArgumentError, IoError
from outcrop.loading.modes import Mode
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.schema import GraphSchema
from outcrop.store import manifest as manifests
from outcrop.store.graph import Graph
from outcrop.training import loop
from outcrop.training.learning import LearningTask


def check_evaluation(mode: Mode, evaluate_every: int) -> None:
    if mode.plans_evaluation and evaluate_every != 1:
        raise ArgumentError(f"mode {mode} plans for a validation in every epoch: leave --evaluate-every out")


def check_complete(graph: Graph) -> None:
    """Raises ArgumentError where the graph lacks what training needs."""
    if not graph.has("train") or graph.spec("train").shape[0] == 0:
        raise ArgumentError(
            f"{graph.path} has no training nodes: import it again with a train split, or "
            "with --train-fraction 0.6 --overwrite (ImportConfig(train_fraction=0.6), overwrite=True)"
        )
    if not graph.has("labels") or graph.num_classes < 1:
        raise ArgumentError(f"{graph.path} has no labels to learn: import them with the graph")
    if graph.feature_bytes == 0:
        raise ArgumentError(f"{graph.path} has no features to learn from: import them with the graph")


def schema_of(graph: Graph, model: ModelConfig, seed: int) -> GraphSchema | None:
    """Returns what a model needs to know of a graph with types; None where it has none.

    Raises:
        ArgumentError: The model is for other graphs, or nothing says what nodes of a type without features have.
    """
    if graph.is_typed != (model.name in TYPED_MODELS):
        fitting = TYPED_MODELS if graph.is_typed else MODELS
        has = "types of nodes and edges" if graph.is_typed else "no types of nodes or edges"
        raise ArgumentError(f"{graph.path} has {has}: for model {model.name!r} choose {', '.join(fitting)}")
    if not graph.is_typed:
        return None
    return GraphSchema.of(graph, graph.seed_type.name, no_rows=model.no_rows, row_seed=seed)


def check_checkpoint(kept: Checkpoints, learning: LearningTask) -> None:
    """Raises ArgumentError where checkpoints cannot lie, or those there are of another training."""
    folder = kept.path
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file: checkpoints need a folder")
    if manifests.exists(folder):  # which goes as a whole when it is made again
        raise ArgumentError(f"{folder} is a graph: checkpoints need a folder of their own")
    if kept.resume and (folder / checkpoints.LAST).exists():
        loop.read_checkpoint(folder, learning)


def check_beside(graph: Graph) -> None:
    """Raises IoError where nothing can be prepared beside the graph."""
    parent = graph.path.parent
    if not os.access(parent, os.W_OK | os.X_OK):
        raise IoError(
            errno.EACCES,
            f"{parent} is not writable, where batches would be prepared beside {graph.path.name}: prepare them "
            f"elsewhere (outcrop prepare {graph.path} RUN, then --run RUN, run='RUN'), or choose a mode that prepares "
            "nothing (--mode online, loading='online')",
        )
