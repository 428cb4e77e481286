"""A cache of rows that learns while it runs: mode ``dynamic``, and the reading that ``belady`` shares with it."""

from __future__ import annotations

from typing import final

import numpy as np

import outcrop._core as _core
from outcrop.config import CACHE_POLICIES
from outcrop.errors import ArgumentError
from outcrop.rows.base import RowSource
from outcrop.runtime.runtime import Runtime
from outcrop.store.levels import Level, LevelCounts


def rows_within(policy: str, cache_bytes: int, row_bytes: int, limit: int, cycle: int = 1) -> int:
    """Counts how many rows, at most ``limit``, a cache of ``cache_bytes`` holds, the policy's index included."""
    kind = getattr(_core.CachePolicy, policy)
    return _core.RowCache.rows_within(kind, min(max(cache_bytes, 0), 1 << 62), row_bytes, cycle, limit)


class CacheReader:
    """Reads through a C++ row cache (core/cache/row_cache.h) over a source that is asked for what is missing.

    Args:
        rows: Capacity; any number, also 0. Held under the tag ``row-cache``.
        cycle: Only ``belady``: batches after which the schedule repeats.
    """

    def __init__(self, below: RowSource, runtime: Runtime, policy: str, rows: int, cycle: int = 1):
        self._below, self._workers = below, runtime.workers
        kind = getattr(_core.CachePolicy, policy)
        self._cache = _core.RowCache(runtime.budget, kind, rows, below.row_bytes, cycle)

    def read(
        self, ids: np.ndarray, out: np.ndarray, next_use: np.ndarray | None = None, now: int = 0
    ) -> LevelCounts:
        """Fills ``out``; returns hits as ``host`` and misses as ``disk``.

        Should reading fail, the cache begins anew, empty.
        """
        missing = np.empty(len(ids), np.int64)
        count = self._cache.lookup(ids, missing, next_use, now)
        held = len(ids) - count
        # The rows from below land at the end of `out` and are expanded in place, as packed rows are.
        self._below.read_rows(missing[:count], out[held * self._below.row_bytes :])
        self._cache.complete(self._workers, out)
        return {Level.HOST: held, Level.DISK: count}

    def close(self) -> None:
        self._below.close()
        del self._cache


@final
class DynamicRows(RowSource):
    """Keeps the rows that a replacement policy chooses in memory, over another source: GraphBolt's CPU-cached feature.

    A batch is served as if its rows were requested one after the other, in the order of ``ids``, so hits are exactly
    those of the published policy: LRU; SIEVE (Zhang et al., NSDI'24, algorithm 1); S3-FIFO (Yang et al., SOSP'23,
    algorithm 1). What the batch misses is read at once, pages merged.

    Args:
        policy: ``lru``, ``sieve`` or ``s3fifo``.
        rows: Capacity; may be smaller than a batch, also 0.

    Raises:
        ArgumentError: The policy is unknown.
        BudgetError: So many rows do not fit.
    """

    def __init__(self, below: RowSource, runtime: Runtime, *, policy: str, rows: int):
        if policy not in CACHE_POLICIES:
            raise ArgumentError(f"cache policy {policy!r} is unknown; known: {', '.join(CACHE_POLICIES)}")
        self.num_rows, self.row_bytes = below.num_rows, below.row_bytes
        self._reader = CacheReader(below, runtime, policy, rows)

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        self._check(ids, out)
        return self._reader.read(ids, out)

    def close(self) -> None:
        self._reader.close()
