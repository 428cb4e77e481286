"""Mode ``dynamic``, a baseline: a cache that decides at every batch what it keeps.

Each row file has a cache of its own. They divide what there is in proportion to the bytes that the first epoch wants of
each; what a small row file needs no longer is for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, final

from outcrop.config import CACHE_POLICIES
from outcrop.errors import ArgumentError
from outcrop.loading.feeders import BatchStructures
from outcrop.loading.modes.base import RowMode, SessionRequest
from outcrop.loading.online.hotness import PRESAMPLED_BATCHES
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
        left = request.cache_bytes(part) if self.cache_rows is None else self.cache_rows
        wanted = _bytes_wanted(rows, request, structures)
        caches: dict[int, RowSource] = {}
        for number in sorted(range(len(rows)), key=lambda k: _bytes_of(rows[k]) / max(wanted[k], 1)):
            of_all = sum(count for k, count in enumerate(wanted) if k not in caches)
            room = left * wanted[number] // max(of_all, 1)
            caches[number], taken = self._cache(rows[number], request.runtime, room)
            left -= taken
        return [caches[number] for number in range(len(rows))]

    def _cache(self, below: RowSource, runtime: Runtime, room: int) -> tuple[RowSource, int]:
        """Makes a cache; returns how much of ``room`` it takes, too: bytes, or rows where their number is given."""
        before, count = runtime.budget.free_bytes, min(room, below.num_rows)
        if self.cache_rows is None:
            count = rows_within(self.cache_policy, room, below.row_bytes, below.num_rows)
        made = DynamicRows(below, runtime, policy=self.cache_policy, rows=count)
        return made, before - runtime.budget.free_bytes if self.cache_rows is None else count


def _bytes_of(rows: RowSource) -> int:
    return rows.num_rows * rows.row_bytes


def _bytes_wanted(
    rows: Sequence[RowSource], request: SessionRequest, structures: BatchStructures
) -> list[int]:
    """Counts the bytes of each row file that batches of the first epoch want; where none are drawn, those it has."""
    if len(rows) == 1:
        return [1]  # which has everything
    if request.runtime.rehearsal is not None:
        return [_bytes_of(source) for source in rows]
    splits = request.config.splits
    split = "train" if "train" in splits else splits[0]
    wanted = [0] * len(rows)
    for batch in islice(structures.batches(split, 0), PRESAMPLED_BATCHES):
        for number, count in enumerate(batch.num_rows(request.graph.row_files)):
            wanted[number] += count * rows[number].row_bytes
    return wanted
