"""Mini-batches drawn by a GPU: bit for bit those of the C++ sampler, from a topology that the GPU reads where it lies.

The kernels are kernels/sample.h; random numbers come from the header that the C++ sampler uses too, so that they agree
by construction. Which neighbours are new, and their numbers, torch finds by sorting: as in core/graph/batch_builder.h,
seeds come first, then what each hop meets first, ascending. On the CPU the kernels' twin draws: slowly, for tests.

Uniform draws (with and without replacement, whole lists), LABOR and ShaDow compare integers only. ``weighted`` is not
drawn here: it compares quotients of ``std::log`` in double precision, whose last bit is CUDA's own.
"""

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
from outcrop.errors import ArgumentError, FormatError
from outcrop.store.batches import BatchGraph
from outcrop.store.topology import Topology
from outcrop.unified import in_place
from outcrop.unified.memory import host_memory

SAMPLERS = ("neighbor", "labor", "shadow")
_MOST = 2**31 - 1  # nodes, and edges, of a batch
_COPIED = 1 << 22  # elements of the topology at a time
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
        sampler: One of :data:`SAMPLERS`.
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
        in_place: bool = False,
        budget: DeviceBudget | None = None,
    ):
        _check_options(topology, fanouts, replace, sampler)
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
                _Resident(array, device, self._gpu is not None, in_place) for array in arrays
            )
        if self._gpu is not None:
            self._gpu.fence(self._stream).synchronize()

    def draw(self, seeds: np.ndarray, split: int, epoch: int, batch: int) -> Drawn:
        """One mini-batch of ``seeds`` (int64), drawn on the current stream; its arrays stay on the device.

        Raises:
            ArgumentError: A seed is no node or stands twice, or the batch is too large.
            FormatError: The topology is damaged.
        """
        _check_seeds(seeds, self.topology.num_nodes)
        n_id = frontier = torch.tensor(seeds, dtype=torch.int64, device=self.device)
        numbers = _Numbers(n_id)
        rows, cols, nodes, edges = [], [], [len(seeds)], []
        for hop, fanout in enumerate(self._fanouts):
            key = _core.hop_key(self._seed, split, epoch, batch, hop)
            neighbours, counts = self._hop(frontier, fanout, key)
            if max(sum(edges), sum(nodes)) + len(neighbours) > _MOST:
                _refuse_size(sum(edges) + len(neighbours))
            frontier, local = numbers.add(neighbours)
            n_id = torch.cat([n_id, frontier])
            rows.append(counts)
            cols.append(local)
            nodes.append(len(frontier))
            edges.append(len(neighbours))
        if self._kind == "shadow":
            rows, cols = self._induced(n_id, numbers)
            edges = [len(cols[0]), *[0] * (len(edges) - 1)]
        rowptr = _running(torch.cat(rows))
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
        return neighbours[kept], _kept_of(kept, first)

    def _lists(
        self, nodes: torch.Tensor, fanout: int, key: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What is drawn of each list, how many that are, the degrees, and where each begins in what was drawn."""
        count, ask = len(nodes), [fanout, int(self._replace and fanout != -1)]
        start, degree, taken = torch.zeros((3, count), dtype=torch.int64, device=self.device).unbind()
        wrong = torch.zeros(1, dtype=torch.int64, device=self.device)
        where = [self._indptr.address(), self.topology.num_edges, nodes, count, *ask]
        self._launch("count", -(-count // _LANES), [*where, start, degree, taken, wrong])
        first = _running(taken)
        total, bad = torch.cat([first[-1:], wrong]).tolist()
        if bad:
            self._refuse_list(int(nodes[bad - 1]))
        if total > _MOST:
            _refuse_size(total)
        neighbours = torch.empty(total, dtype=torch.int64, device=self.device)
        drawn = neighbours if fanout == -1 else torch.empty_like(neighbours)
        if total:
            if fanout != -1:
                self._launch("draw", count, [key, nodes, count, *ask, degree, first, drawn])
            what = [self._indices.address(), self.topology.num_nodes, count, *ask]
            entry = "fetch_64" if self._wide else "fetch_32"
            self._launch(entry, count, [*what, start, degree, first, drawn, neighbours, wrong])
            if bad := int(wrong):
                _refuse_neighbour(int(neighbours[bad - 1]), self.topology.num_nodes)
        return neighbours, taken, degree, first

    def _induced(
        self, n_id: torch.Tensor, numbers: _Numbers
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Every edge among ``n_id``: how many each has, and the local numbers of their sources."""
        neighbours, counts, _, first = self._lists(n_id, -1)
        if not len(neighbours):
            return [counts], [neighbours]
        local = numbers.find(neighbours)
        kept = local >= 0
        if (edges := int(kept.sum())) > _MOST:
            _refuse_size(edges)
        return [_kept_of(kept, first)], [local[kept]]

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


class _Resident:
    """An array of the topology where the device reads it."""

    def __init__(self, array: np.ndarray, device: torch.device, on_gpu: bool, stays: bool):
        self._device, self._pinned = device, on_gpu and stays
        words = array.view(np.int32) if array.itemsize == 4 else array  # torch hardly knows uint32
        self._held: Any = words
        if self._pinned:
            self._held = in_place(words).as_subclass(torch.Tensor)
        elif on_gpu:
            self._held = torch.empty(len(words), dtype=_dtype_of(words), device=device)
            for at in range(0, len(words), _COPIED):
                part = torch.from_numpy(words[at : at + _COPIED].copy())
                self._held[at : at + len(part)].copy_(part)

    def address(self) -> int:
        """For what is launched now on the current stream."""
        if isinstance(self._held, np.ndarray):
            return self._held.ctypes.data
        if self._pinned and self._held.numel():
            return host_memory().on_gpu(self._held, self._device.index).data_ptr()
        return self._held.data_ptr()


class _Numbers:
    """The local numbers of the nodes met so far."""

    def __init__(self, seeds: torch.Tensor):
        self._ids, self._local = torch.sort(seeds)

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        """int64: local numbers of ``ids``, -1 where a node was not met."""
        at = torch.searchsorted(self._ids, ids).clamp(max=len(self._ids) - 1)
        return torch.where(self._ids[at] == ids, self._local[at], -1)

    def add(self, neighbours: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The nodes among ``neighbours`` that are new, ascending, and the local numbers of all ``neighbours``."""
        if not len(neighbours):
            return neighbours, neighbours
        met, which = torch.unique(neighbours, return_inverse=True)
        local, known = self.find(met), len(self._ids)
        fresh = local < 0
        new = met[fresh]
        given = torch.arange(known, known + len(new), device=new.device)
        local = torch.where(fresh, known - 1 + fresh.cumsum(0), local)
        self._ids, order = torch.sort(torch.cat([self._ids, new]))
        self._local = torch.cat([self._local, given])[order]
        return new, local[which]


def _running(counts: torch.Tensor) -> torch.Tensor:
    """int64 [n + 1]: 0 and the running sums of ``counts``."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _kept_of(kept: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """int64: how many of each row, which begins at ``first``, are kept."""
    before = _running(kept.to(torch.int64))[first]
    return before[1:] - before[:-1]


def _signed(number: int) -> int:
    """The int64 of the same bits."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _dtype_of(array: np.ndarray) -> torch.dtype:
    return torch.int32 if array.itemsize == 4 else torch.int64


def _check_options(topology: Topology, fanouts: Sequence[int], replace: bool, sampler: str) -> None:
    if sampler not in SAMPLERS:
        raise ArgumentError(
            f"sampler {sampler!r} is not drawn on a GPU, only {', '.join(SAMPLERS)}: sample on the CPU"
        )
    if topology.indptr is None or topology.indices is None:
        raise ArgumentError(
            "a topology on disk cannot be sampled on a GPU: give it more memory, or sample on the CPU"
        )
    if not fanouts:
        raise ArgumentError("no fanouts given")
    for fanout in fanouts:
        if fanout < -1 or fanout == 0 or (fanout == -1 and replace):
            raise ArgumentError(f"fanout {fanout} is not possible here")
    if replace and sampler == "labor":
        raise ArgumentError("labor and weighted sampling are without replacement")


def _check_seeds(seeds: np.ndarray, num_nodes: int) -> None:
    outside = seeds[(seeds < 0) | (seeds >= num_nodes)]
    if len(outside):
        raise ArgumentError(f"seed node {outside[0]} is not in 0..{num_nodes - 1}")
    ids, counts = np.unique(seeds, return_counts=True)
    if len(ids) < len(seeds):
        raise ArgumentError(f"seed node {ids[counts > 1][0]} stands twice in one mini-batch")


def _refuse_size(edges: int) -> None:
    raise ArgumentError(
        f"a mini-batch of {edges} edges is too large (2^31 is the limit); lower batch size or fanouts"
    )


def _refuse_neighbour(neighbour: int, num_nodes: int) -> None:
    raise FormatError(
        f"the topology is damaged: neighbour {neighbour} in a graph of {num_nodes} nodes; run outcrop verify"
    )
