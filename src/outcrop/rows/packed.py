"""The rows of one packed mini-batch, as a RowSource."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np

from outcrop.errors import ArgumentError
from outcrop.rows.base import RowSource


@final
class PackedRows(RowSource):
    """The rows of one packed mini-batch: ``ids`` must be the batch's ``n_id``.

    Args:
        read: ``read(out)`` delivers the batch's rows (stages/load.py).
    """

    def __init__(self, n_id: np.ndarray, row_bytes: int, read: Callable[[np.ndarray], dict[str, int]]):
        self.num_rows, self.row_bytes = int(n_id.max(initial=-1)) + 1, row_bytes
        self._n_id, self._read = n_id, read

    def close(self) -> None:
        self._n_id = self._n_id[:0]

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> dict[str, int]:
        self._check(ids, out)
        if not np.array_equal(ids, self._n_id):
            raise ArgumentError("packed rows come as the whole mini-batch, in its order: pass its n_id")
        return self._read(out)
