"""Placement among device, host and disk (outcrop.loading.online.cache_plan) against every placement there is."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from outcrop.config import CACHE_STRATEGIES
from outcrop.loading.online import cache_plan
from outcrop.loading.online.static_cache import share_out


def _chunks(sizes: list[int], wanted: list[int]) -> cache_plan.Chunks:
    """Hottest first."""
    size, want = np.array(sizes, np.int64), np.sort(np.array(wanted, np.int64))[::-1]
    return cache_plan.Chunks(size, cache_plan.host_cost(want, size), cache_plan.disk_cost(want, size))


def _best_of_all(rows: cache_plan.Chunks, lists: cache_plan.Chunks, device: int, host: int, unit: int) -> int:
    sizes = [-(-int(s) // unit) for s in (*rows.sizes, *lists.sizes)]
    costs = [(0, int(h), int(d)) for c in (rows, lists) for h, d in zip(c.host, c.disk, strict=True)]
    best = None
    for where in itertools.product((0, 1, 2), repeat=len(sizes)):
        used = [sum(s for s, t in zip(sizes, where, strict=True) if t == tier) for tier in (0, 1)]
        if used[0] <= device // unit and used[1] <= host // unit:
            left = sum(cost[t] for cost, t in zip(costs, where, strict=True))
            best = left if best is None else min(best, left)
    assert best is not None
    return best


_counts = st.lists(st.integers(0, 9), min_size=0, max_size=3)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), equal=st.booleans(), device=st.integers(0, 900), host=st.integers(0, 1500))
def test_no_placement_leaves_fewer_transactions(data: st.DataObject, equal: bool, device: int, host: int):
    unit = data.draw(st.sampled_from([1, 64, 200]))
    rows, lists = (
        _chunks([200 if equal else data.draw(st.integers(1, 700)) for _ in wanted], wanted)
        for wanted in (data.draw(_counts), data.draw(_counts))
    )
    plan = cache_plan.place(rows, lists, device, host, unit)
    assert plan.transactions == _best_of_all(rows, lists, device, host, unit)
    for tier, room in ((cache_plan.DEVICE, device), (cache_plan.HOST, host)):
        assert sum(plan.bytes_in((rows, lists), tier)) <= room
    for strategy in cache_plan.STRATEGIES:
        fixed = cache_plan.place_fixed(strategy, rows, lists, device, host, unit)
        assert plan.transactions <= fixed.transactions
        assert sum(fixed.bytes_in((rows, lists), cache_plan.HOST)) <= host


def test_the_fixed_strategies_differ_as_their_names_say():
    rows, lists = _chunks([100] * 4, [9, 8, 7, 6]), _chunks([100] * 4, [9, 8, 7, 6])
    there = {s: cache_plan.place_fixed(s, rows, lists, 200, 400, 1) for s in cache_plan.STRATEGIES}
    assert there["GTCF"].lists.tolist() == [0, 0, 2, 2]
    assert there["GTCF"].rows.tolist() == [1, 1, 1, 1]
    assert there["GFCT"].rows.tolist() == [0, 0, 2, 2]
    assert there["CTGF"].lists.tolist() == [1, 1, 1, 1]
    assert there["CTGF"].rows.tolist() == [0, 0, 2, 2]
    assert there["CFGT"].lists.tolist() == [0, 0, 2, 2]
    assert there["hybrid"].rows.tolist() == [0, 1, 1, 1]
    assert there["hybrid"].lists.tolist() == [0, 1, 2, 2]


def test_lists_stay_where_the_sampler_reaches_them():
    rows, lists = _chunks([100] * 4, [4, 3, 2, 1]), _chunks([100] * 4, [9, 8, 7, 6])
    for lists_in in ((), (cache_plan.HOST,), (cache_plan.DEVICE,)):
        plans = [cache_plan.place_fixed(s, rows, lists, 200, 200, 1, lists_in) for s in cache_plan.STRATEGIES]
        for plan in (cache_plan.place(rows, lists, 200, 200, 1, lists_in), *plans):
            assert set(plan.lists.tolist()) <= {*lists_in, cache_plan.DISK}
            assert sum(plan.bytes_in((rows, lists), cache_plan.DEVICE)) <= 200


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    host=st.integers(0, 40_000),
    device=st.integers(0, 40_000),
    lists_in=st.sampled_from([(), (cache_plan.HOST,), (cache_plan.DEVICE,)]),
    strategy=st.sampled_from(CACHE_STRATEGIES),
)
def test_shares_keep_to_both_capacities(seed, host, device, lists_in, strategy):
    rng = np.random.default_rng(seed)
    rows, lists = (
        cache_plan.Levels.count(rng.integers(0, 9, 300).astype(np.uint32), size, 1 << 8)
        for size in (128, rng.integers(40, 400, 300))
    )
    shares = share_out([rows], lists, host, device, lists_in=lists_in, strategy=strategy)
    in_host, on_device = (
        sum(shares.row_bytes) + shares.list_bytes,
        sum(shares.device_row_bytes) + shares.device_list_bytes,
    )
    assert 0 <= in_host <= host
    assert 0 <= on_device <= device
    assert shares.list_bytes == 0 or cache_plan.HOST in lists_in
    assert shares.device_list_bytes == 0 or cache_plan.DEVICE in lists_in
    if strategy == "auto" and device and rows.sizes[1:].sum() >= host + device:  # nothing is left empty
        assert in_host + on_device == host + device


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), host=st.integers(10_000, 200_000), files=st.integers(1, 5))
def test_shares_of_row_files_leave_out_what_is_wanted_less(seed, host, files):
    """They save what giving each unit to whom it saves the most saves, but for a unit and rounding."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([16, 128, 512, 4096], files)
    wanted = [rng.integers(0, 40, rng.integers(1, 200)).astype(np.uint32) for _ in range(files)]
    rows = [
        cache_plan.Levels.count(counts, int(size), 1 << 8) for counts, size in zip(wanted, sizes, strict=True)
    ]
    none = cache_plan.Levels.count(np.zeros(0, np.uint32), 1, 1 << 8)
    shares = share_out(rows, none, host)
    assert len(shares.row_bytes) == files
    assert sum(shares.row_bytes) <= host
    unit = cache_plan.unit_of(host)
    saved = sum(_saved(levels, share) for levels, share in zip(rows, shares.row_bytes, strict=True))
    best, room = [0] * files, host // unit
    for _ in range(room):
        gains = [
            _saved(levels, (n + 1) * unit) - _saved(levels, n * unit)
            for levels, n in zip(rows, best, strict=True)
        ]
        best[int(np.argmax(gains))] += 1
    most = sum(_saved(levels, n * unit) for levels, n in zip(rows, best, strict=True))
    largest = max(_saved(levels, unit) for levels in rows)
    assert saved >= 0.98 * most - largest


def _saved(levels: cache_plan.Levels, share: int) -> float:
    """Counts transactions that caching the hottest ``share`` bytes saves, parts of levels included."""
    ends = np.concatenate([[0], np.cumsum(levels.sizes[:0:-1])])
    gains = np.concatenate([[0], np.cumsum((levels.disk - levels.host)[:0:-1])])
    return float(np.interp(share, ends, gains)) if ends[-1] else 0.0


def test_costs_by_hand():
    wanted = np.array([0, 1, 3])
    assert cache_plan.host_cost(wanted, 100).tolist() == [0, 1, 3]  # ceil(300 / 128)
    assert cache_plan.disk_cost(wanted, 100, sector=512).tolist() == [
        0,
        4,
        12,
    ]  # a sector of 512 is four lines
    assert cache_plan.disk_cost(wanted, 1000, sector=512).tolist() == [0, 8, 24]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), budget=st.integers(0, 40_000), windows=st.integers(1, 4))
def test_the_hottest_are_picked_window_by_window(seed: int, budget: int, windows: int):
    rng = np.random.default_rng(seed)
    wanted = rng.integers(0, 6, 300).astype(np.uint32)
    sizes = rng.integers(40, 400, 300)
    for each in (np.full(300, 128), sizes):
        levels = cache_plan.Levels.count(wanted, each, 1 << 8)
        limit, picked = cache_plan.Threshold.of(levels, budget), []
        for part in np.array_split(np.arange(300), windows):
            found, limit = limit.pick(wanted[part], each[part], 1 << 8)
            picked += (found + part[0]).tolist()
        assert picked == sorted(picked)
        assert each[picked].sum() <= budget
        assert not len(picked) or wanted[picked].min() > 0
        left = np.setdiff1d(np.flatnonzero(wanted), picked)
        if len(left) and len(picked):
            assert wanted[picked].min() >= wanted[left].max()
        if each is not sizes:
            assert len(picked) == min(budget // 128, np.count_nonzero(wanted))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), unit=st.integers(1, 5000))
def test_chunks_have_all_bytes_and_transactions(seed: int, unit: int):
    rng = np.random.default_rng(seed)
    wanted = rng.integers(0, 9, 200).astype(np.uint32)
    levels = cache_plan.Levels.count(wanted, 128, 1 << 8)
    chunks = levels.chunks(unit, 10**6)
    hot = wanted[wanted > 0].astype(np.int64)
    assert chunks.sizes.sum() == 128 * len(hot)
    assert chunks.host.sum() == hot.sum()
    assert chunks.disk.sum() == cache_plan.disk_cost(hot, 128).sum()
    assert np.all(chunks.sizes[:-1] == unit)
    assert len(levels.chunks(unit, 2)) <= 2
    if unit % 128 == 0:  # then a chunk is whole rows: the next hottest
        per = unit // 128
        descending = np.sort(hot)[::-1]
        assert chunks.host.tolist() == [int(descending[i : i + per].sum()) for i in range(0, len(hot), per)]
