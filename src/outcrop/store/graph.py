"""The graph store: CSC topology, features, labels and splits in one artifact folder.

Arrays: ``indptr`` int64 [N + 1] and ``indices`` uint32 or int64 [E]: the in-neighbours (sources of the edges that
point at v) of node v are ``indices[indptr[v]:indptr[v + 1]]``, ascending. Optional: ``features`` [N, D] of any dtype,
``labels`` (see below), ``train``, ``valid``, ``test`` int64 node ids, ascending; ``edge_weight`` float32 [E],
not negative, in the order of ``indices``; ``train_edges``, ``valid_edges``, ``test_edges`` int64 [M, 2] (source,
target), the positive edges of link prediction.
For ``features``, ``indptr``, ``indices`` and ``edge_weight`` there is ``<name>_page_crc`` uint32: CRC-32C of each page
of the array's file. Graphs of before have none, and parts of their arrays are read unchecked.
``names`` uint8 and ``name_offsets`` int64 [N + 1]: what the source calls the nodes, where that is not 0 to N - 1.
Attributes: num_nodes, num_edges, num_classes, feature_dim; class_names where classes have names; integer_names (true
where ``names`` are integers written as text; absent: they are text); label_kind, which says what ``labels`` are:
``class`` (where it is absent, too) int64 [N] from 0 to num_classes - 1, -1 = unknown;
``multilabel`` uint8 [N, num_classes] of 0 and 1, 255 = unknown; ``regression`` float32 [N] or [N, num_classes], NaN =
unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import LABEL_KINDS, LabelKind
from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import graph_manifest
from outcrop.store import manifest as manifests
from outcrop.store.arrays import DiskArray
from outcrop.store.graph_types import FEATURES, EdgeType, NodeType, RowFile, row_files_of, types_of
from outcrop.store.host_array import host_array
from outcrop.store.manifest import PAGE_SUMS, ArraySpec, Manifest
from outcrop.store.names import NodeNames

FORMAT, VERSION = "outcrop.graph", 1
# How a split may be spelled -> its name.
SPLIT_NAMES = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
# Arrays of which parts are read, so that their pages have checksums. The others are read and checked whole.
PAGED = ("indptr", "indices", "edge_weight", "features")
UNKNOWN_MULTILABEL = 255


def _word(name: Any) -> str:
    """Returns a name as it is stored. Raises ArgumentError where it is neither text nor an integer."""
    if isinstance(name, str):
        return name
    try:
        return str(index(name))
    except TypeError:
        raise ArgumentError(f"{name!r} cannot name a node: give text or integers") from None


def _node_of(word: str, num_nodes: int) -> int:
    """Returns the node that a whole number names; -1 where it names none."""
    return int(word) if word.isascii() and word.isdigit() and int(word) < num_nodes else -1


def split_name(spelling: str) -> str:
    """Returns the name of a split that people may spell otherwise: ``valid`` of ``val``; others as they are."""
    return SPLIT_NAMES.get(spelling, spelling)


class Graph:
    """Opens a graph on disk: the manifest is read at once, arrays are opened as they are asked for.

    Attributes:
        num_classes: Classes; columns of the targets for regression (1 for ``[N]``); 0 without labels.
        label_kind: ``class``, ``multilabel`` or ``regression`` (the head of this file).
        class_names: What class i was called in the source; empty where classes have no names.
        integer_names: Whether the names of nodes are integers.
        node_types, edge_types: Types of nodes and of edges; one of each, called "", in a graph without types.
        row_files: The files of rows that nodes or edges have; none in a graph without features.
        notes: What an import had to say of this graph, a sentence each; empty where it was opened from disk.
    """

    def __init__(self, path: Path, manifest: Manifest):
        self.path, self.manifest = path, manifest
        self.notes: tuple[str, ...] = ()
        try:
            attributes = manifest.attributes
            self.num_nodes: int = attributes["num_nodes"]
            self.num_edges: int = attributes["num_edges"]
            self.num_classes: int = attributes["num_classes"]
            self.feature_dim: int = attributes["feature_dim"]
            self.label_kind: LabelKind = attributes.get("label_kind", "class")
            self.class_names: tuple[str, ...] = tuple(attributes.get("class_names", ()))
            self.integer_names: bool = bool(attributes.get("integer_names", False))
        except KeyError as error:
            raise FormatError(f"{path}: its manifest lacks attribute {error}") from None
        if wrong := graph_manifest.problem(attributes, manifest.arrays):
            raise FormatError(f"{path}: {wrong}: its manifest was changed by hand or is torn")
        self._check_labels()
        self.node_types: tuple[NodeType, ...]
        self.edge_types: tuple[EdgeType, ...]
        self.node_types, self.edge_types = types_of(attributes)
        self.row_files = row_files_of(manifest.arrays, (*self.node_types, *self.edge_types))

    def __repr__(self) -> str:
        parts = [f"nodes={self.num_nodes}", f"edges={self.num_edges}"]
        for rows in self.row_files:
            parts.append(f"{rows.array}={'x'.join(map(str, rows.spec.shape))} {rows.spec.dtype}")
        if self.num_classes:
            name = {"class": "classes", "multilabel": "multilabel", "regression": "targets"}[self.label_kind]
            parts.append(f"{name}={self.num_classes}")
        return f"Graph({', '.join(parts)}, path={str(self.path)!r})"

    def _check_labels(self) -> None:
        if self.label_kind not in LABEL_KINDS:
            raise FormatError(
                f"{self.path}: label kind {self.label_kind!r} is unknown (known: {', '.join(LABEL_KINDS)}): it was "
                "made by a newer Outcrop, or changed by hand"
            )
        spec = self.manifest.arrays.get("labels")
        if spec is None:
            return
        dtype = {"class": "int64", "multilabel": "uint8", "regression": "float32"}[self.label_kind]
        columns = spec.shape[1:]
        one = self.label_kind == "class" or (self.label_kind == "regression" and self.num_classes == 1)
        if spec.shape[0] != self.num_nodes:
            raise FormatError(
                f"{self.path}: array 'labels' has {spec.shape[0]} rows, {self.num_nodes} were expected"
            )
        packed = spec.stride_bytes == np.dtype(dtype).itemsize * math.prod(columns)
        if not packed or spec.dtype != dtype or columns not in ([()] if one else [(self.num_classes,)]):
            raise FormatError(
                f"{self.path}: labels of kind {self.label_kind} and {self.num_classes} classes are stored as "
                f"{spec.dtype} {list(spec.shape)}, a row every {spec.stride_bytes} bytes"
            )

    def has(self, name: str) -> bool:
        return name in self.manifest.arrays

    def spec(self, name: str) -> ArraySpec:
        try:
            return self.manifest.arrays[name]
        except KeyError:
            raise FormatError(f"{self.path} holds no {name}: import them with the graph") from None

    def array(self, runtime: Runtime, name: str) -> DiskArray:
        """Opens array ``name`` for reading. Raises FormatError where the graph has none."""
        return DiskArray(runtime, self.path, self.spec(name), self.manifest.arrays.get(name + PAGE_SUMS))

    def edge_index(self) -> np.ndarray:
        """Returns all edges, int64 [2, num_edges] of (source, target), by target and then by source, in memory.

        This is the order of ``edge_weight`` and of the ``e_id`` of batches.
        """
        with Runtime() as runtime:
            indptr, indices = (self.array(runtime, name).read("edge-index") for name in ("indptr", "indices"))
        targets = np.repeat(np.arange(self.num_nodes, dtype=np.int64), np.diff(indptr))
        return np.stack([indices.astype(np.int64), targets])

    def split(self, runtime: Runtime, name: str) -> np.ndarray:
        """Returns the node ids of split ``name`` (``train``, ``valid`` or ``val``, ``test``), int64, ascending."""
        name = split_name(name)
        return self.array(runtime, name).read(f"split-{name}")

    @property
    def has_names(self) -> bool:
        """Tells whether the source calls the nodes otherwise than 0 to N - 1."""
        return self.has("names")

    def open_names(self, runtime: Runtime) -> NodeNames:
        """Opens the names of the nodes for reading, within the budget of ``runtime``; a context manager.

        Raises:
            FormatError: The graph has none, see :attr:`has_names`.
        """
        return NodeNames(runtime, self.path, self.manifest, self.integer_names)

    def node_names(self, nodes: Iterable[int] | None = None) -> list[str] | list[int]:
        """Returns what the source calls the given nodes: their ids in the files that were imported.

        Args:
            nodes: Nodes 0 to N - 1, in any order, such as ``batch.n_id`` or ``range(1000)``; None: all, in order,
                which takes about 100 bytes of memory for each.

        Returns:
            A name for each: text, or int where the source had integers. Where it has no names, the nodes themselves.

        Raises:
            ArgumentError: A node is not in 0 to N - 1.
            FormatError: The names are damaged.
        """
        chosen: Any = range(self.num_nodes) if nodes is None else nodes
        ids = host_array(chosen)
        ids = ids.astype(np.int64) if ids.dtype.kind in "iu" or not ids.size else ids
        if ids.ndim != 1 or ids.dtype != np.int64 or ((ids < 0) | (ids >= self.num_nodes)).any():
            raise ArgumentError(
                f"names are asked for of {nodes!r}: give nodes of {self.path}, integers from 0 to {self.num_nodes - 1}"
            )
        if not self.has_names:
            return ids.tolist()
        with Runtime() as runtime, self.open_names(runtime) as names:
            return names.of(ids).to_pylist()

    def node_ids(self, names: Iterable[str] | Iterable[int]) -> np.ndarray:
        """Returns the nodes that the source calls by ``names``: ``node_ids(node_names(nodes))`` equals ``nodes``.

        All names of the graph are read once, a block at a time: look many names up in one call.

        Args:
            names: Ids of the files that were imported, text or int; where the graph has no names, the nodes themselves.

        Returns:
            int64 [len(names)], from 0 to N - 1.

        Raises:
            ArgumentError: The graph has no node of a name; says the first.
            FormatError: The names are damaged.
        """
        words = [_word(name) for name in names]
        ids = self.find_nodes(words)
        unknown = np.flatnonzero(ids < 0)
        if len(unknown):
            more = f" (and {len(unknown) - 1} more of the given names)" if len(unknown) > 1 else ""
            raise ArgumentError(
                f"{self.path} has no node {words[unknown[0]]!r}{more}: leave it out, or import a graph that has it"
            )
        return ids

    def find_nodes(self, names: Iterable[str] | Iterable[int]) -> np.ndarray:
        """Returns the nodes as :meth:`node_ids` does, int64 [len(names)], with -1 for a name that no node has."""
        words = [_word(name) for name in names]
        if self.has_names:
            with Runtime() as runtime, self.open_names(runtime) as known:
                return known.find(words)
        return np.array([_node_of(word, self.num_nodes) for word in words], np.int64)

    @property
    def row_file(self) -> RowFile:
        """Returns the only row file, for what serves one.

        Raises:
            FormatError: The graph has no features.
        """
        if not self.row_files:
            raise FormatError(f"{self.path} holds no {FEATURES}: import them with the graph")
        (only,) = self.row_files
        return only

    def open_rows(self, runtime: Runtime, rows: RowFile) -> DiskArray:
        """Opens a row file for reading."""
        return self.array(runtime, rows.array)

    @property
    def feature_bytes(self) -> int:
        """Counts the bytes of all row files (0 where there are none)."""
        return sum(rows.data_bytes for rows in self.row_files)

    def digest(self) -> str:
        return self.manifest.digest()

    def require_unchanged(self) -> None:
        """Checks that the graph at the path is still the one that was opened, before something made of it is published.

        Raises:
            FormatError: It was replaced or removed meanwhile.
        """
        if manifests.read(self.path, FORMAT, VERSION).digest() != self.digest():
            raise FormatError(
                f"{self.path} was replaced by another graph while it was read, so nothing was published: run the "
                "same command again"
            )


def open_graph(path: Path | str) -> Graph:
    """Opens the graph artifact at ``path``.

    Args:
        path: Folder made by :func:`outcrop.import_graph` or :func:`outcrop.generate_graph`.

    Raises:
        FormatError: Missing, foreign, of another version, or truncated.
    """
    path = Path(path)
    with manifests.opening(path, FORMAT, VERSION) as manifest:
        return Graph(path, manifest)
