"""Mode ``memmap``, a baseline: a memory map and the system's page cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from outcrop.loading.modes.base import RowMode, SessionRequest
from outcrop.rows import MapRows, RowSource
from outcrop.store.graph_types import RowFile


@final
@dataclass(frozen=True)
class Memmap(RowMode):
    """Does what ``numpy.memmap`` does."""

    name = "memmap"

    def open_rows(self, request: SessionRequest, file: RowFile) -> RowSource:
        return MapRows(request.graph.open_rows(request.runtime, file))
