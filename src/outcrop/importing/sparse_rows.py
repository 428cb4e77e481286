"""Writes features that are mostly zeros: whether rows are stored sparse, and these rows.

A sparse row has the width of the row that stores the most values, so rows are counted before the first is written.
Where the user leaves the choice, counting ends with the first block that shows that rows would not be half as large: of
features that are not mostly zeros one block is read twice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import final

import numpy as np

import outcrop._core as _core
from outcrop.config.graphs import FeatureStorage
from outcrop.errors import FormatError
from outcrop.importing.sources.base import FeatureSource
from outcrop.importing.sources.reorder import short_blocks
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import ArrayWriter, storage_dtype
from outcrop.store.manifest import ArraySpec
from outcrop.store.sparse_rows import MOST_COLUMNS, SparseLayout

_PACKED_BYTES = 32 << 10  # of rows that are packed at a time, or one row
_TASK = "values that are not zero"


@final
class SparseChoice:
    """Decides whether rows of features are stored sparse.

    Args:
        asked: What the user asks for; None: sparse where rows take at most half of the bytes, and are zeros by half.
        dtype: Type that values are stored in.
        columns: Values of a row.
    """

    def __init__(self, asked: FeatureStorage | None, dtype: str, columns: int):
        self._asked, self._dtype, self._columns = asked, dtype, columns
        self._most, self._least, self._largest = 0, (1 << 64) - 1, 0

    @property
    def is_open(self) -> bool:
        """Tells whether values have to be counted, and memory to be had for packed rows."""
        return self._asked != "dense" and self._columns <= MOST_COLUMNS

    def packed_bytes(self, rows: int) -> int:
        """Counts the bytes of memory for packed rows, whatever is chosen.

        Args:
            rows: Most rows that come at a time.
        """
        if not self.is_open:
            return 0
        widest = SparseLayout(self._dtype, self._columns, self._columns, None)
        row_bytes = widest.row_bytes if self._asked else widest.dense_bytes // 2
        return min(rows * row_bytes, max(row_bytes, _PACKED_BYTES))

    def count(
        self,
        features: FeatureSource,
        runtime: Runtime,
        rows: int,
        convert: Callable[[np.ndarray], np.ndarray],
    ) -> SparseLayout | None:
        """Returns how rows are stored; None: with all their values.

        Args:
            rows: Rows to read at a time.
            convert: Makes of a block of the source what is stored of it.
        """
        if not self.is_open:
            return None
        with closing(short_blocks(features, runtime, rows)) as blocks, ExitStack() as task:
            for number, block in enumerate(blocks):
                if runtime.measures:
                    break
                self._add(convert(block))
                if not self._pays:
                    return None
                if number == 0:
                    task.enter_context(runtime.task(_TASK, features.num_rows, "rows"))
                runtime.progress.advance(_TASK, len(block))
        return self._layout

    def _add(self, values: np.ndarray) -> None:
        most, least, largest = _core.count_stored(values.view(np.uint8), values.dtype.itemsize)
        self._most, self._least = max(self._most, most), min(self._least, least)
        self._largest = max(self._largest, largest)

    @property
    def _layout(self) -> SparseLayout:
        """Returns the narrowest rows that hold what was counted."""
        common = self._largest if self._least >= self._largest else None
        return SparseLayout(self._dtype, self._columns, max(self._most, 1), common)

    @property
    def _pays(self) -> bool:
        """Tells whether rows can be sparse, by what was counted until now: they only become wider.

        Each has to be zeros by half, too: rows that are all ones are not what is called sparse.
        """
        layout = self._layout
        half = 2 * layout.row_bytes <= layout.dense_bytes and 2 * self._most <= layout.columns
        return self._asked is not None or half

    def note(self, layout: SparseLayout) -> str:
        """Says why rows are stored sparse."""
        sizes = f"{layout.row_bytes} bytes a row, where all values would take {layout.dense_bytes}"
        why = f"at most {self._most} of the {layout.columns} values of a row are not zero"
        if layout.row_bytes >= layout.dense_bytes:
            return (
                f"features are stored sparse, as is asked for, and that saves nothing: {sizes}, for {why}; leave out "
                "--feature-storage (ImportConfig(feature_storage=...))"
            )
        return f"features are stored sparse: {sizes}, for {why}"


@final
class SparseRowWriter:
    """Writes the array ``features`` of a graph, rows that are stored sparse.

    Args:
        work: Folder of the arrays.
        packed: Memory for packed rows, uint8, of at least one row.
        name: What messages call the features.
    """

    def __init__(self, layout: SparseLayout, runtime: Runtime, work: Path, packed: np.ndarray, name: str):
        self._layout, self._name = layout, name
        self._rows = max(len(packed) // layout.row_bytes, 1)
        self._packed = packed[: self._rows * layout.row_bytes].reshape(self._rows, -1)
        self._writer = ArrayWriter(runtime, work, "features", "uint8", (layout.row_bytes,), page_sums=True)

    def append(self, values: np.ndarray) -> None:
        """Writes rows, [n, columns] in the storage of the layout's dtype.

        Raises:
            FormatError: The layout has no room for a row: it is not among those that were counted.
        """
        layout = self._layout
        assert values.dtype == storage_dtype(layout.dtype)
        for first in range(0, len(values), self._rows):
            part = values[first : first + self._rows]
            packed = self._packed[: len(part)]
            wrong = _core.pack_sparse_rows(
                part.view(np.uint8), layout.value_bytes, layout.stored, layout.common, packed
            )
            if wrong < len(part):
                raise FormatError(
                    f"{self._name} was changed while it was imported: a row has other values than were counted; import "
                    "it again when nothing writes to it"
                )
            self._writer.append(packed)

    def finish_into(self, arrays: dict[str, ArraySpec]) -> None:
        """Finishes the files and puts what they are into ``arrays``."""
        self._writer.finish_into(arrays)
