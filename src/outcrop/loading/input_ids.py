"""``input_id`` of a batch: where its seeds stand among the ids that a loader goes over."""

from __future__ import annotations

import numpy as np

from outcrop.errors import ArgumentError
from outcrop.sampling import Ids
from outcrop.store.batches import BatchGraph


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
        """int64 [num_seeds]: ``[list(ids).index(seed) for seed in seeds]``."""
        seeds, ids = graph.n_id[: graph.num_seeds], self._ids
        if isinstance(ids, range):
            return seeds - ids.start
        if self._order is None:
            return np.searchsorted(ids, seeds).astype(np.int64)
        return self._order[np.searchsorted(ids, seeds, sorter=self._order)].astype(np.int64)


def checked_ids(ids: object, num_nodes: int, where: str) -> np.ndarray:
    """``ids`` as int64 [n]: node ids, or a mask [num_nodes] of bool; arrays, tensors and lists.

    Raises:
        ArgumentError: No such thing, out of range, or a node stands there twice; names ``where``.
    """
    array = np.asarray(ids.detach().cpu() if hasattr(ids, "detach") else ids)  # type: ignore[attr-defined]
    if array.dtype == bool and array.shape == (num_nodes,):
        array = np.flatnonzero(array)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise ArgumentError(
            f"{where}: {array.dtype} of shape {array.shape} are no node ids: give integers, one dimension, at least "
            f"one, or a mask of {num_nodes} bool"
        )
    wrong = array[(array < 0) | (array >= num_nodes)]
    if len(wrong):
        raise ArgumentError(
            f"{where}: {len(wrong)} ids, the first {wrong[0]}, are not in 0 to {num_nodes - 1}: leave them out"
        )
    array = array.astype(np.int64)
    ascending = np.sort(array)
    again = ascending[1:][ascending[1:] == ascending[:-1]]
    if len(again):
        raise ArgumentError(
            f"{where}: node {again[0]} is there more than once: leave out repeats (numpy.unique)"
        )
    return array
