"""The last stage of loading: what was read for a mini-batch becomes tensors, on the device that trains.

On the CPU the tensors lie over the buffers. On a GPU the rows are put together there, on a stream of their own beside
the one that trains: cached rows come from the device cache, or from host memory that the GPU reads in place, the others
from the pinned buffer that they were read into (PyTorch-Direct 4.5; DiskGNN section 4 for the levels).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from outcrop import _core
from outcrop import device as devices
from outcrop.config import DeviceConfig
from outcrop.device.budget import DeviceBudget
from outcrop.device.gpu import Fence, Gpu, gpu_of, seen_by
from outcrop.slots import DEVICE_BATCHES, HostSlot, Lease, Slot, SlotPool
from outcrop.store import record
from outcrop.store.batches import BatchGraph
from outcrop.store.manifest import ArraySpec
from outcrop.store.minibatch import MiniBatch
from outcrop.unified import in_place
from outcrop.unified.assemble import assemble, places

_DEVICE, _HOST, _STAGED = range(3)  # tables of the kernel


@dataclass(frozen=True)
class Arrived:
    """A mini-batch as it was read.

    Attributes:
        lease: Of the buffer that holds its rows.
        table: Of a packed batch: which rows caches have.
    """

    graph: BatchGraph
    lease: Lease[HostSlot]
    table: record.AddressTable | None


class Transfer(Protocol):
    def deliver(self, batch: Arrived, stopped: threading.Event) -> MiniBatch: ...

    def check_not_starved(self) -> None: ...

    def wake(self) -> None: ...

    def peak_by_tag(self) -> dict[str, int]:
        """Bytes on the device."""
        ...

    def close(self) -> None: ...


class _Rows:
    """How the bytes of a row are seen."""

    def __init__(self, spec: ArraySpec, row_bytes: int):
        self.dtype, self.row_bytes = getattr(torch, spec.dtype), row_bytes

    def typed(self, x: torch.Tensor) -> torch.Tensor:
        """[n, width] over uint8 [n * row_bytes]."""
        return x.view(self.dtype).reshape(-1, self.row_bytes // self.dtype.itemsize)


class ToCpu:
    """Tensors over the buffers.

    Args:
        spec: The graph's ``features``.
        row_bytes: Of a row in a buffer.
        device_cache: uint8, flat: rows that a run planned for a device; None: no such level.
    """

    def __init__(self, spec: ArraySpec, row_bytes: int, device_cache: np.ndarray | None = None):
        self._rows, self._device_cache = _Rows(spec, row_bytes), device_cache

    def deliver(self, batch: Arrived, stopped: threading.Event) -> MiniBatch:
        graph, table, row_bytes = batch.graph, batch.table, self._rows.row_bytes
        # This array carries the lease: tensors over it keep it alive.
        data = batch.lease.slot.x[: graph.num_nodes * row_bytes]
        batch.lease.hand_over(data)
        if table is not None and self._device_cache is not None:
            _core.fill_rows(
                data,
                graph.num_nodes,
                row_bytes,
                table.device_positions,
                table.device_rows,
                self._device_cache,
                row_bytes,
            )
        degree = None if graph.degree is None else torch.from_numpy(graph.degree)
        x = self._rows.typed(torch.from_numpy(data))
        return MiniBatch(graph=graph, x=x, y=torch.from_numpy(graph.labels), degree=degree)

    def check_not_starved(self) -> None: ...

    def wake(self) -> None: ...

    def peak_by_tag(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._device_cache = None


def transfer_to(
    to: DeviceConfig,
    spec: ArraySpec,
    row_bytes: int,
    *,
    max_rows: int = 0,
    device_cache: np.ndarray | None = None,
    host_cache: np.ndarray | None = None,
    table: torch.Tensor | None = None,
    budget: DeviceBudget | None = None,
) -> Transfer:
    """See :class:`ToGpu` and :class:`ToCpu`.

    Args:
        budget: Of the device, where others hold memory of it too; None: one of ``to.memory_bytes``.

    Raises:
        DeviceError: The device is not there.
        BudgetError: It has less memory free than it may use, or needs.
    """
    device = devices.resolve(to.name)
    gpu = gpu_of(device)
    if gpu is None:
        return ToCpu(spec, row_bytes, device_cache)
    budget = budget or DeviceBudget(gpu, device, to.memory_bytes)
    return ToGpu(
        gpu,
        device,
        spec,
        row_bytes,
        budget,
        max_rows=max_rows,
        device_cache=device_cache,
        host_cache=host_cache,
        table=table,
    )


class DeviceSlot(Slot):
    """Memory of one mini-batch's rows on a GPU."""

    def __init__(self, gpu: Gpu, device: torch.device, budget: DeviceBudget, x_bytes: int):
        self._gpu, self._number, self._budget = gpu, device.index or 0, budget
        self._held: Any = None
        self._read: Fence | None = None
        self.x, self._held = budget.empty("device-batches", x_bytes)

    def make_room(self, x_bytes: int) -> None:
        if len(self.x) < x_bytes:
            self.wait()
            self.release()
            self.x, self._held = self._budget.empty("device-batches", x_bytes + x_bytes // 4)

    def returned(self) -> None:
        # What trained on it may have been launched and not be done.
        self._read = self._gpu.fence(self._gpu.stream(self._number))

    def wait(self) -> None:
        """Until nothing reads it any more."""
        if self._read is not None:
            self._read.synchronize()
            self._read = None

    def release(self) -> None:
        self.x = self.x[:0].clone()
        self._held = None


class _Token:
    """Kept by the tensors over a slot of the device."""


class ToGpu:
    """Rows are put together on the GPU.

    Args:
        spec, row_bytes: As of :class:`ToCpu`.
        max_rows: Of a batch; 0: not known ahead.
        budget: Of the device.
        device_cache, host_cache: uint8, flat, rows of the caches that a batch's table names; the former is copied to
            the device, the latter pinned where it is.
        table: uint8 [n, row_bytes] in unified memory: all rows. Batches then come without rows.
    """

    def __init__(
        self,
        gpu: Gpu,
        device: torch.device,
        spec: ArraySpec,
        row_bytes: int,
        budget: DeviceBudget,
        *,
        max_rows: int = 0,
        device_cache: np.ndarray | None = None,
        host_cache: np.ndarray | None = None,
        table: torch.Tensor | None = None,
    ):
        self._gpu, self._device, self._rows, self._all = gpu, device, _Rows(spec, row_bytes), table
        self._stream, self._budget = gpu.new_stream(device.index or 0), budget
        self._pool = SlotPool(
            [DeviceSlot(gpu, device, budget, max_rows * row_bytes) for _ in range(DEVICE_BATCHES)],
            "--gpu-memory",
        )
        nothing = np.zeros(0, np.uint8)
        cached = nothing if device_cache is None else device_cache
        there, self._held = budget.empty("device-cache", len(cached))
        there.copy_(torch.from_numpy(cached))
        self._device_cache = there.view(-1, row_bytes)
        self._host_cache = in_place(nothing if host_cache is None else host_cache).view(-1, row_bytes)

    def deliver(self, batch: Arrived, stopped: threading.Event) -> MiniBatch:
        graph, lease, table = batch.graph, batch.lease, batch.table
        rows, n = self._rows.row_bytes, graph.num_nodes
        slot_lease = self._pool.lease(stopped)
        slot = slot_lease.slot
        slot.make_room(n * rows)
        slot.wait()
        done, token = _Token(), _Token()
        lease.hand_over(done)  # the host's buffer is free when this returns
        out = seen_by(self._gpu, slot.x[: n * rows], self._device.index or 0, keeping=(slot.x, token))
        with self._gpu.on_stream(self._stream):
            x = out.view(n, rows)
            if self._all is not None:
                self._assemble([self._all], places(0, graph.n_id), x)
            elif table is not None:
                assert lease.slot.pinned is not None
                staged = lease.slot.pinned[: n * rows].view(-1, rows)
                tables = [self._device_cache, self._host_cache, staged]
                self._assemble(tables, _places(table, n), x)
            else:
                x.copy_(torch.from_numpy(lease.slot.x[: n * rows]).view(-1, rows), non_blocking=True)
            y = torch.from_numpy(graph.labels).to(self._device, non_blocking=True)
            degree = None if graph.degree is None else torch.from_numpy(graph.degree).to(self._device)
        self._gpu.fence(self._stream).synchronize()
        slot_lease.hand_over(token)
        slot_lease.mark_taken()
        return MiniBatch(graph=graph, x=self._rows.typed(out), y=y, degree=degree)

    def _assemble(self, tables: list[torch.Tensor], place: np.ndarray, x: torch.Tensor) -> None:
        there = torch.from_numpy(place.view(np.int64)).to(self._device, non_blocking=True)
        assemble(self._gpu, tables, there, x)

    def check_not_starved(self) -> None:
        self._pool.check_not_starved()

    def wake(self) -> None:
        self._pool.wake()

    def peak_by_tag(self) -> dict[str, int]:
        return self._budget.by_tag()

    def close(self) -> None:
        del self._device_cache, self._host_cache
        self._held = self._all = None
        self._pool.close()


def _places(table: record.AddressTable, count: int) -> np.ndarray:
    """Where each row of a packed batch lies: in a cache, or at its position in the buffer."""
    packed = np.ones(count, bool)
    packed[table.host_positions] = packed[table.device_positions] = False
    positions = np.flatnonzero(packed)
    out = np.empty(count, np.uint64)
    out[positions] = places(_STAGED, positions)
    out[table.host_positions] = places(_HOST, table.host_rows)
    out[table.device_positions] = places(_DEVICE, table.device_rows)
    return out
