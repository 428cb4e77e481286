"""One sampled mini-batch: the graph of a batch in PyG NeighborLoader's conventions, kept as CSR matrices.

Each node type lists its nodes: seeds first, then the nodes first met in hop 1, hop 2, ...; within a hop ascending. Row
r of the CSR of an edge type (``rowptr``, ``col``) holds the sampled in-neighbours of local node r of its target type,
for the nodes of all hops but the last, so the rows and edges that layer l of L needs are a prefix. A graph without
types has one node type and one edge type: the batch then has ``n_id``, ``rowptr`` and ``col`` itself.

An *untrimmed* batch (ShaDow's induced subgraph; batches from elsewhere whose hops are not known) has rows for all
nodes, and every layer needs all of it, only the last no more than the rows of the seeds. It serves models of any number
of layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, TypeVar

import numpy as np

from outcrop.errors import ArgumentError
from outcrop.store.graph_types import RowFile

T = TypeVar("T")


@dataclass(frozen=True)
class Nodes:
    """Holds the nodes of one type in a mini-batch.

    Attributes:
        ids: int64 [num_nodes], counted within the type.
        per_hop: New nodes per hop, seeds first; length hops + 1.
    """

    ids: np.ndarray
    per_hop: tuple[int, ...]


@dataclass(frozen=True)
class DistinctEdges:
    """Holds which edges of the graph a mini-batch has, each once: whose rows are loaded where edges come several times
    (drawn with replacement) or in another order than their rows (ShaDow).

    Attributes:
        ids: int64 [num_rows], positions within the type, rising within each hop.
        per_hop: How many each hop has; length hops.
        index: int32 [num_edges], which of them each edge of the batch is: ``ids[index]`` are the positions of the
            edges, ``rows[index]`` their features.
    """

    ids: np.ndarray
    per_hop: tuple[int, ...]
    index: np.ndarray

    @classmethod
    def of(cls, positions: np.ndarray, per_hop: Sequence[int]) -> DistinctEdges:
        """Finds them: equals ``np.unique(positions, return_inverse=True)`` of each hop.

        Args:
            positions: int64 [num_edges], hop by hop; no edge is in two hops.
            per_hop: Edges per hop.
        """
        ids: list[np.ndarray] = []
        index = np.empty(len(positions), np.int32)
        begin = before = 0
        for end in accumulate(per_hop):
            new, places = _unique(positions[begin:end])
            index[begin:end] = places + before
            ids.append(new)
            begin, before = end, before + len(new)
        return cls(np.concatenate([positions[:0], *ids]), tuple(map(len, ids)), index)

    @classmethod
    def recorded(cls, ids: np.ndarray, index: np.ndarray, per_hop: Sequence[int]) -> DistinctEdges | None:
        """Returns what has this index; None where that wants rows that are not there, or leaves some out.

        Args:
            per_hop: Edges per hop.
        """
        if len(index) and not 0 <= index.min() <= index.max() < len(ids):
            return None
        ends = np.array([index[:end].max(initial=-1) + 1 for end in accumulate(per_hop)], np.int64)
        if len(ids) != (ends[-1] if len(ends) else 0):
            return None
        return cls(ids, tuple(np.diff(ends, prepend=0).tolist()), index)


def _unique(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns ``np.unique(values, return_inverse=True)``, without sorting what does not fall."""
    if len(values) and not (values[1:] >= values[:-1]).all():
        return np.unique(values, return_inverse=True)
    new = np.ones(len(values), bool)
    new[1:] = values[1:] != values[:-1]
    return values[new], np.cumsum(new) - 1


@dataclass(frozen=True)
class Edges:
    """Holds the edges of one type in a mini-batch, a CSR matrix with a row for each target.

    Attributes:
        rowptr: int32 [rows + 1]; row r is that of local node r of the target type.
        col: int32 [num_edges], local nodes of the source type.
        per_hop: Sampled edges per hop; length hops. Of an untrimmed batch: all of them, then zeros.
        positions: int64 [num_edges], where the edges stand within their type, by target and then by source; None where
            nobody asked.
        weight: float32 [num_edges], in the order of ``col``; None where the edges have none or nobody asked.
        distinct: Whose rows are loaded; None: those of all edges, in their order.
    """

    rowptr: np.ndarray
    col: np.ndarray
    per_hop: tuple[int, ...]
    positions: np.ndarray | None = None
    weight: np.ndarray | None = None
    distinct: DistinctEdges | None = None

    @property
    def num_rows(self) -> int:
        """Counts the targets that have a row."""
        return len(self.rowptr) - 1

    def edge_index(self) -> np.ndarray:
        """Returns int64 [2, num_edges]: (source, target) local nodes, as torch_geometric's ``edge_index``."""
        targets = np.repeat(np.arange(self.num_rows, dtype=np.int64), np.diff(self.rowptr))
        return np.stack([self.col.astype(np.int64), targets])

    def with_distinct(self) -> Edges:
        """Adds ``distinct``, where positions are there."""
        found = None if self.positions is None else DistinctEdges.of(self.positions, self.per_hop)
        return replace(self, distinct=found)


@dataclass(frozen=True)
class Section:
    """Holds which rows of one row file a mini-batch wants.

    Attributes:
        ids: int64 [num_rows], rising within each run.
        runs: How many rows each run has: a run for each hop.
    """

    ids: np.ndarray
    runs: tuple[int, ...]

    def split(self) -> list[np.ndarray]:
        """Returns the ids of each run."""
        return np.split(self.ids, list(accumulate(self.runs))[:-1])


@dataclass(frozen=True)
class BatchGraph:
    """Holds the structure of one mini-batch; no features.

    Attributes:
        nodes: Nodes of each node type of the graph.
        edges: Edges of each edge type of the graph.
        labels: int64 [num_seeds], -1 = none; once loaded, of a graph whose labels are no classes: float32 [num_seeds]
            or [num_seeds, columns], NaN = unknown.
        seed_type: Number of the node type that the seeds are of.
        degree: int32 [num_nodes], in-neighbours other than the node itself that each node has in the whole graph; None
            where nobody asked for them. Only GCN uses them.
        weight_sums: float64 [num_nodes, 2], what the weights of edges come to in the whole graph: sum of those that
            lead to each node from others, and weight of its edge from itself, 1 where it has none (of several the
            last). None where nobody asked for them. Only GCN uses them.
        untrimmed: Every layer uses all nodes and edges: nothing may be trimmed.
        edge_label_index: int32 [2, num_label_edges], local (source, target) of the edges to be predicted; all are
            seeds. None unless the task is link prediction.
        edge_label: float32 [num_label_edges], 1 = positive, 0 = negative.
        edge_label_type: Number of the edge type of the edges to be predicted.
        edge_input_id: int64, which of the edges that a caller gave the positive ones are; None where none were given.
        on_device: ``rowptr`` and ``col`` on the GPU that drew them, and ``row_addresses`` where it looked up where rows
            lie, until the batch is there; None: on the host alone.
    """

    nodes: tuple[Nodes, ...]
    edges: tuple[Edges, ...]
    labels: np.ndarray
    seed_type: int = 0
    degree: np.ndarray | None = None
    untrimmed: bool = False
    edge_label_index: np.ndarray | None = None
    edge_label: np.ndarray | None = None
    edge_label_type: int = 0
    edge_input_id: np.ndarray | None = None
    weight_sums: np.ndarray | None = None
    on_device: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of_one_type(
        cls,
        n_id: np.ndarray,
        rowptr: np.ndarray,
        col: np.ndarray,
        nodes_per_hop: Sequence[int],
        edges_per_hop: Sequence[int],
        labels: np.ndarray,
        **more: Any,
    ) -> BatchGraph:
        """Makes the batch of a graph with one node type and one edge type, of the attributes of :class:`Nodes` and
        :class:`Edges`.

        Args:
            more: Other attributes of the batch.
        """
        nodes, edges = Nodes(n_id, tuple(nodes_per_hop)), Edges(rowptr, col, tuple(edges_per_hop))
        return cls((nodes,), (edges,), labels, **more)

    @property
    def n_id(self) -> np.ndarray:
        """Returns the node ids of a batch of one node type, int64 [num_nodes]."""
        return _only(self.nodes, "n_id", "nodes[t].ids").ids

    @property
    def nodes_per_hop(self) -> tuple[int, ...]:
        """Returns the new nodes per hop of a batch of one node type, seeds first; length hops + 1."""
        return _only(self.nodes, "nodes_per_hop", "nodes[t].per_hop").per_hop

    @property
    def rowptr(self) -> np.ndarray:
        """Returns where the rows of a batch of one edge type begin, int32 [rows + 1]."""
        return _only(self.edges, "rowptr", "edges[r].rowptr").rowptr

    @property
    def col(self) -> np.ndarray:
        """Returns the sources of the edges of a batch of one edge type, int32 [num_edges], local nodes."""
        return _only(self.edges, "col", "edges[r].col").col

    @property
    def edges_per_hop(self) -> tuple[int, ...]:
        """Returns the sampled edges per hop of a batch of one edge type; length hops."""
        return _only(self.edges, "edges_per_hop", "edges[r].per_hop").per_hop

    @property
    def edge_ids(self) -> np.ndarray | None:
        """Returns the positions in :meth:`outcrop.Graph.edge_index` of the edges of a batch of one edge type, int64
        [num_edges]; None where nobody asked.
        """
        return _only(self.edges, "edge_ids", "edges[r].positions").positions

    @property
    def edge_weight(self) -> np.ndarray | None:
        """Returns the weights of the edges of a batch of one edge type, float32 [num_edges]; None: it has none."""
        return _only(self.edges, "edge_weight", "edges[r].weight").weight

    @property
    def num_label_edges(self) -> int:
        return 0 if self.edge_label is None else len(self.edge_label)

    @property
    def seeds(self) -> np.ndarray:
        """Returns the ids of the seeds within their type, int64 [num_seeds]."""
        return self.nodes[self.seed_type].ids[: self.num_seeds]

    @property
    def num_seeds(self) -> int:
        return self.nodes[self.seed_type].per_hop[0]

    @property
    def num_nodes(self) -> int:
        """Counts the nodes of all types."""
        return sum(len(nodes.ids) for nodes in self.nodes)

    @property
    def num_edges(self) -> int:
        """Counts the edges of all types."""
        return sum(len(edges.col) for edges in self.edges)

    @property
    def hops(self) -> int:
        return len(self.nodes[0].per_hop) - 1

    def section(self, rows: RowFile) -> Section:
        """Returns which rows of ``rows`` the batch wants: those of its nodes, or of its edges, of the owner's type."""
        return self.section_of(rows.kind, rows.owner.number)

    def section_of(self, kind: Literal["nodes", "edges"], number: int) -> Section:
        """Returns which rows the batch wants of those that nodes or edges of type ``number`` have."""
        if kind == "nodes":
            return Section(self.nodes[number].ids, self.nodes[number].per_hop)
        edges = self.edges[number]
        if edges.distinct is not None:
            return Section(edges.distinct.ids, edges.distinct.per_hop)
        positions = np.zeros(0, np.int64) if not len(edges.col) else edges.positions
        assert positions is not None, "the batch was drawn without the positions of its edges"
        return Section(positions, edges.per_hop)

    def num_rows(self, files: Sequence[RowFile]) -> tuple[int, ...]:
        """Counts the rows that the batch wants of each of ``files``."""
        return tuple(len(self.section(rows).ids) for rows in files)

    def layer_sizes(self, layers: int | None = None) -> list[tuple[int, int, int]]:
        """Counts for each layer, first layer first, the (sources, targets, edges) that it needs after trimming, of a
        batch of one type.

        Args:
            layers: How many, for untrimmed batches; None = as many as hops.
        """
        if self.untrimmed:
            last = (self.num_nodes, self.num_seeds, int(self.rowptr[self.num_seeds]))
            return [(self.num_nodes, self.num_nodes, self.num_edges)] * ((layers or self.hops) - 1) + [last]
        nodes, edges = list(accumulate(self.nodes_per_hop)), list(accumulate(self.edges_per_hop))
        return [(nodes[h + 1], nodes[h], edges[h]) for h in reversed(range(self.hops))]

    def edge_index(self) -> np.ndarray:
        """Returns :meth:`Edges.edge_index` of a batch of one edge type."""
        return _only(self.edges, "edge_index", "edges[r].edge_index()").edge_index()


def _only(every: tuple[T, ...], asked: str, instead: str) -> T:
    if len(every) != 1:
        raise ArgumentError(
            f"a mini-batch of {len(every)} types has no {asked} of its own: use {instead}, one for each type"
        )
    return every[0]
