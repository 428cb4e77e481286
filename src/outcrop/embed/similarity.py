"""Comparing queries with candidates: scores of all pairs, and the gradients of queries and candidates.

Every comparison equals a line of torch, given in its docstring, whose gradients autograd would give; no more than a few
arrays of queries x candidates are held at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, final

import torch

Tensor = torch.Tensor
TILE_FLOATS = 1 << 18  # of differences that are held at a time
_TINY = 1e-12  # of squared distances: no gradient where query and candidate are the same


class Compare(Protocol):
    @property
    def needs_scores(self) -> bool: ...
    def scores(self, queries: Tensor, candidates: Tensor, out: Tensor) -> None:
        """Fills ``out`` [n, k] for queries [n, dim] and candidates [k, dim]."""
        ...

    def gradients(
        self,
        queries: Tensor,
        candidates: Tensor,
        scores: Tensor,
        weights: Tensor,
        to_queries: Tensor,
        to_candidates: Tensor,
    ) -> None:
        """Computes the gradients of ``sum(weights * scores)``: written to ``to_queries``, added to ``to_candidates``.

        Spoils ``weights``.

        ``weights`` [n, k] may be the memory of ``scores``, unless ``needs_scores``.
        """
        ...

    def pairs(self, queries: Tensor, others: Tensor) -> Tensor:
        """Returns [n]: the score of query i and row i of ``others``, differentiable by torch."""
        ...


@final
class Dot:
    """Scores ``queries @ candidates.T``."""

    needs_scores = False

    def scores(self, queries: Tensor, candidates: Tensor, out: Tensor) -> None:
        torch.mm(queries, candidates.T, out=out)

    def gradients(
        self,
        queries: Tensor,
        candidates: Tensor,
        scores: Tensor,
        weights: Tensor,
        to_queries: Tensor,
        to_candidates: Tensor,
    ) -> None:
        torch.mm(weights, candidates, out=to_queries)
        to_candidates.addmm_(weights.T, queries)

    def pairs(self, queries: Tensor, others: Tensor) -> Tensor:
        return (queries * others).sum(-1)


@final
class L2:
    """Scores ``-torch.cdist(queries, candidates)``."""

    needs_scores = True

    def scores(self, queries: Tensor, candidates: Tensor, out: Tensor) -> None:
        torch.mm(queries, candidates.T, out=out)
        out.mul_(-2).add_((queries**2).sum(1, keepdim=True)).add_((candidates**2).sum(1))
        out.clamp_min_(_TINY).sqrt_().neg_()

    def gradients(
        self,
        queries: Tensor,
        candidates: Tensor,
        scores: Tensor,
        weights: Tensor,
        to_queries: Tensor,
        to_candidates: Tensor,
    ) -> None:
        # d(-|q - c|) / dq = (q - c) / score
        weights.div_(scores)
        torch.mul(weights.sum(1, keepdim=True), queries, out=to_queries)
        to_queries.addmm_(weights, candidates, alpha=-1)
        to_candidates.addcmul_(weights.sum(0)[:, None], candidates).addmm_(weights.T, queries, alpha=-1)

    def pairs(self, queries: Tensor, others: Tensor) -> Tensor:
        return -((queries - others) ** 2).sum(-1).clamp_min(_TINY).sqrt()


@final
class L1:
    """Scores ``-torch.cdist(queries, candidates, p=1)``."""

    needs_scores = False

    def scores(self, queries: Tensor, candidates: Tensor, out: Tensor) -> None:
        torch.neg(torch.cdist(queries, candidates, p=1), out=out)

    def gradients(
        self,
        queries: Tensor,
        candidates: Tensor,
        scores: Tensor,
        weights: Tensor,
        to_queries: Tensor,
        to_candidates: Tensor,
    ) -> None:
        with torch.enable_grad():
            q, c = queries.detach().requires_grad_(), candidates.detach().requires_grad_()
            distances = torch.cdist(q, c, p=1)
        to_q, to_c = torch.autograd.grad(distances, (q, c), weights.neg_())
        to_queries.copy_(to_q)
        to_candidates += to_c

    def pairs(self, queries: Tensor, others: Tensor) -> Tensor:
        return -(queries - others).abs().sum(-1)


@final
class Modulus:
    """Scores ``-(queries[:, None] - candidates).abs().sum(-1)`` of complex tensors."""

    needs_scores = False

    def scores(self, queries: Tensor, candidates: Tensor, out: Tensor) -> None:
        for begin, part in _tiles(queries, candidates):
            re, im = _differences(part, candidates)
            torch.neg(torch.hypot(re, im).sum(-1), out=out[begin : begin + len(part)])

    def gradients(
        self,
        queries: Tensor,
        candidates: Tensor,
        scores: Tensor,
        weights: Tensor,
        to_queries: Tensor,
        to_candidates: Tensor,
    ) -> None:
        for begin, part in _tiles(queries, candidates):
            stop = begin + len(part)
            re, im = _differences(part, candidates)
            scale = (
                torch.hypot(re, im).clamp_min_(_TINY**0.5).reciprocal_().mul_(weights[begin:stop, :, None])
            )
            both = torch.cat(
                [re.mul_(scale), im.mul_(scale)], -1
            )  # of the candidates; minus that of the queries
            torch.sum(both, 1, out=to_queries[begin:stop]).neg_()
            to_candidates += both.sum(0)

    def pairs(self, queries: Tensor, others: Tensor) -> Tensor:
        re, im = (queries - others).chunk(2, -1)
        return -(re**2 + im**2).clamp_min(_TINY).sqrt().sum(-1)


def _tiles(queries: Tensor, candidates: Tensor) -> Iterator[tuple[int, Tensor]]:
    step = max(TILE_FLOATS // max(candidates.numel(), 1), 1)
    for begin in range(0, len(queries), step):
        yield begin, queries[begin : begin + step]


def _differences(queries: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Returns [n, k, dim / 2] twice: real and imaginary parts."""
    (qr, qi), (cr, ci) = queries.chunk(2, -1), candidates.chunk(2, -1)
    return qr[:, None] - cr, qi[:, None] - ci
