"""Training on a GPU: the slices that are resident lie in its memory, and so do batches; swaps go by pinned host memory.

What a CPU computes with core/embed is computed with torch here. Sums of gradients on a GPU do not always add in the
same order: results are those of the CPU as far as rounding goes, not to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from outcrop import _core
from outcrop.config import EmbedConfig
from outcrop.device.budget import DeviceBudget
from outcrop.device.gpu import Fence, Gpu
from outcrop.embed import fused
from outcrop.embed.buffer import TAG, Buffer, Moving, SlotMove
from outcrop.embed.compare import Dot
from outcrop.embed.losses import loss_function
from outcrop.embed.step import TAG as BATCH
from outcrop.embed.step import Ends, Queries, Relations, Stepper, most_rows, stride
from outcrop.embed.tables import Exchange, Move, SlabJob, Table
from outcrop.gpuio import SlabRings
from outcrop.runtime import Runtime
from outcrop.unified import in_place

Tensor = torch.Tensor
_RING_BYTES = 8 << 20  # of staging memory, where slabs go through rings
_STEP_COPIES = 3  # of the rows of a batch that a step holds


class GpuBuffer(Buffer):
    """``slots`` slabs on a GPU. ``rows`` is a tensor there; ``staged`` slabs of pinned host memory are on the way to or
    from disk at a time. With ``initiator`` gpu kernels move slabs through rings, and one is staged, for first rows."""

    def __init__(
        self,
        table: Table,
        slots: int,
        runtime: Runtime,
        gpu: Gpu,
        device: torch.device,
        budget: DeviceBudget,
        staged: int,
    ):
        self._by_rings, self._rings = runtime.initiator == "gpu", None
        staged = 1 if self._by_rings else min(staged, slots)
        self.gpu, self.device, self._budget, self._staged = gpu, device, budget, staged
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

    def exchange(self, moves: Sequence[SlotMove]) -> Moving:
        if not self._by_rings:
            return _GpuExchange(self, tuple(moves))
        return self._table.exchange([Move(self.slabs[m.slot], m.stored, m.loaded) for m in moves], self)

    def swap(self, slabs: list[Any], write_at: list[int | None], read_at: list[int | None]) -> SlabJob:
        """:class:`outcrop.embed.tables.SlabMover`."""
        if self._rings is None:  # now the file has its size
            memory_bytes = min(_RING_BYTES, self._runtime.budget.free_bytes // 2)
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
    """Groups of as many slices as are staged: from the GPU, to and from disk, to the GPU. Each step begins when
    somebody looks and the one before is done; training goes on meanwhile."""

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
        """What leaves is copied from the GPU."""
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
        """What came is copied to the GPU."""
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
    """As :class:`outcrop.embed.step.Stepper`, on a GPU."""

    def __init__(
        self,
        config: EmbedConfig,
        relations: Relations | None,
        runtime: Runtime,
        device: torch.device,
        budget: DeviceBudget,
    ):
        self.device, self._budget = device, budget
        super().__init__(config, relations, runtime)
        self._loss = loss_function(config.loss, config.margin)

    def _reserve(self, runtime: Runtime, num_bytes: int) -> Any:
        rows = _STEP_COPIES * 4 * most_rows(self.config) * stride(self.config, self.config.dim)
        config = self.config
        plan = fused.Plan(2 * config.chunk, config.negatives, config.dim, 2 * config.chunk, keep=True)
        scratch = plan.scratch_bytes if self._fused else 0
        return self._budget.reserve(BATCH, num_bytes + rows + scratch)

    @property
    def _fused(self) -> bool:
        """Whether one pass of kernels makes scores, loss and gradients."""
        products = isinstance(self.score.compare, Dot)
        return products and self.config.loss == "softmax" and fused.usable(self.device)

    def _compare(
        self,
        queries: Tensor,
        positive: Tensor,
        candidates: Tensor,
        rows: tuple[np.ndarray, np.ndarray],
        to: tuple[Tensor, Tensor, Tensor],
    ) -> float:
        if not self._fused:
            return super()._compare(queries, positive, candidates, rows, to)
        negatives, wanted = (self._ids(ids) for ids in rows)
        loss, *gradients = fused.softmax(queries, positive, candidates, wanted, negatives)
        to[0].copy_(gradients[0])
        to[1].copy_(gradients[1])
        to[2].add_(gradients[2])
        return loss.item()

    def _ids(self, ids: np.ndarray) -> Tensor:
        return torch.from_numpy(ids.astype(np.int64, copy=False)).to(self.device, non_blocking=True)

    def _take(self, rows: Tensor, ids: np.ndarray, out: Tensor) -> None:
        torch.index_select(rows[:, : out.shape[1]], 0, self._ids(ids), out=out)

    def _step(self, rows: Tensor, ids: np.ndarray, gradients: Tensor, options: _core.StepOptions) -> None:
        unique, place = torch.unique(self._ids(ids), return_inverse=True)
        total = gradients.new_zeros(len(unique), gradients.shape[1]).index_add_(0, place, gradients)
        rows[unique] = stepped(rows[unique], total, options)

    def _leave_out(self, scores: Tensor, negatives: np.ndarray, wanted: np.ndarray) -> None:
        scores.masked_fill_(self._ids(wanted)[:, None] == self._ids(negatives), -torch.inf)

    def _queries(
        self, ends: Ends, to_ends: Ends, relations: list[Tensor], to_relations: list[Tensor]
    ) -> Queries:
        return self._by_autograd(ends, to_ends, relations, to_relations)

    def begin(self) -> None:
        if self.relations is not None:
            self._relation_rows = torch.from_numpy(self.relations.rows).to(self.device)

    def settle(self) -> None:
        if self.relations is not None:
            self.relations.rows[:] = self._relation_rows.cpu().numpy()


def stepped(rows: Tensor, gradient: Tensor, options: _core.StepOptions) -> Tensor:
    """Rows of vector and state, [n, stride], after one step: core/embed/row_update.cpp with torch.

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
