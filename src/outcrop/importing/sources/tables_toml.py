"""``tables.toml``: which tables there are, which columns are keys, features, labels, splits, and how text is written.

    database = "shop.sqlite"    # where tables are those of a SQLite file

    [[tables]]
    name = "author"             # node type
    file = "author.txt"         # CSV, TSV, text or Parquet; of a database: table = "Author", by default the name
    header = false              # how text is written, as far as it does not show: delimiter, header, columns,
    columns = ["id", "name"]    # encoding, quotes, null (words for no value), fill_short_lines
    key = "id"
    foreign_keys = { city = "town" }    # or { table = "town", key = "code", relation = "in", reverse = false }
    features = ["age"]          # default: all numbers that are none of the others
    categories = ["kind"]       # words: each becomes a column of 0 and 1
    label = "area"
    from_keys = true            # instead of a file: one node for each key that refers to the type
    split = "split"             # a column of words, or files: train = "train.csv"
    [tables.labels]             # or labels in a table of their own
    file = "author_label.txt"
    key = "id"
    label = "area"

    [[links]]                   # a table that has nothing but two keys: edges
    file = "paper_author.txt"
    source = "paper"            # node types
    relation = "written_by"
    target = "author"
    source_column = "paper"     # default: the first column and the second
    target_column = "author"
    weight = "share"
    features = ["hours"]        # rows of the edges
    reverse = true              # default: rev_written_by; or the name of that relation, or false

docs/sources.md has an example.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.npy import open_npy
from outcrop.importing.sources.parts import Part
from outcrop.importing.sources.sqlite_tables import open_sqlite_table
from outcrop.importing.sources.table_files import TextForm, open_table
from outcrop.importing.sources.table_schema import (
    FOREIGN,
    ForeignKey,
    LabelTable,
    LinkTable,
    NodeTable,
    Schema,
    type_name,
)
from outcrop.importing.sources.tables import Table
from outcrop.importing.sources.toml_entries import Entry, entries_of, read_toml, require_distinct_types
from outcrop.store.graph import SPLIT_NAMES

TABLES_TOML = "tables.toml"
_FROM_KEYS = "from_keys"
_FORM = ("file", "table", "delimiter", "header", "columns", "encoding", "quotes", "null", "fill_short_lines")
_ROOT = {"database": 'database = "FILE"', "tables": "[[tables]]", "links": "[[links]]"}
_OF_TABLES = (
    *("name", *_FORM, "key", "foreign_keys", "features", "categories", "label", "split", "labels"),
    *(*SPLIT_NAMES, "unknown_keys", _FROM_KEYS),
)
_OF_LINKS = (
    *(*_FORM, "source", "relation", "target", "source_column", "target_column", "source_key", "target_key"),
    *("weight", "features", "categories", "reverse", "unknown_keys"),
)
_OF_LABELS = (*_FORM, "key", "label", "split")
_OF_KEYS = ("table", "key", "relation", "reverse")


def read_schema(path: Path) -> Schema:
    """Reads a ``tables.toml``, and the headers of the files that it names.

    Raises:
        ArgumentError: A file, table or column is not there.
        FormatError: It is no TOML or says what it cannot, or a file is not what its name says.
    """
    root = read_toml(path, _ROOT)
    top = Entry(path, "its top level", root)
    database = top.file("database") if top.text("database") is not None else None
    entries = entries_of(root, path, "tables", _OF_TABLES)
    if not entries:
        raise FormatError(f"{path} has no [[tables]]: write a table [[tables]] for each node type")
    names = [entry.word("name") for entry in entries]
    require_distinct_types(path, "node type", names)
    reader = _Reader(database, tuple(names))
    keyed = tuple(name for entry, name in zip(entries, names, strict=True) if _is_keyed(entry))
    nodes = tuple(reader.nodes(entry) for entry in entries if not entry.flag(_FROM_KEYS))
    links = tuple(reader.links(entry) for entry in entries_of(root, path, "links", _OF_LINKS))
    return Schema(str(path.parent), nodes, links, keyed=keyed)


def files_of_schema(path: Path) -> list[Path]:
    """Lists ``tables.toml`` and the files that it names, as far as they are there."""
    found = [path]
    with suppress(ArgumentError, FormatError, ValueError):  # the import itself says what is wrong
        _collect(read_toml(path, _ROOT), path.parent, found)
    return list(dict.fromkeys(found))


def _collect(given: Any, folder: Path, found: list[Path]) -> None:
    if isinstance(given, dict):
        for key, value in given.items():
            if (
                key in ("file", "database", *SPLIT_NAMES)
                and isinstance(value, str)
                and (folder / value).is_file()
            ):
                found.append(folder / value)
            _collect(value, folder, found)
    elif isinstance(given, list):
        for one in given:
            _collect(one, folder, found)


@dataclass(frozen=True)
class _Reader:
    database: Path | None
    names: tuple[str, ...]  # node types

    def nodes(self, entry: Entry) -> NodeTable:
        name = entry.word("name")
        table = self._table(entry, name)
        splits, label, split = (
            self._splits(entry),
            _column(entry, "label", table),
            _column(entry, "split", table),
        )
        below = entry.below("labels", _OF_LABELS)
        labels = None if below is None else self._labels(below)
        if below is not None and label is not None and labels is not None and labels.label is not None:
            raise ArgumentError(f"{entry.at} has labels in 'label' and in 'labels': keep one of them")
        if bool(splits) + (split is not None) + (labels is not None and labels.split is not None) > 1:
            raise ArgumentError(f"{entry.at} gives splits in more than one way: keep one of them")
        key, features = _column(entry, "key", table), entry.texts("features")
        if key is None and (labels is not None or any(isinstance(one, Table) for one in splits.values())):
            raise FormatError(f"{entry.at} has no 'key', by which other tables name its rows: add it")
        for column in features or ():
            _require_column(entry, "features", column, table)
        taken = {"features": features or (), "key": (key,), "label": (label,), "split": (split,)}
        return NodeTable(
            *(name, table, key, self._foreign_keys(entry, table), features, label, split, labels, splits),
            _drops_unknown(entry),
            categories=_categories(entry, table, taken),
        )

    def links(self, entry: Entry) -> LinkTable:
        relation, table = entry.word("relation"), self._table(entry, None)
        if len(table.columns) < 2:
            raise FormatError(f"{table.name} has {len(table.columns)} columns; links need two keys")
        ends = []
        for number, end in enumerate(("source", "target")):
            column = _column(entry, f"{end}_column", table) or table.columns[number]
            ends.append(ForeignKey(column, self._type(entry, end), entry.text(f"{end}_key"), "", None))
        weight, reverse = _column(entry, "weight", table), entry.reverse(relation, True)
        features = entry.texts("features") or ()
        for column in features:
            _require_column(entry, "features", column, table)
        source, target = ends
        taken = {"features": features, "weight": (weight,), "source_column": (source.column,)}
        return LinkTable(
            *(table, source, target, relation, reverse, weight, _drops_unknown(entry), features),
            _categories(entry, table, taken | {"target_column": (target.column,)}),
        )

    def _labels(self, entry: Entry) -> LabelTable:
        table = self._table(entry, None)
        key, label, split = (_column(entry, name, table) for name in ("key", "label", "split"))
        if key is None or (label is None and split is None):
            raise FormatError(f"{entry.at} needs 'key' and 'label', or 'split': the columns of these")
        return LabelTable(table, key, label, split)

    def _foreign_keys(self, entry: Entry, table: Table) -> tuple[ForeignKey, ...]:
        given = entry.given.get("foreign_keys", {})
        if not isinstance(given, dict):
            raise FormatError(
                f'{entry.at}: foreign_keys is {given!r}, a table is needed: {{ column = "table" }}'
            )
        found = []
        for column, to in given.items():
            _require_column(entry, "foreign_keys", column, table)
            said = {"table": to} if isinstance(to, str) else to
            if not isinstance(said, dict):
                raise FormatError(
                    f"{entry.at}: foreign_keys {column!r} is {to!r}, the name of a table is needed"
                )
            below = Entry(entry.path, f"{entry.name}, foreign_keys {column!r}", said)
            below.require_known(_OF_KEYS)
            relation = below.word("relation") if "relation" in said else FOREIGN + type_name(column)
            reverse = below.reverse(relation, True)
            found.append(ForeignKey(column, self._type(below, "table"), below.text("key"), relation, reverse))
        return tuple(found)

    def _type(self, entry: Entry, key: str) -> str:
        name = entry.word(key)
        if name not in self.names:
            raise ArgumentError(
                f"{entry.at}: {key} is {name!r}, which is no name of [[tables]] (there are {', '.join(self.names)})"
            )
        return name

    def _splits(self, entry: Entry) -> dict[str, Part | Table]:
        found: dict[str, Part | Table] = {}
        for key, split in SPLIT_NAMES.items():
            if key not in entry.given:
                continue
            if split in found:
                raise ArgumentError(
                    f"{entry.at} gives split {split!r} twice, as {key!r} too: keep one of them"
                )
            path = entry.file(key)
            found[split] = (
                Part(str(path), open_npy(path))
                if path.suffix == ".npy"
                else open_table(path, TextForm(header=True))
            )
        return found

    def _table(self, entry: Entry, name: str | None) -> Table:
        """Opens the table that an entry describes."""
        table = entry.text("table")
        if "file" in entry.given:
            if table is not None:
                raise ArgumentError(
                    f"{entry.at} has 'file' and 'table', which is one of a database: keep one of them"
                )
            return open_table(entry.file("file"), text_form(entry))
        if self.database is None or (table is None and name is None):
            raise FormatError(f"{entry.at} has no 'file' with the table: add it")
        return open_sqlite_table(self.database, table or name or "")


def text_form(entry: Entry) -> TextForm:
    """Returns what an entry says of how a file of text is written.

    Raises:
        FormatError: It says what cannot be.
    """
    delimiter, encoding = entry.text("delimiter"), entry.text("encoding") or "utf-8"
    if delimiter is not None and len(delimiter) != 1:
        raise FormatError(f"{entry.at}: delimiter is {delimiter!r}, one character is needed")
    ascii_text = "".join(map(chr, range(128)))
    try:
        fits = ascii_text.encode(encoding) == ascii_text.encode()
    except (LookupError, UnicodeError):
        fits = False
    if not fits:
        raise FormatError(
            f"{entry.at}: encoding is {encoding!r}, which is none that can be read here, such as 'latin-1': convert "
            "the file to UTF-8"
        )
    header, columns = entry.flag("header"), entry.texts("columns") or ()
    quotes, fill = entry.flag("quotes"), entry.flag("fill_short_lines")
    return TextForm(
        delimiter,
        not columns if header is None else header,
        columns,
        "utf-8" if encoding.lower() in ("utf8", "utf-8", "ascii") else encoding,
        True if quotes is None else quotes,
        entry.texts("null") or (),
        bool(fill),
    )


def _column(entry: Entry, key: str, table: Table) -> str | None:
    column = entry.text(key)
    if column is not None:
        _require_column(entry, key, column, table)
    return column


def _require_column(entry: Entry, key: str, column: str, table: Table) -> None:
    if column not in table.columns:
        raise ArgumentError(
            f"{entry.at}: {key} names column {column!r}, which {table.name} does not have (it has "
            f"{', '.join(table.columns) or 'none'}): correct it"
        )


def _categories(entry: Entry, table: Table, taken: dict[str, tuple[str | None, ...]]) -> tuple[str, ...]:
    """Returns the columns of words that become features; none may be among those ``taken`` by other keys."""
    found = tuple(dict.fromkeys(entry.texts("categories") or ()))
    for column in found:
        _require_column(entry, "categories", column, table)
        for key, columns in taken.items():
            if column in columns:
                raise ArgumentError(
                    f"{entry.at}: categories and {key} name column {column!r}: keep one of them"
                )
    return found


def _is_keyed(entry: Entry) -> bool:
    """Tells whether an entry is of a node type that no table lists."""
    if not entry.flag(_FROM_KEYS):
        return False
    others = [key for key in entry.given if key not in ("name", _FROM_KEYS)]
    if others:
        raise FormatError(
            f"{entry.at} has {_FROM_KEYS} and {others[0]!r}: keys tell nothing of nodes but their names"
        )
    return True


def _drops_unknown(entry: Entry) -> bool:
    given = entry.text("unknown_keys") or "refuse"
    if given not in ("refuse", "none"):
        raise FormatError(f"{entry.at}: unknown_keys is {given!r}; write refuse or none")
    return given == "none"
