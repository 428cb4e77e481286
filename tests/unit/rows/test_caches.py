"""Row caches: hit for hit what the published policies do, rows always right, and nobody beats Belady."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_reference import POLICIES, Lru, fewest_misses, next_uses
from outcrop import _core
from outcrop.errors import ArgumentError, BudgetError

ROW_BYTES = 12


def table(nodes: int) -> np.ndarray:
    return np.random.default_rng(nodes).integers(0, 256, (nodes, ROW_BYTES), np.uint8)


class Cache:
    """A C++ cache that reads what it misses from ``rows``, and checks what it delivers."""

    def __init__(self, policy: str, capacity: int, rows: np.ndarray, cycle: int = 1, threads: int = 1):
        self.budget, self.workers = _core.Budget.create(), _core.WorkerPool(threads)
        self.rows = rows
        kind = getattr(_core.CachePolicy, policy)
        self.cache = _core.RowCache(self.budget, kind, capacity, rows.shape[1], cycle)

    def misses(self, ids: Sequence[int], next_use: Sequence[int] | None = None, now: int = 0) -> list[int]:
        ids_, missing = np.array(ids, np.int64), np.zeros(len(ids), np.int64)
        given_ = None if next_use is None else np.array(next_use, np.uint32)
        count = self.cache.lookup(ids_, missing, given_, now)
        out = np.full((len(ids), self.rows.shape[1]), 170, np.uint8)
        out[len(ids) - count :] = self.rows[missing[:count]]
        self.cache.complete(self.workers, out.reshape(-1))
        assert np.array_equal(out, self.rows[ids_])
        return missing[:count].tolist()


def traces(kind: str, nodes: int, requests: int) -> np.ndarray:
    rng = np.random.default_rng(requests + len(kind))
    if kind == "random":
        return rng.integers(0, nodes, requests)
    if kind == "skewed":
        return (rng.random(requests) ** 4 * nodes).astype(np.int64)
    if kind == "scans":  # hot nodes between scans over all
        hot = rng.integers(0, nodes // 10, requests)
        return np.where(rng.random(requests) < 0.5, hot, np.arange(requests) % nodes)
    return np.arange(requests) % nodes  # a loop


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["random", "skewed", "scans", "loop"])
@pytest.mark.parametrize("capacity", [0, 1, 2, 3, 9, 10, 11, 50, 99, 100, 300])
def test_hit_for_hit(policy: str, kind: str, capacity: int) -> None:
    """Batches of changing size, repeats within them, also larger than the cache."""
    nodes = 100
    ids = traces(kind, nodes, 3000)
    cache, reference = Cache(policy, capacity, table(nodes)), POLICIES[policy](capacity)
    cuts = np.cumsum(np.random.default_rng(capacity).integers(0, 80, 100))
    for batch in np.split(ids, cuts[cuts < len(ids)]):
        expected = [x for x in batch.tolist() if not reference.request(x)]
        assert cache.misses(batch.tolist()) == expected


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=12), max_size=30),
    st.integers(0, 14),
    st.sampled_from(sorted(POLICIES)),
)
def test_hit_for_hit_on_any_trace(batches: list[list[int]], capacity: int, policy: str) -> None:
    cache, reference = Cache(policy, capacity, table(13)), POLICIES[policy](capacity)
    for batch in batches:
        assert cache.misses(batch) == [x for x in batch if not reference.request(x)]


def test_the_policies_differ() -> None:
    """So that a test cannot pass because all of them are the same."""
    ids = traces("scans", 100, 3000).tolist()
    assert len({len(Cache(policy, 20, table(100)).misses(ids)) for policy in POLICIES}) == 3


distinct_batches = st.lists(st.lists(st.integers(0, 9), max_size=7, unique=True), min_size=1, max_size=8)


def belady_misses(batches: list[list[int]], capacity: int, cycles: int = 1) -> list[int]:
    """Misses of each batch."""
    cache, uses = Cache("belady", capacity, table(10), len(batches)), next_uses(batches)
    return [
        len(cache.misses(batch, next_use, now))
        for _ in range(cycles)
        for now, (batch, next_use) in enumerate(zip(batches, uses, strict=True))
    ]


@given(distinct_batches, st.integers(0, 5))
def test_belady_misses_the_fewest_possible(batches: list[list[int]], capacity: int) -> None:
    assert sum(belady_misses(batches, capacity)) == fewest_misses(batches, capacity)


@given(distinct_batches, st.integers(0, 11), st.sampled_from(sorted(POLICIES)))
def test_belady_never_misses_more_than_a_dynamic_policy(
    batches: list[list[int]], capacity: int, policy: str
) -> None:
    """After any number of batches, over several cycles."""
    dynamic = Cache(policy, capacity, table(10))
    theirs = np.cumsum([len(dynamic.misses(batch)) for _ in range(3) for batch in batches])
    assert (np.cumsum(belady_misses(batches, capacity, 3)) <= theirs).all()


def test_belady_keeps_what_is_needed_soonest() -> None:
    batches = [[0, 1, 2], [3], [1], [0], [2]]
    assert belady_misses(batches, 1, 1) == [3, 1, 0, 1, 1]
    assert belady_misses(batches, 2, 1) == [3, 1, 0, 0, 1]
    assert belady_misses(batches, 3, 2) == [3, 1, 0, 0, 0, 0, 1, 0, 0, 0]  # node 3 is never worth a place


def test_belady_out_of_schedule() -> None:
    """Rows are right whatever comes; without next uses nothing changes."""
    batches = [[0, 1], [2, 3], [0, 1]]
    cache, uses = Cache("belady", 2, table(10), 3), next_uses(batches)
    assert cache.misses([0, 1], uses[0], 0) == [0, 1]
    for _ in range(2):
        assert cache.misses([5, 0, 6, 1]) == [5, 6]
    assert cache.misses([0, 1], uses[2], 2) == []
    assert cache.misses([2, 3], uses[1], 1) == [2, 3]
    assert cache.misses([0, 1], uses[0], 0) == []


@pytest.mark.parametrize(("next_use", "now"), [([5, 4], 5), ([9, 6], 5), ([6], 5), ([6, 7, 8], 5)])
def test_impossible_next_uses_are_refused(next_use: list[int], now: int) -> None:
    with pytest.raises(ArgumentError, match="next use"):
        Cache("belady", 2, table(10), 3).misses([0, 1], next_use, now)


@pytest.mark.parametrize("policy", [*POLICIES, "belady"])
def test_a_batch_that_failed_empties_the_cache(policy: str) -> None:
    """Its rows never came; none of them may be taken for there."""
    cache = Cache(policy, 5, table(10), cycle=2)
    uses = {"next_use": [1, 1, 1], "now": 0} if policy == "belady" else {}
    assert cache.misses([1, 2, 3], **uses) == [1, 2, 3]
    missing = np.zeros(3, np.int64)
    cache.cache.lookup(np.array([3, 4, 5]), missing)
    assert cache.misses([1, 2, 3], **uses) == [1, 2, 3]
    assert cache.misses([1, 2, 3], **uses) == []
    with pytest.raises(ArgumentError, match="completed once"):
        cache.cache.complete(cache.workers, np.zeros(3 * ROW_BYTES, np.uint8))


@pytest.mark.parametrize("policy", [*POLICIES, "belady"])
@pytest.mark.parametrize("row_bytes", [1, 400, 4096])
def test_memory_is_what_was_promised(policy: str, row_bytes: int) -> None:
    kind = getattr(_core.CachePolicy, policy)
    for limit in (0, 100, 20_000, 1 << 20):
        rows = _core.RowCache.rows_within(kind, limit, row_bytes, 7, 10**6)
        promised = _core.RowCache.bytes_for(kind, rows, row_bytes, 7)
        assert promised <= limit < _core.RowCache.bytes_for(kind, rows + 1, row_bytes, 7)
        budget = _core.Budget.create()
        cache = _core.RowCache(budget, kind, rows, row_bytes, 7)
        assert budget.by_tag["row-cache"].now_bytes <= promised if rows else budget.now_bytes == 0
        del cache
        assert budget.now_bytes == 0
    assert _core.RowCache.rows_within(kind, 1 << 30, row_bytes, 7, 123) == 123
    with pytest.raises(BudgetError, match="row-cache"):
        _core.RowCache(_core.Budget.create(1 << 20), kind, 2 << 20, row_bytes, 7)


def test_large_batches_in_parallel() -> None:
    """Thousands of rows, several threads, rows of many widths."""
    rng = np.random.default_rng(0)
    for row_bytes in (1, 7, 512, 5732):
        rows = rng.integers(0, 256, (20_000, row_bytes), np.uint8)
        for policy in POLICIES:
            cache, oracle = Cache(policy, 5000, rows, threads=4), Lru(5000)
            for _ in range(4):
                ids = (rng.random(9000) ** 3 * 20_000).astype(np.int64).tolist()
                missing = cache.misses(ids)
                if policy == "lru":  # the references of the others are slow
                    assert missing == [x for x in ids if not oracle.request(x)]


def test_next_uses_of_windows() -> None:
    """Ids of both widths; those outside the window are passed over."""
    for dtype in (np.int32, np.int64):
        seen, out = np.array([7, 8, 9], np.uint32), np.zeros(4, np.uint32)
        _core.next_uses(np.array([11, 3, 10, 13], dtype), 5, 10, seen, out)
        assert out.tolist() == [8, 0, 7, 0]
        assert seen.tolist() == [5, 5, 9]
