"""Memory of mini-batches on a GPU: one block for all that a batch brings, written by one stream and read by others.

A block has the rows, and after them, each part aligned to 256 bytes, what was staged for the batch: places of rows,
labels, degrees, arrays of the structure. These come in one copy from a pinned block of the host, whose first word is
where kernels name a row that is at no place. Who waits for whom:

- The transfer's stream, on the device, for every stream that read the batch that was there before: for the stream on
  which the consumer took it, those that ``record_stream`` named, and the one on which it was let go.
- The consumer's stream, on the device, for the transfer that filled the block.
- The host for the transfer before, when it writes the pinned block again. It then looks what kernels named.

Blocks are allocated on the transfer's stream and recorded for all that read them, so what the caching allocator hands
out again is no longer used either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from outcrop.device.budget import DeviceBudget
from outcrop.device.gpu import Fence, Gpu, seen_by
from outcrop.errors import ArgumentError
from outcrop.loading.buffers import BatchBuffer
from outcrop.unified.memory import host_memory

_ALIGNMENT = 256  # bytes
_FLAG_BYTES = _ALIGNMENT  # of the pinned block: 1 + the row of the batch that a kernel found at no place


class DeviceBuffer(BatchBuffer):
    """Holds the block of one mini-batch.

    Args:
        stream: The stream of the transfer.
        num_bytes: Bytes of a batch, as far as known ahead.
    """

    x: torch.Tensor  # the whole block, uint8

    def __init__(self, gpu: Gpu, device: torch.device, budget: DeviceBudget, stream: Any, num_bytes: int):
        self._gpu, self._number, self._budget, self._stream = gpu, device.index or 0, budget, stream
        self._readers: list[Any] = []  # streams
        self._read: list[Fence] = []
        self._filled: Fence | None = None
        self._staged: dict[str, np.ndarray] = {}
        self._drawn: dict[str, torch.Tensor] = {}
        self._offsets: dict[
            str, int
        ] = {}  # of all that the block has beside the rows, from their aligned end
        self._allocate(num_bytes)
        self._pin(_FLAG_BYTES)

    def _allocate(self, num_bytes: int) -> None:
        with self._gpu.on_stream(self._stream):
            self.x, self._held = self._budget.empty("device-batches", num_bytes)

    def _pin(self, num_bytes: int) -> None:
        self._pinned = host_memory().empty((num_bytes,), torch.uint8)
        self._host = self._pinned.numpy()
        self._host[:_FLAG_BYTES] = 0

    @property
    def pinned_bytes(self) -> int:
        """Counts the bytes of the pinned block, which no budget of the host counts (ARCHITECTURE.md says why).

        At most five quarters of what :func:`outcrop.loading.buffers.device_batch_bytes` counts beside the rows, with
        targets once and 256 bytes more for each array.
        """
        return len(self._host)

    def make_room(self, x_bytes: int) -> None:
        """Makes the block at least ``x_bytes`` large."""
        if len(self.x) < x_bytes:
            for fence in self._read:  # seldom: the budget counts the block until nothing reads it
                fence.synchronize()
            self.release()
            more = x_bytes + x_bytes // 4
            self._allocate(more if more <= self._budget.free_bytes else x_bytes)

    def stage(
        self, x_bytes: int, arrays: Mapping[str, np.ndarray], drawn: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Writes ``arrays`` to the pinned block, for a batch whose rows take ``x_bytes``.

        Args:
            drawn: What else the batch has, on the device and finished there.

        Raises:
            ArgumentError: A row of the batch before was at no place.
            BudgetError: The device has not room for the batch.
        """
        self.check()
        offsets, end = self._offsets, _FLAG_BYTES
        offsets.clear()
        for name, array in arrays.items():
            offsets[name] = end
            end += aligned(array.nbytes)
        if end > len(self._host):
            self._pin(end + end // 4)
        self._staged, self._begin = {}, aligned(x_bytes) - _FLAG_BYTES
        for name, array in arrays.items():
            at = offsets[name]
            self._staged[name] = self._host[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
            self._staged[name][...] = array
        self._end, self._drawn = end, {}
        for name, tensor in (drawn or {}).items():
            offsets[name], self._drawn[name] = end, tensor
            end += aligned(tensor.nbytes)
        self.make_room(self._begin + end)

    def fill(self, keeping: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Copies what was staged to the block, once nothing reads it, on the current stream, the transfer's.

        Returns:
            The block, uint8, and what was staged or drawn, each by its name: tensors that keep ``keeping`` alive.
        """
        for fence in self._read:
            self._gpu.wait(self._stream, fence)
        self._read.clear()
        block = seen_by(self._gpu, self.x, self._number, keeping=(self.x, keeping))
        begin = self._begin + _FLAG_BYTES
        host_memory().on_gpu(self._pinned, self._number)  # so that it is kept until the copy is done
        if self._end > _FLAG_BYTES:
            source = self._pinned[_FLAG_BYTES : self._end]
            block[begin : self._begin + self._end].copy_(source, non_blocking=True)
        there = {}
        for name, array in self._staged.items():
            at = self._begin + array.ctypes.data - self._host.ctypes.data
            dtype = torch.from_numpy(array[:0]).dtype
            there[name] = block[at : at + array.nbytes].view(dtype).view(array.shape)
        for name, tensor in self._drawn.items():
            at = self._begin + self._offsets[name]
            there[name] = block[at : at + tensor.nbytes].view(tensor.dtype)
            there[name].copy_(tensor, non_blocking=True)
            self._gpu.record(tensor, self._stream)
        self._drawn = {}
        return block, there

    @property
    def wrong(self) -> int:
        """Returns the address of the word in which kernels name a row."""
        return host_memory().on_gpu(self._pinned, self._number).data_ptr()

    def filled(self, fence: Fence) -> None:
        """Notes that what fills the block has been queued; ``fence`` passes when it is done."""
        self._filled = fence

    def check(self) -> None:
        """Waits until the block is filled.

        Raises:
            ArgumentError: A row of the batch was at no place.
        """
        if self._filled is None:
            return
        wait_for(self._filled)
        self._filled = None
        flag = self._host[:8].view(np.int64)
        row, flag[0] = int(flag[0]) - 1, 0
        if row >= 0:
            raise ArgumentError(
                f"row {row} of a batch is at no place: {self._address_of(row):#x} is beyond what was cached and read; "
                "run outcrop verify, or prepare again"
            )

    def _address_of(self, row: int) -> int:
        """Reads the address of a row from the block: the host's, or that of the GPU that looked the row up."""
        begin = self._begin + self._offsets["row_addresses"] + 8 * row
        return int(np.frombuffer(self.x[begin : begin + 8].cpu().numpy(), np.uint64)[0])

    def used_on(self, stream: Any) -> None:
        """Keeps the block from being written before ``stream`` has done what it is given while the batch is kept."""
        if stream not in self._readers:
            self._readers.append(stream)
            self._gpu.record(self.x, stream)

    def returned(self) -> None:
        self.used_on(self._gpu.stream(self._number))
        self._read += [self._gpu.fence(stream) for stream in self._readers]
        self._readers.clear()

    def release(self) -> None:
        self.x = self.x[:0].clone()
        self._held = None


def aligned(num_bytes: int) -> int:
    """Rounds up to the bytes that a part of a block takes."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def wait_for(fence: Fence) -> None:
    """Waits on the host until ``fence`` has passed."""
    if not fence.query():
        fence.synchronize()
