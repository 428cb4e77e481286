"""UnifiedRows: all rows in host memory that a GPU reads in place. Mode ``memory`` on a GPU."""

from __future__ import annotations

from typing import final

import numpy as np
import torch

from outcrop.rows.base import RowSource
from outcrop.rows.host import HostRows
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray
from outcrop.store.levels import LevelCounts
from outcrop.unified import in_place


@final
class UnifiedRows(RowSource):
    """Holds all rows as :class:`outcrop.rows.HostRows` does; ``table``, uint8 [rows, row_bytes], is a unified tensor
    over its memory.
    """

    def __init__(self, features: DiskArray, runtime: Runtime):
        self._rows = HostRows(features, runtime)
        self.num_rows, self.row_bytes = self._rows.num_rows, self._rows.row_bytes
        self.table: torch.Tensor = in_place(self._rows.table)

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        return self._rows.read_rows(ids, out)

    def close(self) -> None:
        del self.table
        self._rows.close()
