"""Rows of features: arrays, sparse matrices, and tables with or without a column of node ids."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources import tables
from outcrop.importing.sources.base import FeatureSource
from outcrop.importing.sources.ids import (
    IdMap,
    MappedIds,
    PlainIds,
    ids_of_table,
    is_text_type,
    names_of,
    require_once,
)
from outcrop.importing.sources.npy import array_blocks
from outcrop.importing.sources.table_files import FileTable, is_number
from outcrop.importing.sources.tables import Place, Table
from outcrop.runtime.runtime import Runtime

ID_COLUMNS = ("id", "node", "node_id")
_SHOWN = 5
_FILL = "write a number there (each node needs its features), such as 0"


def array_features(runtime: Runtime, name: str, array: np.ndarray) -> FeatureSource:
    """Checks features ``[N, D]``. Raises FormatError for another shape or for what is no number."""
    check_features(name, array.shape, array.dtype)
    return FeatureSource(
        name,
        array.dtype,
        len(array),
        array.shape[1],
        lambda rows: array_blocks(runtime, array, rows),
    )


def edge_array_features(runtime: Runtime, name: str, array: np.ndarray) -> FeatureSource:
    """Checks features of edges, ``[E, D]`` or ``[E]``, which is one column. Raises as :func:`array_features`."""
    if array.ndim not in (1, 2):
        raise FormatError(f"{name} has shape {array.shape}; features of edges are [edges, columns]")
    return array_features(runtime, name, array[:, None] if array.ndim == 1 else array)


def check_features(name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raises FormatError where an array of this shape and type holds no features."""
    if len(shape) != 2:
        raise FormatError(f"{name} has shape {shape}; features are [nodes, columns]")
    _check_columns(name, dtype, shape[1])


def table_features(
    runtime: Runtime, table: Table, ids: IdMap | None, id_column: str | None = None
) -> tuple[FeatureSource, IdMap | None]:
    """Returns one numeric column per feature, or one column of lists; with ``id_column`` the rows are in any order.

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
    parsed = pa.float64() if isinstance(table, FileTable) and not table.is_parquet else None
    _refuse_text(runtime, table, [] if parsed else columns)
    first = next(
        (_stack(table, columns, block, 0) for block in table.blocks(runtime, columns, 1, parsed)), None
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
            part = _stack(table, columns, block, row)
            if part.shape[1] != dim:
                raise FormatError(
                    f"{table.name}: row {row} starts a block of {part.shape[1]} columns, the first has {dim}"
                )
            yield part.astype(dtype, copy=False)
            row += len(part)

    where = partial(_place_of_value, table, columns, dim)
    return FeatureSource(table.name, dtype, num_rows, dim, blocks, order, where), ids


def _place_of_value(table: Table, columns: list[str], dim: int, row: int, column: int) -> str:
    """Tells where column ``column`` of the features is: a column of the table, or an element of its lists."""
    if len(columns) == dim:
        return Place(table, columns[column]).at(row)
    return f"{Place(table, columns[0]).at(row)}, element {column}"


def _order(runtime: Runtime, table: Table, column: str, ids: IdMap | None) -> tuple[IdMap, np.ndarray | None]:
    """Tells who is who, and the node of each row (None: rows are in node order)."""
    if ids is None:
        listed = ids_of_table(runtime, table, column)
        if not isinstance(listed, MappedIds):
            return listed, None
        if not listed.is_permutation():
            return listed, None
        return PlainIds(listed.num_nodes, table.name), listed.ids
    parts, row, place = [], 0, Place(table, column)
    for (block,) in table.blocks(runtime, [column]):
        parts.append(ids.lookup(place, block, row))
        row += len(block)
    nodes = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    num_nodes = ids.num_nodes or 0
    _check_once(place, nodes, num_nodes, ids)
    return ids, None if np.array_equal(nodes, np.arange(num_nodes)) else nodes


def _check_once(place: Place, nodes: np.ndarray, num_nodes: int, ids: IdMap) -> None:
    """Raises where a node has two rows, or none."""
    require_once(place, nodes, ids)
    missing = np.flatnonzero(np.bincount(nodes, minlength=num_nodes) == 0)
    if len(missing):
        shown = names_of(ids, missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise ArgumentError(
            f"{place.name} has no row for {len(missing)} of {num_nodes} nodes: {shown}: add a row for each"
        )


def _check_columns(name: str, dtype: np.dtype, dim: int) -> None:
    if dim == 0:
        raise FormatError(f"{name} has zero feature columns: leave it out if there are no features")
    if dtype.kind not in "fiub":
        raise FormatError(f"{name} has elements of {dtype}; features are numbers")


def _stack(table: Table, columns: list[str], block: list[pa.Array], row: int) -> np.ndarray:
    """Puts together ``[n, D]`` from columns of numbers, or from one of lists."""
    name, places = table.name, [Place(table, column) for column in columns]
    block = [c.storage if isinstance(c, pa.ExtensionArray) else c for c in block]
    if len(block) == 1 and _is_list(block[0].type):
        tables.require_filled(places[0], block[0], row, _FILL)
        elements = block[0].flatten()
        if elements.null_count:
            at = next(i for i, cell in enumerate(block[0].to_pylist()) if None in cell)
            raise FormatError(f"{places[0].at(row + at)} has an empty element; every element needs a value")
        flat = tables.to_numpy(places[0], elements, row, _FILL)
        if len(flat) % len(block[0]):
            raise FormatError(f"{places[0].at(row)}: the lists from there on differ in length")
        return flat.reshape(len(block[0]), -1)
    odd = next((c for c, cells in zip(columns, block, strict=True) if _is_list(cells.type)), None)
    if odd is not None:
        raise FormatError(
            f"{name}: column {odd!r} holds lists beside other columns; keep one of the two forms"
        )
    numbers = [tables.to_numpy(place, cells, row, _FILL) for place, cells in zip(places, block, strict=True)]
    return np.stack(numbers, axis=1)


def _refuse_text(runtime: Runtime, table: Table, columns: list[str]) -> None:
    """Raises FormatError where a column is text; names its first cell that is no number."""
    for column, kind in zip(columns, table.types(runtime, columns), strict=False):
        if is_text_type(kind):
            row, word = _first_text(runtime, table, column)
            raise FormatError(
                f"{Place(table, column).at(row)}: {word!r} is text; features are numbers: correct it, or leave the "
                "column out; a column that names the nodes is called 'id'"
            )


def _first_text(runtime: Runtime, table: Table, column: str) -> tuple[int, str]:
    """Returns the first cell that is no number, and where; the first of all where every one is a number, written as
    text.
    """
    first = ""
    cells = (cell for (block,) in table.blocks(runtime, [column]) for cell in block.to_pylist())
    for row, cell in enumerate(cells):
        first = cell if row == 0 else first
        if cell is not None and not is_number(cell):
            return row, cell
    return 0, first


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
