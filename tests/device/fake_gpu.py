"""A GPU that is none: torch's PrivateUse1 device over host memory, computing by the CPU, late and strict as CUDA is.

What it is asked for runs late, in an order that its schedule chooses among those that CUDA allows (fake/streams.py);
freed memory is handed out again at once (fake/memory.py). Its memory is apart: an operation that mixes its tensors with
CPU tensors (other than scalars) fails, and so does one on host memory that is not registered when it runs. Work that
fails makes every later call fail. For a process of its own: the device type stays.
"""

from __future__ import annotations

import mmap
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from fake.kernels import work_of
from fake.memory import Allocator, HostRanges
from fake.operators import DLPACK_EXTENSION, NAME, Operators
from fake.streams import Fence, Schedule, Span, Stream, Streams, Work

_BYTES = 1 << 30


class FakeGpu:
    """outcrop.device.gpu.Gpu

    Attributes:
        ran: Operators of torch that were called.
    """

    type, dlpack = NAME, DLPACK_EXTENSION

    def __init__(self) -> None:
        self.streams = Streams(Schedule())
        self.allocator = Allocator(self.streams)
        self.ranges = HostRanges()
        self.operators = Operators(self)
        self.managed_memory: dict[int, mmap.mmap] = {}
        self.ran: list[str] = []

    @property
    def syncs(self) -> int:
        """How often the host waited for the device: fences, numbers, blocking copies, shapes that depend on data."""
        return len(self.streams.waits)

    # What outcrop.device.gpu.Gpu says

    def register(self, address: int, num_bytes: int) -> None:
        with self.streams.lock:
            self.ranges.register(address, num_bytes)

    def unregister(self, address: int) -> None:
        with self.streams.lock:
            span = self.ranges.span(address)
            reading = None if span is None else self.streams.pending_on(span)
            self.ranges.unregister(address)
            if reading is not None:
                self.streams.error = f"{reading.name} is to touch host memory that is registered no more"
                self.streams.check()

    def managed(self, num_bytes: int) -> int:
        memory = mmap.mmap(-1, num_bytes)
        address = np.frombuffer(memory, np.uint8).ctypes.data
        self.managed_memory[address] = memory
        FakeGpu.register(self, address, num_bytes)
        return address

    def free_managed(self, address: int) -> None:
        """Waits for the device, as cudaFree."""
        self.streams.drain()
        FakeGpu.unregister(self, address)
        del self.managed_memory[address]

    def advise(self, address: int, num_bytes: int, advice: str, device: torch.device) -> int:
        assert address in self.managed_memory
        return 0

    def current(self) -> int:
        return 0

    def count(self) -> int:
        return 1

    def memory(self, device: int) -> tuple[int, int]:
        return _BYTES - self.allocator.now_bytes, _BYTES

    def peak_bytes(self, device: int) -> int:
        return self.allocator.peak_bytes

    def new_stream(self, device: int, *, low_priority: bool = False, high_priority: bool = False) -> Stream:
        return self.streams.new(low_priority=low_priority)

    def on_stream(self, stream: Stream) -> AbstractContextManager[Any]:
        return self.streams.on(stream)

    def stream(self, device: int) -> Stream:
        return self.streams.current

    def fence(self, stream: Stream) -> Any:
        with self.streams.called():
            return Fence(self.streams, stream)

    def wait(self, stream: Stream, fence: Fence) -> None:
        with self.streams.called():
            if not fence.passed:
                self.streams.give(stream, Work("wait", lambda: None, after=fence))

    def record(self, tensor: torch.Tensor, stream: Stream) -> None:
        storage = tensor.untyped_storage()
        self.allocator.record(storage.data_ptr(), storage._cdata, stream)

    def launch(
        self,
        name: str,
        entry: str,
        device: torch.device,
        warps: int,
        arguments: list[int],
        most_blocks: int = 0,
        block_threads: int = 256,
    ) -> None:
        """The CPU kernel, later."""
        self.give(work_of(name, entry, warps, arguments))

    # What operators ask

    def called(self, operator: str) -> None:
        """By torch, whose check of a launch raises what an earlier call left behind."""
        self.ran.append(operator)
        error, self.ranges.last_error = self.ranges.last_error, 0
        if error:
            raise RuntimeError(f"CUDA error: {error}, of an earlier call")

    def give(self, work: Work) -> None:
        """Queues it on the current stream of the calling thread."""
        with self.streams.called():
            self.streams.give(self.streams.current, replace(work, run=lambda: self._run(work)))

    def wait_for_current(self, name: str) -> None:
        with self.streams.called():
            self.streams.host_wait(name, self.streams.current)

    def check(self, span: Span) -> None:
        """Whether this GPU could touch this now."""
        if not span.num_bytes or self.ranges.holds(span) or self.allocator.holds(span):
            return
        if self.allocator.is_device(span.address):
            raise MemoryError(f"{span.num_bytes} bytes at {span.address:#x} that were freed are used")
        raise MemoryError(f"an illegal memory access: {span.num_bytes} bytes at {span.address:#x}")

    def _run(self, work: Work) -> None:
        for span in work.spans:
            self.check(span)
        work.run()

    def settle(self) -> str | None:
        """Runs everything, and forgets what failed, which it returns: a context anew."""
        self.streams.drain()
        error, self.streams.error, self.ranges.last_error = self.streams.error, None, 0
        return error
