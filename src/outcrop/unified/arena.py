"""Cuts blocks from large segments of host memory, and joins them again: mapping and pinning are slow (about 1 ms for
4 MiB), so that what is free is kept for the next block. Segments have the sizes of those of PyTorch's allocators.
"""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outcrop.errors import DeviceError

_MIB = 1 << 20
_SMALL = 1 * _MIB  # blocks up to this share segments of their own
_SMALL_SEGMENT, _MEDIUM_SEGMENT, _ROUND = 2 * _MIB, 20 * _MIB, 2 * _MIB
_MEDIUM = 10 * _MIB  # blocks up to this are cut from segments of _MEDIUM_SEGMENT


@dataclass(eq=False)
class Segment:
    """Describes memory as the system gave it."""

    address: int
    num_bytes: int
    mapped: mmap.mmap
    small: bool = False
    pinned: Any = None  # what pinning it gave
    used: dict[int, int] = field(default_factory=dict)  # bytes by address
    gaps: dict[int, int] = field(default_factory=dict)  # bytes of what is free, by address
    gap_at_end: dict[int, int] = field(default_factory=dict)  # its address, by where it ends


class Arena:
    """Divides host memory into blocks of whole pages. For one thread at a time.

    Args:
        pin: Called with a new segment, for ``Segment.pinned``.
        unpin: Called with a segment before it goes back to the system.
        kept_bytes, kept_share: Unused memory is kept up to so many bytes, or this share of what is in use.
    """

    def __init__(
        self,
        pin: Callable[[Segment], Any],
        unpin: Callable[[Segment], None],
        kept_bytes: int,
        kept_share: float,
    ):
        self._pin, self._unpin = pin, unpin
        self._kept_bytes, self._kept_share = kept_bytes, kept_share
        self._segments: list[Segment] = []  # by address
        # (bytes, address) of what is free, by pool: large blocks, small ones
        self._free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._idle: dict[Segment, None] = {}  # wholly free, the longest so first
        self.mapped_bytes = self.used_bytes = 0

    def take(self, num_bytes: int) -> tuple[int, int]:
        """Takes the smallest free block that has room, cut to size.

        Returns:
            Its address, and its bytes: whole pages.

        Raises:
            DeviceError: The system has no such memory, or it cannot be pinned.
        """
        size = max(1, -(-num_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        small = size <= _SMALL
        free = self._free[small]
        at = bisect.bisect_left(free, (size, 0))
        if at == len(free):
            self._grow(size, small)
            at = bisect.bisect_left(free, (size, 0))
        room, address = free[at]
        segment = self._segment_of(address)
        self._remove_gap(segment, address)
        if room > size:
            self._add_gap(segment, address + size, room - size)
        self._idle.pop(segment, None)
        segment.used[address] = size
        self.used_bytes += size
        return address, size

    def give_back(self, address: int) -> None:
        """Joins a block that nothing reads or writes any more with what is free beside it."""
        segment = self._segment_of(address)
        size = segment.used.pop(address)
        self.used_bytes -= size
        if address + size in segment.gaps:
            size += self._remove_gap(segment, address + size)
        if address in segment.gap_at_end:
            before = segment.gap_at_end[address]
            address, size = before, size + self._remove_gap(segment, before)
        self._add_gap(segment, address, size)
        if not segment.used:
            self._idle[segment] = None
            self.trim(max(self._kept_bytes, int(self._kept_share * self.used_bytes)))

    def trim(self, kept_bytes: int = 0) -> None:
        """Gives unused segments to the system, the longest unused first, until ``kept_bytes`` are unused or none is."""
        for segment in list(self._idle):
            if self.mapped_bytes - self.used_bytes <= kept_bytes:
                return
            self._unpin(segment)
            del self._idle[segment]
            self._segments.remove(segment)
            self._remove_gap(segment, segment.address)
            self.mapped_bytes -= segment.num_bytes

    def _grow(self, size: int, small: bool) -> None:
        num_bytes = (
            _SMALL_SEGMENT if small else _MEDIUM_SEGMENT if size <= _MEDIUM else -(-size // _ROUND) * _ROUND
        )
        try:
            mapped = mmap.mmap(-1, num_bytes)
        except OSError as error:
            raise DeviceError(
                f"{num_bytes} bytes of host memory cannot be had ({error}); use less, or raise the limit on memory"
            ) from None
        made = Segment(np.frombuffer(mapped, np.uint8).ctypes.data, num_bytes, mapped, small=small)
        made.pinned = self._pin(made)
        bisect.insort(self._segments, made, key=lambda x: x.address)
        self._idle[made] = None
        self._add_gap(made, made.address, num_bytes)
        self.mapped_bytes += num_bytes

    def _add_gap(self, segment: Segment, address: int, size: int) -> None:
        segment.gaps[address] = size
        segment.gap_at_end[address + size] = address
        bisect.insort(self._free[segment.small], (size, address))

    def _remove_gap(self, segment: Segment, address: int) -> int:
        size = segment.gaps.pop(address)
        del segment.gap_at_end[address + size]
        free = self._free[segment.small]
        free.pop(bisect.bisect_left(free, (size, address)))
        return size

    def _segment_of(self, address: int) -> Segment:
        return self._segments[bisect.bisect_right(self._segments, address, key=lambda x: x.address) - 1]
