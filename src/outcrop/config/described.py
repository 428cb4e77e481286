"""Graphs of which only the sizes are known."""

from __future__ import annotations

from dataclasses import dataclass, replace

VALUE_BYTES = {
    "int8": 1,
    "uint8": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}  # types of rows
_WIDE_IDS = 1 << 32  # nodes from which on ids have 8 bytes


@dataclass(frozen=True)
class DescribedNodes:
    """Describes the nodes of a type by published sizes.

    Attributes:
        dtype, width: Type and number of the values of a row; width 0: the nodes have no rows.
        train: Nodes that batches begin with.
        skew: Power of the rank with which edges get fewer, from 0 (all nodes have as many) to below 1.
    """

    name: str
    num_nodes: int
    dtype: str = "float32"
    width: int = 0
    train: int = 0
    skew: float = 0.5

    @property
    def row_bytes(self) -> int:
        return VALUE_BYTES[self.dtype] * self.width


@dataclass(frozen=True)
class DescribedEdges:
    """Describes the edges of a type; ``reverse``: the type of edges that lead back is stored, too."""

    source: str
    relation: str
    target: str
    num_edges: int
    reverse: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        return self.source, self.relation, self.target


@dataclass(frozen=True)
class DescribedGraph:
    """Describes a graph by published sizes.

    Attributes:
        near: Share of the nodes and edges that are in the part of the graph where the training nodes are: no edge leads
            from there to the rest. 1: training nodes lie anywhere.
    """

    name: str
    nodes: tuple[DescribedNodes, ...]
    edges: tuple[DescribedEdges, ...]
    near: float = 1.0

    def scaled(self, share: float) -> DescribedGraph:
        """Returns the graph with ``share`` of its nodes, edges and training nodes, at least one of each that it has."""

        def part(count: int) -> int:
            return max(round(count * share), min(count, 1))

        return replace(
            self,
            nodes=tuple(replace(of, num_nodes=part(of.num_nodes), train=part(of.train)) for of in self.nodes),
            edges=tuple(replace(of, num_edges=part(of.num_edges)) for of in self.edges),
        )

    @property
    def num_nodes(self) -> int:
        return sum(of.num_nodes for of in self.nodes)

    @property
    def num_edges(self) -> int:
        """Counts the edges that are stored: with their reverses."""
        return sum(of.num_edges * (1 + of.reverse) for of in self.edges)

    @property
    def feature_bytes(self) -> int:
        return sum(of.num_nodes * of.row_bytes for of in self.nodes)

    @property
    def topology_bytes(self) -> int:
        """Counts the bytes of the neighbor lists."""
        sizes = {of.name: of.num_nodes for of in self.nodes}
        lists = sum(sizes[of.target] + (sizes[of.source] if of.reverse else 0) for of in self.edges)
        return 8 * (lists + 1) + self.num_edges * (4 if self.num_nodes < _WIDE_IDS else 8)


def near_nodes(of: DescribedNodes, near: float) -> int:
    """Counts the nodes of a type in the part where ``near`` of all nodes are: at least one, and those that train."""
    return max(round(of.num_nodes * near), of.train, 1)
