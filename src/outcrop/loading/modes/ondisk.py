"""Mode ``ondisk``, a baseline: every row is a read of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from outcrop.loading.modes.base import RowMode, SessionRequest
from outcrop.rows import RowSource, disk_rows
from outcrop.store.graph_types import RowFile


@final
@dataclass(frozen=True)
class OnDisk(RowMode):
    """Reads rows one by one, with no cache."""

    name = "ondisk"

    def open_rows(self, request: SessionRequest, file: RowFile) -> RowSource:
        return disk_rows(request.graph, request.runtime, file, merge=False)
