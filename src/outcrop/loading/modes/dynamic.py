"""Mode ``dynamic``, a baseline: a cache that decides at every batch what it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from outcrop.config import CACHE_POLICIES
from outcrop.errors import ArgumentError
from outcrop.loading.feeders import BatchStructures
from outcrop.loading.modes.base import RowMode, SessionRequest
from outcrop.rows import DynamicRows, RowSource, disk_rows
from outcrop.runtime import memory_tables
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
        (only,) = rows
        policy, count = self.cache_policy, self.cache_rows
        grow = request.max_rows is None  # buffers do, and have the rest
        part = memory_tables.GROWING_CACHE if grow else memory_tables.ROW_CACHE
        if count is None:
            count = request.rows_that_fit(only, policy, part)
        return [DynamicRows(only, request.runtime, policy=policy, rows=min(count, only.num_rows))]
