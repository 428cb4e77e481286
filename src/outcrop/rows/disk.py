"""Rows from disk: mode ``ondisk``, and what lies below every cache."""

from __future__ import annotations

from typing import final

import numpy as np

import outcrop._core as _core
from outcrop.rows.base import RowSource
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray
from outcrop.store.levels import Level, LevelCounts


@final
class DiskRows(RowSource):
    """Reads rows from disk by the engine, page by page; ``merge=False`` reads every row on its own (``ondisk``).

    Args:
        scratch_bytes: Memory for pages in flight, held under the tag ``row-scratch``.
    """

    def __init__(self, features: DiskArray, runtime: Runtime, *, scratch_bytes: int, merge: bool = True):
        self.num_rows, self.row_bytes = features.num_rows, features.row_bytes
        self._features = features
        scratch_bytes = max(scratch_bytes, _core.RowReader.min_scratch_bytes(self.row_bytes))
        self._reader = _core.RowReader(
            runtime.io,
            runtime.budget,
            features.file,
            0,
            features.spec.stride_bytes,
            self.row_bytes,
            self.num_rows,
            scratch_bytes,
            merge,
        )
        if features.page_sums is not None:
            features.page_sums.guard(self._reader)

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        self._check(ids, out)
        self._reader.read_rows(ids, out.reshape(len(ids), self.row_bytes))
        return {Level.DISK: len(ids)}

    def count_read_bytes(self, ids: np.ndarray) -> int:
        """Counts the bytes that :meth:`read_rows` reads for ``ids``, exactly."""
        return self._reader.count_read_bytes(np.ascontiguousarray(ids, np.int64))

    def close(self) -> None:
        del self._reader
