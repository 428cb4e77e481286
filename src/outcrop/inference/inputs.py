"""The rows that a layer reads of the nodes of one type: from an array on disk, or made as they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch

from outcrop.nn.typed import MakeRows
from outcrop.rows import DiskRows, RowSource
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray, row_layout
from outcrop.store.decode import decode
from outcrop.store.graph_types import RowFile
from outcrop.store.levels import LevelCounts

_CHUNK_BYTES = 32 << 10  # of rows that are made at a time


@dataclass(frozen=True)
class InputShape:
    """Says how large the rows of a node type are.

    Attributes:
        num_rows: Nodes of the type.
        row_bytes: Bytes of a row as it is read.
        width: Values of a row.
        dtype: Their type, such as ``float32``.
        stored: Whether they lie on disk.
        gapless: Whether one row begins where the other ends.
        decoded_bytes: Bytes of a row once it is decoded (:mod:`outcrop.store.row_decoder`); 0: it is used as it lies.
    """

    num_rows: int
    row_bytes: int
    width: int
    dtype: str
    stored: bool = True
    gapless: bool = True
    decoded_bytes: int = 0

    @property
    def widened_bytes(self) -> int:
        """Counts the bytes that a row takes beside what is read of it: its values decoded, and in float32."""
        return self.decoded_bytes + (0 if self.dtype == "float32" else 4 * self.width)


def shape_of(rows: RowFile) -> InputShape:
    """Returns how large the rows of a row file are."""
    row_bytes = row_layout(Path(rows.spec.file), rows.spec)[1]
    gapless = rows.spec.stride_bytes == row_bytes
    return InputShape(
        rows.num_rows,
        row_bytes,
        rows.width,
        rows.dtype,
        gapless=gapless,
        decoded_bytes=0 if rows.decoder is None else rows.decoder.decoded_bytes,
    )


class InputRows(ABC):
    """Opens the rows of a node type; ``close`` gives files back."""

    shape: InputShape

    def values(self, rows: np.ndarray, device: torch.device) -> torch.Tensor:
        """Returns the values [n, width] of rows that were read, on ``device``; over the same memory where they can be.

        Args:
            rows: uint8 [n * row_bytes].
        """
        return (
            torch.from_numpy(rows)
            .view(getattr(torch, self.shape.dtype))
            .view(-1, self.shape.width)
            .to(device)
        )

    @abstractmethod
    def open(self, runtime: Runtime, scratch_bytes: int) -> RowSource:
        """Returns what reads them, with ``scratch_bytes`` for pages in flight."""

    def compare(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Compares rows that were read, uint8 [len(ids) * row_bytes], with their checksums, if somebody has them."""

    def close(self) -> None:
        """Closes what they are read from."""


@final
class StoredRows(InputRows):
    """Opens rows that lie on disk: what the layer before gave, or, where ``file`` is given, features.

    Args:
        compare: Compares rows, uint8 [n, row_bytes], with those of ids, int64 [n]; None: nothing does.
    """

    def __init__(
        self,
        array: DiskArray,
        file: RowFile | None = None,
        compare: Callable[[np.ndarray, np.ndarray], None] | None = None,
    ):
        spec = array.spec
        self.array, self._decoder, self._compare = array, None if file is None else file.decoder, compare
        self.shape = (
            InputShape(array.num_rows, array.row_bytes, spec.shape[1], spec.dtype)
            if file is None
            else shape_of(file)
        )

    def values(self, rows: np.ndarray, device: torch.device) -> torch.Tensor:
        if self._decoder is None:
            return super().values(rows, device)
        coded = torch.from_numpy(rows).view(-1, self.shape.row_bytes).to(device)
        return decode(self._decoder, coded)

    def open(self, runtime: Runtime, scratch_bytes: int) -> RowSource:
        return DiskRows(self.array, runtime, scratch_bytes=scratch_bytes)

    def compare(self, ids: np.ndarray, rows: np.ndarray) -> None:
        if self._compare is not None:
            self._compare(ids, rows.reshape(len(ids), self.shape.row_bytes))

    def close(self) -> None:
        self.array.close()


@final
class MadeRows(InputRows):
    """Makes rows by ``make``, of node type ``number``, as often as they are asked for."""

    def __init__(self, make: MakeRows, number: int, shape: InputShape):
        self._make, self._number, self.shape = make, number, shape

    def open(self, runtime: Runtime, scratch_bytes: int) -> RowSource:
        return MadeSource(self._make, self._number, self.shape)


@final
class MadeSource(RowSource):
    """Gives the rows that ``make`` makes of a node type."""

    def __init__(self, make: MakeRows, number: int, shape: InputShape):
        self.num_rows, self.row_bytes = shape.num_rows, shape.row_bytes
        self._make, self._number = make, number

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        self._check(ids, out)
        rows = out.reshape(len(ids), self.row_bytes)
        step = max(_CHUNK_BYTES // self.row_bytes, 1)
        for start in range(0, len(ids), step):
            made = self._make(self._number, ids[start : start + step])
            rows[start : start + step] = made.detach().cpu().contiguous().view(torch.uint8).numpy()
        return {}

    def close(self) -> None:
        pass
