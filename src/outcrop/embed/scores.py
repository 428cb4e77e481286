"""Score functions: how plausible an edge is, from the vectors of its ends and of its relation.

Each is two functions: ``combine`` makes a query of one end and the relation, ``compare`` scores a query against
candidates for the other end. That is what lets all candidates of a chunk share one matrix product (Lerer et al. 2019,
PyTorch-BigGraph, section 4.3). Vectors have ``dim`` floats; complex ones are ``dim / 2`` real parts, then as many
imaginary ones.

| name | score of (s, r, t) | source |
| --- | --- | --- |
| ``dot`` | <s, t> | |
| ``distmult`` | <s r, t> | Yang et al. 2015 |
| ``complex`` | Re <s r, conj t> | Trouillon et al. 2016 |
| ``transe-l1``, ``transe-l2`` | -|s + r - t| | Bordes et al. 2013 |
| ``rotate`` | -sum of |s exp(i r) - t| over complex coordinates | Sun et al. 2019 |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import outcrop._core as _core
from outcrop.embed.similarity import L1, L2, Compare, Dot, Modulus
from outcrop.errors import ArgumentError

Tensor = torch.Tensor
SIDES = ("target", "source")  # which end of an edge is looked for


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    re, im = x.chunk(2, dim=-1)
    return re, im


def _product(a: Tensor, b: Tensor, conjugate_b: bool) -> Tensor:
    (ar, ai), (br, bi) = _halves(a), _halves(b)
    bi = -bi if conjugate_b else bi
    return torch.cat([ar * br - ai * bi, ar * bi + ai * br], -1)


def _complex(known: Tensor, relation: Tensor, side: str) -> Tensor:
    # Re <s r, conj t> = Re <t conj r, conj s>
    return _product(known, relation, side == "source")


def _rotate(known: Tensor, relation: Tensor, side: str) -> Tensor:
    # |s e - t| = |t conj e - s|, as |e| = 1
    turn = torch.cat([relation.cos(), relation.sin()], -1)
    return _product(known, turn, side == "source")


def _translate(known: Tensor, relation: Tensor, side: str) -> Tensor:
    return known + relation if side == "target" else known - relation


@dataclass(frozen=True)
class Score:
    """Has ``combine(known [n, dim], relation [n, width] or None, side) -> query [n, dim]``, differentiable by torch.

    ``side`` says which end is looked for: ``target`` where ``known`` is the source, ``source`` where it is the target.
    """

    name: str
    combine: Callable[[Tensor, Tensor, str], Tensor]
    compare: Compare
    complex_numbers: bool = False
    has_relations: bool = True
    half_relations: bool = False  # one angle for a complex coordinate
    product: _core.ProductKind | None = None  # whose queries core/embed/queries.h makes, too

    def relation_width(self, dim: int) -> int:
        return 0 if not self.has_relations else dim // 2 if self.half_relations else dim

    def query(self, known: Tensor, relation: Tensor | None, side: str) -> Tensor:
        return known if relation is None else self.combine(known, relation, side)


SCORES = {
    score.name: score
    for score in (
        Score(
            "dot",
            lambda known, relation, side: known,
            Dot(),
            has_relations=False,
            product=_core.ProductKind.dot,
        ),
        Score(
            "distmult", lambda known, relation, side: known * relation, Dot(), product=_core.ProductKind.real
        ),
        Score("complex", _complex, Dot(), complex_numbers=True, product=_core.ProductKind.complex),
        Score("transe-l1", _translate, L1()),
        Score("transe-l2", _translate, L2()),
        Score("rotate", _rotate, Modulus(), complex_numbers=True, half_relations=True),
    )
}


def score_function(name: str, dim: int) -> Score:
    """Returns the score function ``name`` for vectors of ``dim``.

    Raises:
        ArgumentError: No such function, or it needs an even ``dim``.
    """
    if name not in SCORES:
        raise ArgumentError(f"model {name!r} is unknown; known: {', '.join(SCORES)}")
    score = SCORES[name]
    if score.complex_numbers and dim % 2:
        raise ArgumentError(f"model {name} has complex numbers: its dim {dim} must be even")
    return score
