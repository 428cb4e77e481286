"""What is trained when, and where negatives come from."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from outcrop.embed import schedule as schedules
from outcrop.embed import slice_schedule
from outcrop.embed.negatives import Degrees, Pool, degree_bytes
from outcrop.embed.numbering import Division
from outcrop.embed.orders import ORDERS, Order, make_order
from outcrop.embed.rounds import Rounds, make_rounds
from outcrop.embed.schedule import Schedule
from outcrop.embed.slice_schedule import SliceSchedule
from outcrop.errors import ArgumentError
from outcrop.runtime.runtime import Runtime


def rounds_of(order: Order) -> Rounds:
    return Rounds((order,), np.arange(order.partitions)[None, None])


def first_state(schedule: Schedule, order: Order, epoch: int, sweeps: int) -> set[int]:
    """Slices that are resident where an epoch begins."""
    return {*schedule.partitions(epoch * sweeps)[list(order.states[0])].ravel().tolist()}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("p", "c", "slices", "sweeps"),
    [(1, 3, 1, 1), (2, 2, 3, 2), (4, 3, 2, 1), (9, 3, 1, 3), (8, 3, 4, 2), (12, 4, 1, 1), (16, 8, 1, 1)],
)
def test_every_edge_is_trained_once_an_epoch_among_slices_that_are_there(
    order, p, c, slices, sweeps, monkeypatch
):
    monkeypatch.setattr(schedules, "UNIT_EDGES", 40)
    parts = p * slices
    counts = np.random.default_rng(p).integers(0, 100 // slices, parts * parts)
    counts[:: parts + 2] = 0  # empty buckets too
    starts = np.concatenate([[0], np.cumsum(counts)])
    made = make_order(order, p, min(c, p))
    schedule = Schedule(rounds_of(made), slices, starts, seed=5, sweeps=sweeps)
    held = first_state(schedule, made, 0, sweeps)
    for epoch in range(3):
        trained = Counter()
        if len(made.states[0]) == len(made.states[-1]):
            assert held == first_state(schedule, made, epoch, sweeps)  # nothing is loaded between epochs
        held = first_state(schedule, made, epoch, sweeps)
        coming: tuple[int, ...] | None = None
        for number, unit in enumerate(schedule.units(epoch)):
            assert unit.number == number
            if len(made.states[0]) != len(made.states[-1]) and not held & {*unit.state}:
                held = {*unit.state}  # loaded between sweeps
            for source, target, first, stop in unit.pieces.tolist():
                bucket = source * parts + target
                assert starts[bucket] <= first < stop <= starts[bucket + 1]
                assert {source, target} <= held
                trained.update(range(first, stop))
            assert unit.num_edges <= 40 + len(unit.pieces)  # shares of buckets, rounded
            if unit.swap and not unit.exposed:
                assert {*unit.swap[0]} <= held
                held -= {*unit.swap[0]}
                coming = unit.swap[1]
            assert all({source, target} <= held for source, target in unit.pieces[:, :2].tolist())
            assert {*unit.pool} == held  # negatives: all that is there, nothing that comes or goes
            assert len(held) <= c * slices
            if unit.last and unit.swap and unit.exposed:
                held -= {*unit.swap[0]}
                coming = unit.swap[1]
            if unit.last and coming is not None:
                held |= {*coming}
                coming = None
        assert trained == Counter(range(starts[-1]))


@pytest.mark.parametrize("sweeps", [1, 3])
@pytest.mark.parametrize(
    ("count", "resident"), [(1, 1), (2, 2), (5, 2), (9, 3), (16, 6), (40, 39), (24, 24), (64, 24)]
)
def test_slices_are_exchanged_one_at_a_time_and_every_edge_is_trained_once(
    count, resident, sweeps, monkeypatch
):
    monkeypatch.setattr(schedules, "UNIT_EDGES", 40)
    counts = np.random.default_rng(count).integers(0, 9, count * count)
    starts = np.concatenate([[0], np.cumsum(counts)])
    schedule = SliceSchedule(count, resident, starts, seed=3, sweeps=sweeps)
    assert (schedule.groups, schedule.rounds, schedule.most_resident) == (1, 1, resident)
    assert not schedule.holders(0, 0).any()
    held: set[int] = set()
    for epoch in range(3):
        trained = Counter()
        assert sum(unit.num_edges for unit in schedule.all_units(epoch)) == starts[-1]
        for number, unit in enumerate(schedule.units(epoch)):
            assert (unit.number, unit.key) == (number, (epoch, number))
            held = held or {*unit.state}  # nothing is loaded between epochs, nor between sweeps
            there = {*unit.state} - ({*unit.swap[0]} if unit.swap else set())
            assert held == {*unit.state}
            assert len(held) == resident
            assert unit.num_edges <= 40 + len(unit.pieces)
            for source, target, first, stop in unit.pieces.tolist():
                bucket = source * count + target
                assert starts[bucket] <= first < stop <= starts[bucket + 1]
                assert {source, target} <= {*unit.pool} <= held
                trained.update(range(first, stop))
            if unit.swap:
                (gone,), (came,) = unit.swap
                assert {*unit.pool} == there
                assert gone == unit.state[0]  # the oldest
                assert came not in held
                coming = came, gone
            if unit.last and len(unit.pool) < resident:
                held = held - {coming[1]} | {coming[0]}
        assert trained == Counter(range(starts[-1]))


def test_slices_meet_for_little_more_than_partitions_move():
    """Sweeps over slices of the same partitions: 64 in 8, 96 in 12, of which 3 are in memory."""
    for partitions, most in ((8, 1.2), (12, 1.3)):
        count = 8 * partitions
        schedule = SliceSchedule(count, 24, np.zeros(count * count + 1, np.int64), seed=0)
        loads = [len(schedule.states(sweep)) - 1 for sweep in range(4)]
        order = make_order("best", partitions, 3)
        assert max(loads) <= most * 8 * (order.num_loads - len(order.states[0]))


def test_sweeps_of_slices_follow_from_the_seed():
    starts = np.arange(0, 16 * 16 * 3 + 1, 3)
    one, two = SliceSchedule(16, 6, starts, 1), SliceSchedule(16, 6, starts, 2)
    sequences = [[u.pieces.tolist() for u in s.units(e)] for s in (one, two) for e in (0, 1, 2)]
    assert len({str(s) for s in sequences}) == 6
    slice_schedule._begins.cache_clear()
    again = SliceSchedule(16, 6, starts, 1)
    assert [u.pieces.tolist() for u in again.units(2)] == sequences[2]  # without the earlier ones
    assert [u.pieces.tolist() for u in again.units(0)] == sequences[0]
    with pytest.raises(ArgumentError, match="1 of 3 slices in memory are no two: raise --buffer"):
        SliceSchedule(3, 1, np.arange(10), 0)


def test_sweeps_that_were_listed_are_not_listed_again(monkeypatch):
    """An evaluation within a training makes a schedule of its own, which begins where that one is."""
    starts = np.arange(17 * 17 + 1)
    first = SliceSchedule(17, 6, starts, 5)
    expected = first.states(9)
    listed = []
    states = slice_schedule._states
    monkeypatch.setattr(slice_schedule, "_states", lambda *given: listed.append(given) or states(*given))
    assert SliceSchedule(17, 6, starts, 5).states(9) == expected
    assert len(listed) == 1
    assert SliceSchedule(17, 6, starts, 6).states(9) != expected


def test_slices_are_dealt_out_anew_and_nothing_moves_between_sweeps():
    order = make_order("best", 8, 3)
    schedule = Schedule(rounds_of(order), 4, np.arange(32 * 32 + 1), seed=1, sweeps=2)
    together = Counter()
    for sweep in range(200):
        dealt = schedule.partitions(sweep)
        assert sorted(dealt.ravel()) == list(range(32))
        if sweep:
            before = schedule.partitions(sweep - 1)
            assert {*before[list(order.states[-1])].ravel()} == {*dealt[list(order.states[0])].ravel()}
        for partition in dealt:
            together.update(tuple(pair) for pair in combinations(sorted(partition.tolist()), 2))
    assert len(together) == 32 * 31 // 2  # every two slices meet in a partition
    expected = 200 * 8 * 6 / len(together)
    assert min(together.values()) > expected / 3
    assert max(together.values()) < expected * 2


def test_units_mix_all_that_is_trained_at_a_time(monkeypatch):
    """Of every bucket of a state an equal share in each unit, others in other epochs."""
    monkeypatch.setattr(schedules, "UNIT_EDGES", 500)
    starts = np.arange(64 + 1) * 300
    schedule = Schedule(make_rounds("best", 8, 3), 1, starts, seed=2)
    shared = []
    for epoch in range(2):
        units = list(schedule.units(epoch))
        for unit in units:
            sizes = unit.pieces[:, 3] - unit.pieces[:, 2]
            assert sizes.max() - sizes.min() <= 1
        with_bucket = [unit for unit in units if (unit.pieces[:, 0] * 8 + unit.pieces[:, 1] == 10).any()]
        assert len(with_bucket) > 1
        shared.append({tuple(sorted(map(tuple, unit.pieces.tolist()))) for unit in units})
    assert shared[0] != shared[1]


def test_epochs_differ_and_seeds_do():
    starts = np.arange(0, 65 * 3, 3)
    order = make_rounds("best", 8, 3)
    one, two = Schedule(order, 1, starts, 1), Schedule(order, 1, starts, 2)
    sequences = [[u.pieces.tolist() for u in s.units(e)] for s in (one, two) for e in (0, 1)]
    assert len({str(s) for s in sequences}) == 4
    again = Schedule(order, 1, starts, 1)
    assert [u.pieces.tolist() for u in again.units(1)] == sequences[
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


def test_negatives_in_proportion_to_degree(make_runtime):
    division = Division(10, 2)
    degrees = [np.array([0, 0, 30, 0, 0], np.uint32), np.array([10, 0, 0, 0, 0], np.uint32)]
    runtime = make_runtime(threads=1)
    pool = Pool([0, 1], division, held_degrees(division, 2, np.concatenate(degrees), runtime))
    part, row = pool.draw(9, (0, 0), 1.0)
    assert set(zip(part.tolist(), row.tolist(), strict=True)) <= {(0, 2), (1, 0)}
    many = [pool.draw(8, (0, k), 0.5) for k in range(500)]
    seen = Counter(
        zip(np.concatenate([m[0] for m in many]), np.concatenate([m[1] for m in many]), strict=True)
    )
    assert seen[0, 2] / 4000 == pytest.approx(0.5 * 0.75 + 0.05, abs=0.03)
    assert seen[1, 1] / 4000 == pytest.approx(0.05, abs=0.02)
    zeros = held_degrees(division, 1, np.zeros(10, np.uint32), runtime)
    assert len(Pool([0], division, zeros).draw(3, (0, 0), 1.0)[0]) == 3


class _File:
    """Degrees in memory, which are read as a file of them is; ``reads`` counts the times."""

    def __init__(self, degrees: np.ndarray):
        self._bytes, self.reads = degrees.view(np.uint8), 0

    def read_bytes(self, offset: int, out: np.ndarray) -> None:
        out[:] = self._bytes[offset : offset + len(out)]
        self.reads += 1

    def verify(self) -> None: ...
    def close(self) -> None: ...


def held_degrees(division: Division, slices: int, degrees: np.ndarray, runtime: Runtime) -> Degrees:
    return Degrees(_File(degrees), division, slices, runtime.budget)


@pytest.mark.parametrize("rows", [7, 40, 7 * 32, 7 * 1024, 20_000])
def test_rows_are_found_by_their_degrees(make_runtime, rows):
    """Against one sum over all rows that are there, while slices come and go; in the memory that was said."""
    random, division = np.random.default_rng(rows), Division(rows, 7)
    degrees = random.integers(0, 5, rows, dtype=np.uint32) * random.integers(0, 2, rows, dtype=np.uint32)
    degrees[random.integers(0, rows)] = (1 << 32) - 1
    file = _File(degrees)
    budget = make_runtime("1MiB", threads=1).budget
    free = budget.free_bytes
    held = Degrees(file, division, 3, budget)
    assert free - budget.free_bytes == degree_bytes(division, 3)
    came: set[int] = set()
    for _ in range(40):
        slices = random.permutation(7)[: random.integers(1, 4)].tolist()
        before, file.reads = came, 0
        held.enter(slices)
        came = set(slices)
        assert file.reads == len(came - before), "only what was not there is read"
        sums = np.cumsum(
            np.concatenate([degrees[division.starts[p] : division.starts[p + 1]] for p in slices]),
            dtype=np.int64,
        )
        assert held.total == sums[-1]
        if not sums[-1]:
            continue
        targets = np.concatenate(
            [[0, sums[-1] - 1], random.integers(0, sums[-1], 100), sums[sums < sums[-1]][:50]]
        )
        at, number = held.find(targets)
        starts = np.cumsum([0, *(division.size(p) for p in slices)])
        np.testing.assert_array_equal(starts[at] + number, np.searchsorted(sums, targets, side="right"))
