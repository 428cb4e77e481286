"""The slices in memory: rows of the whole table in slots, and the swaps, which run while training goes on."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from outcrop.config import exact_bytes, least_bytes
from outcrop.embed.tables import Move, Table
from outcrop.errors import BudgetError
from outcrop.runtime.runtime import Runtime

TAG = "partitions"


@dataclass(frozen=True)
class SlotMove:
    """Slice ``stored`` is written from a slot, then ``loaded`` read into it; None: nothing."""

    slot: int
    stored: int | None
    loaded: int | None


class SliceTransfer(Protocol):
    """Tells of slices on their way. ``read``: of each move, whether it comes from disk; others were never written."""

    @property
    def read(self) -> tuple[bool, ...]: ...

    @property
    def done(self) -> bool: ...

    def wait(self) -> None: ...


@dataclass(frozen=True)
class SwapRecord:
    """Notes the times of one swap, in seconds of ``time.perf_counter``.

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
    """Holds ``slots`` slabs in host memory. With as many slots as slices nothing is ever swapped.

    Attributes:
        rows: float32 [slots * slab_rows, stride], all slots: row r of a slice is ``base[slice] + r``.
        base: int64 by slice; -1 where it is not resident.
        swaps: What became of each swap.
        waited: Seconds that they were waited for, all together.
    """

    rows: Any

    def __init__(self, table: Table, slots: int, runtime: Runtime):
        self._table, self._slots, self._runtime = table, slots, runtime
        self._allocate()
        self._slot_of: dict[int, int] = {}
        self._dirty: set[int] = set()
        self.base = np.full(table.division.parts, -1, np.int64)
        self._swap: _Swap | None = None
        self.swaps: list[SwapRecord] = []
        self.waited = 0.0

    def _allocate(self) -> None:
        table, budget = self._table, self._runtime.budget
        free = budget.free_bytes
        need = self._slots * table.slab_bytes
        if need > free:
            raise BudgetError(
                f"{self._slots} slices of {exact_bytes(table.slab_bytes)} take {least_bytes(need)}, "
                f"{exact_bytes(free)} of the memory budget are free: raise --memory to at least "
                f"{least_bytes(budget.limit_bytes - free + need)}, prepare with more partitions, or lower --buffer, "
                "--batch or --negatives"
            )
        self._memory = budget.empty(TAG, need).reshape(self._slots, table.slab_bytes)
        self.rows = self._memory.reshape(-1).view(np.float32).reshape(-1, table.shape.stride)

    def exchange(self, moves: Sequence[SlotMove]) -> SliceTransfer:
        """Begins to move slices between slots and disk."""
        return self._table.exchange([Move(self._memory[m.slot], m.stored, m.loaded) for m in moves])

    @property
    def holds_all(self) -> bool:
        return self._slots >= self._table.division.parts

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

    def note_end(self) -> None:
        """Notes when a swap has come to its end. Cheap."""
        if self._swap:
            self._swap.note_end()

    def end_swap(self) -> None:
        """Waits until the swap is over."""
        if self._swap is None:
            return
        begin = time.perf_counter()
        with self._runtime.trace.span("swap.wait"):
            self._swap.finish()
        self.swaps.append(self._swap.record(begin))
        self.waited += self.swaps[-1].waited
        self._swap = None

    def leave(self, parts: Collection[int]) -> None:
        """Writes ``parts``, as far as they are held, and holds them no more."""
        if held := [part for part in self._slot_of if part in parts]:
            self.begin_swap(held, ())
            self.end_swap()

    @property
    def swapping(self) -> bool:
        return self._swap is not None

    def touch(self, *parts: int) -> None:
        """Rows of ``parts`` change."""
        self._dirty.update(parts)

    def flush(self) -> None:
        """Writes all that changed; no swap may be under way."""
        assert self._swap is None
        self.exchange([SlotMove(self._slot_of[part], part, None) for part in sorted(self._dirty)]).wait()
        self._dirty.clear()

    def close(self) -> None:
        self._swap = None  # what it does is waited for when it goes
        del self.rows
        del self._memory


class _Swap:
    """Each evicted slice is written, and another read into its slot."""

    def __init__(self, buffer: Buffer, evicted: Sequence[int], loaded: Sequence[int]):
        self._buffer = buffer
        self._evicted, self._wanted = tuple(evicted), tuple(loaded)
        self._begin, self._moved = time.perf_counter(), 0.0
        taken = set(buffer._slot_of.values())
        free = [slot for slot in range(buffer._slots) if slot not in taken]
        leaving: list[tuple[int | None, int]] = []
        for part in evicted:
            slot = buffer._slot_of.pop(part)
            buffer.base[part] = -1
            leaving.append((part if part in buffer._dirty else None, slot))
            buffer._dirty.discard(part)
        coming: list[int | None] = list(loaded)
        slots = [*leaving, *((None, slot) for slot in free)]
        coming += [None] * (len(slots) - len(coming))
        self._moves = [
            SlotMove(slot, stored, part)
            for (stored, slot), part in zip(slots, coming, strict=True)
            if stored is not None or part is not None
        ]
        self._exchange = buffer.exchange(self._moves)

    def note_end(self) -> None:
        """Notes when everything has been moved."""
        if not self._moved and self._exchange.done:
            self._moved = time.perf_counter()

    def finish(self) -> None:
        buffer, exchange = self._buffer, self._exchange
        exchange.wait()
        for move, read in zip(self._moves, exchange.read, strict=True):
            if move.loaded is not None:
                buffer._slot_of[move.loaded] = move.slot
                buffer.base[move.loaded] = move.slot * buffer._table.slab_rows
                if not read:
                    buffer.touch(move.loaded)  # made anew: on disk it is not

    def record(self, waited_from: float) -> SwapRecord:
        now = time.perf_counter()
        return SwapRecord(self._evicted, self._wanted, self._begin, self._moved or now, now - waited_from)
