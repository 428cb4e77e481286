"""The normalisation of GCN where edges have weights: degrees are sums of weights."""

from __future__ import annotations

import torch
from torch import Tensor

from outcrop.errors import ArgumentError
from outcrop.nn.sparse import Block, without_loops


def sums_within(block: Block) -> Tensor:
    """Returns what the weights of the edges of ``block`` come to for its targets, float64 [num_targets, 2]: sum of
    those from other nodes, and weight of the edge from the node itself, 1 where there is none (of several the last).
    """
    weights, loop = _weights(block).double(), block.is_loop
    sums = torch.zeros(block.num_targets, 2, dtype=torch.float64, device=weights.device)
    sums[:, 1] = 1.0
    row = block.row.long()
    sums[:, 0].index_add_(0, row[~loop], weights[~loop])
    sums[row[loop], 1] = weights[loop]
    return sums


def weighted_gcn(
    block: Block, dtype: torch.dtype, degree: Tensor | None = None, sums: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns weights of the symmetric normalisation, as :func:`outcrop.nn.layers.gcn_weights` does, of edges that have
    weights.

    Let D be a node's sum of weights in the whole graph with that of its loop, which is 1 where the graph has none. Edge
    (j, i) of weight w counts ``w * degree_i / sampled_i / sqrt(D_i D_j)``, the loop ``loop_i / D_i``: the sampled sum
    estimates the whole graph's without bias where neighbours are drawn uniformly, and is GCNConv on the whole graph
    with ``edge_weight`` where all were taken. Without ``sums`` degrees are those inside the block.

    Args:
        degree: In-neighbours in the whole graph, without loops; integers [num_sources].
        sums: What weights come to in the whole graph, float64 [num_sources, 2] as of :func:`sums_within`.
    """
    targets, loop = block.num_targets, block.is_loop
    if (degree is None) != (sums is None):
        raise ArgumentError("degrees and sums of weights are those of one graph: give both, or neither")
    if degree is None or sums is None:
        inside = sums_within(block)
        total = torch.ones(block.num_sources, dtype=torch.float64, device=inside.device)
        total[:targets], loops = inside.sum(1), inside[:, 1]
        ratio = torch.ones_like(loops)
    else:
        total, loops = sums[: block.num_sources].sum(1), sums[:targets, 1]
        ratio = degree[:targets].double() / without_loops(block).clamp(min=1)
    inverse = total.rsqrt()
    inverse.masked_fill_(inverse.isinf(), 0.0)  # a node whose edges weigh nothing
    by_target = inverse[:targets] * ratio
    edges = inverse[block.col] * by_target[block.row] * _weights(block)
    by_loop = inverse[:targets].square() * loops
    return edges.masked_fill_(loop, 0.0).to(dtype), by_loop.to(dtype).unsqueeze_(1)


def _weights(block: Block) -> Tensor:
    assert block.edge_weight is not None
    return block.edge_weight.detach()
