"""What the columns of a table hold, found by reading them once.

A column of text is one of numbers where every cell that is filled is one. Means and deviations are added up over pieces
of a fixed number of rows, so that they do not depend on how much is read at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from pyarrow import compute

from outcrop.importing.sources.ids import is_text
from outcrop.importing.sources.table_files import FileTable
from outcrop.importing.sources.table_keys import text_type
from outcrop.importing.sources.tables import Table, trimmed
from outcrop.runtime.runtime import Runtime

Kind = Literal["integer", "number", "text", "other", "none"]  # "none": no cell is filled
_PIECE_ROWS = 4096
_NUMBERS: tuple[Kind, ...] = ("integer", "number")
_TYPES: dict[Kind, pa.DataType] = {"integer": pa.int64(), "number": pa.float64()}


@dataclass(frozen=True)
class ColumnFacts:
    """Says what a column holds.

    Attributes:
        kind: What its cells are.
        mean, deviation: Of the cells that are filled, of a column of numbers; a deviation of 0 is 1.
        odd: The first cell that is no number, where the kind is ``text``: its row and what it holds.
        infinite: First row that is not finite; None where all are.
        empty: Cells that hold no number, of a column of finite numbers.
        rows: Rows of the table.
    """

    kind: Kind
    mean: float
    deviation: float
    odd: tuple[int, str] | None
    infinite: int | None
    empty: int
    rows: int

    @property
    def is_number(self) -> bool:
        """Tells whether the column can be a feature."""
        return self.kind in ("integer", "number")

    @property
    def read_as(self) -> pa.DataType:
        """Returns the type by which cells of text are read."""
        return _TYPES.get(self.kind, pa.string())


class _Moments:
    """Adds up the mean of numbers and their squared distances from it; NaN stands for none.

    Equals ``numpy.nanmean`` and ``len(x) * numpy.nanvar`` of all (Chan, Golub, LeVeque 1983, section 3).
    """

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0
        self._rest = np.zeros(0)

    def add(self, numbers: np.ndarray) -> None:
        """Takes the next numbers, float64 [n]."""
        numbers = np.concatenate([self._rest, numbers])
        whole = len(numbers) // _PIECE_ROWS * _PIECE_ROWS
        for start in range(0, whole, _PIECE_ROWS):
            self._merge(numbers[start : start + _PIECE_ROWS])
        self._rest = numbers[whole:].copy()

    def deviation(self) -> float:
        """Ends the sums and returns the standard deviation of all, 1 where it is 0."""
        self._merge(self._rest)
        self._rest = np.zeros(0)
        return float(np.sqrt(self._squares / self.count)) if self._squares > 0 else 1.0

    def _merge(self, piece: np.ndarray) -> None:
        piece = piece[np.isfinite(piece)]
        if not len(piece):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(piece.mean())
            count, away = self.count + len(piece), mean - self.mean
            self._squares += (
                float(((piece - mean) ** 2).sum()) + away * away * self.count * len(piece) / count
            )
            self.mean += away * len(piece) / count
        self.count = count


def null_words(table: Table) -> pa.Array:
    """Returns the words that stand for no value in columns of numbers."""
    return pa.array(table.null_values if isinstance(table, FileTable) else [""], pa.string())


def filled_words(cells: pa.Array, null: pa.Array) -> pa.Array:
    """Returns cells of text without blanks around them, and null for those that stand for no value."""
    words = trimmed(cells.cast(pa.string()))
    none = compute.call_function("is_in", [words], compute.SetLookupOptions(value_set=null))
    return compute.call_function("if_else", [none, pa.scalar(None, pa.string()), words])


class _Column:
    def __init__(self, table: Table):
        self._null = null_words(table)
        self.kind: Kind = "none"
        self.odd: tuple[int, str] | None = None
        self.infinite: int | None = None
        self.moments = _Moments()
        self.rows = 0

    def add(self, cells: pa.Array) -> None:
        row = self.rows
        self.rows += len(cells)
        if self.kind in ("text", "other"):
            return
        cells = cells.cast(cells.type.value_type) if pa.types.is_dictionary(cells.type) else cells
        if is_text(cells):
            kind, cells = self._parsed(cells, row)
        else:
            kind = _kind_of(cells.type)
        self.kind = _widest(self.kind, kind)
        if self.kind not in ("integer", "number"):
            return
        numbers = cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        if self.infinite is None and np.isinf(numbers).any():
            self.infinite = row + int(np.argmax(np.isinf(numbers)))
        self.moments.add(numbers)

    def _parsed(self, cells: pa.Array, row: int) -> tuple[Kind, pa.Array]:
        words = filled_words(cells, self._null)
        if words.null_count == len(words):
            return "none", words.cast(pa.float64())
        for kind in _NUMBERS:
            try:
                return kind, words.cast(_TYPES[kind])
            except pa.ArrowInvalid:
                pass
        at = _first_odd(words)
        self.odd = row + at, words[at].as_py()
        return "text", words

    def facts(self) -> ColumnFacts:
        deviation = self.moments.deviation()
        mean, empty = self.moments.mean, self.rows - self.moments.count
        return ColumnFacts(self.kind, mean, deviation, self.odd, self.infinite, empty, self.rows)


def _widest(kind: Kind, other: Kind) -> Kind:
    """Returns what a column holds of which some cells are of one kind and some of another."""
    order: tuple[Kind, ...] = ("none", "integer", "number", "text", "other")
    return order[max(order.index(kind), order.index(other))]


def _first_odd(words: pa.Array) -> int:
    """Returns the first cell that is no number; one of them is there."""
    first, last = 0, len(words)
    while last - first > 1:
        middle = (first + last) // 2
        try:
            words[first:middle].cast(pa.float64())
            first = middle
        except pa.ArrowInvalid:
            last = middle
    return first


def _kind_of(kind: pa.DataType) -> Kind:
    if pa.types.is_null(kind):
        return "none"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "integer"
    return "number" if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else "other"


def survey(runtime: Runtime, table: Table, columns: Sequence[str]) -> dict[str, ColumnFacts]:
    """Reads columns of a table, and returns what each holds.

    Raises:
        FormatError: The table is torn, or its lines differ in their number of cells.
    """
    found = {column: _Column(table) for column in columns}
    if columns:
        for block in table.blocks(runtime, list(columns), dtype=text_type(table)):
            for column, cells in zip(found.values(), block, strict=True):
                column.add(cells)
    return {name: column.facts() for name, column in found.items()}
