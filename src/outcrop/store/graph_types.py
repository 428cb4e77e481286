"""What a graph is made of: types of nodes, types of edges, and the files of rows that nodes or edges have.

Nodes have one numbering: a node type owns the ids from ``first`` on, one type after the other. What users see counts
from 0 within the type. Neighbor lists have one numbering, too: an edge type owns a list for each node of its target
type, from ``first_list`` on. A graph with one node type and one edge type, both called "", is the usual case: its lists
are its nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outcrop.config import LabelKind
from outcrop.store.manifest import ArraySpec

FEATURES = "features"


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
    """

    number: int
    name: str
    first: int
    num_nodes: int
    num_classes: int
    label_kind: LabelKind = "class"
    prefix: str = ""

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
    """

    number: int
    source: NodeType
    relation: str
    target: NodeType
    num_edges: int
    first_list: int
    first_edge: int
    prefix: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Returns (source, relation, target), the names by which torch_geometric calls the type."""
        return self.source.name, self.relation, self.target.name

    def array(self, name: str) -> str:
        """Returns what its array ``name``, such as ``features``, is called in the manifest of the graph."""
        return self.prefix + name


@dataclass(frozen=True)
class RowFile:
    """Describes a file of rows: row i is that of node i of a node type, or of edge i of an edge type.

    Attributes:
        number: Its place among the row files of the graph.
        owner: The type whose nodes or edges have the rows.
        array: Name of the array in the manifest of the graph.
        spec: The array: dtype, shape, distance between rows.
    """

    number: int
    owner: NodeType | EdgeType
    array: str
    spec: ArraySpec

    @property
    def num_rows(self) -> int:
        """Counts the rows: the nodes or edges of the owner."""
        return self.spec.shape[0]

    @property
    def row_bytes(self) -> int:
        """Counts the bytes from the start of a row to the start of the next."""
        return self.spec.stride_bytes

    @property
    def data_bytes(self) -> int:
        """Counts the bytes of all rows."""
        return self.spec.data_bytes


def types_of(attributes: Mapping[str, Any]) -> tuple[tuple[NodeType, ...], tuple[EdgeType, ...]]:
    """Returns the node types and the edge types of a graph whose manifest has ``attributes``: one of each, unnamed."""
    nodes = NodeType(
        0, "", 0, attributes["num_nodes"], attributes["num_classes"], attributes.get("label_kind", "class")
    )
    return (nodes,), (EdgeType(0, nodes, "", nodes, attributes["num_edges"], 0, 0, "e0."),)


def row_files_of(
    arrays: Mapping[str, ArraySpec], types: tuple[NodeType | EdgeType, ...]
) -> tuple[RowFile, ...]:
    """Returns the row files of the types that have features, in the order of ``types``."""
    having = [of for of in types if of.array(FEATURES) in arrays]
    return tuple(
        RowFile(number, of, of.array(FEATURES), arrays[of.array(FEATURES)])
        for number, of in enumerate(having)
    )
