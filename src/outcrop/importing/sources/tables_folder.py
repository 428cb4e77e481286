"""``tables:DIR``: tables of a database, each a node type whose foreign keys are edge types.

The folder has a ``tables.toml`` (:mod:`outcrop.importing.sources.tables_toml`), or tables that declare their keys: one
SQLite file, or Parquet files as RelBench saves them. ``tables:FILE`` is a SQLite file that declares its keys.
"""

from __future__ import annotations

from pathlib import Path

from outcrop.errors import ArgumentError
from outcrop.importing.sources.base import TypedSource
from outcrop.importing.sources.declared_keys import schema_of_database, schema_of_parquet
from outcrop.importing.sources.guessed_keys import NamedColumns, guessed_toml
from outcrop.importing.sources.sqlite_tables import (
    SQLITE_SUFFIXES,
    is_sqlite,
    open_sqlite_table,
    table_names,
)
from outcrop.importing.sources.table_files import TABLE_SUFFIXES, TextForm, open_table
from outcrop.importing.sources.table_graph import open_schema
from outcrop.importing.sources.table_schema import Schema
from outcrop.importing.sources.tables_toml import TABLES_TOML, files_of_schema, read_schema
from outcrop.importing.sources.toml_entries import OBJECTS_PER_BYTE
from outcrop.runtime.runtime import Runtime

_RELBENCH = "db"  # folder of the tables, in that of a data set of RelBench
_NULL = "\\N"
_LOOKED_AT = 1 << 16  # bytes at the begin of a file


def open_tables(path: Path, runtime: Runtime) -> TypedSource:
    """Opens the tables of a folder, or of a SQLite file; reads the columns that are keys, or that may be features.

    Raises:
        ArgumentError: Keys are not declared, or a table or column is not there.
        FormatError: A file is torn or not what its name says.
    """
    if not path.exists():
        raise ArgumentError(f"{path} is not there: tables:DIR is a folder of tables, or a SQLite file")
    described = path / TABLES_TOML
    if not described.is_file():
        return open_schema(_declared(path), runtime)
    with runtime.budget.reserve("import", OBJECTS_PER_BYTE * described.stat().st_size):
        return open_schema(read_schema(described), runtime)


def files_of_tables(path: Path) -> list[Path]:
    """Lists the files that importing the tables at ``path`` looks at."""
    if path.is_file():
        return [path]
    if (path / TABLES_TOML).is_file():
        return files_of_schema(path / TABLES_TOML)
    path = path / _RELBENCH if (path / _RELBENCH).is_dir() else path
    return _files(path, (*SQLITE_SUFFIXES, *TABLE_SUFFIXES)) if path.is_dir() else []


def _declared(path: Path) -> Schema:
    """Returns what the tables declare themselves."""
    path = path / _RELBENCH if (path / _RELBENCH).is_dir() else path
    files = _files(path, TABLE_SUFFIXES) if path.is_dir() else []
    found = schema_of_parquet(path, files) if files else None
    if found is not None:
        return found
    databases = [path] if path.is_file() else _files(path, SQLITE_SUFFIXES)
    if len(databases) > 1:
        raise ArgumentError(
            f"{path} has {len(databases)} SQLite files ({databases[0].name}, {databases[1].name}): name the one "
            "that is meant, tables:FILE"
        )
    if databases:
        return _of_database(databases[0])
    if not files:
        raise ArgumentError(
            f"{path} has no tables (*{', *'.join((*TABLE_SUFFIXES, *SQLITE_SUFFIXES))}) and no {TABLES_TOML}"
        )
    # Beside other tables, text is mostly what tells of them.
    chosen = [p for p in files if p.suffix != ".txt"] or files
    tables = [
        NamedColumns(p.stem, open_table(p, TextForm(header=True)).columns, None, p.name, _null_words(p))
        for p in chosen
    ]
    raise _undeclared(path, guessed_toml(tables))


def _null_words(path: Path) -> tuple[str, ...]:
    """Returns the words for no value that a file seems to have: that of MySQL and PostgreSQL."""
    with path.open("rb") as file:
        return (_NULL,) if path.suffix != ".parquet" and _NULL.encode() in file.read(_LOOKED_AT) else ()


def _of_database(path: Path) -> Schema:
    tables = [open_sqlite_table(path, name) for name in table_names(path)]
    if any(table.foreign_keys for table in tables):
        return schema_of_database(path, tables)
    if not is_sqlite(path) or not tables:
        raise ArgumentError(f"{path} has no tables")
    named = [NamedColumns(table.table, table.columns, table.key) for table in tables]
    raise _undeclared(path.parent, guessed_toml(named, path.name))


def _undeclared(folder: Path, text: str) -> ArgumentError:
    return ArgumentError(
        f"{folder}: no table says which of its columns are keys of others. Write a file {TABLES_TOML} there that does; "
        f"guessed from the names of columns, to be corrected:\n\n{text}"
    )


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in suffixes and path.is_file())
