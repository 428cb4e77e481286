"""Tables in files, read in blocks through pyarrow: Parquet, CSV, TSV and text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from pyarrow import compute

from outcrop.errors import FormatError
from outcrop.importing.sources.arrow_errors import arrow_errors
from outcrop.importing.sources.tables import Place, Table, require_distinct, trimmed
from outcrop.runtime.threads import require_one

TABLE_SUFFIXES = (".parquet", ".csv", ".tsv", ".txt")


_WRITTEN_AT_A_TIME = 1 << 16  # characters
_READ_AT_A_TIME = 1 << 16  # bytes of a column of a Parquet file
_LONGEST_ROW = 1 << 20  # bytes, of those that messages quote
_LINE_END = re.compile(rb"\r\n|\n|\r(?=[^\n])")  # whole: what follows may still belong to it
_NO_END = re.compile(rb"[^\r\n]")
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
class TextForm:
    """Says how a text table is written, as far as that is not left to be guessed.

    Attributes:
        delimiter: What separates cells; None = as the ending of the file or its first line has it.
        header: Whether the first line has the names of the columns; None = as it looks.
        columns: Names of the columns, instead of those of the header; empty = not given.
        encoding: Encoding of the text, one in which ASCII is ASCII.
        quotes: Whether ``"`` may stand around cells; else it belongs to them.
        null_words: Cells that stand for no value, beside empty ones.
        fill_short: Whether lines may have fewer cells than there are columns: those at the end are empty then.
    """

    delimiter: str | None = None
    header: bool | None = None
    columns: tuple[str, ...] = ()
    encoding: str = "utf-8"
    quotes: bool = True
    null_words: tuple[str, ...] = ()
    fill_short: bool = False


@dataclass(frozen=True)
class FileTable(Table):
    """Reads a Parquet, CSV or TSV file. ``columns``: names of its header, or ``column_0``, ... where it has none."""

    path: Path
    columns: tuple[str, ...]
    num_rows: int | None
    delimiter: str = ","
    skip_lines: int = 0
    as_text: bool = False  # all cells are text
    form: TextForm = TextForm()

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
            # Otherwise whole row groups are read ahead, and a file often has one; threads each keep what they freed.
            with pa_parquet.ParquetFile(
                self.path, memory_map=False, pre_buffer=False, buffer_size=_READ_AT_A_TIME
            ) as file:
                yield from file.iter_batches(rows, columns=columns, use_threads=False)
        elif self.columns:
            dtype = pa.string() if self.as_text else dtype
            types = dict.fromkeys(columns, dtype) if dtype is not None else None
            require_one()  # Arrow waits for ever for one of its own that could not be started
            for text in self._blocks_of_rows(size):
                batch = self._parsed(text, columns, types)
                types = types or {field.name: field.type for field in batch.schema}
                yield self._without_null_words(batch) if self.form.null_words else batch

    def _parsed(
        self, text: memoryview, columns: list[str], types: dict[str, pa.DataType] | None
    ) -> pa.RecordBatch:
        """Returns columns of whole rows of text. ``types``: None = as they look."""
        table = pa_csv.read_csv(
            pa.BufferReader(text),
            pa_csv.ReadOptions(use_threads=False, block_size=len(text), column_names=list(self.columns)),
            pa_csv.ParseOptions(
                delimiter=self.delimiter,
                quote_char='"' if self.form.quotes else False,
                newlines_in_values=self.form.quotes,
            ),
            pa_csv.ConvertOptions(
                include_columns=columns,
                strings_can_be_null=False,
                null_values=self.null_values,
                column_types=types,
            ),
            memory_pool=pa.system_memory_pool(),  # its own would keep 30 MB of what was read
        )
        return table.combine_chunks().to_batches()[0]

    def _blocks_of_rows(self, size: int) -> Iterator[memoryview]:
        """Yields the text after the header in blocks that end where rows do; each is valid until the next.

        Arrow's own reader would be 32 blocks ahead.
        """
        block = bytearray(2 * size)
        whole, held, skip = memoryview(block), 0, self.skip_lines
        with self._open_utf8() as file:
            while count := file.readinto(whole[held : held + size]):
                held, at = held + count, 0
                while skip and (line := _LINE_END.search(block, at, held)):
                    at, skip = line.end(), skip - 1
                end = at if skip else self._end_of_rows(block, at, held)
                if _NO_END.search(block, at, end):
                    yield whole[at:end]
                held -= end
                if held > size:
                    raise FormatError(
                        f"{self.path} has a line of more than the {size} bytes that are read at a time: shorten it, or "
                        "give more memory"
                    )
                whole[:held] = whole[end : end + held]
        if not skip and _NO_END.search(block, 0, held):
            yield whole[:held]

    def _end_of_rows(self, block: bytearray, start: int, stop: int) -> int:
        """Returns where the last whole row of a part of ``block`` ends; ``start`` where none does."""
        if self.form.quotes and block.find(b'"', start, stop) >= 0:
            found = self._whole_rows.match(block, start, stop)
            return found.end() if found else start
        return max(block.rfind(end, start, stop) + 1 for end in (b"\n", b"\r")) or start

    @cached_property
    def _whole_rows(self) -> re.Pattern[bytes]:
        """Matches rows, with ``"`` around cells that hold delimiters or ends of lines, up to the last whole one."""
        delimiter = re.escape(self.delimiter.encode())
        cell = rb'(?:"[^"]*+(?:""[^"]*+)*+"|(?!"))[^' + delimiter + rb"\r\n]*+"
        return re.compile(rb"(?:" + cell + rb"(?:" + delimiter + cell + rb")*+[\r\n]++)*+")

    @property
    def null_values(self) -> list[str]:
        """Returns the cells of numbers that stand for no value."""
        return [*pa_csv.ConvertOptions().null_values, *self.form.null_words]

    def _without_null_words(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns ``batch`` with cells of text that stand for no value empty; Arrow does that for numbers."""
        words = compute.SetLookupOptions(value_set=pa.array(self.form.null_words, pa.string()))
        columns = []
        for cells in batch.columns:
            if pa.types.is_string(cells.type):
                none = compute.call_function("is_in", [cells], words)
                cells = compute.call_function("if_else", [none, pa.scalar(None, pa.string()), cells])
            columns.append(cells)
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def row_name(self, row: int) -> str:
        return super().row_name(row) if self.is_parquet else f"line {self._line(row)[0]}"

    def cell(self, row: int, column: str) -> str:
        if self.is_parquet:
            return ""
        _, line = self._line(row)
        try:
            cells = next(self._reader([line.decode(self.form.encoding, errors="replace")]), [])
        except csv.Error:  # Arrow takes ends of lines within a cell, too
            return ""
        at = self.columns.index(column)
        return cells[at].strip() if at < len(cells) else ""

    def _reader(self, lines: Iterable[str]) -> Any:
        quoting = csv.QUOTE_MINIMAL if self.form.quotes else csv.QUOTE_NONE
        return csv.reader(lines, delimiter=self.delimiter, quoting=quoting)

    def _line(self, row: int) -> tuple[int, bytes]:
        """Finds the line at which a row of a text file begins: its number, from 1, and the bytes of the row. Empty
        lines are no rows.
        """
        line, found = (0, b""), -1
        with self._open() as file:
            for line in self._lines_of_rows(file):
                found += bool(line[1].strip(b"\r\n"))
                if found == row:
                    break
        return line

    def _lines_of_rows(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        """Yields each row after the header with the number of its first line: its cells may go over several."""
        begin, held = 0, b""
        for number, line in enumerate(file, 1):
            if number <= self.skip_lines:
                continue
            begin, held = (begin, held + line) if held else (number, line)
            several = self.form.quotes and b'"' in held and len(held) < _LONGEST_ROW
            if not several or self._whole_rows.fullmatch(held):
                yield begin, held
                held = b""
        if held:
            yield begin, held

    def _misfit(self, columns: list[str], size: int, rows: int, dtype: pa.DataType | None) -> str | None:
        if self.is_parquet or self.as_text:
            return None
        row = 0

        def unreadable(error: Exception) -> FormatError:
            return FormatError(self._uneven() or self._no_table(error))

        with arrow_errors(unreadable):
            batch = next(self._batches(columns, size, rows, dtype), None) if dtype is None else None
            kinds = [dtype if batch is None else batch.column(column).type for column in columns]
            for batch in self._batches(columns, size, rows, pa.string()):
                found = [
                    _first_misfit(batch.column(i), kind, self.null_values) for i, kind in enumerate(kinds)
                ]
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
        return None

    def _uneven(self) -> str | None:
        """Returns the first line that has other cells than the header, or than the lines before it."""
        encoding = _with_mark(self.form.encoding)
        with io.TextIOWrapper(self._open(), encoding=encoding, errors="replace", newline="") as file:
            lines = self._reader(islice(file, self.skip_lines, None))
            try:
                return self._first_uneven(lines)
            except csv.Error:  # a cell longer than it takes: others say what is wrong
                return None

    def _first_uneven(self, lines: Any) -> str | None:
        for cells in lines:
            filled = self.form.fill_short and len(cells) < len(self.columns)
            if cells and len(cells) != len(self.columns) and not filled:
                line = self.skip_lines + lines.line_num
                return (
                    f"{self.path}, line {line}: Expected {len(self.columns)} columns, got {len(cells)}: correct "
                    "the line, or put quotes around cells that hold the delimiter"
                )
        return None

    def _open(self) -> BinaryIO:
        """Opens the text of the file."""
        return self.path.open("rb")

    def _open_utf8(self) -> io.BufferedReader | pa.NativeFile:
        """Opens the text of the file, in UTF-8 and with a cell for each column in every line."""
        if self.form.fill_short:
            return io.BufferedReader(_FilledLines(self))
        file = pa.OSFile(str(self.path))
        if self.form.encoding == "utf-8":
            return file
        return pa.transcoding_input_stream(file, self.form.encoding, "utf-8")


class _FilledLines(io.RawIOBase):
    """Reads a table as text in UTF-8 in which every line has a cell for each column."""

    def __init__(self, table: FileTable):
        self._table = table
        self._file = io.TextIOWrapper(table._open(), encoding=_with_mark(table.form.encoding), newline="")
        self._lines, self._rest = self._written(), b""

    def _written(self) -> Iterator[bytes]:
        table, out = self._table, io.StringIO()
        writer = csv.writer(out, delimiter=table.delimiter, lineterminator="\n")
        skipped = [next(self._file, "") for _ in range(table.skip_lines)]
        yield "".join(skipped).encode()
        for cells in self._rows():
            whole = cells + [""] * (len(table.columns) - len(cells))
            if table.form.quotes:
                writer.writerow(whole)
            else:  # the writer would have to escape them
                out.write(table.delimiter.join(whole) + "\n")
            if out.tell() >= _WRITTEN_AT_A_TIME:
                yield out.getvalue().encode()
                out.seek(0)
                out.truncate()
        yield out.getvalue().encode()

    def _rows(self) -> Iterator[list[str]]:
        """Yields the cells of each line that has some."""
        table, lines = self._table, self._table._reader(self._file)
        try:
            yield from filter(None, lines)
        except csv.Error as error:
            line = table.skip_lines + lines.line_num
            raise FormatError(
                f"{table.path}, line {line}: a cell cannot be read where lines may end early ({error}): shorten it, or "
                "write all cells of every line and leave fill_short_lines out"
            ) from None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            found = next(self._lines, None)
            if found is None:
                return 0
            self._rest = found
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def parquet_errors(path: Path) -> AbstractContextManager[None]:
    """Raises a ``FormatError`` that names the file where Parquet cannot be read."""
    return arrow_errors(lambda error: FormatError(f"{path} is no Parquet file or is torn: {error}"), OSError)


def open_table(path: Path, form: TextForm | None = None) -> FileTable:
    """Opens a table by its header only.

    A CSV or TSV has a header where its first line names a known column, or where the first cell is no number but the
    one below is. Lines before it that start with ``#`` or ``%`` are skipped. ``.txt`` is split at tabs, commas or
    blanks.

    Args:
        path: The file.
        form: What is known of how text is written; None = nothing.

    Raises:
        FormatError: Not a table, or torn.
    """
    form = form or TextForm()
    if path.suffix == ".parquet":
        with parquet_errors(path), pa_parquet.ParquetFile(path) as file:
            columns = require_distinct(str(path), tuple(file.schema_arrow.names))
            return FileTable(path, columns, file.metadata.num_rows)
    skipped, lines = _first_lines(path, form.encoding, comments=True)
    delimiter = form.delimiter or _delimiter_of(path, lines[0] if lines else "")
    quoting = csv.QUOTE_MINIMAL if form.quotes else csv.QUOTE_NONE
    try:
        cells = [row for row in csv.reader(lines, delimiter=delimiter, quoting=quoting) if row]
    except csv.Error as error:
        raise FormatError(f"{path} is no table: its first lines cannot be read ({error})") from None
    if not cells:
        return FileTable(path, form.columns, 0, delimiter, skipped, form=form)
    header = form.header
    if header is None:
        header = not form.columns and _has_header(cells)
    columns = form.columns or (
        tuple(name.strip() for name in cells[0])
        if header
        else tuple(f"column_{i}" for i in range(len(cells[0])))
    )
    if len(columns) != len(cells[0]):
        raise FormatError(
            f"{path} has {len(cells[0])} columns in its first line, {len(columns)} are named: name each of them"
        )
    return FileTable(path, require_distinct(str(path), columns), None, delimiter, skipped + header, form=form)


def _delimiter_of(path: Path, first: str) -> str:
    """Guesses what separates the cells of a file whose first line is ``first``."""
    delimiter = {".csv": ",", ".tsv": "\t"}.get(path.suffix) or next((d for d in "\t, " if d in first), "\t")
    # As spreadsheets write it in much of the world.
    return ";" if delimiter == "," and "," not in first and ";" in first else delimiter


def _with_mark(encoding: str) -> str:
    """Returns the encoding that passes over a mark at the begin of the text."""
    return "utf-8-sig" if encoding == "utf-8" else encoding


def open_text(path: Path, is_header: Callable[[Sequence[str]], bool] = lambda _: False) -> FileTable:
    """Opens a table of text: tabs separate cells in ``.txt`` and ``.tsv``, or blanks if it has no tabs, and ``"`` is a
    letter; in ``.csv`` it may stand around cells.

    Args:
        is_header: Tells whether the cells of the first line are names of columns.

    Raises:
        FormatError: Not a table, or torn.
    """
    if path.suffix == ".parquet":
        return open_table(path)
    _, lines = _first_lines(path, "utf-8", comments=False)
    first = lines[0].rstrip("\r\n") if lines else ""
    delimiter = "," if path.suffix == ".csv" else "\t" if "\t" in first else " "
    quotes = path.suffix == ".csv"
    try:
        cells = next(csv.reader(lines, delimiter=delimiter), []) if quotes else first.split(delimiter)
    except csv.Error:  # a longer cell than Python takes
        cells = first.split(delimiter)
    form, named = TextForm(quotes=quotes), is_header(cells)
    columns = tuple(cells if named else (f"column_{i}" for i in range(len(cells)))) if first else ()
    return FileTable(path, columns, None, delimiter, int(named), as_text=True, form=form)


def _first_lines(path: Path, encoding: str, *, comments: bool) -> tuple[int, list[str]]:
    """Tells how many lines at the beginning are empty or start with ``#`` or ``%``, if these are ``comments``, and the
    two after them.
    """
    skipped, lines = 0, []
    try:
        with path.open(encoding=_with_mark(encoding), newline="") as file:
            for line in file:
                if comments and not lines and (line.startswith(("#", "%")) or not line.strip()):
                    skipped += 1
                    continue
                lines.append(line)
                if len(lines) == 2:
                    break
    except UnicodeDecodeError:
        named = "UTF-8" if encoding == "utf-8" else encoding
        raise FormatError(f"{path} is not {named} text: convert it or pass Parquet") from None
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


def _first_misfit(cells: pa.Array, kind: pa.DataType | None, null_values: list[str]) -> int:
    """Returns the first cell of text that is no ``kind``; their number where all are."""
    words = trimmed(cells)
    empty = compute.SetLookupOptions(value_set=pa.array(null_values))
    none = compute.call_function("is_in", [cells], empty)
    words = compute.call_function("if_else", [none, pa.scalar(None, pa.string()), words])

    def fits(part: pa.Array) -> bool:
        try:
            part.cast(kind)
        except pa.ArrowInvalid:
            return False
        return True

    if kind is None or fits(words):
        return len(cells)
    first, last = 0, len(cells)  # the first misfit is in between
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if fits(words[first:middle]) else (first, middle)
    return first
