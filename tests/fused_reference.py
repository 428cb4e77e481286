"""The softmax loss over shared negatives by torch's autograd in float64, chunk by chunk, and inputs for it."""

from __future__ import annotations

import torch

Inputs = tuple[torch.Tensor, ...]
SHAPES = [  # queries, queries of a chunk, candidates of a chunk, floats
    (1, 1, 1, 1),
    (3, 3, 5, 7),
    (32, 32, 32, 16),
    (40, 33, 65, 20),
    (70, 34, 33, 100),
    (50, 20, 10, 130),
    (40, 31, 10, 300),
    (40, 100, 8, 8),
    (0, 3, 4, 8),
    (4, 4, 0, 8),
]


def inputs_of(n: int, chunk: int, k: int, dim: int) -> Inputs:
    """Queries, positive, candidates, wanted and ids."""
    torch.manual_seed(n)
    queries, candidates = torch.randn(n, dim) / 4, torch.randn(max(-(-n // chunk), 1), k, dim)
    ids = torch.randint(0, 9, candidates.shape[:2])
    return queries, torch.randn(n), candidates, torch.randint(0, 9, (n,)), ids


def autograd(inputs: Inputs, chunk: int) -> Inputs:
    """Loss and gradients by queries, positive and candidates."""
    queries, positive, candidates = (x.double().requires_grad_() for x in inputs[:3])
    wanted, ids = inputs[3:]
    losses = [queries.sum() * 0 + candidates.sum() * 0]
    for number in range(-(-len(queries) // chunk)):
        part = slice(number * chunk, (number + 1) * chunk)
        scores = queries[part] @ candidates[number].T
        scores = scores.masked_fill(wanted[part, None] == ids[number], -torch.inf)
        logits = torch.cat([positive[part, None], scores], 1)
        first = torch.zeros(len(logits), dtype=torch.int64)
        losses.append(torch.nn.functional.cross_entropy(logits, first, reduction="sum"))
    loss = torch.stack([*losses, positive.sum() * 0]).sum()
    return loss.detach(), *torch.autograd.grad(loss, (queries, positive, candidates))
