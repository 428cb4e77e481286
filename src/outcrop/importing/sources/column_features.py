"""Columns of tables as features: standardised numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from outcrop.errors import FormatError
from outcrop.importing.sources.base import FeatureSource
from outcrop.importing.sources.column_survey import ColumnFacts, filled_words, null_words
from outcrop.importing.sources.ids import is_text
from outcrop.importing.sources.table_keys import is_written
from outcrop.importing.sources.tables import Place, Table
from outcrop.runtime.runtime import Runtime

_SHOWN = 3  # names of columns, of many


def require_number(place: Place, facts: ColumnFacts) -> None:
    """Raises FormatError where a column cannot be a feature, and says why."""
    leave = "leave the column out of the features"
    if facts.kind == "text":
        row, word = facts.odd or (0, "")
        raise FormatError(
            f"{place.at(row)}: {word!r} is no number, and features are numbers: correct it, or {leave}"
        )
    if not facts.is_number:
        raise FormatError(f"{place} holds no numbers: {leave}")
    if facts.infinite is not None:
        raise FormatError(f"{place.at(facts.infinite)} is not finite: correct it, or {leave}")


def said_of(facts: Mapping[str, ColumnFacts]) -> str:
    """Says which columns are features, and how many of their cells :func:`standardised` makes 0 for they are empty."""
    empty = {name: one.empty for name, one in facts.items() if one.empty}
    said = f"features are {', '.join(facts)} (standardised)"
    if empty:
        most = sorted(empty, key=lambda name: -empty[name])[:_SHOWN]
        listed = ", ".join(f"{name} {empty[name]:,}" for name in most)
        where = f"in {len(empty)} columns, most in {listed}" if len(empty) > _SHOWN else listed
        said += f"; empty cells became 0: {where} of {next(iter(facts.values())).rows:,} rows"
    return said


def standardised_block(
    table: Table, facts: Mapping[str, ColumnFacts], block: Sequence[pa.Array]
) -> np.ndarray:
    """Returns a block of numbers, or of text that says them, as :func:`standardised` has them: float32 [n, D]."""
    rows = np.empty((len(block[0]), len(block)), np.float32)
    for at, (cells, one) in enumerate(zip(block, facts.values(), strict=True)):
        filled = filled_words(cells, null_words(table)) if is_text(cells) else cells
        numbers = filled.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        # Column by column: NumPy crashes where it finds no memory to go over several (npyiter_allocate_buffers).
        scaled = (numbers - one.mean) / one.deviation
        rows[:, at] = np.where(np.isnan(scaled), 0, scaled)
    return rows


def standardised(
    runtime: Runtime, table: Table, facts: Mapping[str, ColumnFacts], num_rows: int
) -> FeatureSource:
    """Returns columns of numbers as features float32: less their mean, by their deviation, and 0 where a cell is empty.

    Equals ``numpy.nan_to_num((x - numpy.nanmean(x, 0)) / numpy.nanstd(x, 0))`` of float64 ``x``.

    Args:
        runtime: Runtime whose budget holds what is read.
        table: The table.
        facts: What its columns hold, by their names, in the order of the features.
        num_rows: Rows of the table.
    """
    columns = list(facts)

    def blocks(rows: int) -> Iterator[np.ndarray]:
        for block in table.blocks(runtime, columns, rows, pa.float64() if is_written(table) else None):
            yield standardised_block(table, facts, block)

    def where(row: int, column: int) -> str:
        return Place(table, columns[column]).at(row)

    return FeatureSource(table.name, np.dtype(np.float32), num_rows, len(columns), blocks, where=where)
