"""GpuDiskRows: rows from disk that kernels ask for. Mode ``online`` with ``--io gpu``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

import outcrop._core as _core
from outcrop.device.launch import BLOCK_THREADS
from outcrop.errors import ArgumentError, IoError
from outcrop.rows.base import RowSource
from outcrop.rows.rings.files import RingFile, RowFiles
from outcrop.rows.rings.queue import Reads, RowQueue
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray
from outcrop.store.levels import Level, LevelCounts


class RowReads:
    """Stands for rows on their way (:meth:`GpuDiskRows.submit`)."""

    def __init__(self, queue: RowQueue, reads: Reads):
        self._queue, self._reads = queue, reads

    @property
    def done(self) -> bool:
        """Tells whether :meth:`wait` returns at once. Others' waiting may complete these, nothing else does."""
        return self._reads.done

    def wait(self) -> None:
        """Waits until these are there, whatever becomes of others.

        Raises:
            IoError: A read failed or had no answer in time; rows that were not read are as they were before.
        """
        self._queue.wait(self._reads)
        if self._reads.error:
            raise IoError(self._reads.error)


@final
class GpuDiskRows(RowSource):
    """Reads rows from disk by commands in rings, each row for itself; safe to use from several threads.

    A row is one command for the blocks of 512 bytes that it touches (several where it is longer than 7680 bytes). Rows
    that share a block are not merged, and repeats are read again. A GPU does this by the kernels of kernels/io_queue.h,
    which leave it to other work between the two calls; on ``cpu`` the CPU kernels do the same.

    Args:
        staging_bytes: Memory for rings and for blocks in flight, held under the tag ``ring-staging``; with a GPU it is
            pinned.
        deadline_seconds: As of :class:`outcrop.rows.rings.queue.RowQueue`.
        faults: For tests.
        block_threads: Threads of each block that submits, one for each queue; a multiple of 32: see
            :func:`outcrop.rows.rings.sizing.block_threads`.
        stripes: Copies of rows on other disks, which are read there (:mod:`outcrop.rows.rings.files`).
        num_queues: Queue pairs; None: one for each disk that there are files on.

    Raises:
        IoError: The file is too small for its rows.
        DeviceError: The device is not there, or the memory cannot be pinned.
    """

    def __init__(
        self,
        features: DiskArray,
        runtime: Runtime,
        *,
        staging_bytes: int,
        device: str = "cpu",
        deadline_seconds: float | None = None,
        faults: _core.RingFaults | None = None,
        block_threads: int = BLOCK_THREADS,
        stripes: Sequence[DiskArray] = (),
        num_queues: int | None = None,
    ):
        self.num_rows, self.row_bytes = features.num_rows, features.row_bytes
        self._queue = RowQueue(
            RowFiles([RingFile.of(array) for array in (features, *stripes)], num_queues),
            runtime,
            device,
            staging_bytes,
            deadline_seconds,
            faults or _core.RingFaults(),
            block_threads=block_threads,
        )

    def submit(self, ids: np.ndarray, out: Any) -> RowReads:
        """Begins to read rows ``ids`` and returns at once; as many commands as the rings hold are under way then.

        Args:
            ids: int64.
            out: uint8 [len(ids) * row_bytes]: an array, or, with a GPU, a tensor of that device. It is kept alive.

        Raises:
            ArgumentError: As of :meth:`read_rows`.
            IoError: No answer came to an earlier read: open the rows again.
        """
        self._check(ids, out)
        if not self._queue.can_fill(out):
            raise ArgumentError(
                "rows are put into contiguous bytes, of an array or of a tensor of the device"
            )
        self._queue.catch_up(out)
        return self.submit_to(ids, None, out)

    def submit_to(self, ids: Any, places: Any, out: Any) -> RowReads:
        """Does as :meth:`submit`, unchecked, to rows ``places`` (int32) of ``out``, which nothing uses that was
        launched.

        Args:
            ids, places: Arrays, or, where :attr:`takes_gpu_ids`, tensors of the GPU that are computed; ``places`` may
                be None.
        """
        return RowReads(self._queue, self._queue.submit(ids, out, places))

    @property
    def takes_gpu_ids(self) -> bool:
        """Tells whether ids may be tensors of a GPU: its kernels ask for the rows, and there are no stripes."""
        return self._queue.takes_gpu_ids

    def fills_in_place(self, out: Any) -> bool:
        """Tells whether rows can be put to single places of ``out``."""
        return self._queue.fills_in_place(out)

    def stream(self) -> RingStream:
        """Returns the same as a stream for :class:`outcrop.rows.HotRows`."""
        return RingStream(self)

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        self.submit(ids, out).wait()
        return {Level.DISK: len(ids)}

    @property
    def commands(self) -> tuple[int, int]:
        """Counts the commands that were submitted, and those of them that were completed, in all."""
        return self._queue.commands

    @property
    def commands_by_queue(self) -> list[tuple[int, int]]:
        """Counts :attr:`commands` of each queue pair."""
        return self._queue.commands_by_queue

    def close(self) -> None:
        self._queue.close()


class _Apart:
    """Reads rows to memory of their own, and puts them to their places when they are waited for."""

    def __init__(self, reads: RowReads, held: np.ndarray, positions: np.ndarray, out: np.ndarray):
        self._reads, self._held, self._positions, self._out = reads, held, positions, out

    def wait(self) -> None:
        self._reads.wait()
        self._out[self._positions] = self._held.reshape(len(self._positions), self._out.shape[1])


class RingStream:
    """Serves as :class:`outcrop.rows.RowStream` through rings."""

    def __init__(self, rows: GpuDiskRows):
        self.num_rows, self.row_bytes = rows.num_rows, rows.row_bytes
        self._rows, self.takes_gpu_ids = rows, rows.takes_gpu_ids

    def submit(self, ids: Any, positions: Any, out: Any) -> RowReads | _Apart:
        """Does as :class:`outcrop.rows.RowStream` says; with a GPU ``out`` may be a tensor of it that nothing uses."""
        flat = out.reshape(-1)
        if positions is None or self._rows.fills_in_place(flat):
            return self._rows.submit_to(ids, positions, flat)
        # A GPU cannot write to single places of memory that is not its own or pinned.
        held = np.empty(len(ids) * self.row_bytes, np.uint8)
        positions = positions if isinstance(positions, np.ndarray) else positions.cpu().numpy()
        return _Apart(self._rows.submit_to(ids, None, held), held, positions, out)

    def close(self) -> None:
        self._rows.close()
