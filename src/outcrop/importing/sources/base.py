"""The one shape in which every source offers its graph to the import stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from outcrop.config import SplitProtocol
from outcrop.errors import ArgumentError
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime

REVERSE = "rev_"  # in front of a relation: that of the edges which lead back
EdgeBlock = tuple[np.ndarray, np.ndarray] | tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class FeatureSource:
    """Yields a row per node, or per edge. ``blocks(rows)`` yields arrays ``[<= rows, dim]`` of NumPy dtype ``dtype``,
    in order.

    ``order``: the node of each row, int64 ``[num_rows]``, each node once; None = rows are in node order. Rows of edges
    are in the order in which the source lists the edges.
    ``where(row, column)``: where a value is, for messages, by row and column of the blocks; None = nothing to add.
    """

    name: str
    dtype: np.dtype
    num_rows: int
    dim: int
    blocks: Callable[[int], Iterator[np.ndarray]]
    order: np.ndarray | None = None
    where: Callable[[int, int], str] | None = None

    def at(self, node: int, column: int) -> str:
        """Tells where the source has column ``column`` of the features of a node or edge, for messages."""
        return self.at_row(node if self.order is None else int(np.argmax(self.order == node)), column)

    def at_row(self, row: int, column: int) -> str:
        """Tells the same of a row of the blocks."""
        return self.where(row, column) if self.where else f"{self.name}: row {row}, column {column}"


@dataclass(frozen=True)
class LabelSource:
    """Yields labels in node order: blocks ``[n]`` of integers, floats (NaN = none) or text, or ``[n, T]`` of numbers.

    ``blocks`` is asked after the edges, with the number of nodes. ``where(node)``: where the label of a node is, for
    messages, asked when the blocks were read; None = the source has a row for each node.
    """

    name: str
    num_rows: int | None
    blocks: Callable[[int], Iterator[np.ndarray]]
    where: Callable[[int], str] | None = None

    def at(self, node: int) -> str:
        """Tells where the source has the label of a node, for messages."""
        return self.where(node) if self.where else f"{self.name}: row {node}"


@dataclass(frozen=True)
class SplitRow:
    """Names a row of the source that puts a node into a split, for messages.

    Attributes:
        split: Name of the split.
        node: The node as the source calls it; names in quotes.
        where: File and row, as people find them again.
    """

    split: str
    node: str
    where: str


@dataclass(frozen=True)
class NodeSource:
    """Describes what the nodes of one type have.

    Attributes:
        name: What messages call it: the file or folder, and of several types which.
        whose: Begin of a sentence that ends with a number of nodes.
        num_nodes, splits, class_names, split_protocol, split_rows, integer_names: As in :class:`GraphSource`.
        type_name: What the type is called; "" where there are no types.
        names: Names of the nodes of a type in id order; None = ids are the names. Where there are no types, those of
            :class:`GraphSource` count.
    """

    name: str
    num_nodes: int | None
    features: FeatureSource | None = None
    labels: LabelSource | None = None
    splits: Callable[[int], dict[str, np.ndarray] | None] = lambda num_nodes: None
    class_names: tuple[str, ...] = ()
    split_protocol: SplitProtocol = "none"
    split_rows: Callable[[int], list[SplitRow]] | None = None
    integer_names: bool = False
    type_name: str = ""
    whose: str = "the graph has"
    names: Callable[[], Iterator[str]] | None = None


@dataclass(frozen=True)
class GraphSource:
    """Describes a graph in foreign files, read block by block.

    Attributes:
        name: What messages call it: the file or folder.
        edges: Yields ``(sources, targets)``, int64 ``[n]`` each, ids as in the artifact; ``weighted`` sources yield
            float32 weights ``[n]`` too.
        num_nodes: None = the largest id + 1, known when the edges were read.
        num_edges: Edges that ``edges`` will yield; None = not known.
        splits: Given the number of nodes, the splits of the source: int64 ids each; None = it has none.
        edge_splits: Edges to be predicted by split: int64 ``[M, 2]`` each, asked for after ``edges``.
        edge_split_at: Where an edge to be predicted is, for messages, by split and row; None = nothing to add.
        names: Node names in id order, asked for after ``edges``; None = ids are the names.
        integer_names: The names are integers, written as text.
        class_names: Names of the classes where the source lists them.
        reverse: The source lists undirected edges once, so the reverse of each is stored too.
        keep_self_loops: What is usual for this source.
        split_protocol: What is usual where the source has no splits.
        notes: What the user should know, a sentence each: columns that are not imported.
        split_rows: Given a node, rows that put it into a split, in their order: the first and the last at least;
            None = the source cannot tell.
        edge_at: Where an edge is, for messages, by its number among those that ``edges`` yields; None = that number.
        weight_at: Where the weight of an edge is, for messages, by the number of the edge among those that ``edges``
            yields; None = nothing to add.
        edge_features: Rows of the edges, in the order in which ``edges`` yields these; None = edges have none.
    """

    name: str
    edges: Callable[[], Iterator[EdgeBlock]]
    num_nodes: int | None
    num_edges: int | None = None
    features: FeatureSource | None = None
    labels: LabelSource | None = None
    splits: Callable[[int], dict[str, np.ndarray] | None] = lambda num_nodes: None
    names: Callable[[], Iterator[str]] | None = None
    integer_names: bool = False
    class_names: tuple[str, ...] = ()
    reverse: bool = False
    keep_self_loops: bool = True
    split_protocol: SplitProtocol = "none"
    weighted: bool = False
    edge_splits: Callable[[], dict[str, np.ndarray]] = dict
    notes: tuple[str, ...] = ()
    split_rows: Callable[[int], list[SplitRow]] | None = None
    edge_at: Callable[[int], str] | None = None
    weight_at: Callable[[int], str] | None = None
    edge_split_at: Callable[[str, int], str] | None = None
    edge_features: FeatureSource | None = None

    @property
    def nodes(self) -> NodeSource:
        """Returns what it says of its nodes."""
        return NodeSource(
            self.name,
            self.num_nodes,
            self.features,
            self.labels,
            self.splits,
            self.class_names,
            self.split_protocol,
            self.split_rows,
            self.integer_names,
        )

    def place_of_edge(self, edge: int) -> str:
        """Says where an edge is, by its number among those that ``edges`` yields."""
        return self.edge_at(edge) if self.edge_at else f"{self.name}, edge {edge} (the first is 0)"

    def place_of_target(self, split: str, row: int) -> str:
        """Says where an edge to be predicted is, by its row in the split."""
        if self.edge_split_at is not None:
            return self.edge_split_at(split, row)
        return f"{self.name}: edge {row} of {split}_edges"


@dataclass(frozen=True)
class EdgeSource:
    """Describes the edges of one type.

    Attributes:
        name: What messages call it: the file.
        key: Node type of the sources, relation, node type of the targets.
        edges: As in :class:`GraphSource`, with ids from 0 within the types of the ends.
        num_edges: Edges that ``edges`` will yield; None = not known.
        weighted: Whether ``edges`` yields weights, too.
        reverse: Relation of the edge type that has the reverse of each edge; None = there is none.
        edge_at: Where an edge is, for messages, by its number among those that ``edges`` yields; None = that number.
        weight_at: Where its weight is, likewise; None = nothing to add.
        features: Rows of the edges, in the order in which ``edges`` yields these; None = they have none.
    """

    name: str
    key: tuple[str, str, str]
    edges: Callable[[], Iterator[EdgeBlock]]
    num_edges: int | None = None
    weighted: bool = False
    reverse: str | None = None
    edge_at: Callable[[int], str] | None = None
    weight_at: Callable[[int], str] | None = None
    features: FeatureSource | None = None

    def place_of_edge(self, edge: int) -> str:
        """Says where an edge is, by its number among those that ``edges`` yields."""
        return self.edge_at(edge) if self.edge_at else f"{self.name}, edge {edge} (the first is 0)"


@dataclass(frozen=True)
class TypedSource:
    """Describes a graph with types of nodes and edges, read block by block.

    Attributes:
        name: What messages call it: the file or folder.
        nodes: The node types, each with its ``type_name`` and the number of its nodes.
        edges: The edge types, without those of the reverses.
        notes: What the user should know, a sentence each.
    """

    name: str
    nodes: tuple[NodeSource, ...]
    edges: tuple[EdgeSource, ...]
    notes: tuple[str, ...] = ()


def block_bytes(runtime: Runtime) -> int:
    """Returns the bytes to read at a time: a small share of what is left of the budget."""
    return memory_tables.READ_BLOCK.bytes_of(runtime.budget.free_bytes)


def same_length(parts: dict[str, int | None]) -> int | None:
    """Returns the one number of nodes on which all parts agree; None where none tells it.

    Raises:
        ArgumentError: Two parts disagree.
    """
    told = {name: rows for name, rows in parts.items() if rows is not None}
    if len(set(told.values())) > 1:
        listed = ", ".join(f"{name} has {rows} rows" for name, rows in told.items())
        raise ArgumentError(f"the number of nodes is not clear: {listed}; each needs one row per node")
    return next(iter(told.values()), None)


def check_ids(name: str, ids: np.ndarray, first_row: int = 0) -> np.ndarray:
    """Returns ``ids`` as int64. Raises ArgumentError for numbers that are no integers."""
    if ids.dtype.kind not in "iu":
        raise ArgumentError(
            f"{name}: node ids are {ids.dtype}, integers are needed: convert them before the import"
        )
    if ids.dtype == np.uint64 and len(ids) and int(ids.max()) > np.iinfo(np.int64).max:
        row = first_row + int(np.argmax(ids > np.iinfo(np.int64).max))
        raise ArgumentError(f"{name}: the id in row {row} does not fit a signed 64-bit integer")
    return np.ascontiguousarray(ids, dtype=np.int64)
