"""Rows through the page cache: mode ``memmap``."""

from __future__ import annotations

from typing import final

import numpy as np

from outcrop.rows.base import RowSource
from outcrop.store.arrays import DiskArray
from outcrop.store.levels import Level, LevelCounts


@final
class MapRows(RowSource):
    """Reads rows of a memory map through the page cache: what ``numpy.memmap`` users do. A baseline."""

    def __init__(self, features: DiskArray):
        self.num_rows, self.row_bytes = features.num_rows, features.row_bytes
        self._map = features.memmap().reshape(self.num_rows, -1).view(np.uint8) if self.num_rows else None

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        self._check(ids, out)
        if self._map is not None:
            np.take(self._map, ids, axis=0, out=out.reshape(len(ids), self.row_bytes))
        return {Level.MAP: len(ids)}

    def close(self) -> None:
        self._map = None
