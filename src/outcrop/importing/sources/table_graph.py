"""From tables and their keys to a graph: a row is a node, a foreign key an edge from its row to the one it names.

Keys of the tables that others refer to are held in memory, under the budget; everything else is read block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import (
    EdgeBlock,
    EdgeSource,
    FeatureSource,
    LabelSource,
    NodeSource,
    SplitRow,
    TypedSource,
)
from outcrop.importing.sources.column_features import ColumnFeatures, require_number, words_of
from outcrop.importing.sources.column_survey import ColumnFacts, survey
from outcrop.importing.sources.features import ID_COLUMNS
from outcrop.importing.sources.frames import StreamTable
from outcrop.importing.sources.ids import IdMap, MappedIds, PlainIds
from outcrop.importing.sources.labels import labels_by_id, table_labels
from outcrop.importing.sources.parts import Part, SplitParts, table_splits
from outcrop.importing.sources.table_keys import (
    KeyForm,
    Reference,
    WrittenIds,
    distinct_keys,
    form_of_keys,
    is_written,
    key_names,
    keys_of,
    text_type,
)
from outcrop.importing.sources.table_schema import ForeignKey, LabelTable, LinkTable, NodeTable, Schema
from outcrop.importing.sources.tables import Place, Table, to_numpy
from outcrop.importing.sources.toml_entries import require_distinct_types
from outcrop.runtime.runtime import Runtime

_KEY = "key"  # column of a table made of the keys that refer to it


def open_schema(schema: Schema, runtime: Runtime) -> TypedSource:
    """Opens the tables of a graph: reads the keys that others refer to, and once the columns that may be features.

    Raises:
        ArgumentError: Parts contradict each other, or a key that is referred to is no key.
        FormatError: A file is torn, a key is listed twice, or a feature is no number.
    """
    schema = _with_keyed(schema, runtime)
    opener = _Opener(schema, runtime)
    nodes = tuple(opener.nodes(table) for table in schema.nodes)
    edges = [opener.foreign_edges(table, key) for table in schema.nodes for key in table.foreign_keys]
    edges += [opener.links(table) for table in schema.links]
    if not edges:
        raise ArgumentError(
            f"{schema.name} has tables and no keys of others: say foreign_keys in tables.toml, or import one table "
            "with arrays:DIR"
        )
    require_distinct_types(schema.name, "edge type", [" ".join(one.key) for one in edges])
    return TypedSource(schema.name, nodes, tuple(edges), (*schema.notes, *opener.notes))


def _with_keyed(schema: Schema, runtime: Runtime) -> Schema:
    """Returns the schema with a table in memory for each node type that no table lists."""
    listed = []
    for name in schema.keyed:
        places = [
            Place(table.table, end.column)
            for table in schema.links
            for end in (table.source, table.target)
            if end.table == name
        ]
        places += [
            Place(table.table, key.column)
            for table in schema.nodes
            for key in table.foreign_keys
            if key.table == name
        ]
        if not places:
            raise ArgumentError(
                f"{schema.name}: no key refers to {name!r}, whose nodes are those that keys name"
            )
        table = pa.table({_KEY: distinct_keys(runtime, places)})
        listed.append(
            NodeTable(name, StreamTable(f"the keys that refer to {name!r}", table), _KEY, features=())
        )
    return replace(schema, nodes=(*schema.nodes, *listed))


def _referred(schema: Schema) -> set[str]:
    """Returns the node types to whose keys other tables refer."""
    keys = [key for table in schema.nodes for key in table.foreign_keys]
    keys += [end for table in schema.links for end in (table.source, table.target)]
    of = {table.name: table.key for table in schema.nodes}
    listed = {table.name for table in schema.nodes if table.labels is not None}
    return listed | {key.table for key in keys if key.to in (None, of[key.table])}


class _Opener:
    def __init__(self, schema: Schema, runtime: Runtime):
        self._runtime = runtime
        self._tables = {table.name: table for table in schema.nodes}
        self._keys: dict[tuple[str, str], IdMap] = {}
        self._referred = _referred(schema)
        self._notes: list[str] = []
        self._chose = False  # features that nobody named
        self._left_words = False  # and columns of words

    @property
    def notes(self) -> list[str]:
        """Returns what the user should know."""
        chose = "columns of numbers are features where tables.toml does not list them: features = [...] there"
        words = "columns of words are features where tables.toml lists them: categories = [...] there"
        return [*self._notes, *([chose] if self._chose else []), *([words] if self._left_words else [])]

    def nodes(self, of: NodeTable) -> NodeSource:
        facts = self._facts(of)
        num_rows = of.table.num_rows
        if num_rows is None:
            num_rows = next((one.rows for one in facts.values()), None)
        num_nodes = self._count(of.table) if num_rows is None else num_rows
        features = self._features(of, facts, num_nodes)
        splits = _Splits(of, self._runtime, self._ids_of, num_nodes)
        names, integers = self._names(of)
        return NodeSource(
            f"{of.table.name} ({of.name})",
            num_nodes,
            features,
            self._labels(of, facts),
            splits.ids,
            split_rows=splits.rows,
            type_name=of.name,
            whose=f"node type {of.name!r} has",
            integer_names=integers,
            names=names,
        )

    def _names(self, of: NodeTable) -> tuple[Callable[[], Iterator[str]] | None, bool]:
        """Returns what yields the names of the rows, and whether these are integers; None where none are needed."""
        if of.key is None:
            return None, False
        form = self._form(of.name, of.table, of.key)
        if form == "numbered":
            return None, False
        return partial(key_names, self._runtime, of.table, of.key), form == "integers"

    def _form(self, name: str, table: Table, key: str) -> KeyForm:
        """Returns what the keys of a table are: of those to which others refer, without reading them once more."""
        if name not in self._referred:
            return form_of_keys(self._runtime, table, key)
        known = self._ids_of(name)
        return (
            "numbered"
            if isinstance(known, PlainIds)
            else "integers"
            if isinstance(known, MappedIds)
            else "text"
        )

    def foreign_edges(self, of: NodeTable, key: ForeignKey) -> EdgeSource:
        reference = self._reference(of.table, key, of.drop_unknown)

        def blocks() -> Iterator[EdgeBlock]:
            row = 0
            for (cells,) in of.table.blocks(self._runtime, [key.column], dtype=text_type(of.table)):
                rows = reference.rows(cells, row)
                given = np.flatnonzero(rows >= 0)
                yield row + given, rows[given]
                row += len(cells)

        name = str(reference.place)
        self._note_unknown(name, of.drop_unknown, key.table)
        return EdgeSource(name, (of.name, key.relation, key.table), blocks, reverse=key.reverse)

    def links(self, of: LinkTable) -> EdgeSource:
        ends = [self._reference(of.table, end, of.drop_unknown) for end in (of.source, of.target)]
        columns = [of.source.column, of.target.column, *([of.weight] if of.weight else [])]

        def blocks() -> Iterator[EdgeBlock]:
            for row, block in _numbered(of.table.blocks(self._runtime, columns, dtype=text_type(of.table))):
                sources, targets = (end.rows(cells, row) for end, cells in zip(ends, block[:2], strict=True))
                given = np.flatnonzero((sources >= 0) & (targets >= 0))
                if of.weight is None:
                    yield sources[given], targets[given]
                else:
                    weights = _weights(Place(of.table, of.weight), block[2], row)
                    yield sources[given], targets[given], weights[given]

        name = of.table.name
        self._note_unknown(name, of.drop_unknown, of.source.table, of.target.table)
        left = [
            column for column in of.table.columns if column not in (*columns, *of.features, *of.categories)
        ]
        if left:
            self._notes.append(f"columns of {name} that are not imported: {', '.join(left)}")
        key = (of.source.table, of.relation, of.target.table)
        row_of = partial(self._row_of_link, of, ends)
        return EdgeSource(
            name,
            key,
            blocks,
            weighted=of.weight is not None,
            reverse=of.reverse,
            features=self._rows_of_links(of, ends),
            edge_at=lambda edge: Place(of.table).at(row_of(edge)),
            weight_at=lambda edge: Place(of.table, of.weight).at(row_of(edge)),
        )

    def _rows_of_links(self, of: LinkTable, ends: list[Reference]) -> FeatureSource | None:
        """Returns the rows of the edges, of those rows of the table whose ends are given; None where they have none."""
        made = self._column_features(of, survey(self._runtime, of.table, of.features))
        if not made.columns:
            return None
        self._notes.append(f"edges '{of.source.table} {of.relation} {of.target.table}': {made.said()}")
        if not made.width:  # not a word in all columns
            return None
        keys = [of.source.column, of.target.column]

        def given(columns: list[str], rows: int | None = None) -> Iterator[tuple[np.ndarray, list[pa.Array]]]:
            blocks = of.table.blocks(self._runtime, [*keys, *columns], rows, text_type(of.table))
            for row, block in _numbered(blocks):
                found = [end.rows(cells, row) for end, cells in zip(ends, block[:2], strict=True)]
                yield np.flatnonzero((found[0] >= 0) & (found[1] >= 0)), block[2:]

        def blocks(rows: int) -> Iterator[np.ndarray]:
            for chosen, block in given(made.columns, rows):
                for start in range(0, len(chosen), rows):
                    part = pa.array(chosen[start : start + rows])
                    yield made.of([cells.take(part) for cells in block])

        def where(row: int, column: int) -> str:
            return Place(of.table, made.column_of(column)).at(self._row_of_link(of, ends, row))

        count = sum(len(chosen) for chosen, _ in given([]))
        return FeatureSource(of.table.name, np.dtype(np.float32), count, made.width, blocks, where=where)

    def _column_features(self, of: NodeTable | LinkTable, facts: dict[str, ColumnFacts]) -> ColumnFeatures:
        for name, one in facts.items():
            require_number(Place(of.table, name), one)
        return ColumnFeatures(of.table, facts, words_of(self._runtime, of.table, of.categories))

    def _row_of_link(self, of: LinkTable, ends: list[Reference], edge: int) -> int:
        """Returns the row of an edge, by its number among those whose ends are given; reads the table again."""
        columns = [of.source.column, of.target.column]
        for row, block in _numbered(of.table.blocks(self._runtime, columns, dtype=text_type(of.table))):
            found = [end.rows(cells, row) for end, cells in zip(ends, block, strict=True)]
            given = np.flatnonzero((found[0] >= 0) & (found[1] >= 0))
            if edge < len(given):
                return row + int(given[edge])
            edge -= len(given)
        return -1

    def _note_unknown(self, name: str, dropped: bool, *tables: str) -> None:
        if dropped:
            self._notes.append(
                f"{name}: keys that {' and '.join(dict.fromkeys(tables))} does not list are taken for none"
            )

    def _reference(self, table: Table, key: ForeignKey, drop_unknown: bool) -> Reference:
        return Reference(Place(table, key.column), self._ids_of(key.table, key.to), drop_unknown)

    def _ids_of(self, name: str, column: str | None = None) -> IdMap:
        """Returns the keys of a table, by the column that has them."""
        of = self._tables[name]
        column = column or of.key
        if column is None:
            raise ArgumentError(
                f'{of.table.name} has no key, and other tables refer to its rows: say key = "COLUMN" of {name!r}'
            )
        if column not in of.table.columns:
            raise ArgumentError(
                f"{of.table.name} has no column {column!r}, by which other tables name its rows"
            )
        if (name, column) not in self._keys:
            self._keys[name, column] = keys_of(self._runtime, of.table, column)
        return self._keys[name, column]

    def _count(self, table: Table) -> int:
        """Counts rows by reading the first column."""
        if not table.columns:
            return 0
        blocks = table.blocks(self._runtime, [table.columns[0]], dtype=text_type(table))
        return sum(len(cells) for (cells,) in blocks)

    def _facts(self, of: NodeTable) -> dict[str, ColumnFacts]:
        """Returns what the columns hold that may be features, and the label."""
        taken = {of.key, of.split, of.label, *of.unused, *of.categories}
        taken |= {key.column for key in of.foreign_keys}
        columns = (
            [c for c in of.table.columns if c not in taken] if of.features is None else list(of.features)
        )
        return survey(
            self._runtime, of.table, list(dict.fromkeys([*columns, *([of.label] if of.label else [])]))
        )

    def _features(self, of: NodeTable, facts: dict[str, ColumnFacts], num_nodes: int) -> FeatureSource | None:
        if of.features is None:
            chosen = {name: one for name, one in facts.items() if one.is_number and name != of.label}
        else:
            chosen = {name: facts[name] for name in of.features}
        made = self._column_features(of, chosen)
        known = {*made.columns, of.key, of.label, of.split, *(key.column for key in of.foreign_keys)}
        left = [column for column in of.table.columns if column not in known]
        parts = [made.said()] if made.columns else []
        parts += [f"not imported: {', '.join(left)}"] if left else []
        if parts:
            self._notes.append(f"nodes {of.name!r}: {'; '.join(parts)}")
        self._chose = self._chose or (bool(chosen) and of.features is None)
        self._left_words |= any(facts[name].kind == "text" for name in left if name in facts)
        return made.source(self._runtime, num_nodes) if made.width else None

    def _labels(self, of: NodeTable, facts: dict[str, ColumnFacts]) -> LabelSource | None:
        if of.label is not None:
            dtype = facts[of.label].read_as if is_written(of.table) else None
            return table_labels(self._runtime, of.table, [of.label], dtype)
        given = of.labels
        if given is None or given.label is None:
            return None
        ids = WrittenIds(self._ids_of(of.name))
        return labels_by_id(self._runtime, given.table, [given.label], given.key, ids)


def _numbered(blocks: Iterator[list[pa.Array]]) -> Iterator[tuple[int, list[pa.Array]]]:
    """Yields blocks with the number of the first row of each."""
    row = 0
    for block in blocks:
        yield row, block
        row += len(block[0])


def _weights(place: Place, cells: pa.Array, row: int) -> np.ndarray:
    try:
        numbers = cells.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        words = cells.to_pylist()
        odd = next((i for i, word in enumerate(words) if not _is_number(word)), 0)
        raise FormatError(
            f"{place.at(row + odd)}: {words[odd]!r} is no number; weights are numbers: correct it"
        ) from None
    return np.ascontiguousarray(to_numpy(place, numbers, row), np.float32)


def _is_number(word: object) -> bool:
    try:
        float(str(word))
    except ValueError:
        return False
    return True


class _Splits:
    """Reads the splits of a table, whichever way they are given."""

    def __init__(self, of: NodeTable, runtime: Runtime, ids_of: Callable[[str], IdMap], num_nodes: int):
        self._of, self._runtime, self._ids_of, self._num_nodes = of, runtime, ids_of, num_nodes

    def ids(self, num_nodes: int) -> dict[str, np.ndarray] | None:
        """Returns rows by split; None where there are no splits."""
        of = self._of
        if of.split is not None:
            return table_splits(self._runtime, of.table, [of.split], None, text_type(of.table))
        if of.labels is not None and of.labels.split is not None:
            return self._of_labels(of.labels, of.labels.split)
        found = {split: self._listed(split, one, num_nodes) for split, one in of.splits.items()}
        return found or None

    def _of_labels(self, labels: LabelTable, split: str) -> dict[str, np.ndarray]:
        ids = WrittenIds(self._ids_of(self._of.name))
        columns = [labels.key, split]
        return table_splits(self._runtime, labels.table, columns, ids, text_type(labels.table))

    def _listed(self, split: str, given: Part | Table, num_nodes: int) -> np.ndarray:
        if isinstance(given, Part):
            return (SplitParts({split: given}, num_nodes).ids(num_nodes) or {})[split]
        return np.concatenate([np.zeros(0, np.int64), *(rows for _, _, rows in self._blocks(given))])

    def _blocks(self, given: Table) -> Iterator[tuple[Place, int, np.ndarray]]:
        of = self._of
        column = given.column((of.key or "").lower(), *ID_COLUMNS) or (given.columns or ("",))[0]
        place = Place(given, column)
        ids = WrittenIds(self._ids_of(of.name))
        for row, (cells,) in _numbered(given.blocks(self._runtime, [column], dtype=text_type(given))):
            yield place, row, ids.lookup(place, cells, row)

    def rows(self, node: int) -> list[SplitRow]:
        """Returns every row that puts a row of the table into a split."""
        found = []
        for split, given in self._of.splits.items():
            if isinstance(given, Part):
                found += SplitParts({split: given}, self._num_nodes).rows(node)
                continue
            for place, row, rows in self._blocks(given):
                found += [
                    SplitRow(split, f"in row {node}", place.at(row + int(at)))
                    for at in np.flatnonzero(rows == node)
                ]
        return found
