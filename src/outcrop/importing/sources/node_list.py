"""Reads nodes that a file lists: by number in an array, or by the ids of the source in a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.features import ID_COLUMNS
from outcrop.importing.sources.table_files import TABLE_SUFFIXES, open_table
from outcrop.importing.sources.tables import Place
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph


def read_ids(path: Path, graph: Graph) -> np.ndarray:
    """Returns what a file lists nodes by: the array of a ``.npy`` file, or int64 nodes of the column ``id`` of a table.

    Args:
        path: ``.npy``, ``.parquet``, ``.csv``, ``.tsv`` or ``.txt``.
        graph: Graph whose names the column has.

    Raises:
        FormatError: It cannot be read, or has no column ``id``.
        ArgumentError: The graph has no node of a name.
    """
    if path.suffix not in TABLE_SUFFIXES:
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise FormatError(
                f"{path} cannot be read as a .npy file of node ids, nor is it 'all' or a split of {graph.path}: {error}"
            ) from None
    if not path.is_file():
        raise FormatError(f"{path} cannot be read: there is no such file")
    table = open_table(path)
    column = table.column(*ID_COLUMNS)
    if column is None:
        there = (
            "" if table.columns[:1] == ("column_0",) else f" (it has {', '.join(table.columns) or 'none'})"
        )
        raise FormatError(f"{path} has no column 'id'{there}: write 'id' above the ids of the nodes")
    with Runtime() as runtime:
        names = [name for (block,) in table.blocks(runtime, [column]) for name in block.to_pylist()]
    place = Place(table, column)
    empty = next((row for row, name in enumerate(names) if name is None or name == ""), None)
    if empty is not None:
        raise FormatError(f"{place.at(empty)} is empty; every row needs an id: fill it, or remove the row")
    nodes = graph.find_nodes(names)
    unknown = np.flatnonzero(nodes < 0)
    if len(unknown):
        more = f" (rows with unknown ids: {len(unknown)})" if len(unknown) > 1 else ""
        row = int(unknown[0])
        raise ArgumentError(
            f"{place.at(row)} names node {names[row]!r}, which {graph.path} does not have{more}: correct it, or remove "
            "the row"
        )
    return nodes
