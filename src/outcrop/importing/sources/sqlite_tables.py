"""Tables of a SQLite file, read in blocks in the order of their rows; the keys that they declare."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from outcrop.errors import ArgumentError, FormatError, IoError
from outcrop.importing.sources.tables import Table

SQLITE_SUFFIXES = (".sqlite", ".sqlite3", ".db")
_MAGIC = b"SQLite format 3\x00"
_TORN = (sqlite3.Error, ValueError, OverflowError)  # names and messages of damaged files may be no UTF-8
_ROW_IDS = ("rowid", "_rowid_", "oid")  # what the number of a row may be called
_CACHE_KIB = 256
_FETCHED_SHARE = 16  # objects of Python take so many times the bytes of an array
_SURVEYED = 500  # columns that are looked at in one query
_NUMBERS = {("integer",): pa.int64(), ("real",): pa.float64(), ("integer", "real"): pa.float64()}


@dataclass(frozen=True)
class DeclaredKey:
    """Is a foreign key that a database declares.

    Attributes:
        column: Column that refers.
        table: Table that it refers to.
        to: Column that it refers to; None = the primary key.
    """

    column: str
    table: str
    to: str | None


@dataclass(frozen=True)
class SqliteTable(Table):
    """Reads a table of a SQLite file.

    Attributes:
        path: The file.
        table: Name of the table.
        columns: Names of its columns.
        num_rows: Number of its rows.
        key: Its primary key, where that is one column.
        foreign_keys: Those of one column.
        wide_keys: Columns of foreign keys of several columns, which are left out.
        dtypes: What each column holds; cells of other kinds than numbers are text, and blobs are none.
        order: What puts its rows in order.
    """

    path: Path
    table: str
    columns: tuple[str, ...]
    num_rows: int | None
    key: str | None
    foreign_keys: tuple[DeclaredKey, ...]
    wide_keys: tuple[str, ...]
    dtypes: tuple[pa.DataType, ...]
    order: str

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"{self.path} table {self.table!r}"

    def _batches(
        self, columns: list[str], size: int, rows: int, dtype: pa.DataType | None
    ) -> Iterator[pa.RecordBatch]:
        types = [dtype or self.dtypes[self.columns.index(column)] for column in columns]
        chosen = ", ".join(_cells(column, kind) for column, kind in zip(columns, types, strict=True))
        with closing(_connect(self.path)) as connection:
            try:
                # Without an index, whose order would be another for other columns.
                cursor = connection.execute(f"SELECT {chosen} FROM {_quoted(self.table)} {self.order}")
                while found := cursor.fetchmany(max(64, rows // _FETCHED_SHARE)):
                    cells = zip(*found, strict=True)
                    arrays = [pa.array(column, kind) for column, kind in zip(cells, types, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, names=columns)
            except _TORN as error:
                raise _unreadable(self.path, error) from None


def is_sqlite(path: Path) -> bool:
    """Tells whether a file begins as SQLite files do.

    Raises:
        IoError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except FileNotFoundError:
        return False
    except OSError as error:
        raise IoError(error.errno or 0, f"{path} cannot be read: {error.strerror}") from None


def table_names(path: Path) -> list[str]:
    """Returns the names of the tables of a SQLite file, in the order in which they were made.

    Raises:
        FormatError: It is no SQLite file, or torn.
    """
    if not is_sqlite(path):
        raise FormatError(f"{path} is no SQLite file: correct the name, or export its tables as CSV")
    with closing(_connect(path)) as connection:
        try:
            found = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
                "ORDER BY rowid"
            )
            return [name for (name,) in found]
        except _TORN as error:
            raise _unreadable(path, error) from None


def open_sqlite_table(path: Path, name: str) -> SqliteTable:
    """Opens a table: reads what is declared of it, and once which kinds of cells each column has.

    Raises:
        ArgumentError: The file has no such table.
        FormatError: It is no SQLite file, or torn.
    """
    known = table_names(path)
    if name not in known:
        raise ArgumentError(
            f"{path} has no table {name!r} (it has {', '.join(known) or 'none'}): correct the name"
        )
    with closing(_connect(path)) as connection:
        try:
            declared = connection.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
            columns = tuple(row[1] for row in declared)
            key = [row[1] for row in sorted(declared, key=lambda row: row[5]) if row[5]]
            keys, wide = _foreign_keys(connection, name)
            order = _order(connection, name, columns, key)
            num_rows, dtypes = _contents(connection, name, columns)
        except _TORN as error:
            raise _unreadable(path, error) from None
    return SqliteTable(
        path, name, columns, num_rows, key[0] if len(key) == 1 else None, keys, wide, dtypes, order
    )


def _foreign_keys(
    connection: sqlite3.Connection, name: str
) -> tuple[tuple[DeclaredKey, ...], tuple[str, ...]]:
    """Returns the keys of one column, in the order of their declaration, and the columns of others."""
    by_number: dict[int, list[DeclaredKey]] = {}
    for number, _, table, column, to, *_ in connection.execute(f"PRAGMA foreign_key_list({_quoted(name)})"):
        by_number.setdefault(number, []).append(DeclaredKey(column, table, to))
    single = [found[0] for _, found in sorted(by_number.items(), reverse=True) if len(found) == 1]
    wide = tuple(key.column for found in by_number.values() if len(found) > 1 for key in found)
    return tuple(single), wide


def _order(connection: sqlite3.Connection, name: str, columns: tuple[str, ...], key: list[str]) -> str:
    taken = {column.lower() for column in columns}
    row_id = next((word for word in _ROW_IDS if word not in taken), None)
    if row_id is not None:
        try:
            connection.execute(f"SELECT {row_id} FROM {_quoted(name)} LIMIT 0")
            return f"NOT INDEXED ORDER BY {row_id}"
        except sqlite3.OperationalError:  # a table WITHOUT ROWID
            pass
    return f"ORDER BY {', '.join(map(_quoted, key or columns))}"


def _contents(
    connection: sqlite3.Connection, name: str, columns: tuple[str, ...]
) -> tuple[int, tuple[pa.DataType, ...]]:
    """Returns the number of rows and what each column holds."""
    kinds = ("integer", "real", "text")
    num_rows, dtypes = 0, []
    for first in range(0, len(columns), _SURVEYED):  # a result has 2000 columns at the most
        some = columns[first : first + _SURVEYED]
        counts = [f"sum(typeof({_quoted(c)}) = '{kind}')" for c in some for kind in kinds]
        num_rows, *found = connection.execute(
            f"SELECT count(*), {', '.join(counts)} FROM {_quoted(name)}"
        ).fetchone()
        for i in range(len(some)):
            there = tuple(kind for kind, n in zip(kinds, found[3 * i : 3 * i + 3], strict=True) if n)
            dtypes.append(pa.null() if not there else _NUMBERS.get(there, pa.string()))
    return num_rows, tuple(dtypes)


def _cells(column: str, kind: pa.DataType) -> str:
    """Returns what reads the cells of a column, blobs as none."""
    cell = f"CAST({_quoted(column)} AS TEXT)" if pa.types.is_string(kind) else _quoted(column)
    return f"CASE typeof({_quoted(column)}) WHEN 'blob' THEN NULL ELSE {cell} END"


def _connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)
    except _TORN as error:
        raise _unreadable(path, error) from None
    try:
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    except _TORN as error:
        connection.close()
        raise _unreadable(path, error) from None
    return connection


def _unreadable(path: Path, error: Exception) -> FormatError:
    return FormatError(f"{path} is torn, or cannot be read as a SQLite file: {error}")


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
