"""A static cache: the hottest rows, chosen ahead, over another source."""

from __future__ import annotations

from typing import final

import numpy as np

from outcrop.rows.base import RowSource, read_over
from outcrop.runtime.runtime import Runtime
from outcrop.store.levels import LevelCounts
from outcrop.store.placement import find_sorted


@final
class TieredRows(RowSource):
    """Serves the hottest rows from memory, the rest from another source.

    Args:
        hot_ids: int64, ascending; row i of ``hot_rows`` (uint8, ``row_bytes`` each) belongs to ``hot_ids[i]``.
    """

    def __init__(self, hot_ids: np.ndarray, hot_rows: np.ndarray, below: RowSource, runtime: Runtime):
        self.num_rows, self.row_bytes = below.num_rows, below.row_bytes
        self._hot_ids, self._hot_rows, self._below = hot_ids, hot_rows, below
        self._runtime = runtime

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        self._check(ids, out)
        positions, rows = find_sorted(self._hot_ids, ids)
        return read_over(
            self._below, ids, out, positions, rows, self._hot_rows, self.row_bytes, self._runtime
        )

    def close(self) -> None:
        self._below.close()
        del self._hot_rows
