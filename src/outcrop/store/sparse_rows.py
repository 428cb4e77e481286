"""Features that are mostly zeros: what a graph stores of them, and how their values come back.

Rows have one width, which is that of the row with the most values that are not zero: their number, their columns, and
the values, or only the columns where all values of all rows are equal, as those of bags of words are. Zero is what has
no bit set: -0.0 and NaN are stored, and every value comes back as it was, bit for bit (core/io/sparse_rows.h has the
layout of a row).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

import outcrop._core as _core
from outcrop.errors import FormatError
from outcrop.store.arrays import storage_dtype
from outcrop.store.manifest import ArraySpec
from outcrop.store.row_decoder import RowDecoder, aligned

ATTRIBUTE = "sparse"  # of a graph without types, or of a node type: what is stored of its features
MOST_COLUMNS = (1 << 32) - 1


@dataclass(frozen=True)
class SparseLayout:
    """Says how the values of a row file are stored.

    Attributes:
        dtype: Type of the values, such as ``float32``.
        columns: Values of a row.
        stored: Values that a row stores at the most, 1 or more.
        common: The bits of every stored value, as an unsigned number; None: rows have their values.
    """

    dtype: str
    columns: int
    stored: int
    common: int | None

    @property
    def value_bytes(self) -> int:
        """Counts the bytes of a value."""
        return storage_dtype(self.dtype).itemsize

    @property
    def column_dtype(self) -> np.dtype:
        """Returns the type of the number of stored values and of their columns: the smallest that holds ``columns``."""
        return np.min_scalar_type(self.columns).newbyteorder("<")

    @property
    def values_at(self) -> int:
        """Counts the bytes of a row in front of its values."""
        return self.column_dtype.itemsize * (1 + self.stored)

    @property
    def row_bytes(self) -> int:
        """Counts the bytes of a row."""
        return self.values_at + (self.value_bytes * self.stored if self.common is None else 0)

    @property
    def dense_bytes(self) -> int:
        """Counts the bytes of a row with all its values."""
        return self.value_bytes * self.columns

    @property
    def words(self) -> str:
        """Returns what people are told of it: ``float32, sparse: up to 30 values in a row``."""
        return f"{self.dtype}, sparse: up to {self.stored} values in a row"

    def as_attribute(self) -> dict[str, Any]:
        """Returns what the manifest says of it."""
        return asdict(self)


def sparse_layout_of(attributes: Mapping[str, Any]) -> SparseLayout | None:
    """Returns how features are stored, by the attributes of a graph or a node type; None: not sparse.

    The attributes have been checked (:func:`problem_of_sparse`).
    """
    stored = attributes.get(ATTRIBUTE)
    return None if stored is None else SparseLayout(**stored)


def problem_of_sparse(
    attributes: Mapping[str, Any], arrays: Mapping[str, ArraySpec], prefix: str
) -> str | None:
    """Says what is wrong with what a manifest says of sparse features; None where nothing is.

    Args:
        attributes: Those of the graph or the node type.
        prefix: What the names of its arrays begin with.
    """
    stored, name = attributes.get(ATTRIBUTE), f"{prefix}features"
    if stored is None:
        return None
    if not isinstance(stored, dict) or stored.keys() != {"dtype", "columns", "stored", "common"}:
        return f"array {name!r} is sparse as {str(stored)[:80]!r}, dtype, columns, stored and common were expected"
    if wrong := _problem_of_numbers(stored, name):
        return wrong
    spec, layout = arrays.get(name), SparseLayout(**stored)
    if spec is None:
        return f"array {name!r} is missing, and is said to be sparse"
    if (
        spec.dtype != "uint8"
        or spec.shape[1:] != (layout.row_bytes,)
        or spec.stride_bytes != layout.row_bytes
    ):
        return (
            f"array {name!r} is {spec.dtype} {list(spec.shape)}, uint8 with rows of {layout.row_bytes} bytes was "
            f"expected for {layout.stored} of {layout.columns} values of {layout.dtype}"
        )
    return None


def _problem_of_numbers(stored: Mapping[str, Any], name: str) -> str | None:
    try:
        value_bytes = storage_dtype(stored["dtype"]).itemsize
    except (FormatError, TypeError):
        return f"array {name!r} is sparse, of dtype {stored['dtype']!r}, which is unknown"
    columns, most, common = stored["columns"], stored["stored"], stored["common"]
    if type(columns) is not int or not 1 <= columns <= MOST_COLUMNS:
        return f"array {name!r} has {columns!r} columns, a whole number from 1 to {MOST_COLUMNS} is needed"
    if type(most) is not int or not 1 <= most <= columns:
        return f"array {name!r} stores {most!r} values of a row, a whole number from 1 to {columns} is needed"
    if common is not None and (type(common) is not int or not 0 <= common < 1 << 8 * value_bytes):
        return f"array {name!r} has {common!r} as the bits of all values, which are {value_bytes} bytes"
    return None


@final
class SparseDecoder(RowDecoder):
    """Makes values of the rows of a row file that stores only what is not zero.

    Args:
        layout: How they are stored.
    """

    rows_can_be_wrong = True

    def __init__(self, layout: SparseLayout, folder: Path, file: str):
        super().__init__(folder, file)
        self.layout, self.columns, self.dtype = layout, layout.columns, layout.dtype
        self.row_bytes, self.words = layout.row_bytes, layout.words

    def values(
        self, rows: np.ndarray, workers: _core.WorkerPool, room: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns the values of rows, as :meth:`RowDecoder.values` says.

        Equals, for each row i, ``out[i] = 0; out[i, columns[i, :count[i]]] = values[i, :count[i]]``.
        """
        layout = self.layout
        out = aligned(len(rows), layout.columns, storage_dtype(layout.dtype), room)
        rows = np.ascontiguousarray(rows)
        wrong = _core.unpack_sparse_rows(
            workers, rows, layout.value_bytes, layout.stored, layout.common, out.view(np.uint8)
        )
        if wrong < len(rows):
            raise self.refusal(rows[wrong])
        return out

    def first_wrong(self, rows: np.ndarray) -> int:
        """Finds the first row that stores more values than it can, or whose columns do not rise or are none."""
        count, columns = self._parts(rows)
        used = np.arange(self.layout.stored) < count[:, None]
        falls = (columns[:, 1:] <= columns[:, :-1]) & used[:, 1:]
        bad = (count > self.layout.stored) | ((columns >= self.columns) & used).any(1) | falls.any(1)
        wrong = np.flatnonzero(bad)
        return int(wrong[0]) if len(wrong) else len(rows)

    def fault(self, row: np.ndarray) -> str:
        counts, columns = self._parts(row[None])
        count, most = int(counts[0]), self.layout.stored
        if count > most:
            return f"has {count} stored values, and at most {most} have room"
        used = columns[0, :count]
        beyond = used[used >= self.columns]
        if len(beyond):
            return f"has a value in column {int(beyond[0])}, and there are {self.columns} columns"
        falls = np.flatnonzero(used[1:] <= used[:-1])
        return f"has column {int(used[falls[0] + 1])} behind column {int(used[falls[0]])}, and columns rise"

    def _parts(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of stored values [n] and their columns [n, stored], which are 0 where none is left."""
        head = np.ascontiguousarray(rows[:, : self.layout.values_at]).view(self.layout.column_dtype)
        return head[:, 0], head[:, 1:]
