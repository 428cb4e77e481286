"""What makes values of rows that are bytes on disk: one interface for every way of storing them.

Whatever moves rows moves them as they lie on disk, uint8 [rows, row_bytes], and knows nothing of what they hold; what
gives rows to a model makes values of them, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.errors import FormatError
from outcrop.store.arrays import storage_dtype

_ALIGNMENT = 64  # bytes
_SEARCHED_BYTES = 1 << 20  # of a file at a time, when an error has to name a row


class RowDecoder(ABC):
    """Makes values of the rows of a row file.

    Args:
        folder: Folder of the graph.
        file: Name of the file of the rows in ``folder``.

    Attributes:
        columns: Values of a row.
        dtype: Their type as loaders deliver them, such as ``float32``.
        row_bytes: Bytes of a row on disk.
        words: What people are told of how values are stored.
        rows_can_be_wrong: Whether there are rows that no import writes (:meth:`first_wrong`).
    """

    columns: int
    dtype: str
    row_bytes: int
    words: str
    rows_can_be_wrong: bool

    def __init__(self, folder: Path, file: str):
        self._folder, self._file = folder, file

    @property
    def decoded_bytes(self) -> int:
        """Counts the bytes of the values of a row."""
        return self.columns * storage_dtype(self.dtype).itemsize

    @abstractmethod
    def values(
        self, rows: np.ndarray, workers: _core.WorkerPool, room: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns the values of rows, [n, columns] in the storage of ``dtype``.

        Args:
            rows: uint8 [n, row_bytes], as they lie on disk.
            workers: Threads that share the work.
            room: uint8, flat, memory for at least ``n * decoded_bytes`` bytes that begins at a multiple of 64 bytes;
                None: new memory.

        Returns:
            An array, of ``room`` or new, aligned as models want their input (:func:`outcrop.nn.sparse.as_input`).

        Raises:
            FormatError: A row is one that :meth:`first_wrong` finds.
        """

    @abstractmethod
    def first_wrong(self, rows: np.ndarray) -> int:
        """Finds the first row that no import writes: the file was changed by hand.

        Args:
            rows: uint8 [n, row_bytes], as they lie on disk.

        Returns:
            Its position; n where there is none.
        """

    @abstractmethod
    def fault(self, row: np.ndarray) -> str:
        """Says what is wrong with a row that :meth:`first_wrong` finds, as the end of a sentence: ``has ...``.

        Args:
            row: uint8 [row_bytes].
        """

    def check(self) -> None:
        """Checks what lies beside the rows. Raises as reading it does."""

    def refusal(self, row: np.ndarray, number: int | None = None) -> FormatError:
        """Returns the error of a row that :meth:`first_wrong` finds.

        Args:
            row: uint8 [row_bytes], as it was read.
            number: Which it is in the file; None: the file is searched for the first with its bytes.
        """
        number = self._row_of(row) if number is None else number
        path, fault = self._folder / self._file, self.fault(row)
        if number is None:
            return FormatError(
                f"a row that was read for {path} {fault}, and the file has no such row here: records of a run, or a "
                "file in a store, were changed after they were written; prepare the run again, or fetch the graph again"
            )
        return FormatError(
            f"{path}: row {number} {fault}: the file was changed after it was made, or another program made it; import "
            "the graph again"
        )

    def _row_of(self, row: np.ndarray) -> int | None:
        """Searches the file for a row; None: it has none that is equal, or cannot be read."""
        step = max(_SEARCHED_BYTES // len(row), 1)
        try:
            with (self._folder / self._file).open("rb") as file:
                first = 0
                while block := file.read(step * len(row)):
                    rows = np.frombuffer(block[: len(block) // len(row) * len(row)], np.uint8).reshape(
                        -1, len(row)
                    )
                    found = np.flatnonzero((rows == row).all(1))
                    if len(found):
                        return first + int(found[0])
                    first += len(rows)
        except OSError:
            return None
        return None


def aligned(rows: int, columns: int, dtype: np.dtype, room: np.ndarray | None = None) -> np.ndarray:
    """Returns an array [rows, columns] that begins at a multiple of 64 bytes: of ``room``, uint8, or a new one."""
    count = dtype.itemsize * rows * columns
    held = np.empty(count + _ALIGNMENT, np.uint8) if room is None else room
    begin = -held.ctypes.data % _ALIGNMENT
    return held[begin : begin + count].view(dtype).reshape(rows, columns)
