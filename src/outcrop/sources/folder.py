"""``arrays:DIR``: edges, features, labels and splits as plain arrays or tables.

Edges: ``edges.npy`` ``[E, 2]`` (source, target) or ``[2, E]``; of shape ``[2, 2]`` the rows are edges. Or
``edges.parquet``, ``.csv``, ``.tsv``, ``.txt``: columns ``src``/``source`` and ``dst``/``target``, else the
first two. Ids are integers 0 .. N - 1, or what the column ``id`` of ``nodes.parquet``/``.csv``/``.tsv`` lists
in node order, or text in the order of first appearance. The node table may have columns ``label`` and
``split``. ``features.npy``/``.parquet`` and ``labels.npy``/``.parquet``/``.csv``/``.tsv`` have one row per
node. Edge weights (not negative): ``edge_weight.npy`` [E] next to ``edges.npy``, or a column ``weight`` or
``edge_weight`` of the edge table. Edges to be predicted: ``train_edges.npy``, ``valid_edges.npy``, ``test_edges.npy``
[M, 2]. Splits: ``train.npy``, ``valid.npy`` or ``val.npy``, ``test.npy`` (ids or boolean masks), or a table
``splits`` with columns ``id`` and ``split``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime import Runtime
from outcrop.sources import tables
from outcrop.sources.base import (
    FeatureSource,
    GraphSource,
    LabelSource,
    check_ids,
    same_length,
)
from outcrop.sources.edge_list import WEIGHT_COLUMNS, array_edges, table_edges, text_columns
from outcrop.sources.ids import IdMap, PlainIds, TextIds, ids_of_table, is_text
from outcrop.sources.labels import array_labels, label_column
from outcrop.sources.tables import Table

_SPLIT_NAMES = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}


def open_folder(folder: Path, runtime: Runtime) -> GraphSource:
    """Opens ``arrays:DIR``; reads headers and the node table.

    Raises:
        ArgumentError: No edges, two files for the same thing, or row counts that contradict each other.
        FormatError: A file is not what its name says, or torn.
    """
    if not folder.is_dir():
        raise ArgumentError(
            f"{folder} is no folder: arrays:DIR needs one with edges.npy, .parquet, .csv or .tsv"
        )
    edges_path = tables.find(folder, "edges", (".npy", *tables.TABLE_SUFFIXES))
    if edges_path is None:
        raise ArgumentError(f"{folder} holds no edges.npy, edges.parquet, edges.csv, edges.tsv or edges.txt")
    nodes = _open(folder, "nodes", tables.TABLE_SUFFIXES)
    features = open_features(runtime, tables.find(folder, "features", (".npy", ".parquet")))
    labels = _labels(runtime, folder, nodes)
    ids: IdMap = PlainIds()
    if nodes is not None:
        column = nodes.column("id", "node", "node_id")
        if column is None:
            raise FormatError(
                f"{nodes.path} has no column 'id' (it has {', '.join(nodes.columns) or 'none'})"
            )
        ids = ids_of_table(runtime, nodes, column)
    told = same_length(
        {
            str(nodes.path if nodes else ""): ids.num_nodes,
            features.name if features else "features": features.num_rows if features else None,
            labels.name if labels else "labels": labels.num_rows if labels else None,
        }
    )
    weights_path = tables.find(folder, "edge_weight", (".npy",))
    if edges_path.suffix == ".npy":
        edges, num_edges = array_edges(runtime, edges_path, ids, weights_path)
        weighted = weights_path is not None
    else:
        table = tables.open_table(edges_path)
        weighted = table.column(*WEIGHT_COLUMNS) is not None
        if weights_path is not None:
            raise ArgumentError(
                f"{weights_path} belongs to edges.npy: put weights into a column of {edges_path}"
            )
        if nodes is None and text_columns(runtime, table):
            if told is not None:
                raise ArgumentError(
                    f"{edges_path} names nodes by text, so which row of the features or labels is whose "
                    f"is not known: add {folder / 'nodes.csv'} with a column 'id' in row order"
                )
            ids = TextIds(runtime)
        edges, num_edges = table_edges(runtime, table, ids), table.num_rows
    has_names = nodes is not None or isinstance(ids, TextIds)
    names = (lambda: ids.names() or iter(())) if has_names and not isinstance(ids, PlainIds) else None
    return GraphSource(
        str(folder),
        edges,
        told,
        num_edges,
        features,
        labels,
        lambda num_nodes: _splits(runtime, folder, nodes, ids, num_nodes),
        names,
        weighted=weighted,
        edge_splits=lambda: _edge_splits(folder, ids),
    )


def _open(folder: Path, stem: str, suffixes: tuple[str, ...]) -> Table | None:
    path = tables.find(folder, stem, suffixes)
    return tables.open_table(path) if path else None


def open_features(runtime: Runtime, path: Path | None) -> FeatureSource | None:
    """``features.npy`` [N, D] or ``features.parquet`` with one numeric column per feature, or one column of lists."""
    if path is None:
        return None
    if path.suffix == ".npy":
        array = tables.open_npy(path)
        if array.ndim != 2:
            raise FormatError(f"{path} has shape {array.shape}; features are [nodes, columns]")
        _check_columns(path, array.dtype, array.shape[1])
        return FeatureSource(
            str(path),
            array.dtype,
            len(array),
            array.shape[1],
            lambda rows: tables.array_blocks(runtime, array, rows),
        )
    table = tables.open_table(path)
    if not table.columns:
        raise FormatError(f"{path} has no columns; features need at least one")
    first = next(
        (_stack(path, block, 0) for block in table.blocks(runtime, list(table.columns), rows=1)), None
    )
    if first is None:
        raise FormatError(f"{path} has no rows; features need one per node")
    dtype, dim = first.dtype, first.shape[1]
    _check_columns(path, dtype, dim)

    def blocks(rows: int) -> Iterator[np.ndarray]:
        row = 0
        for block in table.blocks(runtime, list(table.columns), rows):
            part = _stack(path, block, row)
            if part.shape[1] != dim:
                raise FormatError(
                    f"{path}: row {row} starts a block of {part.shape[1]} columns, the first has {dim}"
                )
            yield part.astype(dtype, copy=False)
            row += len(part)

    assert table.num_rows is not None
    return FeatureSource(str(path), dtype, table.num_rows, dim, blocks)


def _check_columns(path: Path, dtype: np.dtype, dim: int) -> None:
    if dim == 0:
        raise FormatError(f"{path} has zero feature columns: leave the file out if there are no features")
    if dtype.kind not in "fiub":
        raise FormatError(f"{path} has elements of {dtype}; features are numbers")


def _stack(path: Path, block: list, row: int) -> np.ndarray:
    if len(block) == 1 and hasattr(block[0], "flatten") and str(block[0].type).find("list") >= 0:
        flat = tables.to_numpy(str(path), block[0].flatten(), row)
        if len(flat) % len(block[0]):
            raise FormatError(f"{path}: the lists from row {row} on differ in length")
        return flat.reshape(len(block[0]), -1)
    return np.stack([tables.to_numpy(str(path), column, row) for column in block], axis=1)


def _labels(runtime: Runtime, folder: Path, nodes: Table | None) -> LabelSource | None:
    path = tables.find(folder, "labels", (".npy", ".parquet", ".csv", ".tsv"))
    in_nodes = nodes.column("label", "labels", "class", "y") if nodes else None
    if path and in_nodes and nodes:
        raise ArgumentError(f"labels are in {path} and in {nodes.path}: keep one of them")
    if path is None:
        return table_labels(runtime, nodes, [in_nodes]) if nodes and in_nodes else None
    if path.suffix == ".npy":
        return array_labels(runtime, str(path), tables.open_npy(path))
    table = tables.open_table(path)
    if table.column("id", "node") is not None:
        raise FormatError(f"{path} needs labels in node order; labels by id go into nodes.csv")
    column = table.column("label", "labels", "class", "y")
    if column is None and not table.columns:
        raise FormatError(f"{path} has no columns; labels need at least one")
    return table_labels(runtime, table, [column] if column else list(table.columns))


def table_labels(runtime: Runtime, table: Table, columns: list[str]) -> LabelSource:
    """Labels in one column, which may hold lists, or in several of numbers; an empty cell means none."""

    def blocks() -> Iterator[np.ndarray]:
        for block in table.blocks(runtime, columns):
            parts = [label_column(str(table.path), column) for column in block]
            yield parts[0] if len(parts) == 1 else np.stack(parts, axis=1)

    listed = f"columns {', '.join(map(repr, columns))}" if len(columns) > 1 else f"column {columns[0]!r}"
    return LabelSource(f"{table.path} {listed}", table.num_rows, blocks)


def _edge_splits(folder: Path, ids: IdMap) -> dict[str, np.ndarray]:
    """Edges to be predicted, int64 [M, 2] by split."""
    import pyarrow as pa

    found: dict[str, np.ndarray] = {}
    for split in ("train", "valid", "test"):
        path = folder / f"{split}_edges.npy"
        if not path.is_file():
            continue
        array = tables.open_npy(path)
        if array.ndim != 2 or array.shape[1] != 2:
            raise FormatError(f"{path} has shape {array.shape}; [edges, 2] is needed")
        pairs = check_ids(str(path), array)
        if not isinstance(ids, PlainIds):
            columns = [ids.lookup(str(path), pa.array(pairs[:, i]), 0) for i in (0, 1)]
            pairs = np.stack(columns, axis=1)
        found[split] = pairs
    return found


def _splits(
    runtime: Runtime, folder: Path, nodes: Table | None, ids: IdMap, num_nodes: int
) -> dict[str, np.ndarray] | None:
    arrays = {
        split: folder / f"{stem}.npy"
        for stem, split in _SPLIT_NAMES.items()
        if (folder / f"{stem}.npy").is_file()
    }
    table = _open(folder, "splits", tables.TABLE_SUFFIXES)
    in_nodes = nodes.column("split") if nodes else None
    if (bool(arrays) + bool(table) + bool(in_nodes)) > 1:
        raise ArgumentError(
            f"{folder} gives splits in more than one way (train.npy ..., a splits table, a column of "
            "the node table): keep one"
        )
    if arrays:
        return {split: split_ids(path, tables.open_npy(path), num_nodes) for split, path in arrays.items()}
    if table:
        id_column, split_column = table.column("id", "node", "node_id"), table.column("split")
        if not id_column or not split_column:
            raise FormatError(f"{table.path} needs the columns 'id' and 'split'")
        return _table_splits(runtime, table, [id_column, split_column], ids)
    return _table_splits(runtime, nodes, [in_nodes], None) if nodes and in_nodes else None


def split_ids(name: Path | str, array: np.ndarray, num_nodes: int) -> np.ndarray:
    """Node ids from a list of ids or a boolean mask."""
    if array.ndim != 1:
        raise FormatError(f"{name} has shape {array.shape}; a split is a list of ids or a mask")
    if array.dtype == np.bool_:
        if len(array) != num_nodes:
            raise ArgumentError(f"{name} masks {len(array)} nodes, the graph has {num_nodes}")
        return np.flatnonzero(array)
    return check_ids(str(name), np.asarray(array))


def _table_splits(
    runtime: Runtime, table: Table, columns: list[str], ids: IdMap | None
) -> dict[str, np.ndarray]:
    parts: dict[str, list[np.ndarray]] = {"train": [], "valid": [], "test": []}
    row = 0
    for *id_block, splits in table.blocks(runtime, columns):
        if splits.null_count == len(splits) or not is_text(splits):
            if splits.null_count < len(splits):
                raise FormatError(
                    f"{table.path} column 'split' holds {splits.type}; write train, valid or test"
                )
            row += len(splits)
            continue
        words = np.asarray(splits.fill_null("").to_pylist(), dtype=object)
        nodes = ids.lookup(str(table.path), id_block[0], row) if ids else np.arange(row, row + len(words))
        for word in set(words.tolist()) - {""}:
            split = _SPLIT_NAMES.get(word.lower())
            if split is None:
                at = row + int(np.argmax(words == word))
                raise FormatError(f"{table.path}: row {at} has split {word!r}; write train, valid or test")
            parts[split].append(nodes[words == word])
        row += len(words)
    return {split: np.concatenate(found) for split, found in parts.items() if found}
