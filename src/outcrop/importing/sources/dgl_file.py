"""``dgl:FILE.bin``: a graph as ``dgl.save_graphs`` writes it, in the form of now (version 2) and the first one.

The file is a page with magic number, version, kind of graph and number of graphs; then, all little-endian, lists with
their length in front: named arrays that belong to no graph, and the graphs. In version 2 a graph is the graph of its
types, an adjacency per edge type (pairs, lists by source or lists by target), the number of nodes of each type, named
arrays of nodes and of edges by type, and the names of the types. In version 1 it is lists by target, and named arrays.
Arrays are views of a map of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from outcrop.config import ImportConfig
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.adjacency import Adjacency, open_adjacency
from outcrop.importing.sources.base import GraphSource, TypedSource
from outcrop.importing.sources.checks import check_told_nodes, check_told_types
from outcrop.importing.sources.file_map import MOST_AXES, map_of, mask_of
from outcrop.importing.sources.hetero import open_columns
from outcrop.importing.sources.objects import data_parts, notes_of_splits, part_of
from outcrop.importing.sources.parts import Parts
from outcrop.importing.sources.typed import EdgeTypeName, TypedColumns
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime

T = TypeVar("T")

_FILE = 0xDD2E4FF046B4A13F
_ARRAY = 0xDD5E40F096B4A13F
_GRAPH = 0xDD589FBE35224ABF
_UNIT_GRAPH = 0xDD2E60F0F6B4A127
_TYPE_GRAPH = 0xDD3C5FFE20046ABF
_LISTS = 0xDD6CD31205DFF127
_PAIRS = 0xDD61FFD305DFF127
_KINDS = {1: 1, 2: 2}  # version of the file -> kind of its graphs
_ELEMENTS = {0: "i", 1: "u", 2: "f"}
_BY_PAIRS, _BY_SOURCE, _BY_TARGET = 1, 2, 3
_LONGEST_NAME = 1 << 16
_BYTES_PER_VALUE = 256  # what a value of a list takes in memory, beside what stays in the file
# What DGL's datasets call the columns -> what they are here.
_NODE_COLUMNS = {"feat": "x", "feature": "x", "features": "x", "label": "y", "labels": "y"}
_WEIGHTS = ("edge_weight", "weight", "w")


def open_dgl(
    path: Path, runtime: Runtime, held: ExitStack, config: ImportConfig
) -> GraphSource | TypedSource:
    """Opens ``dgl:FILE.bin``; arrays are read from the file block by block.

    Args:
        config: Which column of masks ``[N, splits]``, and whether a large number of nodes is meant.

    Raises:
        ArgumentError: The file is missing, holds several graphs, or parts contradict each other.
        FormatError: It is no such file, or torn.
    """
    (found,) = read_dgl(path, runtime, held, most=1)
    if len(found.nodes) != 1 or len(found.edges) != 1:
        typed = open_columns(_with_names_of_data(found), runtime, config.split_index)
        check_told_types(typed, path.stat().st_size)
        return typed
    try:
        source = _source(found, runtime, config.split_index)
        check_told_nodes(source, path.stat().st_size, config.num_nodes)
        return source
    except (ArgumentError, FormatError) as error:
        raise error if str(path) in str(error) else type(error)(f"{path}: {error}") from None


def read_dgl(path: Path, runtime: Runtime, held: ExitStack, most: int | None = None) -> list[TypedColumns]:
    """Returns the graphs of a file; arrays stay there, and the rest is paid for by the budget while ``held`` is open.

    Args:
        most: How many graphs there may be; None = any number.

    Raises:
        ArgumentError: There is no such file, or it holds no graph or too many.
        FormatError: It is no file of ``dgl.save_graphs``, or torn.
    """
    return _DglReader(path, runtime, held).graphs(most)


def _with_names_of_data(found: TypedColumns) -> TypedColumns:
    """Returns the columns by what a ``Data`` calls them; edges are ``adj_t``."""
    nodes = {name: _values(f"{found.name}: {name}", columns) for name, columns in found.nodes.items()}
    edges = {}
    for key, columns in found.edges.items():
        adjacency, left = _weighted(columns)
        edges[key] = {"adj_t": adjacency, **left}
    return TypedColumns(found.name, nodes, edges, found.graph)


def _values(name: str, nodes: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns of nodes by what a ``Data`` calls them."""
    given: dict[str, Any] = {}
    for column, value in nodes.items():
        kind = _NODE_COLUMNS.get(column, column)
        if kind in given:
            raise ArgumentError(f"{name}: {column!r} and another column both give {kind}: keep one of them")
        given[kind] = mask_of(f"{name}: {column}", value) if column.endswith("_mask") else value
    return given


def _weighted(columns: dict[str, Any]) -> tuple[Adjacency, dict[str, Any]]:
    """Returns the edges with their weights, where they have some, and the other columns."""
    edges, left = columns["edges"], {name: value for name, value in columns.items() if name != "edges"}
    weights = next((name for name in _WEIGHTS if name in left), None)
    return (edges, left) if weights is None else (replace(edges, weights=left.pop(weights).reshape(-1)), left)


def _source(found: TypedColumns, runtime: Runtime, split_index: int) -> GraphSource:
    (nodes,), (columns,) = found.nodes.values(), found.edges.values()
    edges, columns = _weighted(columns)
    named, notes = data_parts(found.name, _values(found.name, nodes))
    notes += notes_of_splits(found.name, named, split_index)
    left = (
        [f"columns of the edges of {found.name} that are not imported: {', '.join(columns)}"]
        if columns
        else []
    )
    count = named.pop("num_nodes")
    parts = {
        kind: replace(part_of(kind, value, split_index), name=f"{found.name}: {kind}")
        for kind, value in named.items()
    }
    return open_adjacency(edges, Parts(found.name, parts, num_nodes=count, notes=(*notes, *left)), runtime)


class _DglReader:
    """Reads one value after the other, each of which must lie within the file."""

    def __init__(self, path: Path, runtime: Runtime, held: ExitStack):
        self._runtime, self._held = runtime, held
        self._name, self._bytes, self._position = str(path), map_of(path), 0

    def graphs(self, most: int | None) -> list[TypedColumns]:
        """Returns all graphs."""
        if len(self._bytes) < PAGE_BYTES or self._number() != _FILE:
            raise FormatError(f"{self._name} is no file of dgl.save_graphs, or is torn")
        version, kind = self._number(), self._number()
        if _KINDS.get(version) != kind:
            raise FormatError(
                f"{self._name} has version {version} and graphs of kind {kind}, which are not read: save it again with "
                "a DGL of version 0.5 or later"
            )
        if version == 1:
            self._position = PAGE_BYTES
        count = self._number()
        if count == 0 or (most is not None and count > most):
            raise ArgumentError(
                f"{self._name} holds {count} graphs, one is needed: save it with dgl.save_graphs(FILE, graphs[0])"
            )
        if version == 1:
            return self._first_form(count)
        self._position = PAGE_BYTES
        self._position = self._number()  # behind the arrays that belong to no graph
        return [self._graph() for _ in range(self._checked(count))]

    def _first_form(self, count: int) -> list[TypedColumns]:
        begins, counts, _ = (self._list(self._number) for _ in range(3))
        if len(begins) != count or len(counts) != count:
            raise self._damaged(f"has {len(begins)} places of {count} graphs")
        found = []
        for begin, num_nodes in zip(begins, counts, strict=True):
            self._position = begin
            ends, others, numbers = self._array(), self._array(), self._array()
            given = numbers if len(numbers) else None
            edges = Adjacency(f"{self._name}: edges", num_nodes, num_nodes, ends, others, True, True, given)
            nodes: dict[str, Any] = {"num_nodes": num_nodes, **self._columns()}
            typed = TypedColumns(self._name, {"_N": nodes}, {})
            typed.edges["_N", "_E", "_N"] = {"edges": edges, **self._columns()}
            found.append(typed)
        return found

    def _graph(self) -> TypedColumns:
        self._expect(_GRAPH, "a graph")
        pairs = self._type_graph()
        adjacencies = self._list(self._adjacency)
        counts = self._list(self._number)
        nodes, edges = self._list(self._columns), self._list(self._columns)
        node_names, relations = self._list(self._text), self._list(self._text)
        if not len(counts) == len(nodes) == len(node_names) or len(set(node_names)) != len(node_names):
            raise self._damaged("has other numbers of node types than of their names")
        if not len(adjacencies) == len(edges) == len(relations) == len(pairs):
            raise self._damaged("has other numbers of edge types than of their names")
        typed = TypedColumns(self._name, {}, {})
        for name, count, columns in zip(node_names, counts, nodes, strict=True):
            typed.nodes[name] = {"num_nodes": count} | columns
        for number, (relation, adjacency) in enumerate(zip(relations, adjacencies, strict=True)):
            source, target = pairs.get(number, (-1, -1))
            if not (0 <= source < len(counts) and 0 <= target < len(counts)):
                raise self._damaged(f"has an edge type {relation!r} between types that are not there")
            sizes = (counts[target], counts[source]) if adjacency.turned else (counts[source], counts[target])
            if (adjacency.rows, adjacency.columns) != sizes:
                raise self._damaged(f"has other numbers of nodes than its edges {relation!r}")
            key: EdgeTypeName = (node_names[source], relation, node_names[target])
            typed.edges[key] = {"edges": adjacency} | edges[number]
        return typed

    def _type_graph(self) -> dict[int, tuple[int, int]]:
        """Returns the source and target type of each edge type, of a graph whose nodes are types."""
        self._expect(_TYPE_GRAPH, "the graph of its types")
        graph = self._lists("types", turned=False)
        if (graph.ends[1:] < graph.ends[:-1]).any():
            raise self._damaged("has a graph of its types whose lists end before they begin")
        numbers = graph.numbers if graph.numbers is not None else np.arange(len(graph.others))
        pairs = {}
        for row in range(graph.rows):
            for at in range(int(graph.ends[row]), int(graph.ends[row + 1])):
                pairs[int(numbers[at])] = (row, int(graph.others[at]))
        return pairs

    def _adjacency(self) -> Adjacency:
        self._expect(_UNIT_GRAPH, "edges")
        form, _ = self._number(), self._number()
        self._type_graph()
        if form == _BY_PAIRS:
            return self._pairs()
        if form in (_BY_SOURCE, _BY_TARGET):
            return self._lists("edges", turned=form == _BY_TARGET)
        raise self._damaged(f"has edges of form {form}")

    def _pairs(self) -> Adjacency:
        self._expect(_PAIRS, "pairs")
        columns, rows = self._number(), self._number()
        ends, others, numbers = self._array(), self._array(), self._array()
        self._take(2)
        return Adjacency(
            f"{self._name}: edges", rows, columns, ends, others, numbers=numbers if len(numbers) else None
        )

    def _lists(self, what: str, turned: bool) -> Adjacency:
        self._expect(_LISTS, "lists")
        columns, rows = self._number(), self._number()
        ends, others, numbers = self._array(), self._array(), self._array()
        self._take(1)
        given = numbers if len(numbers) else None
        return Adjacency(f"{self._name}: {what}", rows, columns, ends, others, True, turned, given)

    # Values.

    def _columns(self) -> dict[str, np.ndarray]:
        return dict(self._list(lambda: (self._text(), self._array())))

    def _list(self, read: Callable[[], T]) -> list[T]:
        return [read() for _ in range(self._checked(self._number()))]

    def _checked(self, count: int) -> int:
        """Returns a number of values that follow; each takes 8 bytes or more."""
        if count > (len(self._bytes) - self._position) // 8:
            raise self._damaged(f"promises {count} values")
        self._held.enter_context(self._runtime.budget.reserve("import", count * _BYTES_PER_VALUE))
        return count

    def _text(self) -> str:
        length = self._number()
        if length > _LONGEST_NAME:
            raise self._damaged(f"has a name of {length} bytes")
        try:
            return self._take(length).tobytes().decode()
        except UnicodeDecodeError:
            raise self._damaged("has a name that is no text") from None

    def _number(self) -> int:
        return int.from_bytes(self._take(8).tobytes(), "little")

    def _expect(self, magic: int, what: str) -> None:
        if self._number() != magic:
            raise self._damaged(f"has no {what}, or not in a form that is read,")

    def _array(self) -> np.ndarray:
        self._expect(_ARRAY, "array")
        self._take(16)  # reserved, and where it was
        head = self._take(8).tobytes()
        axes, code, bits = int.from_bytes(head[:4], "little"), head[4], head[5]
        if axes > MOST_AXES or head[6:] != b"\x01\x00":
            raise self._damaged(f"has an array of {axes} axes")
        shape = tuple(self._number() for _ in range(axes))
        count_bytes = self._number()
        if code not in _ELEMENTS or bits not in (8, 16, 32, 64) or (code == 2 and bits == 8):
            raise self._damaged(f"has an array of type {code} and {bits} bits")
        element = np.dtype(f"<{_ELEMENTS[code]}{bits // 8}")
        if count_bytes != prod(shape) * element.itemsize:
            raise self._damaged(f"has an array of shape {shape[:5]} in {count_bytes} bytes")
        content = self._take(count_bytes)
        try:
            return np.ndarray(shape, element, content) if count_bytes else np.zeros(shape, element)
        except ValueError:
            raise self._damaged(f"has an array of shape {shape[:5]}") from None

    def _take(self, count: int) -> np.ndarray:
        if not 0 <= count <= len(self._bytes) - self._position:
            raise self._damaged(f"ends before {count} bytes that it promises")
        self._position += count
        return self._bytes[self._position - count : self._position]

    def _damaged(self, what: str) -> FormatError:
        return FormatError(f"{self._name} {what} at byte {self._position}: it is torn or damaged")
