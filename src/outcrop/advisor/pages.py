"""Pages under rows: what reading them takes, counted without reading."""

from __future__ import annotations

import numpy as np

import outcrop._core as _core
from outcrop.runtime.pages import PAGE_BYTES


def page_bytes(ids: np.ndarray, row_bytes: int, stride: int) -> int:
    """Returns bytes of the distinct pages that rows ``ids`` lie on, each read once."""
    return _core.count_read_bytes(np.ascontiguousarray(ids, np.int64), 0, stride, row_bytes)


def page_runs(ids: np.ndarray, row_bytes: int, stride: int) -> int:
    """Runs of adjacent pages under rows ``ids``: about as many requests as reading them takes."""
    if not len(ids):
        return 0
    starts = np.unique(ids) * stride
    first, last = starts // PAGE_BYTES, (starts + row_bytes - 1) // PAGE_BYTES
    return int((first[1:] > last[:-1] + 1).sum()) + 1
