"""Batch buffers: a fixed number of pieces of memory that travel through the loading pipeline and come back.

A buffer is leased by the first stage, filled, and handed to the consumer as the memory of ``batch.x``. It returns when
the last tensor over it dies. If the consumer keeps more batches than there are buffers, it gets an error, never a hang.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

import outcrop._core as _core
from outcrop.device.gpu import Fence, Gpu
from outcrop.errors import BudgetError, CancelledError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime

if TYPE_CHECKING:
    import torch


S = TypeVar("S", bound="BatchBuffer")


def device_batch_bytes(x_bytes: int, record_bytes: int, target_bytes: int = 0) -> int:
    """Counts the bytes of a mini-batch on a GPU, at most.

    Four times its record: ids of 4 bytes there are places and ids of 8 here, edges of 4 are sources, weights and ids.
    Twice its targets: they come with the rows, and who takes the batch has a copy of them that may be kept.

    Args:
        x_bytes: Bytes of its rows.
        record_bytes: Bytes of its structure as it is recorded, without an address table.
        target_bytes: Bytes of the targets of its seeds where these are no classes (see
            :func:`outcrop.store.targets.target_bytes`).
    """
    return x_bytes + 4 * record_bytes + 2 * target_bytes


class BatchBuffer:
    """Holds memory of a pool, and has what every kind has."""

    x: Any  # the rows of one mini-batch, as bytes

    def make_room(self, x_bytes: int) -> None:
        """Grows ``x`` where the size of batches is not known ahead."""
        raise NotImplementedError

    def returned(self) -> None:
        """Notes that the last tensor over it has died."""

    @property
    def ready(self) -> bool:
        """Tells whether it can be written without waiting."""
        return True

    def wait(self) -> None:
        """Waits until it can be written: called when it is leased."""

    def release(self) -> None:
        """Gives the memory back."""


class RowRoom:
    """Reserves the budget of a pool's row buffers: of all at once, so that what is held does not depend on which buffer
    grows.

    Attributes:
        x_bytes: Bytes of each buffer.
    """

    def __init__(self, runtime: Runtime, count: int, x_bytes: int):
        self._runtime, self._count = runtime, count
        self._held: list[_core.Reservation] = []
        self._buffers = _core.Budget.create(rehearsal=runtime.rehearsal is not None)  # counted by this room
        self.x_bytes = 0
        self._reserve(x_bytes)

    def _reserve(self, x_bytes: int) -> None:
        x_bytes = -(-x_bytes // PAGE_BYTES) * PAGE_BYTES
        self._held.append(self._runtime.budget.reserve("batch-rows", self._count * (x_bytes - self.x_bytes)))
        self.x_bytes = x_bytes

    def grow(self, x_bytes: int) -> None:
        """Makes room for buffers of ``x_bytes``, and up to an eighth more, so that they grow seldom.

        Raises:
            BudgetError: There is not so much.
        """
        if x_bytes > self.x_bytes:
            pages = -(-x_bytes // PAGE_BYTES)
            step = 1 << max(pages.bit_length() - 4, 0)
            self._reserve(-(-pages // step) * step * PAGE_BYTES)

    def empty(self) -> np.ndarray:
        """Returns a buffer, uint8."""
        return self._buffers.empty("batch-rows", self.x_bytes)


class HostBuffer(BatchBuffer):
    """Holds the buffers of one mini-batch in flight: ``x`` for rows, ``meta`` for the record; both uint8, page-aligned.

    With a GPU ``x`` is pinned, so that the GPU reads it in place and copies run beside everything else. The buffer may
    come back before they have: who leases it next waits for them.
    """

    def __init__(self, runtime: Runtime, room: RowRoom, meta_bytes: int, gpu: Gpu | None):
        self._room, self._gpu = room, gpu
        self.pinned: torch.Tensor | None = None  # x as the GPU reads it
        self._read: Fence | None = None
        self.x = self._allocate()
        self.meta = runtime.budget.empty("batch-meta", meta_bytes)

    def _allocate(self) -> np.ndarray:
        x = self._room.empty()
        if self._gpu is not None and len(x):
            from outcrop.unified import in_place  # brings torch

            self.pinned = in_place(x)
        return x

    def make_room(self, x_bytes: int) -> None:
        if len(self.x) < x_bytes:
            self._room.grow(x_bytes)
            self.release()
            self.x = np.zeros(0, np.uint8)
            self.x = self._allocate()

    def reading(self, fence: Fence) -> None:
        """Notes that a GPU reads ``x`` until ``fence`` passes."""
        self._read = fence

    @property
    def ready(self) -> bool:
        return self._read is None or self._read.query()

    def wait(self) -> None:
        if self._read is not None and not self._read.query():
            self._read.synchronize()
        self._read = None

    def release(self) -> None:
        self.pinned = None


class BufferPool(Generic[S]):
    """Leases buffers, which are reserved when the pool is made.

    Args:
        buffers: All of one kind.
        limit: The option that limits how many there are, for the message where the caller keeps them all.
    """

    def __init__(self, buffers: Sequence[S], limit: str = "--memory"):
        self._buffers, self._limit = list(buffers), limit
        self._free = list(self._buffers)
        self._handed = 0
        # Finalizers run wherever the garbage collector does, also in a thread that holds the lock: hence re-entrant.
        self._changed = threading.Condition(threading.RLock())

    def __len__(self) -> int:
        return len(self._buffers)

    def lease(self, stopped: threading.Event) -> Lease[S]:
        """Waits for a free buffer.

        Raises:
            CancelledError: ``stopped`` was set (call :meth:`wake` after setting it).
        """
        with self._changed:
            while not self._free and not stopped.is_set():
                self._changed.wait()
            if stopped.is_set():
                raise CancelledError("loading was stopped")
            # The last that came back is warm in caches; where a GPU still reads all, the first is done first.
            ready = [at for at, buffer in enumerate(self._free) if buffer.ready]
            lease = Lease(self, self._free.pop(ready[-1] if ready else 0))
        lease.buffer.wait()
        return lease

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def check_not_starved(self) -> None:
        """Raises BudgetError where the consumer holds every buffer and so waits for itself."""
        if self._handed < len(self._buffers):
            return
        gc.collect()
        with self._changed:
            if self._handed >= len(self._buffers):
                raise BudgetError(
                    f"all {len(self._buffers)} batch buffers that the memory budget allows are held by the "
                    "caller: let go of earlier batches (del, or x.clone() what must stay), or raise "
                    f"{self._limit}",
                    limit="buffers",
                )

    def give_back(self, buffer: S, lease: _LeaseState) -> None:
        try:
            buffer.returned()
        finally:  # whatever a GPU says: somebody may wait for the buffer
            with self._changed:
                self._free.append(buffer)
                self._handed -= lease.taken
                lease.returned = True
                self._changed.notify_all()

    def mark_taken(self, lease: _LeaseState) -> None:
        with self._changed:
            if not lease.returned and not lease.taken:
                lease.taken = True
                self._handed += 1

    def close(self) -> None:
        for buffer in self._buffers:
            buffer.release()
        self._buffers.clear()
        self._free.clear()


def host_pool(
    runtime: Runtime, count: int, x_bytes: int, meta_bytes: int, *, gpu: Gpu | None = None
) -> BufferPool[HostBuffer]:
    """Makes ``count`` buffers in host memory."""
    room = RowRoom(runtime, count, x_bytes)
    return BufferPool([HostBuffer(runtime, room, meta_bytes, gpu) for _ in range(count)])


class _LeaseState:
    """Says how far a lease is. ``taken``: the consumer has the array over the buffer; ``returned``: the buffer is free
    again.
    """

    taken = returned = False


class Lease(Generic[S]):
    """Gives the right to one buffer; ends when dropped, or, once handed over, when the array over it dies."""

    def __init__(self, pool: BufferPool[S], buffer: S):
        self.buffer = buffer
        self._pool, self._state = pool, _LeaseState()
        self._finalizer = weakref.finalize(self, pool.give_back, buffer, self._state)
        self._finalizer.atexit = False

    def hand_over(self, array: Any) -> None:
        """Has ``array`` (over the buffer's memory, or what a tensor over it keeps) keep the buffer from now on."""
        if self._finalizer.detach():
            weakref.finalize(array, self._pool.give_back, self.buffer, self._state).atexit = False

    def mark_taken(self) -> None:
        """Counts the buffer as held by the caller from now on: the consumer has the array.

        Not before, or a batch on its way to the consumer would look like one that the consumer keeps.
        """
        self._pool.mark_taken(self._state)
