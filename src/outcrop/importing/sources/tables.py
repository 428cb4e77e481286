"""Foreign tables read in blocks, and where their cells are.

Those in files are in :mod:`outcrop.importing.sources.table_files`, those in memory and streams of other libraries in
:mod:`outcrop.importing.sources.frames`, arrays of NumPy in :mod:`outcrop.importing.sources.npy`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from pyarrow import compute

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.arrow_errors import arrow_errors
from outcrop.importing.sources.base import block_bytes
from outcrop.runtime.runtime import Runtime

# What a decoded block takes next to the bytes it was read from: raw text, Arrow columns and NumPy copies.
_DECODED_FACTOR = 4


def find(folder: Path, stem: str, suffixes: tuple[str, ...]) -> Path | None:
    """Returns the one file ``stem`` + suffix in ``folder``.

    Raises:
        ArgumentError: Several are there.
    """
    paths = [path for suffix in suffixes if os.path.lexists(path := folder / f"{stem}{suffix}")]
    odd = next((path for path in paths if not path.is_file()), None)
    if odd is not None:
        raise ArgumentError(f"{odd} is no file: remove it, or put the file itself there")
    if len(paths) > 1:
        raise ArgumentError(f"{folder} holds {' and '.join(p.name for p in paths)}: keep one of them")
    return paths[0] if paths else None


class Table(ABC):
    """Reads named columns block by block, from the start each time.

    Attributes:
        name: What messages call it: the file, or what the caller calls it.
        columns: The names, each once.
        num_rows: None = known when it was read.
    """

    name: str
    columns: tuple[str, ...]
    num_rows: int | None

    def column(self, *names: str) -> str | None:
        """Returns the first column of one of these names, upper or lower case."""
        lower = {column.lower(): column for column in self.columns}
        return next((lower[name] for name in names if name in lower), None)

    def blocks(
        self,
        runtime: Runtime,
        columns: list[str],
        rows: int | None = None,
        dtype: pa.DataType | None = None,
    ) -> Iterator[list[pa.Array]]:
        """Yields blocks of the given columns, in order.

        Args:
            rows: Most rows of a block (text files: what a block of bytes holds).
            dtype: How cells of text files are read; None = as they look.

        Raises:
            FormatError: The table is torn, or cells do not fit together.
        """
        size = block_bytes(runtime)
        rows = rows or max(1024, size // (8 * max(1, len(columns))))

        def unreadable(error: Exception) -> FormatError:
            if isinstance(error, OSError):
                return FormatError(f"{self.name} is torn or unreadable: {error}")
            return FormatError(self._misfit(columns, size, rows, dtype) or self._no_table(error))

        with runtime.budget.reserve("import", _DECODED_FACTOR * size), arrow_errors(unreadable, OSError):
            for batch in self._batches(columns, size, rows, dtype):
                if batch.num_rows:
                    yield [batch.column(column) for column in columns]

    def types(self, runtime: Runtime, columns: list[str]) -> list[pa.DataType]:
        """Returns types of the columns, those of the first block; empty for a table without rows."""
        first = next(self.blocks(runtime, columns, rows=1024), None)
        return [column.type for column in first] if first is not None else []

    def row_name(self, row: int) -> str:
        """Says which row it is, counted from 0, as people find it again."""
        return f"row {row} (the first is 0)"

    def cell(self, row: int, column: str) -> str:
        """Returns the text of a cell as the file has it; empty where cells are no text."""
        return ""

    @abstractmethod
    def _batches(
        self, columns: list[str], size: int, rows: int, dtype: pa.DataType | None
    ) -> Iterator[pa.RecordBatch]: ...

    def _no_table(self, error: Exception) -> str:
        text = str(error).replace("\n", "\\n")
        quote = '; a quote that is not closed takes the lines after it into its cell: write "" for it, or save as .tsv'
        return f"{self.name} cannot be read as a table: {text}{quote if chr(34) in text else ''}"

    def _misfit(self, columns: list[str], size: int, rows: int, dtype: pa.DataType | None) -> str | None:
        """Returns what the first cell is that could not be read, and what helps; None = not known."""
        return None


@dataclass(frozen=True)
class Place:
    """Says where the cells of a column are, as people find them again.

    Attributes:
        source: A table, or what an array is called.
        column: Name of the column; None = the source has none, or several are meant.
    """

    source: Table | str
    column: str | None = None

    @property
    def name(self) -> str:
        return self.source if isinstance(self.source, str) else self.source.name

    def row_name(self, row: int) -> str:
        """Tells which row it is, counted from 0: ``line 5`` of a text file, with its header and empty lines."""
        return f"row {row} (the first is 0)" if isinstance(self.source, str) else self.source.row_name(row)

    def at(self, row: int) -> str:
        """Returns file, row and column of a cell, such as ``edges.csv, line 5, column 'src'``."""
        return f"{self.name}, {self.row_name(row)}" + (f", column {self.column!r}" if self.column else "")

    def cell(self, row: int) -> str:
        """Returns the text of the cell as the file has it; empty where that cannot be told."""
        if isinstance(self.source, str) or self.column is None:
            return ""
        return self.source.cell(row, self.column)

    def __str__(self) -> str:
        return f"{self.name} column {self.column!r}" if self.column else self.name


def require_distinct(name: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Returns ``columns``. Raises FormatError where two have the same name."""
    twice = next((c for i, c in enumerate(columns) if c in columns[:i]), None)
    if twice is not None:
        raise FormatError(f"{name} has two columns named {twice!r}: rename one of them")
    return columns


# Words that stand for no value in columns of numbers, such as NA.
NO_VALUE_WORDS = frozenset(pa_csv.ConvertOptions().null_values) - {""}

_BLANKS = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def trimmed(cells: pa.Array) -> pa.Array:
    """Returns text without blanks around it, ``[cell.strip() for cell in cells]``; null stays null.

    Arrow's own function for that, ``utf8_trim_whitespace``, ends the process where no memory is left for its tables.
    """
    return compute.call_function("utf8_trim", [cells], compute.TrimOptions(_BLANKS))


def require_filled(
    place: Place, array: pa.Array, first_row: int, remedy: str = "fill it, or remove the row"
) -> None:
    """Raises FormatError where a cell is empty or, in a text file, a word for that as NA; tells what to do."""
    if array.null_count:
        row = first_row + array.is_null().to_pylist().index(True)
        cell = place.cell(row)
        found = f"holds {cell!r}, which stands for no value" if cell else "is empty"
        raise FormatError(f"{place.at(row)} {found}; every row needs a value: {remedy}")


def to_numpy(
    place: Place, array: pa.Array, first_row: int, remedy: str = "fill it, or remove the row"
) -> np.ndarray:
    """Returns a column block as a NumPy array.

    Args:
        place: Place of the column.
        first_row: Row of the column that the block begins with.
        remedy: What to do about an empty cell, for the message.

    Raises:
        FormatError: A cell is empty.
    """
    require_filled(place, array, first_row, remedy)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    return array.to_numpy(zero_copy_only=False)
