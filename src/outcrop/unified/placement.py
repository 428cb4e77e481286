"""Where an operation on unified tensors is computed, and what comes out: PyTorch-Direct, Table 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Side:
    """Says where an operation runs. ``compute``: cpu or cuda. ``output``: cuda or unified; a unified one with the hint
    ``propagated``.
    """

    compute: str
    output: str
    propagated: bool = False


_ON_GPU = Side("cuda", "cuda")


def side_of(hints: Sequence[bool], *, cpu: bool, cuda: bool) -> Side:
    """Looks up the cell of the table.

    Args:
        hints: ``propagatedToCUDA`` of each unified operand, at least one.
        cpu: A CPU tensor that is no scalar is among the others.
        cuda: A GPU tensor is among the others.
    """
    if cpu:
        return Side("cuda" if any(hints) else "cpu", "unified")
    if all(hints):
        return _ON_GPU
    if cuda:
        return Side("cuda", "unified", propagated=True)
    return Side("cuda" if any(hints) else "cpu", "unified")
