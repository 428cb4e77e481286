"""The sampler of a device: hops of kernels, which the host launches without knowing how much is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import outcrop._core as _core
from outcrop.device.budget import DeviceBudget
from outcrop.device.gpu import gpu_of
from outcrop.errors import BudgetError
from outcrop.rows import LocatedRows
from outcrop.runtime import memory_tables
from outcrop.sampling.gpu.batch import LIST, NEIGHBOR, NODES, NONE, ZERO, Batch
from outcrop.sampling.gpu.checks import check_options, check_seeds, refuse_size
from outcrop.sampling.gpu.hot_lists import HotLists
from outcrop.sampling.gpu.launching import Kernels
from outcrop.sampling.gpu.resident import Resident
from outcrop.sampling.gpu.room import MOST, drawing_bytes, most_drawn
from outcrop.sampling.gpu.row_lookup import FoundRows, RowLookup
from outcrop.sampling.gpu.staged_copy import StagedCopy
from outcrop.sampling.topology import Topology
from outcrop.store.batches import BatchGraph

_MARGIN = 8  # part of what a batch takes, whose size only the device knows, that later ones may take more

_NUMPY = {torch.int32: np.int32, torch.int64: np.int64}

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, list[int], list[int]]


@dataclass(frozen=True)
class Drawn:
    """Holds a mini-batch on the device that drew it, as :class:`outcrop.store.batches.BatchGraph` has it on the host.

    Attributes:
        n_id: int64 [num_nodes].
        rowptr: int32 [num_dst + 1].
        col: int32 [num_edges].
        nodes_per_hop: Length hops + 1.
        edges_per_hop: Length hops.
        untrimmed: An induced subgraph.
        rows: Where the rows of the nodes lie; None where that is not looked up.
    """

    n_id: torch.Tensor
    rowptr: torch.Tensor
    col: torch.Tensor
    nodes_per_hop: list[int]
    edges_per_hop: list[int]
    untrimmed: bool
    rows: FoundRows | None = None

    def parts(self) -> Parts:
        """Copies it to the host, as ``_core.NeighborSampler`` gives a batch: one copy, which is waited for."""
        n_id, rowptr, col = _copied([self.n_id, self.rowptr, self.col])
        return n_id, rowptr, col, self.nodes_per_hop, self.edges_per_hop


class KeptArrays(dict[str, torch.Tensor]):
    """Holds arrays of a batch on the device, and the reservation that they are counted under."""

    held: Any = None


@dataclass(frozen=True)
class Lists:
    """Says where the neighbour lists of a frontier lie.

    Attributes:
        start, degree: int64 [rows], in the topology.
        first: int64 [rows + 1]: where what is taken of each begins.
    """

    start: torch.Tensor
    degree: torch.Tensor
    first: torch.Tensor

    def of(self, rows: int) -> Lists:
        """Returns those of the first ``rows`` nodes."""
        return Lists(self.start[:rows], self.degree[:rows], self.first[: rows + 1])

    def all(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.start, self.degree, self.first


class DeviceSampler:
    """Draws mini-batches on ``device``; stands where ``_core.NeighborSampler`` does. For one thread.

    Args:
        topology: In memory or mapped.
        fanouts: Neighbours per hop, -1 = all.
        sampler: One of :data:`outcrop.sampling.gpu.SAMPLERS`.
        in_place: The topology stays in host memory, which is pinned where it is, and is read over the bus; else it is
            copied to the device. (A mapped one can only be copied.)
        budget: Device memory that the copy is counted in (tag ``topology``), and what a batch takes while it is drawn
            (``sampling``).
        host_budget: Host memory that a copy of the topology passes through is counted in
            (:class:`outcrop.sampling.gpu.staged_copy.StagedCopy`); None: it is not counted.
        most_seeds: Seeds of the largest batch: memory for so many is taken at once, where it follows from the fanouts.

    Raises:
        ArgumentError: It cannot be drawn so.
        BudgetError: The copy does not fit, or what it passes through.
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
        host_budget: Any | None = None,
        most_seeds: int = 0,
    ):
        check_options(topology, fanouts, replace, sampler, dependency)
        self._gpu = gpu_of(device)
        if self._gpu is not None and device.index is None:
            device = torch.device(device.type, self._gpu.current())
        self.topology, self.device = topology, device
        self._fanouts, self._replace, self._seed, self._kind = tuple(fanouts), replace, seed, sampler
        self._wide = topology.indices is not None and topology.indices.itemsize == 8
        arrays = [array for array in (topology.indptr, topology.indices) if array is not None]
        self._kernels = Kernels(self._gpu, device)
        self._budget = None if self._gpu is None else budget
        self._held: list[Any] = []
        self._held_bytes = 0  # of sampling
        if self._budget is not None and not in_place:
            self._held.append(self._budget.reserve("topology", sum(array.nbytes for array in arrays)))
        if most_seeds and sampler != "labor":
            sizes = (topology.num_nodes, topology.num_edges)
            needed = drawing_bytes(most_seeds, self._fanouts, replace, *sizes)
            if needed is not None and self._fits(needed):
                self._reserve(needed)
        # Of its own: what is drawn for the next batch does not wait for training on this one.
        self._stream = None if self._gpu is None else self._gpu.new_stream(device.index)
        with self._apart():
            self._indptr, self._indices = self._resident(arrays, in_place, host_budget)
        self._hot: HotLists | None = None
        self._blocks: tuple[Any, Resident] | None = None
        self._lookup: RowLookup | None = None
        self._missing_stay = False
        self._synchronize()

    def _resident(self, arrays: list[np.ndarray], in_place: bool, host_budget: Any | None) -> list[Resident]:
        """Puts the topology where kernels read it."""
        staged = None
        if self._gpu is not None and not in_place:
            largest = max(array.nbytes for array in arrays)
            staged = StagedCopy(self._gpu, self.device, host_budget, largest)
        try:
            return [Resident(array, self.device, self._gpu is not None, in_place, staged) for array in arrays]
        finally:
            if staged is not None:
                staged.close()

    def draw(self, seeds: np.ndarray, split: int, epoch: int, batch: int) -> Drawn:
        """Draws one mini-batch of ``seeds`` (int64) on the current stream; its arrays stay on the device.

        Waits for the device once, at the end; besides, once for each hop that takes whole lists or whose bound has no
        room in the budget, and once for an induced subgraph.

        Raises:
            ArgumentError: A seed is no node or stands twice, or the batch is too large.
            BudgetError: Drawing takes more device memory than there is.
            FormatError: The topology is damaged.
        """
        check_seeds(seeds, self.topology.num_nodes)
        drawn = Batch(self._kernels, seeds, len(self._fanouts))
        for hop, fanout in enumerate(self._fanouts):
            self._hop(drawn, hop, fanout, _core.hop_key(self._seed, split, epoch, batch, hop))
        found = None if self._lookup is None else self._lookup.launch(drawn)
        whole = self._induced(drawn) if self._kind == "shadow" else self._finished(drawn)
        return whole if found is None else replace(whole, rows=found.of(len(whole.n_id), *drawn.row_counts))

    def _finished(self, drawn: Batch) -> Drawn:
        hops = len(self._fanouts)
        per_hop, _ = drawn.read(drawn.number(ZERO), self.topology)
        nodes, edges = per_hop[: hops + 1], per_hop[hops + 1 :]
        rowptr = drawn.rowptr[: sum(nodes[:-1]) + 1]
        return Drawn(drawn.n_id[: sum(nodes)], rowptr, drawn.col[: sum(edges)], nodes, edges, False)

    def sample(
        self, seeds: np.ndarray, offsets: np.ndarray, split: int, epoch: int, first_batch: int
    ) -> list[Parts]:
        """Draws batch i, of number ``first_batch + i``, around ``seeds[offsets[i]:offsets[i + 1]]``; on a stream of its
        own.
        """
        ends = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        with self._apart():
            return [
                self.draw(seeds[begin:end], split, epoch, first_batch + i).parts()
                for i, (begin, end) in enumerate(ends)
            ]

    def sample_kept(
        self, seeds: np.ndarray, split: int, epoch: int, batch: int
    ) -> tuple[Parts, KeptArrays | None, LocatedRows | None]:
        """Does as :meth:`sample` for one batch, and returns what of it stays on the device: None where its budget has
        no room.

        Where rows are looked up, their ``row_addresses`` stay there too, and the last item says which rows are read.
        """
        with self._apart():
            drawn = self.draw(seeds, split, epoch, batch)
            arrays, rows = {"rowptr": drawn.rowptr, "col": drawn.col}, drawn.rows
            if rows is not None:
                arrays["row_addresses"] = rows.place
                if self._missing_stay:
                    arrays |= {"missing": rows.missing, "positions": rows.positions}
            # Not what they lie in, which has room for more. Done when the copy to the host is.
            kept = None if self._gpu is None else self._kept(arrays)
            if kept is None or rows is None:
                return drawn.parts(), kept, None
            counts = (rows.in_host, rows.on_device)
            if self._missing_stay:
                return drawn.parts(), kept, LocatedRows(kept.pop("missing"), kept.pop("positions"), *counts)
            on_host = _copied([drawn.n_id, drawn.rowptr, drawn.col, rows.missing, rows.positions])
            n_id, rowptr, col, missing, positions = on_host
            parts = (n_id, rowptr, col, drawn.nodes_per_hop, drawn.edges_per_hop)
            return parts, kept, LocatedRows(missing, positions, *counts)

    def _kept(self, arrays: dict[str, torch.Tensor]) -> KeptArrays | None:
        """Copies, where the budget has room for them."""
        held = None
        if self._budget is not None:
            try:
                held = self._budget.reserve("sampled-batches", sum(x.nbytes for x in arrays.values()))
            except BudgetError:
                return None
        kept = KeptArrays({name: x.clone() for name, x in arrays.items()})
        kept.held = held
        return kept

    def cache_lists(self, index: Any, ids: np.ndarray) -> None:
        """Puts the lists of ``ids`` (ascending, those of ``index``, a ``_core.HotIndex``) on the device, where they are
        read from now on.

        Raises:
            BudgetError: They do not fit there.
            FormatError: The topology is damaged.
        """
        with self._apart():
            blocks, on_gpu = self._blocks_of(index), self._gpu is not None
            if blocks is not None:
                self._hot = HotLists(self.topology, blocks, ids, self.device, on_gpu, self._budget)
        self._synchronize()

    def look_up_rows(self, index: Any, tiers: np.ndarray | None, missing_stay: bool = False) -> None:
        """Has what is drawn from now on say where the rows of its nodes lie (:attr:`Drawn.rows`); that costs no
        waiting.

        Args:
            index: A ``_core.HotIndex``, the one of :meth:`cache_lists` if that is called too. It is copied to the
                device under the tag ``cache-index``, and so are ``tiers``.
            tiers: int32 [cached rows], see :class:`outcrop.rows.StaticCache`; None: all of them are in host memory.
            missing_stay: :meth:`sample_kept` leaves the ids of rows that are read, and their positions, on the device.

        Raises:
            BudgetError: The index does not fit on the device.
        """
        with self._apart():
            blocks, there = self._blocks_of(index), None
            if tiers is not None and len(tiers):
                self._hold("cache-index", tiers.nbytes)
                there = Resident(tiers, self.device, self._gpu is not None, False)
            self._lookup, self._missing_stay = RowLookup(self._kernels, blocks, there), missing_stay
        self._synchronize()

    def _blocks_of(self, index: Any) -> Resident | None:
        """Returns the blocks of ``index`` where kernels read them; None where it is empty."""
        blocks = index.blocks.view(np.int64)
        if len(blocks) and (self._blocks is None or self._blocks[0] is not index):
            self._hold("cache-index", blocks.nbytes)
            self._blocks = (index, Resident(blocks, self.device, self._gpu is not None, False))
        return self._blocks[1] if len(blocks) and self._blocks is not None else None

    def _hold(self, tag: str, num_bytes: int) -> None:
        if self._budget is not None:
            self._held.append(self._budget.reserve(tag, num_bytes))

    def degrees(self, ids: np.ndarray, out: np.ndarray) -> None:
        """Writes to ``out[i]`` the in-neighbours of ``ids[i]`` other than itself, counted by the CPU."""
        out[:] = self.topology.degrees(ids)

    def _synchronize(self) -> None:
        if self._gpu is not None:
            self._gpu.fence(self._stream).synchronize()

    def _apart(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._gpu is None else self._gpu.on_stream(self._stream)

    def _hop(self, batch: Batch, hop: int, fanout: int, key: int) -> None:
        whole = self._kind == "labor" and fanout != -1
        ask = (-1 if whole else fanout, int(self._replace and fanout != -1))
        lists = self._count(batch, batch.frontier(), batch.room.rows, ask)
        drawn = self._bounded(batch, -1 if whole else fanout)
        if drawn is None:
            _, total = batch.read(lists.first[-1:], self.topology)
            self._check_size(batch, total)
            drawn = max(total, 1)
            lists = lists.of(batch.room.rows)
            needed = batch.room.hop_bytes(drawn, self.topology.num_nodes, drawn if whole else 0)
            self._reserve(needed, needed // _MARGIN)
        batch.make_room(drawn, self.topology.num_nodes)
        known = batch.room.nodes
        keys = torch.full((known + drawn,), NONE, dtype=torch.int64, device=self.device)
        first = lists.first
        if whole:
            neighbors = self._fetch(batch, batch.frontier(), lists, ask, key, torch.empty_like(keys[known:]))
            kept = torch.zeros(drawn, dtype=torch.uint8, device=self.device)
            asked = (fanout, lists.degree, first, neighbors, kept)
            self._kernels.launch("labor", batch.room.rows, key, *batch.frontier(), *asked)
            first = self._compact(neighbors, kept, first, keys[known:])
        else:
            self._fetch(batch, batch.frontier(), lists, ask, key, keys[known:])
        batch.take(hop, keys, first, drawn, self.topology.num_nodes)

    def _bounded(self, batch: Batch, fanout: int) -> int | None:
        """Returns the most that the next hop can draw, where it has room in the budget; else the device has to be
        asked.
        """
        room, topology = batch.room, self.topology
        drawn = most_drawn(room.rows, fanout, self._replace, topology.num_edges)
        if fanout == -1 or room.nodes + drawn > MOST or room.edges + drawn > MOST:
            return None
        needed = room.hop_bytes(drawn, topology.num_nodes)
        if not self._fits(needed):
            return None
        self._reserve(needed)
        return drawn

    def _fits(self, needed: int) -> bool:
        """Tells whether ``needed`` bytes of the device are few enough to be taken where a batch may need much less."""
        if self._gpu is None or needed <= self._held_bytes:
            return True
        free = (
            self._gpu.memory(self.device.index or 0)[0] if self._budget is None else self._budget.free_bytes
        )
        return needed - self._held_bytes <= memory_tables.DEVICE_DRAWN.bytes_of(free)

    def _reserve(self, needed: int, margin: int = 0) -> None:
        """Counts ``needed`` bytes of the device from now on, and up to ``margin`` more where there are."""
        more = needed - self._held_bytes
        if self._budget is None or more <= 0:
            return
        more += min(margin, max(self._budget.free_bytes - more, 0))
        self._held.append(self._budget.reserve("sampling", more))
        self._held_bytes += more

    def _hot_lists(self) -> tuple[int, int, int]:
        return (0, 0, 0) if self._hot is None else self._hot.addresses()

    def _count(
        self, batch: Batch, frontier: tuple[torch.Tensor, ...], rows: int, ask: tuple[int, int]
    ) -> Lists:
        """Finds where the lists of a frontier of at most ``rows`` nodes lie, and how many of each are taken."""
        start, degree = torch.empty((2, rows), dtype=torch.int64, device=self.device).unbind()
        taken = torch.empty(rows + 1, dtype=torch.int64, device=self.device)
        blocks, first, _ = self._hot_lists()
        where = (self._indptr.address(), self.topology.num_edges, blocks, first)
        out = (start, degree, taken, batch.number(LIST))
        self._kernels.each("count", rows, *where, *frontier, rows, *ask, *out)
        return Lists(start, degree, taken.cumsum(0))

    def _fetch(
        self,
        batch: Batch,
        frontier: tuple[torch.Tensor, ...],
        lists: Lists,
        ask: tuple[int, int],
        key: int,
        neighbors: torch.Tensor,
    ) -> torch.Tensor:
        """Fills ``neighbors`` with what is drawn of the lists, row after row."""
        rows, drawn = len(lists.degree), neighbors
        if ask[0] != -1:
            drawn = torch.empty_like(neighbors)
            self._kernels.launch("draw", rows, key, *frontier, *ask, lists.degree, lists.first, drawn)
        topology, hot = self.topology, self._hot_lists()[2]
        what = (self._indices.address(), topology.num_edges, hot, topology.num_nodes)
        entry = "fetch_64" if self._wide else "fetch_32"
        out = (*lists.all(), drawn, neighbors, batch.number(NEIGHBOR))
        self._kernels.launch(entry, rows, *what, *frontier, *ask, *out)
        return neighbors

    def _compact(
        self, values: torch.Tensor, kept: torch.Tensor, first: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """Puts those of ``values`` that are ``kept`` together in ``out``; returns where those of each row begin
        then.
        """
        sums = torch.zeros(len(kept) + 1, dtype=torch.int64, device=self.device)
        torch.cumsum(kept, 0, dtype=torch.int64, out=sums[1:])
        moved, rows = torch.empty_like(first), len(first) - 1
        count = max(len(values), len(first))
        self._kernels.each("compact", count, len(values), values, sums, out, rows, first, moved)
        return moved

    def _induced(self, batch: Batch) -> Drawn:
        """Draws every edge among the nodes of ``batch``."""
        hops, ask = len(self._fanouts), (-1, 0)
        everything = (batch.n_id, batch.number(ZERO), batch.number(NODES))
        lists = self._count(batch, everything, batch.room.nodes, ask)
        per_hop, total = batch.read(lists.first[-1:], self.topology)
        nodes = per_hop[: hops + 1]
        if total > MOST:
            refuse_size(total)
        lists, drawn = lists.of(batch.room.nodes), max(total, 1)
        needed = batch.room.hop_bytes(drawn, self.topology.num_nodes, drawn)
        self._reserve(needed, needed // _MARGIN)
        neighbors = torch.full((drawn,), NONE, dtype=torch.int64, device=self.device)
        self._fetch(batch, everything, lists, ask, 0, neighbors)
        at = torch.searchsorted(batch.known, neighbors).clamp_(max=len(batch.known) - 1)
        met = (batch.known[at] == neighbors) & (neighbors != NONE)
        local = torch.empty_like(neighbors)
        rowptr = self._compact(batch.local[at], met.to(torch.uint8), lists.first, local)
        _, edges = batch.read(rowptr[-1:], self.topology)
        each = [edges, *[0] * (hops - 1)]
        count = sum(nodes)
        rowptr = rowptr[: count + 1].to(torch.int32)
        return Drawn(batch.n_id[:count], rowptr, local[:edges].to(torch.int32), nodes, each, True)

    def _check_size(self, batch: Batch, drawn: int) -> None:
        if drawn > MOST:
            refuse_size(drawn)
        if max(batch.room.nodes, batch.room.edges) + drawn > MOST:
            refuse_size(batch.room.edges + drawn)


def _copied(arrays: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Copies arrays to the host by one copy, which is waited for."""
    aligned = sorted(range(len(arrays)), key=lambda at: -arrays[at].element_size())
    copied = torch.cat([arrays[at].view(torch.uint8) for at in aligned]).cpu().numpy()
    parts = np.split(copied, np.cumsum([arrays[at].nbytes for at in aligned])[:-1])
    found = dict(zip(aligned, parts, strict=True))
    return [found[at].view(_NUMPY[array.dtype]) for at, array in enumerate(arrays)]


def sample_on(
    device: torch.device,
    topology: Topology,
    seeds: np.ndarray,
    *,
    split: int = 0,
    epoch: int = 0,
    batch: int = 0,
    hot: tuple[Any, np.ndarray] | None = None,
    **options: Any,
) -> BatchGraph:
    """Draws one mini-batch by ``device`` and returns it on the host; seeds have no labels.

    Args:
        seeds: int64, distinct.
        split, epoch, batch: What the random numbers are keyed by, besides ``seed``, the hop and the node.
        hot: What :meth:`DeviceSampler.cache_lists` takes.
        options: Those of :class:`DeviceSampler`, which is what draws more than one.

    Raises:
        ArgumentError, FormatError, DeviceError: As :class:`DeviceSampler`.
    """
    sampler = DeviceSampler(topology, device, **options)
    if hot is not None:
        sampler.cache_lists(*hot)
    drawn = sampler.draw(seeds, split, epoch, batch)
    n_id, rowptr, col, nodes, edges = drawn.parts()
    labels = np.full(len(seeds), -1, np.int64)
    return BatchGraph.of_one_type(
        n_id, rowptr, col, tuple(nodes), tuple(edges), labels, untrimmed=drawn.untrimmed
    )
