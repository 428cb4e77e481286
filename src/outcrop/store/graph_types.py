"""What a graph is made of: types of nodes, types of edges, and the files of rows that nodes or edges have.

Nodes have one numbering: a node type owns the ids from ``first`` on, one type after the other. What users see counts
from 0 within the type. Neighbor lists have one numbering, too: an edge type owns a list for each node of its target
type, from ``first_list`` on. A graph with one node type and one edge type, both called "", is the usual case: its lists
are its nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import outcrop._core as _core
from outcrop.config import LabelKind
from outcrop.config.sampling import SPLITS
from outcrop.store.coded_rows import Coding, coding_of, decoder_of
from outcrop.store.manifest import ArraySpec
from outcrop.store.row_decoder import RowDecoder

FEATURES, LABELS, WEIGHTS, ORIGINAL = "features", "labels", "edge_weight", "original"


@dataclass(frozen=True)
class NodeType:
    """Describes the nodes of one type.

    Attributes:
        number: Its place among the node types of the graph.
        name: What it is called; "" where a graph has one unnamed type.
        first: Number of its first node in the numbering of all nodes.
        num_nodes: How many nodes it has.
        num_classes: Classes, or columns of the targets; 0 without labels.
        label_kind: ``class``, ``multilabel`` or ``regression``.
        prefix: What the names of its arrays begin with: "" or, for example, ``n0.``.
        class_names: What class i was called in the source; empty where classes have no names.
        integer_names: Whether the names of its nodes are integers.
        coding: How its features are stored as bytes, in few bits or sparse; None: as they are.
    """

    number: int
    name: str
    first: int
    num_nodes: int
    num_classes: int
    label_kind: LabelKind = "class"
    prefix: str = ""
    class_names: tuple[str, ...] = ()
    integer_names: bool = False
    coding: Coding | None = None

    def array(self, name: str) -> str:
        """Returns what its array ``name``, such as ``labels``, is called in the manifest of the graph."""
        return self.prefix + name


@dataclass(frozen=True)
class EdgeType:
    """Describes the edges of one type, which lead from nodes of ``source`` to nodes of ``target``.

    Attributes:
        number: Its place among the edge types of the graph.
        relation: What it is called; "" where a graph has one unnamed type.
        num_edges: How many edges it has.
        first_list: Number of its first neighbor list, of the first node of ``target``.
        first_edge: Position of its first edge in ``indices``.
        prefix: What the names of its arrays begin with, for example ``e0.``.
        weighted: Whether its edges have weights in ``edge_weight``, which holds those of the edge types that have them,
            one after the other.
    """

    number: int
    source: NodeType
    relation: str
    target: NodeType
    num_edges: int
    first_list: int
    first_edge: int
    prefix: str
    weighted: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Returns (source, relation, target), the names by which torch_geometric calls the type."""
        return self.source.name, self.relation, self.target.name

    def array(self, name: str) -> str:
        """Returns what its array ``name``, such as ``features``, is called in the manifest of the graph."""
        return self.prefix + name


@dataclass(frozen=True)
class ListsTo:
    """Names neighbor lists: those that some edge types have for the nodes of one type, to which they lead.

    Attributes:
        target: The type of the nodes.
        edge_types: Edge types that lead to it; none: its nodes have no lists.
    """

    target: NodeType
    edge_types: tuple[EdgeType, ...]


@dataclass(frozen=True)
class RowFile:
    """Describes a file of rows: row i is that of node i of a node type, or of edge i of an edge type.

    Attributes:
        number: Its place among the row files of the graph.
        owner: The type whose nodes or edges have the rows.
        array: Name of the array in the manifest of the graph.
        spec: The array as it lies on disk: dtype, shape, distance between rows.
        decoder: Makes values of rows in few bits or sparse ones, which are bytes on disk; None: they are used as they
            are.
    """

    number: int
    owner: NodeType | EdgeType
    array: str
    spec: ArraySpec
    decoder: RowDecoder | None = field(default=None, compare=False)

    @property
    def width(self) -> int:
        """Counts the values of a row as loaders deliver it."""
        return self.spec.shape[1] if self.decoder is None else self.decoder.columns

    @property
    def dtype(self) -> str:
        """Returns the type of the values as loaders deliver them, such as ``float32``."""
        return self.spec.dtype if self.decoder is None else self.decoder.dtype

    @property
    def stored_as(self) -> str:
        """Returns what people are told of the type of the values on disk."""
        return self.spec.dtype if self.decoder is None else self.decoder.words

    @property
    def kind(self) -> Literal["nodes", "edges"]:
        """Says whether nodes or edges have the rows."""
        return "nodes" if isinstance(self.owner, NodeType) else "edges"

    @property
    def num_rows(self) -> int:
        """Counts the rows: the nodes or edges of the owner."""
        return self.spec.shape[0]

    @property
    def row_bytes(self) -> int:
        """Counts the bytes from the start of a row to the start of the next."""
        return self.spec.stride_bytes

    @property
    def decoded_bytes(self) -> int:
        """Counts the bytes of the values that a decoder makes of a row; 0: rows are used as they lie."""
        return 0 if self.decoder is None else self.decoder.decoded_bytes

    @property
    def batch_row_bytes(self) -> int:
        """Counts the bytes that a row takes in a batch: as it lies on disk, and its values where it is decoded."""
        return self.row_bytes + self.decoded_bytes

    @property
    def data_bytes(self) -> int:
        """Counts the bytes of all rows."""
        return self.spec.data_bytes


def name_of(rows: RowFile) -> str:
    """Returns what messages call the type that has the rows: ``paper``, or ``author writes paper``."""
    owner = rows.owner
    return owner.name if isinstance(owner, NodeType) else " ".join(owner.key)


def types_of(
    attributes: Mapping[str, Any], arrays: Mapping[str, ArraySpec], typed: bool = False
) -> tuple[tuple[NodeType, ...], tuple[EdgeType, ...]]:
    """Returns the node types and the edge types of a graph.

    Args:
        attributes: Those of its manifest, whose numbers fit (:func:`outcrop.store.graph_manifest.problem`).
        arrays: Those of its manifest.
        typed: Whether the manifest lists types; else there is one of each, unnamed.
    """
    if not typed:
        nodes = NodeType(
            0,
            "",
            0,
            attributes["num_nodes"],
            attributes["num_classes"],
            attributes.get("label_kind", "class"),
            class_names=tuple(attributes.get("class_names", ())),
            integer_names=bool(attributes.get("integer_names", False)),
            coding=coding_of(attributes),
        )
        weighted = WEIGHTS in arrays
        return (nodes,), (EdgeType(0, nodes, "", nodes, attributes["num_edges"], 0, 0, "e0.", weighted),)
    node_types = _node_types(attributes["node_types"])
    return node_types, _edge_types(attributes["edge_types"], {one.name: one for one in node_types})


def _node_types(listed: Sequence[Mapping[str, Any]]) -> tuple[NodeType, ...]:
    types: list[NodeType] = []
    first = 0
    for number, entry in enumerate(listed):
        kind, names = entry.get("label_kind", "class"), tuple(entry.get("class_names", ()))
        counts = entry["num_nodes"], entry["num_classes"]
        integers = entry.get("integer_names", False)
        coding = coding_of(entry)
        types.append(
            NodeType(number, entry["name"], first, *counts, kind, f"n{number}.", names, integers, coding)
        )
        first += entry["num_nodes"]
    return tuple(types)


def _edge_types(
    listed: Sequence[Mapping[str, Any]], node_types: Mapping[str, NodeType]
) -> tuple[EdgeType, ...]:
    types: list[EdgeType] = []
    first_list = first_edge = 0
    for number, entry in enumerate(listed):
        source, target = node_types[entry["source"]], node_types[entry["target"]]
        ends = (number, source, entry["relation"], target, entry["num_edges"])
        types.append(EdgeType(*ends, first_list, first_edge, f"e{number}.", entry.get("weighted", False)))
        first_list += target.num_nodes
        first_edge += entry["num_edges"]
    return tuple(types)


def relations_of(node_types: Sequence[NodeType], edge_types: Sequence[EdgeType]) -> _core.Relations:
    """Returns the types in the form in which the core draws from their lists."""
    ends = [0, *(one.first + one.num_nodes for one in node_types)]
    edges = [(one.source.number, one.target.number, one.num_edges, one.weighted) for one in edge_types]
    return _core.Relations(ends, edges)


def has_seeds(node_type: NodeType, arrays: Mapping[str, ArraySpec]) -> bool:
    """Tells whether nodes of the type have labels or are divided into splits: whether batches may begin with them."""
    return any(node_type.array(name) in arrays for name in (LABELS, *SPLITS))


def row_files_of(
    arrays: Mapping[str, ArraySpec], types: tuple[NodeType | EdgeType, ...], folder: Path
) -> tuple[RowFile, ...]:
    """Returns the row files of the types that have features, in the order of ``types``.

    Args:
        folder: Folder of the graph.
    """
    having = [of for of in types if of.array(FEATURES) in arrays]
    return tuple(
        RowFile(number, of, of.array(FEATURES), arrays[of.array(FEATURES)], _decoder_of(of, arrays, folder))
        for number, of in enumerate(having)
    )


def _decoder_of(of: NodeType | EdgeType, arrays: Mapping[str, ArraySpec], folder: Path) -> RowDecoder | None:
    return decoder_of(of.coding, arrays, of.prefix, folder) if isinstance(of, NodeType) else None
