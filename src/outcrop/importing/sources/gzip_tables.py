"""Tables of compressed text without a header, ``.csv.gz``: inflated block by block, never whole."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import check_ids
from outcrop.importing.sources.ids import integers
from outcrop.importing.sources.table_files import FileTable
from outcrop.importing.sources.tables import Place, to_numpy
from outcrop.runtime.runtime import Runtime

_TORN = (OSError, EOFError, zlib.error)
_LONGEST_LINE = 1 << 20  # bytes of a first line, which tells the columns


@dataclass(frozen=True)
class GzipTable(FileTable):
    """Reads a ``.csv.gz`` without a header, whose cells are numbers; columns are called ``column_0``, ..."""

    def _open(self) -> BinaryIO:
        return cast(BinaryIO, gzip.open(self.path, "rb"))

    def _open_arrow(self) -> pa.NativeFile:
        return pa.CompressedInputStream(pa.OSFile(str(self.path)), "gzip")

    def _line(self, row: int) -> tuple[int, bytes]:
        try:
            return super()._line(row)
        except _TORN:  # behind a row that was read
            return row + 1, b""

    def _misfit(self, columns: list[str], size: int, rows: int, dtype: pa.DataType | None) -> str | None:
        try:
            return super()._misfit(columns, size, rows, dtype)
        except _TORN:  # Arrow reads ahead; a line that comes before can be found
            return self._uneven()

    def _uneven(self) -> str | None:
        try:
            return super()._uneven()
        except _TORN:
            return None


def open_gzip(path: Path, columns: tuple[str, ...] | None = None, num_rows: int | None = None) -> GzipTable:
    """Opens a ``.csv.gz`` without a header by its first line.

    Args:
        path: The file.
        columns: What its columns are called; None: as many as the first line has.
        num_rows: Rows that it should have, where that is known.

    Raises:
        ArgumentError: There is no such file.
        FormatError: It is torn or not compressed, or has another number of columns than ``columns``.
    """
    if not path.is_file():
        raise ArgumentError(f"{path} is missing")
    try:
        with gzip.open(path, "rb") as file:
            line = file.readline(_LONGEST_LINE).decode()
    except (*_TORN, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is torn, or no text that gzip compressed: {error}") from None
    count = line.count(",") + 1 if line.strip() else 0
    if columns is None:
        columns = tuple(f"column_{i}" for i in range(count))
    elif count not in (0, len(columns)):
        raise FormatError(f"{path} has {count} columns in line 1; {len(columns)} are needed")
    return GzipTable(path, columns, num_rows)


def read_ids(runtime: Runtime, table: GzipTable) -> np.ndarray:
    """Returns the only column of ``table``, int64 [rows].

    Raises:
        ArgumentError, FormatError: A row is empty or no integer; names it.
    """
    place, parts, row = Place(table), [np.zeros(0, np.int64)], 0
    for (block,) in table.blocks(runtime, list(table.columns)):
        parts.append(integers(place, block, row))
        row += len(block)
    return np.concatenate(parts)


def read_counts(runtime: Runtime, path: Path) -> np.ndarray:
    """Returns the numbers that a file lists, one a line: int64 [lines].

    Raises:
        ArgumentError: There is no such file.
        FormatError: It is torn, or a line is no number that is not negative.
    """
    table = open_gzip(path, ("count",))
    parts, row = [np.zeros(0, np.int64)], 0
    for (block,) in table.blocks(runtime, ["count"]):
        numbers = to_numpy(Place(table), block, row)
        if numbers.dtype.kind not in "iu" or (numbers < 0).any():
            raise FormatError(f"{path} holds {block[0]}; it lists how many there are of something")
        parts.append(check_ids(str(path), numbers, row))
        row += len(block)
    return np.concatenate(parts)
