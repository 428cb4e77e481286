"""A ``tables.toml`` to start from, where tables declare no keys: guessed from the names of tables and columns."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from outcrop.importing.sources.table_schema import type_name

_ENDINGS = ("id", "key", "code", "no", "number")
_SHORTEST = 2  # letters of a table's name that are looked for in that of a column


@dataclass(frozen=True)
class NamedColumns:
    """Names a table and its columns.

    Attributes:
        name: What the table is called.
        columns: Its columns.
        key: Its primary key, where that is declared.
        file: File that it is in; None = it is one of a database.
        null: Cells that stand for no value, beside empty ones.
    """

    name: str
    columns: tuple[str, ...]
    key: str | None = None
    file: str | None = None
    null: tuple[str, ...] = ()


def guessed_toml(tables: Sequence[NamedColumns], database: str | None = None) -> str:
    """Returns the text of a ``tables.toml``: keys called ``id`` or like the table, foreign keys called like the key of
    another table, or like the table, and links where a table has nothing but two of these.

    Args:
        tables: The tables.
        database: File that has those without a file of their own.
    """
    keys = {table.name: table.key or _key(table) for table in tables}
    parts = [f"database = {json.dumps(database)}\n"] if database else []
    links = []
    for table in tables:
        others = _foreign_keys(table, tables, keys)
        if keys[table.name] is None and set(others) == set(table.columns) and len(others) == 2:
            links.append(_link(table, others))
            continue
        lines = ["[[tables]]", f"name = {json.dumps(type_name(table.name))}"]
        if table.file:
            lines.append(f"file = {json.dumps(table.file)}")
        elif type_name(table.name) != table.name:
            lines.append(f"table = {json.dumps(table.name)}")
        lines += [f"null = {json.dumps(table.null)}"] if table.null else []
        lines += [f"key = {json.dumps(keys[table.name])}"] if keys[table.name] else []
        if others:
            listed = ", ".join(f"{_bare(c)} = {json.dumps(type_name(other))}" for c, other in others.items())
            lines.append(f"foreign_keys = {{ {listed} }}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts + links)


def _bare(column: str) -> str:
    """Returns a column as a key of TOML: in quotes where it has to be."""
    return column if re.fullmatch("[A-Za-z0-9_-]+", column) else json.dumps(column)


def _link(table: NamedColumns, others: dict[str, str]) -> str:
    (first, source), (second, target) = others.items()
    where = f"file = {json.dumps(table.file)}" if table.file else f"table = {json.dumps(table.name)}"
    ends = [
        f"{end} = {json.dumps(type_name(name))}"
        for end, name in (("source", source), ("relation", table.name), ("target", target))
    ]
    columns = [f"source_column = {json.dumps(first)}", f"target_column = {json.dumps(second)}"]
    return "\n".join(["[[links]]", where, *ends, *columns]) + "\n"


def _key(table: NamedColumns) -> str | None:
    wanted = ["id", *(form + ending for ending in _ENDINGS for form in _forms(table.name))]
    plain = {_plain(column): column for column in reversed(table.columns)}
    found = next((plain[name] for name in wanted if name in plain), None)
    if found is None and table.columns:  # of sprint_results, resultId
        last = table.name.rpartition("_")[2]
        first = table.columns[0]
        found = (
            first
            if _plain(first) in {form + ending for form in _forms(last) for ending in _ENDINGS}
            else None
        )
    return found


def _foreign_keys(
    table: NamedColumns, tables: Sequence[NamedColumns], keys: dict[str, str | None]
) -> dict[str, str]:
    """Returns by column the table that it may refer to."""
    found = {}
    for column in table.columns:
        if column == keys[table.name]:
            continue
        fitting = [
            (length, -number, other.name)
            for number, other in enumerate(tables)
            if keys[other.name] and (length := _likeness(column, other.name, keys[other.name] or ""))
        ]
        if fitting:
            found[column] = max(fitting)[2]
    return found


def _likeness(column: str, table: str, key: str) -> int:
    """Returns how many letters of the name of a column say that it refers to the table; 0: none."""
    name = _plain(column)
    if name == _plain(key) and name != "id":
        return len(name) + 1
    for ending in _ENDINGS:
        for form in _forms(table):
            if len(form) >= _SHORTEST and name.endswith(form + ending):
                return len(form)
    return 0


def _forms(name: str) -> list[str]:
    """Returns how the name of a table may stand in that of a column: as it is, and of one instead of many."""
    plain = _plain(name)
    forms = [plain]
    if plain.endswith("ies"):
        forms.append(plain[:-3] + "y")
    if plain.endswith("es"):
        forms.append(plain[:-2])
    if plain.endswith("s") and len(plain) > 2:
        forms.append(plain[:-1])
    return forms


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
