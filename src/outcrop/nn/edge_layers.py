"""Graph layers that take features of edges: GINE and the graph transformer, on CSR blocks.

As in :mod:`outcrop.nn.layers`, parameters and results are those of torch_geometric's layers. What a layer makes of the
row of an edge by a linear map is applied where there is least of it: logits of a transformer take ``(W' q) . e`` for
``q . (W e)``, and a weighted sum of ``W e`` is ``W`` times that of ``e``. So no row of an edge is widened. Only GINE,
which has a ReLU for each edge, computes as many rows as there are edges, some edges at a time.
"""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from outcrop.nn.convs import GINConv, GINEConv, TransformerConv
from outcrop.nn.layers import (
    HeadPattern,
    Products,
    aggregate_first,
    edge_rows,
    edge_softmax,
    products,
    weighted_sum,
)
from outcrop.nn.sparse import Block, bag_sum, check_block, spmm, spmm_transposed

_CHUNK_EDGES = 4096  # of GINE, so that their rows stay in the cache of a core


class _Dot(torch.autograd.Function):
    """Computes out[h, e] = targets[h, target of e] @ x[h or shared][col[e]]."""

    @staticmethod
    def forward(ctx: Any, targets: Tensor, x: Tensor, block: Block) -> Tensor:
        ctx.pattern = HeadPattern(block, len(targets), shared=x.dim() == 2)
        ctx.save_for_backward(targets, x)
        return ctx.pattern.dot(targets, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        targets, x = ctx.saved_tensors
        grad = grad.contiguous()
        to_targets = ctx.pattern.sum(x, grad) if ctx.needs_input_grad[0] else None
        to_x = ctx.pattern.sum_to_sources(targets, grad) if ctx.needs_input_grad[1] else None
        return to_targets, to_x, None


def transformer(conv: TransformerConv, x: Tensor, block: Block, target: Tensor | None = None) -> Tensor:
    """Equals ``conv((x, x[:T]), edge_index, edge_attr)`` of a layer without ``beta``.

    Features of edges are ``block.edge_rows``, where the layer takes some (``edge_dim``).

    Args:
        target: Rows of the targets where they are of another type, [at least T, in of targets].
    """
    check_block(block, x)
    heads, width = conv.heads, conv.out_channels
    own = (x if target is None else target)[: block.num_targets]
    rows = None if conv.lin_edge is None else edge_rows(block, conv.edge_dim or 0, x.dtype)
    with products(x) as dense:
        queries = _linear(conv.lin_query, own, dense).view(-1, heads, width).transpose(0, 1)
        first = aggregate_first(block, x.shape[1], heads * width, heads)
        logits = _logits(conv.lin_key, queries, x, block, dense, first)
        if rows is not None:
            logits = logits + _logits(conv.lin_edge, queries, rows, block.by_edge, dense, True)
        weights = edge_softmax(logits / math.sqrt(width), block)
        out = _values(conv.lin_value, weights, x, block, dense, first)
        if rows is not None:
            out = out + _values(conv.lin_edge, weights, rows, block.by_edge, dense, True)
        found = out.mean(0) if not conv.concat else out.transpose(0, 1).reshape(-1, heads * width)
        return found + _linear(conv.lin_skip, own, dense) if conv.root_weight else found


def _linear(lin: Any, x: Tensor, dense: Products) -> Tensor:
    return dense.mm(x, lin.weight.t()) if lin.bias is None else dense.addmm(lin.bias, x, lin.weight.t())


def _by_head(lin: Any, queries_or_weights: Tensor) -> Tensor:
    """Returns the weight of a linear map head by head, [heads, width of a head, in]."""
    heads = len(queries_or_weights)
    return lin.weight.view(heads, len(lin.weight) // heads, -1)


def _logits(lin: Any, queries: Tensor, x: Tensor, block: Block, dense: Products, first: bool) -> Tensor:
    """Returns queries times what ``lin`` makes of the sources, [heads, num_edges]."""
    weight = _by_head(lin, queries)
    if first:
        logits = _Dot.apply(dense.mm(queries, weight), x, block)
    else:
        logits = _Dot.apply(queries, dense.mm(x, weight.transpose(1, 2)), block)
    if lin.bias is None:
        return logits
    same = torch.einsum("htc,hc->ht", queries, lin.bias.view(len(queries), -1))
    return logits + same.index_select(1, block.row)


def _values(lin: Any, weights: Tensor, x: Tensor, block: Block, dense: Products, first: bool) -> Tensor:
    """Returns the weighted sum of what ``lin`` makes of the sources, [heads, num_targets, width of a head]."""
    weight = _by_head(lin, weights).transpose(1, 2)
    if first:
        out = dense.mm(weighted_sum(x, (weights, None), block), weight)
    else:
        out = weighted_sum(dense.mm(x, weight), (weights, None), block)
    if lin.bias is None:
        return out
    # The weights of a target add up to one, where it has edges.
    some = (block.counts > 0).to(out.dtype).view(1, -1, 1)
    return out + some * lin.bias.view(len(weights), 1, -1)


class _Messages(torch.autograd.Function):
    """Computes out[t] = sum over the edges e of t of relu(x[col[e]] + rows[e] W' + b)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, rows: Tensor, block: Block, dense: Products
    ) -> Tensor:
        out = x.new_empty(block.num_targets, x.shape[1])
        positive = x.new_empty(block.num_edges, x.shape[1], dtype=torch.bool)
        for targets, edges in _chunks(block):
            part = _relu_messages(x, weight, bias, rows, block, edges, dense)
            torch.gt(part, 0, out=positive[edges])
            ptr = block.rowptr[targets.start : targets.stop + 1] - edges.start
            each = torch.arange(len(part), dtype=block.col.dtype, device=x.device)
            out[targets] = bag_sum(part, ptr, each)
        ctx.block, ctx.dense = block, dense
        ctx.save_for_backward(weight, rows, positive)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, rows, positive = ctx.saved_tensors
        block, dense = ctx.block, ctx.dense
        to_weight, to_bias = torch.zeros_like(weight), weight.new_zeros(len(weight))
        through = torch.empty_like(positive, dtype=grad.dtype) if ctx.needs_input_grad[0] else None
        for _, edges in _chunks(block):
            part = grad.index_select(0, block.row[edges]).mul_(positive[edges])
            to_weight += dense.mm(part.t(), rows[edges])
            to_bias += part.sum(0)
            if through is not None:
                through[edges] = part
        to_x = None
        if through is not None:
            rowptr, _, order = block.transposed
            to_x = bag_sum(through, rowptr, order.int())
        return to_x, to_weight, to_bias, None, None, None


def _relu_messages(
    x: Tensor, weight: Tensor, bias: Tensor, rows: Tensor, block: Block, edges: slice, dense: Products
) -> Tensor:
    part = dense.addmm(bias, rows[edges], weight.t())
    return part.add_(x.index_select(0, block.col[edges])).relu_()


def _chunks(block: Block) -> Iterator[tuple[slice, slice]]:
    """Yields targets whose edges are about :data:`_CHUNK_EDGES`, and these edges."""
    ends = block.rowptr.long()
    marks = torch.arange(0, block.num_edges + _CHUNK_EDGES, _CHUNK_EDGES, device=ends.device)
    targets = torch.unique_consecutive(torch.searchsorted(ends, marks).clamp_(max=block.num_targets)).tolist()
    if not targets or targets[0] != 0:
        targets = [0, *targets]
    if targets[-1] != block.num_targets:
        targets.append(block.num_targets)
    bounds = ends[torch.tensor(targets, device=ends.device)].tolist()
    for number in range(len(targets) - 1):
        yield slice(*targets[number : number + 2]), slice(*bounds[number : number + 2])


def gine(conv: GINEConv | GINConv, x: Tensor, block: Block, target: Tensor | None = None) -> Tensor:
    """Equals ``conv((x, x[:T]), edge_index, edge_attr)``: its network of ``(1 + eps) x_i`` and the sum over the edges.

    A GINEConv adds up relu(x_j + what it makes of ``block.edge_rows``), a GINConv the x_j.

    Args:
        target: Rows of the targets where they are of another type, [at least T, in].
    """
    check_block(block, x)
    own = (x if target is None else target)[: block.num_targets]
    with products(x) as dense:
        if isinstance(conv, GINConv):
            total = _Sum.apply(x, block)
        else:
            lin: Any = conv.lin
            rows = edge_rows(block, lin.in_channels, x.dtype)
            total = _Messages.apply(x, lin.weight, lin.bias, rows, block, dense)
        network: Any = conv.nn
        hidden = total + (1 + conv.eps) * own
        for module in network if isinstance(network, nn.Sequential) else (network,):
            hidden = _linear(module, hidden, dense) if isinstance(module, nn.Linear) else module(hidden)
    return hidden


class _Sum(torch.autograd.Function):
    """Computes out[t] = sum over the edges e of t of x[col[e]]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> Tensor:
        ctx.block = block
        return spmm(block, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return spmm_transposed(ctx.block, grad.contiguous()), None
