"""Checks of the arguments of a training, before anything is prepared or read."""

from __future__ import annotations

import errno
import os

from outcrop.config import Checkpoints, ModelConfig, SampleConfig
from outcrop.config.models import edge_rows_problem, edge_weights_problem, wants_edge_rows
from outcrop.config.sampling import EXTERNAL
from outcrop.errors import ArgumentError, IoError
from outcrop.loading.modes import Mode
from outcrop.nn.checkpoint_meta import LAST
from outcrop.store import manifest as manifests
from outcrop.store.graph import Graph
from outcrop.store.graph_types import WEIGHTS
from outcrop.store.seed_nodes import require_training_nodes
from outcrop.training.last_checkpoint import read_last
from outcrop.training.learning import LearningTask

_WHOLE = ("shadow", EXTERNAL)  # samplers whose batches have no layers of their own


def check_evaluation(mode: Mode, evaluate_every: int) -> None:
    if mode.plans_evaluation and evaluate_every != 1:
        raise ArgumentError(f"mode {mode} plans for a validation in every epoch: leave --evaluate-every out")


def check_layers(model: ModelConfig, sampling: SampleConfig) -> None:
    """Raises ArgumentError where batches have other hops than the model has layers; those of some samplers are computed
    whole by every layer.
    """
    hops = len(sampling.fanouts)
    if model.layers not in (None, hops) and sampling.sampler not in _WHOLE:
        raise ArgumentError(
            f"the model has {model.layers} layers, the batches {hops} hops (fanouts "
            f"{','.join(map(str, sampling.fanouts))}): give one fanout per layer, or leave --layers out"
        )


def check_steps(learning: LearningTask) -> None:
    """Raises ArgumentError where rows that are learned would be updated by several batches at once."""
    if learning.training.step_batches > 1 and learning.learned_bytes:
        raise ArgumentError(
            "rows of nodes that are learned with the model are updated after each batch: leave --accumulate "
            f"{learning.training.accumulate} out, or give such nodes rows that are not learned (--no-rows random:64)"
        )


def check_complete(graph: Graph) -> None:
    """Raises ArgumentError where the graph lacks what training needs."""
    require_training_nodes(graph)
    if not graph.has("labels") or graph.num_classes < 1:
        raise ArgumentError(f"{graph.path} has no labels to learn: import them with the graph")
    if not graph.is_typed and (graph.feature_bytes == 0 or not graph.has("features")):
        raise ArgumentError(f"{graph.path} has no features to learn from: import them with the graph")


def edge_width(graph: Graph, model: ModelConfig, sampling: SampleConfig) -> int | None:
    """Returns the width of the features of edges that ``model`` takes from the batches of a graph; None: it takes none.

    Raises:
        ArgumentError: It cannot do without, or batches cannot have what ``sampling`` asks for.
    """
    graph.require_edge_rows(sampling.edge_rows)
    taken = wants_edge_rows(model.name, sampling.edge_rows and not graph.is_typed)
    if problem := edge_rows_problem(model.name, taken) if not graph.is_typed else None:
        if taken or not graph.has_edge_rows:
            raise ArgumentError(f"{graph.path}: {problem}")
        raise ArgumentError(
            f"{problem} in its run: prepare it with --edge-rows (SampleConfig(edge_rows=True))"
        )
    return graph.row_files[-1].width if taken else None


def check_weights(graph: Graph, model: ModelConfig, sampling: SampleConfig) -> None:
    """Raises ArgumentError where batches cannot have the weights of edges that ``model`` takes, or have used them up.

    A sampler that draws edges in proportion to their weights counts them so already.
    """
    graph.require_edge_weights(sampling.edge_weights or model.edge_weights)
    if not model.edge_weights:
        return
    if sampling.sampler == "weighted":
        raise ArgumentError(
            "sampler 'weighted' draws neighbours in proportion to the edge weights, and --edge-weights (edge_weights "
            "of the model) would count them a second time: leave it out, or choose sampler neighbor or labor"
        )
    if not sampling.edge_weights:
        raise ArgumentError(
            "the model takes weights of edges, and its run has none: prepare it with --edge-weights "
            "(SampleConfig(edge_weights=True))"
        )


def weights_left_out(graph: Graph, model: ModelConfig, sampling: SampleConfig) -> str:
    """Says that the weights of edges are left out where they might be taken; else an empty text."""
    left_out = graph.has(WEIGHTS) and not model.edge_weights and sampling.sampler != "weighted"
    if not left_out or edge_weights_problem(model.name, True) is not None:
        return ""
    return (
        f"the graph has edge weights, and {model.name} counts all edges alike: --edge-weights "
        "(ModelConfig(edge_weights=True)) takes them"
    )


def check_checkpoint(kept: Checkpoints, learning: LearningTask) -> None:
    """Raises ArgumentError where checkpoints cannot lie, or those there are of another training."""
    folder = kept.path
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file: checkpoints need a folder")
    if manifests.exists(folder):  # which goes as a whole when it is made again
        raise ArgumentError(f"{folder} is a graph: checkpoints need a folder of their own")
    if kept.resume and (folder / LAST).exists():
        read_last(folder, learning)


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
