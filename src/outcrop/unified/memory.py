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
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from outcrop.device.gpu import ADVICE, Fence, Gpu, seen_by, usable
from outcrop.errors import ArgumentError, DeviceError

_POOLED_MAX = 1 << 20  # bytes; larger blocks go back to the system
_KEPT_BYTES = 64 << 20  # of free blocks


@dataclass(eq=False)
class _Block:
    address: int
    num_bytes: int
    managed: bool = False
    memory: Any = None  # keeps it mapped: an mmap, or the tensor whose storage was adopted
    adopted: bool = False
    streams: set[Any] = field(default_factory=set)  # that were given work on it
    lease: weakref.ref[_Lease] | None = None


class _Lease:
    """Held by the storage of the tensors over a block, by way of a NumPy array."""

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
        self._blocks: dict[int, _Block] = {}  # by address: leased, or not yet free of its readers
        self._free: dict[int, list[_Block]] = {}  # by size
        self._free_bytes = 0
        self._returned: deque[_Block] = deque()
        self._read: list[tuple[_Block, list[Fence]]] = []  # given back, perhaps read still
        self._lock = threading.RLock()

    def empty(
        self,
        size: tuple[int, ...],
        dtype: torch.dtype,
        *,
        strides: tuple[int, ...] | None = None,
        managed: bool = False,
    ) -> torch.Tensor:
        """A plain CPU tensor in a block of its own.

        Args:
            strides: Those of a contiguous tensor unless given.
            managed: The driver may move it between host and GPU (see memAdvise); needs a GPU.

        Raises:
            DeviceError: So much memory cannot be pinned, or there is no GPU to manage it with.
        """
        if strides is None:
            strides = torch.empty(size, device="meta").stride()
        elements = math.prod(size) and 1 + sum((n - 1) * s for n, s in zip(size, strides, strict=True))
        lease = _Lease(self, self._take(elements * dtype.itemsize, managed))
        return _over(lease, dtype, 0, size, strides)

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """A plain CPU tensor over the memory of ``tensor``, pinned where it is as long as tensors lie over it.

        Raises:
            DeviceError: It cannot be pinned.
        """
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if not storage.nbytes():
            return self.empty(tuple(tensor.shape), tensor.dtype)
        with self._lock:
            block = self._blocks.get(address)
            lease = block.lease() if block is not None and block.lease is not None else None
            if lease is None:
                if block is not None:  # of before, still pinned
                    self.collect(wait=True)
                block = _Block(address, storage.nbytes(), memory=tensor.detach(), adopted=True)
                if self.gpu is not None:
                    self.gpu.register(block.address, block.num_bytes)
                self._blocks[address] = block
                lease = _Lease(self, block)
        return _over(lease, tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride())

    def owns(self, tensor: torch.Tensor) -> bool:
        return self._block_of(tensor) is not None

    def on_gpu(self, tensor: torch.Tensor, device: int) -> torch.Tensor:
        """The memory of a tensor of :meth:`empty` or :meth:`adopt`, as GPU ``device`` sees it: no copy.

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
        block.streams.add(gpu.stream(device))
        return seen_by(gpu, tensor, device)

    def advise(self, tensor: torch.Tensor, advice: str, device: torch.device) -> int:
        """cudaMemAdvise on the memory of ``tensor``; its error code.

        Raises:
            DeviceError: (a RuntimeError) The memory is not managed by CUDA.
            ArgumentError: The advice is unknown.
        """
        if advice not in ADVICE:
            raise ArgumentError(f"advice {advice!r} is unknown; known: {', '.join(ADVICE)}")
        gpu = self._needed_gpu()
        block = self._block_of(tensor)
        if block is None or not block.managed:
            raise DeviceError(
                "memAdvise needs managed memory: create the tensor with outcrop.unified.device(managed=True)"
            )
        return gpu.advise(block.address, block.num_bytes, advice, device)

    def blocks(self) -> int:
        """How many blocks tensors lie over, or a GPU may still read."""
        self.collect()
        return len(self._blocks)

    def collect(self, *, wait: bool = False) -> None:
        """Frees what was given back and is no longer read; with ``wait``, all that was given back."""
        more = bool(self._returned or self._read)
        while more:
            # Called when a block is given back, perhaps while this thread or another is in here: that one goes on.
            if not self._lock.acquire(blocking=wait):
                return
            try:
                self._collect(wait)
            finally:
                self._lock.release()
            more = bool(self._returned) or (wait and bool(self._read))

    def _collect(self, wait: bool) -> None:
        while self._returned:
            block = self._returned.popleft()
            fences = [] if self.gpu is None else [self.gpu.fence(stream) for stream in block.streams]
            self._read.append((block, fences))
        reading, self._read = self._read, []
        for block, fences in reading:
            for fence in fences if wait else ():
                fence.synchronize()
            if all(fence.query() for fence in fences):
                self._release(block)
            else:
                self._read.append((block, fences))

    def _give_back(self, block: _Block) -> None:
        if os.getpid() != self._process:  # a forked child: the GPU is its parent's
            return
        self._returned.append(block)
        self.collect()

    def _take(self, num_bytes: int, managed: bool) -> _Block:
        size = max(mmap.PAGESIZE, num_bytes)
        size = 1 << (size - 1).bit_length() if size <= _POOLED_MAX else size
        self.collect()
        with self._lock:
            if managed:
                gpu = self._needed_gpu()
                block = _Block(gpu.managed(size), size, managed=True)
            elif self._free.get(size):
                block = self._free[size].pop()
                self._free_bytes -= size
                block.streams = set()
            else:
                mapped = mmap.mmap(-1, size)
                block = _Block(np.frombuffer(mapped, np.uint8).ctypes.data, size, memory=mapped)
                if self.gpu is not None:
                    self.gpu.register(block.address, size)
            self._blocks[block.address] = block
            return block

    def _release(self, block: _Block) -> None:
        del self._blocks[block.address]
        if block.managed:
            self._needed_gpu().free_managed(block.address)
        elif (
            not block.adopted
            and block.num_bytes <= _POOLED_MAX
            and self._free_bytes + block.num_bytes <= _KEPT_BYTES
        ):
            self._free.setdefault(block.num_bytes, []).append(block)
            self._free_bytes += block.num_bytes
        elif self.gpu is not None:
            self.gpu.unregister(block.address)

    def _block_of(self, tensor: torch.Tensor) -> _Block | None:
        return self._blocks.get(tensor.untyped_storage().data_ptr())

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
    """That of this process."""
    return _memory_of(os.getpid())


@cache
def _memory_of(process: int) -> Memory:
    del process  # a forked child cannot use its parent's GPU
    return Memory(usable())
