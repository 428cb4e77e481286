"""Reads nodes that a file lists: by number in an array, or by the ids of the source in a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.features import ID_COLUMNS
from outcrop.importing.sources.table_files import TABLE_SUFFIXES, open_table
from outcrop.importing.sources.tables import Place
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.graph_types import NodeType


def read_ids(path: Path, graph: Graph, of: NodeType | None = None) -> np.ndarray:
    """Returns what a file lists nodes by: the array of a ``.npy`` file, or int64 nodes of the column ``id`` of a table.

    Args:
        path: ``.npy``, ``.parquet``, ``.csv``, ``.tsv`` or ``.txt``.
        graph: Graph whose names the column has.
        of: Type of the nodes; None: that of the seeds.

    Raises:
        FormatError: There is no such file, it cannot be read, has no column ``id``, or a row has none.
        ArgumentError: It lists no nodes, one of them twice, or one that the graph does not have.
    """
    of = of or graph.seed_type
    if path.suffix not in TABLE_SUFFIXES:
        return _read_array(path, graph, of)
    if not path.is_file():
        raise FormatError(f"{path} cannot be read: there is no such file; {_expected(graph, of)}")
    table = open_table(path)
    column = table.column(*ID_COLUMNS)
    if column is None:
        there = (
            "" if table.columns[:1] == ("column_0",) else f" (it has {', '.join(table.columns) or 'none'})"
        )
        raise FormatError(f"{path} has no column 'id'{there}: write 'id' above the ids of the nodes")
    with Runtime() as runtime:
        names = [name for (block,) in table.blocks(runtime, [column]) for name in block.to_pylist()]
    if not names:
        raise ArgumentError(f"{path} lists no nodes: write their ids under 'id', one a row")
    place = Place(table, column)
    empty = next((row for row, name in enumerate(names) if name is None or name == ""), None)
    if empty is not None:
        raise FormatError(f"{place.at(empty)} is empty; every row needs an id: fill it, or remove the row")
    nodes = graph.find_nodes(names, of.name)
    unknown = np.flatnonzero(nodes < 0)
    if len(unknown):
        more = f" (rows with unknown ids: {len(unknown)})" if len(unknown) > 1 else ""
        row = int(unknown[0])
        raise ArgumentError(
            f"{place.at(row)} names node {names[row]!r}, which {graph.path} does not have{more}: correct it, or remove "
            "the row"
        )
    _require_once(nodes, names, place)
    return nodes


def _read_array(path: Path, graph: Graph, of: NodeType) -> np.ndarray:
    """Returns the array of a ``.npy`` file: nodes, names of nodes or a mask."""
    if not path.exists():
        node = graph.find_nodes([str(path)], of.name)[0] >= 0
        what = f"{str(path)!r} is a node of {graph.path}" if node else f"there is no file {str(path)!r}"
        raise FormatError(f"{what}; {_expected(graph, of)}")
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FormatError(f"{path} cannot be read as a .npy file ({error}); {_expected(graph, of)}") from None
    if not array.size:
        raise ArgumentError(f"{path} lists no nodes: save the numbers of at least one")
    if array.ndim == 1 and array.dtype.kind in "iuU":
        _require_once(array, array.tolist(), Place(str(path)))
    return array


def _expected(graph: Graph, of: NodeType) -> str:
    splits = [repr(split) for split in SPLITS if of.array(split) in graph.manifest.arrays]
    return (
        f"nodes are given as 'all', {''.join(f'as {split}, ' for split in splits)}or as a file that lists them: .npy "
        "of node numbers, or a table with a column 'id'"
    )


def _require_once(nodes: np.ndarray, names: list[str] | list[int], place: Place) -> None:
    """Raises ArgumentError where two rows are of one node, by what the rows call it."""
    again = np.ones(len(nodes), bool)
    again[np.unique(nodes, return_index=True)[1]] = False
    if again.any():
        second = int(np.argmax(again))
        first = place.row_name(int(np.argmax(nodes == nodes[second])))
        raise ArgumentError(
            f"{place.at(second)}: node {names[second]!r} is listed twice, first in {first}: remove one of them"
        )
