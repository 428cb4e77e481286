"""Rows of features: arrays, sparse matrices, and tables with or without a column of node ids."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime import Runtime
from outcrop.sources import tables
from outcrop.sources.base import FeatureSource
from outcrop.sources.ids import IdMap, MappedIds, PlainIds, ids_of_table, is_text
from outcrop.sources.tables import Table

ID_COLUMNS = ("id", "node", "node_id")
_SHOWN = 5


def array_features(runtime: Runtime, name: str, array: np.ndarray) -> FeatureSource:
    """Features ``[N, D]``. Raises FormatError for another shape or for what is no number."""
    if array.ndim != 2:
        raise FormatError(f"{name} has shape {array.shape}; features are [nodes, columns]")
    _check_columns(name, array.dtype, array.shape[1])
    return FeatureSource(
        name,
        array.dtype,
        len(array),
        array.shape[1],
        lambda rows: tables.array_blocks(runtime, array, rows),
    )


def table_features(
    runtime: Runtime, table: Table, ids: IdMap | None, id_column: str | None = None
) -> tuple[FeatureSource, IdMap | None]:
    """One numeric column per feature, or one column of lists; with ``id_column`` the rows are in any order.

    Args:
        ids: The nodes, where a node table lists them. Else ids 0 .. N - 1 name the nodes, and any other ids are the
            nodes in the order of this table.

    Returns:
        The features, and the ids that are to be used from now on.

    Raises:
        FormatError: A column is no number, a row is empty or listed twice.
        ArgumentError: A node has no row.
    """
    columns = [column for column in table.columns if column != id_column]
    if not columns:
        raise FormatError(f"{table.name} has no columns; features need at least one")
    # Text has no types of its own; half the bytes of float64 hold what it says.
    parsed = pa.float64() if isinstance(table, tables.FileTable) and not table.is_parquet else None
    first = next(
        (_stack(table.name, columns, block, 0) for block in table.blocks(runtime, columns, 1, parsed)), None
    )
    if first is None:
        raise FormatError(f"{table.name} has no rows; features need one per node")
    dtype, dim = np.dtype(np.float32) if parsed else first.dtype, first.shape[1]
    _check_columns(table.name, dtype, dim)
    order, num_rows = None, table.num_rows
    if id_column is not None:
        ids, order = _order(runtime, table, id_column, ids)
        num_rows = ids.num_nodes
    if num_rows is None:
        num_rows = sum(len(block[0]) for block in table.blocks(runtime, columns[:1], dtype=parsed))

    def blocks(rows: int) -> Iterator[np.ndarray]:
        row = 0
        for block in table.blocks(runtime, columns, rows, parsed):
            part = _stack(table.name, columns, block, row)
            if part.shape[1] != dim:
                raise FormatError(
                    f"{table.name}: row {row} starts a block of {part.shape[1]} columns, the first has {dim}"
                )
            yield part.astype(dtype, copy=False)
            row += len(part)

    return FeatureSource(table.name, dtype, num_rows, dim, blocks, order), ids


def _order(runtime: Runtime, table: Table, column: str, ids: IdMap | None) -> tuple[IdMap, np.ndarray | None]:
    """Who is who, and the node of each row (None: rows are in node order)."""
    if ids is None:
        listed = ids_of_table(runtime, table, column)
        if not isinstance(listed, MappedIds):
            return listed, None
        if not listed.is_permutation():
            return listed, None
        return PlainIds(listed.num_nodes), listed.ids
    parts, row = [], 0
    for (block,) in table.blocks(runtime, [column]):
        parts.append(ids.lookup(table.name, block, row))
        row += len(block)
    nodes = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    num_nodes = ids.num_nodes or 0
    _check_once(table.name, nodes, num_nodes, ids)
    return ids, None if np.array_equal(nodes, np.arange(num_nodes)) else nodes


def _check_once(name: str, nodes: np.ndarray, num_nodes: int, ids: IdMap) -> None:
    """Raises where a node has two rows, or none."""
    outside = (nodes < 0) | (nodes >= num_nodes)
    if outside.any():
        row = int(np.argmax(outside))
        raise ArgumentError(f"{name}: row {row} is of node {nodes[row]}, but there are {num_nodes} nodes")
    counts = np.bincount(nodes, minlength=num_nodes)
    if (counts > 1).any():
        node = int(np.argmax(counts > 1))
        raise FormatError(f"{name}: node {_names(ids, np.array([node]))} is listed twice")
    missing = np.flatnonzero(counts == 0)
    if len(missing):
        shown = _names(ids, missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise ArgumentError(f"{name} has no row for {len(missing)} of {num_nodes} nodes: {shown}")


def _names(ids: IdMap, nodes: np.ndarray) -> str:
    """What the given nodes (ascending) are called."""
    names = ids.names()
    if names is None:
        return ", ".join(map(str, nodes))
    wanted = set(nodes.tolist())
    listed = enumerate(itertools.islice(names, int(nodes.max()) + 1))
    return ", ".join(repr(name) for node, name in listed if node in wanted)


def _check_columns(name: str, dtype: np.dtype, dim: int) -> None:
    if dim == 0:
        raise FormatError(f"{name} has zero feature columns: leave it out if there are no features")
    if dtype.kind not in "fiub":
        raise FormatError(f"{name} has elements of {dtype}; features are numbers")


def _stack(name: str, columns: list[str], block: list[pa.Array], row: int) -> np.ndarray:
    """``[n, D]`` from columns of numbers, or from one of lists."""
    block = [c.storage if isinstance(c, pa.ExtensionArray) else c for c in block]
    for column, cells in zip(columns, block, strict=True):
        if is_text(cells):
            raise FormatError(
                f"{name}: column {column!r} holds text, such as {cells[0].as_py()!r}; features are numbers: "
                "leave it out"
            )
    if len(block) == 1 and _is_list(block[0].type):
        tables.require_filled(name, block[0], row)
        flat = tables.to_numpy(name, block[0].flatten(), row)
        if len(flat) % len(block[0]):
            raise FormatError(f"{name}: the lists from row {row} on differ in length")
        return flat.reshape(len(block[0]), -1)
    odd = next((c for c, cells in zip(columns, block, strict=True) if _is_list(cells.type)), None)
    if odd is not None:
        raise FormatError(
            f"{name}: column {odd!r} holds lists beside other columns; keep one of the two forms"
        )
    return np.stack([tables.to_numpy(name, column, row) for column in block], axis=1)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
