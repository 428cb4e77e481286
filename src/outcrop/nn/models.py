"""The models of graphs without types: stacks of torch_geometric layers, computed on trimmed blocks.

Parameters are those of ``torch_geometric.nn`` layers under ``convs.<layer>``, so a state dict moves between a
:class:`Model` and torch_geometric's own models. A layer computes only the nodes that the next one needs. Between
layers: ReLU (GAT: ELU), then dropout. Attention weights have no dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outcrop.config.models import (
    EDGE_ROW_MODELS,
    HEADS,
    MODELS,
    TYPED_MODELS,
    edge_rows_problem,
    heads_problem,
    hidden_width,
    unknown_model,
)
from outcrop.errors import ArgumentError
from outcrop.nn import edge_layers
from outcrop.nn import layers as graph_layers
from outcrop.nn.convs import GATConv, GCNConv, GINEConv, SAGEConv, TransformerConv
from outcrop.nn.schema import GraphSchema
from outcrop.nn.sparse import Block, as_input, block_of_edges, blocks_of, require_weights, without_loops
from outcrop.nn.typed import Sizes, TypedModel
from outcrop.nn.typed_models import build_typed
from outcrop.nn.weighted_gcn import sums_within
from outcrop.store.minibatch import MiniBatch

# glibc keeps freed blocks for reuse up to the size of the largest block that was freed, at most 32 MiB.
_ALLOCATOR_BLOCK_BYTES = 31 << 20
_NO_WEIGHTS = "the model takes no weights of edges, gcn does: leave them out"


class Model(nn.Module):
    """Computes a stack of graph layers. Make one with :func:`build_model`."""

    def __init__(self, convs: Sequence[nn.Module], dropout: float = 0.0):
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.dropout = dropout
        self._edge_weights = False

    @property
    def num_layers(self) -> int:
        return len(self.convs)

    @property
    def uses_degrees(self) -> bool:
        """Tells whether layers normalise by whole-graph degrees."""
        return any(isinstance(conv, GCNConv) for conv in self.convs)

    @property
    def edge_weights(self) -> bool:
        """Tells whether the edges of batches count by their weights; may be set, of a model of ``gcn``."""
        return self._edge_weights

    @edge_weights.setter
    def edge_weights(self, wanted: bool) -> None:
        if wanted and not self.uses_degrees:
            raise ArgumentError(_NO_WEIGHTS)
        self._edge_weights = wanted

    def forward(
        self,
        batch: MiniBatch | Tensor,
        edge_index: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """Computes the scores of the seeds, float32 [num_seeds, num_classes].

        ``model(x, edge_index, edge_attr)``, as torch_geometric's models are called, scores all nodes of ``x``: float32
        [num_nodes, num_classes]. It equals ``conv(x, edge_index, edge_attr)`` layer after layer, of GCN ``conv(x,
        edge_index, edge_weight)``; the edges given are taken for the whole graph.

        Args:
            batch: A mini-batch, or the features of its nodes [num_nodes, D].
            edge_index: Edges, with features: int64 [2, num_edges], sources and targets.
            edge_attr: Features of the edges [num_edges, edge_dim], for models that take some. They get no gradient.
            edge_weight: Weights of the edges [num_edges], for GCN, which takes them in the place of ``edge_attr``, too.
                They get no gradient either.

        Raises:
            ArgumentError: The batch was not sampled with one hop per layer, or edges do not fit the features; or
                weights are missing that the model was trained with.
        """
        if not isinstance(batch, Tensor | MiniBatch):
            raise ArgumentError(
                f"a model is called with x and edge_index, as model(batch.x, batch.edge_index), not with "
                f"{type(batch).__name__}"
            )
        if isinstance(batch, Tensor):
            if edge_index is None:
                raise ArgumentError("give features [num_nodes, D] together with edge_index [2, num_edges]")
            if edge_weight is None and edge_attr is not None and self.uses_degrees and edge_attr.ndim == 1:
                edge_attr, edge_weight = None, edge_attr  # the place that it has in GCNConv
            self._check_weights(edge_weight)
            block = block_of_edges(edge_index, len(batch), len(batch), edge_attr, edge_weight)
            sums = None if edge_weight is None else sums_within(block)
            return self.compute(batch, [block] * self.num_layers, without_loops(block), sums)
        if batch.graph.untrimmed:
            blocks = blocks_of(batch, self.num_layers, weighted=self.edge_weights)
            # GCN's degrees are those within the subgraph: ShaDow takes it for the graph.
            weight = require_weights(batch) if self.edge_weights else None
            everything = Block(batch.rowptr, batch.col, batch.graph.num_nodes, edge_weight=weight)
            sums = sums_within(everything) if self.edge_weights else None
            return self.compute(batch.x, blocks, without_loops(everything), sums)
        if batch.graph.hops != self.num_layers:
            raise ArgumentError(
                f"the model has {self.num_layers} layers, the batches {batch.graph.hops} hops: give "
                "one fanout per layer"
            )
        blocks = blocks_of(batch, weighted=self.edge_weights)
        return self.compute(batch.x, blocks, batch.degree, batch.weight_sums)

    def _check_weights(self, edge_weight: Tensor | None) -> None:
        """Raises ArgumentError where edges come without weights that the model was trained with, or with some that it
        does not know.
        """
        if self.edge_weights and edge_weight is None:
            raise ArgumentError(
                "the model was trained with weights of edges: give edge_weight [num_edges], as model(x, edge_index, "
                "edge_weight=edge_weight)"
            )
        if edge_weight is not None and not self.uses_degrees:
            raise ArgumentError(_NO_WEIGHTS)

    def compute(
        self,
        x: Tensor,
        blocks: Sequence[Block],
        degree: Tensor | None = None,
        weight_sums: Tensor | None = None,
    ) -> Tensor:
        """Gives the same from its parts: ``x`` [blocks[0].num_sources, D], one block per layer, first layer first."""
        hidden = as_input(x, next(self.parameters()).dtype)
        for index, block in enumerate(blocks):
            hidden = self.layer(index, hidden, block, degree, weight_sums)
        return hidden

    def layer(
        self,
        index: int,
        x: Tensor,
        block: Block,
        degree: Tensor | None = None,
        weight_sums: Tensor | None = None,
    ) -> Tensor:
        """Computes layer ``index`` with what follows it: [num_sources, in] -> [num_targets, out].

        Args:
            degree, weight_sums: What :class:`MiniBatch` has of the sources, for GCN.
        """
        conv = self.convs[index]
        if isinstance(conv, SAGEConv):
            out = graph_layers.sage(conv, x, block)
        elif isinstance(conv, GCNConv):
            out = graph_layers.gcn(conv, x, block, degree, weight_sums)
        elif isinstance(conv, GATConv):
            out = graph_layers.gat(conv, x, block)
        elif isinstance(conv, TransformerConv):
            out = edge_layers.transformer(conv, x, block)
        elif isinstance(conv, GINEConv):
            out = edge_layers.gine(conv, x, block)
        else:
            raise ArgumentError(
                f"layer {type(conv).__name__} is unknown; known: SAGEConv, GCNConv, GATConv, TransformerConv, GINEConv"
            )
        return self.activate(index, out)

    def activate(self, index: int, out: Tensor) -> Tensor:
        """Applies what follows layer ``index``, in place where it can be."""
        if index == self.num_layers - 1:
            return out
        out = (
            F.elu(out, inplace=True) if isinstance(self.convs[index], GATConv) else F.relu(out, inplace=True)
        )
        return F.dropout(out, self.dropout, self.training) if self.dropout else out


@overload
def build_model(
    name: str,
    inputs: int | tuple[int, int],
    hidden: int | None,
    num_classes: int,
    layers: int,
    *,
    heads: int = HEADS,
    dropout: float = 0.0,
) -> Model: ...


@overload
def build_model(
    name: str,
    inputs: GraphSchema,
    hidden: int | None,
    num_classes: int,
    layers: int,
    *,
    heads: int = HEADS,
    dropout: float = 0.0,
) -> TypedModel: ...


def build_model(
    name: str,
    inputs: int | tuple[int, int] | GraphSchema,
    hidden: int | None,
    num_classes: int,
    layers: int,
    *,
    heads: int = HEADS,
    dropout: float = 0.0,
) -> Model | TypedModel:
    """Builds a new model, initialised from torch's random state as torch_geometric does.

    Args:
        name: ``sage`` (mean), ``gat``, ``gcn``, ``transformer`` or ``gine``; of graphs with node and edge types
            ``rgcn``, ``rsage``, ``rgat`` or ``hgt`` (:mod:`outcrop.nn.typed_models`).
        inputs: Width of the features of nodes, or of those of nodes and of edges, which ``gat``, ``transformer`` and
            ``gine`` take (``gine`` needs them); of a graph with types what the model needs to know of it
            (:meth:`outcrop.nn.schema.GraphSchema.of`).
        hidden: Width between layers, all heads together; None = 256, of models with heads 32 per head.
        num_classes: Scores of each seed.
        heads: Attention heads of every layer of ``hgt``, and of ``gat``, ``transformer`` and ``rgat`` but the last,
            which has one.

    Raises:
        ArgumentError: Unknown name, a graph with types for a model without or the other way round, or sizes that are
            not possible.
    """
    if name not in (*MODELS, *EDGE_ROW_MODELS, *TYPED_MODELS):
        raise ArgumentError(unknown_model(name))
    hidden = hidden_width(name, hidden, heads)
    sizes = {"hidden": hidden, "num_classes": num_classes, "layers": layers, "heads": heads}
    of_rows = () if isinstance(inputs, GraphSchema) else (inputs,) if isinstance(inputs, int) else inputs
    sizes = {**dict(zip(("in_dim", "edge_dim"), of_rows, strict=False)), **sizes}
    edge_dim = sizes.get("edge_dim")
    problems = [f"{what} {value} is below 1" for what, value in sizes.items() if value < 1]
    if problem := heads_problem(name, hidden, heads):
        problems.append(problem)
    if problem := edge_rows_problem(name, edge_dim is not None):
        problems.append(problem)
    if not 0.0 <= dropout < 1.0:
        problems.append(f"dropout {dropout} is not in [0, 1)")
    problems += _problems_of_inputs(name, inputs, num_classes)
    if problems:
        raise ArgumentError("; ".join(problems))
    if isinstance(inputs, GraphSchema):
        return build_typed(name, inputs, Sizes(hidden, layers, heads, dropout))
    widths = [sizes["in_dim"]] + [hidden] * (layers - 1) + [num_classes]
    return Model(
        [
            _conv(name, width, out, heads if index < layers - 1 else 1, edge_dim)
            for index, (width, out) in enumerate(pairwise(widths))
        ],
        dropout,
    )


def _problems_of_inputs(
    name: str, inputs: int | tuple[int, int] | GraphSchema, num_classes: int
) -> list[str]:
    """Says why a model cannot be of that graph."""
    if not isinstance(inputs, GraphSchema):
        if name in (*MODELS, *EDGE_ROW_MODELS):
            return []
        return [
            f"model {name!r} computes graphs with node and edge types: give a GraphSchema for inputs {inputs}"
        ]
    if name not in TYPED_MODELS:
        return [f"model {name!r} computes graphs without types: choose {', '.join(TYPED_MODELS)}"]
    if num_classes != inputs.num_classes:
        return [f"num_classes {num_classes} are not the {inputs.num_classes} of the graph"]
    return []


def _conv(name: str, in_dim: int, out_dim: int, heads: int, edge_dim: int | None) -> nn.Module:
    if name == "gine":
        inner = max(in_dim, out_dim)
        network = nn.Sequential(nn.Linear(in_dim, inner), nn.ReLU(), nn.Linear(inner, out_dim))
        return GINEConv(network, edge_dim=edge_dim)
    if name == "transformer":
        return TransformerConv(in_dim, out_dim // heads, heads, edge_dim=edge_dim)
    if name == "sage":
        return SAGEConv(in_dim, out_dim, aggr="mean")
    if name == "gcn":
        return GCNConv(in_dim, out_dim)
    return GATConv(in_dim, out_dim // heads, heads=heads, edge_dim=edge_dim)


def warm_allocator() -> None:
    """Lets the C allocator keep the blocks of one step for the next; new pages would cost a tenth of a step or more.

    Costs nothing: the block is not touched. Results are the same without.
    """
    torch.empty(_ALLOCATOR_BLOCK_BYTES, dtype=torch.uint8)
