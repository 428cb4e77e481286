"""``ogb:DIR`` with several types of nodes and edges, such as ogbn-mag.

As compressed text: ``raw/num-node-dict.csv.gz``, whose header names the node types, ``raw/triplet-type-list.csv.gz``,
``raw/relations/HEAD___RELATION___TAIL/edge.csv.gz``, ``num-edge-list.csv.gz`` and perhaps ``edge-feat.csv.gz``;
``raw/node-feat/TYPE/node-feat.csv.gz``; ``raw/nodetype-has-label.csv.gz`` and
``raw/node-label/TYPE/node-label.csv.gz``; ``split/NAME/nodetype-has-split.csv.gz`` and
``split/NAME/TYPE/train.csv.gz``.

Or as arrays, with a member for each type in each file: ``raw/num_nodes_dict.npz``, ``num_edges_dict.npz``,
``edge_index_dict.npz``, ``node_feat_dict.npz``, ``edge_feat_dict.npz``, ``node-label.npz``;
``split/NAME/split_dict.pt`` has dicts of nodes by type.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from outcrop.config import ImportConfig
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import (
    EdgeSource,
    FeatureSource,
    LabelSource,
    NodeSource,
    TypedSource,
    check_ids,
)
from outcrop.importing.sources.checks import check_told_types
from outcrop.importing.sources.edge_list import edge_of, table_edges
from outcrop.importing.sources.gzip_tables import open_gzip, read_count
from outcrop.importing.sources.ids import PlainIds
from outcrop.importing.sources.npz_members import NpzMember, member_names, read_integer
from outcrop.importing.sources.ogb_files import (
    array_features_of,
    array_labels_of,
    counted,
    notes_of_left,
    pairs_of,
    text_features,
    text_labels,
)
from outcrop.importing.sources.ogb_splits import (
    SPLIT_DICT,
    NodeList,
    array_list,
    chosen_split,
    rows_of,
    text_list,
)
from outcrop.importing.sources.tables import Place
from outcrop.importing.sources.torch_file import TorchFile
from outcrop.runtime.runtime import Runtime

_BETWEEN = "___"  # between the parts of an edge type
_SHORT_FILE = 1 << 20  # most bytes of a file that lists types
_TORN = (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error)
_SIZES = ("num_nodes_dict", "num_edges_dict", "edge_index_dict")
# Files of rows, as ogb.io.DatasetSaver calls them, and as they are called in other layouts.
_NODE_ROWS, _EDGE_ROWS = ("node_feat_dict", "node_feat"), ("edge_feat_dict", "edge_feat")

_DIGITS = 18  # most of a number of nodes

Key = tuple[str, str, str]
_Name = TypeVar("_Name", str, Key)
Splits = dict[str, NodeList]  # by split


class _Layout(Protocol):
    """Reads one of the two forms."""

    def sizes(self) -> dict[str, int]: ...
    def edge_types(self) -> list[Key]: ...
    def features(self, name: str, num_nodes: int) -> FeatureSource | None: ...
    def labels(self, name: str, num_nodes: int) -> LabelSource | None: ...
    def edges(self, key: Key) -> EdgeSource: ...
    def left(self) -> list[str]: ...


def open_ogb_typed(folder: Path, runtime: Runtime, held: ExitStack, config: ImportConfig) -> TypedSource:
    """Opens a data set with types; reads how many nodes and edges of each there are, and first lines or headers.

    Raises:
        ArgumentError: A file is missing, there are many graphs, or no such split.
        FormatError: A file is torn or not what its name says.
    """
    raw = folder / "raw"
    text = (raw / "num-node-dict.csv.gz").exists()
    layout: _Layout = (_Text if text else _Arrays)(raw, runtime)
    sizes = layout.sizes()
    chosen, notes = chosen_split(folder / "split", config.split_index)
    splits: dict[str, Splits] = {}
    if chosen is not None and config.split_protocol != "none":
        splits = _splits(chosen, sizes, runtime, held)
    unknown = next((name for name in splits if name not in sizes), None)
    if unknown is not None:
        raise FormatError(f"{chosen} has splits of {unknown!r}, which is no node type of {folder}")
    nodes = tuple(_nodes(folder, layout, name, sizes[name], splits.get(name, {})) for name in sizes)
    edges = tuple(layout.edges(key) for key in layout.edge_types())
    for one in edges:
        for end in (one.key[0], one.key[2]):
            if end not in sizes:
                raise FormatError(
                    f"{one.name}: {end!r} is no node type of {folder} (it has {', '.join(sizes)})"
                )
    notes = (*notes_of_left("files", raw, layout.left()), *notes)
    source = TypedSource(str(folder), nodes, edges, notes)
    check_told_types(source, 0)
    return source


def _nodes(folder: Path, layout: _Layout, name: str, num_nodes: int, splits: Splits) -> NodeSource:
    return NodeSource(
        f"{folder}: {name}",
        num_nodes,
        layout.features(name, num_nodes),
        layout.labels(name, num_nodes),
        lambda count: {split: one.read() for split, one in splits.items()} or None,
        split_rows=lambda node: rows_of(node, splits),
        type_name=name,
        whose=f"node type {name!r} has",
    )


def _splits(folder: Path, sizes: dict[str, int], runtime: Runtime, held: ExitStack) -> dict[str, Splits]:
    """Opens the splits of each node type that has some."""
    if (folder / SPLIT_DICT).exists():
        return _torch_splits(folder / SPLIT_DICT, runtime, held)
    return {
        name: {
            split: text_list(folder / name / f"{split}.csv.gz", sizes.get(name, 0), runtime, held)
            for split in SPLITS
        }
        for name in _having(folder / "nodetype-has-split.csv.gz")
    }


def _torch_splits(path: Path, runtime: Runtime, held: ExitStack) -> dict[str, Splits]:
    file = TorchFile(path, frozenset(), "download the data set again", runtime, held)
    root: Any = file.root
    found: dict[str, Splits] = {}
    for split in SPLITS:
        by_type = root.get(split) if isinstance(root, dict) else None
        if not isinstance(by_type, dict):
            raise FormatError(f"{path} has no dict of nodes by type for split {split}")
        for name, raw in by_type.items():
            where = f"{path} {split} {name}"
            nodes = file.value(raw, where)
            if not isinstance(nodes, np.ndarray) or nodes.ndim != 1:
                raise FormatError(f"{where} is no list of nodes")
            found.setdefault(str(name), {})[split] = array_list(where, partial(check_ids, where, nodes))
    return found


class _Text:
    """Reads compressed text."""

    def __init__(self, raw: Path, runtime: Runtime):
        self._raw, self._runtime = raw, runtime

    def sizes(self) -> dict[str, int]:
        """Returns the number of nodes by type, in the order of their names, as the package has them."""
        path = self._raw / "num-node-dict.csv.gz"
        rows = _short_rows(path)
        if len(rows) != 2:
            raise ArgumentError(f"{path} lists {len(rows) - 1} graphs; a data set of one graph is needed")
        twice = _first_twice(rows[0])
        if twice is not None:
            raise FormatError(f"{path}, line 1 names node type {twice!r} twice: each is listed once")
        if len(rows[0]) != len(rows[1]) or not all(map(_is_count, rows[1])):
            raise FormatError(f"{path}, line 2 has no number for each of {', '.join(rows[0])}")
        return dict(sorted(zip(rows[0], map(int, rows[1]), strict=True)))

    def edge_types(self) -> list[Key]:
        path = self._raw / "triplet-type-list.csv.gz"
        rows = _short_rows(path)
        odd = next((number for number, row in enumerate(rows) if len(row) != 3), None)
        if odd is not None or not rows:
            raise FormatError(f"{path}, line {(odd or 0) + 1}: head, relation and tail are needed")
        keys = [(row[0], row[1], row[2]) for row in rows]
        twice = _first_twice(keys)
        if twice is not None:
            line = len(keys) - keys[::-1].index(twice)
            raise FormatError(
                f"{path}, line {line} lists {' '.join(twice)!r} twice: each edge type is listed once"
            )
        return sorted(keys)

    def features(self, name: str, num_nodes: int) -> FeatureSource | None:
        return text_features(self._raw / "node-feat" / name / "node-feat.csv.gz", num_nodes, self._runtime)

    def labels(self, name: str, num_nodes: int) -> LabelSource | None:
        if name not in _having(self._raw / "nodetype-has-label.csv.gz"):
            return None
        path = self._raw / "node-label" / name / "node-label.csv.gz"
        found = text_labels(path, num_nodes, self._runtime)
        if found is None:
            raise ArgumentError(f"{path} is missing, and nodetype-has-label.csv.gz says that it is there")
        return found

    def edges(self, key: Key) -> EdgeSource:
        folder = self._raw / "relations" / _BETWEEN.join(key)
        num_edges = read_count(folder / "num-edge-list.csv.gz")
        table = open_gzip(folder / "edge.csv.gz", ("source", "target"), num_edges)
        edges = table_edges(self._runtime, table, PlainIds())
        return EdgeSource(
            table.name,
            key,
            lambda: counted(edges(), table),
            num_edges,
            edge_at=Place(table).at,
            features=text_features(folder / "edge-feat.csv.gz", num_edges, self._runtime),
        )

    def left(self) -> list[str]:
        read = {"node-feat.csv.gz", "edge.csv.gz", "edge-feat.csv.gz", "num-edge-list.csv.gz"}
        found = [*self._raw.glob("node-feat/*/*.csv.gz"), *self._raw.glob("relations/*/*.csv.gz")]
        return sorted(str(path.relative_to(self._raw)) for path in found if path.name not in read)


class _Arrays:
    """Reads arrays, a member for each type."""

    def __init__(self, raw: Path, runtime: Runtime):
        self._raw, self._runtime = raw, runtime

    def _count(self, name: str, member: str) -> int:
        return read_integer(self._runtime, NpzMember(self._raw / f"{name}.npz", member))

    def _has(self, name: str, member: str) -> bool:
        path = self._raw / f"{name}.npz"
        return path.exists() and member in member_names(path)

    def sizes(self) -> dict[str, int]:
        names = sorted(member_names(self._raw / "num_nodes_dict.npz"))
        return {name: self._count("num_nodes_dict", name) for name in names}

    def edge_types(self) -> list[Key]:
        path, found = self._raw / "edge_index_dict.npz", []
        for name in sorted(member_names(path)):
            parts = name.split(_BETWEEN)
            if len(parts) != 3:
                raise FormatError(
                    f"{path} has a member {name!r}; HEAD{_BETWEEN}RELATION{_BETWEEN}TAIL is needed"
                )
            found.append((parts[0], parts[1], parts[2]))
        return found

    def features(self, name: str, num_nodes: int) -> FeatureSource | None:
        return self._rows(self._file(_NODE_ROWS), name)

    def labels(self, name: str, num_nodes: int) -> LabelSource | None:
        if not self._has("node-label", name):
            return None
        return array_labels_of(self._raw / "node-label.npz", self._runtime, name)

    def edges(self, key: Key) -> EdgeSource:
        member = _BETWEEN.join(key)
        pairs, num_edges = (
            NpzMember(self._raw / "edge_index_dict.npz", member),
            self._count("num_edges_dict", member),
        )
        if pairs.shape != (2, num_edges):
            raise FormatError(f"{pairs.name} has shape {pairs.shape}; num_edges_dict says [2, {num_edges}]")
        check_ids(pairs.name, np.zeros(0, pairs.dtype))
        features = self._rows(self._file(_EDGE_ROWS), member)
        blocks = partial(pairs_of, pairs, self._runtime)
        return EdgeSource(pairs.name, key, blocks, num_edges, edge_at=edge_of(pairs.name), features=features)

    def _file(self, names: tuple[str, ...]) -> str:
        """Returns the first of the names of which there is a file."""
        return next((name for name in names if (self._raw / f"{name}.npz").exists()), names[0])

    def _rows(self, name: str, member: str) -> FeatureSource | None:
        if not self._has(name, member):
            return None
        return array_features_of(NpzMember(self._raw / f"{name}.npz", member), self._runtime)

    def left(self) -> list[str]:
        read = {*_SIZES, "node-label", self._file(_NODE_ROWS), self._file(_EDGE_ROWS)}
        return [path.name for path in self._raw.glob("*.npz") if path.stem not in read]


def _first_twice(names: list[_Name]) -> _Name | None:
    """Returns the first name that is there before; None where each is there once."""
    seen: set[_Name] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)


def _is_count(cell: str) -> bool:
    return cell.isascii() and cell.isdigit() and len(cell) <= _DIGITS


def _having(path: Path) -> list[str]:
    """Returns the node types that a file marks with ``True``; none where there is no such file."""
    if not path.exists():
        return []
    rows = _short_rows(path)
    if len(rows) != 2 or len(rows[0]) != len(rows[1]):
        raise FormatError(f"{path} has no line of True and False below the names of node types")
    odd = next((cell for cell in rows[1] if cell not in ("True", "False")), None)
    if odd is not None:
        raise FormatError(f"{path}, line 2: {odd!r} is neither True nor False")
    return [name for name, cell in zip(rows[0], rows[1], strict=True) if cell == "True"]


def _short_rows(path: Path) -> list[list[str]]:
    """Returns the cells of a short file.

    Raises:
        ArgumentError: There is no such file.
        FormatError: It is torn, or longer than such a file is.
    """
    if not path.is_file():
        raise ArgumentError(f"{path} is missing")
    try:
        with gzip.open(path, "rb") as file:
            raw = file.read(_SHORT_FILE + 1)
        if len(raw) > _SHORT_FILE:
            raise FormatError(f"{path} has more than {_SHORT_FILE} bytes; a list of types is needed")
        return [row for row in csv.reader(raw.decode().splitlines()) if row]
    except _TORN as error:
        raise FormatError(f"{path} is torn, or no text that gzip compressed: {error}") from None
