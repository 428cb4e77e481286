"""Mode ``dynamic``, a baseline: a cache that decides at every batch what it keeps.

Each row file has a cache of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from outcrop.config import CACHE_POLICIES
from outcrop.errors import ArgumentError
from outcrop.loading.division import bytes_wanted, make_caches
from outcrop.loading.feeders import BatchStructures
from outcrop.loading.modes.base import RowMode, SessionRequest
from outcrop.rows import DynamicRows, RowSource, disk_rows, rows_within
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph_types import RowFile


@final
@dataclass(frozen=True)
class Dynamic(RowMode):
    """Keeps rows in a cache under a policy.

    Attributes:
        cache_policy: What leaves the cache first: ``sieve``, ``lru`` or ``s3fifo``.
        cache_rows: Rows that the cache holds; None: as many as the budget allows.
    """

    cache_policy: Literal["sieve", "lru", "s3fifo"] = "sieve"
    cache_rows: int | None = None

    name = "dynamic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cache_policy not in CACHE_POLICIES:
            known = ", ".join(CACHE_POLICIES)
            raise ArgumentError(f"cache policy {self.cache_policy!r} is unknown; known: {known}")
        if self.cache_rows is not None and self.cache_rows < 0:
            raise ArgumentError(f"{self.cache_rows} cache rows is negative")

    def open_rows(self, request: SessionRequest, file: RowFile) -> RowSource:
        return disk_rows(request.graph, request.runtime, file)

    def cached(
        self, rows: list[RowSource], request: SessionRequest, structures: BatchStructures
    ) -> list[RowSource]:
        grow = request.max_rows is None  # buffers do, and have the rest
        part = memory_tables.GROWING_CACHE if grow else memory_tables.ROW_CACHE
        room = request.cache_bytes(part) if self.cache_rows is None else self.cache_rows
        if grow and self.cache_rows is None:  # a cache holds rows as they lie, buffers their values too
            files = request.graph.row_files
            in_batch = sum(file.batch_row_bytes for file in files)
            room = room * sum(file.row_bytes for file in files) // max(in_batch, 1)
        wanted = bytes_wanted(rows, request, structures)
        caches: list[RowSource] = []
        caches += make_caches(
            rows, wanted, room, lambda number, some: self._cache(rows[number], request.runtime, some)
        )
        return caches

    def _cache(self, below: RowSource, runtime: Runtime, room: int) -> tuple[DynamicRows, int]:
        """Makes a cache; returns how much of ``room`` it takes, too: bytes, or rows where their number is given."""
        before, count = runtime.budget.free_bytes, min(room, below.num_rows)
        if self.cache_rows is None:
            count = rows_within(self.cache_policy, room, below.row_bytes, below.num_rows)
        made = DynamicRows(below, runtime, policy=self.cache_policy, rows=count)
        return made, before - runtime.budget.free_bytes if self.cache_rows is None else count
