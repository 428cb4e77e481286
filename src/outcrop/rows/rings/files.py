"""Rows that lie in one file, or in stripes of several, and which queue pair serves each file.

Row ``r`` of ``n`` files is read from file ``r % n``. The first file has all rows, as the graph has them, and is asked
for its share only; row ``r`` of another is its row ``r // n``. So ``n`` disks share the reads, and ``n - 1`` of them
hold a copy of their share.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcrop.errors import ArgumentError, IoError
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray


@dataclass(frozen=True)
class RingFile:
    """Describes the rows of a file that is open in the engine.

    Attributes:
        file: Its number there.
        stride_bytes: From the beginning of a row to that of the next.
        row_bytes: Bytes of a row.
        keeping: What keeps it open.
    """

    path: Any
    file: Any
    num_rows: int
    stride_bytes: int
    row_bytes: int
    keeping: Any = None

    @staticmethod
    def of(array: DiskArray) -> RingFile:
        """Describes the rows of ``array``."""
        return RingFile(
            array.path, array.file, array.num_rows, array.spec.stride_bytes, array.row_bytes, array
        )

    def check(self, runtime: Runtime) -> None:
        """Raises IoError where the file is too small for its rows."""
        size, stride, row = runtime.io.size_bytes(self.file), self.stride_bytes, self.row_bytes
        room = 0 if size < row or not row else (size - row) // stride + 1
        if row and self.num_rows > room:
            raise IoError(
                f"{self.path} of {size} bytes holds {room} rows, not {self.num_rows}: the file is truncated"
            )


@dataclass(frozen=True)
class DealtRows:
    """Holds rows that were asked for together, one queue's after the other's.

    Attributes:
        rows: int64 [n], of their files. Where there is a single file, they may be a tensor of the GPU, as ``places``.
        places: int32 [n], which row of the caller's memory each is; None: they are in order.
        spaces: int16 [n], the number of the file of each among those of its queue; None: each queue has one file.
        begins: Where the rows of each queue begin; at the end n.
    """

    rows: Any
    places: Any
    spaces: np.ndarray | None
    begins: tuple[int, ...]


class RowFiles:
    """Holds files of equal rows, with the queue pair of each.

    Args:
        files: The first has all rows; see above for the others.
        num_queues: Queue pairs, to which the files are dealt in turn; None: one for each disk (``st_dev``).

    Raises:
        ArgumentError: The files have other rows, or more or fewer of them, than the first says.
    """

    def __init__(self, files: Sequence[RingFile], num_queues: int | None = None):
        self.files, count = tuple(files), len(files)
        first = self.files[0]
        self.stride_bytes, self.row_bytes, self.num_rows = first.stride_bytes, first.row_bytes, first.num_rows
        for number, file in enumerate(self.files[1:], 1):
            needed = (self.stride_bytes, self.row_bytes, len(range(number, self.num_rows, count)))
            found = (file.stride_bytes, file.row_bytes, file.num_rows)
            if found != needed:
                raise ArgumentError(
                    f"{file.path}: stride, bytes and number of rows are {found}, not {needed}, as of stripe {number} "
                    f"of {count} of {first.path}: make the stripes again"
                )
        if num_queues is None:
            disks = [os.stat(file.path).st_dev for file in self.files] if count > 1 else [0]
            numbers = {disk: number for number, disk in enumerate(dict.fromkeys(disks))}
            queue_of = [numbers[disk] for disk in disks]
        else:
            queue_of = [number % num_queues for number in range(count)]
        self.num_queues = max(queue_of) + 1
        self.of_queue = tuple(
            tuple(file for file, queue in zip(self.files, queue_of, strict=True) if queue == number)
            for number in range(self.num_queues)
        )
        self._queue_of = np.array(queue_of)
        self._space_of = np.array(
            [queue_of[:number].count(queue) for number, queue in enumerate(queue_of)], np.int16
        )

    @property
    def names(self) -> str:
        """Returns the paths, for messages."""
        return ", ".join(str(file.path) for file in self.files)

    def deal(self, ids: Any, places: Any) -> DealtRows:
        """Sorts rows ``ids``, int64, by the queue of their file; those of a queue stay in their order.

        Args:
            ids: An array; where there is a single file it is handed on, whatever it is, and so are ``places``.
            places: int32, which row of the caller's memory each is; None: they are in order.
        """
        count = len(self.files)
        if count == 1:
            return DealtRows(ids, places, None, (0, len(ids)))
        file = ids % count
        rows = np.where(file == 0, ids, ids // count)
        queue = self._queue_of[file]
        order = np.argsort(queue, kind="stable").astype(np.int32)
        begins = np.searchsorted(queue[order], np.arange(self.num_queues + 1))
        spaces = self._space_of[file[order]] if count > self.num_queues else None
        return DealtRows(
            rows[order], order if places is None else places[order], spaces, tuple(begins.tolist())
        )
