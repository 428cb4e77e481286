"""Batch buffers on a GPU, for rows that its kernels read from disk: they cross the bus once, on their way there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from outcrop.device.budget import DeviceBudget
from outcrop.device.gpu import Gpu
from outcrop.loading.buffers import BufferPool, HostBuffer, RowBuffer, RowRoom
from outcrop.runtime.runtime import Runtime

if TYPE_CHECKING:
    import torch

TAG = "device-rows"


class RingRows(RowBuffer):
    """Holds the memory for a mini-batch's rows in the memory of a GPU: ``x``, uint8.

    Completion kernels put them there (:mod:`outcrop.rows.rings`), and rows are put together from there.
    """

    def __init__(self, room: RowRoom, gpu: Gpu, device: torch.device, budget: DeviceBudget, x_bytes: int):
        self._budget, self._number, self._x_bytes = budget, device.index or 0, x_bytes
        super().__init__(room, gpu)

    def _allocate(self) -> Any:
        assert self._gpu is not None
        self.pinned, self._held = self._budget.empty(TAG, self._x_bytes)
        # What had this memory before may still be read; kernels that write it are on other streams.
        self._gpu.fence(self._gpu.stream(self._number)).synchronize()
        return self.pinned

    def make_room(self, x_bytes: int, rows: int) -> None:
        if len(self.x) < x_bytes:
            self.release()
            self._x_bytes = x_bytes + x_bytes // 8
            self.x = self._allocate()

    def release(self) -> None:
        super().release()
        self.x = np.zeros(0, np.uint8)
        self._held = None


def ring_pool(
    runtime: Runtime, count: int, x_bytes: int, gpu: Gpu, device: torch.device, budget: DeviceBudget
) -> BufferPool[HostBuffer]:
    """Makes ``count`` buffers for rows of one row file on ``device``."""
    room = RowRoom(runtime, count, 0)
    return BufferPool(
        [HostBuffer(runtime, [RingRows(room, gpu, device, budget, x_bytes)], 0) for _ in range(count)]
    )
