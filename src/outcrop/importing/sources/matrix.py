"""Sparse matrices as they are stored: edges of a graph, rows of features, or many labels, expanded block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from outcrop.errors import FormatError
from outcrop.importing.sources.base import EdgeBlock, FeatureSource, LabelSource, block_bytes
from outcrop.runtime.runtime import Runtime

_MOST_COLUMNS = 1 << 24  # 64 MiB of float32 in a row, of which blocks are made dense


class Csr:
    """Holds a matrix in compressed rows, checked: bounds and order of ``indptr``, columns in range.

    Equals ``scipy.sparse.csr_matrix((data, indices, indptr), shape)``.

    Args:
        name: What messages call the matrix.
        shape: ``[2]``: rows, columns.
        data: Values ``[nnz]``; None = all are one.

    Raises:
        FormatError: The parts do not make a matrix.
    """

    def __init__(
        self,
        name: str,
        shape: np.ndarray,
        indptr: np.ndarray,
        indices: np.ndarray,
        data: np.ndarray | None = None,
    ):
        self.name = name
        if shape.shape != (2,) or shape.dtype.kind not in "iu" or (shape < 0).any():
            raise FormatError(f"{name}: the shape {shape.tolist()} is not two sizes")
        self.rows, self.columns = int(shape[0]), int(shape[1])
        if any(part.ndim != 1 or part.dtype.kind not in "iu" for part in (indptr, indices)):
            raise FormatError(f"{name}: indptr and indices must be lists of integers")
        if (
            len(indptr) != self.rows + 1
            or indptr[0] != 0
            or indptr[-1] != len(indices)
            or (indptr[1:] < indptr[:-1]).any()
        ):
            raise FormatError(
                f"{name}: indptr does not rise from 0 to the {len(indices)} indices in {self.rows} rows"
            )
        if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= self.columns):
            raise FormatError(f"{name}: column {int(indices.max())} is outside 0 to {self.columns - 1}")
        if data is not None and (data.shape != indices.shape or data.dtype.kind not in "fiub"):
            raise FormatError(f"{name}: {data.shape} values of {data.dtype} for {len(indices)} indices")
        self.indptr, self.indices, self.data = indptr, indices, data

    def entries(self, start: int, stop: int) -> tuple[np.ndarray, slice]:
        """Returns the row number (from ``start``) of each entry of rows ``start:stop``, and where these entries are."""
        rows = np.repeat(np.arange(stop - start), np.diff(self.indptr[start : stop + 1]))
        return rows, slice(int(self.indptr[start]), int(self.indptr[stop]))

    @property
    def weighted(self) -> bool:
        """Tells whether the values say more than that there is an entry."""
        return self.data is not None and bool((self.data != 1).any())

    def dense(self, runtime: Runtime, rows: int) -> Iterator[np.ndarray]:
        """Yields blocks of ``rows`` dense rows; equals ``csr_matrix((data, ...)).toarray()``."""
        data = np.ones(len(self.indices), np.float32) if self.data is None else self.data
        for start in range(0, self.rows, rows):
            stop = min(start + rows, self.rows)
            where, entries = self.entries(start, stop)
            with runtime.budget.reserve("import", (stop - start) * self.columns * data.dtype.itemsize):
                block = np.zeros((stop - start, self.columns), data.dtype)
                np.add.at(block, (where, self.indices[entries]), data[entries])
                yield block


def csr_of_coo(
    name: str,
    shape: np.ndarray,
    row: np.ndarray,
    column: np.ndarray,
    data: np.ndarray,
    reserve: Callable[[int], object] | None = None,
) -> Csr:
    """Returns compressed rows of entries in any order; those of the same place stay apart.

    Args:
        reserve: Reserves the bytes that this takes, once the parts are known to make a matrix; None: who calls has, or
            it is memory of the caller, as with objects of its own.

    Raises:
        FormatError: The parts do not make a matrix.
        BudgetError: ``reserve`` has not so much.
    """
    if row.ndim != 1 or row.shape != column.shape or row.dtype.kind not in "iu":
        raise FormatError(f"{name}: row and col must be lists of integers of the same length")
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or (shape < 0).any():
        raise FormatError(f"{name}: the shape {shape.tolist()} is not two sizes")
    if len(row) and (int(row.min()) < 0 or int(row.max()) >= int(shape[0])):
        raise FormatError(f"{name}: row {int(row.max())} is outside 0 to {int(shape[0]) - 1}")
    if data.shape != row.shape:
        raise FormatError(f"{name}: {data.shape} values for {len(row)} indices")
    if reserve is not None:
        reserve(_sorting_bytes(int(shape[0]), len(row), column.itemsize + data.itemsize))
    order = np.argsort(row, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=int(shape[0])))]).astype(np.int64)
    return Csr(name, shape, indptr, column[order], data[order])


def transposed_of(matrix: Csr) -> Csr:
    """Returns the transpose of a matrix with values. Equals ``csr_matrix(...).T.tocsr()``."""
    assert matrix.data is not None
    row, _ = matrix.entries(0, matrix.rows)
    shape = np.array([matrix.columns, matrix.rows])
    return csr_of_coo(matrix.name, shape, matrix.indices, row, matrix.data)


def transposed_bytes(matrix: Csr) -> int:
    """Returns the most bytes that :func:`transposed_of` takes: numbers of rows, an order, columns, values, and counts
    of rows.
    """
    assert matrix.data is not None
    entries = len(matrix.indices)
    return 8 * entries + _sorting_bytes(matrix.columns, entries, 8 + matrix.data.itemsize)


def _sorting_bytes(rows: int, entries: int, entry_bytes: int) -> int:
    """Counts the bytes of entries sorted by row: an order, columns and values (``entry_bytes`` together) or, before,
    numbers of rows of 8 bytes, and counts of rows.
    """
    return entries * (8 + max(entry_bytes, 8)) + 4 * 8 * (rows + 1)


def matrix_edges(
    runtime: Runtime, matrix: Csr, weighted: bool, transposed: bool = False
) -> Iterator[EdgeBlock]:
    """Yields an edge from row to column for every entry (``transposed``: from column to row); ``weighted``: with its
    value.

    Raises:
        FormatError: The matrix is not square.
    """
    if matrix.rows != matrix.columns:
        raise FormatError(f"{matrix.name}: the adjacency is {matrix.rows} x {matrix.columns}, not square")
    step = max(1024, block_bytes(runtime) // 64)
    for start in range(0, matrix.rows, step):
        rows, entries = matrix.entries(start, min(start + step, matrix.rows))
        source, target = rows + start, matrix.indices[entries].astype(np.int64)
        if transposed:
            source, target = target, source
        if weighted and matrix.data is not None:
            yield source, target, np.ascontiguousarray(matrix.data[entries], np.float32)
        else:
            yield source, target


def matrix_features(runtime: Runtime, matrix: Csr) -> FeatureSource:
    """Returns dense rows of a sparse matrix.

    Raises:
        FormatError: It has no columns, or more than a row can be made dense of.
    """
    if matrix.columns == 0:
        raise FormatError(f"{matrix.name} has zero feature columns")
    _check_width(matrix)
    dtype = np.dtype(np.float32) if matrix.data is None else matrix.data.dtype
    return FeatureSource(
        matrix.name, dtype, matrix.rows, matrix.columns, lambda rows: matrix.dense(runtime, rows)
    )


def matrix_labels(runtime: Runtime, matrix: Csr) -> LabelSource:
    """Returns a row of labels per node, where the matrix has an entry for each that holds."""
    _check_width(matrix)
    rows = max(1, block_bytes(runtime) // (16 * max(matrix.columns, 1)))
    return LabelSource(matrix.name, matrix.rows, lambda num_nodes: matrix.dense(runtime, rows))


def _check_width(matrix: Csr) -> None:
    if matrix.columns > _MOST_COLUMNS:
        raise FormatError(
            f"{matrix.name} has {matrix.columns} columns; rows of at most {_MOST_COLUMNS} are read: leave out "
            "those that have no entries"
        )


def csr_of_scipy(name: str, matrix: Any) -> Csr:
    """Returns a matrix or array of SciPy in any format; converting one that is not CSR takes memory of the caller.

    Raises:
        FormatError: It is no matrix, or holds no real numbers.
    """
    if len(matrix.shape) != 2:
        raise FormatError(f"{name} has shape {matrix.shape}; a matrix is needed")
    rows = matrix.tocsr()
    return Csr(name, np.array(rows.shape, np.int64), rows.indptr, rows.indices, rows.data)
