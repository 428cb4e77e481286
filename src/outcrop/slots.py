"""Batch buffers: a fixed number of memory slots that travel through the loading pipeline and come back.

A slot is leased by the first stage, filled, and handed to the consumer as the memory of ``batch.x``. It returns when
the last tensor over it dies. If the consumer keeps more batches than there are slots, it gets an error, never a hang.
"""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np

from outcrop.device import HostRegistration
from outcrop.errors import BudgetError, CancelledError
from outcrop.runtime import Runtime


class Slot:
    """Buffers of one mini-batch in flight: ``x`` for rows, ``meta`` for the record; both uint8, page-aligned."""

    def __init__(self, runtime: Runtime, x_bytes: int, meta_bytes: int, pinned: bool):
        self._runtime, self._pinned = runtime, pinned
        self._registration: HostRegistration | None = None
        self.x = self._allocate(x_bytes)
        self.meta = runtime.budget.empty("batch-meta", meta_bytes)

    def _allocate(self, count: int) -> np.ndarray:
        x = self._runtime.budget.empty("batch-rows", count)
        if self._pinned and count:
            self._registration = HostRegistration(x)
        return x

    def make_room(self, x_bytes: int) -> None:
        """Grows ``x`` where the size of batches is not known ahead."""
        if len(self.x) < x_bytes:
            self.release()
            self.x = np.zeros(0, np.uint8)
            self.x = self._allocate(x_bytes + x_bytes // 4)

    def release(self) -> None:
        if self._registration is not None:
            self._registration.release()
            self._registration = None


class SlotPool:
    """``count`` slots, reserved when the pool is made."""

    def __init__(self, runtime: Runtime, count: int, x_bytes: int, meta_bytes: int, *, pinned: bool = False):
        self._slots = [Slot(runtime, x_bytes, meta_bytes, pinned) for _ in range(count)]
        self._free = list(self._slots)
        self._handed = 0
        # Finalizers run wherever the garbage collector does, also in a thread that holds the lock: hence re-entrant.
        self._changed = threading.Condition(threading.RLock())

    def lease(self, stopped: threading.Event) -> Lease:
        """Waits for a free slot. Raises CancelledError once ``stopped`` is set (call :meth:`wake` after setting it)."""
        with self._changed:
            while not self._free and not stopped.is_set():
                self._changed.wait()
            if stopped.is_set():
                raise CancelledError("loading was stopped")
            return Lease(self, self._free.pop())

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def check_not_starved(self) -> None:
        """Raises BudgetError where the consumer holds every slot and so waits for itself."""
        if self._handed < len(self._slots):
            return
        gc.collect()
        with self._changed:
            if self._handed >= len(self._slots):
                raise BudgetError(
                    f"all {len(self._slots)} batch buffers that the memory budget allows are held by the "
                    "caller: let go of earlier batches (del, or x.clone() what must stay), or raise "
                    "--memory"
                )

    def give_back(self, slot: Slot, lease: _Kept) -> None:
        with self._changed:
            self._free.append(slot)
            self._handed -= lease.taken
            lease.returned = True
            self._changed.notify_all()

    def mark_taken(self, lease: _Kept) -> None:
        with self._changed:
            if not lease.returned and not lease.taken:
                lease.taken = True
                self._handed += 1

    def close(self) -> None:
        for slot in self._slots:
            slot.release()
        self._slots.clear()
        self._free.clear()


class _Kept:
    """``taken``: the consumer has the array over the slot; ``returned``: the slot is free again."""

    taken = returned = False


class Lease:
    """The right to one slot; ends when dropped, or, once handed over, when the array over it dies."""

    def __init__(self, pool: SlotPool, slot: Slot):
        self.slot = slot
        self._pool, self._kept = pool, _Kept()
        self._finalizer = weakref.finalize(self, pool.give_back, slot, self._kept)
        self._finalizer.atexit = False

    def hand_over(self, array: np.ndarray) -> None:
        """From now on ``array`` (over the slot's memory) keeps the slot."""
        if self._finalizer.detach():
            weakref.finalize(array, self._pool.give_back, self.slot, self._kept).atexit = False

    def mark_taken(self) -> None:
        """The consumer has the array: from now on the slot counts as held by the caller.

        Not before, or a batch on its way to the consumer would look like one that the consumer keeps.
        """
        self._pool.mark_taken(self._kept)
