"""Training on a GPU: the slices that are resident lie in its memory, and so do batches; swaps go by pinned host memory.

What a CPU computes with core/embed is computed with torch here. Sums of gradients on a GPU do not always add in the
same order: results are those of the CPU as far as rounding goes, not to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import outcrop._core as _core
from outcrop.config import EmbedConfig
from outcrop.device.budget import DeviceBudget
from outcrop.device.gpu import Fence, Gpu
from outcrop.embed import fused
from outcrop.embed.buffer import TAG, Buffer, SliceTransfer, SlotMove
from outcrop.embed.losses import loss_function
from outcrop.embed.scores import score_function
from outcrop.embed.similarity import TILE_FLOATS, Dot, Modulus
from outcrop.embed.step import TAG as BATCH
from outcrop.embed.step import Batch, Ends, Queries, Relations, Stepper, most_rows
from outcrop.embed.tables import Exchange, Move, SlabJob, Table
from outcrop.rows.rings import SlabRings
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.unified import in_place

Tensor = torch.Tensor
_STEP_FLOATS = 8  # of one of a row that a step holds
_QUERY_FLOATS = 16  # of one of an edge, while queries of both ends are made and their gradients taken back
_LEAST_QUERIES = 256  # whose scores are there at a time: fewer would keep a GPU waiting
_TILES = 6  # of differences, where scores are moduli


class GpuBuffer(Buffer):
    """Holds ``slots`` slabs on a GPU.

    ``rows`` is a tensor there; ``staged`` slabs of pinned host memory are on the way to or from disk at a time. With
    ``by_rings`` kernels move slabs through rings, and one is staged, for first rows.
    """

    def __init__(
        self,
        table: Table,
        slots: int,
        runtime: Runtime,
        budget: DeviceBudget,
        staged: int,
        by_rings: bool = False,
    ):
        self._by_rings, self._rings = by_rings, None
        staged = 1 if self._by_rings else min(staged, slots)
        self.gpu, self.device, self._budget, self._staged = budget.gpu, budget.device, budget, staged
        super().__init__(table, slots, runtime)

    def _allocate(self) -> None:
        table = self._table
        there, self._held = self._budget.empty(TAG, self._slots * table.slab_bytes)
        self.slabs = there.view(self._slots, table.slab_bytes)
        self.rows = there.view(torch.float32).view(-1, table.shape.stride)
        self.staging = self._runtime.budget.empty(TAG, self._staged * table.slab_bytes).reshape(
            self._staged, -1
        )
        self.pinned = in_place(self.staging).as_subclass(torch.Tensor)  # plain: copies are those of the bus
        self.stream = self.gpu.new_stream(self.device.index or 0)

    def exchange(self, moves: Sequence[SlotMove]) -> SliceTransfer:
        if not self._by_rings:
            return _GpuExchange(self, tuple(moves))
        return self._table.exchange([Move(self.slabs[m.slot], m.stored, m.loaded) for m in moves], self)

    def swap(self, slabs: list[Any], write_at: list[int | None], read_at: list[int | None]) -> SlabJob:
        """Does what :class:`outcrop.embed.tables.SlabMover` says."""
        if self._rings is None:  # now the file has its size
            memory_bytes = memory_tables.SLAB_STAGING.bytes_of(self._runtime.budget.free_bytes)
            self._rings = SlabRings(self._table.ring_file(), self._runtime, str(self.device), memory_bytes)
        return self._rings.swap(slabs, write_at, read_at)

    def begin(self, part: int, slab: Tensor) -> None:
        self._table.begin(part, self.staging[0])
        # What training was given before the swap may still read what lies there.
        self.gpu.wait(self.stream, self.gpu.fence(self.gpu.stream(self.device.index or 0)))
        with self.gpu.on_stream(self.stream):
            slab.copy_(self.pinned[0], non_blocking=True)
        self.gpu.fence(self.stream).synchronize()

    def start(self, moves: list[Move]) -> Exchange:
        return self._table.exchange(moves)

    def close(self) -> None:
        self._swap = None  # what it does to the staged slabs is waited for when it goes
        if self._rings is not None:
            self._rings.close()
        del self.rows, self.slabs, self.pinned, self.staging
        self._held = None


class _GpuExchange:
    """Moves groups of as many slices as are staged: from the GPU, to and from disk, to the GPU.

    Each step begins when somebody looks and the one before is done; training goes on meanwhile.
    """

    def __init__(self, buffer: GpuBuffer, moves: tuple[SlotMove, ...]):
        self._buffer = buffer
        size = buffer._staged
        self._groups = [moves[at : at + size] for at in range(0, len(moves), size)]
        self._read: list[bool] = []
        self._job: Exchange | None = None
        # What training has been given until now, it may still do to the slots that leave.
        self._fence: Fence | None = buffer.gpu.fence(buffer.gpu.stream(buffer.device.index or 0))
        self._next = self._fetch

    @property
    def read(self) -> tuple[bool, ...]:
        return tuple(self._read)

    @property
    def done(self) -> bool:
        self._go_on(wait=False)
        return not self._groups

    def wait(self) -> None:
        self._go_on(wait=True)

    def _go_on(self, *, wait: bool) -> None:
        while self._groups:
            if self._fence is not None:
                if wait:
                    self._fence.synchronize()
                elif not self._fence.query():
                    return
                self._fence = None
            if self._job is not None:
                if not wait and not self._job.done:
                    return
                self._job.wait()
            self._next()

    def _fetch(self) -> None:
        """Copies what leaves from the GPU."""
        b = self._buffer
        with b.gpu.on_stream(b.stream):
            for staged, move in enumerate(self._groups[0]):
                if move.stored is not None:
                    b.pinned[staged].copy_(b.slabs[move.slot], non_blocking=True)
        self._fence, self._next = b.gpu.fence(b.stream), self._store

    def _store(self) -> None:
        """It is written, and what comes is read."""
        b = self._buffer
        self._job = b.start([Move(b.staging[i], m.stored, m.loaded) for i, m in enumerate(self._groups[0])])
        self._next = self._send

    def _send(self) -> None:
        """Copies what came to the GPU."""
        assert self._job is not None
        b = self._buffer
        self._read += self._job.read
        with b.gpu.on_stream(b.stream):
            for staged, move in enumerate(self._groups[0]):
                if move.loaded is not None:
                    b.slabs[move.slot].copy_(b.pinned[staged], non_blocking=True)
        self._job, self._fence, self._next = None, b.gpu.fence(b.stream), self._end

    def _end(self) -> None:
        del self._groups[0]
        self._next = self._fetch


class GpuStepper(Stepper):
    """Does what :class:`outcrop.embed.step.Stepper` does, on a GPU.

    Row numbers of a batch go there in one copy from pinned memory, its loss comes back to pinned memory, and the host
    waits for the loss alone, one batch later: it prepares the next batch meanwhile.
    """

    ahead = 1

    def __init__(
        self,
        config: EmbedConfig,
        relations: Relations | None,
        runtime: Runtime,
        gpu: Gpu,
        device: torch.device,
        budget: DeviceBudget,
    ):
        self.device, self._gpu, self._budget = device, gpu, budget
        super().__init__(config, relations, runtime)
        self._loss = loss_function(config.loss, config.margin)
        if self._fused:
            self._span = -(-config.batch // config.chunk) * config.chunk
        numbers = most_rows(config) + 4 * config.batch
        self._ids = torch.empty(numbers, dtype=torch.int64, device=device)
        self._slots = [_Slot(numbers, runtime) for _ in range(self.ahead + 1)]

    def _open_one_pass(self, runtime: Runtime) -> None:
        """Opens nothing: that is the CPU's."""

    def _reserve(self, runtime: Runtime, num_bytes: int) -> Any:
        plan = self._plan() if self._fused else None
        self._most = 0 if plan is None else plan.most
        return self._budget.reserve(BATCH, num_bytes + device_bytes(self.config, plan))

    def _plan(self) -> fused.Plan:
        """Returns the plan of the largest batch: as many scores at a time as their share of the memory holds."""
        config, room = self.config, memory_tables.DEVICE_SCORES.bytes_of(self._budget.free_bytes)
        all_queries = fused.Plan(
            2 * config.batch, config.negatives, config.dim, 2 * config.chunk, 2 * config.batch
        )
        most = min(max(room // (4 * all_queries.stride), _LEAST_QUERIES), all_queries.n)
        return replace(all_queries, most=most)

    @property
    def _fused(self) -> bool:
        """Tells whether one pass of kernels makes scores, loss and gradients of a batch."""
        products = isinstance(self.score.compare, Dot)
        return products and self.config.loss == "softmax" and fused.usable(self.device)

    def _compare(
        self,
        queries: Tensor,
        positive: Tensor,
        candidates: Tensor,
        rows: tuple[Tensor, Tensor],
        to: tuple[Tensor, Tensor, Tensor],
    ) -> Any:
        if not self._fused:
            return super()._compare(queries, positive, candidates, rows, to)
        chunk = 2 * self.config.chunk
        by_chunk = candidates.view(-(-len(queries) // chunk), -1, candidates.shape[1])
        loss, *gradients = fused.softmax(
            queries,
            positive,
            by_chunk,
            rows[1],
            rows[0].view(by_chunk.shape[:2]),
            chunk=chunk,
            most=self._most,
        )
        to[0].copy_(gradients[0])
        to[1].copy_(gradients[1])
        to[2].add_(gradients[2].view_as(to[2]))
        return loss

    def _sent(self, ids: np.ndarray, wanted: np.ndarray, relation_ids: np.ndarray | None) -> Batch:
        parts = [ids, wanted] if relation_ids is None else [ids, wanted, relation_ids]
        self._slots.append(self._slots.pop(0))
        there = self._slots[-1].send(parts, self._ids).split([len(part) for part in parts])
        return Batch(*there)

    def _told(self, loss: Tensor) -> Callable[[], float]:
        return self._slots[-1].fetch(loss, self._gpu, self.device)

    def _space(self, name: str, rows: int, width: int) -> Tensor:
        return torch.empty(rows, width, device=self.device)  # of torch's cache

    def _clear(self, out: Tensor) -> None:
        out.zero_()

    def _take(self, rows: Tensor, ids: Tensor, out: Tensor) -> None:
        torch.index_select(rows[:, : out.shape[1]], 0, ids, out=out)

    def _step(self, rows: Tensor, ids: Tensor, gradients: Tensor, options: _core.StepOptions) -> None:
        """Sizes are those of ``ids``, whatever is twice there: nothing waits for the GPU to count."""
        place = numbers_of(ids)
        total = torch.zeros_like(gradients).index_add_(0, place, gradients)
        different = torch.zeros_like(ids).index_copy_(0, place, ids)
        # Rows that are there twice are written twice, with the same bits.
        rows[ids] = stepped(rows[different], total, options)[place]

    def _leave_out(self, scores: Tensor, negatives: Tensor, wanted: Tensor) -> None:
        scores.masked_fill_(wanted[:, None] == negatives, -torch.inf)

    def _queries(
        self, ends: Ends, to_ends: Ends, relations: list[Tensor], to_relations: list[Tensor]
    ) -> Queries:
        return self._by_autograd(ends, to_ends, relations, to_relations)

    def _add_size_gradients(self, x: Tensor, out: Tensor) -> None:
        config = self.config
        if config.n3:
            modulus = torch.hypot(*x.chunk(2, -1)).repeat(1, 2) if self.score.complex_numbers else x.abs()
            out.addcmul_(modulus, x, value=3 * config.n3)
        if config.l2:
            out.add_(x, alpha=2 * config.l2)

    def begin(self) -> None:
        if self.relations is not None:
            self._relation_rows = torch.from_numpy(self.relations.rows).to(self.device)

    def sync_relations(self) -> None:
        if self.relations is not None:
            self.relations.rows[:] = self._relation_rows.cpu().numpy()

    def close(self) -> None:
        self._gpu.fence(
            self._gpu.stream(self.device.index or 0)
        ).synchronize()  # then nothing uses pinned memory


class _Slot:
    """Holds pinned memory of a batch: row numbers on their way to the GPU, and the loss on its way back."""

    def __init__(self, numbers: int, runtime: Runtime):
        self._host = runtime.budget.empty(BATCH, 8 * (numbers + 1)).view(np.int64)
        self._pinned = in_place(self._host).as_subclass(torch.Tensor)  # plain: copies are those of the bus
        self._loss = self._pinned[-1:].view(torch.float64)
        self._fence: Fence | None = None

    def send(self, parts: list[np.ndarray], out: Tensor) -> Tensor:
        """Copies the parts, one after the other, to ``out[: ...]``; the batch before is done with this memory."""
        if self._fence is not None:
            self._fence.synchronize()
        count = sum(map(len, parts))
        np.concatenate(parts, out=self._host[:count])
        return out[:count].copy_(self._pinned[:count], non_blocking=True)

    def fetch(self, loss: Tensor, gpu: Gpu, device: torch.device) -> Callable[[], float]:
        """Returns what waits for the loss, float64 [], and tells it."""
        self._loss.copy_(loss.view(1), non_blocking=True)
        fence = self._fence = gpu.fence(gpu.stream(device.index or 0))

        def told() -> float:
            fence.synchronize()
            return float(self._host[-1:].view(np.float64)[0])

        return told


def device_bytes(config: EmbedConfig, plan: fused.Plan | None) -> int:
    """Returns what a batch needs on a GPU at most, beyond what it needs on the CPU.

    Args:
        plan: Plan of the fused loss, for all chunks at a time; None where each goes on its own.
    """
    step = _STEP_FLOATS * most_rows(config) * config.dim
    together = 0 if plan is None else _QUERY_FLOATS * (config.batch - config.chunk) * config.dim
    tile = (
        _TILES * TILE_FLOATS if isinstance(score_function(config.model, config.dim).compare, Modulus) else 0
    )
    return 4 * max(step, together, tile) + (0 if plan is None else plan.scratch_bytes)


def numbers_of(ids: Tensor) -> Tensor:
    """Returns int64 [n]: the number of each id among the different ones, in order:
    ``unique(ids, return_inverse=True)[1]``.
    """
    ordered, order = ids.sort()
    number = torch.zeros_like(ids)
    torch.cumsum(ordered[1:] != ordered[:-1], 0, out=number[1:])
    return torch.empty_like(ids).index_copy_(0, order, number)


def stepped(rows: Tensor, gradient: Tensor, options: _core.StepOptions) -> Tensor:
    """Returns rows of vector and state, [n, stride], after one step: core/embed/row_update.cpp with torch.

    Args:
        gradient: [n, width].
    """
    width, kind = gradient.shape[1], options.kind
    vector, state, rest = rows[:, :width], rows[:, width:], rows[:, width:]
    if kind == _core.StepKind.sgd:
        return torch.cat([vector - options.rate * gradient, rest], 1)
    if kind == _core.StepKind.adagrad:
        squares = state[:, :width] + gradient**2
        vector = vector - options.rate * gradient / (squares.sqrt() + options.epsilon)
        return torch.cat([vector, squares, rows[:, 2 * width :]], 1)
    mean, square = state[:, :width], state[:, width]
    square = options.beta2 * square + (1 - options.beta2) * (gradient**2).mean(1)
    mean = options.beta1 * mean + (1 - options.beta1) * gradient
    first, second = 1 - options.beta1**options.step, 1 - options.beta2**options.step
    rate = options.rate / first / ((square / second).sqrt() + options.epsilon)
    return torch.cat([vector - rate[:, None] * mean, mean, square[:, None], rows[:, 2 * width + 1 :]], 1)
