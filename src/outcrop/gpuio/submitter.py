"""Who submits and completes: kernels on a GPU, or their twin on the CPU; and where that keeps what only it uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from outcrop import _core
from outcrop.device.gpu import Gpu

if TYPE_CHECKING:
    import torch

_COMPLETING_WARPS = 256  # at most: waiting takes no more of a GPU than 32 blocks


class Place(Protocol):
    """Rows on their way to where the caller wants them."""

    address: int
    direct: bool  # rows of it that are not asked for stay as they are

    def arrived(self) -> None:
        """All rows are there."""


class Submitter(Protocol):
    """Runs what kernels/io_queue.h describes: submissions in the order of the calls, beside completing."""

    free_ids: int  # addresses
    landings: int
    progress: int

    def given(self, numbers: np.ndarray) -> tuple[int, Any]:
        """The address of ``numbers``, and what keeps it."""
        ...

    def place(self, out: Any) -> Place: ...

    def catch_up(self) -> None:
        """What is submitted from now on comes after what the current stream was given: it may use the memory that
        kernels are to write."""
        ...

    def submit(self, arguments: list[int]) -> None: ...

    def complete(self, arguments: list[int], most: int) -> tuple[np.ndarray, bool]:
        """Waits for all that it does.

        Returns:
            uint32 [completions that it took, 4], each an Outcome; and whether the rings are lost.
        """
        ...

    def close(self) -> None: ...


class _InPlace:
    direct = True

    def __init__(self, address: int):
        self.address = address

    def arrived(self) -> None: ...


class Twin:
    """:class:`Submitter` on the CPU.

    Args:
        memory: Of the queue, uint8.
    """

    def __init__(self, memory: np.ndarray, layout: Any):
        start = memory.ctypes.data
        self.free_ids, self.landings = start + layout.free_ids, start + layout.landings
        self.progress = start + layout.progress
        memory[layout.free_ids :][: 2 * layout.ids].view(np.uint16)[:] = np.arange(layout.ids)
        self._progress = memory[layout.progress :][: 4 * _words(layout.ids)].view(np.uint32)

    def given(self, numbers: np.ndarray) -> tuple[int, Any]:
        return numbers.ctypes.data, numbers

    def place(self, out: np.ndarray) -> Place:
        return _InPlace(out.ctypes.data)

    def catch_up(self) -> None: ...

    def submit(self, arguments: list[int]) -> None:
        _core.twin_io_submit(arguments)

    def complete(self, arguments: list[int], most: int) -> tuple[np.ndarray, bool]:
        _core.twin_io_complete(arguments)
        return _outcomes(self._progress)

    def close(self) -> None: ...


def _words(ids: int) -> int:
    """Of struct Progress and its outcomes, uint32."""
    return 4 + 4 * ids


def _outcomes(progress: np.ndarray) -> tuple[np.ndarray, bool]:
    lost, claimed = progress[:2]
    return progress[4:].reshape(-1, 4)[:claimed].copy(), bool(lost)


class Kernels:
    """:class:`Submitter` on a GPU. The memory of the queue is pinned.

    Submissions, and copies for the caller, have a stream; completions, which may wait long for a disk, have another
    that waits for the submissions they need.
    """

    def __init__(self, gpu: Gpu, device: torch.device, memory: np.ndarray, layout: Any):
        import torch

        from outcrop.unified import in_place

        self._gpu, self._device = gpu, device
        self._stream, self._completing = (gpu.new_stream(device.index or 0) for _ in range(2))
        self._pinned: Any = in_place(memory)
        with gpu.on_stream(self._stream):
            numbers = np.arange(layout.ids, dtype=np.uint16).view(np.int16)
            self._free_ids = torch.from_numpy(numbers).to(device)
            self._landings = torch.zeros(_core.LANDING_BYTES * layout.ids, dtype=torch.uint8, device=device)
            words = _core.progress_bytes(layout.ids) // 4
            self._progress = torch.zeros(words, dtype=torch.int32, device=device)
        self.free_ids, self.landings = self._free_ids.data_ptr(), self._landings.data_ptr()
        self.progress, self._read = self._progress.data_ptr(), _words(layout.ids)

    def given(self, numbers: np.ndarray) -> tuple[int, Any]:
        import torch

        with self._gpu.on_stream(self._stream):
            there = torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy()).to(self._device)
        return there.data_ptr(), there

    def place(self, out: Any) -> Place:
        return _OnGpu(self, out)

    def submit(self, arguments: list[int]) -> None:
        with self._gpu.on_stream(self._stream):
            self._gpu.launch("io_queue", "io_submit", self._device, 1, arguments)

    def complete(self, arguments: list[int], most: int) -> tuple[np.ndarray, bool]:
        self._gpu.wait(self._completing, self._gpu.fence(self._stream))
        with self._gpu.on_stream(self._completing):
            self._progress[1:3].zero_()
            self._gpu.launch("io_queue", "io_complete", self._device, min(most, _COMPLETING_WARPS), arguments)
            found = self._progress[: self._read].cpu().numpy().view(np.uint32)
        return _outcomes(found)

    def close(self) -> None:
        self._gpu.fence(self._stream).synchronize()
        self._gpu.fence(self._completing).synchronize()
        self._pinned = None

    def catch_up(self) -> None:
        self._gpu.wait(self._stream, self._gpu.fence(self._gpu.stream(self._device.index or 0)))

    def rows(self, count: int) -> torch.Tensor:
        """uint8 [count] on the device."""
        import torch

        with self._gpu.on_stream(self._stream):
            return torch.empty(count, dtype=torch.uint8, device=self._device)

    def fetch(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        with self._gpu.on_stream(self._stream):
            out.copy_(rows)
        self._gpu.fence(self._stream).synchronize()


class _OnGpu:
    """Rows that a kernel writes: to a tensor of the GPU, to pinned memory, or to other memory by way of the GPU's."""

    def __init__(self, kernels: Kernels, out: Any):
        import torch

        self._kernels, self._rows = kernels, None
        self._out: Any = torch.from_numpy(out) if isinstance(out, np.ndarray) else out
        if self._out.is_cpu and not self._out.is_pinned():
            self._rows = kernels.rows(self._out.numel())
        self.direct = self._rows is None
        self.address = (self._out if self._rows is None else self._rows).data_ptr()

    def arrived(self) -> None:
        if self._rows is not None:
            self._kernels.fetch(self._rows, self._out)
            self._rows = None
