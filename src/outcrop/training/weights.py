"""Class weights: what the loss of a seed counts, by its label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outcrop.errors import ArgumentError
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph

_BLOCK_NODES = 1 << 16


def class_weights(
    graph: Graph, wanted: str | Sequence[float] | None, runtime: Runtime
) -> tuple[float, ...] | None:
    """Returns one weight per class, or None where all weigh the same.

    Args:
        wanted: ``balanced``: inversely proportional to how often a class is among the training nodes; equals
            scikit-learn's ``compute_class_weight("balanced", classes=np.unique(y), y=y)``, and 0 for classes that are
            not there. Else the weights themselves.

    Raises:
        ArgumentError: Not one weight per class.
    """
    check_class_weights(graph, wanted)
    if wanted is None or isinstance(wanted, str):
        return None if wanted is None else _balanced(_count_classes(graph, runtime))
    return tuple(float(weight) for weight in wanted)


def check_class_weights(graph: Graph, wanted: str | Sequence[float] | None) -> None:
    """Raises ArgumentError where ``wanted`` are no weights for the classes of ``graph``; reads no labels."""
    if wanted is not None and graph.label_kind != "class":
        raise ArgumentError(
            f"class weights are for classes; {graph.path} has labels of kind {graph.label_kind}"
        )
    if wanted is not None and not isinstance(wanted, str) and len(wanted) != graph.num_classes:
        raise ArgumentError(
            f"{len(wanted)} class weights are given for {graph.num_classes} classes: give one per class, or 'balanced'"
        )


def _balanced(counts: np.ndarray) -> tuple[float, ...]:
    there = counts > 0
    weights = np.zeros(len(counts))
    weights[there] = counts.sum() / (there.sum() * counts[there])
    return tuple(weights.tolist())


def _count_classes(graph: Graph, runtime: Runtime) -> np.ndarray:
    """Counts how many training nodes have each label: int64 [num_classes]."""
    nodes, labels = graph.array(runtime, "train"), graph.array(runtime, "labels")
    counts = np.zeros(graph.num_classes, np.int64)
    try:
        found, total = labels.memmap(check=True), nodes.spec.shape[0]
        for first in range(0, total, _BLOCK_NODES):
            ids = nodes.read("class-weights", first, min(first + _BLOCK_NODES, total))
            counts += np.bincount(found[ids][found[ids] >= 0], minlength=len(counts))
    finally:
        nodes.close()
        labels.close()
    return counts
