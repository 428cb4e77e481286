"""Nodes that users choose, and ``input_id`` of a batch: where its seeds stand among them."""

from __future__ import annotations

import numpy as np

from outcrop.errors import ArgumentError
from outcrop.sampling.seeds import Ids
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.graph_types import NodeType
from outcrop.store.host_array import host_array


class InputIds:
    """Finds positions of node ids in ``ids``.

    Args:
        ids: int64, distinct; a range stands for itself.
        ascending: They rise, as those of a graph's splits do.
    """

    def __init__(self, ids: Ids, *, ascending: bool = False):
        self._ids = ids
        rises = ascending or isinstance(ids, range) or bool((ids[1:] > ids[:-1]).all())
        self._order = None if rises else np.argsort(ids, kind="stable")

    def of(self, graph: BatchGraph) -> np.ndarray:
        """Returns, int64 [num_seeds], ``[list(ids).index(seed) for seed in seeds]``."""
        seeds, ids = graph.seeds, self._ids
        if isinstance(ids, range):
            return seeds - ids.start
        if self._order is None:
            return np.searchsorted(ids, seeds).astype(np.int64)
        return self._order[np.searchsorted(ids, seeds, sorter=self._order)].astype(np.int64)


def checked_ids(ids: object, graph: Graph, where: str, of: NodeType | None = None) -> np.ndarray:
    """Returns ``ids`` as int64 [n]: nodes, text that names them, or a mask [num_nodes] of bool, or of 0
    and 1 in uint8.

    Args:
        ids: Array, tensor, series or list.
        where: Who asks for the nodes, for messages.
        of: Type of the nodes; None: that of the seeds.

    Raises:
        ArgumentError: No such thing, out of range, no node of that name, or a node stands there twice; names ``where``.
    """
    array, named = host_array(ids), False
    of = of or graph.seed_type
    count = of.num_nodes
    if _is_mask(array, count):
        array = np.flatnonzero(array)
        if not len(array):
            raise ArgumentError(f"{where}: the mask of {count} nodes selects none: batches need a seed")
    elif array.ndim == 1 and _is_text(array):
        array, named = graph.node_ids(array.tolist(), of.name), True
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise ArgumentError(
            f"{where}: {array.dtype} of shape {array.shape} are no node ids: give integers, or names that are text, "
            f"one dimension, at least one, or a mask of {count} bool"
        )
    _require_nodes(array, graph, where, of)
    array = array.astype(np.int64)
    ascending = np.sort(array)
    again = ascending[1:][ascending[1:] == ascending[:-1]]
    if len(again):
        node = repr(graph.node_names(again[:1], of.name)[0]) if named else again[0]
        hint = "leave out repeats (numpy.unique)"
        if len(array) == count and ascending[-1] <= 1:
            hint = "convert a mask to bool"
        raise ArgumentError(f"{where}: node {node} is there more than once: {hint}")
    return array


def _is_mask(array: np.ndarray, count: int) -> bool:
    """Tells whether ``array`` has a truth for each of ``count`` nodes: bool, or 0 and 1 in bytes."""
    if array.shape != (count,):
        return False
    return array.dtype == bool or (array.dtype == np.uint8 and count > 2 and int(array.max()) <= 1)


def _require_nodes(array: np.ndarray, graph: Graph, where: str, of: NodeType) -> None:
    count = of.num_nodes
    wrong = array[(array < 0) | (array >= count)]
    if len(wrong):
        hint = "; graph.node_ids finds nodes by the ids of the source" if graph.has_names_of(of) else ""
        raise ArgumentError(
            f"{where}: {len(wrong)} ids, the first {wrong[0]}, are not in 0 to {count - 1}: leave them out"
            f"{hint}"
        )


def _is_text(array: np.ndarray) -> bool:
    kind = array.dtype.kind
    return kind == "U" or (kind == "O" and bool(len(array)) and all(isinstance(name, str) for name in array))
