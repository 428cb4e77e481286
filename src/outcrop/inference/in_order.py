"""Arrays read from their beginning to their end, each page of their files once: the neighbor lists, and input rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from outcrop.errors import FormatError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray, Reads
from outcrop.store.graph import Graph
from outcrop.store.manifest import ArraySpec
from outcrop.store.record import align_page

TAG = "topology"
PIECE_EDGES = 4096  # of a target with more


def pages_of(spec: ArraySpec) -> int:
    """Counts the bytes of the pages that the values of an array lie on, which reading it in order reads."""
    return align_page(spec.data_bytes)


class ArrayStream:
    """Gives the values of an array without gaps, in order; the next chunk is read while one is used.

    Args:
        chunk_bytes: Bytes that are read at a time, cut to whole pages; two chunks are held under ``tag``.
    """

    def __init__(self, array: DiskArray, runtime: Runtime, tag: str, chunk_bytes: int):
        self._array, self._end = array, pages_of(array.spec)
        size = max(min(chunk_bytes, self._end) // PAGE_BYTES * PAGE_BYTES, PAGE_BYTES)
        self._chunks = [runtime.budget.empty(tag, size) for _ in range(2)]
        self._at = self._begin = self._stop = (
            0  # next value; the bytes of the file that the first chunk holds
        )
        self._coming: Reads | None = None
        self._submit()

    def _submit(self) -> None:
        """Begins to read what follows the first chunk into the second."""
        if (count := min(len(self._chunks[1]), self._end - self._stop)) > 0:
            self._coming = self._array.submit(self._stop, self._chunks[1][:count])

    def _advance(self) -> None:
        if self._coming is None:
            raise FormatError(f"{self._array.path} ends before what leads into it: import it again")
        self._coming.wait()
        self._coming = None
        self._chunks.reverse()
        self._begin = self._stop
        self._stop += min(len(self._chunks[0]), self._end - self._begin)
        self._array.check_pages(self._begin // PAGE_BYTES, self._chunks[0][: self._stop - self._begin])
        self._submit()

    def take(self, count: int) -> np.ndarray:
        """Returns the next ``count`` values, in memory of their own."""
        size = self._array.row_bytes
        out = np.empty(count * size, np.uint8)
        filled, at = 0, self._at * size
        while filled < len(out):
            if at == self._stop:
                self._advance()
            part = self._chunks[0][
                at - self._begin : min(at - self._begin + len(out) - filled, self._stop - self._begin)
            ]
            out[filled : filled + len(part)] = part
            filled, at = filled + len(part), at + len(part)
        self._at += count
        return out.view(self._array.dtype)

    def close(self) -> None:
        """Waits for what is being read."""
        if self._coming is not None:
            self._coming.wait()
            self._coming = None


@dataclass(frozen=True)
class Lists:
    """Holds the lists of some consecutive targets, or a piece of the list of one.

    Attributes:
        first: The first target.
        rowptr: int32 [targets + 1], from 0 on.
        col: int32 [num_edges], sources; int64 where a node has a number that needs it.
        begins, ends: Whether the lists begin and end here: of a target with more edges than fit, the first and the
            last piece.
    """

    first: int
    rowptr: np.ndarray
    col: np.ndarray
    begins: bool = True
    ends: bool = True

    @property
    def stop(self) -> int:
        """Returns the target behind the last one."""
        return self.first + len(self.rowptr) - 1

    def without_loops(self) -> Lists:
        """Leaves out edges from a node to itself."""
        row = np.repeat(np.arange(self.first, self.stop, dtype=self.col.dtype), np.diff(self.rowptr))
        keep = self.col != row
        if keep.all():
            return self
        kept = np.cumsum(keep, dtype=np.int32)
        rowptr = np.concatenate([np.zeros(1, np.int32), kept])[self.rowptr]
        return Lists(self.first, rowptr, self.col[keep], self.begins, self.ends)


def lists_in_order(
    graph: Graph,
    runtime: Runtime,
    most_targets: int,
    most_edges: int,
    chunk_bytes: int,
    piece_edges: int = PIECE_EDGES,
) -> Iterator[Lists]:
    """Yields the lists of all nodes of a graph without types, in order; every page of the topology is read once.

    Args:
        most_targets: Targets of one :class:`Lists` at the most; each begins within a multiple of it and ends there at
            the latest.
        most_edges: Edges of one at the most, no fewer than ``piece_edges``.
        chunk_bytes: Bytes that are read at a time, of each of both arrays.
        piece_edges: Edges of a piece of a list that has more; by default as many whatever fits, so that how sources are
            added up does not depend on it.

    Raises:
        FormatError: They lead out of the graph.
    """
    graph.require_one_type()
    nodes, edges = graph.num_nodes, graph.num_edges
    with ExitStack() as stack:
        arrays = [graph.array(runtime, name) for name in ("indptr", "indices")]
        for array in arrays:
            stack.callback(array.close)
        pointers, indices = (ArrayStream(array, runtime, TAG, chunk_bytes) for array in arrays)
        for stream in (pointers, indices):
            stack.callback(stream.close)
        last = pointers.take(1)
        if last[0] != 0:
            raise _damaged(arrays[0])
        for block in range(0, nodes, most_targets):
            count = min(most_targets, nodes - block)
            rowptr = np.concatenate([last, pointers.take(count)])
            last = rowptr[-1:]
            if rowptr[-1] > edges or (np.diff(rowptr) < 0).any():
                raise _damaged(arrays[0])
            hubs = [*np.flatnonzero(np.diff(rowptr) > piece_edges).tolist(), count]
            at = 0
            while at < count:
                alone = hubs[0] == at
                fitting = int(np.searchsorted(rowptr, rowptr[at] + most_edges, side="right")) - 1
                stop = at + 1 if alone else min(fitting, hubs[0])
                hubs = hubs[alone:]
                begin, end = int(rowptr[at]), int(rowptr[stop])
                most = piece_edges if alone else most_edges
                for start in range(begin, max(end, begin + 1), most):
                    size = min(most, end - start)
                    col = _checked(indices.take(size), arrays[1], nodes)
                    local = np.clip(rowptr[at : stop + 1] - start, 0, size).astype(np.int32)
                    yield Lists(block + at, local, col, start == begin, start + size == end)
                at = stop


def _checked(col: np.ndarray, array: DiskArray, nodes: int) -> np.ndarray:
    if len(col) and not 0 <= col.min() <= col.max() < nodes:
        raise _damaged(array)
    if nodes > np.iinfo(np.int32).max:
        return col.astype(np.int64, copy=False)
    return col.view(np.int32) if col.itemsize == 4 else col.astype(np.int32)


def _damaged(array: DiskArray) -> FormatError:
    return FormatError(
        f"{array.path} leads out of the graph, it was damaged after it was written: import it again"
    )


def topology_bytes(graph: Graph) -> int:
    """Counts the bytes that :func:`lists_in_order` reads."""
    return sum(pages_of(graph.spec(name)) for name in ("indptr", "indices"))
