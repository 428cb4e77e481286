"""Mode ``belady``, a baseline: the cache that misses the fewest rows, because it knows what comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from outcrop.loading.feeders import RecordedStructures
from outcrop.loading.modes.base import Mode, SessionRequest
from outcrop.loading.session import LoadSession, scheduled_session
from outcrop.rows import BeladyRows, NextUses, disk_rows, rows_within, schedule_of
from outcrop.runtime import memory_tables


@final
@dataclass(frozen=True)
class Belady(Mode):
    """Keeps the rows of recorded batches, whose next uses are known.

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

    def open(self, request: SessionRequest) -> LoadSession:
        graph, runtime, recorded = request.graph, request.runtime, request.recorded
        assert recorded is not None
        pool = request.make_pool()
        below = disk_rows(graph, runtime, graph.row_file)
        structures = RecordedStructures(recorded, runtime)
        uses = NextUses(recorded, graph.row_file, schedule_of(recorded, request.epoch_splits), runtime)
        count = self.cache_rows
        if count is None:
            room = request.cache_bytes(memory_tables.ROW_CACHE)
            count = rows_within("belady", room, below.row_bytes, below.num_rows, uses.cycle)
        rows = BeladyRows(below, runtime, uses, rows=min(count, below.num_rows))
        return scheduled_session(graph, structures, rows, pool, runtime, request.device)
