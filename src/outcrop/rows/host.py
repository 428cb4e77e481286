"""Rows in memory: mode ``memory``, the reference."""

from __future__ import annotations

from typing import final

import numpy as np

import outcrop._core as _core
from outcrop.rows.base import RowSource
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray, hold
from outcrop.store.levels import Level, LevelCounts


@final
class HostRows(RowSource):
    """Holds all rows in memory under the tag ``features``: ``table``, uint8 [rows, row_bytes]."""

    def __init__(self, features: DiskArray, runtime: Runtime):
        self.num_rows, self.row_bytes = features.num_rows, features.row_bytes
        self._workers = runtime.workers
        held = hold(runtime, "features", features.spec.data_bytes, features.read_whole)
        self.table = held.reshape(self.num_rows, features.spec.stride_bytes)[:, : self.row_bytes]

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        self._check(ids, out)
        _core.gather_rows(self._workers, self.table, ids, out.reshape(len(ids), self.row_bytes))
        return {Level.HOST: len(ids)}

    def close(self) -> None:
        del self.table
