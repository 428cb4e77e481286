"""Mode ``belady``, a baseline: the cache that misses the fewest rows, because it knows what comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from outcrop.loading.division import bytes_wanted, make_caches
from outcrop.loading.feeders import RecordedStructures
from outcrop.loading.modes.base import Mode, SessionRequest
from outcrop.loading.session import LoadSession, scheduled_session
from outcrop.rows import BeladyRows, NextUses, disk_rows, rows_within, schedule_of
from outcrop.runtime import memory_tables


@final
@dataclass(frozen=True)
class Belady(Mode):
    """Keeps the rows of recorded batches, whose next uses are known; each row file has a cache of its own.

    Attributes:
        cache_rows: Rows that the cache holds; None: as many as the budget allows.
    """

    cache_rows: int | None = None

    name = "belady"
    note = "with --run"
    needs_run = True
    any_nodes = False
    plans_evaluation = True
    starts_within_epoch = False
    loads_types = True

    def open(self, request: SessionRequest) -> LoadSession:
        graph, runtime, recorded = request.graph, request.runtime, request.recorded
        assert recorded is not None
        pool = request.make_pool()
        files = graph.row_files
        below = [disk_rows(graph, runtime, file) for file in files]
        structures = RecordedStructures(recorded, runtime)
        schedule = schedule_of(recorded, request.epoch_splits)
        uses = [NextUses(recorded, file, schedule, runtime) for file in files]
        room = request.cache_bytes(memory_tables.ROW_CACHE) if self.cache_rows is None else self.cache_rows

        def make(number: int, some: int) -> tuple[BeladyRows, int]:
            rows, before = below[number], runtime.budget.free_bytes
            count = min(some, rows.num_rows)
            if self.cache_rows is None:
                count = rows_within("belady", some, rows.row_bytes, rows.num_rows, len(schedule))
            cache = BeladyRows(rows, runtime, uses[number], rows=count)
            return cache, before - runtime.budget.free_bytes if self.cache_rows is None else count

        caches = make_caches(below, bytes_wanted(below, request, structures), room, make)
        return scheduled_session(graph, structures, caches, pool, runtime, request.device)
