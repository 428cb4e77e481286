"""The RowSource interface, and reading rows of which some are in memory already."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np

import outcrop._core as _core
from outcrop.errors import ArgumentError
from outcrop.runtime.runtime import Runtime
from outcrop.store.levels import Level, LevelCounts

P = TypeVar("P")  # a position in a schedule


class RowSource(ABC):
    """Reads rows of ``row_bytes`` bytes, numbered ``0 .. num_rows - 1``."""

    num_rows: int
    row_bytes: int

    @abstractmethod
    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        """Fills ``out``, uint8 [len(ids) * row_bytes], with the rows ``ids``, int64, in any order, repeats allowed.

        Returns:
            How many rows came from each level, for example ``{Level.HOST: 10, Level.DISK: 5}``.

        Raises:
            ArgumentError: An id is out of range, or ``out`` has another size.
            IoError: The disk refused.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives memory and files back."""

    def _check(self, ids: np.ndarray, out: np.ndarray) -> None:
        if len(out) != len(ids) * self.row_bytes:
            raise ArgumentError(
                f"{len(ids)} rows of {self.row_bytes} bytes do not fit {len(out)} bytes of output"
            )
        if len(ids) and (ids.min() < 0 or ids.max() >= self.num_rows):
            bad = ids[(ids < 0) | (ids >= self.num_rows)][0]
            raise ArgumentError(f"row {bad} was asked for, there are {self.num_rows}")


class ScheduledRows(RowSource, Generic[P]):
    """Reads rows as a source that must know which batch it serves: ``advance_to`` comes before each batch's
    ``read_rows``.
    """

    @abstractmethod
    def advance_to(self, position: P) -> None:
        """Says where in its schedule the batch stands whose rows are read next."""


def read_over(
    below: RowSource,
    ids: np.ndarray,
    out: np.ndarray,
    positions: np.ndarray,
    rows: np.ndarray,
    held: np.ndarray,
    stride: int,
    runtime: Runtime,
) -> LevelCounts:
    """Reads rows ``ids``: those at ``positions`` are rows ``rows`` of ``held``, the others come from ``below``.

    Args:
        positions: int32, ascending.
        rows: int32, one per position.
        held: uint8, flat; row i begins at ``i * stride``.
    """
    row_bytes = below.row_bytes
    missing = np.ones(len(ids), bool)
    missing[positions] = False
    wanted = ids[missing]
    # The rows from below land at the end of `out` and are expanded in place, as packed rows are.
    below.read_rows(wanted, out[len(positions) * row_bytes :])
    _core.expand_rows(runtime.workers, out, len(ids), row_bytes, positions.astype(np.int64))
    _core.fill_rows(out, len(ids), row_bytes, positions, rows, held, stride)
    return {Level.HOST: len(positions), Level.DISK: len(wanted)}
