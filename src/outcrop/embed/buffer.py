"""The partitions in memory: rows of the whole table in slots, and the swaps, which run while training goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcrop.embed.tables import Load, Table
from outcrop.errors import BudgetError
from outcrop.runtime import Runtime

_TAG = "partitions"


@dataclass(frozen=True)
class SwapRecord:
    """Of one swap, seconds of ``time.perf_counter``.

    Attributes:
        moved: When everything was read, as far as was noticed.
        waited: Seconds that training waited for it.
    """

    evicted: tuple[int, ...]
    loaded: tuple[int, ...]
    begin: float
    moved: float
    waited: float


class Buffer:
    """``slots`` slabs in memory. With as many slots as partitions nothing is ever swapped.

    Attributes:
        rows: float32 [slots * slab_rows, stride], all slots: row r of a partition is ``base[partition] + r``.
        base: int64 by partition; -1 where it is not resident.
        swaps: What became of each swap.
    """

    def __init__(self, table: Table, slots: int, runtime: Runtime):
        need = slots * table.slab_bytes
        if need > runtime.budget.free_bytes:
            raise BudgetError(
                f"{slots} partitions of {table.slab_bytes} bytes take {need} bytes, {runtime.budget.free_bytes} of the "
                "memory budget are free: raise --memory, or prepare with more partitions"
            )
        self._table, self._runtime = table, runtime
        self._memory = runtime.budget.empty(_TAG, need).reshape(slots, table.slab_bytes)
        self.rows = self._memory.reshape(-1).view(np.float32).reshape(-1, table.shape.stride)
        self._slot_of: dict[int, int] = {}
        self._dirty: set[int] = set()
        self.base = np.full(table.division.parts, -1, np.int64)
        self._swap: _Swap | None = None
        self.swaps: list[SwapRecord] = []

    @property
    def holds_all(self) -> bool:
        return len(self._memory) >= self._table.division.parts

    def slab(self, part: int) -> np.ndarray:
        return self._memory[self._slot_of[part]]

    def enter(self, parts: Sequence[int]) -> None:
        """Holds exactly ``parts``, or everything; what is not there is loaded now."""
        wanted = range(self._table.division.parts) if self.holds_all else parts
        gone = [part for part in self._slot_of if part not in wanted]
        missing = [part for part in wanted if part not in self._slot_of]
        if gone or missing:
            self.begin_swap(gone, missing)
            self.end_swap()

    def begin_swap(self, evicted: Sequence[int], loaded: Sequence[int]) -> None:
        """Writes ``evicted`` back and loads ``loaded`` in their places, in the background."""
        assert self._swap is None
        if self.holds_all:
            evicted, loaded = (), [part for part in loaded if part not in self._slot_of]
        self._swap = _Swap(self, evicted, loaded)

    def advance(self) -> None:
        """Lets a swap go on that waits for nothing but us. Cheap."""
        if self._swap:
            self._swap.advance()

    def end_swap(self) -> None:
        """Waits until the swap is over."""
        if self._swap is None:
            return
        begin = time.perf_counter()
        with self._runtime.trace.span("swap.wait"):
            self._swap.finish()
        self.swaps.append(self._swap.record(begin))
        self._swap = None

    @property
    def swapping(self) -> bool:
        return self._swap is not None

    def touch(self, *parts: int) -> None:
        """Rows of ``parts`` change."""
        self._dirty.update(parts)

    def flush(self) -> None:
        """Writes all that changed; no swap may be under way."""
        assert self._swap is None
        jobs = [self._table.store(part, self.slab(part)) for part in sorted(self._dirty)]
        for job in jobs:
            job.wait()
        self._dirty.clear()

    def close(self) -> None:
        self._swap = None  # its jobs are waited for when they go
        del self.rows
        del self._memory


class _Swap:
    """Each evicted partition is written, then another read into its slot."""

    def __init__(self, buffer: Buffer, evicted: Sequence[int], loaded: Sequence[int]):
        self._buffer, self._table = buffer, buffer._table
        self._evicted, self._wanted = tuple(evicted), tuple(loaded)
        self._begin, self._moved = time.perf_counter(), 0.0
        taken = set(buffer._slot_of.values())
        free = [slot for slot in range(len(buffer._memory)) if slot not in taken]
        self._waiting: list[tuple[Any, int]] = [(None, slot) for slot in free]  # (write or None, slot)
        for part in evicted:
            slot = buffer._slot_of.pop(part)
            buffer.base[part] = -1
            job = None
            if part in buffer._dirty:
                job = self._table.store(part, buffer._memory[slot])
                buffer._dirty.remove(part)
            self._waiting.append((job, slot))
        self._missing = list(loaded)
        self._loads: list[tuple[Load, int]] = []
        self.advance()

    def advance(self) -> None:
        for job, slot in list(self._waiting):
            if self._missing and (job is None or job.done):
                self._start(job, slot)
        if not self._moved and not self._missing and all(load.done for load, _ in self._loads):
            self._moved = time.perf_counter()

    def _start(self, job: Any, slot: int) -> None:
        if job is not None:
            job.wait()
        self._waiting.remove((job, slot))
        self._loads.append((self._table.load(self._missing.pop(0), self._buffer._memory[slot]), slot))

    def finish(self) -> None:
        while self._missing:
            self._start(*self._waiting[0])
        for job, _ in self._waiting:
            if job is not None:
                job.wait()
        buffer = self._buffer
        for load, slot in self._loads:
            load.wait()
            buffer._slot_of[load.part] = slot
            buffer.base[load.part] = slot * self._table.slab_rows
            if load.job is None:
                buffer.touch(load.part)  # made anew: on disk it is not

    def record(self, waited_from: float) -> SwapRecord:
        now = time.perf_counter()
        return SwapRecord(self._evicted, self._wanted, self._begin, self._moved or now, now - waited_from)
