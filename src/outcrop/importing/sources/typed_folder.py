"""``arrays:DIR`` with a ``graph.toml``, which says which types of nodes and edges there are, and in which files.

    [[nodes]]
    name = "paper"
    features = "paper.npy"      # [N, D], or a table with a column per feature
    labels = "venue.npy"        # [N] or [N, C], or a table
    train = "train.npy"         # ids within the type, or a mask; so valid and test
    [[nodes]]
    name = "author"
    num_nodes = 1134649         # where neither features nor labels tell
    [[edges]]
    source = "author"
    relation = "writes"
    target = "paper"
    file = "writes.npy"         # [E, 2] or [2, E], or a table; ids within the types
    weights = "weights.npy"     # [E]
    features = "dates.npy"      # [E, D], or a table with a column per feature, in the order of the edges
    reverse = true              # adds paper rev_writes author; or the name of that relation

Rows of features and labels are in the order of the ids. docs/sources.md has an example.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import (
    EdgeSource,
    FeatureSource,
    LabelSource,
    NodeSource,
    TypedSource,
    same_length,
)
from outcrop.importing.sources.checks import check_told_types
from outcrop.importing.sources.edge_list import WEIGHT_COLUMNS, array_edges, edge_of, table_edges
from outcrop.importing.sources.features import (
    ID_COLUMNS,
    array_features,
    edge_array_features,
    table_features,
)
from outcrop.importing.sources.ids import PlainIds
from outcrop.importing.sources.labels import array_labels, table_labels
from outcrop.importing.sources.npy import open_npy
from outcrop.importing.sources.parts import LABEL_COLUMNS, Part, SplitParts
from outcrop.importing.sources.table_files import TABLE_SUFFIXES, open_table
from outcrop.importing.sources.tables import Place, Table
from outcrop.importing.sources.toml_entries import (
    OBJECTS_PER_BYTE,
    Entry,
    entries_of,
    read_toml,
    require_distinct_types,
)
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import SPLIT_NAMES

GRAPH_TOML = "graph.toml"
_NODE_FILES = ("features", "labels", *SPLIT_NAMES)
_EDGE_FILES = ("file", "weights", "features")
_KEYS = {
    "nodes": ("name", "num_nodes", *_NODE_FILES),
    "edges": ("source", "relation", "target", *_EDGE_FILES, "reverse"),
}


def open_typed_folder(folder: Path, runtime: Runtime) -> TypedSource:
    """Opens ``arrays:DIR`` with a ``graph.toml``; reads that and headers.

    Raises:
        ArgumentError: Types or numbers of rows contradict each other, or a file is not there.
        FormatError: ``graph.toml`` is no TOML or says what it cannot, or a file is not what its name says.
    """
    path = folder / GRAPH_TOML
    if not path.is_file():
        raise ArgumentError(f"{path} is no file: remove it, or put the file itself there")
    with runtime.budget.reserve("import", OBJECTS_PER_BYTE * path.stat().st_size):
        root = _read(path)
        nodes = tuple(_open_nodes(entry, runtime) for entry in _entries(root, path, "nodes"))
        names = [one.type_name for one in nodes]
        require_distinct_types(path, "node type", names)
        edges = tuple(_open_edges(entry, names, runtime) for entry in _entries(root, path, "edges"))
        require_distinct_types(path, "edge type", [" ".join(one.key) for one in edges])
    source = TypedSource(str(folder), nodes, edges)
    check_told_types(source, sum(file.stat().st_size for file in files_of_types(folder)))
    return source


def files_of_types(folder: Path) -> list[Path]:
    """Lists ``graph.toml`` and the files that it names, as far as they are there."""
    path = folder / GRAPH_TOML
    found = [path]
    try:
        root = _read(path)
        for kind, keys in (("nodes", _NODE_FILES), ("edges", _EDGE_FILES)):
            found += [
                entry.file(key) for entry in _entries(root, path, kind) for key in keys if key in entry.given
            ]
    except (ArgumentError, FormatError):  # the import itself says what is wrong
        pass
    return list(dict.fromkeys(found))


def _read(path: Path) -> dict[str, Any]:
    return read_toml(path, {kind: f"[[{kind}]]" for kind in _KEYS})


def _entries(root: dict[str, Any], path: Path, kind: str) -> list[Entry]:
    if not root.get(kind):
        what = "node" if kind == "nodes" else "edge"
        raise FormatError(f"{path} has no [[{kind}]]: write a table [[{kind}]] for each {what} type")
    return entries_of(root, path, kind, _KEYS[kind])


def _opened(entry: Entry, key: str) -> np.ndarray | Table:
    path = entry.file(key)
    if path.suffix == ".npy":
        return open_npy(path)
    if path.suffix not in TABLE_SUFFIXES:
        raise ArgumentError(f"{path} cannot be read: {key} is one of .npy, {', '.join(TABLE_SUFFIXES)}")
    return open_table(path)


def _array(entry: Entry, key: str) -> np.ndarray:
    found = _opened(entry, key)
    if not isinstance(found, np.ndarray):
        raise ArgumentError(f"{entry.file(key)} is a table; {key} is a .npy file here")
    return found


def _open_nodes(entry: Entry, runtime: Runtime) -> NodeSource:
    name = entry.word("name")
    features = _features(entry, runtime) if "features" in entry.given else None
    labels = _labels(entry, runtime) if "labels" in entry.given else None
    num_nodes = same_length(
        {
            f"num_nodes of {name!r} in {entry.path}": entry.count("num_nodes"),
            features.name if features else "features": features.num_rows if features else None,
            labels.name if labels else "labels": labels.num_rows if labels else None,
        }
    )
    if num_nodes is None:
        raise ArgumentError(
            f"{entry.at} does not tell how many nodes {name!r} there are: add num_nodes = N, or features"
        )
    splits = _splits(entry, num_nodes)
    return NodeSource(
        f"{entry.path.parent} ({name})",
        num_nodes,
        features,
        labels,
        splits.ids,
        split_rows=splits.rows,
        type_name=name,
        whose=f"node type {name!r} has",
    )


def _features(entry: Entry, runtime: Runtime) -> FeatureSource:
    found = _opened(entry, "features")
    if isinstance(found, np.ndarray):
        return array_features(runtime, str(entry.file("features")), found)
    _refuse_ids(found)
    return table_features(runtime, found, None)[0]


def _edge_features(entry: Entry, runtime: Runtime) -> FeatureSource | None:
    if "features" not in entry.given:
        return None
    found = _opened(entry, "features")
    if isinstance(found, np.ndarray):
        return edge_array_features(runtime, str(entry.file("features")), found)
    return table_features(runtime, found, None)[0]


def _labels(entry: Entry, runtime: Runtime) -> LabelSource:
    found = _opened(entry, "labels")
    if isinstance(found, np.ndarray):
        return array_labels(runtime, str(entry.file("labels")), found)
    _refuse_ids(found)
    column = found.column(*LABEL_COLUMNS)
    columns = [column] if column else list(found.columns)
    if not columns:
        raise FormatError(f"{found.name} has no column with labels; name it 'label'")
    return table_labels(runtime, found, columns)


def _refuse_ids(table: Table) -> None:
    column = table.column(*ID_COLUMNS)
    if column is not None:
        raise ArgumentError(
            f"{table.name} has a column {column!r}: rows of a graph with types are in the order of the ids; sort them "
            "and leave the column out"
        )


def _splits(entry: Entry, num_nodes: int) -> SplitParts:
    parts: dict[str, Part] = {}
    for key, split in SPLIT_NAMES.items():
        if key not in entry.given:
            continue
        if split in parts:
            raise ArgumentError(f"{entry.at} gives split {split!r} twice, as {key!r} too: keep one of them")
        parts[split] = Part(str(entry.file(key)), _array(entry, key))
    return SplitParts(parts, num_nodes)


def _open_edges(entry: Entry, node_types: list[str], runtime: Runtime) -> EdgeSource:
    key = entry.word("source"), entry.word("relation"), entry.word("target")
    for end, name in (("source", key[0]), ("target", key[2])):
        if name not in node_types:
            known = ", ".join(node_types)
            raise ArgumentError(f"{entry.at}: {end} is {name!r}, which is no node type (there are {known})")
    if "file" not in entry.given:
        raise FormatError(f"{entry.at} has no 'file' with the edges {' '.join(key)!r}: add it")
    path, found = str(entry.file("file")), _opened(entry, "file")
    reverse, features = entry.reverse(key[1], False), _edge_features(entry, runtime)
    if isinstance(found, np.ndarray):
        weights = _array(entry, "weights") if "weights" in entry.given else None
        named = str(entry.file("weights")) if weights is not None else ""
        edges, count = array_edges(runtime, path, found, PlainIds(), named, weights)
        return EdgeSource(
            path,
            key,
            edges,
            count,
            weights is not None,
            reverse,
            edge_of(path),
            Place(named).at if named else None,
            features,
        )
    if "weights" in entry.given:
        raise ArgumentError(
            f"{entry.at}: weights belong to edges in .npy: put them into a column 'weight' of {path}"
        )
    weight = found.column(*WEIGHT_COLUMNS)
    edges = table_edges(runtime, found, PlainIds())
    places = (Place(found).at, Place(found, weight).at if weight else None)
    return EdgeSource(path, key, edges, found.num_rows, weight is not None, reverse, *places, features)
