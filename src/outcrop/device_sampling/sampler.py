"""The sampler of a device: hops of kernels, numbered by torch (see the package)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from outcrop import _core
from outcrop.device.budget import DeviceBudget
from outcrop.device.gpu import gpu_of
from outcrop.device_sampling.checks import check_options, check_seeds, refuse_neighbour, refuse_size
from outcrop.device_sampling.numbers import Numbers, kept_of, running
from outcrop.device_sampling.resident import Resident
from outcrop.errors import FormatError
from outcrop.store.batches import BatchGraph
from outcrop.store.topology import Topology

_MOST = 2**31 - 1  # nodes, and edges, of a batch
_LANES = 32

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, list[int], list[int]]


@dataclass(frozen=True)
class Drawn:
    """A mini-batch on the device that drew it, as :class:`outcrop.store.batches.BatchGraph` has it on the host.

    Attributes:
        n_id: int64 [num_nodes].
        rowptr: int32 [num_dst + 1].
        col: int32 [num_edges].
        nodes_per_hop: Length hops + 1.
        edges_per_hop: Length hops.
        whole: An induced subgraph.
    """

    n_id: torch.Tensor
    rowptr: torch.Tensor
    col: torch.Tensor
    nodes_per_hop: list[int]
    edges_per_hop: list[int]
    whole: bool

    def parts(self) -> Parts:
        """On the host, as ``_core.NeighborSampler`` gives a batch."""
        n_id, rowptr, col = (x.cpu().numpy() for x in (self.n_id, self.rowptr, self.col))
        return n_id, rowptr, col, self.nodes_per_hop, self.edges_per_hop


class DeviceSampler:
    """Draws mini-batches on ``device``; stands where ``_core.NeighborSampler`` does. For one thread.

    Args:
        topology: In memory or mapped.
        fanouts: Neighbours per hop, -1 = all.
        sampler: One of :data:`outcrop.device_sampling.SAMPLERS`.
        in_place: The topology stays in host memory, which is pinned where it is, and is read over the bus; else it is
            copied to the device. (A mapped one can only be copied.)
        budget: Device memory that the copy is counted in; what a batch takes while it is drawn is not.

    Raises:
        ArgumentError: It cannot be drawn so.
        BudgetError: The copy does not fit.
        DeviceError: The memory cannot be pinned.
    """

    def __init__(
        self,
        topology: Topology,
        device: torch.device,
        *,
        fanouts: Sequence[int],
        replace: bool = False,
        seed: int = 0,
        sampler: str = "neighbor",
        dependency: int = 1,
        in_place: bool = False,
        budget: DeviceBudget | None = None,
    ):
        check_options(topology, fanouts, replace, sampler, dependency)
        self._gpu = gpu_of(device)
        if self._gpu is not None and device.index is None:
            device = torch.device(device.type, self._gpu.current())
        self.topology, self.device = topology, device
        self._fanouts, self._replace, self._seed, self._kind = tuple(fanouts), replace, seed, sampler
        self._wide = topology.indices is not None and topology.indices.itemsize == 8
        arrays = [array for array in (topology.indptr, topology.indices) if array is not None]
        if budget is not None and self._gpu is not None and not in_place:
            self._held = budget.reserve("topology", sum(array.nbytes for array in arrays))
        # Of its own: what is drawn for the next batch does not wait for training on this one.
        self._stream = None if self._gpu is None else self._gpu.new_stream(device.index)
        with self._apart():
            self._indptr, self._indices = (
                Resident(array, device, self._gpu is not None, in_place) for array in arrays
            )
        if self._gpu is not None:
            self._gpu.fence(self._stream).synchronize()

    def draw(self, seeds: np.ndarray, split: int, epoch: int, batch: int) -> Drawn:
        """One mini-batch of ``seeds`` (int64), drawn on the current stream; its arrays stay on the device.

        Raises:
            ArgumentError: A seed is no node or stands twice, or the batch is too large.
            FormatError: The topology is damaged.
        """
        check_seeds(seeds, self.topology.num_nodes)
        n_id = frontier = torch.tensor(seeds, dtype=torch.int64, device=self.device)
        numbers = Numbers(n_id)
        rows, cols, nodes, edges = [], [], [len(seeds)], []
        for hop, fanout in enumerate(self._fanouts):
            key = _core.hop_key(self._seed, split, epoch, batch, hop)
            neighbours, counts = self._hop(frontier, fanout, key)
            if max(sum(edges), sum(nodes)) + len(neighbours) > _MOST:
                refuse_size(sum(edges) + len(neighbours))
            frontier, local = numbers.add(neighbours)
            n_id = torch.cat([n_id, frontier])
            rows.append(counts)
            cols.append(local)
            nodes.append(len(frontier))
            edges.append(len(neighbours))
        if self._kind == "shadow":
            rows, cols = self._induced(n_id, numbers)
            edges = [len(cols[0]), *[0] * (len(edges) - 1)]
        rowptr = running(torch.cat(rows))
        return Drawn(
            n_id,
            rowptr.to(torch.int32),
            torch.cat(cols).to(torch.int32),
            nodes,
            edges,
            self._kind == "shadow",
        )

    def sample(
        self, seeds: np.ndarray, offsets: np.ndarray, split: int, epoch: int, first_batch: int
    ) -> list[Parts]:
        """Batch i, of number ``first_batch + i``, has ``seeds[offsets[i]:offsets[i + 1]]``; on a stream of its own."""
        ends = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        with self._apart():
            return [
                self.draw(seeds[begin:end], split, epoch, first_batch + i).parts()
                for i, (begin, end) in enumerate(ends)
            ]

    def degrees(self, ids: np.ndarray, out: np.ndarray) -> None:
        """``out[i]``: in-neighbours of ``ids[i]`` other than itself, found by the CPU."""
        out[:] = self.topology.degrees(ids)

    def _apart(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._gpu is None else self._gpu.on_stream(self._stream)

    def _hop(self, nodes: torch.Tensor, fanout: int, key: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Neighbours of ``nodes``, row after row, and how many each has."""
        if self._kind != "labor":
            return self._lists(nodes, fanout, key)[:2]
        neighbours, counts, degree, first = self._lists(nodes, -1)
        if fanout == -1 or not len(neighbours):
            return neighbours, counts
        kept = torch.empty(len(neighbours), dtype=torch.bool, device=self.device)
        self._launch("labor", len(nodes), [key, len(nodes), fanout, degree, first, neighbours, kept])
        return neighbours[kept], kept_of(kept, first)

    def _lists(
        self, nodes: torch.Tensor, fanout: int, key: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What is drawn of each list, how many that are, the degrees, and where each begins in what was drawn."""
        count, ask = len(nodes), [fanout, int(self._replace and fanout != -1)]
        start, degree, taken = torch.zeros((3, count), dtype=torch.int64, device=self.device).unbind()
        wrong = torch.zeros(1, dtype=torch.int64, device=self.device)
        where = [self._indptr.address(), self.topology.num_edges, nodes, count, *ask]
        self._launch("count", -(-count // _LANES), [*where, start, degree, taken, wrong])
        first = running(taken)
        total, bad = torch.cat([first[-1:], wrong]).tolist()
        if bad:
            self._refuse_list(int(nodes[bad - 1]))
        if total > _MOST:
            refuse_size(total)
        neighbours = torch.empty(total, dtype=torch.int64, device=self.device)
        drawn = neighbours if fanout == -1 else torch.empty_like(neighbours)
        if total:
            if fanout != -1:
                self._launch("draw", count, [key, nodes, count, *ask, degree, first, drawn])
            what = [self._indices.address(), self.topology.num_nodes, count, *ask]
            entry = "fetch_64" if self._wide else "fetch_32"
            self._launch(entry, count, [*what, start, degree, first, drawn, neighbours, wrong])
            if bad := int(wrong):
                refuse_neighbour(int(neighbours[bad - 1]), self.topology.num_nodes)
        return neighbours, taken, degree, first

    def _induced(self, n_id: torch.Tensor, numbers: Numbers) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Every edge among ``n_id``: how many each has, and the local numbers of their sources."""
        neighbours, counts, _, first = self._lists(n_id, -1)
        if not len(neighbours):
            return [counts], [neighbours]
        local = numbers.find(neighbours)
        kept = local >= 0
        if (edges := int(kept.sum())) > _MOST:
            refuse_size(edges)
        return [kept_of(kept, first)], [local[kept]]

    def _launch(self, entry: str, warps: int, arguments: list[Any]) -> None:
        """``arguments``: numbers, and tensors whose addresses are meant."""
        if not warps:
            return
        plain = [x.data_ptr() if isinstance(x, torch.Tensor) else _signed(x) for x in arguments]
        if self._gpu is None:
            _core.twin_sample(f"sample_{entry}", warps, plain)
        else:
            self._gpu.launch("sample", f"sample_{entry}", self.device, warps, plain)

    def _refuse_list(self, node: int) -> None:
        begin, end = (int(x[0]) for x in self.topology.ranges(np.array([node])))
        raise FormatError(
            f"the topology is damaged: the neighbours of node {node} are said to lie at {begin}..{end} of "
            f"{self.topology.num_edges}; run outcrop verify"
        )


def sample_on(
    device: torch.device,
    topology: Topology,
    seeds: np.ndarray,
    *,
    split: int = 0,
    epoch: int = 0,
    batch: int = 0,
    **options: Any,
) -> BatchGraph:
    """One mini-batch drawn by ``device``, on the host; seeds have no labels.

    Args:
        seeds: int64, distinct.
        split, epoch, batch: What the random numbers are keyed by, besides ``seed``, the hop and the node.
        options: Of :class:`DeviceSampler`, which is what draws more than one.

    Raises:
        ArgumentError, FormatError, DeviceError: As :class:`DeviceSampler`.
    """
    sampler = DeviceSampler(topology, device, **options)
    drawn = sampler.draw(seeds, split, epoch, batch)
    n_id, rowptr, col, nodes, edges = drawn.parts()
    labels = np.full(len(seeds), -1, np.int64)
    return BatchGraph(n_id, rowptr, col, tuple(nodes), tuple(edges), labels, whole=drawn.whole)


def _signed(number: int) -> int:
    """The int64 of the same bits."""
    return number - (1 << 64) if number >= 1 << 63 else number
