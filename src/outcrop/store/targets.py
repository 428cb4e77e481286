"""Looks up targets of seeds that are no single class, while a batch is loaded: records do not hold them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from outcrop.runtime.runtime import Runtime
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import UNKNOWN_MULTILABEL, Graph
from outcrop.store.graph_types import NodeType


class Targets:
    """Gives batches whose seeds have labels of kind ``multilabel`` or ``regression`` their targets as ``labels``.

    Args:
        types: The node types that have such labels.
    """

    def __init__(self, graph: Graph, runtime: Runtime, types: list[NodeType]):
        self._types = {of.number: of for of in types}
        self._labels = {
            of.number: graph.array(runtime, of.array("labels")).memmap(check=True) for of in types
        }

    def of(self, node_type: NodeType, seeds: np.ndarray) -> np.ndarray:
        """Returns float32 [num_seeds] or [num_seeds, columns] of the nodes ``seeds``; NaN where unknown.

        Equals ``np.where(labels == 255, nan, labels)[seeds]`` for multi-label, ``labels[seeds]`` for regression.
        """
        found = self._labels[node_type.number][seeds]
        values = found.astype(np.float32)
        if node_type.label_kind == "multilabel":
            values[found == UNKNOWN_MULTILABEL] = np.nan
        return values

    def __call__(self, batch: BatchGraph) -> BatchGraph:
        seeds_of = self._types.get(batch.seed_type)
        return batch if seeds_of is None else replace(batch, labels=self.of(seeds_of, batch.seeds))


def _types_with_targets(graph: Graph) -> list[NodeType]:
    arrays = graph.manifest.arrays
    return [of for of in graph.node_types if of.label_kind != "class" and of.array("labels") in arrays]


def target_bytes(graph: Graph, seeds: int) -> int:
    """Counts the bytes of the targets of ``seeds`` nodes of any type, float32, at most; 0 where labels are classes or
    there are none.
    """
    arrays, types = graph.manifest.arrays, _types_with_targets(graph)
    return max((4 * seeds * math.prod(arrays[of.array("labels")].shape[1:]) for of in types), default=0)


def open_targets(graph: Graph, runtime: Runtime) -> Targets | None:
    """Opens targets of ``graph``; None where its labels are classes, which batches have already, or where it has
    none.
    """
    types = _types_with_targets(graph)
    return Targets(graph, runtime, types) if types else None
