"""Copies arrays of the host, mapped files among them, to a GPU a piece at a time, through pinned memory of two pieces.

While one piece crosses the bus the next is read into the other half, so that the host holds no more of an array than
the pinned memory, whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from outcrop.device.gpu import Fence, Gpu
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import UNLIMITED
from outcrop.unified import in_place

TAG = "topology-staging"


class StagedCopy:
    """Copies to ``device`` on its current stream.

    Args:
        budget: Budget of the host, which the pinned memory is held in under the tag ``topology-staging``: an eighth of
            what is left, 64 KiB to 16 MiB, and no more than ``most_bytes``; None: it is not counted.
        most_bytes: Bytes of the largest array.

    Raises:
        BudgetError: The budget has not room for 64 KiB.
        DeviceError: The memory cannot be pinned.
    """

    def __init__(self, gpu: Gpu, device: torch.device, budget: Any | None, most_bytes: int):
        self._gpu, self._device = gpu, device
        free = UNLIMITED if budget is None else budget.free_bytes
        half = -(-min(memory_tables.TOPOLOGY_STAGING.bytes_of(free) // 2, max(most_bytes, 8)) // 8) * 8
        self._host = np.empty(2 * half, np.uint8) if budget is None else budget.empty(TAG, 2 * half)
        pinned = in_place(self._host).as_subclass(torch.Tensor)  # plain: copies are those of the bus
        self._halves: tuple[torch.Tensor, ...] = (pinned[:half], pinned[half:])
        self._read: list[Fence | None] = [None, None]
        self._next = 0

    def copy(self, source: np.ndarray, out: torch.Tensor) -> None:
        """Does ``out[:] = source``; what is read of ``source`` is read when this is called. Elements of 4 or 8 bytes.

        Args:
            out: As long, on the device, contiguous.
        """
        self.fill(lambda at, piece: np.copyto(piece, source[at : at + len(piece)]), source.dtype, out)

    def fill(self, read: Callable[[int, np.ndarray], None], dtype: np.dtype, out: torch.Tensor) -> None:
        """Fills ``out`` with what ``read(first, piece)`` writes to each ``piece``, elements from ``first`` on."""
        step = len(self._halves[0]) // dtype.itemsize
        for at in range(0, len(out), step):
            count = min(step, len(out) - at)
            side, self._next = self._next, 1 - self._next
            self._wait(side)
            staged = self._halves[side][: count * dtype.itemsize].view(out.dtype)
            read(at, staged.numpy().view(dtype))
            out[at : at + count].copy_(staged, non_blocking=True)
            self._read[side] = self._gpu.fence(self._gpu.stream(self._device.index or 0))

    def close(self) -> None:
        """Waits until all is copied, and gives the pinned memory back."""
        for side in (0, 1):
            self._wait(side)
        self._halves = ()
        del self._host

    def _wait(self, side: int) -> None:
        fence, self._read[side] = self._read[side], None
        if fence is not None:
            fence.synchronize()
