"""What is trained when, and where negatives come from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from outcrop.embed import schedule as schedules
from outcrop.embed.negatives import Pool
from outcrop.embed.numbering import Division
from outcrop.embed.orders import ORDERS, make_order
from outcrop.embed.schedule import Schedule


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("p", "c"), [(1, 3), (2, 2), (4, 3), (9, 3), (12, 4), (16, 8)])
def test_every_edge_is_trained_once_an_epoch_among_partitions_that_are_there(order, p, c, monkeypatch):
    monkeypatch.setattr(schedules, "PIECE_EDGES", 40)
    counts = np.random.default_rng(p).integers(0, 100, p * p)
    counts[:: p + 2] = 0  # empty buckets too
    starts = np.concatenate([[0], np.cumsum(counts)])
    made = make_order(order, p, min(c, p))
    schedule = Schedule(made, starts, seed=5)
    held = set(schedule.first_state(0))
    for epoch in range(3):
        trained = Counter()
        assert sorted(schedule.parts(epoch)) == list(range(p))
        if len(made.states[0]) == len(made.states[-1]):
            assert held == set(schedule.first_state(epoch))  # nothing is loaded between epochs
        held = set(schedule.first_state(epoch))
        coming: tuple[int, ...] | None = None
        for number, unit in enumerate(schedule.units(epoch)):
            assert unit.number == number
            bucket = unit.source * p + unit.target
            if unit.first < unit.stop:  # a state may have nothing to train
                assert starts[bucket] <= unit.first <= unit.stop <= starts[bucket + 1]
            assert unit.stop - unit.first <= 40
            trained.update(range(unit.first, unit.stop))
            if unit.swap and not unit.bare:
                assert {*unit.swap[0]} <= held
                held -= {*unit.swap[0]}
                coming = unit.swap[1]
            assert {unit.source, unit.target} <= held
            assert {*unit.pool} == held  # negatives: all that is there, nothing that comes or goes
            assert len(held) <= c
            if unit.last and unit.swap and unit.bare:
                held -= {*unit.swap[0]}
                coming = unit.swap[1]
            if unit.last and coming is not None:
                held |= {*coming}
                coming = None
        assert trained == Counter(range(starts[-1]))


def test_epochs_differ_and_seeds_do():
    starts = np.arange(0, 65 * 3, 3)
    order = make_order("best", 8, 3)
    one, two = Schedule(order, starts, 1), Schedule(order, starts, 2)
    sequences = [[(u.source, u.target) for u in s.units(e)] for s in (one, two) for e in (0, 1)]
    assert len({tuple(s) for s in sequences}) == 4
    again = Schedule(order, starts, 1)
    assert [(u.source, u.target) for u in again.units(1)] == sequences[
        1
    ]  # later epochs without the earlier ones


def test_negatives_are_rows_that_are_there():
    division = Division(103, 5)  # sizes 21, 21, 21, 20, 20
    pool = Pool([4, 1, 3], division)
    assert len(pool) == 61
    part, row = pool.draw(60, (1, 2), 0.0)
    assert len(part) == 60
    many = [pool.draw(60, (1, k), 0.0) for k in range(200)]
    seen = Counter(
        zip(np.concatenate([m[0] for m in many]), np.concatenate([m[1] for m in many]), strict=True)
    )
    assert set(seen) == {(4, r) for r in range(20)} | {(1, r) for r in range(21)} | {
        (3, r) for r in range(20)
    }
    assert max(seen.values()) < 2 * min(seen.values())  # of about 197 each
    np.testing.assert_array_equal(pool.draw(60, (1, 2), 0.0), (part, row))
    assert not np.array_equal(pool.draw(60, (1, 3), 0.0)[1], row)
    part, row = pool.draw(61, (1, 2), 0.0)  # all of them, once
    assert len({*zip(part.tolist(), row.tolist(), strict=True)}) == 61


def test_negatives_in_proportion_to_degree():
    division = Division(10, 2)
    degrees = [np.array([0, 0, 30, 0, 0], np.uint32), np.array([10, 0, 0, 0, 0], np.uint32)]
    pool = Pool([0, 1], division, degrees)
    part, row = pool.draw(9, (0, 0), 1.0)
    assert set(zip(part.tolist(), row.tolist(), strict=True)) <= {(0, 2), (1, 0)}
    many = [pool.draw(8, (0, k), 0.5) for k in range(500)]
    seen = Counter(
        zip(np.concatenate([m[0] for m in many]), np.concatenate([m[1] for m in many]), strict=True)
    )
    assert seen[0, 2] / 4000 == pytest.approx(0.5 * 0.75 + 0.05, abs=0.03)
    assert seen[1, 1] / 4000 == pytest.approx(0.05, abs=0.02)
    assert len(Pool([0], division, [np.zeros(5, np.uint32)]).draw(3, (0, 0), 1.0)[0]) == 3
