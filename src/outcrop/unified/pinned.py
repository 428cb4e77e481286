"""Pins host memory for a GPU: the bytes that were asked for and no others, each once, as long as somebody holds it.

What CUDA 13 does, as measured on an H200:

- cudaHostRegister takes any bytes, and refuses those of which some are registered (error 712). Ranges that share a page
  do not disturb each other. cudaHostUnregister takes the address that was registered.
- A copy of host memory that begins in a registered range and goes past its end fails ("invalid argument"), into another
  registered range, too. One that begins before such a range, or has nothing of it, works.

So nothing is rounded up to pages: in the page where a small tensor ends another begins, and to copy that one, which
knows nothing of this, would fail. What overlaps with a range that is held registers only the rest of it. Kernels then
read all of it; a copy by torch that goes over the border fails, so :func:`outcrop.unified.in_place` pins whole arrays.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any

from outcrop.device.gpu import Gpu


@dataclass(eq=False)
class Registration:
    """Describes the bytes from ``start`` up to ``end``, which the GPU knows by ``start``."""

    start: int
    end: int
    memory: Any
    holders: int = 0


class PinnedRanges:
    """Knows the ranges that are registered with ``gpu`` (None: there is none, and nothing is). For one thread at
    a time.
    """

    def __init__(self, gpu: Gpu | None):
        self._gpu = gpu
        self._registered: list[Registration] = []  # by address; they do not overlap

    def hold(self, address: int, num_bytes: int, memory: Any) -> list[Registration]:
        """Registers what is not registered yet of a range.

        Args:
            memory: Keeps the range mapped. It is kept with what is registered here, which stays registered, and must
                stay mapped, until the last range that has a part of it is dropped.

        Returns:
            All registrations that cover the range, for :meth:`drop`.

        Raises:
            DeviceError: The GPU refuses; what was registered for the range is not any more.
        """
        if self._gpu is None:
            return []
        start, end = address, address + num_bytes
        held: list[Registration] = []
        try:
            for known in [*self._between(start, end), None]:
                stop = end if known is None else known.start
                if start < stop:
                    held.append(self._register(start, stop, memory))
                if known is not None:
                    known.holders += 1
                    held.append(known)
                    start = known.end
        except BaseException:
            self.drop(held)
            raise
        return held

    def drop(self, held: list[Registration]) -> None:
        """Ends what :meth:`hold` began; the GPU has to be done with the range, which nobody may hold twice."""
        for known in held:
            known.holders -= 1
            if known.holders == 0:
                assert self._gpu is not None
                self._registered.remove(known)
                self._gpu.unregister(known.start)

    def _between(self, start: int, end: int) -> list[Registration]:
        first = bisect.bisect_right(self._registered, start, key=lambda known: known.end)
        last = bisect.bisect_left(self._registered, end, key=lambda known: known.start)
        return self._registered[first:last]

    def _register(self, start: int, end: int, memory: Any) -> Registration:
        assert self._gpu is not None
        self._gpu.register(start, end - start)
        made = Registration(start, end, memory, holders=1)
        bisect.insort(self._registered, made, key=lambda known: known.start)
        return made
