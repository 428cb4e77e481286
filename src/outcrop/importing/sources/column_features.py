"""Columns of tables as features: standardised numbers, and words as columns of 0 and 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyarrow import compute

from outcrop.errors import FormatError
from outcrop.importing.sources.base import FeatureSource
from outcrop.importing.sources.column_survey import ColumnFacts, filled_words, null_words
from outcrop.importing.sources.ids import is_text
from outcrop.importing.sources.table_files import FileTable
from outcrop.importing.sources.table_keys import is_written, text_type
from outcrop.importing.sources.tables import Place, Table
from outcrop.runtime.runtime import Runtime

_SHOWN = 3  # names of columns, of many
_MOST_WORDS = 1000  # of a column: each becomes a column of the features


@dataclass(frozen=True)
class ColumnFeatures:
    """Says what columns of a table become: float32 [n, width], numbers first.

    Numbers are standardised, ``numpy.nan_to_num((x - numpy.nanmean(x, 0)) / numpy.nanstd(x, 0))`` of float64 ``x``. Of
    a column of words each word is a column of its own, 1 where a cell has it and 0 elsewhere:
    ``pandas.get_dummies(x.str.strip())``.

    Attributes:
        table: The table.
        numbers: What columns of numbers hold, by their names.
        words: Words of the other columns, by their names: text, ascending.
    """

    table: Table
    numbers: Mapping[str, ColumnFacts]
    words: Mapping[str, pa.Array] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """Returns the columns of the table, in the order of the features."""
        return [*self.numbers, *self.words]

    @property
    def width(self) -> int:
        """Returns how many columns the features have."""
        return len(self.numbers) + sum(map(len, self.words.values()))

    def column_of(self, feature: int) -> str:
        """Returns the column of the table that a feature comes from."""
        wide = [(name, 1) for name in self.numbers] + [
            (name, len(words)) for name, words in self.words.items()
        ]
        ends = np.cumsum([width for _, width in wide])
        return wide[int(np.searchsorted(ends, feature, side="right"))][0]

    def of(self, block: Sequence[pa.Array]) -> np.ndarray:
        """Returns the features of a block of :attr:`columns`, whose numbers may be written as text."""
        null = null_words(self.table)
        rows = np.zeros((len(block[0]), self.width), np.float32)
        for at, (cells, one) in enumerate(zip(block, self.numbers.values(), strict=False)):
            filled = filled_words(cells, null) if is_text(cells) else cells
            numbers = filled.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            # Column by column: NumPy crashes where it finds no memory to go over several (npyiter_allocate_buffers).
            scaled = (numbers - one.mean) / one.deviation
            rows[:, at] = np.where(np.isnan(scaled), 0, scaled)
        at = len(self.numbers)
        for cells, words in zip(block[at:], self.words.values(), strict=True):
            options = compute.SetLookupOptions(value_set=words)
            places = (
                compute.call_function("index_in", [_as_words(self.table, cells)], options)
                .fill_null(-1)
                .to_numpy()
            )
            filled_rows = np.flatnonzero(places >= 0)
            rows[filled_rows, at + places[filled_rows]] = 1
            at += len(words)
        return rows

    def source(self, runtime: Runtime, num_rows: int) -> FeatureSource:
        """Returns the features of all ``num_rows`` rows; ``runtime``'s budget holds what is read."""
        as_numbers = pa.float64() if is_written(self.table) else None
        dtype = text_type(self.table) if self.words else as_numbers

        def blocks(rows: int) -> Iterator[np.ndarray]:
            for block in self.table.blocks(runtime, self.columns, rows, dtype):
                # A block of text has as many rows as its bytes hold, and words make many columns of one.
                for start in range(0, len(block[0]), rows):
                    yield self.of([cells.slice(start, rows) for cells in block])

        def where(row: int, column: int) -> str:
            return Place(self.table, self.column_of(column)).at(row)

        return FeatureSource(self.table.name, np.dtype(np.float32), num_rows, self.width, blocks, where=where)

    def said(self) -> str:
        """Says which columns are features, and how many of their cells are 0 for they are empty."""
        said = f"features are {', '.join(self.numbers)} (standardised)" if self.numbers else ""
        empty = {name: one.empty for name, one in self.numbers.items() if one.empty}
        if empty:
            most = sorted(empty, key=lambda name: -empty[name])[:_SHOWN]
            listed = ", ".join(f"{name} {empty[name]:,}" for name in most)
            where = f"in {len(empty)} columns, most in {listed}" if len(empty) > _SHOWN else listed
            said += f"; empty cells became 0: {where} of {next(iter(self.numbers.values())).rows:,} rows"
        made = ", ".join(f"{name} {len(words):,}" for name, words in self.words.items())
        return "; ".join(filter(None, [said, made and f"words became columns of 0 and 1: {made}"]))


def require_number(place: Place, facts: ColumnFacts) -> None:
    """Raises FormatError where a column cannot be a feature, and says why."""
    leave = "leave the column out of the features"
    if facts.kind == "text":
        row, word = facts.odd or (0, "")
        raise FormatError(
            f"{place.at(row)}: {word!r} is no number, and features are numbers: correct it, or {leave}; words that "
            "stand for kinds are named in categories = [...]"
        )
    if not facts.is_number:
        raise FormatError(f"{place} holds no numbers: {leave}")
    if facts.infinite is not None:
        raise FormatError(f"{place.at(facts.infinite)} is not finite: correct it, or {leave}")


def words_of(runtime: Runtime, table: Table, columns: Sequence[str]) -> dict[str, pa.Array]:
    """Reads columns and returns the different words of each, ascending; of numbers, dates and the like as text.

    Raises:
        FormatError: A column has too many of them, or holds what has no words, such as lists.
    """
    found: dict[str, set[str]] = {column: set() for column in columns}
    for block in table.blocks(runtime, list(columns), dtype=text_type(table)) if columns else ():
        for column, cells in zip(columns, block, strict=True):
            try:
                words = compute.call_function("unique", [_as_words(table, cells)]).drop_null().to_pylist()
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise FormatError(
                    f"{Place(table, column)} holds {cells.type}, no words: leave it out of the categories"
                ) from None
            found[column].update(words)
            if len(found[column]) > _MOST_WORDS:
                raise FormatError(
                    f"{Place(table, column)} holds more than {_MOST_WORDS:,} different words, each of which would be a "
                    "column of the features: leave it out of the categories"
                )
    return {column: pa.array(sorted(words), pa.string()) for column, words in found.items()}


def _as_words(table: Table, cells: pa.Array) -> pa.Array:
    """Returns cells as text without blanks around it, null where they are empty; the number 5.0 is 5. Words such as NA
    are words here, unless the table is said to have them for no value.
    """
    cells = cells.cast(cells.type.value_type) if pa.types.is_dictionary(cells.type) else cells
    if pa.types.is_floating(cells.type):
        missing = compute.call_function("is_nan", [cells])
        cells = compute.call_function("if_else", [missing, pa.scalar(None, cells.type), cells])
    none = table.form.null_words if isinstance(table, FileTable) else ()
    return filled_words(cells.cast(pa.string()), pa.array(["", *none]))
