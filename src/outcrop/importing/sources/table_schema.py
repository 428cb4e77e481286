"""What tables make of a graph: which are node types, which columns lead to other tables, which are links alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from outcrop.importing.sources.base import REVERSE
from outcrop.importing.sources.parts import Part
from outcrop.importing.sources.tables import Table
from outcrop.importing.sources.toml_entries import is_type_name

FOREIGN = "f2p_"  # in front of a column: the relation from its table to the one that it refers to, as RelBench calls it


@dataclass(frozen=True)
class ForeignKey:
    """Is a column that refers to rows of a table.

    Attributes:
        column: The column.
        table: Node type that it refers to.
        to: Column of that table whose cells it has; None = its key.
        relation: What the edges are called.
        reverse: What those that lead back are called; None = there are none.
    """

    column: str
    table: str
    to: str | None
    relation: str
    reverse: str | None


@dataclass(frozen=True)
class LabelTable:
    """Is a table of labels, and perhaps splits, of the rows of another.

    Attributes:
        table: The table.
        key: Column that names the rows.
        label: Column of the labels; None = it has none.
        split: Column of the splits; None = it has none.
    """

    table: Table
    key: str
    label: str | None
    split: str | None


@dataclass(frozen=True)
class NodeTable:
    """Is a table whose rows are nodes.

    Attributes:
        name: What the node type is called.
        table: The table.
        key: Column that names the rows; None = nothing does.
        foreign_keys: Columns that refer to other rows.
        features: Columns of numbers; None = all that are no keys, labels or splits.
        label, split: Columns of the labels and of the words train, valid, test; None = there are none.
        labels: Table of its labels or splits; None = there is none.
        splits: What lists the rows of each split: numbers or a mask, or a table with a column of keys.
        drop_unknown: Whether keys that the other table does not list are none; else they are refused.
        unused: Columns that are no features, and nothing else.
        categories: Columns of words, each of which becomes a column of the features.
    """

    name: str
    table: Table
    key: str | None = None
    foreign_keys: tuple[ForeignKey, ...] = ()
    features: tuple[str, ...] | None = None
    label: str | None = None
    split: str | None = None
    labels: LabelTable | None = None
    splits: dict[str, Part | Table] = field(default_factory=dict)
    drop_unknown: bool = False
    unused: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class LinkTable:
    """Is a table whose rows are edges and nothing else.

    Attributes:
        table: The table.
        source, target: Columns that refer to the ends; their ``relation`` and ``reverse`` say nothing.
        relation: What the edges are called.
        reverse: What those that lead back are called; None = there are none.
        weight: Column of their weights; None = they have none.
        features: Columns of numbers that are rows of the edges.
        drop_unknown, categories: As of :class:`NodeTable`.
    """

    table: Table
    source: ForeignKey
    target: ForeignKey
    relation: str
    reverse: str | None
    weight: str | None = None
    drop_unknown: bool = False
    features: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """Says what the tables of a folder or database make of a graph.

    Attributes:
        name: What messages call it.
        nodes: Tables whose rows are nodes.
        links: Tables whose rows are edges.
        keyed: Node types that no table lists: one node for each key that refers to them.
        notes: What the user should know, a sentence each.
    """

    name: str
    nodes: tuple[NodeTable, ...]
    links: tuple[LinkTable, ...]
    notes: tuple[str, ...] = ()
    keyed: tuple[str, ...] = ()


def foreign_key(column: str, table: str, to: str | None = None) -> ForeignKey:
    """Returns a foreign key whose edges are called as RelBench calls them."""
    relation = FOREIGN + type_name(column)
    return ForeignKey(column, table, to, relation, REVERSE + relation)


def type_name(name: str) -> str:
    """Returns the name of a table or column as types may be called: with ``_`` for what may not be in it."""
    return name if is_type_name(name) else "".join(c if is_type_name(c) else "_" for c in name) or "_"
