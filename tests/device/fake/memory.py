"""Memory of the fake GPU: blocks as torch's caching allocator hands them out, and pages of the host that it can read.

A block that is freed is handed out again at once on the stream that it was allocated on, where the order of work makes
that safe; work of another stream that still uses it is not waited for, unless the block was recorded there. What work
finds in a new block is junk.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import sys
import weakref
from collections import defaultdict

import numpy as np

from fake.streams import Fence, Span, Stream, Streams, Work
from outcrop.errors import DeviceError

_NO_RESERVE = 0x4000
_RESERVED_BYTES = 64 << 30  # of addresses, which are never used twice for different sizes
_LEAST_BYTES = 512
_JUNK = 0xFF  # not a number, or -1
ALREADY_REGISTERED, NOT_REGISTERED = 712, 713


class Block:
    """Device memory. ``size`` bytes of addresses, of which ``num_bytes`` were asked for."""

    def __init__(self, address: int, size: int, stream: Stream):
        self.address, self.size, self.stream, self.num_bytes = address, size, stream, 0
        self.storage = 0  # of the tensor that it was allocated for
        self.users: set[Stream] = set()  # recorded


class Owner:
    """Held by the storage of a tensor: frees its block."""

    def __init__(self, allocator: Allocator, block: Block):
        self._allocator, self._block = allocator, block

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._allocator.free(self._block)


class Allocator:
    """Attributes:
    now_bytes, peak_bytes: Of tensors, as the host sees it.
    """

    def __init__(self, streams: Streams):
        self._streams, self._process = streams, os.getpid()
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._arena = mmap.mmap(-1, _RESERVED_BYTES, flags=flags)
        self._start = np.frombuffer(self._arena, np.uint8).ctypes.data
        self._used = 0
        self._starts: list[int] = []  # of all blocks there ever were
        self._live: dict[int, int] = {}  # bytes by address, in the order of work
        self._blocks: dict[int, Block] = {}  # by address, as the host sees it
        self._free: weakref.WeakKeyDictionary[Stream, dict[int, list[Block]]] = weakref.WeakKeyDictionary()
        self._orphans: dict[int, list[Block]] = defaultdict(list)  # of streams that are gone
        self._recorded: list[tuple[Block, list[Fence]]] = []
        self.now_bytes = self.peak_bytes = 0

    def allocate(self, num_bytes: int) -> tuple[Block, Owner]:
        num_bytes = max(num_bytes, 1)
        size = max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        with self._streams.lock:
            stream = self._streams.current
            self._look_at_recorded()
            block, used = self._found(stream, size)
            block.num_bytes = num_bytes
            self.now_bytes += num_bytes
            self.peak_bytes = max(self.peak_bytes, self.now_bytes)
            self._blocks[block.address] = block
            address = block.address
            if used:  # until then it is its former owner's
                self._streams.give(
                    stream, Work("allocation", lambda: self._begin(address, num_bytes), note=True)
                )
            else:
                self._begin(address, num_bytes)
            return block, Owner(self, block)

    def free(self, block: Block) -> None:
        """Of the host: work that was queued on the block's stream may still use it."""
        if os.getpid() != self._process:
            return
        with self._streams.lock:
            self.now_bytes -= block.num_bytes
            del self._blocks[block.address]
            users, block.users = block.users - {block.stream}, set()
            if users:
                self._recorded.append((block, [Fence(self._streams, user) for user in users]))
            else:
                self._hand_back(block)

    def record(self, address: int, storage: int, stream: Stream) -> None:
        """As Tensor.record_stream, which leaves tensors alone whose storage is not the allocator's (by DLPack)."""
        with self._streams.lock:
            block = self._blocks.get(address)
            if block is not None and block.storage == storage:
                block.users.add(stream)

    def holds(self, span: Span) -> bool:
        """Whether it lies in a block that work may use now."""
        at = bisect.bisect_right(self._starts, span.address) - 1
        if at < 0:
            return False
        start = self._starts[at]
        return span.address + span.num_bytes <= start + self._live.get(start, 0)

    def is_device(self, address: int) -> bool:
        return self._start <= address < self._start + self._used

    def _found(self, stream: Stream, size: int) -> tuple[Block, bool]:
        """A block, and whether work that was queued before may use it still."""
        for pool in (self._free.get(stream, {}), self._orphans):
            if pool.get(size):
                block = pool[size].pop()  # the last one freed
                block.stream = stream
                return block, pool is not self._orphans
        if self._used + size > _RESERVED_BYTES:
            raise MemoryError("the fake GPU has no addresses left")
        block = Block(self._start + self._used, size, stream)
        self._used += size
        self._starts.append(block.address)
        return block, False

    def _hand_back(self, block: Block) -> None:
        address, stream = block.address, block.stream
        self._streams.give(stream, Work("free", lambda: self._live.pop(address, None), note=True))
        if stream not in self._free:
            pool = self._free[stream] = defaultdict(list)
            weakref.finalize(stream, _leave, self._orphans, pool)
        self._free[stream][block.size].append(block)
        block.stream = self._streams.default  # a pool does not keep its stream

    def _look_at_recorded(self) -> None:
        waiting, self._recorded = self._recorded, []
        for block, fences in waiting:
            if all(fence.passed for fence in fences):
                self._hand_back(block)
            else:
                self._recorded.append((block, fences))

    def _begin(self, address: int, num_bytes: int) -> None:
        self._live[address] = num_bytes
        ctypes.memset(address, _JUNK, num_bytes)


def _leave(orphans: dict[int, list[Block]], pool: dict[int, list[Block]]) -> None:
    for size, blocks in pool.items():
        orphans[size].extend(blocks)


class HostRanges:
    """Host memory that is registered, by the byte.

    Attributes:
        last_error: CUDA's, until a call that checks it; 0: none.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._starts: list[int] = []
        self.last_error = 0

    def register(self, address: int, num_bytes: int) -> None:
        """Raises: DeviceError: Some of it is registered."""
        for at, size in self._sizes.items():
            if address < at + size and at < address + num_bytes:
                self.last_error = ALREADY_REGISTERED
                raise DeviceError(
                    f"{num_bytes} bytes of host memory cannot be pinned for the GPU "
                    f"(CUDA error {ALREADY_REGISTERED}: {size} bytes at {at:#x} overlap); use less"
                )
        self._sizes[address] = num_bytes
        bisect.insort(self._starts, address)

    def unregister(self, address: int) -> int:
        """CUDA's error code."""
        if address not in self._sizes:
            self.last_error = NOT_REGISTERED
            return NOT_REGISTERED
        del self._sizes[address]
        self._starts.remove(address)
        return 0

    def span(self, address: int) -> Span | None:
        return Span(address, self._sizes[address]) if address in self._sizes else None

    def crossed(self, span: Span) -> bool:
        """Whether it begins in a range and goes past its end, which copies may not."""
        index = bisect.bisect_right(self._starts, span.address) - 1
        reached = 0 if index < 0 else self._starts[index] + self._sizes[self._starts[index]]
        return span.address < reached < span.address + span.num_bytes

    def holds(self, span: Span) -> bool:
        """Whether all of it is registered, perhaps in several neighbours."""
        at, end = span.address, span.address + span.num_bytes
        while at < end:
            index = bisect.bisect_right(self._starts, at) - 1
            if index < 0:
                return False
            start = self._starts[index]
            reached = start + self._sizes[start]
            if reached <= at:
                return False
            at = reached
        return True
