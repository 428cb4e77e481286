"""Writes features in few bits: codes of rows, and where scales are of columns what these are.

Rows come as float32, a block at a time. Scales of columns need the least and the largest value of each column, so all
rows are seen once before the first is written; a row that has its own scale is written when it comes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np

import outcrop._core as _core
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import ArrayWriter
from outcrop.store.manifest import ArraySpec
from outcrop.store.quantised import SCALES_ARRAY, Quantisation


def quantisation_for(dtype: Any, scale: Any, columns: int) -> Quantisation:
    """Returns how features are stored, by options that were checked; where nothing is said each column has a scale."""
    return Quantisation(dtype, scale or "column", columns)


@final
class RowQuantiser:
    """Writes the array ``features`` of a graph in few bits, and the scales of its columns.

    Call :meth:`widen` with all rows first, where scales are of columns, then :meth:`begin`, and :meth:`append` with all
    rows again, in the order of the nodes.

    Args:
        work: Folder of the arrays.
        rows: Most rows that come at a time.
    """

    def __init__(self, quantisation: Quantisation, runtime: Runtime, work: Path, rows: int):
        self._as, self._runtime, self._work = quantisation, runtime, work
        by_column = quantisation.scale == "column"
        held = runtime.budget.empty("import", 8 * quantisation.columns if by_column else 0)
        self._scales = held.view(np.float32).reshape(-1, quantisation.columns)
        if by_column:
            self._scales[0], self._scales[1] = np.inf, -np.inf
        self._codes = runtime.budget.empty("import", rows * quantisation.row_bytes)
        self._writer: ArrayWriter | None = None

    def widen(self, values: np.ndarray) -> None:
        """Takes note of the ranges of ``values``, finite float32 [n, columns]."""
        _core.widen_ranges(values, self._scales)

    def begin(self) -> None:
        """Makes scales of the ranges; no more are taken note of."""
        if len(self._scales):
            _core.scales_of_ranges(self._scales, self._as.bits)
        self._writer = ArrayWriter(
            self._runtime, self._work, "features", "uint8", (self._as.row_bytes,), page_sums=True
        )

    def append(self, values: np.ndarray) -> None:
        """Writes rows, finite float32 [n, columns].

        Equals, with scale and offset of float32 widened to float64,
        ``np.clip(np.rint((values.astype(float64) - offset) / scale), 0, largest_code)``, 0 where the scale is 0.
        """
        assert self._writer is not None
        codes = self._codes[: len(values) * self._as.row_bytes].reshape(len(values), -1)
        _core.quantise_rows(np.ascontiguousarray(values), self._as.bits, self._scales, codes)
        self._writer.append(codes)

    def finish_into(self, arrays: dict[str, ArraySpec]) -> None:
        """Finishes the files and puts what they are into ``arrays``."""
        assert self._writer is not None
        self._writer.finish_into(arrays)
        if len(self._scales):
            scales = ArrayWriter(self._runtime, self._work, SCALES_ARRAY, "float32", (self._as.columns,))
            scales.append(self._scales)
            arrays[SCALES_ARRAY] = scales.finish()
