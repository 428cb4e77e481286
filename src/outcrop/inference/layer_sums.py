"""The output of one layer for some targets, accumulated over parts of their sources.

A target with more neighbours than memory holds is no special case here: its sources arrive part by part, in any number
of parts. SAGE and GCN add up weighted rows. GAT keeps, per target and head, the largest score so far, the sum of the
exponentials and the weighted sum, both relative to it, and rescales them when a larger score comes (online softmax:
Milakov and Gimelshein 2018, algorithm 3), so that one pass over the rows is enough.

Equals :meth:`outcrop.nn.models.Model.layer` on the whole block, apart from the order in which floats are added. Where
the layer maps to a narrower width, rows are mapped before they are added up, because accumulators are then narrower.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outcrop.errors import ArgumentError
from outcrop.nn.convs import GATConv, GCNConv, GINConv, GINEConv, SAGEConv, TransformerConv
from outcrop.nn.sparse import bag_sum

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
        by_head = self._weight.view(heads, width, -1)
        self._vectors = torch.einsum("hco,shc->sho", by_head, torch.cat([conv.att_src, conv.att_dst]))
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


def layer_sums(conv: nn.Module, targets: int, step: int) -> LayerSums:
    """Returns accumulators for ``targets`` targets of a layer, on its device. Without autograd: call under ``no_grad``.

    Args:
        step: Targets of a part that are worked on at a time: bounds the memory of intermediate results.
    """
    if isinstance(conv, SAGEConv):
        return _SageSums(conv, targets, step)
    if isinstance(conv, GCNConv):
        return _GcnSums(conv, targets, step)
    if isinstance(conv, GATConv):
        return _GatSums(conv, targets, step)
    raise ArgumentError(f"layer {type(conv).__name__} is unknown; known: SAGEConv, GCNConv, GATConv")


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
    return _SageSums if isinstance(conv, SAGEConv) else _GcnSums if isinstance(conv, GCNConv) else _GatSums


def cost(conv: nn.Module) -> AccumulatorBytes:
    """Returns what :func:`layer_sums` takes at the most, where ``step`` and the targets that are finished at a time are
    at most the rows of a part.
    """
    in_dim, out_dim = widths(conv)
    if isinstance(conv, GATConv):
        width, heads = conv.out_channels * conv.heads, conv.heads
        row = _FLOAT * (width + heads + max(2 * width + 6 * heads, 2 * out_dim))
        return AccumulatorBytes(_FLOAT * (width + 3 * heads), row, 16 * heads + 16)
    width = min(in_dim, out_dim)
    mapped = out_dim if _map_first(conv) else 0
    row = _FLOAT * (mapped + max(2 * width, width + out_dim))
    return AccumulatorBytes(_FLOAT * (width + 1), row, 8 if isinstance(conv, GCNConv) else 0)
