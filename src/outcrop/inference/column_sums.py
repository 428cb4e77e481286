"""The output of one layer from whole neighbor lists, some columns of all sources in memory at a time.

What a layer adds up is, column by column, a weighted sum of what the sources give: it can be computed for any columns
alone, and the results are the same bits whatever the columns are cut into. :mod:`outcrop.inference.columns` goes over
the lists once for each cut.

Equals :meth:`outcrop.nn.models.Model.layer` on the whole graph, apart from the order in which floats are added. Sources
are added in C++ (src/core/infer), one after the other in the order of a list: rows that a table lacks in the caches are
fetched while those before them are added.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn

import outcrop._core as _core
from outcrop.inference.layer_sums import gat_vectors, widths
from outcrop.nn.convs import GATConv, GCNConv, GINConv, SAGEConv


@dataclass(frozen=True)
class SourceColumns:
    """Holds columns of what all sources give.

    Attributes:
        columns: float32 [num_nodes, columns + heads]: behind the columns of a source the scores that it has as a
            source, of the heads that the columns are of, so that one place in memory has all that an edge needs.
        workers: Threads that add up.
        target_scores: Returns, float32 [heads, n], the scores as targets of nodes from the first to the one behind the
            last; None where the layer has none.
        scale: float32 [num_nodes], 1 / sqrt(degree + 1), for GCN only.
    """

    columns: Tensor
    workers: _core.WorkerPool
    target_scores: Callable[[int, int], Tensor] | None = None
    scale: Tensor | None = None


class ColumnSums(ABC):
    """Computes a layer column by column.

    Attributes:
        width: Columns of what a source gives.
        heads: Heads that have scores; 0: there are no scores.
        own_width: Columns of what a target keeps of its own row until the end; 0: nothing.
        own_is_input: Whether that is the input row itself; else what :meth:`own` makes of it.
        gives_input: Whether sources give the input row itself.
        drops_loops: Whether edges from a node to itself are left out: the layer makes its own.
    """

    width: int
    heads = own_width = 0
    own_is_input = gives_input = drops_loops = False

    def cuts(self, most: int) -> tuple[tuple[int, int], ...]:
        """Cuts the columns into ranges of at most ``most``, as few as can be, all about as wide."""
        count = -(-self.width // most)
        return tuple((self.width * i // count, self.width * (i + 1) // count) for i in range(count))

    def heads_of(self, begin: int, end: int) -> range:
        """Returns the heads that columns ``begin:end`` are of."""
        return range(0)

    @abstractmethod
    def source(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Returns what sources give, float32 [n, width], of their rows and, for GCN only, their ``scale`` [n]."""

    def given(self, x: Tensor, scale: Tensor | None, cuts: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Returns what :attr:`SourceColumns.columns` has of rows, for each of ``cuts`` float32 [n, columns + heads]."""
        source = self.source(x, scale)
        return [source[:, begin:end] for begin, end in cuts]

    def target_scores(self, x: Tensor) -> Tensor:
        """Returns, float32 [heads, n], the scores of rows as targets."""
        return x.new_empty(0, len(x))

    def own(self, x: Tensor) -> Tensor:
        """Returns what targets keep of their own rows, float32 [n, own_width]."""
        return x

    @abstractmethod
    def begin(self, of: SourceColumns, first: int, count: int) -> Any:
        """Returns accumulators for targets ``first : first + count``."""

    def add(self, sums: Any, of: SourceColumns, first: int, rowptr: Tensor, col: Tensor) -> None:
        """Adds edges of the targets from ``first`` on: CSR, int32, sources numbered as they are in the graph. Leaves
        out loops where they are dropped.
        """
        self._add_rows(sums, of, first, rowptr, col)

    def _add_rows(self, sums: Tensor, of: SourceColumns, first: int, rowptr: Tensor, col: Tensor) -> None:
        """Computes ``sums[t] += of.columns[col[rowptr[t] : rowptr[t + 1]]].sum(0)``."""
        lists = rowptr.numpy(), col.numpy()
        _core.add_sources(of.workers, of.columns.numpy(), first, *lists, self.drops_loops, sums.numpy())

    @abstractmethod
    def end(self, sums: Any, of: SourceColumns, first: int) -> Tensor:
        """Returns what came for the targets, float32 [count, columns]; uses the accumulators up."""

    @abstractmethod
    def finish(self, sums: Tensor, own: Tensor | None) -> Tensor:
        """Returns the output of sums of all columns [n, width], which it uses up, float32 [n, out_dim]."""


@final
class _Sage(ColumnSums):
    def __init__(self, conv: SAGEConv):
        self._left, self._right, self._bias = conv.lin_l.weight, conv.lin_r.weight, conv.lin_l.bias
        in_dim, out_dim = widths(conv)
        self._maps_first = out_dim < in_dim
        self.width = self.own_width = min(in_dim, out_dim)
        self.own_is_input = self.gives_input = not self._maps_first

    def source(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return x @ self._left.t() if self._maps_first else x

    def own(self, x: Tensor) -> Tensor:
        return torch.addmm(self._bias, x, self._right.t()) if self._maps_first else x

    def begin(self, of: SourceColumns, first: int, count: int) -> list[Tensor]:
        return [of.columns.new_zeros(count, of.columns.shape[1]), of.columns.new_zeros(count)]

    def add(self, sums: list[Tensor], of: SourceColumns, first: int, rowptr: Tensor, col: Tensor) -> None:
        self._add_rows(sums[0], of, first, rowptr, col)
        sums[1] += rowptr.diff()

    def end(self, sums: list[Tensor], of: SourceColumns, first: int) -> Tensor:
        return sums[0].mul_(sums[1].clamp_(min=1).reciprocal_().unsqueeze(1))

    def finish(self, sums: Tensor, own: Tensor | None) -> Tensor:
        assert own is not None
        if self._maps_first:
            return sums.add_(own)
        return torch.addmm(self._bias, own, self._right.t()).addmm_(sums, self._left.t())


@final
class _Gcn(ColumnSums):
    """Scales what sources give before it is added up: of an edge only the row is read."""

    drops_loops = True

    def __init__(self, conv: GCNConv):
        self._weight, self._bias = conv.lin.weight, conv.bias
        in_dim, out_dim = widths(conv)
        self._maps_first = out_dim < in_dim
        self.width = min(in_dim, out_dim)

    def source(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        assert scale is not None
        by_row = scale.unsqueeze(1)
        return (x @ self._weight.t()).mul_(by_row) if self._maps_first else x * by_row

    def begin(self, of: SourceColumns, first: int, count: int) -> Tensor:
        return of.columns.new_zeros(count, of.columns.shape[1])

    def end(self, sums: Tensor, of: SourceColumns, first: int) -> Tensor:
        assert of.scale is not None
        own = slice(first, first + len(sums))
        return sums.add_(of.columns[own]).mul_(of.scale[own].unsqueeze(1))

    def finish(self, sums: Tensor, own: Tensor | None) -> Tensor:
        return sums.add_(self._bias) if self._maps_first else torch.addmm(self._bias, sums, self._weight.t())


@final
class _Gin(ColumnSums):
    gives_input = True

    def __init__(self, conv: GINConv):
        network: Any = conv.nn
        self._network, self._own = network, 1 + conv.eps
        self.width = network[0].in_features

    def source(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return x

    def begin(self, of: SourceColumns, first: int, count: int) -> Tensor:
        return of.columns.new_zeros(count, of.columns.shape[1])

    def end(self, sums: Tensor, of: SourceColumns, first: int) -> Tensor:
        return sums.add_(of.columns[first : first + len(sums)] * self._own)

    def finish(self, sums: Tensor, own: Tensor | None) -> Tensor:
        return self._network(sums)


@dataclass(frozen=True)
class _SoftmaxTotals:
    """Holds what came for some targets, as an online softmax keeps it (:mod:`outcrop.inference.layer_sums`).

    Attributes:
        largest, mass: float32 [targets, heads] each: the largest score, and the sum of exp(score - largest).
        total: float32 [targets, columns]: the sum of rows, each times exp(score - largest).
    """

    largest: Tensor
    mass: Tensor
    total: Tensor


@final
class _Gat(ColumnSums):
    """Cuts within heads, or between them: all columns of a cut have the softmaxes of few heads."""

    drops_loops = True

    def __init__(self, conv: GATConv):
        assert conv.lin is not None
        self._conv, self._weight, self._vectors = conv, conv.lin.weight, gat_vectors(conv)
        self.heads, self._each = conv.heads, conv.out_channels
        self.width = self.heads * self._each

    def cuts(self, most: int) -> tuple[tuple[int, int], ...]:
        if most >= self._each:
            count = -(-self.heads // (most // self._each))
            heads = [self.heads * i // count for i in range(count + 1)]
            return tuple((a * self._each, b * self._each) for a, b in pairwise(heads))
        count = -(-self._each // most)
        bounds = [self._each * i // count for i in range(count + 1)]
        return tuple(
            (head * self._each + a, head * self._each + b)
            for head in range(self.heads)
            for a, b in pairwise(bounds)
        )

    def heads_of(self, begin: int, end: int) -> range:
        return range(begin // self._each, -(-end // self._each))

    def source(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return x @ self._weight.t()

    def given(self, x: Tensor, scale: Tensor | None, cuts: Sequence[tuple[int, int]]) -> list[Tensor]:
        source, scores = self.source(x), x @ self._vectors[0].t()
        heads = [self.heads_of(begin, end) for begin, end in cuts]
        return [
            torch.cat([source[:, begin:end], scores[:, of.start : of.stop]], 1)
            for (begin, end), of in zip(cuts, heads, strict=True)
        ]

    def target_scores(self, x: Tensor) -> Tensor:
        return (x @ self._vectors[1].t()).t().contiguous()

    def begin(self, of: SourceColumns, first: int, count: int) -> _SoftmaxTotals:
        """Begins with the edge of each target from itself."""
        assert of.target_scores is not None
        target, columns = of.target_scores(first, first + count), of.columns
        scores, mass = columns.new_empty(count, len(target)), columns.new_empty(count, len(target))
        sums = _SoftmaxTotals(scores, mass, columns.new_empty(count, columns.shape[1] - len(target)))
        _core.begin_softmax(
            of.workers,
            columns.numpy(),
            first,
            target.numpy(),
            self._conv.negative_slope,
            sums.largest.numpy(),
            sums.mass.numpy(),
            sums.total.numpy(),
        )
        return sums

    def add(self, sums: _SoftmaxTotals, of: SourceColumns, first: int, rowptr: Tensor, col: Tensor) -> None:
        assert of.target_scores is not None
        _core.add_sources_by_softmax(
            of.workers,
            of.columns.numpy(),
            first,
            rowptr.numpy(),
            col.numpy(),
            self.drops_loops,
            of.target_scores(first, first + len(rowptr) - 1).numpy(),
            self._conv.negative_slope,
            sums.largest.numpy(),
            sums.mass.numpy(),
            sums.total.numpy(),
        )

    def end(self, sums: _SoftmaxTotals, of: SourceColumns, first: int) -> Tensor:
        by_head = sums.total.view(*sums.mass.shape, -1)
        return by_head.div_(sums.mass.unsqueeze(2)).flatten(1)

    def finish(self, sums: Tensor, own: Tensor | None) -> Tensor:
        conv = self._conv
        out = sums if conv.concat else sums.view(len(sums), self.heads, self._each).mean(1)
        return out + conv.bias


_COLUMN_SUMS: dict[type[nn.Module], Any] = {SAGEConv: _Sage, GCNConv: _Gcn, GINConv: _Gin, GATConv: _Gat}


def column_sums(conv: nn.Module) -> ColumnSums | None:
    """Returns what computes a layer column by column; None of a layer whose columns need each other. Call under
    ``no_grad``.
    """
    kind = next((_COLUMN_SUMS[kind] for kind in _COLUMN_SUMS if isinstance(conv, kind)), None)
    return None if kind is None else kind(conv)
