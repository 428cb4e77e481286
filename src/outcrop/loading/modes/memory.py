"""Mode ``memory``: all features in memory, which the other modes are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from outcrop.device import gpu_named
from outcrop.loading.modes.base import RowMode, SessionRequest
from outcrop.rows import HostRows, RowSource
from outcrop.store.graph_types import RowFile


@final
@dataclass(frozen=True)
class InMemory(RowMode):
    """Reads all features once; a GPU reads the rows where they are, of a graph with one row file."""

    name = "memory"
    takes_run_budget = False

    def open_rows(self, request: SessionRequest, file: RowFile) -> RowSource:
        features = request.graph.open_rows(request.runtime, file)
        if gpu_named(request.device.name) is None or len(request.graph.row_files) > 1:
            return HostRows(features, request.runtime)
        from outcrop.rows.unified import UnifiedRows  # brings torch

        return UnifiedRows(features, request.runtime)
