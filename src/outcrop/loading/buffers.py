"""Batch buffers: a fixed number of pieces of memory that travel through the loading pipeline and come back.

A buffer is leased by the first stage, filled, and handed to the consumer as the memory of ``batch.rows``. It has a part
for each row file of the graph, because the rows of one are read before it is known how many the others have; it returns
when the last tensor over any part dies. If the consumer keeps more batches than there are buffers, it gets an error,
never a hang.
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
from outcrop.store.record import align_page

if TYPE_CHECKING:
    import torch

    from outcrop.store.graph_types import RowFile

S = TypeVar("S", bound="BatchBuffer")

_NOTHING = np.zeros(0, np.uint8)


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


def values_bytes(rows: int, file: RowFile | None) -> int:
    """Counts the bytes of a buffer for the values of ``rows`` rows, whole pages; 0 where they are used as they lie."""
    return 0 if file is None else align_page(rows * file.decoded_bytes)


def _with_some_more(count: int) -> int:
    """Rounds up to whole pages, and to a multiple of about an eighth."""
    pages = -(-count // PAGE_BYTES)
    step = 1 << max(pages.bit_length() - 4, 0)
    return -(-pages // step) * step * PAGE_BYTES


class RowRoom:
    """Reserves the budget for the rows of one row file in a pool's buffers: of all at once, so that what is held does
    not depend on which buffer grows.

    Args:
        rows: Rows whose values each buffer has room for.
        file: Rows that are decoded on the CPU: each buffer has room for the values too. None: they are not.

    Attributes:
        x_bytes: Bytes in each buffer for rows as they lie on disk.
        values_bytes: Bytes in each buffer for the values of rows that are decoded.
    """

    def __init__(
        self, runtime: Runtime, count: int, x_bytes: int, rows: int = 0, file: RowFile | None = None
    ):
        self._runtime, self._count, self.file = runtime, count, file
        self._held: list[_core.Reservation] = []
        self._buffers = _core.Budget.create(rehearsal=runtime.rehearsal is not None)  # counted by this room
        self.x_bytes = self.values_bytes = 0
        self._reserve(align_page(x_bytes), values_bytes(rows, file))

    def _reserve(self, x_bytes: int, values: int) -> None:
        """Reserves both or, where there is not so much, nothing."""
        wanted = {"batch-rows": x_bytes - self.x_bytes}
        if values != self.values_bytes:
            wanted["decoded-rows"] = values - self.values_bytes
        found: list[_core.Reservation] = []
        try:
            for tag, more in wanted.items():
                found.append(self._runtime.budget.reserve(tag, self._count * more))
        except BudgetError:
            for held in found:
                held.release()
            raise
        self._held += found
        self.x_bytes, self.values_bytes = x_bytes, values

    def grow(self, x_bytes: int, rows: int) -> None:
        """Makes room for ``x_bytes``, and for the values of ``rows`` rows, and up to an eighth more of what grows, so
        that buffers grow seldom.

        Raises:
            BudgetError: There is not so much.
        """
        wanted = ((x_bytes, self.x_bytes), (values_bytes(rows, self.file), self.values_bytes))
        self._reserve(*(_with_some_more(count) if count > there else there for count, there in wanted))

    def empty(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns a buffer for rows as they lie on disk, and one for their values, both uint8, page-aligned."""
        values = self._buffers.empty("decoded-rows", self.values_bytes)
        return self._buffers.empty("batch-rows", self.x_bytes), values


class RowBuffer:
    """Holds the memory for a mini-batch's rows of one row file: ``x``, uint8, page-aligned.

    With a GPU ``x`` is pinned, so that the GPU reads it in place.

    Attributes:
        values: uint8, page-aligned, room for what the CPU decodes of the rows; empty where it decodes none.
    """

    x: Any

    def __init__(self, room: RowRoom, gpu: Gpu | None):
        self._room, self._gpu = room, gpu
        self.values = _NOTHING
        self.pinned: torch.Tensor | None = None  # x as the GPU reads it
        self.x = self._allocate()

    def _allocate(self) -> Any:
        x, self.values = self._room.empty()
        if self._gpu is not None and len(x):
            from outcrop.unified import in_place  # brings torch

            self.pinned = in_place(x)
        return x

    def has(self, x_bytes: int, rows: int) -> bool:
        """Tells whether it has room for ``x_bytes``, which are ``rows`` rows, and for what is decoded of them."""
        return x_bytes <= len(self.x) and values_bytes(rows, self._room.file) <= len(self.values)

    def make_room(self, x_bytes: int, rows: int) -> None:
        """Grows where the size of batches is not known ahead, as :meth:`has` has it; what it held is lost."""
        if not self.has(x_bytes, rows):
            self._room.grow(x_bytes, rows)
            self.release()
            self.x = self.values = _NOTHING
            self.x = self._allocate()

    def release(self) -> None:
        """Gives back what a GPU reads."""
        self.pinned = None


class HostBuffer(BatchBuffer):
    """Holds the buffers of one mini-batch in flight.

    Where a GPU reads the rows in place, copies run beside everything else. The buffer may come back before they have:
    who leases it next waits for them.

    Attributes:
        rows: Memory for the rows of each row file.
        meta: Memory for the record, uint8, page-aligned.
    """

    def __init__(self, runtime: Runtime, rows: Sequence[RowBuffer], meta_bytes: int):
        self.rows = tuple(rows)
        self._read: Fence | None = None
        self.meta = runtime.budget.empty("batch-meta", meta_bytes)

    @property
    def x(self) -> Any:
        """Returns the memory for rows, uint8, of a graph with one row file."""
        (rows,) = self.rows
        return rows.x

    def reading(self, fence: Fence) -> None:
        """Notes that a GPU reads the rows until ``fence`` passes."""
        self._read = fence

    @property
    def ready(self) -> bool:
        return self._read is None or self._read.query()

    def wait(self) -> None:
        if self._read is not None and not self._read.query():
            self._read.synchronize()
        self._read = None

    def release(self) -> None:
        for rows in self.rows:
            rows.release()


class BufferPool(Generic[S]):
    """Leases buffers, which are reserved when the pool is made.

    Args:
        buffers: All of one kind.
        limit: The option that limits how many there are, for the message where the caller keeps them all; None: there
            are never more.
    """

    def __init__(self, buffers: Sequence[S], limit: str | None = None):
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
                more = "" if self._limit is None else f", or raise {self._limit}"
                raise BudgetError(
                    f"all {len(self._buffers)} batch buffers that loading has are held by the caller: the rows of a "
                    "batch lie in one until the batch is let go of (del, or x.clone() what must stay; a loss that is "
                    f"summed up over batches keeps theirs, so call backward for each){more}",
                    limit="buffers",
                )

    def give_back(self, buffer: S, lease: _LeaseState) -> None:
        """Takes ``buffer`` back when the last that kept it, of those that ``lease`` counts, lets go of it."""
        with self._changed:
            lease.kept_by -= 1
            if lease.kept_by:
                return
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
    runtime: Runtime,
    count: int,
    row_bytes: Sequence[int],
    meta_bytes: int,
    *,
    gpu: Gpu | None = None,
    values: Sequence[tuple[int, RowFile]] | None = None,
) -> BufferPool[HostBuffer]:
    """Makes ``count`` buffers in host memory.

    Args:
        row_bytes: Bytes for the rows of each row file; 0: they grow.
        values: Of how many rows of each row file values have room, 0: it grows, and the file, whose rows the CPU
            decodes where there is no GPU; None: whoever leases a buffer uses the rows as they lie.
    """
    decoded = [(0, None)] * len(row_bytes) if values is None or gpu is not None else values
    rooms = [RowRoom(runtime, count, size, *of) for size, of in zip(row_bytes, decoded, strict=True)]
    return BufferPool(
        [HostBuffer(runtime, [RowBuffer(room, gpu) for room in rooms], meta_bytes) for _ in range(count)]
    )


class _LeaseState:
    """Says how far a lease is. ``taken``: the consumer has the arrays over the buffer; ``returned``: the buffer is free
    again; ``kept_by``: how many keep it, the lease or the arrays that it was handed over to.
    """

    taken = returned = False
    kept_by = 1


class Lease(Generic[S]):
    """Gives the right to one buffer; ends when dropped, or, once handed over, when the last array over it dies."""

    def __init__(self, pool: BufferPool[S], buffer: S):
        self.buffer = buffer
        self._pool, self._state = pool, _LeaseState()
        self._finalizer = weakref.finalize(self, pool.give_back, buffer, self._state)
        self._finalizer.atexit = False

    def hand_over(self, *arrays: Any) -> None:
        """Has ``arrays`` (over the buffer's memory, or what tensors over it keep) keep the buffer from now on."""
        if self._finalizer.detach():
            self._state.kept_by = len(arrays)
            for array in arrays:
                weakref.finalize(array, self._pool.give_back, self.buffer, self._state).atexit = False

    def mark_taken(self) -> None:
        """Counts the buffer as held by the caller from now on: the consumer has the arrays.

        Not before, or a batch on its way to the consumer would look like one that the consumer keeps.
        """
        self._pool.mark_taken(self._state)
