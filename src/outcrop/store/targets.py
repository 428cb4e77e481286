"""Looks up targets of seeds that are no single class, while a batch is loaded: records do not hold them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from outcrop.runtime.runtime import Runtime
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import UNKNOWN_MULTILABEL, Graph


class Targets:
    """Gives batches of a graph with labels of kind ``multilabel`` or ``regression`` their targets as ``labels``."""

    def __init__(self, graph: Graph, runtime: Runtime):
        self._multilabel = graph.label_kind == "multilabel"
        self._labels = graph.array(runtime, "labels").memmap(check=True)

    def of(self, seeds: np.ndarray) -> np.ndarray:
        """Returns float32 [num_seeds] or [num_seeds, columns] of the nodes ``seeds``; NaN where unknown.

        Equals ``np.where(labels == 255, nan, labels)[seeds]`` for multi-label, ``labels[seeds]`` for regression.
        """
        found = self._labels[seeds]
        values = found.astype(np.float32)
        if self._multilabel:
            values[found == UNKNOWN_MULTILABEL] = np.nan
        return values

    def __call__(self, batch: BatchGraph) -> BatchGraph:
        return replace(batch, labels=self.of(batch.seeds))


def target_bytes(graph: Graph, seeds: int) -> int:
    """Counts the bytes of the targets of ``seeds`` nodes, float32; 0 where labels are classes or there are none."""
    if graph.label_kind == "class" or not graph.has("labels"):
        return 0
    return 4 * seeds * math.prod(graph.spec("labels").shape[1:])


def open_targets(graph: Graph, runtime: Runtime) -> Targets | None:
    """Targets of ``graph``; None where its labels are classes, which batches have already, or where it has none."""
    return None if graph.label_kind == "class" or not graph.has("labels") else Targets(graph, runtime)
