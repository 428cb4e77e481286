"""A ``tables.toml`` to start from, where tables declare no keys: guessed from the names of tables and columns."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from outcrop.importing.sources.table_schema import type_name

_ENDINGS = ("id", "key", "code", "no", "number")
_SHORTEST = 2  # letters of a table's name that are looked for in that of a column
_LABELS = ("label", "labels")
_SPLITS = ("split", "splits")
_SHOWN = 4  # names of columns at either end, of many
_HEAD = """# Write what is to be predicted as label = "COLUMN", words train, valid, test as split = "COLUMN".
# Other columns become features where they hold numbers, unless features = ["COLUMN", ...] names those that do;
# those of words where categories = ["COLUMN", ...] names them.
"""
_UNKNOWN = "# Not taken: say which types these columns refer to where there is a ?, and remove the # before the lines."
_FROM_KEYS = ["[[tables]]", 'name = "node"', "from_keys = true", ""]  # where no table lists the nodes


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
    """Returns the text of a ``tables.toml``, with what it cannot know as comments.

    Keys are columns called ``id`` or like the table; foreign keys those called like the key of another table, or like
    the table; links are tables of nothing but two of these. Two columns that are called like nothing may refer to
    other tables: they are shown as links that are comments, with their ends where there is but one type with a key.
    ``label`` and ``split`` are taken where a column is called so.

    Args:
        tables: The tables.
        database: File that has those without a file of their own.
    """
    keys = {table.name: table.key or _key(table) for table in tables}
    parts = [f"database = {json.dumps(database)}\n"] if database else []
    parts.append(_HEAD)
    keyed = [type_name(name) for name, key in keys.items() if key] or ["node"]
    unsure = ("?", "?") if keyed[1:] else (keyed[0], keyed[0])
    links: list[str] = []
    unknown = [] if any(keys.values()) else list(_FROM_KEYS)
    for table in tables:
        others = _foreign_keys(table, tables, keys)
        if keys[table.name] is not None or len(table.columns) != 2 or len(others) == 1:
            parts.append("\n".join(_node_table(table, keys[table.name], others)) + "\n")
        elif others:
            ends = tuple(map(type_name, others.values()))
            links.append("\n".join(_link(table, tuple(others), ends)) + "\n")
        else:
            unknown += [*_link(table, table.columns, unsure), ""]
    if unknown and unknown != _FROM_KEYS:
        links.append("\n".join([_UNKNOWN, *_commented(unknown[:-1])]) + "\n")
    return "\n".join(parts + links)


def _node_table(table: NamedColumns, key: str | None, others: dict[str, str]) -> list[str]:
    lines = ["[[tables]]", f"name = {json.dumps(type_name(table.name))}"]
    if table.file:
        lines.append(f"file = {json.dumps(table.file)}")
    elif type_name(table.name) != table.name:
        lines.append(f"table = {json.dumps(table.name)}")
    lines += [f"null = {json.dumps(table.null)}"] if table.null else []
    lines += [f"key = {json.dumps(key)}"] if key else []
    if others:
        listed = ", ".join(f"{_bare(c)} = {json.dumps(type_name(other))}" for c, other in others.items())
        lines.append(f"foreign_keys = {{ {listed} }}")
    left = [column for column in table.columns if column != key and column not in others]
    for entry, names in (("label", _LABELS), ("split", _SPLITS)):
        found = next((column for column in left if _plain(column) in names), None)
        if found is not None:
            lines.append(f"{entry} = {json.dumps(found)}")
            left.remove(found)
    if left:
        lines.append(f"# other columns: {_shortened(left)}")
    if key is None and len(others) == 2 and left:
        ends = tuple(type_name(other) for other in others.values())
        described = [*_link(table, tuple(others), ends), 'features = ["COLUMN", ...]']
        lines += [
            "# Or as edges, which have these columns as features, in place of nodes:",
            *_commented(described),
        ]
    return lines


def _commented(lines: Sequence[str]) -> list[str]:
    return [f"# {line}".rstrip() for line in lines]


def _shortened(columns: Sequence[str]) -> str:
    """Returns names as a comment can have them: on one line, the first and the last few."""
    shown = [json.dumps(column) for column in columns]
    if len(shown) > 2 * _SHOWN + 1:
        shown[_SHOWN:-_SHOWN] = [f"{len(shown) - 2 * _SHOWN} more"]
    return ", ".join(shown)


def _bare(column: str) -> str:
    """Returns a column as a key of TOML: in quotes where it has to be."""
    return column if re.fullmatch("[A-Za-z0-9_-]+", column) else json.dumps(column)


def _link(table: NamedColumns, columns: tuple[str, ...], ends: tuple[str, ...]) -> list[str]:
    """Returns the lines of a table that is edges between two types."""
    relation, source, target = (json.dumps(name) for name in (type_name(table.name), *ends))
    first, second = map(json.dumps, columns)
    return [
        "[[links]]",
        f"file = {json.dumps(table.file)}" if table.file else f"table = {json.dumps(table.name)}",
        *([f"null = {json.dumps(table.null)}"] if table.null else []),
        *(f"source = {source}", f"relation = {relation}", f"target = {target}"),
        *(f"source_column = {first}", f"target_column = {second}"),
    ]


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
