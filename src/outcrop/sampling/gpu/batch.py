"""A mini-batch while it is drawn: arrays with room for the most there can be; how much there is, the device knows."""

from __future__ import annotations

import numpy as np
import torch

from outcrop.sampling.gpu.checks import refuse_list, refuse_neighbor
from outcrop.sampling.gpu.launching import Kernels
from outcrop.sampling.gpu.room import Room
from outcrop.sampling.topology import Topology

NONE = 2**63 - 1  # kernels/sample.h, kNone
# Numbers of a batch on the device: zero, the frontier's first node, how many nodes and edges there are, what is damaged
# (1 + a node; 1 and a neighbour), how many rows are read and how many the host's cache has, then new nodes per hop,
# then edges per hop.
ZERO, BEGIN, NODES, EDGES, LIST, NEIGHBOR, OUTSIDE, MISSING, IN_HOST, PER_HOP = range(10)


class Batch:
    """Holds what is drawn of a mini-batch so far.

    Attributes:
        room: The most there can be.
        numbers: int64 [PER_HOP + 2 hops + 1] on the device, see above.
        n_id: int64 [room.nodes], rowptr: int32 [nodes + 1], col: int32 [room.edges]; behind what there is, anything.
        known, local: int64: ids of the nodes so far, ascending, and their local numbers; behind them NONE.
        row_counts: Rows that are read, and rows that the host's cache has, as last read; 0 until they are looked up.
    """

    def __init__(self, kernels: Kernels, seeds: np.ndarray, hops: int):
        self._kernels, self._hops = kernels, hops
        head = np.zeros(PER_HOP + 2 * hops + 1, np.int64)
        head[NODES] = head[PER_HOP] = len(seeds)
        ids = seeds if len(seeds) else np.full(1, NONE)  # no array is empty
        there = kernels.there(np.concatenate([head, ids]))
        self.numbers, self.n_id = there[: len(head)], there[len(head) :]
        self.room = Room(len(ids), len(ids))
        self.rowptr = torch.zeros(1, dtype=torch.int32, device=there.device)
        self.col = torch.empty(0, dtype=torch.int32, device=there.device)
        self.known, self.local = torch.sort(self.n_id)
        self.row_counts = (0, 0)

    def number(self, at: int) -> torch.Tensor:
        """Returns one of ``numbers``, where a kernel reads or writes it."""
        return self.numbers[at : at + 1]

    def frontier(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the frontier as kernels take it: ids, and the first and the end of those of the frontier."""
        return self.n_id, self.number(BEGIN), self.number(NODES)

    def read(self, more: torch.Tensor, topology: Topology) -> tuple[list[int], int]:
        """Waits for the device.

        Args:
            more: int64 [1] that is read along.

        Returns:
            New nodes per hop and then edges per hop, as far as they are drawn, and ``more``.

        Raises:
            FormatError: What was drawn from is damaged.
        """
        *numbers, also = self._kernels.read(torch.cat([self.numbers, more]))
        if node := numbers[LIST]:
            refuse_list(topology, node - 1)
        if numbers[NEIGHBOR]:
            refuse_neighbor(numbers[OUTSIDE], topology.num_nodes)
        nodes, edges = numbers[NODES], numbers[EDGES]
        self.row_counts = (numbers[MISSING], numbers[IN_HOST])
        rows = max(nodes - numbers[BEGIN], 1)
        self.room = Room(min(rows, self.room.rows), max(nodes, 1), edges)
        return numbers[PER_HOP:], also

    def make_room(self, drawn: int, num_nodes: int) -> None:
        """Makes room for a hop of at most ``drawn`` edges."""
        after = self.room.after(drawn, num_nodes)
        self.n_id = _longer(self.n_id, after.nodes)
        self.rowptr = _longer(self.rowptr, self.room.nodes + 1)
        self.col = _longer(self.col, after.edges)

    def take(self, hop: int, keys: torch.Tensor, first: torch.Tensor, drawn: int, num_nodes: int) -> None:
        """Makes edges of the neighbours drawn in a hop, and nodes of those of them that are new.

        Args:
            keys: int64 [nodes known + drawn]: room for those known, then the neighbours, then NONE.
            first: int64 [rows + 1]: where the neighbours of each node of the frontier begin.
            drawn: How many neighbours there can be.
        """
        count, known, kernels = len(keys), len(keys) - drawn, self._kernels
        keys[:known].copy_(self.known[:known])
        ids, order = torch.sort(keys, stable=True)
        arrays = (count, known, ids, order)
        sums = torch.empty_like(ids)
        kernels.each("mark", count, *arrays, sums)
        sums = torch.cumsum(sums, 0)
        after = self.room.after(drawn, num_nodes)
        run_ids = torch.full((after.nodes,), NONE, dtype=torch.int64, device=ids.device)
        run_local = torch.empty_like(run_ids)
        kernels.each(
            "number", count, *arrays, sums, self.number(NODES), self.local, self.n_id, run_ids, run_local
        )
        ends = (first, self.number(EDGES), self.rowptr, self.col)
        kernels.each("relabel", max(count, len(first)), *arrays, sums, run_local, *self.frontier(), *ends)
        of_hop = (self.number(PER_HOP + hop + 1), self.number(PER_HOP + self._hops + 1 + hop))
        so_far = (self.number(BEGIN), self.number(NODES), self.number(EDGES))
        kernels.launch("advance", 1, *so_far, *of_hop, first[-1:], sums[-1:])
        self.known, self.local, self.room = run_ids, run_local, after


def _longer(tensor: torch.Tensor, count: int) -> torch.Tensor:
    if len(tensor) >= count:
        return tensor
    longer = torch.empty(count, dtype=tensor.dtype, device=tensor.device)
    longer[: len(tensor)].copy_(tensor)
    return longer
