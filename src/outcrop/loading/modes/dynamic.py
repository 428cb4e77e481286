"""Mode ``dynamic``, a baseline: a cache that decides at every batch what it keeps."""

from __future__ import annotations

from typing import final

from outcrop.loading.modes.base import RowMode, SessionRequest
from outcrop.rows import DynamicRows, RowSource, disk_rows
from outcrop.runtime import memory_tables


@final
class Dynamic(RowMode):
    """Rows under a policy: SIEVE, LRU or S3-FIFO."""

    name = "dynamic"
    options = frozenset({"cache_policy"})

    def open_rows(self, request: SessionRequest) -> RowSource:
        return disk_rows(request.graph, request.runtime)

    def cached(self, rows: RowSource, request: SessionRequest) -> RowSource:
        policy = request.baseline.cache_policy
        grow = request.recorded is None  # buffers do, and have the rest
        part = memory_tables.GROWING_CACHE if grow else memory_tables.ROW_CACHE
        count = request.cache_rows(rows, policy, part)
        return DynamicRows(rows, request.runtime, policy=policy, rows=count)
