"""A NeighborLoader in NumPy, with the semantics of torch_geometric's: an oracle, and what pyg-lib would do here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data


class NeighborLoader:
    """Draws batches of ``data`` anew in every iteration: per node of a hop ``min(fanout, degree)`` distinct
    in-neighbours, uniformly; nodes in the order in which they are first met, seeds first.
    """

    def __init__(
        self,
        data: Data,
        num_neighbors: list[int],
        input_nodes: torch.Tensor,
        *,
        batch_size: int,
        shuffle: bool = False,
    ):
        self._data, self._fanouts, self._size, self._shuffle = data, num_neighbors, batch_size, shuffle
        self._seeds = input_nodes.nonzero().view(-1).numpy()
        source, target = data.edge_index.numpy()
        order = np.argsort(target, kind="stable")
        self._sources = source[order]
        self._begins = np.searchsorted(target[order], np.arange(data.num_nodes + 1))
        self._rng = np.random.default_rng(torch.initial_seed())

    def __len__(self) -> int:
        return -(-len(self._seeds) // self._size)

    def __iter__(self) -> Iterator[Any]:
        seeds = self._rng.permutation(self._seeds) if self._shuffle else self._seeds
        for start in range(0, len(seeds), self._size):
            yield self._batch(seeds[start : start + self._size])

    def _batch(self, seeds: np.ndarray) -> Data:
        n_id, frontier = list(seeds.tolist()), list(seeds.tolist())
        local = {node: i for i, node in enumerate(n_id)}
        edges: list[tuple[int, int]] = []
        for fanout in self._fanouts:
            met = []
            for node in frontier:
                neighbors = self._sources[self._begins[node] : self._begins[node + 1]]
                if 0 <= fanout < len(neighbors):
                    neighbors = self._rng.choice(neighbors, fanout, replace=False)
                for other in neighbors.tolist():
                    if other not in local:
                        local[other] = len(n_id)
                        n_id.append(other)
                        met.append(other)
                    edges.append((local[other], local[node]))
            frontier = met
        nodes = torch.tensor(n_id)
        edge_index = torch.tensor(edges, dtype=torch.long).view(-1, 2).T.contiguous()
        x, y = self._data.x[nodes], self._data.y[nodes]
        return Data(x=x, edge_index=edge_index, y=y, n_id=nodes, batch_size=len(seeds))
