"""The tables of memory: every part against the formula that stood in its place, and divisions that never exceed."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop.config import parse_size
from outcrop.errors import ArgumentError, BudgetError
from outcrop.runtime import memory_tables as tables
from outcrop.runtime.memory_plan import Activity, Of, Part, divide

KIB, MIB = 1 << 10, 1 << 20
PAGE = 4096
TIB = 1 << 40
Formula = Callable[[int], int]

# The formulas as they were written where the bytes are taken, before there was a table.
FORMULAS: list[tuple[Part, Formula]] = [
    (tables.READ_SCRATCH, lambda total: min(max(total // 32, 64 << 10), 16 << 20)),
    (tables.DISK_CACHE_SCRATCH, lambda total: min(max(total // 32, 64 << 10), 16 << 20)),
    (tables.IO_BUFFERS, lambda total: min(4 << 20, total // 16)),
    (tables.WRITE_BUFFER, lambda total: min(1 << 20, max(16 << 10, total // 64)) // PAGE * PAGE),
    (tables.SAMPLER, lambda free: int(free * 0.5)),
    (tables.MORE_WAITING, lambda free: free // 2),
    (tables.TOPOLOGY, lambda free: int(0.5 * free)),
    (tables.PAGE_SCRATCH, lambda available: min(available // 2, 16 << 20)),
    (tables.LIST_SCRATCH, lambda available: min(available // 8, 16 << 20)),
    (tables.LIST_STARTS, lambda left: left // 2),
    (tables.PLAN_COUNTERS, lambda free: max(free // 3, 1 << 16)),
    (tables.LAYOUT_IDS, lambda free: max(free, 1 << 20) // 4),
    (tables.LAYOUT_TABLE, lambda free: max(free, 1 << 20) // 4),
    (tables.SEARCH_TABLE, lambda free: max(free, 1 << 20) // 4),
    (tables.PACK_CHUNK, lambda free: min(free // 5, 256 << 20)),
    (tables.PACK_IDS, lambda free: free // 32),
    (tables.PACK_OUT, lambda free: min(free // 16, 32 << 20)),
    (tables.PACK_TABLES, lambda left: left // 2),
    (tables.PACK_GROUP, lambda free: min(free // 5, 64 << 20)),
    (tables.DISK_CACHE_GROUP, lambda free: free // 4),
    (tables.DISK_CACHE_BLOCK, lambda total: min(total // 16, 16 << 20)),
    (tables.PACKED_BATCHES, lambda total: total // 2),
    (tables.GROWING_SAMPLER, lambda free: int(free * 0.25)),
    (tables.GROWING_CACHE, lambda left: int(left * 0.5)),
    (tables.NEXT_USES, lambda free: free // 4),
    (tables.PARTITIONS, lambda free: free // 2),
    (tables.PARTITION_SAMPLER, lambda free: int(free * 0.75)),
    (tables.GROWING_PARTITION_SAMPLER, lambda free: int(free * 0.25)),
    (tables.ONLINE_SAMPLER, lambda free: int(free * 0.4)),
    (tables.ONLINE_SAMPLER_LAST, lambda free: int(free * 0.8)),
    (tables.ACCESS_COUNTERS, lambda free: int(free * 0.25)),
    (tables.THIRD_BUFFER, lambda free: free // 2),
    (tables.DEVICE_CACHE_IDS, lambda room: room // 2),
    (tables.DEVICE_CACHE_CHUNK, lambda free: free // 2),
    (tables.RING_BUFFERS, lambda free: free // 2),
    (tables.DEVICE_DRAWN, lambda free: free // 2),
    (tables.DEVICE_SCORES, lambda free: free // 8),
    (tables.TOPOLOGY_STAGING, lambda free: max(min(free // 8, 16 << 20), 64 << 10)),
    (tables.READ_BLOCK, lambda free: max(64 << 10, min(4 << 20, free // 32))),
    (tables.EDGE_SORT, lambda free: min(1 << 30, free // 2)),
    (tables.FEATURE_RANGE, lambda free: free // 8),
    (tables.EDGE_ROWS, lambda free: free // 2),
    (tables.STRIPE_CHUNK, lambda free: min(4 << 20, free // 4)),
    (tables.VERIFY_BUFFER, lambda free: max(min(4 << 20, free // 2) // PAGE * PAGE, PAGE)),
    (tables.COLUMN_BLOCKS, lambda left: left // 4),
    (tables.COLUMN_EDGES, lambda left: left // 16),
    (tables.LIST_CHUNK, lambda left: max(min(left // 64, 1 << 20) // PAGE * PAGE, PAGE)),
    (tables.ROW_CHECK, lambda total: max(min(1 << 20, total // 64), PAGE)),
    (tables.POOL_PREPARE, lambda total: total // 4),
    *((tables.EVALUATIONS[i], lambda total, d=d: total // d) for i, d in enumerate((8, 6, 4, 3))),
    (tables.POOL_SPARE, lambda total: total // 32),
    (tables.EVALUATION_DISK, lambda space: space // 2),
    (tables.SPOOL_DISK, lambda space: space // 2),
    (tables.POOL_DISK, lambda left: left // 2),
    (tables.INFER_IO_BUFFERS, lambda total: min(4 << 20, max(total // 16, 64 << 10))),
    (tables.INFER_WRITE_BUFFER, lambda total: min(1 << 20, max(total // 64, 16 << 10))),
    (tables.SCALE_SCRATCH, lambda total: min(max(total // 32, 64 << 10), 16 << 20)),
    (tables.LAYER_PARTS, lambda total: total // 4),
    (tables.LAYER_SPANS, lambda total: total // 2),
    (tables.EDGE_COUNTS, lambda total: total // 4),
    (tables.USES, lambda total: total // 4),
    (tables.HOT_USES, lambda total: total // 2),
    (tables.EXPORT_CHUNK, lambda limit: min(4 << 20, limit // 8)),
    (tables.BUCKET_BLOCK, lambda free: min(max(free // 32, 64 << 10), 8 << 20)),
    (tables.BUCKET_SORT, lambda free: free // 2),
    (tables.HELD_EDGES, lambda free: free // 8),
    (tables.WHOLE_TABLE, lambda free: int(free * 0.9)),
    (tables.RANK_SCORES, lambda free: free // 4),
    (tables.EMBEDDING_CHUNK, lambda free: min(free // 2, 256 << 20)),
    (tables.SLAB_STAGING, lambda free: min(8 << 20, free // 2)),
]

EDGES = [1 << k for k in range(41)] + [
    parse_size(text) for text in ("10MiB", "64MiB", "300MB", "1GiB", "7GB")
]
BUDGETS = sorted({e + d for e in EDGES for d in range(-33, 34) if 1 <= e + d <= TIB})
budgets = st.one_of(st.integers(1, TIB), st.sampled_from(BUDGETS))
activities = st.sampled_from(list(tables.ACTIVITIES.values()))


@pytest.mark.parametrize(("part", "formula"), FORMULAS, ids=lambda x: x.name if isinstance(x, Part) else "")
class TestFormulas:
    def test_at_the_edges(self, part: Part, formula: Formula) -> None:
        assert [part.bytes_of(b) for b in BUDGETS] == [formula(b) for b in BUDGETS]

    def test_anywhere(self, part: Part, formula: Formula) -> None:
        @given(budgets)
        def same(base: int) -> None:
            assert part.bytes_of(base) == formula(base)

        same()


def test_every_fraction_is_compared() -> None:
    """Whatever the tables divide by has a formula; the whole of something needs none."""
    known = {part.name for part, _ in FORMULAS}
    parts = [part for activity in tables.ACTIVITIES.values() for part in activity.parts]
    constants = [part for part in vars(tables).values() if isinstance(part, Part)]
    for part in [*parts, *constants]:
        assert part in parts, f"{part.name} is in no table"
        assert part.name in known or part.fraction in (0, 1) or part.name == tables.WAITING.name, part


def test_pools_divide_as_before() -> None:
    plans = [divide(tables.ACTIVITIES["pools beside training"], m) for m in BUDGETS]
    expected = [m - m // 4 - m // 8 - m // 32 for m in BUDGETS]
    assert [plan[tables.POOL_TRAIN] for plan in plans] == expected


def test_rows_of_a_chunk_as_before() -> None:
    assert [tables.PACK_IDS.bytes_of(b) // 8 for b in BUDGETS] == [b // 256 for b in BUDGETS]


def test_the_same_fraction_is_taken_three_times_while_drawing() -> None:
    for scratch, waiting, topology in (
        (tables.SAMPLER, tables.WAITING, tables.TOPOLOGY),
        (tables.GROWING_SAMPLER, tables.GROWING_WAITING, tables.GROWING_TOPOLOGY),
        (tables.ONLINE_SAMPLER, tables.ONLINE_WAITING, tables.ONLINE_TOPOLOGY),
        (tables.ONLINE_SAMPLER_LAST, tables.ONLINE_WAITING_LAST, tables.ONLINE_TOPOLOGY_LAST),
    ):
        assert scratch.fraction == waiting.fraction == topology.fraction


@given(activities, budgets)
def test_parts_never_exceed_the_whole(activity: Activity, limit: int) -> None:
    try:
        plan = divide(activity, limit)
    except BudgetError:
        return
    assert plan.left_bytes >= 0
    assert plan.limit == limit
    for around in plan.parts:
        inside = [p.bytes for p in plan.parts if p.part.within == around.part.name]
        assert sum(inside) <= around.bytes
        assert 0 <= around.bytes <= limit


@given(activities, budgets, st.data())
def test_a_need_is_met_or_the_budget_that_meets_it_is_named(
    activity: Activity, limit: int, data: st.DataObject
) -> None:
    around = {part.within for part in activity.parts}
    names = [part.name for part in activity.parts if part.name not in around and not part.within]
    some = st.dictionaries(st.sampled_from(names), st.integers(0, 1 << 32)) if names else st.just({})
    needs = data.draw(some)
    try:
        plan = divide(activity, limit, needs)
    except BudgetError as error:
        smallest = int(str(error).split("smallest memory budget that has is ")[1].split(" ")[0])
        assert smallest > limit
        plan = divide(activity, smallest, needs)
        if smallest > limit + 1:
            with pytest.raises(BudgetError):
                divide(activity, smallest - 1, needs)
    for name, needed in needs.items():
        assert plan[name] == needed
    for planned in plan.parts:
        if planned.part.name not in needs and not planned.part.within:
            assert planned.bytes >= planned.part.copies * planned.part.least


def test_a_plan_by_hand() -> None:
    activity = Activity(
        "a",
        (
            Part("first", "", Fraction(1, 4), Of.LIMIT),
            Part("second", "", Fraction(1, 2)),
            Part("inner", "", Fraction(1, 3), Of.PART, copies=2, within="second"),
            Part("rest of it", "", Fraction(1, 2), Of.REST, within="second"),
            Part("needed", "", Fraction(0)),
        ),
    )
    plan = divide(activity, 1000, {"needed": 300})
    assert [p.bytes for p in plan.parts] == [250, 375, 250, 62, 300]
    assert plan.left_bytes == 75
    assert plan.as_dict()["parts"][2] == {
        "name": "inner",
        "bytes": 250,
        "within": "second",
        "rule": "2 times 1/3 of it",
    }
    assert "first   " in str(plan)
    with pytest.raises(
        BudgetError, match="room for needed; the smallest memory budget that has is 798 bytes"
    ):
        divide(activity, 700, {"needed": 300})


def test_refused_are_unknown_parts_and_tables_that_make_no_sense() -> None:
    with pytest.raises(ArgumentError, match="has no part typo"):
        divide(tables.ACTIVITIES["sampling"], MIB, {"typo": 1})
    with pytest.raises(ArgumentError, match="whatever the limit"):
        divide(tables.ACTIVITIES["planning"], MIB, {tables.LAYOUT_SEARCH.name: 0})
    part = Part("p", "", Fraction(1))
    with pytest.raises(ArgumentError, match="there twice"):
        Activity("a", (part, part))
    with pytest.raises(ArgumentError, match="within"):
        Part("p", "", Fraction(1), Of.PART)
