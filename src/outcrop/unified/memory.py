"""The memory of unified tensors: in the host, pinned where it is or allocated so, read by a GPU in place.

A block is given back when the last tensor over it is gone, and used again, or freed, when no GPU reads it any more.
Without CUDA it is host memory as any other.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from outcrop.device.gpu import ADVICE, Fence, Gpu, seen_by, usable
from outcrop.errors import ArgumentError, DeviceError
from outcrop.unified.arena import Arena, Segment
from outcrop.unified.pinned import PinnedRanges, Registration
from outcrop.unified.uses import Uses

_KEPT_BYTES = 64 << 20  # of unused memory
_KEPT_PINNED_BYTES = 256 << 20  # the same where a GPU reads it, or as much as is in use: pinning is slow


@dataclass(eq=False)
class _Block:
    address: int
    num_bytes: int
    kind: str = "arena"  # or managed, or adopted
    memory: Any = None  # keeps it mapped where it was adopted: the tensor
    pinned: list[Registration] = field(default_factory=list)
    uses: Uses = field(default_factory=Uses)
    lease: weakref.ref[_Lease] | None = None

    @property
    def end(self) -> int:
        return self.address + self.num_bytes


class _Lease:
    """Keeps a block: held by the storage of the tensors over it, by way of a NumPy array."""

    def __init__(self, memory: Memory, block: _Block):
        self._memory, self._block = memory, block
        self.__array_interface__ = {
            "shape": (block.num_bytes,),
            "typestr": "|u1",
            "data": (block.address, False),
            "version": 3,
        }
        block.lease = weakref.ref(self)

    def __del__(self) -> None:
        if not sys.is_finalizing():  # the system takes everything
            self._memory._give_back(self._block)


class Memory:
    """Blocks of host memory that ``gpu`` can read (None: no GPU). Safe to use from several threads."""

    def __init__(self, gpu: Gpu | None):
        self.gpu = gpu
        self._process = os.getpid()
        self._blocks: dict[
            tuple[int, int], _Block
        ] = {}  # by address and size: leased, or not yet free of its readers
        self._pinned = PinnedRanges(gpu)
        kept = (_KEPT_BYTES, 0.0) if gpu is None else (_KEPT_PINNED_BYTES, 1.0)
        self._arena = Arena(self._pin, lambda segment: self._pinned.drop(segment.pinned), *kept)
        self._returned: deque[_Block] = deque()
        self._read: list[tuple[_Block, list[Fence]]] = []  # given back, perhaps read still
        self._lock = (
            threading.Lock()
        )  # a block is given back wherever the garbage collector runs: never waits for it

    def empty(
        self,
        size: tuple[int, ...],
        dtype: torch.dtype,
        *,
        strides: tuple[int, ...] | None = None,
        managed: bool = False,
    ) -> torch.Tensor:
        """Makes a plain CPU tensor in a block of its own.

        Args:
            strides: Those of a contiguous tensor unless given.
            managed: The driver may move it between host and GPU (see memAdvise); needs a GPU.

        Raises:
            DeviceError: So much memory cannot be pinned, or there is no GPU to manage it with.
        """
        if strides is None:
            strides = torch.empty(size, device="meta").stride()
        elements = math.prod(size) and 1 + sum((n - 1) * s for n, s in zip(size, strides, strict=True))
        return _over(self._take(elements * dtype.itemsize, managed), dtype, 0, size, strides)

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """Makes a plain CPU tensor over the memory of ``tensor``, pinned where it is as long as tensors lie over it.

        Raises:
            DeviceError: It cannot be pinned.
        """
        with torch._C.DisableTorchFunctionSubclass():
            storage = tensor.untyped_storage()
            address, num_bytes = storage.data_ptr(), storage.nbytes()
        if not num_bytes:
            return self.empty(tuple(tensor.shape), tensor.dtype)
        with self._held():
            known = self._blocks.get((address, num_bytes))
            lease = None if known is None or known.lease is None else known.lease()
            if lease is None:
                block = _Block(address, num_bytes, "adopted", tensor.detach())
                block.pinned = self._pinned.hold(address, num_bytes, block.memory)
                self._share_uses(block)
                self._blocks[address, num_bytes] = block
                lease = _Lease(self, block)
        return _over(lease, tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride())

    def owns(self, tensor: torch.Tensor) -> bool:
        return self._block_of(tensor) is not None

    def on_gpu(self, tensor: torch.Tensor, device: int, *, writes: bool = False) -> torch.Tensor:
        """Returns the memory of a tensor of :meth:`empty` or :meth:`adopt`, as GPU ``device`` sees it: no copy.

        For what the current stream of the device is given next, before which it waits for what other streams write
        there. The CPU, and memory that is used again, wait for the stream.

        Args:
            writes: The stream is to write it: call :meth:`wrote` when it has been given what does.

        Raises:
            DeviceError: There is no GPU.
            ArgumentError: The tensor is none of these.
        """
        gpu = self._needed_gpu()
        block = self._block_of(tensor)
        if block is None:
            raise ArgumentError(
                "the GPU cannot read this tensor in place: outcrop.unified.in_place() lets it"
            )
        use = block.uses.begin(gpu, gpu.stream(device), writes=writes)
        with torch._C.DisableTorchFunctionSubclass():
            return seen_by(gpu, tensor, device, keeping=(tensor, use))

    def wrote(self, tensor: torch.Tensor, device: int) -> None:
        """Notes that the current stream of ``device`` has been given what writes to the memory of ``tensor``."""
        block, gpu = self._block_of(tensor), self._needed_gpu()
        if block is not None:
            block.uses.wrote(gpu, gpu.stream(device))

    def wait(self, tensor: torch.Tensor, *, to_write: bool = False) -> bool:
        """Blocks until what GPUs were given that writes to the memory of ``tensor`` is done: the CPU may read it.

        Args:
            to_write: It may write it, too: also what reads is done.

        Returns:
            Whether there was something to wait for.
        """
        block = None if self.gpu is None else self._block_of(tensor)
        if block is None or self.gpu is None:
            return False
        return block.uses.wait(self.gpu, to_write=to_write)

    def synchronize(self, tensor: torch.Tensor) -> None:
        """Waits, as before writing, for all blocks that have memory in common with the storage of ``tensor``."""
        if self.gpu is None:
            return
        with torch._C.DisableTorchFunctionSubclass():
            storage = tensor.untyped_storage()
            start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        for block in list(self._blocks.values()):
            if block.address < end and start < block.end:
                block.uses.wait(self.gpu, to_write=True)

    def advise(self, tensor: torch.Tensor, advice: str, device: torch.device) -> int:
        """Calls cudaMemAdvise on the memory of ``tensor``; returns its error code.

        Raises:
            DeviceError: (a RuntimeError) The memory is not managed by CUDA.
            ArgumentError: The advice is unknown.
        """
        if advice not in ADVICE:
            raise ArgumentError(f"advice {advice!r} is unknown; known: {', '.join(ADVICE)}")
        gpu = self._needed_gpu()
        block = self._block_of(tensor)
        if block is None or block.kind != "managed":
            raise DeviceError(
                "memAdvise needs managed memory: create the tensor with outcrop.unified.device(managed=True)"
            )
        return gpu.advise(block.address, block.num_bytes, advice, device)

    def blocks(self) -> int:
        """Counts the blocks that tensors lie over, or a GPU may still read."""
        self.collect()
        return len({*self._blocks.values(), *(block for block, _ in self._read)})

    def mapped_bytes(self) -> int:
        """Counts the bytes of the segments that blocks are cut from, used or not."""
        return self._arena.mapped_bytes

    def collect(self, *, wait: bool = False, release: bool = False) -> None:
        """Frees what was given back and is no longer used by a GPU.

        Args:
            wait: For what a GPU still uses.
            release: All memory that is unused goes back to the system.
        """
        more = release or bool(self._returned or self._read)
        while more:
            # Called when a block is given back, perhaps while this thread or another is in here: that one goes on.
            if not self._lock.acquire(blocking=wait):
                return
            try:
                self._collect(wait)
                if release:
                    self._arena.trim()
            finally:
                self._lock.release()
            more = bool(self._returned) or (wait and bool(self._read))

    def _collect(self, wait: bool) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._read.append((block, [] if self.gpu is None else block.uses.fences(self.gpu)))
        reading, self._read = self._read, []
        for block, fences in reading:
            for fence in fences if wait else ():
                fence.synchronize()
            if all(fence.query() for fence in fences):
                self._release(block)
            else:
                self._read.append((block, fences))

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Holds the lock; who was turned away at it has left what he gave back."""
        with self._lock:
            yield
        if self._returned:
            self.collect()

    def _give_back(self, block: _Block) -> None:
        if os.getpid() != self._process:  # a forked child: the GPU is its parent's
            return
        self._returned.append(block)
        self.collect()

    def _take(self, num_bytes: int, managed: bool) -> _Lease:
        self.collect()
        cut = self._cut_managed if managed else self._cut
        try:
            return cut(num_bytes)
        except RuntimeError:  # there may be enough when what is unused is given back
            self.collect(wait=True, release=True)
            return cut(num_bytes)

    def _cut(self, num_bytes: int) -> _Lease:
        with self._held():
            block = _Block(*self._arena.take(num_bytes))
            self._blocks[block.address, block.num_bytes] = block
            return _Lease(self, block)

    def _cut_managed(self, num_bytes: int) -> _Lease:
        with self._held():
            size = max(num_bytes, mmap.PAGESIZE)
            block = _Block(self._needed_gpu().managed(size), size, "managed")
            self._blocks[block.address, size] = block
            return _Lease(self, block)

    def _pin(self, segment: Segment) -> list[Registration]:
        return self._pinned.hold(segment.address, segment.num_bytes, segment.mapped)

    def _share_uses(self, block: _Block) -> None:
        """Has who waits for one of two blocks that have memory in common wait for both."""
        if self.gpu is None:
            return
        for other in list(self._blocks.values()):
            if other.address < block.end and block.address < other.end and other.uses is not block.uses:
                block.uses.take_over(self.gpu, other.uses)
                other.uses = block.uses

    def _release(self, block: _Block) -> None:
        if self._blocks.get((block.address, block.num_bytes)) is block:  # none has been adopted in its place
            del self._blocks[block.address, block.num_bytes]
        if block.kind == "managed":
            self._needed_gpu().free_managed(block.address)
        elif block.kind == "arena":
            self._arena.give_back(block.address)
        else:
            self._pinned.drop(block.pinned)

    def _block_of(self, tensor: torch.Tensor) -> _Block | None:
        with torch._C.DisableTorchFunctionSubclass():
            storage = tensor.untyped_storage()
            return self._blocks.get((storage.data_ptr(), storage.nbytes()))

    def _needed_gpu(self) -> Gpu:
        if self.gpu is None:
            raise DeviceError("there is no GPU that could use this memory: no CUDA device is usable here")
        return self.gpu


def _over(
    lease: _Lease, dtype: torch.dtype, offset: int, size: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    storage = torch.from_numpy(np.asarray(lease)).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, offset, size, strides)


def host_memory() -> Memory:
    """Returns the memory of this process."""
    return _memory_of(os.getpid())


@cache
def _memory_of(process: int) -> Memory:
    del process  # a forked child cannot use its parent's GPU
    return Memory(usable())
