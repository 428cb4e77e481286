"""Foreign tables read in blocks: ``.npy`` through a memory map, Parquet, CSV and TSV through pyarrow.

Tables in memory, and streams of other libraries, are in :mod:`outcrop.importing.sources.frames`.
"""

from __future__ import annotations

import csv
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from pyarrow import compute

from outcrop.errors import ArgumentError, FormatError, IoError
from outcrop.importing.sources.base import block_bytes
from outcrop.runtime.runtime import Runtime

TABLE_SUFFIXES = (".parquet", ".csv", ".tsv", ".txt")
_HEADER_WORDS = {
    "src",
    "dst",
    "source",
    "target",
    "from",
    "to",
    "head",
    "tail",
    "id",
    "id_1",
    "id_2",
    "u",
    "v",
    "fromnodeid",
    "tonodeid",
    "node",
    "node1",
    "node2",
    "label",
    "labels",
    "class",
    "y",
    "split",
}
# What a decoded block takes next to the bytes it was read from: raw text, Arrow columns and NumPy copies.
_DECODED_FACTOR = 4


def find(folder: Path, stem: str, suffixes: tuple[str, ...]) -> Path | None:
    """The one file ``stem`` + suffix in ``folder``.

    Raises:
        ArgumentError: Several are there.
    """
    found = [path for suffix in suffixes if os.path.lexists(path := folder / f"{stem}{suffix}")]
    odd = next((path for path in found if not path.is_file()), None)
    if odd is not None:
        raise ArgumentError(f"{odd} is no file: remove it, or put the file itself there")
    if len(found) > 1:
        raise ArgumentError(f"{folder} holds {' and '.join(p.name for p in found)}: keep one of them")
    return found[0] if found else None


def open_npy(path: Path) -> np.ndarray:
    """A read-only map of a ``.npy`` file; equals ``numpy.load(path)``.

    Raises:
        FormatError: No ``.npy`` file, truncated, or of Python objects.
    """
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            if version not in read_header:
                raise FormatError(
                    f"{path}: .npy version {version} is not supported: save it again with numpy.save"
                )
            shape, fortran, dtype = read_header[version](file)
            offset, size = file.tell(), path.stat().st_size
    except FormatError:
        raise
    except (ValueError, EOFError) as error:
        raise FormatError(f"{path} is no .npy file or is torn: {error}") from None
    except OSError as error:
        raise IoError(error.errno, f"{path} cannot be read: {error.strerror}") from None
    if dtype.hasobject:
        raise FormatError(f"{path} holds Python objects, which are never loaded: save numbers instead")
    if any(length < 0 for length in shape):
        raise FormatError(f"{path} has the shape {shape} in its header: the file is damaged, save it again")
    count = int(np.prod(shape, dtype=object))
    if size < offset + count * dtype.itemsize:
        raise FormatError(
            f"{path} is truncated: it has {size} bytes, its header promises {offset + count * dtype.itemsize}"
        )
    if count == 0 or dtype.itemsize == 0:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def forget_pages(array: np.ndarray) -> None:
    """Lets go of the pages of a memory map that were read, so that reading a large file stays small."""
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap) and array.base is not None:
        array = array.base
    mapped = getattr(array, "_mmap", None)
    if mapped is not None:
        mapped.madvise(mmap.MADV_DONTNEED)


def array_blocks(runtime: Runtime, array: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """``array[i:i + rows]`` as copies in memory that the budget knows of."""
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    if len(array) == 0:
        return
    with runtime.budget.reserve("import", min(rows, len(array)) * row_bytes):
        for start in range(0, len(array), rows):
            yield np.array(array[start : start + rows])
            forget_pages(array)


class Table(ABC):
    """Named columns that are read block by block, from the start each time.

    Attributes:
        name: For messages: the file, or what the caller calls it.
        columns: The names, each once.
        num_rows: None = known when it was read.
    """

    name: str
    columns: tuple[str, ...]
    num_rows: int | None

    def column(self, *names: str) -> str | None:
        """The first column of one of these names, upper or lower case."""
        lower = {column.lower(): column for column in self.columns}
        return next((lower[name] for name in names if name in lower), None)

    def blocks(
        self,
        runtime: Runtime,
        columns: list[str],
        rows: int | None = None,
        dtype: pa.DataType | None = None,
    ) -> Iterator[list[pa.Array]]:
        """Blocks of the given columns, in order.

        Args:
            rows: Most rows of a block (text files: what a block of bytes holds).
            dtype: How cells of text files are read; None = as they look.

        Raises:
            FormatError: The table is torn, or cells do not fit together.
        """
        size = block_bytes(runtime)
        rows = rows or max(1024, size // (8 * max(1, len(columns))))
        with runtime.budget.reserve("import", _DECODED_FACTOR * size):
            try:
                for batch in self._batches(columns, size, rows, dtype):
                    if batch.num_rows:
                        yield [batch.column(column) for column in columns]
            except (pa.ArrowException, pa.ArrowInvalid) as error:
                raise FormatError(
                    self._misfit(columns, size, rows, dtype)
                    or f"{self.name} cannot be read as a table: {error}"
                ) from None
            except OSError as error:
                raise FormatError(f"{self.name} is torn or unreadable: {error}") from None

    def types(self, runtime: Runtime, columns: list[str]) -> list[pa.DataType]:
        """Types of the columns, those of the first block; empty for a table without rows."""
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

    def _misfit(self, columns: list[str], size: int, rows: int, dtype: pa.DataType | None) -> str | None:
        """What the first cell is that could not be read, and what helps; None = not known."""
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
        """Which row it is, counted from 0: ``line 5`` of a text file, with its header and empty lines."""
        return f"row {row} (the first is 0)" if isinstance(self.source, str) else self.source.row_name(row)

    def at(self, row: int) -> str:
        """File, row and column of a cell, such as ``edges.csv, line 5, column 'src'``."""
        return f"{self.name}, {self.row_name(row)}" + (f", column {self.column!r}" if self.column else "")

    def cell(self, row: int) -> str:
        """Returns the text of the cell as the file has it; empty where that cannot be told."""
        if isinstance(self.source, str) or self.column is None:
            return ""
        return self.source.cell(row, self.column)

    def __str__(self) -> str:
        return f"{self.name} column {self.column!r}" if self.column else self.name


def require_distinct(name: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    """``columns``. Raises FormatError where two have the same name."""
    twice = next((c for i, c in enumerate(columns) if c in columns[:i]), None)
    if twice is not None:
        raise FormatError(f"{name} has two columns named {twice!r}: rename one of them")
    return columns


@dataclass(frozen=True)
class FileTable(Table):
    """A Parquet, CSV or TSV file. ``columns``: the names of its header, or ``column_0``, ... where it has none."""

    path: Path
    columns: tuple[str, ...]
    num_rows: int | None
    delimiter: str = ","
    skip_lines: int = 0
    as_text: bool = False  # all cells are text, quotes belong to it

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return str(self.path)

    @property
    def is_parquet(self) -> bool:
        return self.path.suffix == ".parquet"

    def _batches(
        self, columns: list[str], size: int, rows: int, dtype: pa.DataType | None
    ) -> Iterator[pa.RecordBatch]:
        if self.is_parquet:
            with pa_parquet.ParquetFile(self.path, memory_map=False) as file:
                yield from file.iter_batches(rows, columns=columns)
        elif self.columns:
            read = pa_csv.ReadOptions(
                block_size=size, skip_rows=self.skip_lines, column_names=list(self.columns)
            )
            parse = pa_csv.ParseOptions(delimiter=self.delimiter, quote_char=False if self.as_text else '"')
            dtype = pa.string() if self.as_text else dtype
            convert = pa_csv.ConvertOptions(
                include_columns=columns,
                strings_can_be_null=False,
                column_types=dict.fromkeys(columns, dtype) if dtype is not None else None,
            )
            with self.path.open("rb") as file:
                if not file.read(1) or self._ends_after_header():
                    return
            # Arrow's own allocator would keep 30 MB of what was read.
            pool = pa.system_memory_pool()
            with pa_csv.open_csv(self.path, read, parse, convert, memory_pool=pool) as reader:
                yield from reader

    def row_name(self, row: int) -> str:
        return super().row_name(row) if self.is_parquet else f"line {self._line(row)[0]}"

    def cell(self, row: int, column: str) -> str:
        if self.is_parquet:
            return ""
        _, line = self._line(row)
        cells = next(csv.reader([line.decode(errors="replace")], delimiter=self.delimiter), [])
        at = self.columns.index(column)
        return cells[at].strip() if at < len(cells) else ""

    def _line(self, row: int) -> tuple[int, bytes]:
        """Finds the line of a row of a text file: its number, from 1, and its bytes. Empty lines are no rows."""
        number, line, found = 0, b"", -1
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                found += number > self.skip_lines and bool(line.strip(b"\r\n"))
                if found == row:
                    break
        return number, line

    def _misfit(self, columns: list[str], size: int, rows: int, dtype: pa.DataType | None) -> str | None:
        if self.is_parquet or self.as_text:
            return None
        row = 0
        try:
            batch = next(self._batches(columns, size, rows, dtype), None) if dtype is None else None
            kinds = [dtype if batch is None else batch.column(column).type for column in columns]
            for batch in self._batches(columns, size, rows, pa.string()):
                found = [_first_misfit(batch.column(i), kind) for i, kind in enumerate(kinds)]
                at, i = min((at, i) for i, at in enumerate(found))
                if at < batch.num_rows:
                    cell = batch.column(i)[at].as_py()
                    wrong = f"{Place(self, columns[i]).at(row + at)}: {cell!r} is no {_called(kinds[i])}"
                    if dtype is None:
                        return f"{wrong}, unlike the cells above it: correct it"
                    return (
                        f"{wrong}, which is needed here: correct it, or leave the column out; a column that names the "
                        "nodes is called 'id'"
                    )
                row += batch.num_rows
        except pa.ArrowException:
            return self._uneven()
        return None

    def _uneven(self) -> str | None:
        """The first line that has other cells than the header, or than the lines before it."""
        with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = csv.reader(islice(file, self.skip_lines, None), delimiter=self.delimiter)
            for cells in lines:
                if cells and len(cells) != len(self.columns):
                    line = self.skip_lines + lines.line_num
                    return (
                        f"{self.path}, line {line}: Expected {len(self.columns)} columns, got {len(cells)}: correct "
                        "the line, or put quotes around cells that hold the delimiter"
                    )
        return None

    def _ends_after_header(self) -> bool:
        with self.path.open("rb") as file:
            for _ in range(self.skip_lines):
                file.readline()
            return not file.read(1)


def open_table(path: Path) -> FileTable:
    """Opens a table by its header only.

    A CSV or TSV has a header where its first line names a known column, or where the first cell is no number but the
    one below is. Lines before it that start with ``#`` or ``%`` are skipped. ``.txt`` is split at tabs, commas or
    blanks.

    Raises:
        FormatError: Not a table, or torn.
    """
    if path.suffix == ".parquet":
        try:
            with pa_parquet.ParquetFile(path) as file:
                columns = require_distinct(str(path), tuple(file.schema_arrow.names))
                return FileTable(path, columns, file.metadata.num_rows)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{path} is no Parquet file or is torn: {error}") from None
    skipped, lines = _first_lines(path, comments=True)
    first = lines[0] if lines else ""
    delimiter = {".csv": ",", ".tsv": "\t"}.get(path.suffix) or next((d for d in "\t, " if d in first), "\t")
    if (
        delimiter == "," and "," not in first and ";" in first
    ):  # as spreadsheets write it in much of the world
        delimiter = ";"
    try:
        cells = [row for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error as error:
        raise FormatError(f"{path} is no table: its first lines cannot be read ({error})") from None
    if not cells:
        return FileTable(path, (), 0, delimiter, skipped)
    if _has_header(cells):
        return FileTable(
            path,
            require_distinct(str(path), tuple(name.strip() for name in cells[0])),
            None,
            delimiter,
            skipped + 1,
        )
    return FileTable(path, tuple(f"column_{i}" for i in range(len(cells[0]))), None, delimiter, skipped)


def open_text(path: Path) -> FileTable:
    """A table of text without a header: tabs separate cells in ``.txt`` and ``.tsv``, or blanks if it has no tabs.

    Raises:
        FormatError: Not a table, or torn.
    """
    if path.suffix == ".parquet":
        return open_table(path)
    _, lines = _first_lines(path, comments=False)
    first = lines[0].rstrip("\r\n") if lines else ""
    delimiter = "," if path.suffix == ".csv" else "\t" if "\t" in first else " "
    columns = tuple(f"column_{i}" for i in range(len(first.split(delimiter)))) if first else ()
    return FileTable(path, columns, None, delimiter, as_text=True)


def _first_lines(path: Path, *, comments: bool) -> tuple[int, list[str]]:
    """How many lines at the beginning are empty or start with ``#`` or ``%``, if these are ``comments``, and the two
    after them."""
    skipped, lines = 0, []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for line in file:
                if comments and not lines and (line.startswith(("#", "%")) or not line.strip()):
                    skipped += 1
                    continue
                lines.append(line)
                if len(lines) == 2:
                    break
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not UTF-8 text: convert it or pass Parquet") from None
    return skipped, lines


def _has_header(cells: list[list[str]]) -> bool:
    first = cells[0]
    if any(cell.strip().lower() in _HEADER_WORDS for cell in first):
        return True
    return not is_number(first[0]) and len(cells) > 1 and bool(cells[1]) and is_number(cells[1][0])


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _called(kind: pa.DataType | None) -> str:
    if kind is not None and pa.types.is_integer(kind):
        return "integer"
    return "number" if kind is not None and pa.types.is_floating(kind) else str(kind)


# Words that stand for no value in columns of numbers, such as NA.
NO_VALUE_WORDS = frozenset(pa_csv.ConvertOptions().null_values) - {""}


def _first_misfit(cells: pa.Array, kind: pa.DataType | None) -> int:
    """The first cell of text that is no ``kind``; their number where all are."""
    trimmed = compute.call_function("utf8_trim_whitespace", [cells])
    empty = compute.SetLookupOptions(value_set=pa.array(pa_csv.ConvertOptions().null_values))
    none = compute.call_function("is_in", [cells], empty)
    trimmed = compute.call_function("if_else", [none, pa.scalar(None, pa.string()), trimmed])

    def fits(part: pa.Array) -> bool:
        try:
            part.cast(kind)
        except pa.ArrowInvalid:
            return False
        return True

    if kind is None or fits(trimmed):
        return len(cells)
    first, last = 0, len(cells)  # the first misfit is in between
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if fits(trimmed[first:middle]) else (first, middle)
    return first


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
    """A column block as a NumPy array.

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
