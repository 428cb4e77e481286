"""The graph store: CSC topology, features, labels and splits in one artifact folder.

Version 1, without types. Arrays: ``indptr`` int64 [N + 1] and ``indices`` uint32 or int64 [E]: the in-neighbours
(sources of the edges that point at v) of node v are ``indices[indptr[v]:indptr[v + 1]]``, ascending.
Optional: ``features`` [N, D] of any dtype,
``labels`` (see below), ``train``, ``valid``, ``test`` int64 node ids, ascending; ``edge_weight`` float32 [E],
not negative, in the order of ``indices``; ``train_edges``, ``valid_edges``, ``test_edges`` int64 [M, 2] (source,
target), the positive edges of link prediction.
``e0.features`` [E, D] of any dtype: rows of the edges, in the order of ``indices``. ``e0.original`` int64 [E]: which
edge of the source each edge was.
For ``features``, ``e0.features``, ``indptr``, ``indices`` and ``edge_weight`` there is ``<name>_page_crc`` uint32:
CRC-32C of each page of the array's file. Graphs of before have none, and parts of their arrays are read unchecked.
``names`` uint8 and ``name_offsets`` int64 [N + 1]: what the source calls the nodes, where that is not 0 to N - 1.
Attributes: num_nodes, num_edges, num_classes, feature_dim; class_names where classes have names; integer_names (true
where ``names`` are integers written as text; absent: they are text); label_kind, which says what ``labels`` are:
``class`` (where it is absent, too) int64 [N] from 0 to num_classes - 1, -1 = unknown;
``multilabel`` uint8 [N, num_classes] of 0 and 1, 255 = unknown; ``regression`` float32 [N] or [N, num_classes], NaN =
unknown.

Version 2, with types of nodes and edges (:mod:`outcrop.store.graph_types`). Attributes: num_nodes and num_edges in all;
``node_types``, a list of {name, num_nodes, num_classes, label_kind, class_names}; ``edge_types``, a list of {source,
relation, target, num_edges, order, weighted}, ``source`` and ``target`` being names of node types. ``indptr`` int64
[lists + 1] has the lists of one edge type after the other, one for each node of its target type; ``indices`` [E] are
sources, numbered through all node types, ascending in a list; ``edge_weight`` has the weights of the edge types that
are ``weighted``; ``e<i>.features`` [E_i, D] are rows of the edges of edge type i, in the order of ``indices``, and
``e<i>.original`` int64 [E_i] says which edge of the source each was.
Node type i has ``n<i>.features``, ``n<i>.labels``, ``n<i>.train``, ``n<i>.valid`` and ``n<i>.test``, as far as there
are any, with ids from 0 within the type.

Version 3, of either kind: it has types where it has ``node_types``. ``features`` of nodes are uint8 [N, bytes of a
row] there, in few bits or sparse. In few bits (:mod:`outcrop.store.quantised`): an attribute ``quantised`` of the
graph, or of the node type, has ``dtype`` (``int8`` or ``uint4``), ``scale`` (``column`` or ``row``) and ``columns``,
the number of values of a row; where scales are of columns there is ``features_scale`` float32 [2, D], scale and offset
of each. Sparse (:mod:`outcrop.store.sparse_rows`): an attribute ``sparse`` has ``dtype``, ``columns``, ``stored``, the
most values that a row stores, and ``common``, the bits that all of them have, or null.
"""

from __future__ import annotations

import copy
import math
import shlex
from collections.abc import Iterable, Mapping
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.config import LABEL_KINDS, LabelKind
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import graph_manifest
from outcrop.store import manifest as manifests
from outcrop.store.arrays import DiskArray, SequentialRows
from outcrop.store.coded_rows import ATTRIBUTES
from outcrop.store.elsewhere import Elsewhere, read_elsewhere
from outcrop.store.graph_types import (
    FEATURES,
    LABELS,
    ORIGINAL,
    WEIGHTS,
    EdgeType,
    ListsTo,
    NodeType,
    RowFile,
    has_seeds,
    relations_of,
    row_files_of,
    types_of,
)
from outcrop.store.host_array import host_array
from outcrop.store.manifest import PAGE_SUMS, ArraySpec, Manifest
from outcrop.store.names import NAME_ARRAYS, NodeNames
from outcrop.store.remote import without_keys
from outcrop.store.remote_array import open_sequential

FORMAT, VERSION = "outcrop.graph", 1
TYPED_VERSION = 2  # of graphs with types of nodes or edges
# Of graphs of both kinds with features in few bits or sparse, which what reads the others cannot decode.
CODED_VERSION = 3
VERSIONS = (VERSION, TYPED_VERSION, CODED_VERSION)
# How a split may be spelled -> its name.
SPLIT_NAMES = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
# Arrays of which parts are read, so that their pages have checksums. The others are read and checked whole. Those of a
# type of nodes or edges have its prefix.
PAGED = ("indptr", "indices", "edge_weight", "features")
UNKNOWN_MULTILABEL = 255
# Of one node type; asked for without a type, they are those of the only one.
_OF_NODES = ("features", "labels", *SPLITS, *NAME_ARRAYS, *graph_manifest.EDGE_SPLITS)
_SHOWN_TYPES = 5


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


def paged_arrays(manifest: Manifest) -> list[str]:
    """Returns the arrays of a graph of which parts are read."""
    of_types = [name for name in manifest.arrays if name not in PAGED and name.endswith(f".{FEATURES}")]
    return [*(name for name in PAGED if name in manifest.arrays), *sorted(of_types)]


def version_for(attributes: Mapping[str, Any]) -> int:
    """Returns the version of the format that a graph with these attributes has."""
    types = attributes.get("node_types", ())
    if any(name in one for name in ATTRIBUTES for one in (attributes, *types)):
        return CODED_VERSION
    return TYPED_VERSION if types else VERSION


def has_types(manifest: Manifest) -> bool:
    """Tells whether a graph has types of nodes or edges, by its manifest."""
    return manifest.version == TYPED_VERSION or (
        manifest.version == CODED_VERSION and "node_types" in manifest.attributes
    )


def _shortened(types: list[str]) -> list[str]:
    """Returns the first of a list for messages, and how many more there are."""
    left = len(types) - _SHOWN_TYPES
    return [*types[:_SHOWN_TYPES], f"{left} more"] if left > 0 else types


def split_name(spelling: str) -> str:
    """Returns the name of a split that people may spell otherwise: ``valid`` of ``val``; others as they are."""
    return SPLIT_NAMES.get(spelling, spelling)


class Graph:
    """Opens a graph on disk: the manifest is read at once, arrays are opened as they are asked for.

    Attributes:
        integer_names: Whether the names of nodes are integers.
        node_types, edge_types: Types of nodes and of edges; one of each, called "", in a graph without types.
        row_files: The files of rows that nodes or edges have; none in a graph without features.
        notes: What an import had to say of this graph, a sentence each; empty where it was opened from disk.
    """

    def __init__(self, path: Path, manifest: Manifest):
        self.path, self.manifest = path, manifest
        self._seed_type: NodeType | None = None
        self.notes: tuple[str, ...] = ()
        attributes, self.is_typed = manifest.attributes, has_types(manifest)
        try:
            self.num_nodes: int = attributes["num_nodes"]
            self.num_edges: int = attributes["num_edges"]
            self.integer_names: bool = bool(attributes.get("integer_names", False))
            wrong = graph_manifest.problem(attributes, manifest.arrays, self.is_typed)
        except KeyError as error:
            raise FormatError(f"{path}: its manifest lacks attribute {error}") from None
        if wrong:
            raise FormatError(f"{path}: {wrong}: its manifest was changed by hand or is torn")
        self.node_types: tuple[NodeType, ...]
        self.edge_types: tuple[EdgeType, ...]
        self.node_types, self.edge_types = types_of(attributes, manifest.arrays, self.is_typed)
        for node_type in self.node_types:
            self._check_labels(node_type)
        self.row_files = row_files_of(manifest.arrays, (*self.node_types, *self.edge_types), path)

    def __repr__(self) -> str:
        parts = (
            self._types_in_words()
            if self.is_typed
            else [f"nodes={self.num_nodes}", f"edges={self.num_edges}"]
        )
        for rows in self.row_files:
            parts.append(f"{rows.array}={rows.num_rows}x{rows.width} {rows.stored_as}")
        for one in self.node_types:
            if one.num_classes:
                name = {"class": "classes", "multilabel": "multilabel", "regression": "targets"}[
                    one.label_kind
                ]
                parts.append(f"{one.array(name)}={one.num_classes}")
        return f"Graph({', '.join(parts)}, path={str(self.path)!r})"

    def _types_in_words(self) -> list[str]:
        counts = {
            "nodes": [f"{one.name!r}: {one.num_nodes}" for one in self.node_types],
            "edges": [f"{' '.join(one.key)!r}: {one.num_edges}" for one in self.edge_types],
        }
        return [f"{what}={{{', '.join(_shortened(types))}}}" for what, types in counts.items()]

    def _check_labels(self, of: NodeType) -> None:
        if of.label_kind not in LABEL_KINDS:
            raise FormatError(
                f"{self.path}: label kind {of.label_kind!r} is unknown (known: {', '.join(LABEL_KINDS)}): it was "
                "made by a newer Outcrop, or changed by hand"
            )
        name = of.array("labels")
        spec = self.manifest.arrays.get(name)
        if spec is None:
            return
        dtype = {"class": "int64", "multilabel": "uint8", "regression": "float32"}[of.label_kind]
        columns = spec.shape[1:]
        one = of.label_kind == "class" or (of.label_kind == "regression" and of.num_classes == 1)
        if spec.shape[0] != of.num_nodes:
            raise FormatError(
                f"{self.path}: array {name!r} has {spec.shape[0]} rows, {of.num_nodes} were expected"
            )
        packed = spec.stride_bytes == np.dtype(dtype).itemsize * math.prod(columns)
        if not packed or spec.dtype != dtype or columns not in ([()] if one else [(of.num_classes,)]):
            raise FormatError(
                f"{self.path}: labels of kind {of.label_kind} and {of.num_classes} classes are stored as "
                f"{spec.dtype} {list(spec.shape)}, a row every {spec.stride_bytes} bytes"
            )

    @property
    def seed_type(self) -> NodeType:
        """Returns the node type that batches begin with: that of :meth:`with_seeds`, or the only one that has labels or
        splits.

        Raises:
            ArgumentError: Several have, or none of several, and none was chosen.
        """
        if self._seed_type is not None:
            return self._seed_type
        if len(self.node_types) == 1:
            return self.node_types[0]
        having = [one for one in self.node_types if has_seeds(one, self.manifest.arrays)]
        if len(having) == 1:
            return having[0]
        names = ", ".join(one.name for one in having or self.node_types)
        which = f"several node types of {self.path} have labels or splits ({names})"
        none = f"none of the node types of {self.path} has labels or splits ({names})"
        raise ArgumentError(
            f"{which if having else none}: say which batches begin with (--node-type, SampleConfig(node_type=...))"
        )

    def with_seeds(self, node_type: str | None) -> Graph:
        """Returns the graph as it is for batches that begin with nodes of ``node_type``; None: of the only type that
        has labels or splits, whatever was chosen before.

        Raises:
            ArgumentError: It has no node type of that name.
        """
        if node_type == self.chosen_seeds:
            return self
        if node_type is None:
            free = copy.copy(self)
            free._seed_type = None
            return free
        found = [one for one in self.node_types if one.name == node_type]
        if not found:
            names = ", ".join(_shortened([repr(one.name) for one in self.node_types]))
            raise ArgumentError(f"{self.path} has no node type {node_type!r}: choose one of {names}")
        chosen = copy.copy(self)
        chosen._seed_type = found[0]
        return chosen

    @property
    def chosen_seeds(self) -> str | None:
        """Returns the name of the node type that :meth:`with_seeds` chose; None: none was chosen."""
        return None if self._seed_type is None else self._seed_type.name or None

    @property
    def num_classes(self) -> int:
        """Returns the number of classes; of columns of the targets for regression (1 for ``[N]``); 0 without labels.

        Raises:
            ArgumentError: Of several node types not exactly one has labels or splits; likewise for the next four.
        """
        return self.seed_type.num_classes

    @property
    def label_kind(self) -> LabelKind:
        """Returns ``class``, ``multilabel`` or ``regression`` (the head of this file)."""
        return self.seed_type.label_kind

    @property
    def class_names(self) -> tuple[str, ...]:
        """Returns what class i was called in the source; empty where classes have no names."""
        return self.seed_type.class_names

    @property
    def feature_dim(self) -> int:
        """Returns the columns of the features; 0 without features."""
        if not self.is_typed:
            return self.manifest.attributes["feature_dim"]
        return next((rows.width for rows in self.row_files if rows.owner == self.seed_type), 0)

    def edge_type(self, key: tuple[str, str, str] | None = None) -> EdgeType:
        """Returns the edge type that is called ``key``, (source, relation, target).

        Args:
            key: As torch_geometric spells it; None: the only one.

        Raises:
            ArgumentError: There is none of that name, or several and no name is given.
        """
        found = [one for one in self.edge_types if key is None or one.key == tuple(key)]
        if len(found) != 1:
            asked = f"no edge type {' '.join(key)!r}" if key is not None else "several edge types"
            raise ArgumentError(f"{self.path} has {asked}: name one of {', '.join(self._edge_names())}")
        return found[0]

    def lists_to(self, target: NodeType) -> ListsTo:
        """Returns the lists of the nodes of a type: those of all edge types that lead to it."""
        return ListsTo(target, tuple(one for one in self.edge_types if one.target == target))

    def _edge_names(self) -> list[str]:
        return _shortened([repr(" ".join(one.key)) for one in self.edge_types])

    @property
    def relations(self) -> _core.Relations:
        """Returns the types in the form in which the core draws from their lists."""
        return relations_of(self.node_types, self.edge_types)

    @property
    def num_lists(self) -> int:
        """Counts the neighbor lists of all edge types; the nodes, in a graph without types."""
        return self.spec("indptr").shape[0] - 1

    def require_one_type(self, what: str = "what was asked for") -> None:
        """Checks that the graph has no types, for ``what`` serves graphs without them alone.

        Raises:
            ArgumentError: It has; names them.
        """
        if not self.is_typed:
            return
        nodes = ", ".join(one.name for one in self.node_types[:_SHOWN_TYPES])
        raise ArgumentError(
            f"{self.path} has types of nodes ({nodes}{', ...' if self.node_types[_SHOWN_TYPES:] else ''}) and of edges "
            f"({', '.join(self._edge_names())}): {what} is there for graphs without types "
            "alone; import one node type and one edge type as a graph of its own"
        )

    def has_nodes_of(self, split: str) -> bool:
        """Tells whether ``train``, ``valid`` or ``test`` has any nodes."""
        return self.has(split) and self.spec(split).shape[0] > 0

    def has(self, name: str) -> bool:
        """Tells whether the graph has array ``name``, as the manifest calls it (``node_type.array("labels")``).

        In a graph with types ``labels``, ``names``, ``train``, ``valid`` and ``test`` are those of :attr:`seed_type`.

        Raises:
            ArgumentError: The graph has types and the name does not say of which, as in :meth:`require_one_type`.
        """
        return self._stored_name(name) in self.manifest.arrays

    def _stored_name(self, name: str) -> str:
        """Returns what the manifest calls array ``name``; labels and splits are those of the type of the seeds."""
        if not self.is_typed or name not in _OF_NODES:
            return name
        if name in (LABELS, *SPLITS, *NAME_ARRAYS):
            chosen = self._seed_type is not None
            any_seeds = chosen or any(has_seeds(one, self.manifest.arrays) for one in self.node_types)
            return self.seed_type.array(name) if any_seeds else name
        self.require_one_type()
        return name

    def spec(self, name: str) -> ArraySpec:
        try:
            return self.manifest.arrays[self._stored_name(name)]
        except KeyError:
            raise FormatError(f"{self.path} holds no {name}: import them with the graph") from None

    def array(self, runtime: Runtime, name: str) -> DiskArray:
        """Opens array ``name`` for reading. Raises FormatError where the graph has none, or left it in a store."""
        spec = self.spec(name)
        if self._uri_of(spec) is not None:
            raise FormatError(self.what_is_left(name))
        return DiskArray(runtime, self.path, spec, self._sums_of(name))

    def _sums_of(self, name: str) -> ArraySpec | None:
        return self.manifest.arrays.get(self._stored_name(name) + PAGE_SUMS)

    def _uri_of(self, spec: ArraySpec) -> str | None:
        """Returns the folder in a store that has a file; None: it is here."""
        left = self._elsewhere
        return left.uri if spec.file in left.files and not (self.path / spec.file).exists() else None

    @cached_property
    def _elsewhere(self) -> Elsewhere:
        return read_elsewhere(self.path)

    @property
    def leaves_rows(self) -> bool:
        """Tells whether a row file was left in a store (``outcrop fetch --leave-features``)."""
        return any(self.is_left(rows) for rows in self.row_files)

    def is_left(self, rows: RowFile) -> bool:
        """Tells whether a row file was left in a store, from which it is read only from its beginning to its end."""
        return self._uri_of(rows.spec) is not None

    def what_is_left(self, name: str = FEATURES) -> str:
        """Says where array ``name`` is, and what brings it here."""
        uri = self._elsewhere.uri
        return (
            f"{self.path} has left its {name} in {without_keys(uri)}, where only outcrop prepare reads them: "
            f"{shlex.join(['outcrop', 'fetch', uri, str(self.path)])} brings them here"
        )

    def edge_index(self, edge_type: EdgeType | tuple[str, str, str] | None = None) -> np.ndarray:
        """Returns all edges of a type, int64 [2, num_edges] of (source, target), by target, then by source, in memory.

        This is the order of ``edge_weight`` and of the ``e_id`` of batches.

        Args:
            edge_type: One of ``graph.edge_types``, or its key (source, relation, target); None: the only one.

        Returns:
            Ids from 0 within the types of the ends.

        Raises:
            ArgumentError: There are several edge types and none is named, or the graph has none of that name.
            FormatError: The lists contradict each other.
        """
        of = edge_type if isinstance(edge_type, EdgeType) else self.edge_type(edge_type)
        first, stop = of.first_edge, of.first_edge + of.num_edges
        lists = of.first_list, of.first_list + of.target.num_nodes + 1
        with Runtime() as runtime:
            indptr = self.array(runtime, "indptr").read("edge-index", *lists)
            indices = self.array(runtime, "indices").read("edge-index", first, stop)
        counts = np.diff(indptr)
        if indptr[0] != first or indptr[-1] != stop or counts.min(initial=0) < 0:
            raise FormatError(
                f"{self.path}: the lists of edge type {' '.join(of.key)!r} hold edges {indptr[0]} to {indptr[-1]}, "
                f"{first} to {stop} were expected: run outcrop verify"
            )
        targets = np.repeat(np.arange(of.target.num_nodes, dtype=np.int64), counts)
        return np.stack([indices.astype(np.int64) - of.source.first, targets])

    def edge_origins(self, edge_type: EdgeType | tuple[str, str, str] | None = None) -> np.ndarray:
        """Returns int64 [num_edges]: which edge of its source each edge of a type was, in the order of its edge index.

        Edges of the source count from 0, in the order in which it lists them, those that were dropped too; the reverse
        of an edge has the number of the edge. So ``graph.edge_origins()[batch.e_id]`` leads from a batch to the rows of
        what was imported.

        Args:
            edge_type: As :meth:`edge_index` takes it.

        Raises:
            ArgumentError: There are several edge types and none is named, or the graph has none of that name.
            FormatError: Origins were not kept (``ImportConfig(edge_origins=True)``, ``outcrop import --edge-origins``).
        """
        of = edge_type if isinstance(edge_type, EdgeType) else self.edge_type(edge_type)
        name = of.array(ORIGINAL)
        if name not in self.manifest.arrays:
            raise FormatError(
                f"{self.path} does not know where its edges come from: import it with edge_origins (--edge-origins)"
            )
        with Runtime() as runtime:
            return self.array(runtime, name).read("edge-origins")

    def split(self, runtime: Runtime, name: str) -> np.ndarray:
        """Returns the node ids of split ``name`` (``train``, ``valid`` or ``val``, ``test``), int64, ascending.

        In a graph with types these are ids within :attr:`seed_type`.
        """
        name = split_name(name)
        return self.array(runtime, self.seed_type.array(name)).read(f"split-{name}")

    def node_type(self, name: str | None = None) -> NodeType:
        """Returns the node type that is called ``name``; None: :attr:`seed_type`.

        Raises:
            ArgumentError: There is none of that name, or none is given and several have labels or splits.
        """
        if name is None:
            return self.seed_type
        found = next((one for one in self.node_types if one.name == name), None)
        if found is None:
            known = ", ".join(_shortened([repr(one.name) for one in self.node_types]))
            raise ArgumentError(f"{self.path} has no node type {name!r}: name one of {known}")
        return found

    @property
    def has_names(self) -> bool:
        """Tells whether the source calls the nodes otherwise than 0 to N - 1; in a graph with types those of
        :attr:`seed_type`.
        """
        return self.has_names_of(self.seed_type)

    def has_names_of(self, of: NodeType) -> bool:
        """Tells whether the source calls the nodes of a type otherwise than 0 to N - 1."""
        return of.array(NAME_ARRAYS[0]) in self.manifest.arrays

    def open_names(self, runtime: Runtime, node_type: str | None = None) -> NodeNames:
        """Opens the names of the nodes of a type for reading, within the budget of ``runtime``; a context manager.

        Args:
            runtime: Runtime whose budget what is read counts in.
            node_type: Name of the type; None = :attr:`seed_type`.

        Raises:
            FormatError: They have none, see :attr:`has_names`.
        """
        of = self.node_type(node_type)
        return NodeNames(runtime, self.path, self.manifest, of.integer_names, of.prefix)

    def node_names(
        self, nodes: Iterable[int] | None = None, node_type: str | None = None
    ) -> list[str] | list[int]:
        """Returns what the source calls the given nodes: their ids in the files that were imported.

        Args:
            nodes: Nodes 0 to N - 1, in any order, such as ``batch.n_id`` or ``range(1000)``; None: all, in order,
                which takes about 100 bytes of memory for each.
            node_type: Name of their type, in which they count from 0; None = :attr:`seed_type`.

        Returns:
            A name for each: text, or int where the source had integers. Where it has no names, the nodes themselves.

        Raises:
            ArgumentError: A node is not in 0 to N - 1, or the graph has no such type.
            FormatError: The names are damaged.
        """
        of = self.node_type(node_type)
        chosen: Any = range(of.num_nodes) if nodes is None else nodes
        ids = host_array(chosen)
        ids = ids.astype(np.int64) if ids.dtype.kind in "iu" or not ids.size else ids
        if ids.ndim != 1 or ids.dtype != np.int64 or ((ids < 0) | (ids >= of.num_nodes)).any():
            raise ArgumentError(
                f"names are asked for of {nodes!r}: give nodes of {self.path}, integers from 0 to {of.num_nodes - 1}"
            )
        if not self.has_names_of(of):
            return ids.tolist()
        with Runtime() as runtime, self.open_names(runtime, of.name) as names:
            return names.of(ids).to_pylist()

    def node_ids(self, names: Iterable[str] | Iterable[int], node_type: str | None = None) -> np.ndarray:
        """Returns the nodes that the source calls by ``names``: ``node_ids(node_names(nodes))`` equals ``nodes``.

        All names of the graph are read once, a block at a time: look many names up in one call.

        Args:
            names: Ids of the files that were imported, text or int; where the graph has no names, the nodes themselves.
            node_type: Name of the type of the nodes; None = :attr:`seed_type`.

        Returns:
            int64 [len(names)], from 0 to N - 1.

        Raises:
            ArgumentError: The graph has no node of a name; says the first.
            FormatError: The names are damaged.
        """
        words = [_word(name) for name in names]
        ids = self.find_nodes(words, node_type)
        unknown = np.flatnonzero(ids < 0)
        if len(unknown):
            more = f" (and {len(unknown) - 1} more of the given names)" if len(unknown) > 1 else ""
            raise ArgumentError(
                f"{self.path} has no node {words[unknown[0]]!r}{more}: leave it out, or import a graph that has it"
            )
        return ids

    def find_nodes(self, names: Iterable[str] | Iterable[int], node_type: str | None = None) -> np.ndarray:
        """Returns the nodes as :meth:`node_ids` does, int64 [len(names)], with -1 for a name that no node has."""
        words, of = [_word(name) for name in names], self.node_type(node_type)
        if self.has_names_of(of):
            with Runtime() as runtime, self.open_names(runtime, of.name) as known:
                return known.find(words)
        return np.array([_node_of(word, of.num_nodes) for word in words], np.int64)

    @property
    def row_file(self) -> RowFile:
        """Returns the row file of the nodes, of a graph without types.

        Raises:
            FormatError: The nodes have no features.
            ArgumentError: The graph has types, as in :meth:`require_one_type`.
        """
        self.require_one_type()
        for rows in self.row_files:
            if rows.kind == "nodes":
                return rows
        raise FormatError(f"{self.path} holds no {FEATURES}: import them with the graph")

    def with_edge_rows(self, wanted: bool) -> Graph:
        """Returns the graph as loading sees it: with all row files, or those of nodes alone unless the others are
        ``wanted``.
        """
        if wanted or not self.has_edge_rows:
            return self
        seen = copy.copy(self)
        seen.row_files = tuple(rows for rows in self.row_files if rows.kind == "nodes")
        return seen

    def require_edge_rows(self, wanted: bool) -> None:
        """Raises ArgumentError where features of edges are ``wanted``, and there are none."""
        if wanted and not self.has_edge_rows:
            raise ArgumentError(
                f"{self.path} has no features of edges, which edge_rows (--edge-rows) asks for: import them with the "
                "graph, or leave it out"
            )

    def require_edge_weights(self, wanted: bool) -> None:
        """Raises ArgumentError where weights of edges are ``wanted``, and there are none."""
        if wanted and not self.has(WEIGHTS):
            raise ArgumentError(
                f"{self.path} has no edge weights, which edge_weights (--edge-weights) asks for: import them with the "
                "graph (edge_weight.npy beside edges.npy, or a column 'weight'), or leave it out"
            )

    @property
    def has_edge_rows(self) -> bool:
        """Tells whether edges of some type have features."""
        return any(rows.kind == "edges" for rows in self.row_files)

    @property
    def measured_file(self) -> Path:
        """Returns the file by which the disk is measured: the largest row file; the neighbors where none is here."""
        specs = [rows.spec for rows in self.row_files if not self.is_left(rows)] or [self.spec("indices")]
        return self.path / max(specs, key=lambda spec: spec.data_bytes).file

    def open_rows(self, runtime: Runtime, rows: RowFile) -> DiskArray:
        """Opens a row file for reading."""
        return self.array(runtime, rows.array)

    def open_sequential(self, runtime: Runtime, rows: RowFile) -> SequentialRows:
        """Opens a row file for reading from its beginning to its end, also where it was left in a store."""
        spec = self.spec(rows.array)
        return open_sequential(runtime, self.path, spec, self._sums_of(rows.array), self._uri_of(spec))

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
        if manifests.read(self.path, FORMAT, VERSIONS).digest() != self.digest():
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
    with manifests.opening(path, FORMAT, VERSIONS) as manifest:
        graph = Graph(path, manifest)
        coded = version_for(manifest.attributes) == CODED_VERSION
        if coded != (manifest.version == CODED_VERSION):
            features = "in few bits or sparse" if coded else "not in few bits"
            raise FormatError(
                f"{path} is of version {manifest.version}, and its features are {features}: its manifest was changed "
                "by hand; import the graph again"
            )
        return graph
