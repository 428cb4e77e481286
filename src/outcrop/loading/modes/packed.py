"""Mode ``packed``: the rows of every batch lie on disk in the order of their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from outcrop.loading.modes.base import Mode, SessionRequest
from outcrop.loading.run_stages import open_plan, read_pack_manifest
from outcrop.loading.session import LoadSession, packed_session
from outcrop.rows import rows_below
from outcrop.store import packed


@final
@dataclass(frozen=True)
class Packed(Mode):
    """Reads the records of a run in large pieces, one after another."""

    name = "packed"
    note = "default"
    needs_run = True
    prepares = True
    any_nodes = False
    loads_types = True

    def open(self, request: SessionRequest) -> LoadSession:
        graph, runtime, run, recorded = request.graph, request.runtime, request.run, request.recorded
        assert run is not None
        assert recorded is not None
        places = open_plan(graph, runtime, run, recorded)
        read_pack_manifest(run, places)
        records = packed.open_packed(runtime, run / "pack", places, recorded)
        below = [rows_below(graph, runtime, rows) for rows in graph.row_files]
        return packed_session(graph, recorded, records, below, runtime, request.device)
