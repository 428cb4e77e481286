"""A graph from its parts, wherever they come from: opened files of a folder, or objects in memory.

Parts are ``edges``, ``edge_weight``, ``edge_features``, ``nodes``, ``features``, ``labels``, ``train``, ``valid``,
``test``, ``splits``, ``train_edges``, ``valid_edges``, ``test_edges``; each an array, a table or a sparse matrix.
docs/sources.md describes what each may hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import (
    EdgeBlock,
    FeatureSource,
    GraphSource,
    LabelSource,
    SplitRow,
    check_ids,
    same_length,
)
from outcrop.importing.sources.edge_list import (
    ROW_NUMBERS,
    WEIGHT_COLUMNS,
    array_edges,
    edge_columns,
    edge_of,
    odd_text,
    table_edges,
    text_columns,
)
from outcrop.importing.sources.features import (
    ID_COLUMNS,
    array_features,
    edge_array_features,
    table_features,
)
from outcrop.importing.sources.ids import IdMap, MappedIds, PlainIds, TextIds, ids_of_table, names_of
from outcrop.importing.sources.labels import array_labels, labels_by_id, table_labels
from outcrop.importing.sources.matrix import Csr, matrix_edges, matrix_features, matrix_labels
from outcrop.importing.sources.split_rows import ends_of, first_and_last
from outcrop.importing.sources.table_splits import split_blocks, table_splits
from outcrop.importing.sources.tables import Place, Table
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import SPLIT_NAMES
from outcrop.store.graph_manifest import EDGE_SPLITS

LABEL_COLUMNS = ("label", "labels", "class", "y")
_BESIDE_LABELS = ("split",)


@dataclass(frozen=True)
class Part:
    """Holds a part of a graph. ``name`` is for messages: the file, or what the caller calls it."""

    name: str
    value: np.ndarray | Table | Csr


@dataclass(frozen=True)
class Parts:
    """Holds the parts of a graph by their kind, and what is usual for it.

    Attributes:
        name: What messages call the source.
        parts: Parts by kind; kinds that the graph lacks are left out.
        num_nodes: Where the caller tells it.
        names: Node names in id order, where the edges hold positions in a list of names.
        integer_names: As in :class:`GraphSource`.
        notes: As in :class:`GraphSource`.
        reverse: As in :class:`GraphSource`.
        transposed: A sparse matrix of edges holds targets in its rows.
        node_table_hint: What to add where names of nodes do not tell which row is whose.
    """

    name: str
    parts: dict[str, Part]
    num_nodes: int | None = None
    names: Callable[[], Iterator[str]] | None = None
    integer_names: bool = False
    reverse: bool = False
    transposed: bool = False
    notes: tuple[str, ...] = ()
    node_table_hint: str = "a table 'nodes'"


def open_parts(given: Parts, runtime: Runtime) -> GraphSource:
    """Puts the parts together; reads headers and the columns of node ids.

    Raises:
        ArgumentError: Parts contradict each other, or leave open which row belongs to which node.
        FormatError: A part has not the shape or the type that it needs.
    """
    return _PartsJoiner(given, runtime).source()


class _PartsJoiner:
    """Makes parts a :class:`GraphSource`: who is who, then edges and rows."""

    def __init__(self, given: Parts, runtime: Runtime):
        self.given, self.parts, self.runtime = given, given.parts, runtime
        self.notes = list(given.notes)
        self.used: dict[str, set[str]] = {}
        self.nodes = self._table("nodes")
        self.ids: IdMap | None = self._node_ids() if self.nodes else None
        self.features = self._features()

    def _table(self, kind: str) -> Table | None:
        part = self.parts.get(kind)
        if part is None:
            return None
        if not isinstance(part.value, Table):
            raise ArgumentError(f"{part.name} is no table; {kind} needs one with named columns")
        return part.value

    def _use(self, table: Table, *columns: str | None) -> None:
        self.used.setdefault(table.name, set()).update(c for c in columns if c)

    def _node_ids(self) -> IdMap:
        assert self.nodes is not None
        column = self.nodes.column(*ID_COLUMNS)
        if column is None:
            raise FormatError(
                f"{self.nodes.name} has no column 'id' (it has {', '.join(self.nodes.columns) or 'none'})"
            )
        self._use(self.nodes, column)
        return ids_of_table(self.runtime, self.nodes, column)

    def _features(self) -> FeatureSource | None:
        part = self.parts.get("features")
        if part is None:
            return None
        if isinstance(part.value, Csr):
            return matrix_features(self.runtime, part.value)
        if isinstance(part.value, np.ndarray):
            return array_features(self.runtime, part.name, part.value)
        column = part.value.column(*ID_COLUMNS)
        features, ids = table_features(self.runtime, part.value, self.ids, column)
        self.ids = ids
        return features

    def source(self) -> GraphSource:
        given = self.given
        part = self.parts["edges"]
        rows = self._rows_of_labels()
        told = same_length(
            {
                "num_nodes": given.num_nodes,
                self.nodes.name if self.nodes else "nodes": self.ids.num_nodes if self.ids else None,
                self.features.name if self.features else "features": self.features.num_rows
                if self.features
                else None,
                self.parts["labels"].name if "labels" in self.parts else "labels": rows,
                part.name: part.value.rows if isinstance(part.value, Csr) else None,
            }
        )
        fixed = self.ids is not None
        ids = self._edge_ids(told)
        edges, num_edges, weighted = self._edges(ids)
        labels = self._labels(ids)
        self._note_numbered_splits(ids)
        self._drop_notes()
        names = given.names
        if names is None and not isinstance(ids, PlainIds):
            names = (lambda: ids.names() or iter(())) if fixed or isinstance(ids, TextIds) else None
        return GraphSource(
            given.name,
            edges,
            told,
            num_edges,
            self.features,
            labels,
            lambda num_nodes: self._splits(ids, num_nodes),
            names,
            integer_names=given.integer_names or isinstance(ids, MappedIds),
            reverse=given.reverse,
            weighted=weighted,
            edge_splits=lambda: self._edge_splits(ids),
            notes=tuple(self.notes),
            split_rows=lambda node: self._split_rows(ids, node),
            edge_at=self._edge_at(),
            weight_at=self._weight_at(),
            edge_features=self._edge_features(),
        )

    def _edge_features(self) -> FeatureSource | None:
        part = self.parts.get("edge_features")
        if part is None:
            return None
        if isinstance(self.parts["edges"].value, Csr):
            raise ArgumentError(
                f"{part.name} belongs to a list of edges, and {self.parts['edges'].name} is a matrix, whose entries "
                "are in no order: give the edges as pairs"
            )
        if isinstance(part.value, Csr):
            return matrix_features(self.runtime, part.value)
        if isinstance(part.value, np.ndarray):
            return edge_array_features(self.runtime, part.name, part.value)
        return table_features(self.runtime, part.value, None)[0]

    def _edge_ids(self, told: int | None) -> IdMap:
        """Returns the given ids, or what the edges are named by."""
        if self.ids is not None:
            return self.ids
        part = self.parts["edges"]
        if isinstance(part.value, Table) and text_columns(self.runtime, part.value):
            if told is not None:
                odd = odd_text(self.runtime, part.value)
                begin = f"{odd}: correct it. Or are ids text? " if odd else ""
                raise ArgumentError(
                    f"{begin}{part.name} names nodes by text, so which row of the features or labels is whose "
                    f"is not known: add {self.given.node_table_hint} with a column 'id' in row order"
                )
            return TextIds(self.runtime)
        return PlainIds(told, self.given.name)

    def _edges(self, ids: IdMap) -> tuple[Callable[[], Iterator[EdgeBlock]], int | None, bool]:
        """Returns what yields the edges, how many there are where that is known, and whether they have weights."""
        part, runtime, weights = self.parts["edges"], self.runtime, self.parts.get("edge_weight")
        if isinstance(part.value, np.ndarray):
            array = None if weights is None else weights.value
            if array is not None and not isinstance(array, np.ndarray):
                raise ArgumentError(
                    f"{weights.name if weights else ''} is no array; edge weights are [edges]"
                )
            named = "" if weights is None else weights.name
            edges, count = array_edges(runtime, part.name, part.value, ids, named, array)
            return edges, count, weights is not None
        if weights is not None:
            where = "a column 'weight'" if isinstance(part.value, Table) else "the values"
            raise ArgumentError(
                f"{weights.name} belongs to an array of edges: put weights into {where} of {part.name}"
            )
        if isinstance(part.value, Csr):
            matrix, weighted = part.value, part.value.weighted
            if weighted:
                self.notes.append(f"the values of {part.name} are kept as edge weights")
            turned = self.given.transposed
            return (
                (lambda: matrix_edges(runtime, matrix, weighted, turned)),
                len(matrix.indices),
                weighted,
            )
        table = part.value
        weight = table.column(*WEIGHT_COLUMNS)
        if table.columns:
            self._use(table, *edge_columns(table), weight)
        return table_edges(runtime, table, ids), table.num_rows, weight is not None

    def _edge_at(self) -> Callable[[int], str] | None:
        """What tells where an edge is; None for a sparse matrix, whose entries have no rows."""
        edges = self.parts["edges"]
        if isinstance(edges.value, Table):
            return Place(edges.value).at
        return edge_of(edges.name) if isinstance(edges.value, np.ndarray) else None

    def _weight_at(self) -> Callable[[int], str] | None:
        """Returns what tells where the weight of an edge is; None for a sparse matrix, whose entries have no rows."""
        edges, weights = self.parts["edges"], self.parts.get("edge_weight")
        if weights is not None:
            return Place(weights.name).at
        if isinstance(edges.value, Table):
            return Place(edges.value, edges.value.column(*WEIGHT_COLUMNS)).at
        return None

    def _rows_of_labels(self) -> int | None:
        """Returns rows of labels that are in node order."""
        part = self.parts.get("labels")
        if part is None:
            return None
        if isinstance(part.value, np.ndarray):
            return len(part.value)
        if isinstance(part.value, Csr):
            return part.value.rows
        return part.value.num_rows if part.value.column(*ID_COLUMNS) is None else None

    def _labels(self, ids: IdMap) -> LabelSource | None:
        part, nodes = self.parts.get("labels"), self.nodes
        in_nodes = nodes.column(*LABEL_COLUMNS) if nodes else None
        if nodes and in_nodes:
            if part:
                raise ArgumentError(f"labels are in {part.name} and in {nodes.name}: keep one of them")
            self._use(nodes, in_nodes)
            return table_labels(self.runtime, nodes, [in_nodes])
        if part is None:
            return None
        if isinstance(part.value, np.ndarray):
            return array_labels(self.runtime, part.name, part.value)
        if isinstance(part.value, Csr):
            return matrix_labels(self.runtime, part.value)
        return self._table_labels(part.value, ids)

    def _table_labels(self, table: Table, ids: IdMap) -> LabelSource:
        id_column, column = table.column(*ID_COLUMNS), table.column(*LABEL_COLUMNS)
        known_columns = (id_column, table.column(*_BESIDE_LABELS))
        columns = [column] if column else [c for c in table.columns if c not in known_columns]
        if not columns:
            raise FormatError(f"{table.name} has no column with labels; name it 'label'")
        self._use(table, *columns, id_column)
        if id_column is None:
            self._require_no_ids(table, columns)
            return table_labels(self.runtime, table, columns)
        return labels_by_id(self.runtime, table, columns, id_column, ids)

    def _require_no_ids(self, table: Table, labels: list[str]) -> None:
        """Raises FormatError where a column beside the labels may hold the ids that nodes have elsewhere.

        Labels taken in the order of the nodes would be those of other nodes.
        """
        features = self.parts.get("features")
        rows = features.value if features else None
        named = self.nodes is not None or (isinstance(rows, Table) and rows.column(*ID_COLUMNS) is not None)
        others = [
            c for c in table.columns if c not in (*labels, *ROW_NUMBERS) and c.lower() not in _BESIDE_LABELS
        ]
        if named and others:
            raise FormatError(
                f"{table.name} has no column 'id', and nodes have ids: call the column that names them 'id' (there are "
                f"{', '.join(table.columns)}), or leave {', '.join(others)} out if rows are in the order of the nodes"
            )

    def _note_numbered_splits(self, ids: IdMap) -> None:
        """Notes it where splits list integers that look like ids of the source, and mean nodes."""
        if not isinstance(ids, MappedIds):
            return
        numbers = [
            part.name
            for split in SPLITS
            if (part := self.parts.get(split)) is not None
            and isinstance(part.value, np.ndarray)
            and part.value.dtype.kind in "iu"
        ]
        if numbers:
            self.notes.append(
                f"{', '.join(numbers)}: integers are taken for the numbers of nodes, 0 to {ids.num_nodes - 1}, not for "
                "ids; if they are ids, list them in a table 'splits' with the columns 'id' and 'split' instead"
            )

    def _drop_notes(self) -> None:
        splits = self._table("splits")
        if splits:
            self._use(splits, splits.column(*ID_COLUMNS), splits.column("split"))
        if self.nodes:
            self._use(self.nodes, self.nodes.column("split"))
        tables = [
            p.value for p in self.parts.values() if isinstance(p.value, Table) and p.value.name in self.used
        ]
        for table in tables:
            left = [column for column in table.columns if column not in self.used[table.name]]
            if left:
                self.notes.append(f"columns of {table.name} that are not imported: {', '.join(left)}")

    def _splits(self, ids: IdMap, num_nodes: int) -> dict[str, np.ndarray] | None:
        arrays = {split: self.parts[split] for split in SPLITS if split in self.parts}
        table, nodes = self._table("splits"), self.nodes
        in_nodes = nodes.column("split") if nodes else None
        if (bool(arrays) + bool(table) + bool(in_nodes)) > 1:
            raise ArgumentError(
                f"{self.given.name} gives splits in more than one way (train, valid, test; a splits table; a column "
                "of the node table): keep one"
            )
        if arrays:
            return {split: _part_ids(part, ids, num_nodes) for split, part in arrays.items()}
        if table:
            id_column, split_column = table.column(*ID_COLUMNS), table.column("split")
            if not id_column or not split_column:
                raise FormatError(f"{table.name} needs the columns 'id' and 'split'")
            return table_splits(self.runtime, table, [id_column, split_column], ids)
        return table_splits(self.runtime, nodes, [in_nodes], None) if nodes and in_nodes else None

    def _split_rows(self, ids: IdMap, node: int) -> list[SplitRow]:
        """Returns the first and the last row of each part that put ``node`` into a split; reads the splits again."""
        rows = []
        for split in SPLITS:
            part = self.parts.get(split)
            if part is not None and isinstance(part.value, np.ndarray):
                rows += _rows_of_part(split, part, ids, node)
        table = self._table("splits")
        if table:
            columns = [table.column(*ID_COLUMNS) or "", table.column("split") or ""]
            name, place = names_of(ids, np.array([node])), Place(table, columns[0])
            rows += ends_of(
                (SPLIT_NAMES[words[row].lower()], name, place, first_row + row)
                for first_row, nodes, words in split_blocks(self.runtime, table, columns, ids)
                for row in first_and_last([np.where(words != "", nodes, -1)], node)
            )
        return rows

    def _edge_splits(self, ids: IdMap) -> dict[str, np.ndarray]:
        """Returns edges to be predicted, int64 [M, 2] by split."""
        edges_of_split: dict[str, np.ndarray] = {}
        for kind in EDGE_SPLITS:
            part = self.parts.get(kind)
            if part is None:
                continue
            array = part.value
            if not isinstance(array, np.ndarray) or array.ndim != 2 or 2 not in array.shape:
                shape = f"shape {array.shape}" if isinstance(array, np.ndarray) else "no array"
                raise FormatError(f"{part.name} has {shape}; [edges, 2] is needed, or [2, edges]")
            array = array if array.shape[1] == 2 else array.T
            pairs = check_ids(part.name, array)
            if not isinstance(ids, PlainIds):
                columns = [ids.lookup(Place(part.name), pa.array(pairs[:, i]), 0) for i in (0, 1)]
                pairs = np.stack(columns, axis=1)
            edges_of_split[kind.removesuffix("_edges")] = pairs
        return edges_of_split


class SplitParts:
    """Reads the splits of the nodes of a type: lists of ids or masks, by split."""

    def __init__(self, parts: dict[str, Part], num_nodes: int):
        self._parts, self._num_nodes = parts, num_nodes

    def ids(self, num_nodes: int) -> dict[str, np.ndarray] | None:
        """Returns node ids by split; None where the type has no splits."""
        arrays = {split: np.asarray(part.value) for split, part in self._parts.items()}
        return {s: split_ids(self._parts[s].name, array, num_nodes) for s, array in arrays.items()} or None

    def rows(self, node: int) -> list[SplitRow]:
        """Returns the first and the last row of each list that put ``node`` into a split."""
        ids = PlainIds(self._num_nodes)
        found = (_rows_of_part(split, part, ids, node) for split, part in self._parts.items())
        return [row for rows in found for row in rows]


def _part_ids(part: Part, ids: IdMap, num_nodes: int) -> np.ndarray:
    array = part.value
    if not isinstance(array, np.ndarray):
        raise FormatError(f"{part.name} is no array; a split is a list of ids or a mask")
    if array.dtype.kind in "OUS" and array.ndim == 1:
        return ids.lookup(Place(part.name), pa.array(array.astype(str)), 0)
    return split_ids(part.name, array, num_nodes)


def _rows_of_part(split: str, part: Part, ids: IdMap, node: int) -> list[SplitRow]:
    """Returns the first and last row of a list of ids, or the row of a mask, that put ``node`` into ``split``."""
    array, place = np.asarray(part.value), Place(part.name)
    if array.dtype == np.bool_:
        return [SplitRow(split, str(node), place.at(node))] if array[node] else []
    text = array.dtype.kind in "OUS"
    rows = first_and_last([_part_ids(part, ids, 0) if text else array], node)
    return [SplitRow(split, repr(str(array[row])) if text else str(node), place.at(row)) for row in rows]


def split_ids(name: str, array: np.ndarray, num_nodes: int) -> np.ndarray:
    """Returns node ids from a list of ids or a boolean mask."""
    if array.ndim != 1:
        raise FormatError(f"{name} has shape {array.shape}; a split is a list of ids or a mask")
    if array.dtype == np.bool_:
        if len(array) != num_nodes:
            raise ArgumentError(f"{name} masks {len(array)} nodes, the graph has {num_nodes}")
        return np.flatnonzero(array)
    return check_ids(name, np.asarray(array))
