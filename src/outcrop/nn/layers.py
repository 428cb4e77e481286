"""Graph layers on CSR blocks: the mathematics and parameters of torch_geometric's layers, without its messages.

Each layer is one autograd function with a written-out backward pass. Gradients of the input are made only where they
are wanted (never for the features of a batch). A layer is linear in its input apart from attention weights, so the
sparse and the dense product may swap: :func:`aggregate_first` decides by operation count, from shapes alone.

Under ``torch.autocast`` dense products take their factors in its dtype; sums over neighbours, attention weights and all
that lies between layers stay float32 (torch's own layers leave sums and softmax in float32, too).
"""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outcrop.errors import ArgumentError
from outcrop.nn.convs import GATConv, GCNConv, SAGEConv
from outcrop.nn.sparse import (
    Block,
    as_input,
    bag_sum,
    check_block,
    sampled_dot,
    spmm,
    spmm_transposed,
    without_loops,
)
from outcrop.nn.weighted_gcn import weighted_gcn

# A gathered multiply-add takes about as long as eight of a dense product (measured with AVX-512 on two cores).
SPARSE_COST = 8


def aggregate_first(block: Block, in_dim: int, out_dim: int, heads: int = 1) -> bool:
    """Tells whether (A x) W costs at most as much as A (x W).

    Args:
        out_dim: Width of the output, all heads together.
        heads: Different matrices A over the same edges, each for its share of ``out_dim``.
    """
    aggregate = SPARSE_COST * block.num_edges * in_dim * heads + block.num_targets * in_dim * out_dim
    transform = SPARSE_COST * block.num_edges * out_dim + block.num_sources * in_dim * out_dim
    return aggregate <= transform


@dataclass(frozen=True)
class Products:
    """Gives dense products whose factors are rounded to ``dtype`` and whose results are float32; None: as they are."""

    dtype: torch.dtype | None = None

    def mm(self, left: Tensor, right: Tensor) -> Tensor:
        """Equals ``(left.to(dtype) @ right.to(dtype)).to(left.dtype)``."""
        if self.dtype is None:
            return left @ right
        return (left.to(self.dtype) @ right.to(self.dtype)).to(left.dtype)

    def addmm(self, bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return torch.addmm(bias, left, right) if self.dtype is None else self.mm(left, right).add_(bias)

    def addmm_(self, out: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return out.addmm_(left, right) if self.dtype is None else out.add_(self.mm(left, right))


@contextmanager
def products(x: Tensor) -> Iterator[Products]:
    """Yields the products that ``torch.autocast`` asks for; within the block nothing else is cast."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        yield Products()
        return
    dtype = torch.get_autocast_dtype(kind)
    with torch.autocast(kind, enabled=False):
        yield Products(dtype)


class _Sage(torch.autograd.Function):
    """Computes out = mean_A(x) Wl' + b + x[:T] Wr'."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        left: Tensor,
        bias: Tensor,
        right: Tensor,
        block: Block,
        first: bool,
        dense: Products,
    ) -> Tensor:
        scale = block.counts.clamp(min=1).to(x.dtype).reciprocal_().unsqueeze(1)
        mean = spmm(block, x if first else dense.mm(x, left.t())).mul_(scale)
        out = dense.addmm(bias, mean, left.t()) if first else mean.add_(bias)
        dense.addmm_(out, x[: block.num_targets], right.t())
        ctx.block, ctx.first, ctx.dense = block, first, dense
        ctx.save_for_backward(x, left, right, scale, mean if first else None)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, left, right, scale, mean = ctx.saved_tensors
        block, dense, grad = ctx.block, ctx.dense, grad.contiguous()
        target = x[: block.num_targets]
        grad_x = inner = None
        if ctx.first:
            grad_left = dense.mm(grad.t(), mean)
            if ctx.needs_input_grad[0]:
                grad_x = spmm_transposed(block, dense.mm(grad, left).mul_(scale))
        else:
            inner = spmm_transposed(block, grad * scale)
            grad_left = dense.mm(inner.t(), x)
            if ctx.needs_input_grad[0]:
                grad_x = dense.mm(inner, left)
        if grad_x is not None:
            dense.addmm_(grad_x[: block.num_targets], grad, right)
        return grad_x, grad_left, grad.sum(0), dense.mm(grad.t(), target), None, None, None


def sage(conv: SAGEConv, x: Tensor, block: Block) -> Tensor:
    """Equals ``conv((x, x[:T]), edge_index)``: mean over the sampled in-neighbours, and the target itself."""
    check_block(block, x)
    left, right = conv.lin_l.weight, conv.lin_r.weight
    first = aggregate_first(block, left.shape[1], left.shape[0])
    with products(x) as dense:
        return _Sage.apply(x, left, conv.lin_l.bias, right, block, first, dense)


class _Gcn(torch.autograd.Function):
    """Computes out = (A x + d * x[:T]) W' + b for edge weights A and loop weights d."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        edges: Tensor,
        loops: Tensor,
        block: Block,
        first: bool,
        dense: Products,
    ) -> Tensor:
        inner = x if first else dense.mm(x, weight.t())
        total = spmm(block, inner, edges).addcmul_(inner[: block.num_targets], loops)
        ctx.block, ctx.first, ctx.dense = block, first, dense
        ctx.save_for_backward(None if first else x, weight, edges, loops, total if first else None)
        return dense.addmm(bias, total, weight.t()) if first else total.add_(bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, edges, loops, total = ctx.saved_tensors
        block, dense, grad, grad_x = ctx.block, ctx.dense, grad.contiguous(), None
        if ctx.first:
            grad_weight = dense.mm(grad.t(), total)
            if ctx.needs_input_grad[0]:
                grad_x = _spread(block, dense.mm(grad, weight), edges, loops)
        else:
            inner = _spread(block, grad, edges, loops)
            grad_weight = dense.mm(inner.t(), x)
            if ctx.needs_input_grad[0]:
                grad_x = dense.mm(inner, weight)
        return grad_x, grad_weight, grad.sum(0), None, None, None, None, None


def _spread(block: Block, grad: Tensor, edges: Tensor, loops: Tensor) -> Tensor:
    out = spmm_transposed(block, grad, edges)
    out[: block.num_targets].addcmul_(grad, loops)
    return out


def gcn_weights(block: Block, dtype: torch.dtype, degree: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns weights of the symmetric normalisation: (edges [num_edges], loops [num_targets, 1]).

    Every node gets one loop; loops among the edges count as this one. With ``degree`` (in the whole graph, without
    loops; integers [num_sources]) edge (j, i) weighs ``degree_i / sampled_i / sqrt((degree_i + 1)(degree_j + 1))``:
    the sampled sum estimates the whole graph's without bias, and where all neighbours were taken the layer is GCNConv
    on the whole graph exactly. Without it degrees are those inside the block, as GCNConv computes on the trimmed
    block: a source that is no target then has degree 0, whatever it has in the graph.
    """
    loop = block.is_loop
    sampled = without_loops(block)
    if degree is None:
        inverse = torch.ones(block.num_sources, dtype=dtype, device=sampled.device)
        inverse[: block.num_targets] = (sampled + 1).to(dtype).rsqrt_()
        by_target = inverse[: block.num_targets]
    else:
        inverse = (degree[: block.num_sources] + 1).to(dtype).rsqrt_()
        ratio = degree[: block.num_targets].to(dtype) / sampled.clamp(min=1)
        by_target = inverse[: block.num_targets] * ratio
    edges = inverse[block.col] * by_target[block.row]
    return edges.masked_fill_(loop, 0.0), inverse[: block.num_targets].square().unsqueeze_(1)


def gcn(
    conv: GCNConv, x: Tensor, block: Block, degree: Tensor | None = None, sums: Tensor | None = None
) -> Tensor:
    """Equals ``conv(x, edge_index, edge_weight)[:T]`` on the block where ``degree`` is None; else see
    :func:`gcn_weights`, and :func:`outcrop.nn.weighted_gcn.weighted_gcn` for edges that have weights.
    """
    check_block(block, x)
    weight = conv.lin.weight
    if block.edge_weight is None:
        edges, loops = gcn_weights(block, x.dtype, degree)
    else:
        edges, loops = weighted_gcn(block, x.dtype, degree, sums)
    first = aggregate_first(block, weight.shape[1], weight.shape[0])
    with products(x) as dense:
        return _Gcn.apply(x, weight, conv.bias, edges, loops, block, first, dense)


class _Attention(torch.autograd.Function):
    """Computes the softmax over each target's edges and its loop, per head: logits -> weights, in place.

    edges: [heads, num_edges]; loops: [heads, num_targets].
    """

    @staticmethod
    def forward(ctx: Any, edges: Tensor, loops: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        ptr = by_head(block.rowptr, block.num_edges, len(edges)).long()
        row = block.row
        top = torch.maximum(_segment(edges, "max", ptr, loops), loops)
        edges = (edges - top.index_select(1, row)).exp_()
        loops = (loops - top).exp_()
        inverse = (_segment(edges, "sum", ptr, loops) + loops).reciprocal_()
        edges.mul_(inverse.index_select(1, row))
        loops.mul_(inverse)
        ctx.block, ctx.ptr = block, ptr
        ctx.save_for_backward(edges, loops)
        return edges, loops

    @staticmethod
    def backward(ctx: Any, grad_edges: Tensor, grad_loops: Tensor) -> tuple[Tensor | None, ...]:
        edges, loops = ctx.saved_tensors
        grad_edges, grad_loops = grad_edges * edges, grad_loops * loops
        total = _segment(grad_edges, "sum", ctx.ptr, loops) + grad_loops
        grad_edges.addcmul_(edges, total.index_select(1, ctx.block.row), value=-1)
        return grad_edges, grad_loops.addcmul_(loops, total, value=-1), None


class EdgeSoftmax:
    """Computes the softmax over all edges of each target, per head, without autograd: logits -> weights.

    Blocks of several edge types to the same targets share one softmax: maxima and sums are taken type by type. Equals
    ``torch_geometric.utils.softmax`` of all logits side by side.
    """

    def __init__(self, blocks: Sequence[Block], heads: int):
        self.blocks = blocks
        self._shape = heads, blocks[0].num_targets
        self._ptrs = [by_head(block.rowptr, block.num_edges, heads).long() for block in blocks]

    def weights(self, logits: Sequence[Tensor]) -> list[Tensor]:
        """Returns [heads, num_edges] of each block for logits of the same shape."""
        top = logits[0].new_full(self._shape, float("-inf"))
        for values, ptr in zip(logits, self._ptrs, strict=True):
            top = torch.maximum(top, _segment(values, "max", ptr, top))
        weights = [(values - self._spread(top, at)).exp_() for at, values in enumerate(logits)]
        inverse = self._sum(weights).reciprocal_()  # of targets without edges it is infinite, and never read
        return [values.mul_(self._spread(inverse, at)) for at, values in enumerate(weights)]

    def gradients(self, weights: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        """Returns the gradients of the logits, given the weights and their gradients."""
        products = [grad * values for grad, values in zip(grads, weights, strict=True)]
        total = self._sum(products)
        return [
            product.addcmul_(values, self._spread(total, at), value=-1)
            for at, (product, values) in enumerate(zip(products, weights, strict=True))
        ]

    def _sum(self, values: Sequence[Tensor]) -> Tensor:
        """Adds up over the edges of each target, [heads, num_targets]."""
        total = values[0].new_zeros(self._shape)
        for one, ptr in zip(values, self._ptrs, strict=True):
            total += _segment(one, "sum", ptr, total)
        return total

    def _spread(self, values: Tensor, at: int) -> Tensor:
        """Returns what each edge of block ``at`` has of its target."""
        return values.index_select(1, self.blocks[at].row)


class _EdgeSoftmax(torch.autograd.Function):
    """Computes the softmax over the edges of each target of one block, per head: logits -> weights."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, block: Block) -> Tensor:
        ctx.softmax = EdgeSoftmax([block], len(logits))
        (weights,) = ctx.softmax.weights([logits])
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (found,) = ctx.softmax.gradients(ctx.saved_tensors, [grad])
        return found, None


def by_head(rowptr: Tensor, num_edges: int, heads: int) -> Tensor:
    """Returns the row pointers of ``heads`` copies of a CSR pattern one under the other."""
    steps = torch.arange(heads, dtype=rowptr.dtype, device=rowptr.device).unsqueeze_(1) * num_edges
    return torch.cat([(rowptr[:-1] + steps).view(-1), rowptr[-1:] + steps[-1]])


def _segment(values: Tensor, reduce: str, ptr: Tensor, like: Tensor) -> Tensor:
    if values.numel() == 0:
        return torch.full_like(like, float("-inf") if reduce == "max" else 0.0)
    return torch.segment_reduce(values.reshape(-1), reduce, offsets=ptr, unsafe=True).view_as(like)


class HeadPattern:
    """Locates the rows of all heads for products over the edges of a block at once.

    Entries are (head, edge), targets (head, target). Rows of sources are [num_sources, D], shared by the heads, or
    [heads, num_sources, D].
    """

    def __init__(self, block: Block, heads: int, shared: bool):
        self.block, self.heads, self.shared = block, heads, shared
        self._ptr = by_head(block.rowptr, block.num_edges, heads)
        if shared:
            self._col = block.col.repeat(heads)
        else:
            starts = torch.arange(heads, dtype=block.col.dtype, device=block.col.device) * block.num_sources
            self._col = (block.col + starts.unsqueeze_(1)).view(-1)

    def sum(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Returns out[h, t] = sum over the edges e of t of weights[h, e] * rows[h or shared][col[e]]."""
        width = rows.shape[-1]
        flat = bag_sum(rows.reshape(-1, width), self._ptr, self._col, weights.reshape(-1))
        return flat.view(self.heads, self.block.num_targets, width)

    def dot(self, targets: Tensor, rows: Tensor) -> Tensor:
        """Returns out[h, e] = targets[h, target of e] @ rows[h or shared][col[e]]."""
        width = rows.shape[-1]
        flat = sampled_dot(self._ptr, self._col, targets.reshape(-1, width), rows.reshape(-1, width))
        return flat.view(self.heads, self.block.num_edges)

    def sum_to_sources(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Returns the sum over the edges of a source of weights[h, e] * targets[h, target of e], shaped as its rows."""
        rowptr, row, order = self.block.transposed
        weights, (heads, count, width) = weights.index_select(1, order), targets.shape
        starts = torch.arange(heads, dtype=row.dtype, device=row.device).unsqueeze_(1) * count
        flat = targets.reshape(heads * count, width)
        if self.shared:
            return bag_sum(flat, rowptr * heads, (row + starts).t().reshape(-1), weights.t().reshape(-1))
        ptr = by_head(rowptr, self.block.num_edges, heads)
        return bag_sum(flat, ptr, (row + starts).view(-1), weights.view(-1)).view(heads, -1, width)


class _WeightedSum(torch.autograd.Function):
    """Computes out[h, t] = sum over edges of weights[h, e] * x[h or shared][col[e]] + loops[h, t] * x[h or shared][t].

    x: [num_sources, D], shared by the heads, or [heads, num_sources, D]. loops: None where targets are other nodes.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, edges: Tensor, loops: Tensor | None, block: Block) -> Tensor:
        ctx.pattern = HeadPattern(block, len(edges), shared=x.dim() == 2)
        out = ctx.pattern.sum(x, edges)
        if loops is not None:
            out.addcmul_(x[..., : block.num_targets, :], loops.unsqueeze(2))
        ctx.save_for_backward(x, edges, loops)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, edges, loops = ctx.saved_tensors
        pattern, grad = ctx.pattern, grad.contiguous()
        targets = pattern.block.num_targets
        grad_edges, grad_loops, grad_x = pattern.dot(grad, x), None, None
        if loops is not None:
            grad_loops = (
                torch.einsum("htd,td->ht", grad, x[:targets])
                if pattern.shared
                else torch.einsum("htd,htd->ht", grad, x[:, :targets])
            )
        if ctx.needs_input_grad[0]:
            grad_x = pattern.sum_to_sources(grad, edges)
            if loops is not None and pattern.shared:
                grad_x[:targets].add_(torch.einsum("htd,ht->td", grad, loops))
            elif loops is not None:
                grad_x[:, :targets].addcmul_(grad, loops.unsqueeze(2))
        return grad_x, grad_edges, grad_loops, None


def edge_softmax(logits: Tensor, block: Block) -> Tensor:
    """Returns the softmax of logits [heads, num_edges] over the edges of each target, shaped as they are."""
    return _EdgeSoftmax.apply(logits, block)


def weighted_sum(x: Tensor, weights: tuple[Tensor, Tensor | None], block: Block) -> Tensor:
    """Returns the sums of the rows of sources by the weights of the edges, [heads, num_targets, D].

    Args:
        x: [num_sources, D], shared by the heads, or [heads, num_sources, D].
        weights: Of edges, [heads, num_edges]; and of what each target takes of itself, [heads, num_targets], or None.
    """
    return _WeightedSum.apply(x, *weights, block)


def gat(conv: GATConv, x: Tensor, block: Block, target: Tensor | None = None) -> Tensor:
    """Equals ``conv((x, x[:T]), edge_index, edge_attr)``; heads side by side, or their mean without ``conv.concat``.

    Features of edges are ``block.edge_rows``, where the layer takes some (``edge_dim``).

    Args:
        target: Rows of the targets where they are of another type, [at least T, in of targets]: equals
            ``conv((x, target[:T]), edge_index)`` of a layer that has a weight for either end and adds no loops.
    """
    check_block(block, x)
    with products(x) as dense:
        if target is None:
            return _gat(conv, x, block, dense)
        return _gat_between(conv, x, target[: block.num_targets], block, dense)


def _gat(conv: GATConv, x: Tensor, block: Block, dense: Products) -> Tensor:
    heads, width, targets = conv.heads, conv.out_channels, block.num_targets
    assert conv.lin is not None
    weight = conv.lin.weight.view(heads, width, -1)
    # The score of node j is a . (W x_j) = (W' a) . x_j: two narrow products instead of the wide one.
    vectors = torch.einsum("hco,shc->sho", weight, torch.cat([conv.att_src, conv.att_dst]))
    source = vectors[0] @ x.t()
    target = vectors[1] @ x[:targets].t()
    edges = source.index_select(1, block.col) + target.index_select(1, block.row)
    loops = source[:, :targets] + target
    if conv.lin_edge is not None:
        rows, vector = edge_rows(block, conv.edge_dim, x.dtype), _edge_vectors(conv)
        edges = edges + vector @ rows.t()
        # A loop has the mean of the rows of the edges to its node, other loops left out.
        scale = without_loops(block).clamp(min=1).to(x.dtype).reciprocal_()
        others = (~block.is_loop).to(x.dtype) * scale.index_select(0, block.row)
        loops = loops + vector @ spmm(block.by_edge, rows, others).t()
    edges, loops = (F.leaky_relu(logits, conv.negative_slope) for logits in (edges, loops))
    if bool(block.is_loop.any()):
        edges = edges.masked_fill(block.is_loop, float("-inf"))
    edges, loops = _Attention.apply(edges, loops, block)
    return _combined(conv, x, weight, (edges, loops), block, dense)


def _gat_between(conv: GATConv, x: Tensor, target: Tensor, block: Block, dense: Products) -> Tensor:
    assert conv.lin_src is not None
    assert conv.lin_dst is not None
    weight = conv.lin_src.weight.view(conv.heads, conv.out_channels, -1)
    to_target = conv.lin_dst.weight.view(conv.heads, conv.out_channels, -1)
    source = torch.einsum("hco,hc->ho", weight, conv.att_src[0]) @ x.t()
    own = torch.einsum("hco,hc->ho", to_target, conv.att_dst[0]) @ target.t()
    logits = source.index_select(1, block.col) + own.index_select(1, block.row)
    if conv.lin_edge is not None:
        logits = logits + _edge_vectors(conv) @ edge_rows(block, conv.edge_dim, x.dtype).t()
    edges = edge_softmax(F.leaky_relu(logits, conv.negative_slope), block)
    return _combined(conv, x, weight, (edges, None), block, dense)


def _edge_vectors(conv: GATConv) -> Tensor:
    """Returns what the rows of edges are multiplied by for their part of the logits, [heads, edge_dim]."""
    lin: Any = conv.lin_edge
    return torch.einsum("hco,hc->ho", lin.weight.view(conv.heads, conv.out_channels, -1), conv.att_edge[0])


def edge_rows(block: Block, dim: int | None, dtype: torch.dtype) -> Tensor:
    """Returns the features of the edges of ``block``, [num_edges, dim], in ``dtype``.

    Raises:
        ArgumentError: The block has none, or others.
    """
    rows = block.edge_rows
    shape = "none" if rows is None else f"{list(rows.shape)}"
    if rows is None or rows.shape != (block.num_edges, dim):
        raise ArgumentError(
            f"the layer takes features of edges, [{block.num_edges}, {dim}] for this batch, and was given {shape}: "
            "load batches with edge_rows=True, of a graph whose edges have features of that width"
        )
    return as_input(rows, dtype)


def _combined(
    conv: GATConv,
    x: Tensor,
    weight: Tensor,
    attention: tuple[Tensor, Tensor | None],
    block: Block,
    dense: Products,
) -> Tensor:
    """Returns what ``attention``, the weights of edges and loops, takes of the sources: heads side by side."""
    heads, width, _ = weight.shape
    if aggregate_first(block, weight.shape[2], heads * width, heads):
        out = dense.mm(weighted_sum(x, attention, block), weight.transpose(1, 2))
    else:
        out = weighted_sum(dense.mm(x, weight.transpose(1, 2)), attention, block)
    if not conv.concat:
        return out.mean(0) + conv.bias
    return out.permute(1, 0, 2).reshape(block.num_targets, heads * width) + conv.bias
