"""What models of graphs with node and edge types share: which types each layer computes, and what they are called with.

The models themselves are in :mod:`outcrop.nn.typed_models`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from outcrop.errors import ArgumentError
from outcrop.nn.convs import ModuleDict
from outcrop.nn.learned_rows import LearnedRows
from outcrop.nn.made_rows import random_rows
from outcrop.nn.schema import EdgeKey, GraphSchema
from outcrop.nn.sparse import TypedLayer, as_input, block_of_edges, typed_layers_of
from outcrop.store.minibatch import MiniBatch

MakeRows = Callable[[int, np.ndarray], Tensor]  # (number of the node type, ids within it) -> rows


@dataclass(frozen=True)
class Sizes:
    """Holds how large a model is: ``hidden`` is its width between layers, of all heads together."""

    hidden: int
    layers: int
    heads: int
    dropout: float


class TypedModel(nn.Module, ABC):
    """Computes scores of the seeds from a batch with node and edge types. Make one with
    :func:`outcrop.nn.models.build_model`.

    Attributes:
        schema: The graph as the model sees it.
        make_rows: Gives rows [num_nodes, width] of the node types that have none in the graph; may be replaced.
        learned: The rows that are learned with the model; None: there are none.
    """

    def __init__(self, schema: GraphSchema, convs: Sequence[nn.Module], dropout: float = 0.0):
        super().__init__()
        self.schema = schema
        self.convs = nn.ModuleList(convs)
        self.dropout = dropout
        self.learned = LearnedRows(schema) if any(node.is_learned for node in schema.node_types) else None
        self.make_rows: MakeRows = self._made_rows
        self.ends = schema.ends
        self._needed = needed_types(schema, len(convs))

    @property
    def num_layers(self) -> int:
        return len(self.convs)

    def forward(
        self,
        batch: MiniBatch | Mapping[str, Tensor],
        edge_index: Mapping[EdgeKey, Tensor] | None = None,
        edge_attr: Mapping[EdgeKey, Tensor] | None = None,
    ) -> Tensor:
        """Computes the scores of the seeds, float32 [num_seeds, num_classes].

        ``model(x_dict, edge_index_dict, edge_attr_dict)``, as torch_geometric's models are called, scores all nodes of
        the seeds' type.

        Args:
            batch: A mini-batch, or the features of each node type by its name, [num_nodes, D].
            edge_index: Edges, with features: int64 [2, num_edges] by (source, relation, target).
            edge_attr: Features of edges [num_edges, D], likewise, of the edge types whose rows the model takes.

        Raises:
            ArgumentError: The batch is not of a graph like that of the schema, or not sampled with one hop per layer.
        """
        if isinstance(batch, MiniBatch):
            return self.compute(self._rows_of(batch), self._layers_of(batch))
        if not isinstance(batch, Mapping) or not isinstance(edge_index, Mapping):
            raise ArgumentError(
                "a model of a graph with types is called with a mini-batch, or as model(data.x_dict, "
                f"data.edge_index_dict), not with {type(batch).__name__} and {type(edge_index).__name__}"
            )
        x, layer = self._whole(batch, edge_index, edge_attr or {})
        return self.compute(x, [layer] * self.num_layers)

    def compute_batch(self, batch: MiniBatch, *, depth: int, scores: bool) -> Tensor:
        """Computes what the first ``depth`` layers give for the seeds of a batch of as many hops, [num_seeds, out].

        Args:
            scores: Whether scores are wanted, where ``depth`` is all layers; else what the last layer gives.
        """
        rows, layers = (
            self._rows_of(batch),
            typed_layers_of(batch, self.ends, None, self._edge_rows_of(batch)),
        )
        hidden = self._compute(rows, layers[:depth])[self.schema.seed_number]
        return self.leave(hidden) if scores else hidden

    def compute(self, rows: Sequence[Tensor], layers: Sequence[TypedLayer]) -> Tensor:
        """Gives the same from its parts: the rows of each node type, and the graph of each layer, first layer first."""
        return self.leave(self._compute(rows, layers)[self.schema.seed_number])

    def _compute(self, rows: Sequence[Tensor], layers: Sequence[TypedLayer]) -> dict[int, Tensor]:
        dtype = next(self.parameters()).dtype
        hidden = {number: self.enter(number, as_input(rows[number], dtype)) for number in self._needed[0]}
        for index, layer in enumerate(layers):
            found = self.layer(index, hidden, layer)
            hidden = {number: self._between(index, out) for number, out in found.items()}
        return hidden

    def enter(self, node_type: int, rows: Tensor) -> Tensor:
        """Returns what the first layer takes for the rows of a node type."""
        return rows

    @abstractmethod
    def layer(self, index: int, hidden: Mapping[int, Tensor], layer: TypedLayer) -> dict[int, Tensor]:
        """Computes layer ``index`` for the node types of :meth:`targets`: [num_targets, out] of each."""

    def activate(self, out: Tensor) -> Tensor:
        """Applies what stands between two layers, in place where it can be."""
        return F.relu(out, inplace=True)

    def leave(self, hidden: Tensor) -> Tensor:
        """Returns scores for what the last layer gave for the seeds."""
        return hidden

    def targets(self, index: int) -> tuple[int, ...]:
        """Returns the node types that layer ``index`` computes, by their numbers."""
        return self._needed[index + 1]

    def edges_to(self, targets: Sequence[int]) -> list[tuple[int, EdgeKey, int, int]]:
        """Returns (number, key, source, target) of the edge types that lead to node types ``targets``."""
        return [
            (number, key, source, target)
            for number, (key, (source, target)) in enumerate(
                zip(self.schema.edge_types, self.ends, strict=True)
            )
            if target in targets
        ]

    def conv(self, index: int, key: EdgeKey) -> Any:
        """Returns the module of layer ``index`` for edge type ``key``."""
        of_layer: Any = self.convs[index]
        return of_layer.convs[key]

    def _between(self, index: int, out: Tensor) -> Tensor:
        if index == self.num_layers - 1:
            return out
        out = self.activate(out)
        return F.dropout(out, self.dropout, self.training) if self.dropout else out

    def _made_rows(self, node_type: int, ids: np.ndarray) -> Tensor:
        if self.learned is not None and self.schema.node_types[node_type].is_learned:
            return self.learned.take(node_type, ids)
        return random_rows(self.schema.row_seed, node_type, ids, self.schema.node_types[node_type].width)

    def _rows_of(self, batch: MiniBatch) -> list[Tensor]:
        """Returns the rows of each node type, made where the graph has none."""
        schema, graph = self.schema, batch.graph
        have, want = (len(graph.nodes), len(graph.edges)), (len(schema.node_types), len(schema.edge_types))
        if have != want:
            raise ArgumentError(
                f"the batch has {have[0]} node types and {have[1]} edge types, the graph of the model {want[0]} and "
                f"{want[1]}"
            )
        if self.learned is not None:
            self.learned.begin()
        rows = [
            self.make_rows(number, graph.nodes[number].ids).to(batch.device)
            if place is None
            else batch.rows[place]
            for number, place in enumerate(schema.row_numbers)
        ]
        for node, found in zip(schema.node_types, rows, strict=True):
            _check_width(node.name, node.width, found)
        return rows

    def _layers_of(self, batch: MiniBatch) -> list[TypedLayer]:
        graph = batch.graph
        if graph.seed_type != self.schema.seed_number:
            raise ArgumentError(
                f"the seeds of the batch are of node type {graph.seed_type}, the model scores "
                f"{self.schema.seed_type!r}, type {self.schema.seed_number}"
            )
        if not graph.untrimmed and graph.hops != self.num_layers:
            raise ArgumentError(
                f"the model has {self.num_layers} layers, the batches {graph.hops} hops: give one fanout per layer"
            )
        return typed_layers_of(batch, self.ends, self.num_layers, self._edge_rows_of(batch))

    def _edge_rows_of(self, batch: MiniBatch) -> list[Tensor | None]:
        """Returns the rows of the edges of each type that the model takes some of."""
        places = self.schema.edge_row_numbers
        wanted = [place for place in places if place is not None]
        if wanted and wanted[-1] >= len(batch.rows):
            raise ArgumentError(
                f"the model takes features of edges, and the batch has none ({len(batch.rows)} row files): load "
                "batches with edge_rows=True"
            )
        return [
            None if place is None else batch.edge_rows(number, place) for number, place in enumerate(places)
        ]

    def _whole(
        self,
        x: Mapping[str, Tensor],
        edge_index: Mapping[EdgeKey, Tensor],
        edge_attr: Mapping[EdgeKey, Tensor],
    ) -> tuple[list[Tensor], TypedLayer]:
        """Returns rows and edges of a graph given as torch_geometric has it; every node is a target."""
        schema = self.schema
        missing = [repr(node.name) for node in schema.node_types if node.name not in x]
        missing += [str(key) for key in schema.edge_types if key not in edge_index]
        if missing:
            made = any(node.made and node.name not in x for node in schema.node_types)
            hint = (
                "; rows that the graph does not have are model.make_rows(number of the type, n_id)"
                if made
                else ""
            )
            raise ArgumentError(
                f"x and edge_index lack {', '.join(missing)}: give all types, some of them empty{hint}"
            )
        rows = [x[node.name] for node in schema.node_types]
        for node, found in zip(schema.node_types, rows, strict=True):
            _check_width(node.name, node.width, found)
        blocks = [
            block_of_edges(edge_index[key], len(rows[source]), len(rows[target]), edge_attr.get(key))
            for key, (source, target) in zip(schema.edge_types, self.ends, strict=True)
        ]
        return rows, TypedLayer(tuple(blocks), tuple(len(found) for found in rows))


def _check_width(name: str, width: int, rows: Tensor) -> None:
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ArgumentError(
            f"rows of node type {name!r} have shape {list(rows.shape)}, the model takes rows of {width} values"
        )


def needed_types(schema: GraphSchema, layers: int) -> list[tuple[int, ...]]:
    """Returns the node types whose rows layer l takes, by their numbers, for l from 0 on; at last the seeds' type."""
    needed = {schema.seed_number}
    found = [tuple(sorted(needed))]
    for _ in range(layers):
        needed = needed | {source for source, target in schema.ends if target in needed}
        found.append(tuple(sorted(needed)))
    return found[::-1]


def require_edges_to_all(name: str, schema: GraphSchema, layers: int) -> None:
    """Raises ArgumentError where a layer of model ``name`` would compute a node type that no edge type leads to."""
    led_to = {target for _, target in schema.ends}
    computed = {number for types in needed_types(schema, layers)[1:] for number in types}
    lonely = [schema.node_types[number].name for number in sorted(computed - led_to)]
    if lonely:
        raise ArgumentError(
            f"no edges lead to node type {', '.join(map(repr, lonely))}, so model {name!r} has nothing to compute "
            "there: import the graph with --reverse (ImportConfig(reverse=True)), or take rgcn, where nodes keep "
            "their own rows"
        )


def module_name(node_type: str) -> str:
    """Returns what a module of a node type is called: its name, as torch_geometric writes it where torch takes no such
    name; of the one unnamed type ``node``.
    """
    return ModuleDict.to_internal_key(node_type or "node")
