"""Layers of graphs with node and edge types, on the CSR block of each edge type: no graph of all types is built.

As in :mod:`outcrop.nn.layers` each is one autograd function with a written-out backward pass, for all types at once, so
that what several edge types give to the gradient of one node type is added in place.
"""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from outcrop.nn.layers import EdgeSoftmax, Products, aggregate_first, by_head, products
from outcrop.nn.sparse import Block, bag_sum, check_block, sampled_dot, spmm, spmm_transposed


@dataclass(frozen=True)
class Mean:
    """Describes what one edge type gives to its targets: the mean over their sources, times ``weight``.

    Attributes:
        source, target: Numbers of the node types.
        block: The edges.
        weight: [out, in].
    """

    source: int
    target: int
    block: Block
    weight: Tensor

    @property
    def aggregates_first(self) -> bool:
        """Tells whether the mean is taken before the product with ``weight``."""
        return aggregate_first(self.block, self.weight.shape[1], self.weight.shape[0])


@dataclass(frozen=True)
class Root:
    """Describes what a target gives to itself: its own row times ``weight``, and ``bias``.

    Attributes:
        num_targets: How many nodes of the type are targets: the first ones.
        weight: [out, in].
        bias: [out].
    """

    num_targets: int
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class _Plan:
    """Holds what is no tensor; node types stand by their places among those whose rows are given.

    Attributes:
        num_types: How many node types have rows.
        roots: (type, number of targets) of each root.
        means: (type of the sources, place of its root, block, whether to aggregate first) of each edge type.
    """

    num_types: int
    roots: list[tuple[int, int]]
    means: list[tuple[int, int, Block, bool]]
    dense: Products

    def split(self, tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], ...]:
        """Returns (hidden, weights of roots, biases of roots, weights of means, what follows)."""
        ends = list(accumulate((self.num_types, len(self.roots), len(self.roots), len(self.means))))
        return tuple(tensors[begin:end] for begin, end in pairwise([0, *ends, len(tensors)]))


def means(
    hidden: Mapping[int, Tensor], parts: Sequence[Mean], roots: Mapping[int, Root]
) -> dict[int, Tensor]:
    """Computes for each node type t of ``roots``, of whose nodes the first T are targets,
    ``hidden[t][:T] @ root.weight.T + root.bias + sum(mean over sources @ part.weight.T for parts whose target is t)``.

    A target without sources has mean 0.

    Args:
        hidden: [num_nodes, in] of each node type that is source or target.
        parts: Their targets are among ``roots``.
    """
    for part in parts:
        check_block(part.block, hidden[part.source])
    rows = {node_type: number for number, node_type in enumerate(hidden)}
    places = {node_type: number for number, node_type in enumerate(roots)}
    with products(next(iter(hidden.values()))) as dense:
        plan = _Plan(
            len(hidden),
            [(rows[node_type], root.num_targets) for node_type, root in roots.items()],
            [(rows[part.source], places[part.target], part.block, part.aggregates_first) for part in parts],
            dense,
        )
        found = _Means.apply(
            plan,
            *hidden.values(),
            *(root.weight for root in roots.values()),
            *(root.bias for root in roots.values()),
            *(part.weight for part in parts),
        )
    return dict(zip(roots, found, strict=True))


def _plus_product(dense: Products, out: Tensor | None, bias: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Returns ``out + rows @ weight.T``, in place; where nothing is there yet ``bias + rows @ weight.T``."""
    return dense.addmm(bias, rows, weight.t()) if out is None else dense.addmm_(out, rows, weight.t())


class _Means(torch.autograd.Function):
    """Computes :func:`means` of the tensors that :meth:`_Plan.split` takes apart."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> tuple[Tensor, ...]:
        hidden, roots, biases, weights, _ = plan.split(tensors)
        # In the order of layers.sage, which has one edge type: means of neighbors and the bias, then the targets' own.
        outs: list[Tensor | None] = [None] * len(plan.roots)
        kept: list[Tensor | None] = []
        for (source, place, block, first), weight in zip(plan.means, weights, strict=True):
            mean, out = None, outs[place]
            if first:
                mean = spmm(block, hidden[source])
                mean.mul_(_scale(block, mean))
                outs[place] = _plus_product(plan.dense, out, biases[place], mean, weight)
            else:
                mapped = spmm(block, plan.dense.mm(hidden[source], weight.t()))
                scale = _scale(block, mapped)
                outs[place] = (
                    mapped.mul_(scale).add_(biases[place]) if out is None else out.addcmul_(mapped, scale)
                )
            kept.append(mean)
        ctx.plan = plan
        ctx.save_for_backward(*tensors, *kept)
        return tuple(
            _plus_product(plan.dense, out, bias, hidden[node_type][:targets], root)
            for out, bias, root, (node_type, targets) in zip(outs, biases, roots, plan.roots, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        plan: _Plan = ctx.plan
        dense, grads = plan.dense, tuple(grad.contiguous() for grad in grads)
        hidden, roots, _, weights, kept = plan.split(ctx.saved_tensors)
        to_hidden = Gradients(hidden, ctx.needs_input_grad[1:])
        to_weights = []
        for (source, place, block, first), weight, mean in zip(plan.means, weights, kept, strict=True):
            grad, wanted = grads[place], to_hidden.wanted[source]
            if first:
                to_weights.append(dense.mm(grad.t(), mean))
                inner = dense.mm(grad, weight) if wanted else None
                if inner is not None:
                    to_hidden.add(source, spmm_transposed(block, inner.mul_(_scale(block, inner))))
            else:
                inner = spmm_transposed(block, grad * _scale(block, grad))
                to_weights.append(dense.mm(inner.t(), hidden[source]))
                if wanted:
                    to_hidden.add(source, dense.mm(inner, weight))
        to_roots = []
        for (node_type, targets), root, grad in zip(plan.roots, roots, grads, strict=True):
            to_roots.append(dense.mm(grad.t(), hidden[node_type][:targets]))
            if to_hidden.wanted[node_type]:
                dense.addmm_(to_hidden.at(node_type)[:targets], grad, root)
        return None, *to_hidden.found, *to_roots, *(grad.sum(0) for grad in grads), *to_weights


class Gradients:
    """Adds up the gradients of tensors that several edge types share, where they are wanted.

    Attributes:
        wanted: Whether each tensor has one.
        found: What was added until now; None where nothing was.
    """

    def __init__(self, of: Sequence[Tensor], needed: Sequence[bool]):
        self._of = of
        self.wanted = tuple(needed[: len(of)])
        self.found: list[Tensor | None] = [None] * len(of)

    def add(self, number: int, grad: Tensor) -> None:
        """Adds ``grad``, which nobody else may keep, to what tensor ``number`` has."""
        found = self.found[number]
        self.found[number] = grad if found is None else found.add_(grad)

    def at(self, number: int) -> Tensor:
        """Returns the sum for tensor ``number``, to be added to in place; zeros where there was none."""
        found = self.found[number]
        if found is None:
            self.found[number] = found = torch.zeros_like(self._of[number])
        return found


def _scale(block: Block, like: Tensor) -> Tensor:
    """Returns [num_targets, 1]: one over the edges of each target."""
    return block.counts.clamp(min=1).to(like.dtype).reciprocal_().unsqueeze(1)


@dataclass(frozen=True)
class Attention:
    """Describes how targets look at the sources of one edge type.

    Attributes:
        source: Number of the node type.
        block: The edges.
        queries: [heads, num_targets, width], mapped for the edge type.
    """

    source: int
    block: Block
    queries: Tensor


def attend(parts: Sequence[Attention], keys_values: Mapping[int, Tensor]) -> tuple[Tensor, ...]:
    """Computes for each part ``sum(weight of edge * values of its source)``, [heads, num_targets, width].

    The logit of an edge is the query of its target times the key of its source, head by head. One softmax over the
    edges of all parts gives the weights.

    Args:
        parts: Edge types that lead to the same targets.
        keys_values: [num_nodes, 2 * heads * width] of each source type: the keys of all heads, then the values.
    """
    for part in parts:
        check_block(part.block, keys_values[part.source])
    used = sorted({part.source for part in parts})
    plan = [(used.index(part.source), part.block) for part in parts]
    return _Attend.apply(plan, *(keys_values[source] for source in used), *(part.queries for part in parts))


class _Pattern:
    """Locates queries, keys and values of one edge type for products over all heads at once.

    Rows of the pattern are (head, target). Keys and values are rows of [num_nodes * 2 * heads, width]: of each node the
    keys of all heads, then the values.
    """

    def __init__(self, block: Block, heads: int):
        self.block, self.heads = block, heads
        self.rowptr = by_head(block.rowptr, block.num_edges, heads)
        head = torch.arange(heads, dtype=block.col.dtype, device=block.col.device).unsqueeze_(1)
        self.keys = (block.col * (2 * heads) + head).view(-1)
        self.values = self.keys + heads

    def to_sources(self, queries: Tensor, grad: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
        """Returns the gradient of keys and values, [num_nodes, 2 * heads * width].

        Args:
            queries, grad: [heads, num_targets, width], queries and gradients of the sums.
            logits, weights: [heads, num_edges], gradients of the logits, and the weights.
        """
        rowptr, row, order = self.block.transposed
        slots, (heads, targets, width) = 2 * self.heads, queries.shape
        rows = torch.cat([queries.reshape(heads * targets, width), grad.view(heads * targets, width)])
        # Row (node, slot) of the result adds up the edges from the node: of all rows, those of one node stand together.
        slot = torch.arange(slots, dtype=row.dtype, device=row.device).unsqueeze_(1)
        counts, first = rowptr.diff(), rowptr[:-1]
        begin = (first * slots).unsqueeze(1) + counts.unsqueeze(
            1
        ) * slot.t()  # of (node, slot) among the entries
        node = torch.repeat_interleave(counts, output_size=self.block.num_edges)
        within = torch.arange(self.block.num_edges, dtype=row.dtype, device=row.device) - first[node]
        place = (begin.t()[:, node] + within).view(-1).long()  # of (slot, edge by source) among the entries
        found = bag_sum(
            rows,
            torch.cat([begin.view(-1), rowptr[-1:] * slots]),
            _scattered(place, (row + slot * targets).view(-1)),
            _scattered(place, torch.cat([logits, weights]).index_select(1, order).view(-1)),
        )
        return found.view(self.block.num_sources, slots * width)


def _scattered(place: Tensor, values: Tensor) -> Tensor:
    """Returns ``out`` with ``out[place] = values``."""
    return torch.empty_like(values).scatter_(0, place, values)


class _Attend(torch.autograd.Function):
    """Computes :func:`attend`; tensors are keys and values of the types, then the queries of each part."""

    @staticmethod
    def forward(ctx: Any, plan: list[tuple[int, Block]], *tensors: Tensor) -> tuple[Tensor, ...]:
        kept, queries = tensors[: len(tensors) - len(plan)], tensors[len(tensors) - len(plan) :]
        heads, targets, width = queries[0].shape
        rows = [one.view(one.shape[0] * 2 * heads, width) for one in kept]
        patterns = [_Pattern(block, heads) for _, block in plan]
        ctx.softmax = EdgeSoftmax([block for _, block in plan], heads)
        weights = ctx.softmax.weights(
            [
                sampled_dot(at.rowptr, at.keys, query.reshape(heads * targets, width), rows[source]).view(
                    heads, -1
                )
                for (source, _), at, query in zip(plan, patterns, queries, strict=True)
            ]
        )
        ctx.plan, ctx.patterns = plan, patterns
        ctx.save_for_backward(*kept, *queries, *weights)
        return tuple(
            bag_sum(rows[source], at.rowptr, at.values, weight.reshape(-1)).view(heads, targets, width)
            for (source, _), at, weight in zip(plan, patterns, weights, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        plan, saved, count = ctx.plan, ctx.saved_tensors, len(ctx.plan)
        kept, queries, weights = saved[: -2 * count], saved[-2 * count : -count], saved[-count:]
        heads, targets, width = queries[0].shape
        rows = [one.view(one.shape[0] * 2 * heads, width) for one in kept]
        grads = tuple(grad.contiguous() for grad in grads)
        to_logits = ctx.softmax.gradients(
            weights,
            [
                sampled_dot(at.rowptr, at.values, grad.view(heads * targets, width), rows[source]).view(
                    heads, -1
                )
                for (source, _), at, grad in zip(plan, ctx.patterns, grads, strict=True)
            ],
        )
        to_kept, to_queries = Gradients(kept, ctx.needs_input_grad[1:]), []
        for (source, _), at, query, weight, grad, logits in zip(
            plan, ctx.patterns, queries, weights, grads, to_logits, strict=True
        ):
            to_queries.append(
                bag_sum(rows[source], at.rowptr, at.keys, logits.reshape(-1)).view(heads, targets, width)
            )
            if to_kept.wanted[source]:
                to_kept.add(source, at.to_sources(query, grad, logits, weight))
        return None, *to_kept.found, *to_queries
