"""Edges as graph libraries keep them: pairs of ends, or lists per node; read block by block, however long lists are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import EdgeBlock, GraphSource, block_bytes, check_ids
from outcrop.importing.sources.edge_list import edge_of
from outcrop.importing.sources.npy import forget_pages
from outcrop.importing.sources.parts import Part, Parts, open_parts
from outcrop.runtime.runtime import Runtime

_BYTES_PER_EDGE = 64  # what a block takes while it is put together
_FEWEST = 1024


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Holds edges in arrays, which may be maps of a file.

    Attributes:
        name: What messages call it.
        rows: Number of nodes that the first ends are among.
        columns: Number of nodes that the second ends are among.
        ends: First ends, integers [E]; or with ``lists`` where the list of each row begins, [rows + 1].
        others: Second ends, integers [E].
        lists: Whether edges are in lists per row.
        turned: Whether edges lead from the second ends to the first.
        numbers: Integers [E]: which element of columns of edges belongs to each edge; None = in their order.
        weights: Numbers [E], by ``numbers``; None = edges have none.
    """

    name: str
    rows: int
    columns: int
    ends: np.ndarray
    others: np.ndarray
    lists: bool = False
    turned: bool = False
    numbers: np.ndarray | None = None
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Raises FormatError where the arrays do not make a graph, as far as their shapes tell."""
        count = len(self.others) if self.others.ndim == 1 else -1
        lengths = {"others": count, "ends": self.rows + 1 if self.lists else count, "numbers": count}
        for part, length in lengths.items():
            array = getattr(self, part)
            if array is not None and (array.shape != (length,) or array.dtype.kind not in "iu"):
                raise FormatError(
                    f"{self.name} has {part} {array.dtype}{list(array.shape)}; {max(length, 0)} integers are needed"
                )
        weights = self.weights
        if weights is not None and (weights.shape != (count,) or weights.dtype.kind not in "fiub"):
            raise FormatError(
                f"{self.name} has weights of shape {weights.shape} of {weights.dtype}; one number for each of {count} "
                "edges is needed"
            )
        if self.lists and (int(self.ends[0]), int(self.ends[-1])) != (0, count):
            raise FormatError(
                f"{self.name}: lists do not go from 0 to the {count} edges: the file is damaged"
            )

    def blocks(self, runtime: Runtime) -> Iterator[EdgeBlock]:
        """Yields the edges, with float32 weights where there are any, within the memory budget."""
        most = max(_FEWEST, block_bytes(runtime) // _BYTES_PER_EDGE)
        with runtime.budget.reserve("import", min(most, len(self.others)) * _BYTES_PER_EDGE):
            for begin, ends in self._listed(most) if self.lists else self._paired(most):
                others = check_ids(self.name, np.array(self.others[begin : begin + len(ends)]), begin)
                pair = (others, ends) if self.turned else (ends, others)
                if self.weights is None:
                    yield pair
                else:
                    yield *pair, self._weights(begin, len(ends))
                forget_pages(self.others)

    def _paired(self, most: int) -> Iterator[tuple[int, np.ndarray]]:
        for begin in range(0, len(self.others), most):
            yield begin, check_ids(self.name, np.array(self.ends[begin : begin + most]), begin)

    def _listed(self, most: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the number of an edge, and the rows of the edges from there on, int64 [<= most]."""
        for row in range(0, self.rows, most):
            begins = check_ids(self.name, np.array(self.ends[row : row + most + 1]))
            if (begins[1:] < begins[:-1]).any() or begins[0] < 0 or begins[-1] > len(self.others):
                at = row + int(np.argmax(begins[1:] < begins[:-1]))
                raise FormatError(
                    f"{self.name}: the list of node {at} ends before it begins: the file is damaged"
                )
            for begin in range(int(begins[0]), int(begins[-1]), most):
                edges = np.arange(begin, min(begin + most, int(begins[-1])))
                yield begin, row + np.searchsorted(begins, edges, side="right") - 1

    def _weights(self, begin: int, count: int) -> np.ndarray:
        assert self.weights is not None
        if self.numbers is None:
            return np.array(self.weights[begin : begin + count], np.float32)
        numbers = np.array(self.numbers[begin : begin + count])
        if count and (numbers.min() < 0 or numbers.max() >= len(self.weights)):
            raise FormatError(
                f"{self.name}: edge {begin} or one after it has a number beyond the {len(self.weights)}"
            )
        return np.array(self.weights[numbers], np.float32)


def open_adjacency(edges: Adjacency, beside: Parts, runtime: Runtime) -> GraphSource:
    """Puts edges beside the other parts of a graph of one type; the adjacency tells how many nodes there are.

    Raises:
        ArgumentError: Parts contradict each other.
        FormatError: The adjacency is not square, or a part has not the shape or the type that it needs.
    """
    if edges.rows != edges.columns:
        raise FormatError(f"{edges.name}: the adjacency is {edges.rows} x {edges.columns}, not square")
    if beside.num_nodes not in (None, edges.rows):
        raise ArgumentError(f"{edges.name} has {edges.rows} nodes, num_nodes is {beside.num_nodes}")
    none = Part(edges.name, np.zeros((0, 2), np.int64))
    source = open_parts(replace(beside, parts=beside.parts | {"edges": none}, num_nodes=edges.rows), runtime)
    at = edge_of(edges.name)
    return replace(
        source,
        edges=lambda: edges.blocks(runtime),
        num_edges=len(edges.others),
        weighted=edges.weights is not None,
        edge_at=at,
        weight_at=lambda edge: f"the weight of {at(edge)}",
    )
