"""One queue pair: where its rings lie in memory, what was submitted to it, and what waits for room."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import numpy as np

from outcrop.rows.rings.submitter import Private


class Part(Protocol):
    """Commands of some reads for one queue; those from ``next`` on were not submitted."""

    next: int
    stop: int


class QueuePair:
    """Counts the commands of a queue pair, so that all places in its rings are known ahead (kernels/io_queue.h).

    Args:
        memory: Its part of the memory of all, uint8 [layout.bytes].
        private: What only its submitter uses.
        shared: What the submitter uses for all pairs: that of the first.
        controller: Serves it.
    """

    def __init__(self, memory: np.ndarray, layout: Any, private: Private, shared: Private, controller: Any):
        start = memory.ctypes.data
        self.controller, self.ids = controller, layout.ids
        self._ended, self._bus = start + layout.ended, start + layout.staging
        self._end = memory[layout.ended :][:4].view(np.uint32)
        self._words = [
            start + layout.commands,
            start + layout.completions,
            start + layout.command_doorbell,
            start + layout.completion_doorbell,
            layout.depth,
            private.free_ids,
            private.landings,
            layout.ids,
            start + layout.staging,
            layout.slot_bytes,
            private.progress,
            shared.progress,
            shared.group_ended,
        ]
        self.submitted = self.completed = 0  # commands
        self._told = 0  # of those completed, what the doorbell was told of
        self.waiting: deque[Any] = deque()  # parts with commands that were not submitted

    @property
    def under_way(self) -> int:
        return self.submitted - self.completed

    def submit(self, part: Part, before: list[int], after: list[int]) -> list[int]:
        """Counts as many commands of ``part`` as there is room for.

        Args:
            before: Words of struct Submit between the queue and ``first``.
            after: Words after ``told``.

        Returns:
            A row of io_submit's table.
        """
        count = min(self.ids - self.under_way, part.stop - part.next)
        row = [*self._words, self._bus, *before, part.next, count, self.submitted, self.completed, self._told]
        self._told = self.completed
        self.submitted += count
        part.next += count
        return [*row, *after]

    def complete(self) -> list[int]:
        """Returns a row of io_complete's table: all commands under way, or, where others wait, some, so that some stay
        so.
        """
        most, refill = self.under_way, 0
        if self.waiting and most:
            most, refill = min(most, max(self.ids // 2, 1)), 1
        return [*self._words, self._ended, most, self.completed, refill]

    def end(self) -> None:
        """Has who takes completions give up."""
        self._end[0] = 1

    def close(self) -> None:
        self.controller.close()
        del self.controller, self._end
