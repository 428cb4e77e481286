"""Models of graphs with node and edge types: stacks of layers that compute, type by type, what later layers need.

Parameters are those of torch_geometric's modules, by their names there, brackets included, so that state dicts move:

- ``rsage``: ``HeteroConv({edge type: SAGEConv((in of source, in of target), out)}, aggr="sum")``;
- ``rgat``: the same of ``GATConv((in of source, in of target), out per head, heads, add_self_loops=False)``, with one
  head in the last layer;
- ``rgcn``: that of ``SAGEConv(..., root_weight=False)``, and in ``roots`` a ``Linear`` for each node type: R-GCN
  (Schlichtkrull et al. 2018, without its sharing of weights) as the Open Graph Benchmark trains it on MAG240M.
- ``rtransformer``: that of ``TransformerConv((in of source, in of target), out per head, heads)``, likewise;
- ``rgine``: in ``lin_dict`` a ``Linear`` for each node type, and that of ``GINEConv(Sequential(Linear(hidden,
  hidden), ReLU(), Linear(hidden, out)))``, of edge types without rows ``GINConv`` of the same;
- ``hgt``: see :mod:`outcrop.nn.hgt`.

``rgat``, ``rtransformer`` and ``rgine`` take the rows of edges, ``edge_attr``, of the edge types that have some.

Layers hold parameters of all types, as those of torch_geometric do. Of the last layer only those of edge types that
lead to the seeds' type are used, of the one before those that lead to its sources, and so on; others get no gradient.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outcrop.nn.convs import GATConv, GINConv, GINEConv, Linear, ModuleDict, SAGEConv, TransformerConv
from outcrop.nn.edge_layers import gine, transformer
from outcrop.nn.hgt import build_hgt
from outcrop.nn.layers import gat, products
from outcrop.nn.schema import EdgeKey, GraphSchema
from outcrop.nn.sparse import Block, TypedLayer
from outcrop.nn.typed import Sizes, TypedModel, module_name, require_edges_to_all
from outcrop.nn.typed_layers import Mean, Root, means


class PerEdgeType(nn.Module):
    """Holds a module for each edge type, called as torch_geometric's ``HeteroConv`` calls it."""

    def __init__(self, convs: Mapping[EdgeKey, nn.Module]):
        super().__init__()
        self.convs = ModuleDict({**convs})


class MeanModel(TypedModel):
    """Adds up what a node gives to itself and, over the edge types that lead to it, a linear map of the mean over its
    neighbors."""

    def layer(self, index: int, hidden: Mapping[int, Tensor], layer: TypedLayer) -> dict[int, Tensor]:
        targets = self.targets(index)
        roots = {}
        for target in targets:
            roots[target] = Root(layer.num_targets[target], *self.root(index, target))
        parts = [
            Mean(source, target, layer.blocks[number], self.edge_weight(index, key))
            for number, key, source, target in self.edges_to(targets)
        ]
        return means(hidden, parts, roots)

    @abstractmethod
    def root(self, index: int, target: int) -> tuple[Tensor, Tensor]:
        """Returns what layer ``index`` applies to targets of a node type themselves: weight [out, in], bias [out]."""

    def edge_weight(self, index: int, key: EdgeKey) -> Tensor:
        """Returns what layer ``index`` applies to the mean over neighbors of an edge type, [out, in]."""
        return self.conv(index, key).lin_l.weight

    def _convs_to(self, index: int, target: int) -> list[Any]:
        return [self.conv(index, key) for _, key, _, _ in self.edges_to([target])]


class Rsage(MeanModel):
    """Adds up, over the edge types that lead to a node, GraphSAGE of the mean over its neighbors."""

    def root(self, index: int, target: int) -> tuple[Tensor, Tensor]:
        # Every edge type has a weight for the target itself: their sum is applied once.
        convs = self._convs_to(index, target)
        return _total([one.lin_r.weight for one in convs]), _total([one.lin_l.bias for one in convs])


class Rgcn(MeanModel):
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

    def root(self, index: int, target: int) -> tuple[Tensor, Tensor]:
        lins: Any = self.roots[index]
        lin = lins[module_name(self.schema.node_types[target].name)]
        return lin.weight, _total([lin.bias, *(one.lin_l.bias for one in self._convs_to(index, target))])


class ConvModel(TypedModel):
    """Adds up, over the edge types that lead to a node, what a layer of its own gives for each."""

    def layer(self, index: int, hidden: Mapping[int, Tensor], layer: TypedLayer) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        for number, key, source, target in self.edges_to(self.targets(index)):
            out = self.convolve(self.conv(index, key), hidden[source], layer.blocks[number], hidden[target])
            found[target] = out if target not in found else found[target].add_(out)
        return found

    @abstractmethod
    def convolve(self, conv: Any, x: Tensor, block: Block, target: Tensor) -> Tensor:
        """Computes the layer of an edge type for its targets, [num_targets, out], a tensor of its own."""


class Rgat(ConvModel):
    """Adds up, over the edge types that lead to a node, attention to its neighbors of the type."""

    def convolve(self, conv: Any, x: Tensor, block: Block, target: Tensor) -> Tensor:
        return gat(conv, x, block, target)

    def activate(self, out: Tensor) -> Tensor:
        return F.elu(out, inplace=True)


class Rtransformer(ConvModel):
    """Adds up, over the edge types that lead to a node, a graph transformer over its neighbors of the type."""

    def convolve(self, conv: Any, x: Tensor, block: Block, target: Tensor) -> Tensor:
        return transformer(conv, x, block, target)


class Rgine(ConvModel):
    """Adds up, over the edge types that lead to a node, GINE of its neighbors of the type, GIN where edges have none.

    Rows of all types are mapped to one width first, for GINE adds up those of both ends.
    """

    def __init__(
        self,
        schema: GraphSchema,
        convs: Sequence[nn.Module],
        lin_dict: Mapping[str, nn.Module],
        dropout: float = 0.0,
    ):
        super().__init__(schema, convs, dropout)
        self.lin_dict = ModuleDict({**lin_dict})

    def enter(self, node_type: int, rows: Tensor) -> Tensor:
        lin: Any = self.lin_dict[module_name(self.schema.node_types[node_type].name)]
        with products(rows) as dense:
            return dense.addmm(lin.bias, rows, lin.weight.t())

    def convolve(self, conv: Any, x: Tensor, block: Block, target: Tensor) -> Tensor:
        return gine(conv, x, block, target)


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
    first = [sizes.hidden if name == "rgine" else node.width for node in schema.node_types]
    widths = [first, *between]
    outs = [*[sizes.hidden] * (sizes.layers - 1), schema.num_classes]
    convs, roots = [], []
    for index, (row, out) in enumerate(zip(widths, outs, strict=True)):
        width, heads = dict(zip(names, row, strict=True)), sizes.heads if index < sizes.layers - 1 else 1
        convs.append(
            PerEdgeType(
                {
                    k: _conv(name, (width[k[0]], width[k[2]]), out, heads, schema.edge_width(n))
                    for n, k in enumerate(schema.edge_types)
                }
            )
        )
        roots.append(
            ModuleDict({module_name(n): Linear(width[n], out) for n in names}) if name == "rgcn" else None
        )
    if name == "rgcn":
        return Rgcn(schema, convs, roots, sizes.dropout)
    if name == "rgine":
        lins = {module_name(node.name): Linear(node.width, sizes.hidden) for node in schema.node_types}
        return Rgine(schema, convs, lins, sizes.dropout)
    kinds: dict[str, type[TypedModel]] = {"rsage": Rsage, "rgat": Rgat, "rtransformer": Rtransformer}
    return kinds[name](schema, convs, sizes.dropout)


def _conv(name: str, widths: tuple[int, int], out: int, heads: int, edge_dim: int | None) -> nn.Module:
    if name == "rgat":
        return GATConv(widths, out // heads, heads, add_self_loops=False, edge_dim=edge_dim)
    if name == "rtransformer":
        return TransformerConv(widths, out // heads, heads, edge_dim=edge_dim)
    if name == "rgine":  # all rows are as wide as it is between layers
        network = nn.Sequential(nn.Linear(*widths), nn.ReLU(), nn.Linear(widths[0], out))
        return GINConv(network) if edge_dim is None else GINEConv(network, edge_dim=edge_dim)
    return SAGEConv(widths, out, root_weight=name == "rsage")
