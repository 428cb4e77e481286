"""Keys that tables declare themselves: SQLite in its schema, Parquet in its metadata, as RelBench writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import REVERSE
from outcrop.importing.sources.sqlite_tables import DeclaredKey, SqliteTable
from outcrop.importing.sources.table_files import open_table, parquet_errors
from outcrop.importing.sources.table_schema import (
    ForeignKey,
    LinkTable,
    NodeTable,
    Schema,
    foreign_key,
    type_name,
)

_KEY, _FOREIGN_KEYS, _TIME = b"pkey_col", b"fkey_col_to_pkey_table", b"time_col"


def schema_of_database(path: Path, tables: Sequence[SqliteTable]) -> Schema:
    """Returns what a SQLite file declares. A table of two foreign keys and nothing else, to which no other refers, is
    a table of edges.

    Raises:
        ArgumentError: A foreign key refers to a table or column that is not there.
    """
    known = {table.table.lower(): table for table in tables}
    keys = {table.table: [_resolved(table, key, known) for key in table.foreign_keys] for table in tables}
    referred = {key.table for found in keys.values() for key in found}
    nodes, links, notes = [], [], []
    for table in tables:
        found = keys[table.table]
        if table.wide_keys:
            notes.append(f"{table.name}: foreign keys of several columns are not imported")
        if _is_link(table, found) and type_name(table.table) not in referred:
            relation = type_name(table.table)
            links.append(LinkTable(table, found[0], found[1], relation, REVERSE + relation))
        else:
            nodes.append(
                NodeTable(type_name(table.table), table, table.key, tuple(found), unused=table.wide_keys)
            )
    return Schema(str(path), tuple(nodes), tuple(links), tuple(notes))


def _resolved(table: SqliteTable, key: DeclaredKey, known: dict[str, SqliteTable]) -> ForeignKey:
    """Returns the key with names as the tables spell them: SQLite does not tell upper from lower case."""
    other = known.get(key.table.lower())
    if other is None:
        raise ArgumentError(
            f"{table.name}: column {key.column!r} refers to a table {key.table!r}, which is not there"
        )
    to = other.key if key.to is None else other.column(key.to.lower())
    column = table.column(key.column.lower())
    if column is None or to is None:
        raise ArgumentError(
            f"{table.name}: column {key.column!r} refers to {key.to or 'the primary key'} of {key.table!r}, which is "
            "no column of it: write a tables.toml that says what is meant"
        )
    return foreign_key(column, type_name(other.table), None if to == other.key else to)


def _is_link(table: SqliteTable, keys: Sequence[ForeignKey]) -> bool:
    return len(keys) == 2 and {key.column for key in keys} == set(table.columns)


def schema_of_parquet(folder: Path, paths: Sequence[Path]) -> Schema | None:
    """Returns what the metadata of Parquet files declares, as RelBench saves a database; None where none does.

    Raises:
        ArgumentError: A foreign key refers to a table that is not there.
        FormatError: The metadata is not what RelBench writes.
    """
    declared = {path: _metadata(path) for path in paths if path.suffix == ".parquet"}
    if not any(_FOREIGN_KEYS in found for found in declared.values()):
        return None
    names, nodes, notes = {path.stem for path in declared}, [], []
    for path, found in declared.items():
        table = open_table(path)
        key, others = _column(path, found, _KEY, table.columns), _read(path, found, _FOREIGN_KEYS) or {}
        if not isinstance(others, dict):
            raise _odd(path, _FOREIGN_KEYS)
        for column, other in others.items():
            if column not in table.columns or other not in names:
                raise ArgumentError(
                    f"{path}: column {column!r} refers to a table {other!r}, and "
                    + (
                        f"{folder} has no such table"
                        if column in table.columns
                        else "the file has no such column"
                    )
                )
        time = _column(path, found, _TIME, table.columns)
        if time is not None:
            notes.append(f"{path}: column {time!r} is not imported: nodes have no times yet")
        keys = tuple(foreign_key(column, type_name(other)) for column, other in others.items())
        nodes.append(NodeTable(type_name(path.stem), table, key, keys, unused=(time,) if time else ()))
    return Schema(str(folder), tuple(nodes), (), tuple(notes))


def _metadata(path: Path) -> dict[bytes, bytes]:
    with parquet_errors(path):
        return dict(pq.read_schema(path).metadata or {})


def _read(path: Path, found: dict[bytes, bytes], key: bytes) -> Any:
    try:
        return json.loads(found.get(key, b"null"))
    except ValueError:
        raise _odd(path, key) from None


def _column(path: Path, found: dict[bytes, bytes], key: bytes, columns: tuple[str, ...]) -> str | None:
    column = _read(path, found, key)
    if column is not None and column not in columns:
        raise FormatError(
            f"{path}: its {key.decode()} is {column!r}, which is no column of it: save the table again"
        )
    return column


def _odd(path: Path, key: bytes) -> FormatError:
    return FormatError(f"{path}: its {key.decode()} is not what RelBench writes: save the table again")
