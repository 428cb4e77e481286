"""The output of one layer for some targets, accumulated over parts of their sources.

A target with more neighbours than memory holds is no special case here: its sources arrive part by part, in any number
of parts. SAGE, GCN and GIN add up weighted rows. GAT and the graph transformer keep, per target and head, the largest
score so far, the sum of the exponentials and the weighted sum, both relative to it, and rescale them when a larger
score comes (online softmax: Milakov and Gimelshein 2018, algorithm 3), so that one pass over the rows is enough.

Equals :meth:`outcrop.nn.models.Model.layer` on the whole block, apart from the order in which floats are added. Where
the layer maps to a narrower width, rows are mapped before they are added up, because accumulators are then narrower.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outcrop.errors import ArgumentError
from outcrop.nn.convs import GATConv, GCNConv, GINConv, GINEConv, SAGEConv, TransformerConv
from outcrop.nn.sparse import bag_sum, sampled_dot

_FLOAT = 4  # bytes


@dataclass(frozen=True)
class Part:
    """Holds some edges of some targets, by target: row k lists sources of target ``targets[k]``.

    Attributes:
        targets: int64 [K], distinct, ascending.
        rowptr: int32 [K + 1].
        col: int32 [num_edges], rows of the part's ``x``.
        edge_type: Place of the edge type among those that lead to the targets.
        inverse: float32 [K], one over the edges of the type that each target has in all parts together; None where the
            layer has no use for it.
    """

    targets: Tensor
    rowptr: Tensor
    col: Tensor
    edge_type: int = 0
    inverse: Tensor | None = None


@dataclass(frozen=True)
class AccumulatorBytes:
    """Counts the bytes that computing takes beside the rows themselves, per target, per row of a part, per edge."""

    target: int
    row: int
    edge: int


class LayerSums(ABC):
    """Adds up a layer: ``begin`` for every target once where ``targets_first``; ``add`` for every part; ``finish`` for
    every target.

    ``x`` is float32 [rows, in_dim]; ``scale`` float32 [rows], 1 / sqrt(degree + 1) of these rows, for GCN only.
    """

    drops_loops = True  # edges from a node to itself must be left out: the layer makes its own
    # Whether the targets' own rows are needed before those of their sources, and after them.
    targets_first, targets_last = False, True

    def __init__(self, total: Tensor, step: int):
        self._total, self._step = total, step

    def begin(self, first: int, x: Tensor) -> None:
        """Begins with the rows of targets ``first`` to ``first + len(x)`` themselves; only where ``targets_first``."""
        raise NotImplementedError

    @abstractmethod
    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        """Adds sources of some targets."""

    @abstractmethod
    def finish(self, first: int, count: int, x: Tensor | None, scale: Tensor | None) -> Tensor:
        """Returns the output for ``count`` targets from ``first`` on, without what follows the layer, float32 [count,
        out_dim].

        ``x``: their own rows; None unless ``targets_last``.
        """

    def _pieces(self, part: Part) -> Iterator[tuple[Tensor, Tensor, slice]]:
        """Yields a few targets of ``part`` at a time: (targets, their rowptr from 0 on, their edges)."""
        for first in range(0, len(part.targets), self._step):
            rowptr = part.rowptr[first : first + self._step + 1]
            edges = slice(int(rowptr[0]), int(rowptr[-1]))
            yield part.targets[first : first + self._step], rowptr - rowptr[0], edges

    def _add_sums(self, part: Part, x: Tensor, weights: Tensor | None = None) -> None:
        """Computes ``total[t] += sum of weighted rows`` for every target of ``part``."""
        for targets, rowptr, edges in self._pieces(part):
            sums = bag_sum(x, rowptr, part.col[edges], None if weights is None else weights[edges])
            self._total.index_copy_(0, targets, sums.add_(self._total.index_select(0, targets)))


@final
class _SageSums(LayerSums):
    drops_loops = False

    def __init__(self, conv: SAGEConv, targets: int, step: int):
        self._left, self._right, self._bias = conv.lin_l.weight, conv.lin_r.weight, conv.lin_l.bias
        self._map_first = _map_first(conv)
        width = self._left.shape[0] if self._map_first else self._left.shape[1]
        super().__init__(self._left.new_zeros(targets, width), step)
        self._count = self._left.new_zeros(targets)

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        self._add_sums(part, x @ self._left.t() if self._map_first else x)
        counts = part.rowptr.diff().to(self._count.dtype)
        self._count.index_copy_(0, part.targets, counts.add_(self._count.index_select(0, part.targets)))

    def finish(self, first: int, count: int, x: Tensor | None, scale: Tensor | None) -> Tensor:
        assert x is not None
        own = slice(first, first + count)
        mean = self._total[own].mul_(self._count[own].clamp_(min=1).reciprocal_().unsqueeze(1))
        out = torch.addmm(self._bias, x, self._right.t())
        return out.add_(mean) if self._map_first else out.addmm_(mean, self._left.t())


@final
class _GcnSums(LayerSums):
    def __init__(self, conv: GCNConv, targets: int, step: int):
        self._weight, self._bias = conv.lin.weight, conv.bias
        self._map_first = _map_first(conv)
        width = self._weight.shape[0] if self._map_first else self._weight.shape[1]
        super().__init__(self._weight.new_zeros(targets, width), step)

    def _inner(self, x: Tensor) -> Tensor:
        return x @ self._weight.t() if self._map_first else x

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        assert scale is not None
        self._add_sums(part, self._inner(x), scale.index_select(0, part.col))

    def finish(self, first: int, count: int, x: Tensor | None, scale: Tensor | None) -> Tensor:
        assert x is not None
        assert scale is not None
        by_row = scale.unsqueeze(1)
        total = self._total[first : first + count].addcmul_(self._inner(x), by_row).mul_(by_row)
        return total.add_(self._bias) if self._map_first else torch.addmm(self._bias, total, self._weight.t())


@final
class _GinSums(LayerSums):
    drops_loops = False

    def __init__(self, conv: GINConv, targets: int, step: int):
        network: Any = conv.nn
        self._network, self._own = network, 1 + conv.eps
        super().__init__(network[0].weight.new_zeros(targets, network[0].in_features), step)

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        self._add_sums(part, x)

    def finish(self, first: int, count: int, x: Tensor | None, scale: Tensor | None) -> Tensor:
        assert x is not None
        return self._network(self._total[first : first + count].add_(x * self._own))


class SoftmaxSums(LayerSums):
    """Adds up rows by the softmax of scores that come part by part, head by head: totals [targets, heads, width]."""

    targets_first, targets_last = True, False

    def __init__(self, like: Tensor, targets: int, heads: int, width: int, step: int):
        super().__init__(like.new_empty(targets, heads, width), step)
        self._top, self._mass = (like.new_empty(targets, heads) for _ in range(2))

    def _clear(self) -> None:
        """Begins anew, as if no part had come."""
        self._total.zero_()
        self._mass.zero_()
        self._top.fill_(float("-inf"))

    def _add_scores(
        self, targets: Tensor, rowptr: Tensor, col: Tensor, scores: Tensor, mapped: Tensor
    ) -> None:
        """Adds rows of ``mapped``, [rows * heads, width], by the ``scores`` [num_edges, heads] of edges, which go."""
        heads, ptr = self._total.shape[1], rowptr.long()
        row = torch.repeat_interleave(ptr.diff(), output_size=len(col))
        before = self._top.index_select(0, targets)
        top = torch.maximum(before, torch.segment_reduce(scores, "max", offsets=ptr, axis=0, unsafe=True))
        scores = scores.sub_(top.index_select(0, row)).exp_()
        shrink = before.sub_(top).exp_()
        mass = torch.segment_reduce(scores, "sum", offsets=ptr, axis=0, unsafe=True)
        self._mass.index_copy_(0, targets, self._mass.index_select(0, targets).mul_(shrink).add_(mass))
        self._top.index_copy_(0, targets, top)
        total = self._total.index_select(0, targets).mul_(shrink.unsqueeze(2))
        for head in range(heads):
            total[:, head] += bag_sum(mapped, rowptr, col * heads + head, scores[:, head].contiguous())
        self._total.index_copy_(0, targets, total)

    def _dots(self, rowptr: Tensor, col: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns, [num_edges, heads], queries [targets, heads, width] times keys [rows * heads, width]."""
        heads = queries.shape[1]
        scores = queries.new_empty(len(col), heads)
        for head in range(heads):
            left = queries[:, head].contiguous()
            scores[:, head] = sampled_dot(rowptr, col * heads + head, left, keys)
        return scores

    def _mean(self, own: slice) -> Tensor:
        """Returns the weighted mean of what came for targets ``own``, zeros where nothing did; uses the totals up."""
        return self._total[own].div_(self._mass[own].clamp(min=1.0).unsqueeze(2))


@final
class _GatSums(SoftmaxSums):
    """Maps first: unmapped accumulators would be as many as there are heads."""

    def __init__(self, conv: GATConv, targets: int, step: int):
        assert conv.lin is not None
        self._conv, self._weight = conv, conv.lin.weight
        heads, width = conv.heads, conv.out_channels
        self._vectors = gat_vectors(conv)
        super().__init__(self._weight, targets, heads, width, step)
        self._target = self._weight.new_empty(targets, heads)

    def begin(self, first: int, x: Tensor) -> None:
        own = slice(first, first + len(x))
        self._target[own] = x @ self._vectors[1].t()
        self._top[own] = self._score(x @ self._vectors[0].t() + self._target[own])
        self._mass[own] = 1.0
        self._total[own] = (x @ self._weight.t()).view(len(x), *self._total.shape[1:])

    def _score(self, logits: Tensor) -> Tensor:
        return F.leaky_relu(logits, self._conv.negative_slope)

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        source = x @ self._vectors[0].t()
        mapped = (x @ self._weight.t()).view(-1, self._total.shape[2])
        for targets, rowptr, edges in self._pieces(part):
            col = part.col[edges]
            own, counts = self._target.index_select(0, targets), rowptr.long().diff()
            row = torch.repeat_interleave(counts, output_size=len(col))
            scores = self._score(source.index_select(0, col) + own.index_select(0, row))
            del own, row
            self._add_scores(targets, rowptr, col, scores, mapped)

    def finish(self, first: int, count: int, x: Tensor | None, scale: Tensor | None) -> Tensor:
        out = self._mean(slice(first, first + count))
        return (out.flatten(1) if self._conv.concat else out.mean(1)) + self._conv.bias


def gat_vectors(conv: GATConv) -> Tensor:
    """Returns [2, heads, in], whose products with a row are its scores as a source and as a target:
    a . (W x) = (W' a) . x.
    """
    assert conv.lin is not None
    by_head = conv.lin.weight.view(conv.heads, conv.out_channels, -1)
    return torch.einsum("hco,shc->sho", by_head, torch.cat([conv.att_src, conv.att_dst]))


@final
class _TransformerSums(SoftmaxSums):
    """Maps first: keys and values of a part are made once, whatever the heads."""

    drops_loops = False
    targets_last = True

    def __init__(self, conv: TransformerConv, targets: int, step: int):
        self._conv, like = conv, conv.lin_value.weight
        super().__init__(like, targets, conv.heads, conv.out_channels, step)
        self._queries = like.new_empty(targets, conv.heads, conv.out_channels)
        self._clear()

    def begin(self, first: int, x: Tensor) -> None:
        queries = self._conv.lin_query(x).div_(math.sqrt(self._conv.out_channels))
        self._queries[first : first + len(x)] = queries.view(len(x), *self._queries.shape[1:])

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        width = self._conv.out_channels
        keys, values = (lin(x).view(-1, width) for lin in (self._conv.lin_key, self._conv.lin_value))
        for targets, rowptr, edges in self._pieces(part):
            col = part.col[edges]
            scores = self._dots(rowptr, col, self._queries.index_select(0, targets), keys)
            self._add_scores(targets, rowptr, col, scores, values)

    def finish(self, first: int, count: int, x: Tensor | None, scale: Tensor | None) -> Tensor:
        out = self._mean(slice(first, first + count))
        out = out.flatten(1) if self._conv.concat else out.mean(1)
        return out + self._conv.lin_skip(x) if self._conv.root_weight else out


_SUMS: dict[type[nn.Module], Any] = {
    SAGEConv: _SageSums,
    GCNConv: _GcnSums,
    GATConv: _GatSums,
    GINConv: _GinSums,
    TransformerConv: _TransformerSums,
}


def layer_sums(conv: nn.Module, targets: int, step: int) -> LayerSums:
    """Returns accumulators for ``targets`` targets of a layer, on its device. Without autograd: call under ``no_grad``.

    Args:
        step: Targets of a part that are worked on at a time: bounds the memory of intermediate results.
    """
    return _kind_of(conv)(conv, targets, step)


def has_sums(conv: nn.Module) -> bool:
    """Tells whether a layer, of those that take no features of edges, can be added up by parts."""
    return isinstance(conv, tuple(_SUMS))


def _kind_of(conv: nn.Module) -> Any:
    kind = next((_SUMS[kind] for kind in _SUMS if isinstance(conv, kind)), None)
    if kind is None:
        known = ", ".join(kind.__name__ for kind in _SUMS)
        raise ArgumentError(f"layer {type(conv).__name__} is unknown; known: {known}")
    return kind


def widths(conv: Any) -> tuple[int, int]:  # Any: attributes that type checkers do not know
    """Returns columns of the input and of the output of a layer."""
    if isinstance(conv, SAGEConv):
        in_dim = conv.lin_l.weight.shape[1]
    elif _is_gin(conv):
        in_dim = conv.nn[0].in_features
    elif isinstance(conv, TransformerConv):
        in_dim = conv.lin_key.weight.shape[1]
    else:
        assert isinstance(conv, GCNConv | GATConv)
        assert conv.lin is not None
        in_dim = conv.lin.weight.shape[1]
    return in_dim, out_width(conv)


def out_width(conv: Any) -> int:
    """Returns columns of the output of a layer."""
    if _is_gin(conv):
        return conv.nn[-1].out_features
    return conv.out_channels * (conv.heads if getattr(conv, "concat", False) else 1)


def edge_width(conv: Any) -> int:
    """Returns columns of the features of edges that a layer takes; 0: it takes none."""
    if _is_gin(conv):
        return 0 if isinstance(conv, GINConv) else conv.lin.in_channels
    return getattr(conv, "edge_dim", None) or 0


def _is_gin(conv: object) -> bool:
    return isinstance(conv, GINConv | GINEConv)


def _map_first(conv: nn.Module) -> bool:
    in_dim, out_dim = widths(conv)
    return out_dim < in_dim


def sums_of(conv: nn.Module) -> type[LayerSums]:
    """Returns the class of the accumulators of a layer, which says what it needs."""
    return _kind_of(conv)


def cost(conv: nn.Module) -> AccumulatorBytes:
    """Returns what :func:`layer_sums` takes at the most, where ``step`` and the targets that are finished at a time are
    at most the rows of a part.
    """
    in_dim, out_dim = widths(conv)
    if isinstance(conv, GATConv):
        width, heads = conv.out_channels * conv.heads, conv.heads
        row = _FLOAT * (width + heads + max(2 * width + 6 * heads, 2 * out_dim))
        return AccumulatorBytes(_FLOAT * (width + 3 * heads), row, 16 * heads + 16)
    if isinstance(conv, TransformerConv):
        width, heads = conv.out_channels * conv.heads, conv.heads
        row = _FLOAT * (2 * width + max(4 * width + 6 * heads, 4 * width + out_dim))
        return AccumulatorBytes(_FLOAT * (2 * width + 2 * heads), row, 20 * heads + 48)
    if isinstance(conv, GINConv):
        network: Any = conv.nn
        between = sum(getattr(module, "out_features", 0) for module in network)
        return AccumulatorBytes(_FLOAT * in_dim, _FLOAT * max(2 * in_dim, in_dim + 2 * between), 0)
    width = min(in_dim, out_dim)
    mapped = out_dim if _map_first(conv) else 0
    row = _FLOAT * (mapped + max(2 * width, width + out_dim))
    return AccumulatorBytes(_FLOAT * (width + 1), row, 8 if isinstance(conv, GCNConv) else 0)
