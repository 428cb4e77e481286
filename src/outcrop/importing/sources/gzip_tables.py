"""Tables of compressed text without a header, ``.csv.gz``: inflated block by block, never whole."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.importing.sources.file_map import is_size
from outcrop.importing.sources.ids import integers
from outcrop.importing.sources.table_files import FileTable
from outcrop.importing.sources.tables import Place
from outcrop.runtime.runtime import Runtime

_TORN = (OSError, EOFError, zlib.error)
_LONGEST_LINE = 1 << 20  # bytes
_COUNT_BYTES = 1 << 12  # of a file that holds one number; what comes behind them is not looked at
_DIGITS = 20  # of a number that fits 64 bits


@dataclass(frozen=True)
class GzipTable(FileTable):
    """Reads a ``.csv.gz`` without a header, whose cells are numbers; columns are called ``column_0``, ..."""

    def _open(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_InflatedText(self.path)))

    def _open_utf8(self) -> pa.NativeFile:
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


class _InflatedText(io.RawIOBase):
    """Reads compressed text as far as its lines are of a length that lines have: a few bytes may hold a long one."""

    def __init__(self, path: Path):
        self._file, self._line_bytes = gzip.GzipFile(path, "rb"), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._file.read1(len(buffer))  # what there is in front of a tear
        end = found.rfind(b"\n")
        self._line_bytes = len(found) - end - 1 if end >= 0 else self._line_bytes + len(found)
        if self._line_bytes > _LONGEST_LINE:
            raise OSError(f"a line has more than {_LONGEST_LINE} bytes")
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._file.close()
        super().close()


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
    line = _text_of(path, lambda file: file.readline(_LONGEST_LINE))
    count = line.count(",") + 1 if line.strip() else 0
    if columns is None:
        columns = tuple(f"column_{i}" for i in range(count))
    elif count not in (0, len(columns)):
        raise FormatError(f"{path} has {count} columns in line 1; {len(columns)} are needed")
    return GzipTable(path, columns, num_rows)


def _text_of(path: Path, read: Callable[[gzip.GzipFile], bytes]) -> str:
    """Returns the text that ``read`` reads at the beginning of a file."""
    if not path.is_file():
        raise ArgumentError(f"{path} is missing")
    try:
        with gzip.open(path, "rb") as file:
            return read(file).decode()
    except (*_TORN, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is torn, or no text that gzip compressed: {error}") from None


def id_blocks(runtime: Runtime, table: GzipTable, most: int) -> Iterator[np.ndarray]:
    """Yields the only column of ``table`` in blocks, int64 [n] each; stops behind ``most`` ids and one.

    A list of more ids than there are nodes is wrong within these, whatever follows.

    Raises:
        ArgumentError, FormatError: A row is empty or no integer; names it.
    """
    place, row = Place(table), 0
    for (block,) in table.blocks(runtime, list(table.columns)):
        yield integers(place, block[: most + 1 - row], row)
        row += len(block)
        if row > most:
            return


def read_ids(runtime: Runtime, table: GzipTable, most: int, held: ExitStack) -> np.ndarray:
    """Returns the only column of ``table``, int64 [rows], of :func:`id_blocks`; the budget has it until ``held`` ends.

    Raises:
        ArgumentError, FormatError: A row is empty or no integer; names it.
        BudgetError: The ids do not fit; names the file.
    """
    parts, size = [np.zeros(0, np.int64)], 0
    try:
        with ExitStack() as reading:
            for ids in id_blocks(runtime, table, most):
                reading.enter_context(runtime.budget.reserve("splits", ids.nbytes))
                parts.append(ids)
                size += ids.nbytes
            held.enter_context(runtime.budget.reserve("splits", size))
            return np.concatenate(parts)
    except BudgetError as error:
        raise BudgetError(f"{table.name}: its ids do not fit: {error}", error.smallest, error.limit) from None


def read_count(path: Path) -> int:
    """Returns the only number that a file lists: how many nodes or edges the only graph of a data set has.

    Raises:
        ArgumentError: There is no such file, or it lists several numbers.
        FormatError: It is torn, or what it holds is no number that is not negative.
    """
    words = _text_of(path, lambda file: file.read(_COUNT_BYTES)).split()
    if not words:
        raise FormatError(f"{path} holds no number at its beginning; it says how many there are of something")
    word = words[0].strip('"')[: _DIGITS + 1]
    if not (word.isascii() and word.isdigit() and len(word) <= _DIGITS and is_size(int(word))):
        raise FormatError(f"{path} holds {word}; it says how many there are of something")
    if len(words) > 1:
        raise ArgumentError(f"{path} lists several graphs; a data set of one graph is needed")
    return int(word)
