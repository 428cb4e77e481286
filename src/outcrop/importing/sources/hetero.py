"""Graphs with types of PyTorch Geometric: a ``HeteroData`` in memory, or the columns of one in a file.

Values of a type mean what those of a ``Data`` mean (:mod:`outcrop.importing.sources.objects`): ``x``, ``y``, masks and
``num_nodes`` of nodes; ``edge_index`` or ``adj_t``, ``edge_weight`` and ``edge_attr`` of edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.adjacency import Adjacency
from outcrop.importing.sources.base import (
    EdgeSource,
    FeatureSource,
    LabelSource,
    NodeSource,
    TypedSource,
    same_length,
)
from outcrop.importing.sources.edge_list import array_edges, edge_of
from outcrop.importing.sources.features import array_features, edge_array_features
from outcrop.importing.sources.file_map import is_size
from outcrop.importing.sources.ids import PlainIds
from outcrop.importing.sources.labels import array_labels
from outcrop.importing.sources.matrix import Csr, matrix_features
from outcrop.importing.sources.objects import data_parts, notes_of_splits, part_of
from outcrop.importing.sources.parts import Part, SplitParts
from outcrop.importing.sources.tables import Place
from outcrop.importing.sources.typed import EdgeTypeName, TypedColumns
from outcrop.runtime.runtime import Runtime

PartOf = Callable[[str, str, Any, int], Part]  # (name for messages, kind, value, which of several splits)


def is_hetero(source: Any) -> bool:
    """Tells whether an object is a ``HeteroData``, without loading torch_geometric."""
    library = type(source).__module__.partition(".")[0]
    return library == "torch_geometric" and hasattr(source, "node_types") and hasattr(source, "edge_types")


def open_hetero(data: Any, runtime: Runtime, split_index: int) -> TypedSource:
    """Opens a ``HeteroData`` in memory.

    Raises:
        ArgumentError: Parts contradict each other, or leave open how many nodes there are.
        FormatError: A part has not the shape or the type that it needs.
    """
    columns = TypedColumns(
        f"the {type(data).__name__}",
        {name: dict(data[name].items()) for name in data.node_types},
        {key: dict(data[key].items()) for key in data.edge_types},
    )
    return open_columns(columns, runtime, split_index, _in_memory)


def _in_memory(name: str, kind: str, value: Any, split_index: int) -> Part:
    return Part(f"{name}: {kind}", part_of(kind, value, split_index).value)


def open_columns(
    columns: TypedColumns, runtime: Runtime, split_index: int, part: PartOf = _in_memory
) -> TypedSource:
    """Opens a graph by its columns of each type.

    Args:
        part: What makes a value a part of a graph.

    Raises:
        ArgumentError, FormatError: As :func:`open_hetero`.
    """
    if not columns.nodes or not columns.edges:
        raise ArgumentError(
            f"{columns.name} has {len(columns.nodes)} node types and {len(columns.edges)} edge types: a graph with "
            "types needs one of each, with edge_index"
        )
    opener = _Opener(columns, runtime, split_index, part)
    nodes = tuple(opener.nodes(name) for name in columns.nodes)
    edges = tuple(opener.edges(key) for key in columns.edges)
    if columns.graph:
        opener.notes.append(f"parts of {columns.name} that are not imported: {', '.join(columns.graph)}")
    return TypedSource(columns.name, nodes, edges, tuple(opener.notes))


class _Opener:
    def __init__(self, columns: TypedColumns, runtime: Runtime, split_index: int, part: PartOf):
        self._columns, self._runtime = columns, runtime
        self._split_index, self._part = split_index, part
        self.notes: list[str] = []

    def nodes(self, type_name: str) -> NodeSource:
        name = f"{self._columns.name}: {type_name}"
        parts, count = self._parts(name, self._columns.nodes[type_name], ("features", "labels", *SPLITS))
        features = labels = None
        if "features" in parts:
            features = _features(parts["features"], self._runtime)
        if "labels" in parts:
            labels = _labels(parts["labels"], self._runtime)
        num_nodes = same_length(
            {
                f"num_nodes of {name}": count,
                f"{name}: x": features.num_rows if features else None,
                f"{name}: y": labels.num_rows if labels else None,
            }
        )
        if num_nodes is None:
            raise ArgumentError(
                f"{name} does not tell how many nodes there are: set data[{type_name!r}].num_nodes = N"
            )
        splits = SplitParts({split: parts[split] for split in SPLITS if split in parts}, num_nodes)
        return NodeSource(
            name,
            num_nodes,
            features,
            labels,
            splits.ids,
            split_rows=splits.rows,
            type_name=type_name,
            whose=f"node type {type_name!r} has",
        )

    def edges(self, key: EdgeTypeName) -> EdgeSource:
        name = f"{self._columns.name}: {' '.join(key)}"
        for end in (key[0], key[2]):
            if end not in self._columns.nodes:
                raise ArgumentError(
                    f"{name}: {end!r} is no node type (there are {', '.join(self._columns.nodes)})"
                )
        given = self._columns.edges[key]
        adjacency = given.get("adj_t") if given.get("edge_index") is None else None
        if isinstance(adjacency, Adjacency):
            others = {k: v for k, v in given.items() if k != "adj_t"}
            parts, _ = self._parts(name, others, ("edge_features",))
            edges, at = adjacency, edge_of(adjacency.name)
            return EdgeSource(
                name,
                key,
                lambda: edges.blocks(self._runtime),
                len(edges.others),
                edges.weights is not None,
                edge_at=at,
                features=self._edge_features(parts),
            )
        parts, _ = self._parts(name, given, ("edges", "edge_weight", "edge_features"))
        if "edges" not in parts:
            raise ArgumentError(
                f"{name} has no edge_index; it has {', '.join(map(repr, given)) or 'nothing'}"
            )
        array, weights = _array(parts["edges"]), parts.get("edge_weight")
        beside = ("", None) if weights is None else (weights.name, _array(weights))
        blocks, count = array_edges(self._runtime, parts["edges"].name, array, PlainIds(), *beside)
        place, at = Place(weights.name).at if weights is not None else None, edge_of(f"{name}: edge_index")
        rows = self._edge_features(parts)
        return EdgeSource(name, key, blocks, count, weights is not None, None, at, place, rows)

    def _edge_features(self, parts: dict[str, Part]) -> FeatureSource | None:
        part = parts.get("edge_features")
        return None if part is None else edge_array_features(self._runtime, part.name, _array(part))

    def _parts(
        self, name: str, given: dict[str, Any], kinds: tuple[str, ...]
    ) -> tuple[dict[str, Part], int | None]:
        """Returns the parts of these kinds, and the number of nodes where it is told; notes what else there is."""
        named, notes = data_parts(name, given)
        count = named.pop("num_nodes", None)
        if count is not None and (type(count) is not int or not is_size(count)):
            raise FormatError(f"{name}: num_nodes is {str(count)[:20]}; a number of nodes is needed")
        left = [kind for kind in named if kind not in kinds]
        self.notes += notes
        if left:
            self.notes.append(f"parts of {name} that are not imported: {', '.join(left)}")
        chosen = {kind: value for kind, value in named.items() if kind in kinds}
        self.notes += notes_of_splits(name, chosen, self._split_index)
        return {
            kind: self._part(name, kind, value, self._split_index) for kind, value in chosen.items()
        }, count


def _array(part: Part) -> np.ndarray:
    if not isinstance(part.value, np.ndarray):
        raise ArgumentError(f"{part.name} is no array of numbers: pass a dense tensor")
    return part.value


def _features(part: Part, runtime: Runtime) -> FeatureSource:
    if isinstance(part.value, Csr):
        return replace(matrix_features(runtime, part.value), name=part.name)
    return array_features(runtime, part.name, _array(part))


def _labels(part: Part, runtime: Runtime) -> LabelSource:
    return array_labels(runtime, part.name, _array(part))
