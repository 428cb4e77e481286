"""Chooses how a model is scored: layer by layer, or in sampled batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from outcrop import device as devices
from outcrop.config import as_fanouts
from outcrop.errors import ArgumentError
from outcrop.inference import layer_sums
from outcrop.inference.stack import as_stack
from outcrop.inference.whole import WholeModel
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.models import Model
from outcrop.store.graph import Graph

METHODS = ("layerwise", "sampled")


@dataclass(frozen=True)
class ScoringRequest:
    """Says what is scored, and how.

    Attributes:
        fanouts: Fanouts of sampled batches, one per layer; None: not known.
        kind: Kind of the labels that were learned: ``class``, ``multilabel`` or ``regression``.
        class_names: Names of the classes that were learned, where they are known; else empty.
    """

    model: Model | WholeModel
    method: str
    fanouts: tuple[int, ...] | None
    kind: str = "class"
    class_names: tuple[str, ...] = ()


def what_is_scored(
    graph: Graph,
    checkpoint: str | Path | None,
    model: nn.Module | None,
    method: str | None,
    fanouts: Sequence[int] | None,
    any_graph: bool,
    device: str,
) -> ScoringRequest:
    """Checks what is to be scored."""
    if method not in (None, *METHODS):
        raise ArgumentError(f"method {method!r} is unknown; known: {', '.join(METHODS)}")
    if (checkpoint is None) == (model is None):
        raise ArgumentError("give a checkpoint folder or a model of your own, one of them")
    devices.resolve(device)
    if graph.feature_bytes == 0:
        raise ArgumentError(f"{graph.path} has no features to infer from: import them with the graph")
    asked = None if fanouts is None else as_fanouts(fanouts)
    if checkpoint is not None:
        return _of_checkpoint(graph, Path(checkpoint), method, asked, any_graph, device)
    assert model is not None
    stack, why = as_stack(model)
    if stack is not None:
        width = layer_sums.widths(stack.convs[0])[0]
        if width != graph.feature_dim:
            raise ArgumentError(
                f"the model wants features of width {width}, {graph.path} has {graph.feature_dim}"
            )
        known = graph.label_kind, graph.class_names
        return ScoringRequest(stack.to(devices.resolve(device)), method or "layerwise", asked, *known)
    if method == "layerwise" or asked is None:
        raise ArgumentError(
            f"the model cannot be computed layer by layer: {why}; give fanouts to score it in sampled batches "
            "(method 'sampled')"
        )
    return ScoringRequest(
        WholeModel(model, graph.feature_dim), "sampled", asked, graph.label_kind, graph.class_names
    )


def _of_checkpoint(
    graph: Graph,
    checkpoint: Path,
    method: str | None,
    fanouts: tuple[int, ...] | None,
    any_graph: bool,
    device: str,
) -> ScoringRequest:
    model, meta = checkpoints.load_best(checkpoint, device)
    if not isinstance(model, Model):
        raise ArgumentError(
            f"{checkpoint} holds {meta.config['model']!r}, a model of graphs with node and edge types, which infer "
            "does not know yet: load it with outcrop.load_model, and call it with batches of your own"
        )
    in_dim = meta.config["in_dim"]
    if in_dim != graph.feature_dim:
        raise ArgumentError(
            f"{checkpoint} was trained on features of width {in_dim}, {graph.path} has {graph.feature_dim}: use the "
            "graph that it was trained on, or train on this one"
        )
    same_graph = meta.inputs.get("graph", graph.digest()) == graph.digest()
    if not any_graph and not same_graph:
        raise ArgumentError(
            f"{checkpoint} was trained on another graph than {graph.path}, or on another state of it: use that one, "
            "or pass --any-graph (any_graph=True) if the features mean the same"
        )
    trained = meta.inputs.get("sampling", {}).get("fanouts")
    if fanouts is None and trained is not None:
        fanouts = tuple(trained)
    # Another graph may number its classes otherwise.
    class_names = graph.class_names if same_graph else ()
    kind = meta.config.get("label_kind", "class")
    return ScoringRequest(model, method or "layerwise", fanouts, kind, class_names)
