"""Models of graphs with node and edge types: stacks of layers that compute, type by type, what later layers need.

Parameters are those of torch_geometric's modules, by their names there, brackets included, so that state dicts move:

- ``rsage``: ``HeteroConv({edge type: SAGEConv((in of source, in of target), out)}, aggr="sum")``;
- ``rgat``: the same of ``GATConv((in of source, in of target), out per head, heads, add_self_loops=False)``, with one
  head in the last layer;
- ``rgcn``: that of ``SAGEConv(..., root_weight=False)``, and in ``roots`` a ``Linear`` for each node type: R-GCN
  (Schlichtkrull et al. 2018, without its sharing of weights) as the Open Graph Benchmark trains it on MAG240M.
- ``hgt``: see :mod:`outcrop.nn.hgt`.

Layers hold parameters of all types, as those of torch_geometric do. Of the last layer only those of edge types that
lead to the seeds' type are used, of the one before those that lead to its sources, and so on; others get no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outcrop.nn.convs import GATConv, Linear, ModuleDict, SAGEConv
from outcrop.nn.hgt import build_hgt
from outcrop.nn.layers import gat
from outcrop.nn.schema import EdgeKey, GraphSchema
from outcrop.nn.sparse import TypedLayer
from outcrop.nn.typed import Sizes, TypedModel, module_name, require_edges_to_all
from outcrop.nn.typed_layers import Mean, Root, means


class PerEdgeType(nn.Module):
    """Holds a module for each edge type, called as torch_geometric's ``HeteroConv`` calls it."""

    def __init__(self, convs: Mapping[EdgeKey, nn.Module]):
        super().__init__()
        self.convs = ModuleDict({**convs})


class Rsage(TypedModel):
    """Adds up, over the edge types that lead to a node, GraphSAGE of the mean over its neighbors."""

    def layer(self, index: int, hidden: Mapping[int, Tensor], layer: TypedLayer) -> dict[int, Tensor]:
        targets = self.targets(index)
        edges = self.edges_to(targets)
        roots = {}
        for target in targets:
            # Every edge type has a weight for the target itself: their sum is applied once.
            convs = [self.conv(index, key) for _, key, _, end in edges if end == target]
            weight = _total([one.lin_r.weight for one in convs])
            bias = _total([one.lin_l.bias for one in convs])
            roots[target] = Root(layer.num_targets[target], weight, bias)
        parts = [
            Mean(s, t, layer.blocks[number], self.conv(index, key).lin_l.weight)
            for number, key, s, t in edges
        ]
        return means(hidden, parts, roots)


class Rgcn(TypedModel):
    """Adds up a linear map of the node itself and, over the edge types that lead to it, one of the mean over its
    neighbors."""

    def __init__(
        self,
        schema: GraphSchema,
        convs: Sequence[nn.Module],
        roots: Sequence[nn.Module],
        dropout: float = 0.0,
    ):
        super().__init__(schema, convs, dropout)
        self.roots = nn.ModuleList(roots)

    def layer(self, index: int, hidden: Mapping[int, Tensor], layer: TypedLayer) -> dict[int, Tensor]:
        lins: Any = self.roots[index]
        targets = self.targets(index)
        edges = self.edges_to(targets)
        roots = {}
        for target in targets:
            lin = lins[module_name(self.schema.node_types[target].name)]
            biases = [self.conv(index, key).lin_l.bias for _, key, _, end in edges if end == target]
            roots[target] = Root(layer.num_targets[target], lin.weight, _total([lin.bias, *biases]))
        parts = [
            Mean(s, t, layer.blocks[number], self.conv(index, key).lin_l.weight)
            for number, key, s, t in edges
        ]
        return means(hidden, parts, roots)


class Rgat(TypedModel):
    """Adds up, over the edge types that lead to a node, attention to its neighbors of the type."""

    def layer(self, index: int, hidden: Mapping[int, Tensor], layer: TypedLayer) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        for number, key, source, target in self.edges_to(self.targets(index)):
            out = gat(self.conv(index, key), hidden[source], layer.blocks[number], hidden[target])
            found[target] = out if target not in found else found[target].add_(out)
        return found

    def activate(self, out: Tensor) -> Tensor:
        return F.elu(out, inplace=True)


def _total(tensors: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, tensors)


def build_typed(name: str, schema: GraphSchema, sizes: Sizes) -> TypedModel:
    """Builds one of ``outcrop.config.models.TYPED_MODELS``; ``sizes`` are checked already."""
    if name != "rgcn":
        require_edges_to_all(name, schema, sizes.layers)
    if name == "hgt":
        return build_hgt(schema, sizes)
    names = [node.name for node in schema.node_types]
    between = [[sizes.hidden] * len(names)] * (sizes.layers - 1)
    widths = [[node.width for node in schema.node_types], *between]
    outs = [*[sizes.hidden] * (sizes.layers - 1), schema.num_classes]
    convs, roots = [], []
    for index, (row, out) in enumerate(zip(widths, outs, strict=True)):
        width, heads = dict(zip(names, row, strict=True)), sizes.heads if index < sizes.layers - 1 else 1
        convs.append(
            PerEdgeType({k: _conv(name, (width[k[0]], width[k[2]]), out, heads) for k in schema.edge_types})
        )
        roots.append(
            ModuleDict({module_name(n): Linear(width[n], out) for n in names}) if name == "rgcn" else None
        )
    if name == "rgcn":
        return Rgcn(schema, convs, roots, sizes.dropout)
    return (Rsage if name == "rsage" else Rgat)(schema, convs, sizes.dropout)


def _conv(name: str, widths: tuple[int, int], out: int, heads: int) -> nn.Module:
    if name == "rgat":
        return GATConv(widths, out // heads, heads, add_self_loops=False)
    return SAGEConv(widths, out, root_weight=name == "rsage")
