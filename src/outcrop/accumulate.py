"""The output of one layer for some targets, accumulated over parts of their sources.

A target with more neighbours than memory holds is no special case here: its sources arrive part by part, in any number
of parts. SAGE and GCN add up weighted rows. GAT keeps, per target and head, the largest score so far, the sum of the
exponentials and the weighted sum, both relative to it, and rescales them when a larger score comes (online softmax:
Milakov and Gimelshein 2018, algorithm 3), so that one pass over the rows is enough.

Equals :meth:`outcrop.models.Model.layer` on the whole block, apart from the order in which floats are added. Where
the layer maps to a narrower width, rows are mapped before they are added up, because accumulators are then narrower.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from outcrop.errors import ArgumentError
from outcrop.sparse import bag_sum

_FLOAT = 4  # bytes


@dataclass(frozen=True)
class Part:
    """Some edges of some targets, by target: row k lists sources of target ``targets[k]``.

    Attributes:
        targets: int64 [K], distinct, ascending.
        rowptr: int32 [K + 1].
        col: int32 [num_edges], rows of the part's ``x``.
    """

    targets: Tensor
    rowptr: Tensor
    col: Tensor


@dataclass(frozen=True)
class Cost:
    """Bytes of memory that computing takes beside the rows themselves, per target, per row of a part, per edge."""

    target: int
    row: int
    edge: int


class LayerSums(ABC):
    """``begin`` for every target once, ``add`` for every part, then ``finish``.

    ``x`` is float32 [rows, in_dim]; ``scale`` float32 [rows], 1 / sqrt(degree + 1) of these rows, for GCN only.
    """

    drops_loops = True  # edges from a node to itself must be left out: the layer makes its own

    @abstractmethod
    def begin(self, first: int, x: Tensor, scale: Tensor | None) -> None:
        """The rows of targets ``first`` to ``first + len(x)`` themselves."""

    @abstractmethod
    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        """Sources of some targets."""

    @abstractmethod
    def finish(self) -> Tensor:
        """Output of the layer without what follows it, float32 [num_targets, out_dim]. Ends the use of this object."""


def _add_rows(total: Tensor, targets: Tensor, rows: Tensor) -> None:
    """``total[targets] += rows`` for distinct targets."""
    if len(targets) == len(total):
        total.add_(rows)
    elif len(targets):
        total.index_copy_(0, targets, total.index_select(0, targets).add_(rows))


@final
class _SageSums(LayerSums):
    drops_loops = False

    def __init__(self, conv: SAGEConv, targets: int):
        self._left, self._right, self._bias = conv.lin_l.weight, conv.lin_r.weight, conv.lin_l.bias
        self._map_first = _map_first(conv)
        width = self._left.shape[0] if self._map_first else self._left.shape[1]
        self._total = self._left.new_zeros(targets, width)
        self._count = self._left.new_zeros(targets)
        self._out = self._left.new_empty(targets, self._left.shape[0])

    def begin(self, first: int, x: Tensor, scale: Tensor | None) -> None:
        torch.addmm(self._bias, x, self._right.t(), out=self._out[first : first + len(x)])

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        inner = x @ self._left.t() if self._map_first else x
        _add_rows(self._total, part.targets, bag_sum(inner, part.rowptr, part.col))
        _add_rows(self._count, part.targets, part.rowptr.diff().to(self._count.dtype))

    def finish(self) -> Tensor:
        mean = self._total.mul_(self._count.clamp_(min=1).reciprocal_().unsqueeze(1))
        return self._out.add_(mean) if self._map_first else self._out.addmm_(mean, self._left.t())


@final
class _GcnSums(LayerSums):
    def __init__(self, conv: GCNConv, targets: int):
        self._weight, self._bias = conv.lin.weight, conv.bias
        self._map_first = _map_first(conv)
        width = self._weight.shape[0] if self._map_first else self._weight.shape[1]
        self._total = self._weight.new_empty(targets, width)
        self._scale = self._weight.new_empty(targets)

    def begin(self, first: int, x: Tensor, scale: Tensor | None) -> None:
        assert scale is not None
        own = slice(first, first + len(x))
        self._scale[own] = scale
        torch.mul(self._inner(x), scale.unsqueeze(1), out=self._total[own])

    def _inner(self, x: Tensor) -> Tensor:
        return x @ self._weight.t() if self._map_first else x

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        assert scale is not None
        weights = scale.index_select(0, part.col)
        _add_rows(self._total, part.targets, bag_sum(self._inner(x), part.rowptr, part.col, weights))

    def finish(self) -> Tensor:
        total = self._total.mul_(self._scale.unsqueeze(1))
        return total.add_(self._bias) if self._map_first else torch.addmm(self._bias, total, self._weight.t())


@final
class _GatSums(LayerSums):
    """Always maps first: unmapped accumulators would be as many as there are heads."""

    def __init__(self, conv: GATConv, targets: int):
        assert conv.lin is not None
        self._conv, self._weight = conv, conv.lin.weight
        heads, width = conv.heads, conv.out_channels
        by_head = self._weight.view(heads, width, -1)
        self._vectors = torch.einsum("hco,shc->sho", by_head, torch.cat([conv.att_src, conv.att_dst]))
        self._total = self._weight.new_empty(targets, heads, width)
        self._top, self._mass, self._target = (self._weight.new_empty(targets, heads) for _ in range(3))

    def begin(self, first: int, x: Tensor, scale: Tensor | None) -> None:
        own = slice(first, first + len(x))
        self._target[own] = x @ self._vectors[1].t()
        self._top[own] = self._score(x @ self._vectors[0].t() + self._target[own])
        self._mass[own] = 1.0
        self._total[own] = (x @ self._weight.t()).view(len(x), *self._total.shape[1:])

    def _score(self, logits: Tensor) -> Tensor:
        return F.leaky_relu(logits, self._conv.negative_slope)

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        if not len(part.col):
            return
        heads, width = self._total.shape[1:]
        ptr = part.rowptr.long()
        row = torch.repeat_interleave(ptr.diff(), output_size=len(part.col))
        before = self._top.index_select(0, part.targets)
        source = x @ self._vectors[0].t()
        scores = self._score(
            source.index_select(0, part.col) + self._target.index_select(0, part.targets).index_select(0, row)
        )
        top = torch.maximum(before, torch.segment_reduce(scores, "max", offsets=ptr, axis=0, unsafe=True))
        shrink = (before - top).exp_()
        scores = scores.sub_(top.index_select(0, row)).exp_()
        mass = torch.segment_reduce(scores, "sum", offsets=ptr, axis=0, unsafe=True)
        mapped = (x @ self._weight.t()).view(len(x) * heads, width)
        sums = torch.stack(
            [
                bag_sum(mapped, part.rowptr, part.col * heads + head, scores[:, head].contiguous())
                for head in range(heads)
            ],
            1,
        )
        for held, new in ((self._mass, mass), (self._total, sums)):
            factor = shrink if held.dim() == 2 else shrink.unsqueeze(2)
            held.index_copy_(0, part.targets, held.index_select(0, part.targets).mul_(factor).add_(new))
        self._top.index_copy_(0, part.targets, top)

    def finish(self) -> Tensor:
        out = self._total.div_(self._mass.unsqueeze(2))
        return (out.flatten(1) if self._conv.concat else out.mean(1)) + self._conv.bias


def layer_sums(conv: nn.Module, targets: int) -> LayerSums:
    """Accumulators for ``targets`` targets of a layer, on its device. Without autograd: call under ``no_grad``."""
    if isinstance(conv, SAGEConv):
        return _SageSums(conv, targets)
    if isinstance(conv, GCNConv):
        return _GcnSums(conv, targets)
    if isinstance(conv, GATConv):
        return _GatSums(conv, targets)
    raise ArgumentError(f"layer {type(conv).__name__} is unknown; known: SAGEConv, GCNConv, GATConv")


def widths(conv: nn.Module) -> tuple[int, int]:
    """Columns of the input and of the output of a layer."""
    if isinstance(conv, SAGEConv):
        return conv.lin_l.weight.shape[1], conv.lin_l.weight.shape[0]
    assert isinstance(conv, GCNConv | GATConv)
    assert conv.lin is not None
    out = conv.out_channels * (conv.heads if isinstance(conv, GATConv) and conv.concat else 1)
    return conv.lin.weight.shape[1], out


def _map_first(conv: nn.Module) -> bool:
    in_dim, out_dim = widths(conv)
    return out_dim < in_dim


def cost(conv: nn.Module) -> Cost:
    """What :func:`layer_sums` takes at the most, intermediate results included."""
    in_dim, out_dim = widths(conv)
    if isinstance(conv, GATConv):
        width, heads = conv.out_channels * conv.heads, conv.heads
        return Cost(_FLOAT * (5 * width + out_dim + 8 * heads), _FLOAT * (2 * width + heads), 28 * heads + 16)
    width = min(in_dim, out_dim)
    mapped = out_dim if _map_first(conv) else 0
    return Cost(
        _FLOAT * (3 * width + out_dim + 2), _FLOAT * 2 * mapped, 8 if isinstance(conv, GCNConv) else 0
    )
