"""Rows that are not here: what lies below the records of a run whose graph has left its features in a store."""

from __future__ import annotations

from typing import final

import numpy as np

from outcrop.errors import FormatError
from outcrop.rows.base import RowSource
from outcrop.store.levels import LevelCounts


@final
class AbsentRows(RowSource):
    """Refuses to read rows, and says where they are.

    Args:
        why: What the error says.
    """

    def __init__(self, num_rows: int, row_bytes: int, why: str):
        self.num_rows, self.row_bytes, self._why = num_rows, row_bytes, why

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        """Reads nothing of no rows.

        Raises:
            FormatError: Any are asked for.
        """
        self._check(ids, out)
        if len(ids):
            raise FormatError(self._why)
        return {}

    def close(self) -> None:
        """Has nothing to give back."""
