"""Every cell of PyTorch-Direct's Table 3, written down by hand."""

from __future__ import annotations

import pytest

from outcrop.unified.placement import Side, side_of

PROPAGATES, MIXED, STAYS = (True, True), (True, False), (False, False)
CPU, CUDA = Side("cpu", "unified"), Side("cuda", "cuda")
TO_UNIFIED, TO_PROPAGATED = Side("cuda", "unified"), Side("cuda", "unified", propagated=True)


@pytest.mark.parametrize(
    ("hints", "cpu", "cuda", "expected"),
    [
        # at least one operand is a CPU tensor that is no scalar
        (PROPAGATES, True, False, TO_UNIFIED),
        (PROPAGATES, True, True, TO_UNIFIED),
        (MIXED, True, False, TO_UNIFIED),
        (MIXED, True, True, TO_UNIFIED),
        (STAYS, True, False, CPU),
        (STAYS, True, True, CPU),
        # otherwise, at least one is a GPU tensor
        (PROPAGATES, False, True, CUDA),
        (MIXED, False, True, TO_PROPAGATED),
        (STAYS, False, True, TO_PROPAGATED),
        # the others are CPU scalars, or there are none
        (PROPAGATES, False, False, CUDA),
        (MIXED, False, False, TO_UNIFIED),
        (STAYS, False, False, CPU),
    ],
)
def test_table_3(hints, cpu, cuda, expected):
    assert side_of(hints, cpu=cpu, cuda=cuda) == expected
    assert side_of(hints[:1] if hints[0] == hints[-1] else hints[::-1], cpu=cpu, cuda=cuda) == expected
