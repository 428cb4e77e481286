"""Losses of positive edges against their negatives, with gradients by scores.

``positive`` [n] are scores of edges, ``negative`` [n, k] those of edges with one end replaced; -inf marks a negative
that is left out. Each returns the sum over edges, float64 [] on the device of the scores (nothing waits for a GPU),
writes the gradient by ``negative`` over it and that by ``positive`` to ``to_positive``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from outcrop.errors import ArgumentError

Tensor = torch.Tensor
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def softmax(positive: Tensor, negative: Tensor, to_positive: Tensor) -> Tensor:
    """Computes the cross-entropy of each edge among itself and its negatives.

    Equals ``cross_entropy(cat([positive[:, None], negative], 1), zeros(n), reduction="sum")``. Legend's equation 1 is
    ``(negative.logsumexp(1) - positive).sum()``, without the edge itself in the sum: its gradient by ``positive`` is -1
    however well an edge scores already, so scores grow without bound, and it is infinite where no negative counts.
    """
    largest = torch.maximum(negative.amax(1), positive)
    negative.sub_(largest[:, None]).exp_()
    mine = (positive - largest).exp()
    total = negative.sum(1) + mine
    loss = (total.log() + largest - positive).sum()
    negative.div_(total[:, None])
    torch.sub(mine / total, 1, out=to_positive)
    return loss.double()


def logistic(positive: Tensor, negative: Tensor, to_positive: Tensor) -> Tensor:
    """Takes each edge and the mean of its negatives as decisions.

    Equals ``softplus(-positive).sum() + softplus(negative).mean(1).sum()``, the mean over negatives that count.
    """
    count = (negative > -torch.inf).sum(1, keepdim=True).clamp_min(1)
    softplus = torch.nn.functional.softplus
    loss = softplus(-positive).sum() + (softplus(negative) / count).sum()
    negative.sigmoid_().div_(count)
    torch.neg(torch.sigmoid(-positive), out=to_positive)
    return loss.double()


def margin(positive: Tensor, negative: Tensor, to_positive: Tensor, width: float) -> Tensor:
    """Each edge should score ``width`` more than each of its negatives.

    Equals ``relu(width + negative - positive[:, None]).mean(1).sum()``, the mean over negatives that count.
    """
    count = (negative > -torch.inf).sum(1, keepdim=True).clamp_min(1)
    over = (negative - positive[:, None] + width).clamp_min_(0)
    loss = (over / count).sum()
    torch.div((over > 0).to(negative.dtype), count, out=negative)
    torch.neg(negative.sum(1), out=to_positive)
    return loss.double()


LOSSES = ("softmax", "logistic", "margin")


def loss_function(name: str, width: float) -> Loss:
    """Returns the loss called ``name``; ``width`` is that of ``margin``."""
    if name not in LOSSES:
        raise ArgumentError(f"loss {name!r} is unknown; known: {', '.join(LOSSES)}")
    return {"softmax": softmax, "logistic": logistic, "margin": partial(margin, width=width)}[name]
