"""``musae:DIR``: pages, mutual likes and features as published with MUSAE.

``*_edges.csv`` (undirected edges, listed once), ``*_target.csv`` (``id``, ..., class) and ``*.json`` (node -> list of
the features that it has). Features become dense float32 rows, expanded block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources import tables
from outcrop.importing.sources.base import EdgeBlock, FeatureSource, GraphSource
from outcrop.importing.sources.edge_list import edge_columns
from outcrop.importing.sources.ids import PlainIds, ids_of_table
from outcrop.importing.sources.labels import table_labels
from outcrop.importing.sources.table_files import open_table
from outcrop.runtime.parsing import parse_json
from outcrop.runtime.runtime import Runtime

# A list of small ints in JSON, as Python objects and as the flat arrays made from them, per byte of text.
_JSON_FACTOR = 12


def open_musae(folder: Path, runtime: Runtime, held: ExitStack) -> GraphSource:
    """Opens ``musae:DIR``.

    Raises:
        ArgumentError: A file is missing, or there are several of a kind.
        FormatError: A file is torn, or features name nodes that the target table does not.
    """
    edges = open_table(_only(folder, "*_edges.csv"))
    target = open_table(_only(folder, "*_target.csv"))
    column = target.column("id", "new_id")
    if column is None:
        raise FormatError(f"{target.name} has no column 'id' (it has {', '.join(target.columns) or 'none'})")
    ids = ids_of_table(runtime, target, column)
    if not isinstance(ids, PlainIds):
        raise FormatError(f"{target.name}: the ids are not 0, 1, 2, ... in order")
    num_nodes = ids.num_nodes or 0

    def blocks() -> Iterator[EdgeBlock]:
        row, columns = 0, edge_columns(edges)
        first, second = (tables.Place(edges, column) for column in columns)
        for source, to in edges.blocks(runtime, columns):
            yield ids.lookup(first, source, row), ids.lookup(second, to, row)
            row += len(source)

    label = target.column("page_type", "target", "mature", "ml_target") or target.columns[-1]
    return GraphSource(
        str(folder),
        blocks,
        num_nodes,
        None,
        _features(_only(folder, "*.json"), num_nodes, runtime, held),
        table_labels(runtime, target, [label]),
        reverse=True,
        split_protocol="fractions",
    )


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise ArgumentError(f"{folder} holds {len(found)} files {pattern}; musae:DIR needs exactly one")
    return found[0]


def _features(path: Path, num_nodes: int, runtime: Runtime, held: ExitStack) -> FeatureSource:
    with runtime.budget.reserve("import", _JSON_FACTOR * path.stat().st_size):
        try:
            rows = {
                int(node): np.asarray(columns, np.int64)
                for node, columns in parse_json(path.read_bytes()).items()
            }
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise FormatError(f"{path} is no JSON of node -> list of features, or is torn: {error}") from None
        if any(not 0 <= node < num_nodes for node in rows):
            raise FormatError(f"{path} lists node {max(rows)}, the target table has {num_nodes} nodes")
        if any(columns.ndim != 1 or (len(columns) and columns.min() < 0) for columns in rows.values()):
            raise FormatError(f"{path} lists a feature below 0 or a list inside a list")
        none = np.zeros(0, np.int64)
        listed = [rows.get(node, none) for node in range(num_nodes)]
    indptr = np.concatenate([[0], np.cumsum([len(columns) for columns in listed])]).astype(np.int64)
    held.enter_context(runtime.budget.reserve("import", 8 * int(indptr[-1]) + indptr.nbytes))
    columns = np.concatenate(listed) if listed else none
    dim = int(columns.max()) + 1 if len(columns) else 0
    if dim == 0:
        raise FormatError(f"{path} has zero feature columns")

    def blocks(count: int) -> Iterator[np.ndarray]:
        for start in range(0, num_nodes, count):
            stop = min(start + count, num_nodes)
            with runtime.budget.reserve("import", (stop - start) * dim * 4):
                block = np.zeros((stop - start, dim), np.float32)
                where = np.repeat(np.arange(stop - start), np.diff(indptr[start : stop + 1]))
                block[where, columns[indptr[start] : indptr[stop]]] = 1
                yield block

    return FeatureSource(str(path), np.dtype(np.float32), num_nodes, dim, blocks)
