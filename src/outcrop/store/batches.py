"""One sampled mini-batch: the graph of a batch in PyG NeighborLoader's conventions, kept as a CSR matrix.

``n_id`` lists the nodes: the seeds first, then the nodes first met in hop 1, hop 2, ...; within a hop ascending.
Row r of the CSR (``rowptr``, ``col``) holds the sampled in-neighbours of local node r, for the nodes of all hops but
the last, so the rows and edges that layer l of L needs are a prefix: ``num_dst(l)`` rows.

An *untrimmed* batch (ShaDow's induced subgraph; batches from elsewhere whose hops are not known) has rows for all
nodes, and every layer needs all of it, only the last no more than the rows of the seeds. It serves models of any number
of layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np


@dataclass(frozen=True)
class BatchGraph:
    """Holds the structure of one mini-batch; no features.

    Attributes:
        n_id: int64 [num_nodes], global node ids.
        rowptr: int32 [num_dst + 1].
        col: int32 [num_edges], local ids of the sources.
        nodes_per_hop: New nodes per hop, seeds first; length hops + 1.
        edges_per_hop: Sampled edges per hop; length hops. Of an untrimmed batch: all of them, then zeros.
        labels: int64 [num_seeds], -1 = none; once loaded, of a graph whose labels are no classes: float32 [num_seeds]
            or [num_seeds, columns], NaN = unknown.
        degree: int32 [num_nodes], in-neighbours other than the node itself that each node has in the whole graph; None
            where nobody asked for them. Only GCN uses them.
        untrimmed: Every layer uses all nodes and edges: nothing may be trimmed.
        edge_label_index: int32 [2, num_label_edges], local (source, target) of the edges to be predicted; all are
            seeds. None unless the task is link prediction.
        edge_label: float32 [num_label_edges], 1 = positive, 0 = negative.
        edge_weight: float32 [num_edges], in the order of ``col``; None where the graph has none or nobody asked.
        edge_ids: int64 [num_edges], positions in :meth:`outcrop.Graph.edge_index`; None where nobody asked.
        on_device: ``rowptr`` and ``col`` on the GPU that drew them, and ``row_addresses`` where it looked up where rows
            lie, until the batch is there; None: on the host alone.
    """

    n_id: np.ndarray
    rowptr: np.ndarray
    col: np.ndarray
    nodes_per_hop: tuple[int, ...]
    edges_per_hop: tuple[int, ...]
    labels: np.ndarray
    degree: np.ndarray | None = None
    untrimmed: bool = False
    edge_label_index: np.ndarray | None = None
    edge_label: np.ndarray | None = None
    edge_weight: np.ndarray | None = None
    edge_ids: np.ndarray | None = None
    on_device: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def num_label_edges(self) -> int:
        return 0 if self.edge_label is None else len(self.edge_label)

    @property
    def num_seeds(self) -> int:
        return self.nodes_per_hop[0]

    @property
    def num_nodes(self) -> int:
        return len(self.n_id)

    @property
    def num_edges(self) -> int:
        return len(self.col)

    @property
    def hops(self) -> int:
        return len(self.edges_per_hop)

    def layer_sizes(self, layers: int | None = None) -> list[tuple[int, int, int]]:
        """Counts for each layer, first layer first, the (sources, targets, edges) that it needs after trimming.

        Args:
            layers: How many, for untrimmed batches; None = as many as hops.
        """
        if self.untrimmed:
            last = (self.num_nodes, self.num_seeds, int(self.rowptr[self.num_seeds]))
            return [(self.num_nodes, self.num_nodes, self.num_edges)] * ((layers or self.hops) - 1) + [last]
        nodes, edges = list(accumulate(self.nodes_per_hop)), list(accumulate(self.edges_per_hop))
        return [(nodes[h + 1], nodes[h], edges[h]) for h in reversed(range(self.hops))]

    def edge_index(self) -> np.ndarray:
        """Returns int64 [2, num_edges]: (source, target) local ids, as torch_geometric's ``edge_index``."""
        targets = np.repeat(np.arange(len(self.rowptr) - 1, dtype=np.int64), np.diff(self.rowptr))
        return np.stack([self.col.astype(np.int64), targets])
