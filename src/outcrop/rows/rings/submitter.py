"""Who submits and completes: kernels on a GPU, or those of the CPU; and where that keeps what only it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import outcrop._core as _core
from outcrop.device.gpu import Fence, Gpu
from outcrop.device.launch import BLOCK_THREADS, WARP
from outcrop.runtime.pages import PAGE_BYTES

if TYPE_CHECKING:
    import torch

COMPLETING_BLOCKS = 8  # at most: waiting takes no more of a GPU; on an H200 two took what a disk gave
_MOST = -3  # of a row of io_complete's table: how many completions are taken
_TABLES = 16  # submissions that may be queued on the GPU before the host waits for one


def table_bytes(num_queues: int) -> int:
    """Counts the bytes of memory for the tables that a GPU has yet to read, behind the memory of the queues."""
    words = (_TABLES * _core.SUBMIT_WORDS + _core.COMPLETE_WORDS) * num_queues
    return -(-words * 8 // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True)
class Private:
    """Holds addresses of what only the submitter of a queue uses.

    Attributes:
        group_ended: Address of the counts of groups, which the first queue has for all.
    """

    free_ids: int
    landings: int
    progress: int
    group_ended: int


class Place(Protocol):
    """Describes where rows on their way are wanted by the caller."""

    address: int
    direct: bool  # rows of it that are not asked for stay as they are

    def arrived(self) -> None:
        """Does what is left to do when all rows are there."""


class Submitter(Protocol):
    """Runs what kernels/io_queue.h describes: submissions in the order of the calls, beside completing."""

    private: list[Private]  # of each queue

    def given(self, numbers: Any) -> tuple[int, Any]:
        """Returns the address of ``numbers``, and what keeps it: an array, or, with a GPU, a tensor of it that is
        computed.
        """
        ...

    def place(self, out: Any) -> Place: ...

    def catch_up(self) -> None:
        """Has what is submitted from now on come after what the current stream was given: it may use the memory that
        kernels are to write.
        """
        ...

    def submit(self, table: np.ndarray) -> None:
        """Submits to some queues; int64 [queues, words of struct Submit]."""
        ...

    def complete(self, table: np.ndarray, deadline_ns: int) -> tuple[list[np.ndarray], bool]:
        """Takes completions of all queues; int64 [queues, words of struct Complete]. Waits for all that it does.

        Returns:
            Of each queue uint32 [completions that it took, 4], each an Outcome; and whether the rings are lost.
        """
        ...

    def close(self) -> None: ...


class _InPlace:
    direct = True

    def __init__(self, address: int):
        self.address = address

    def arrived(self) -> None: ...


class CpuSubmitter:
    """Does what :class:`Submitter` says, on the CPU.

    Args:
        memory: Memory of ``num_queues`` queues, uint8, one behind the other.
    """

    def __init__(self, memory: np.ndarray, layout: Any, num_queues: int):
        numbers, words = np.arange(layout.ids, dtype=np.uint16), _words(layout.ids)
        self.private, progress = [], []
        for part in memory[: num_queues * layout.bytes].reshape(num_queues, layout.bytes):
            start = part.ctypes.data
            part[layout.free_ids :][: numbers.nbytes].view(np.uint16)[:] = numbers
            progress.append(part[layout.progress :][: 4 * words].view(np.uint32))
            at = start + layout.progress
            self.private.append(Private(start + layout.free_ids, start + layout.landings, at, at + 4 * words))
        self._progress = progress

    def given(self, numbers: np.ndarray) -> tuple[int, Any]:
        return numbers.ctypes.data, numbers

    def place(self, out: np.ndarray) -> Place:
        return _InPlace(out.ctypes.data)

    def catch_up(self) -> None: ...

    def submit(self, table: np.ndarray) -> None:
        _core.cpu_io_submit(table.ctypes.data, len(table))

    def complete(self, table: np.ndarray, deadline_ns: int) -> tuple[list[np.ndarray], bool]:
        _core.cpu_io_complete(table.ctypes.data, len(table), deadline_ns)
        return _outcomes(self._progress)

    def close(self) -> None: ...


def _words(ids: int) -> int:
    """Counts the words, uint32, of struct Progress and its outcomes."""
    return 4 + 4 * ids


def _outcomes(progress: Sequence[np.ndarray]) -> tuple[list[np.ndarray], bool]:
    taken = [one[4:].reshape(-1, 4)[: one[1]].copy() for one in progress]
    return taken, bool(progress[0][0])


class Kernels:
    """Does what :class:`Submitter` says, on a GPU. The memory of the queues is pinned, and so are the tables behind
    them.

    Submissions, and copies for the caller, have a stream; completions, which may wait long for a disk, have another
    that waits for the submissions they need. A block of ``block_threads`` submits to each queue. Both have little to
    compute and a disk that waits for it: where the GPU is busy, their kernels go first.
    """

    def __init__(
        self,
        gpu: Gpu,
        device: torch.device,
        memory: np.ndarray,
        layout: Any,
        num_queues: int,
        block_threads: int,
    ):
        import torch

        from outcrop.unified import in_place

        self._gpu, self._device, self._block_threads = gpu, device, block_threads
        self._stream, self._completing = (
            gpu.new_stream(device.index or 0, high_priority=True) for _ in range(2)
        )
        self._pinned: Any = in_place(memory)
        with gpu.on_stream(self._stream):
            numbers = np.arange(layout.ids, dtype=np.uint16).view(np.int16)
            self._free_ids = torch.from_numpy(np.tile(numbers, (num_queues, 1))).to(device)
            self._landings = torch.zeros(
                (num_queues, _core.LANDING_BYTES * layout.ids), dtype=torch.uint8, device=device
            )
            words = _core.progress_bytes(layout.ids) // 4
            self._progress = torch.zeros((num_queues, words), dtype=torch.int32, device=device)
        self._read = _words(layout.ids)
        pinned = self._pinned.as_subclass(torch.Tensor)  # plain: copies are those of the bus
        # Where the CPU that submits itself has its progress: to memory that is not pinned a copy would hold up whoever
        # launches kernels meanwhile.
        self._found = [
            pinned[number * layout.bytes + layout.progress :][: 4 * self._read].view(torch.int32)
            for number in range(num_queues)
        ]
        self.private = [
            Private(
                self._free_ids[number].data_ptr(),
                self._landings[number].data_ptr(),
                self._progress[number].data_ptr(),
                self._progress[number, self._read :].data_ptr(),
            )
            for number in range(num_queues)
        ]
        tables = memory[num_queues * layout.bytes :].view(np.int64)
        count = _TABLES * num_queues * _core.SUBMIT_WORDS
        self._tables = tables[:count].reshape(_TABLES, num_queues, _core.SUBMIT_WORDS)
        self._completing_table = tables[count:][: num_queues * _core.COMPLETE_WORDS]
        with gpu.on_stream(self._stream):
            self._submitted = torch.zeros(self._tables[0].size, dtype=torch.int64, device=device)
            self._completed = torch.zeros(
                COMPLETING_BLOCKS * self._completing_table.size, dtype=torch.int64, device=device
            )
        self._read_by: list[Fence | None] = [None] * _TABLES  # passed when the kernel has read it
        self._submissions = 0

    def given(self, numbers: Any) -> tuple[int, Any]:
        import torch

        if not isinstance(numbers, np.ndarray):
            return numbers.data_ptr(), numbers
        with self._gpu.on_stream(self._stream):
            there = torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy()).to(self._device)
        return there.data_ptr(), there

    def place(self, out: Any) -> Place:
        return _OnGpu(self, out)

    def submit(self, table: np.ndarray) -> None:
        number = self._submissions % _TABLES
        if (fence := self._read_by[number]) is not None:
            fence.synchronize()
        there = self._tables[number, : len(table)]
        there[:] = table
        warps = len(table) * self._block_threads // WARP
        arguments = [there.ctypes.data, self._submitted.data_ptr(), len(table)]
        with self._gpu.on_stream(self._stream):
            self._gpu.launch(
                "io_queue",
                "io_submit",
                self._device,
                warps,
                arguments,
                block_threads=self._block_threads,
            )
        self._read_by[number] = self._gpu.fence(self._stream)
        self._submissions += 1

    def complete(self, table: np.ndarray, deadline_ns: int) -> tuple[list[np.ndarray], bool]:
        self._gpu.wait(self._completing, self._gpu.fence(self._stream))
        there = self._completing_table
        there[:] = table.reshape(-1)
        warps = min(int(table[:, _MOST].sum()), COMPLETING_BLOCKS * BLOCK_THREADS // WARP)
        arguments = [there.ctypes.data, self._completed.data_ptr(), len(table), deadline_ns]
        with self._gpu.on_stream(self._completing):
            self._progress[:, 1:4].zero_()
            self._gpu.launch("io_queue", "io_complete", self._device, warps, arguments)
            for found, progress in zip(self._found, self._progress, strict=True):
                found.copy_(progress[: self._read], non_blocking=True)
        self._gpu.fence(self._completing).synchronize()
        return _outcomes([found.numpy().view(np.uint32) for found in self._found])

    def close(self) -> None:
        self._gpu.fence(self._stream).synchronize()
        self._gpu.fence(self._completing).synchronize()
        self._pinned = None
        del self._found, self._tables, self._completing_table

    def catch_up(self) -> None:
        self._gpu.wait(self._stream, self._gpu.fence(self._gpu.stream(self._device.index or 0)))

    def rows(self, count: int) -> torch.Tensor:
        """Takes uint8 [count] on the device."""
        import torch

        with self._gpu.on_stream(self._stream):
            return torch.empty(count, dtype=torch.uint8, device=self._device)

    def fetch(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        with self._gpu.on_stream(self._stream):
            out.copy_(rows)
        self._gpu.fence(self._stream).synchronize()


class _OnGpu:
    """Takes rows that a kernel writes: to a tensor of the GPU, to pinned memory, or to other memory by way of the
    GPU's.
    """

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
