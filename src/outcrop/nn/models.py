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

from outcrop.config.models import HEADS, MODELS, TYPED_MODELS, heads_problem, hidden_width, unknown_model
from outcrop.errors import ArgumentError
from outcrop.nn import layers as graph_layers
from outcrop.nn.convs import GATConv, GCNConv, SAGEConv
from outcrop.nn.schema import GraphSchema
from outcrop.nn.sparse import Block, as_input, block_of_edges, blocks_of, without_loops
from outcrop.nn.typed import Sizes, TypedModel
from outcrop.nn.typed_models import build_typed
from outcrop.store.minibatch import MiniBatch

# glibc keeps freed blocks for reuse up to the size of the largest block that was freed, at most 32 MiB.
_ALLOCATOR_BLOCK_BYTES = 31 << 20


class Model(nn.Module):
    """Computes a stack of graph layers. Make one with :func:`build_model`."""

    def __init__(self, convs: Sequence[nn.Module], dropout: float = 0.0):
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.dropout = dropout

    @property
    def num_layers(self) -> int:
        return len(self.convs)

    @property
    def uses_degrees(self) -> bool:
        """Tells whether layers normalise by whole-graph degrees."""
        return any(isinstance(conv, GCNConv) for conv in self.convs)

    def forward(self, batch: MiniBatch | Tensor, edge_index: Tensor | None = None) -> Tensor:
        """Computes the scores of the seeds, float32 [num_seeds, num_classes].

        ``model(x, edge_index)``, as torch_geometric's models are called, scores all nodes of ``x``: float32
        [num_nodes, num_classes]. It equals ``conv(x, edge_index)`` layer after layer; the edges given are taken for
        the whole graph.

        Args:
            batch: A mini-batch, or the features of its nodes [num_nodes, D].
            edge_index: Edges, with features: int64 [2, num_edges], sources and targets.

        Raises:
            ArgumentError: The batch was not sampled with one hop per layer, or edges do not fit the features.
        """
        if not isinstance(batch, Tensor | MiniBatch):
            raise ArgumentError(
                f"a model is called with x and edge_index, as model(batch.x, batch.edge_index), not with "
                f"{type(batch).__name__}"
            )
        if isinstance(batch, Tensor):
            if edge_index is None:
                raise ArgumentError("give features [num_nodes, D] together with edge_index [2, num_edges]")
            block = block_of_edges(edge_index, len(batch), len(batch))
            return self.compute(batch, [block] * self.num_layers, without_loops(block))
        if batch.graph.untrimmed:
            blocks = blocks_of(batch, self.num_layers)
            # GCN's degrees are those within the subgraph: ShaDow takes it for the graph.
            everything = Block(batch.rowptr, batch.col, batch.graph.num_nodes)
            return self.compute(batch.x, blocks, without_loops(everything))
        if batch.graph.hops != self.num_layers:
            raise ArgumentError(
                f"the model has {self.num_layers} layers, the batches {batch.graph.hops} hops: give "
                "one fanout per layer"
            )
        return self.compute(batch.x, blocks_of(batch), batch.degree)

    def compute(self, x: Tensor, blocks: Sequence[Block], degree: Tensor | None = None) -> Tensor:
        """Gives the same from its parts: ``x`` [blocks[0].num_sources, D], one block per layer, first layer first."""
        hidden = as_input(x, next(self.parameters()).dtype)
        for index, block in enumerate(blocks):
            hidden = self.layer(index, hidden, block, degree)
        return hidden

    def layer(self, index: int, x: Tensor, block: Block, degree: Tensor | None = None) -> Tensor:
        """Computes layer ``index`` with what follows it: [num_sources, in] -> [num_targets, out]."""
        conv = self.convs[index]
        if isinstance(conv, SAGEConv):
            out = graph_layers.sage(conv, x, block)
        elif isinstance(conv, GCNConv):
            out = graph_layers.gcn(conv, x, block, degree)
        elif isinstance(conv, GATConv):
            out = graph_layers.gat(conv, x, block)
        else:
            raise ArgumentError(f"layer {type(conv).__name__} is unknown; known: SAGEConv, GCNConv, GATConv")
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
    inputs: int,
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
    inputs: int | GraphSchema,
    hidden: int | None,
    num_classes: int,
    layers: int,
    *,
    heads: int = HEADS,
    dropout: float = 0.0,
) -> Model | TypedModel:
    """Builds a new model, initialised from torch's random state as torch_geometric does.

    Args:
        name: ``sage`` (mean), ``gat`` or ``gcn``; of graphs with node and edge types ``rgcn``,
            ``rsage``, ``rgat`` or ``hgt`` (:mod:`outcrop.nn.typed_models`).
        inputs: Width of the features; of a graph with types what the model needs to know of it
            (:meth:`outcrop.nn.schema.GraphSchema.of`).
        hidden: Width between layers, all heads together; None = 256, of models with heads 32 per head.
        num_classes: Scores of each seed.
        heads: Attention heads of every layer of ``hgt``, and of ``gat`` and ``rgat`` but the last, which has one.

    Raises:
        ArgumentError: Unknown name, a graph with types for a model without or the other way round, or sizes that are
            not possible.
    """
    if name not in (*MODELS, *TYPED_MODELS):
        raise ArgumentError(unknown_model(name))
    hidden = hidden_width(name, hidden, heads)
    sizes = {"hidden": hidden, "num_classes": num_classes, "layers": layers, "heads": heads}
    if isinstance(inputs, int):
        sizes = {"in_dim": inputs, **sizes}
    problems = [f"{what} {value} is below 1" for what, value in sizes.items() if value < 1]
    if problem := heads_problem(name, hidden, heads):
        problems.append(problem)
    if not 0.0 <= dropout < 1.0:
        problems.append(f"dropout {dropout} is not in [0, 1)")
    problems += _problems_of_inputs(name, inputs, num_classes)
    if problems:
        raise ArgumentError("; ".join(problems))
    if isinstance(inputs, GraphSchema):
        return build_typed(name, inputs, Sizes(hidden, layers, heads, dropout))
    widths = [inputs] + [hidden] * (layers - 1) + [num_classes]
    return Model(
        [
            _conv(name, width, out, heads if index < layers - 1 else 1)
            for index, (width, out) in enumerate(pairwise(widths))
        ],
        dropout,
    )


def _problems_of_inputs(name: str, inputs: int | GraphSchema, num_classes: int) -> list[str]:
    """Says why a model cannot be of that graph."""
    if not isinstance(inputs, GraphSchema):
        if name in MODELS:
            return []
        return [
            f"model {name!r} computes graphs with node and edge types: give a GraphSchema for inputs {inputs}"
        ]
    if name in MODELS:
        return [f"model {name!r} computes graphs without types: choose {', '.join(TYPED_MODELS)}"]
    if num_classes != inputs.num_classes:
        return [f"num_classes {num_classes} are not the {inputs.num_classes} of the graph"]
    return []


def _conv(name: str, in_dim: int, out_dim: int, heads: int) -> nn.Module:
    if name == "sage":
        return SAGEConv(in_dim, out_dim, aggr="mean")
    if name == "gcn":
        return GCNConv(in_dim, out_dim)
    return GATConv(in_dim, out_dim // heads, heads=heads)


def warm_allocator() -> None:
    """Lets the C allocator keep the blocks of one step for the next; new pages would cost a tenth of a step or more.

    Costs nothing: the block is not touched. Results are the same without.
    """
    torch.empty(_ALLOCATOR_BLOCK_BYTES, dtype=torch.uint8)
