"""What GPUs have been given that reads or writes a piece of host memory, so that everyone waits for whom he has to.

A read is noted by its stream alone: a table that many batches gather from costs no fence per batch, and who writes to
it waits for all that the stream has been given by then. A write has a fence of its own. Streams of torch live as long
as the process; one of another library has to live as long as memory that it was given to read.
"""

from __future__ import annotations

import weakref
from typing import Any

from outcrop.device.gpu import Fence, Gpu


class Use:
    """Stands for a stream that may be given more work through a tensor, which keeps this: backward, say, which comes
    later.
    """


class Uses:
    """Knows the streams that read a piece of memory, and the fences behind which it has been written."""

    def __init__(self) -> None:
        self._reads: dict[Any, weakref.ref[Use]] = {}
        self._writes: dict[Any, Fence] = {}

    def begin(self, gpu: Gpu, stream: Any, *, writes: bool) -> Use:
        """Lets ``stream`` read the memory, or write it too: on the device it waits for what other streams do there.

        Returns:
            What has to be kept as long as the stream may be given work on the memory.
        """
        for other, fence in list(self._writes.items()):
            if other != stream and not fence.query():
                gpu.wait(stream, fence)
        for other in list(self._reads) if writes else ():
            if other != stream:
                gpu.wait(stream, gpu.fence(other))
        known = self._reads.get(stream)
        use = None if known is None else known()
        if use is None:
            use = Use()
            self._reads[stream] = weakref.ref(use)
        return use

    def wrote(self, gpu: Gpu, stream: Any) -> None:
        """Notes a write: to be called when ``stream`` has been given what writes."""
        self._writes[stream] = gpu.fence(stream)

    def wait(self, gpu: Gpu, *, to_write: bool) -> bool:
        """Blocks until the CPU may read the memory, or write it too; whether there was something to wait for."""
        writes = list(self._writes.items())
        for stream, fence in writes:
            fence.synchronize()
            if self._writes.get(stream) is fence:
                del self._writes[stream]
        reads = list(self._reads.items()) if to_write else []
        ended = [(stream, use) for stream, use in reads if use() is None]
        for stream, _ in reads:
            gpu.fence(stream).synchronize()
        for stream, use in ended:
            if self._reads.get(stream) is use:
                del self._reads[stream]
        return bool(writes or reads)

    def fences(self, gpu: Gpu) -> list[Fence]:
        """Returns fences that are passed when all is done that has been given by now."""
        return [gpu.fence(stream) for stream in list(self._reads)] + list(self._writes.values())

    def take_over(self, gpu: Gpu, other: Uses) -> None:
        """Adds what ``other`` knows."""
        for stream, use in other._reads.items():
            known = self._reads.get(stream)
            if known is None or known() is None:
                self._reads[stream] = use
        for stream, fence in other._writes.items():
            self._writes[stream] = gpu.fence(stream) if stream in self._writes else fence
