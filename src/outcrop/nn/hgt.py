"""The heterogeneous graph transformer (Hu et al. 2020) on the CSR block of each edge type.

Parameters are those of the model in torch_geometric's examples: in ``lin_dict`` a ``Linear`` for each node type, with
ReLU after it; in ``convs`` an ``HGTConv(hidden, hidden, metadata, heads)`` for each layer; at last ``lin``, a
``Linear`` from hidden to classes. What ``HGTConv`` computes over one graph of all types is computed here edge type by
edge type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outcrop.nn.convs import HGTConv, Linear, ModuleDict
from outcrop.nn.layers import Products, products
from outcrop.nn.schema import EdgeKey, GraphSchema
from outcrop.nn.sparse import TypedLayer
from outcrop.nn.typed import Sizes, TypedModel, module_name
from outcrop.nn.typed_layers import Attention, attend

_KEYS, _QUERIES, _VALUES = range(3)  # thirds of the weights of HGTConv.kqv_lin


class Hgt(TypedModel):
    """Lets a node attend to its neighbors of all edge types at once."""

    def __init__(
        self,
        schema: GraphSchema,
        convs: Sequence[nn.Module],
        lin_dict: Mapping[str, nn.Module],
        lin: nn.Module,
        dropout: float = 0.0,
    ):
        super().__init__(schema, convs, dropout)
        self.lin_dict = ModuleDict({**lin_dict})
        self.lin = lin

    def enter(self, node_type: int, rows: Tensor) -> Tensor:
        lin: Any = self.lin_dict[module_name(self.schema.node_types[node_type].name)]
        with products(rows) as dense:
            return F.relu(dense.addmm(lin.bias, rows, lin.weight.t()), inplace=True)

    def layer(self, index: int, hidden: Mapping[int, Tensor], layer: TypedLayer) -> dict[int, Tensor]:
        found = {}
        with products(next(iter(hidden.values()))) as dense:
            conv = HgtLayer(self.convs[index], self.schema, dense)
            sources = sorted({source for _, _, source, _ in self.edges_to(self.targets(index))})
            keys_values = {
                source: conv.projected(source, hidden[source], (_KEYS, _VALUES)) for source in sources
            }
            for target in self.targets(index):
                rows = hidden[target][: layer.num_targets[target]]
                queries, parts = conv.queries(target, rows), []
                edges = self.edges_to([target])
                for number, key, source, _ in edges:
                    mapped = conv.mapped(queries, number, key)
                    parts.append(Attention(source, layer.blocks[number], mapped))
                sums = attend(parts, keys_values)
                found[target] = conv.update(target, rows, sums, [number for number, *_ in edges])
        return found

    def activate(self, out: Tensor) -> Tensor:
        return out

    def leave(self, hidden: Tensor) -> Tensor:
        lin: Any = self.lin
        with products(hidden) as dense:
            return dense.addmm(lin.bias, hidden, lin.weight.t())


class HgtLayer:
    """Computes the dense parts of an ``HGTConv``.

    Its weights of an edge type map keys and values of the sources. Applied to queries and sums instead they are applied
    once for each target, of which there are fewer: q (W k) = (q W) k, and a weighted sum of W v is W times that of v.
    """

    def __init__(self, conv: Any, schema: GraphSchema, dense: Products):
        self._conv, self._dense = conv, dense
        self._names = [module_name(node.name) for node in schema.node_types]
        self._heads, self._width = conv.heads, conv.out_channels // conv.heads
        shape = self._heads, len(schema.edge_types), self._width, self._width
        self._to_keys, self._to_values = conv.k_rel.weight.view(shape), conv.v_rel.weight.view(shape)

    def projected(self, node_type: int, rows: Tensor, thirds: Sequence[int]) -> Tensor:
        """Returns keys, queries or values of nodes, [num_nodes, heads * width] each, side by side."""
        lin = self._conv.kqv_lin.lins[self._names[node_type]]
        weight, bias = (torch.cat([of.chunk(3)[third] for third in thirds]) for of in (lin.weight, lin.bias))
        return self._dense.addmm(bias, rows, weight.t())

    def queries(self, target: int, rows: Tensor) -> Tensor:
        """Returns [heads, num_targets, width]."""
        found = self.projected(target, rows, (_QUERIES,))
        return found.view(len(rows), self._heads, self._width).transpose(0, 1)

    def mapped(self, queries: Tensor, number: int, key: EdgeKey) -> Tensor:
        """Returns queries to the keys of an edge type, scaled as its logits are."""
        weight = self._to_keys[:, number].transpose(1, 2)
        return self._dense.mm(queries, weight * self._scale(key))

    def update(self, target: int, rows: Tensor, sums: Sequence[Tensor], numbers: Sequence[int]) -> Tensor:
        """Returns the new rows of targets: of their old rows, and of sums [heads, num_targets, width] by edge types."""
        mapped = (self._dense.mm(one, self._to_values[:, n]) for one, n in zip(sums, numbers, strict=True))
        total = reduce(torch.add, mapped).transpose(0, 1).reshape(len(rows), self._heads * self._width)
        return self.updated(target, rows, total)

    def updated(self, target: int, rows: Tensor, total: Tensor) -> Tensor:
        """Returns the same where ``total``, [num_targets, heads * width], is mapped and added up already."""
        lin = self._conv.out_lin.lins[self._names[target]]
        out = self._dense.addmm(lin.bias, F.gelu(total), lin.weight.t())
        return torch.lerp(rows, out, self._conv.skip[self._names[target]].sigmoid())

    def query_map(self, target: int) -> tuple[Tensor, Tensor]:
        """Returns what makes queries of rows of targets: weight [heads * width, in], bias."""
        return self._third(target, _QUERIES)

    def key_value_map(self, number: int, key: EdgeKey, source: int) -> tuple[Tensor, Tensor]:
        """Returns what makes keys and values of rows of sources, mapped for an edge type, and keys so that a query
        times a key is a logit: weight [2 * heads * width, in], bias. The keys of all heads come first.
        """
        weights, biases = [], []
        for third, maps in ((_KEYS, self._to_keys), (_VALUES, self._to_values)):
            by_head = maps[:, number].transpose(1, 2)  # [heads, out, in]
            if third == _KEYS:
                by_head = by_head * self._scale(key)
            weight, bias = self._third(source, third)
            weights.append((by_head @ weight.view(self._heads, self._width, -1)).flatten(0, 1))
            biases.append((by_head @ bias.view(self._heads, self._width, 1)).flatten())
        return torch.cat(weights), torch.cat(biases)

    def _third(self, node_type: int, third: int) -> tuple[Tensor, Tensor]:
        lin = self._conv.kqv_lin.lins[self._names[node_type]]
        return lin.weight.chunk(3)[third], lin.bias.chunk(3)[third]

    def _scale(self, key: EdgeKey) -> Tensor:
        """Returns [heads, 1, 1]: what the logits of an edge type are scaled by."""
        prior = self._conv.p_rel["__".join(_module_key(key))]
        return prior.view(self._heads, 1, 1) / math.sqrt(self._width)


def _module_key(key: EdgeKey) -> EdgeKey:
    return module_name(key[0]), key[1], module_name(key[2])


def build_hgt(schema: GraphSchema, sizes: Sizes) -> Hgt:
    """Builds the model; ``sizes`` are checked already."""
    names = [module_name(node.name) for node in schema.node_types]
    metadata = names, [_module_key(key) for key in schema.edge_types]
    lin_dict = {
        name: Linear(node.width, sizes.hidden) for name, node in zip(names, schema.node_types, strict=True)
    }
    convs = [HGTConv(sizes.hidden, sizes.hidden, metadata, sizes.heads) for _ in range(sizes.layers)]
    return Hgt(schema, convs, lin_dict, Linear(sizes.hidden, schema.num_classes), sizes.dropout)
