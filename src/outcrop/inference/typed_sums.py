"""Layers of models of graphs with types, accumulated over parts of their sources, edge type by edge type.

Means are scaled by the edges of each target, which are known before its sources come: ``rgcn`` and ``rsage`` have one
accumulator for all edge types. So has ``hgt``, whose softmax is over all of them: values are mapped at the sources.
``rgat`` has a softmax for each edge type, one after the other: what one gave is added up before the next begins.
``rtransformer`` and ``rgine`` have accumulators for each edge type, because what follows takes the targets' own rows.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from outcrop.errors import ArgumentError
from outcrop.inference.layer_sums import (
    AccumulatorBytes,
    LayerSums,
    Part,
    SoftmaxSums,
    cost,
    layer_sums,
    out_width,
    sums_of,
)
from outcrop.inference.target_layer import TargetLayer
from outcrop.nn.hgt import Hgt, HgtLayer
from outcrop.nn.layers import Products
from outcrop.nn.sparse import bag_sum
from outcrop.nn.typed import TypedModel
from outcrop.nn.typed_models import ConvModel, MeanModel, Rgat, Rgine, Rtransformer

_FLOAT = 4  # bytes


@final
class MeanSums(LayerSums):
    """Adds up ``mean over sources @ weight.T`` of all edge types.

    Args:
        weights: [out, in] of each edge type.
        root: Weight [out, in] and bias [out] for the targets themselves.
    """

    drops_loops = False

    def __init__(self, weights: Sequence[Tensor], root: tuple[Tensor, Tensor], targets: int, step: int):
        self._weights, (self._root, self._bias) = weights, root
        super().__init__(self._bias.new_zeros(targets, len(self._bias)), step)

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        assert part.inverse is not None
        weight, first = self._weights[part.edge_type], 0
        maps_first = _narrows(weight)
        mapped = x @ weight.t() if maps_first else x
        for targets, rowptr, edges in self._pieces(part):
            inverse = part.inverse[first : first + len(targets)].unsqueeze(1)
            first += len(targets)
            means = bag_sum(mapped, rowptr, part.col[edges]).mul_(inverse)
            if not maps_first:
                means = means @ weight.t()
            self._total.index_copy_(0, targets, means.add_(self._total.index_select(0, targets)))

    def finish(self, first: int, count: int, x: Tensor | None, scale: Tensor | None) -> Tensor:
        assert x is not None
        return torch.addmm(self._bias, x, self._root.t()).add_(self._total[first : first + count])


def _narrows(weight: Tensor) -> bool:
    return weight.shape[0] < weight.shape[1]


@final
class _RgatSums(SoftmaxSums):
    """Has one accumulator, for one edge type after the other: parts of an edge type come one after the other."""

    drops_loops = False

    def __init__(self, convs: Sequence[Any], targets: int, step: int):
        self._convs, heads, width = convs, convs[0].heads, convs[0].out_channels
        like = convs[0].bias
        super().__init__(like, targets, heads, width, step)
        self._out = like.new_zeros(targets, heads * width)
        self._own = like.new_empty(targets, len(convs), heads)
        self._edge_type: int | None = None

    def begin(self, first: int, x: Tensor) -> None:
        for number, conv in enumerate(self._convs):
            self._own[first : first + len(x), number] = x @ _vectors(conv.lin_dst, conv.att_dst).t()

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        if part.edge_type != self._edge_type:
            self._next(part.edge_type)
        conv = self._convs[part.edge_type]
        source = x @ _vectors(conv.lin_src, conv.att_src).t()
        mapped = (x @ conv.lin_src.weight.t()).view(-1, self._total.shape[2])
        for targets, rowptr, edges in self._pieces(part):
            col = part.col[edges]
            own, counts = self._own[targets, part.edge_type], rowptr.long().diff()
            row = torch.repeat_interleave(counts, output_size=len(col))
            scores = source.index_select(0, col).add_(own.index_select(0, row))
            del own, row
            scores = F.leaky_relu_(scores, conv.negative_slope)
            self._add_scores(targets, rowptr, col, scores, mapped)

    def _next(self, edge_type: int | None) -> None:
        """Adds up what the edge type before gave, and begins anew."""
        if self._edge_type is not None:
            for first in range(0, len(self._out), self._step):
                own = slice(first, first + self._step)
                self._out[own] += self._mean(own).flatten(1)
        self._clear()
        self._edge_type = edge_type

    def finish(self, first: int, count: int, x: Tensor | None, scale: Tensor | None) -> Tensor:
        if self._edge_type is not None:
            self._next(None)
        out = self._out[first : first + count]
        for conv in self._convs:
            out += conv.bias
        return out


def _vectors(lin: Any, attention: Tensor) -> Tensor:
    """Returns [heads, in], whose product with a row is its part of a score: a . (W x) = (W' a) . x."""
    _, heads, width = attention.shape
    return torch.einsum("hco,hc->ho", lin.weight.view(heads, width, -1), attention[0])


@final
class _HgtSums(SoftmaxSums):
    """Maps keys and values of an edge type at the sources, so that all edge types share one softmax and one total."""

    drops_loops = False
    targets_last = True

    def __init__(self, layer: _HgtTargets, targets: int, step: int):
        like = layer.query[1]
        super().__init__(like, targets, layer.heads, len(like) // layer.heads, step)
        self._layer = layer
        self._queries = like.new_empty(targets, len(like))
        self._clear()

    def begin(self, first: int, x: Tensor) -> None:
        weight, bias = self._layer.query
        self._queries[first : first + len(x)] = torch.addmm(bias, x, weight.t())

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        (_, heads, width), (weight, bias) = self._total.shape, self._layer.keys_values[part.edge_type]
        hidden = heads * width
        keys = torch.addmm(bias[:hidden], x, weight[:hidden].t()).view(-1, width)
        values = torch.addmm(bias[hidden:], x, weight[hidden:].t()).view(-1, width)
        for targets, rowptr, edges in self._pieces(part):
            col = part.col[edges]
            queries = self._queries.index_select(0, targets).view(-1, heads, width)
            scores = self._dots(rowptr, col, queries, keys)
            del queries
            self._add_scores(targets, rowptr, col, scores, values)

    def finish(self, first: int, count: int, x: Tensor | None, scale: Tensor | None) -> Tensor:
        assert x is not None
        total = self._mean(slice(first, first + count)).flatten(1)
        return self._layer.updated(x, total)


@final
class _PerTypeSums(LayerSums):
    """Adds up what accumulators of each edge type give."""

    def __init__(self, convs: Sequence[Any], targets: int, step: int):
        self._each = [layer_sums(conv, targets, step) for conv in convs]

    def begin(self, first: int, x: Tensor) -> None:
        for sums in self._each:
            if sums.targets_first:
                sums.begin(first, x)

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        self._each[part.edge_type].add(part, x, scale)

    def finish(self, first: int, count: int, x: Tensor | None, scale: Tensor | None) -> Tensor:
        out, *others = (sums.finish(first, count, x, scale) for sums in self._each)
        for other in others:
            out += other
        return out


class _TypedTargets(TargetLayer, ABC):
    """Computes layer ``index`` of ``model`` for the nodes of type ``target``.

    Args:
        scores: Whether what the model gives at last is wanted, where this is its last layer.
    """

    def __init__(self, model: TypedModel, index: int, target: int, scores: bool):
        self._model, self._index, self._target = model, index, target
        self._is_last = index == model.num_layers - 1
        self._scores = scores and self._is_last
        self._edges = model.edges_to([target])

    def activate(self, out: Tensor) -> Tensor:
        if not self._is_last:
            return self._model.activate(out)
        return self._model.leave(out) if self._scores else out


@final
class _MeanTargets(_TypedTargets):
    uses_counts = True
    _model: MeanModel

    def __init__(self, model: MeanModel, index: int, target: int, scores: bool):
        super().__init__(model, index, target, scores)
        self._weights = [model.edge_weight(index, key) for _, key, _, _ in self._edges]
        self._root = model.root(index, target)
        self.out_dim = out = len(self._root[1])
        most = max([3 * out if _narrows(w) else w.shape[1] + 2 * out for w in self._weights], default=0)
        self.cost = AccumulatorBytes(_FLOAT * (out + 1), _FLOAT * max(most, 2 * out), 0)

    def sums(self, targets: int, step: int) -> LayerSums:
        return MeanSums(self._weights, self._root, targets, step)


@final
class _RgatTargets(_TypedTargets):
    targets_first, targets_last = True, False

    def __init__(self, model: Rgat, index: int, target: int, scores: bool):
        super().__init__(model, index, target, scores)
        self._convs = [model.conv(index, key) for _, key, _, _ in self._edges]
        heads, width = self._convs[0].heads, self._convs[0].heads * self._convs[0].out_channels
        self.out_dim = width
        per_target = 2 * width + heads * (2 + len(self._convs))
        row = width + heads + max(2 * width + 6 * heads, 2 * width)
        self.cost = AccumulatorBytes(_FLOAT * per_target, _FLOAT * row, 16 * heads + 16)

    def sums(self, targets: int, step: int) -> LayerSums:
        return _RgatSums(self._convs, targets, step)


@final
class _PerTypeTargets(_TypedTargets):
    _model: ConvModel

    def __init__(self, model: ConvModel, index: int, target: int, scores: bool):
        super().__init__(model, index, target, scores)
        self._convs = [model.conv(index, key) for _, key, _, _ in self._edges]
        kind = sums_of(self._convs[0])
        self.targets_first, self.targets_last = kind.targets_first, kind.targets_last
        self.out_dim = out_width(self._convs[0])
        each = [cost(conv) for conv in self._convs]
        row = max(one.row for one in each) + _FLOAT * self.out_dim * len(each)
        self.cost = AccumulatorBytes(sum(one.target for one in each), row, max(one.edge for one in each))
        self.entered_dim = self._convs[0].nn[0].in_features if isinstance(model, Rgine) and not index else 0

    def enter(self, node_type: int, rows: Tensor) -> Tensor:
        return rows if self._index else self._model.enter(node_type, rows)

    def sums(self, targets: int, step: int) -> LayerSums:
        return _PerTypeSums(self._convs, targets, step)


@final
class _HgtTargets(_TypedTargets):
    """``query``: weight and bias; ``keys_values``: those of each edge type (:class:`outcrop.nn.hgt.HgtLayer`)."""

    targets_first, targets_last = True, True
    _model: Hgt

    def __init__(self, model: Hgt, index: int, target: int, scores: bool):
        super().__init__(model, index, target, scores)
        conv: Any = model.convs[index]
        self._layer, self.heads = HgtLayer(conv, model.schema, Products()), conv.heads
        self.query = self._layer.query_map(target)
        self.keys_values = [
            self._layer.key_value_map(number, key, source) for number, key, source, _ in self._edges
        ]
        hidden, heads = conv.out_channels, self.heads
        self.out_dim = model.schema.num_classes if self._scores else hidden
        self.entered_dim = 0 if index else hidden
        row = 2 * hidden + max(4 * hidden + 6 * heads, 4 * hidden + self.out_dim)
        self.cost = AccumulatorBytes(_FLOAT * (2 * hidden + 2 * heads), _FLOAT * row, 20 * heads + 48)

    def enter(self, node_type: int, rows: Tensor) -> Tensor:
        return rows if self._index else self._model.enter(node_type, rows)

    def sums(self, targets: int, step: int) -> LayerSums:
        return _HgtSums(self, targets, step)

    def updated(self, rows: Tensor, total: Tensor) -> Tensor:
        """Returns the new rows of targets, of their old ones and what came from their sources."""
        return self._layer.updated(self._target, rows, total)


def typed_layer(model: TypedModel, index: int, target: int, scores: bool) -> TargetLayer:
    """Returns layer ``index`` of ``model`` for node type ``target``. Call under ``no_grad``, as its sums.

    Args:
        scores: Whether what the model gives at last is wanted, where this is its last layer; else what that gives.
    """
    if isinstance(model, MeanModel):
        return _MeanTargets(model, index, target, scores)
    if isinstance(model, Rgat):
        return _RgatTargets(model, index, target, scores)
    if isinstance(model, Hgt):
        return _HgtTargets(model, index, target, scores)
    if isinstance(model, Rtransformer | Rgine):
        return _PerTypeTargets(model, index, target, scores)
    raise ArgumentError(f"model {type(model).__name__} is unknown: it cannot be computed layer by layer")
