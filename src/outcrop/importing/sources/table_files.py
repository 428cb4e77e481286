"""Tables in files, read in blocks through pyarrow: Parquet, CSV, TSV and text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from pyarrow import compute

from outcrop.errors import FormatError
from outcrop.importing.sources.tables import Place, Table, require_distinct

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


@dataclass(frozen=True)
class FileTable(Table):
    """Reads a Parquet, CSV or TSV file. ``columns``: names of its header, or ``column_0``, ... where it has none."""

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
            with self._open() as file:
                if not file.read(1) or self._ends_after_header():
                    return
            # Arrow's own allocator would keep 30 MB of what was read.
            pool = pa.system_memory_pool()
            with (
                self._open_arrow() as file,
                pa_csv.open_csv(file, read, parse, convert, memory_pool=pool) as reader,
            ):
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
        with self._open() as file:
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
        """Returns the first line that has other cells than the header, or than the lines before it."""
        with io.TextIOWrapper(self._open(), encoding="utf-8-sig", errors="replace", newline="") as file:
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
        with self._open() as file:
            for _ in range(self.skip_lines):
                file.readline()
            return not file.read(1)

    def _open(self) -> BinaryIO:
        """Opens the text of the file."""
        return self.path.open("rb")

    def _open_arrow(self) -> pa.NativeFile:
        """Opens the text of the file for Arrow."""
        return pa.OSFile(str(self.path))


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
    """Opens a table of text without a header: tabs separate cells in ``.txt`` and ``.tsv``, or blanks if it has no
    tabs.

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
    """Tells how many lines at the beginning are empty or start with ``#`` or ``%``, if these are ``comments``, and the
    two after them.
    """
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


def _first_misfit(cells: pa.Array, kind: pa.DataType | None) -> int:
    """Returns the first cell of text that is no ``kind``; their number where all are."""
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
