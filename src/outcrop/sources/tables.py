"""Foreign tables read in blocks: ``.npy`` through a memory map, Parquet, CSV and TSV through pyarrow.

Tables in memory, and streams of other libraries, are in :mod:`outcrop.sources.frames`.
"""

from __future__ import annotations

import csv
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from outcrop.errors import ArgumentError, FormatError, IoError
from outcrop.runtime import Runtime
from outcrop.sources.base import block_bytes

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
                raise FormatError(f"{self.name} cannot be read as a table: {error}") from None
            except OSError as error:
                raise FormatError(f"{self.name} is torn or unreadable: {error}") from None

    def types(self, runtime: Runtime, columns: list[str]) -> list[pa.DataType]:
        """Types of the columns, those of the first block; empty for a table without rows."""
        first = next(self.blocks(runtime, columns, rows=1024), None)
        return [column.type for column in first] if first is not None else []

    @abstractmethod
    def _batches(
        self, columns: list[str], size: int, rows: int, dtype: pa.DataType | None
    ) -> Iterator[pa.RecordBatch]: ...


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
    delimiter = {".csv": ",", ".tsv": "\t"}.get(path.suffix) or next(
        (d for d in "\t, " if lines and d in lines[0]), "\t"
    )
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
        with path.open(encoding="utf-8", newline="") as file:
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
    return not _is_number(first[0]) and len(cells) > 1 and bool(cells[1]) and _is_number(cells[1][0])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def require_filled(name: str, array: pa.Array, first_row: int) -> None:
    """Raises FormatError where a cell is empty."""
    if array.null_count:
        row = first_row + array.is_null().to_pylist().index(True)
        raise FormatError(f"{name}: row {row} is empty; every row needs a value")


def to_numpy(name: str, array: pa.Array, first_row: int) -> np.ndarray:
    """A column block as a NumPy array.

    Raises:
        FormatError: A cell is empty.
    """
    require_filled(name, array, first_row)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    return array.to_numpy(zero_copy_only=False)
