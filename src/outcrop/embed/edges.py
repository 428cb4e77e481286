"""Training edges of some pieces of buckets, from disk, or from memory where they take little of the budget."""

from __future__ import annotations

import numpy as np

from outcrop.embed.buckets import Buckets
from outcrop.embed.matches import ranges
from outcrop.errors import FormatError
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime

_TAG = "edges"


class TrainingEdges:
    """Reads edges and checks that they lead where their bucket says."""

    def __init__(self, buckets: Buckets, runtime: Runtime):
        self._buckets = buckets
        self._sizes = np.diff(buckets.division.starts)
        self._array = buckets.array(runtime, "edges")
        few = self._array.spec.data_bytes <= memory_tables.HELD_EDGES.bytes_of(runtime.budget.free_bytes)
        self._held = self._array.read(_TAG) if few else None

    def bytes_of(self, count: int) -> int:
        """Returns what reading so many edges takes of the budget: nothing where all are held."""
        taken = max(count * self._array.row_bytes, 1)
        return -(-taken // PAGE_BYTES) * PAGE_BYTES if self._held is None else 0

    def read(self, pieces: np.ndarray) -> np.ndarray:
        """Returns the edges of ``pieces``, one after the other: uint32 [n, 3] or [n, 2] of
        :mod:`outcrop.embed.buckets`.

        Equals ``np.concatenate([edges[first:stop] for _, _, first, stop in pieces])``.

        Args:
            pieces: int64 [k, 4]: (source, target, first, stop).

        Raises:
            FormatError: An edge leads out of its bucket, or has a relation that is not there.
        """
        first, stop = pieces[:, 2], pieces[:, 3]
        if self._held is None:
            edges = self._array.read_ranges(_TAG, first, stop)
        else:
            edges = self._held[ranges(first, stop)]
        self._check(edges, pieces)
        return edges

    def _check(self, edges: np.ndarray, pieces: np.ndarray) -> None:
        lengths, relations = pieces[:, 3] - pieces[:, 2], self._buckets.num_relations
        wrong = (edges[:, 0] >= np.repeat(self._sizes[pieces[:, 0]], lengths)) | (
            edges[:, -1] >= np.repeat(self._sizes[pieces[:, 1]], lengths)
        )
        why = "leads out of it"
        if relations and not wrong.any():
            wrong, why = edges[:, 1] >= relations, "has no such relation"
        if wrong.any():
            at = np.searchsorted(np.cumsum(lengths), int(np.argmax(wrong)), side="right")
            bucket = tuple(pieces[at, :2].tolist())
            raise FormatError(f"{self._buckets.path}: an edge of bucket {bucket} {why}: prepare it again")

    def close(self) -> None:
        self._held = None
        self._array.close()
