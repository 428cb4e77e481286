"""Orders against a simulation of the buffer, the paper's table and figure, and scipy's flows."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow
from typer.testing import CliRunner

from outcrop import _core
from outcrop.cli.main import app
from outcrop.embed.orders import ORDERS, Order, least_states, make_order
from outcrop.embed.orders.construct import walecki_cycles
from outcrop.embed.orders.cover import _field
from outcrop.embed.orders.order import deferred, eager
from outcrop.errors import ArgumentError, FormatError, OutcropError
from outcrop.report.orders import residencies

TABLE_8 = {6: 8, 8: 16, 10: 24, 12: 36, 14: 50, 16: 66}


def simulate(order: Order) -> dict[str, list[int]]:
    """Trains an epoch with a buffer of slots; what it could not do raises. Which swaps were bare or hasty."""
    p = order.partitions
    trained = np.zeros((p, p), int)
    resident: set[int] = set(order.states[0])
    bare, hasty, loaded_last = [], [], set()
    for s, buckets in enumerate(order.buckets):
        assert resident == set(order.states[s])
        assert len(resident) == len(order.states[s]) <= order.buffer
        during = list(order.overlapped[s]) if s < len(order.overlapped) else []
        before = list(buckets[: len(buckets) - len(during)])
        assert [*before, *during] == list(buckets)
        for i, j in before:
            assert {i, j} <= resident
            trained[i, j] += 1
        if s + 1 == len(order.states):
            break
        leaving = resident - set(order.states[s + 1])
        arriving = set(order.states[s + 1]) - resident
        assert leaving or arriving
        resident -= leaving  # written back while these are trained:
        for i, j in during:
            assert {i, j} <= resident
            trained[i, j] += 1
        bare += [] if during else [s]
        hasty += [s] if leaving & loaded_last else []
        resident |= arriving
        loaded_last = arriving
    assert (trained == 1).all()
    return {"bare": bare, "hasty": hasty}


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("defer", [False, True])
@settings(max_examples=15)
@given(data=st.data())
def test_every_bucket_once_where_it_can_be(name: str, defer: bool, data: st.DataObject) -> None:
    buffer = data.draw(st.integers(2, 9))
    partitions = data.draw(st.integers(1, 22))
    order = make_order(name, partitions, buffer, defer=defer)
    seen = simulate(order)
    assert seen == {"bare": list(order.exposed_swaps), "hasty": list(order.hasty_evictions)}
    met = {frozenset(pair) for state in order.states for pair in combinations(state, 2)}
    assert len(met) == partitions * (partitions - 1) // 2
    if name != "cover":
        assert len(order.states) >= least_states(partitions, buffer)
        assert all(len(out) == len(into) == 1 for out, into in order.swaps)
    if name == "best" and buffer > 2 and defer:
        assert seen["bare"] == []
        assert order.num_loads == len(order.states) - 1 + min(buffer, partitions)


def test_legend_gives_table_8() -> None:
    assert {p: len(make_order("legend", p, 3).states) for p in TABLE_8} == TABLE_8


def test_legend_gives_figure_5() -> None:
    """Six partitions, as the text of section 4 goes through them; the buckets that are trained during each swap."""
    order = make_order("legend", 6, 3)
    states = [{0, 1, 2}, {0, 2, 3}, {0, 3, 4}, {0, 4, 5}, {1, 4, 5}, {1, 3, 5}, {2, 3, 5}, {2, 4, 5}]
    assert [set(state) for state in order.states] == states
    assert order.hasty_evictions == ()
    assert [set(b) for b in order.overlapped[:3]] == [
        {(0, 0), (0, 2), (2, 0), (2, 2)}, {(0, 3), (3, 0), (3, 3)}, {(0, 4), (4, 0), (4, 4)},
    ]  # fmt: skip


def test_legend_never_evicts_at_once_and_leaves_few_swaps_bare() -> None:
    """Of 36 swaps of 12 partitions 4 are bare in the paper; its reading of the listing is not given."""
    for p in range(4, 65):
        assert make_order("legend", p, 3).hasty_evictions == ()
    assert len(make_order("legend", 12, 3).exposed_swaps) <= 4


def test_beta_gives_table_8_and_marius_formula() -> None:
    """Table 8 has 34 for 12 partitions: Marius' formula, which counts swaps, where its other values are states."""
    states = {p: len(make_order("beta", p, 3).states) for p in TABLE_8}
    assert states == {6: 8, 8: 15, 10: 24, 12: 35, 14: 48, 16: 63}
    for p in range(4, 40):
        for c in range(2, min(p, 9)):
            x = (p - c) // (c - 1)
            formula = (p - c) + (x + 1) * ((p - c) - x * (c - 1) / 2)
            assert len(make_order("beta", p, c).states) - 1 == formula


def test_beta_and_cover_leave_most_swaps_bare() -> None:
    """Why there are orders for prefetching (section 4)."""
    assert len(make_order("beta", 12, 3).exposed_swaps) >= 17
    assert len(make_order("cover", 16, 4).exposed_swaps) >= 10


@pytest.mark.parametrize(
    ("partitions", "buffer"), [(16, 4), (9, 3), (25, 5), (64, 8), (64, 4), (49, 7), (27, 3)]
)
def test_cover_is_an_affine_space(partitions: int, buffer: int) -> None:
    """Each pair in exactly one state; table 8: 16 partitions, 4 resident: 80 partitions in all states."""
    order = make_order("cover", partitions, buffer)
    pairs = [frozenset(pair) for state in order.states for pair in combinations(state, 2)]
    assert len(pairs) == len(set(pairs)) == partitions * (partitions - 1) // 2
    assert all(len(state) == buffer for state in order.states)
    if (partitions, buffer) == (16, 4):
        assert sum(map(len, order.states)) == 80


@pytest.mark.parametrize("q", [2, 3, 4, 5, 7, 8, 9, 16])
def test_finite_fields(q: int) -> None:
    add, multiply = (np.array(table) for table in _field(q))
    everything = range(q)
    for table, unit in ((add, 0), (multiply, 1)):
        assert (table == table.T).all()
        assert (table[unit] == everything).all()
        assert all(
            table[table[a, b], c] == table[a, table[b, c]] for a, b, c in product(everything, repeat=3)
        )
    assert all(
        multiply[a, add[b, c]] == add[multiply[a, b], multiply[a, c]]
        for a, b, c in product(everything, repeat=3)
    )
    assert all(sorted(row) == list(everything) for row in add)
    assert all(sorted(row[1:]) == list(range(1, q)) for row in multiply[1:])


@pytest.mark.parametrize("points", [3, 5, 7, 21, 43])
def test_walecki(points: int) -> None:
    cycles = list(walecki_cycles(points))
    edges = [frozenset(edge) for cycle in cycles for edge in pairwise([*cycle, cycle[0]])]
    assert len(cycles) == points // 2
    assert len(edges) == len(set(edges)) == points * (points - 1) // 2
    assert all(sorted(cycle) == list(range(points)) for cycle in cycles)


@pytest.mark.parametrize(("partitions", "most"), [(8, 14), (10, 22), (12, 33), (14, 45), (16, 60)])
def test_best_meets_the_lower_bound(partitions: int, most: int) -> None:
    order = make_order("best", partitions, 3)
    assert len(order.states) == most == least_states(partitions, 3)
    assert simulate(order)["bare"] == []


@pytest.mark.parametrize("partitions", range(4, 65))
def test_best_hides_all_and_is_no_longer_than_legend(partitions: int) -> None:
    order = make_order("best", partitions, 3)
    assert simulate(order)["bare"] == []
    assert len(order.states) <= len(make_order("legend", partitions, 3).states)
    # A circle of 4 k + 1 partitions meets the bound; each of up to three guests costs little more than it must.
    assert len(order.states) - least_states(partitions, 3) <= (5 if partitions % 4 != 1 else 0)


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize("buffer", range(4, 9))
@pytest.mark.parametrize("partitions", [9, 12, 16, 24, 40, 64])
def test_best_in_larger_buffers(partitions: int, buffer: int) -> None:
    order = make_order("best", partitions, buffer)
    assert simulate(order)["bare"] == []
    assert len(order.states) <= len(make_order("legend", partitions, buffer).states)
    assert order.num_loads <= make_order("cover", partitions, buffer).num_loads


@pytest.mark.parametrize("name", ["legend", "beta", "cover", "best"])
@pytest.mark.parametrize(("partitions", "buffer"), [(6, 3), (11, 3), (13, 5), (16, 4)])
def test_deferring_is_optimal(name: str, partitions: int, buffer: int) -> None:
    """For every k: buckets taken, up to k a swap, are as many as a maximum flow carries."""
    states = make_order(name, partitions, buffer).states
    order = deferred(name, partitions, buffer, states)
    swaps, buckets = len(states) - 1, list(product(range(partitions), repeat=2))
    graph = np.zeros((swaps + len(buckets) + 2,) * 2, np.int32)
    for swap, (a, b) in enumerate(pairwise(states)):
        stay = set(a) & set(b)
        for at, bucket in enumerate(buckets):
            graph[1 + swap, 1 + swaps + at] = set(bucket) <= stay
    graph[1 + swaps : -1, -1] = 1
    for k in (1, 2, 3, 5, 100):
        graph[0, 1 : 1 + swaps] = k
        flow = maximum_flow(csr_array(graph), 0, len(graph) - 1).flow_value
        assert sum(min(len(meanwhile), k) for meanwhile in order.overlapped) == flow
    # Never worse than the paper's sequence, whatever a swap takes.
    paper = eager(name, partitions, buffer, states)
    for swap in (0.5, 1, 2, 5, 20):
        assert order.epoch_time(1, swap) <= paper.epoch_time(1, swap) + 1e-9


def test_modelled_epochs() -> None:
    """Twelve partitions, a bucket takes 1, a swap 2: with everything hidden only the 144 buckets count."""
    assert make_order("best", 12, 3).epoch_time(1, 2) == 144
    assert make_order("legend", 12, 3).epoch_time(1, 2) > 144
    assert make_order("beta", 12, 3).epoch_time(1, 2) > make_order("legend", 12, 3).epoch_time(1, 2)
    one = Order("x", 1, 3, ((0,),), (((0, 0),),), ())
    assert one.epoch_time(3, 100) == 3


def test_the_same_every_time() -> None:
    for name in ORDERS:
        assert make_order(name, 13, 3) == make_order(name, 13, 3)


GOOD = make_order("legend", 6, 3)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (
            replace(GOOD, buckets=(GOOD.buckets[0][1:], *GOOD.buckets[1:])),
            r"bucket \(\d, \d\) is never trained",
        ),
        (
            replace(GOOD, buckets=(((0, 0), *GOOD.buckets[0]), *GOOD.buckets[1:])),
            r"\(0, 0\) is trained twice",
        ),
        (
            replace(GOOD, buckets=(((0, 5), *GOOD.buckets[0]), *GOOD.buckets[1:])),
            r"\(0, 5\) is trained in state 0",
        ),
        (replace(GOOD, overlapped=(GOOD.buckets[0], *GOOD.overlapped[1:])), "during swap 0, which evicts"),
        (replace(GOOD, overlapped=(((5, 5),), *GOOD.overlapped[1:])), "not the end of state 0"),
        (replace(GOOD, states=((0, 1, 6), *GOOD.states[1:])), "not all partitions"),
        (replace(GOOD, states=((0, 1, 1), *GOOD.states[1:])), r"state 0 holds \(0, 1, 1\)"),
        (replace(GOOD, states=((0, 1, 2, 3), *GOOD.states[1:])), "state 0 holds"),
        (replace(GOOD, states=GOOD.states[1:]), "not equally many"),
    ],
)
def test_what_is_wrong_is_found(broken: Order, why: str) -> None:
    GOOD.verify()
    with pytest.raises(FormatError, match=why):
        broken.verify()


def test_bad_sizes() -> None:
    with pytest.raises(ArgumentError, match="a buffer of 1 holds no two partitions"):
        make_order("best", 4, 1)
    with pytest.raises(ArgumentError, match="0 partitions"):
        make_order("best", 0, 3)
    with pytest.raises(ArgumentError, match="order 'worst' is unknown; known: best, legend, beta, cover"):
        make_order("worst", 4, 3)
    assert make_order("best", 1, 1).states == ((0,),)


def replayed(slots: int, swaps: list[tuple[int, int]]) -> tuple[set[frozenset[int]], int]:
    """The pairs that meet, and how many loads bring fewer than ``slots - 1`` new ones together."""
    held, wasted = list(range(slots)), 0
    met = {frozenset(pair) for pair in combinations(held, 2)}
    for slot, partition in swaps:
        assert partition not in held
        held[slot] = partition
        before = len(met)
        met |= {frozenset((partition, other)) for other in held if other != partition}
        wasted += len(met) - before < slots - 1
    return met, wasted


@pytest.mark.parametrize(
    ("slots", "turns", "orbits", "fixed"),
    [(3, 5, 1, False), (3, 3, 4, False), (3, 5, 3, True), (3, 29, 1, False), (4, 13, 1, False), (4, 5, 3, False),
     (4, 19, 1, False), (6, 7, 3, False), (2, 5, 1, False)],
)  # fmt: skip
def test_exact_orders_waste_nothing(slots: int, turns: int, orbits: int, fixed: bool) -> None:
    partitions = turns * orbits + fixed
    swaps = _core.exact_order(slots, turns, orbits, fixed, 0, 50_000, 20, 1)
    met, wasted = replayed(slots, swaps)
    pairs = partitions * (partitions - 1) // 2
    assert len(met) == pairs
    assert len(swaps) == pairs // (slots - 1) - 1
    # What the first state brings together for nothing is met again at the end, where the block closes.
    assert wasted <= slots
    assert swaps == _core.exact_order(slots, turns, orbits, fixed, 0, 50_000, 20, 1)


@pytest.mark.parametrize(("partitions", "slots"), [(7, 3), (10, 3), (12, 3), (5, 4), (6, 5)])
def test_linear_exact_orders(partitions: int, slots: int) -> None:
    length = least_states(partitions, slots) - 1
    for extra in range(3):
        if swaps := _core.exact_order(slots, 1, partitions, False, length + extra, 50_000, 200, 1):
            break
    assert len(swaps) == length + extra
    assert len(replayed(slots, swaps)[0]) == partitions * (partitions - 1) // 2
    assert not _core.exact_order(slots, 1, partitions, False, length - 1, 50_000, 3, 1)


@given(data=st.data())
def test_beams(data: st.DataObject) -> None:
    slots = data.draw(st.integers(2, 9))
    partitions = data.draw(st.integers(slots, 20))
    swaps = _core.search_order(
        partitions, slots, data.draw(st.integers(1, 8)), 2, 0, data.draw(st.integers(0, 99))
    )
    assert len(replayed(slots, swaps)[0]) == partitions * (partitions - 1) // 2
    assert all(a != b for (a, _), (b, _) in pairwise(swaps)) or slots == 2


@pytest.mark.parametrize(
    "arguments", [(4, 5, 8, 1), (4, 1, 8, 1), (65, 3, 8, 1), (40, 17, 8, 1), (8, 3, 0, 1)]
)
def test_beams_refuse(arguments: tuple[int, ...]) -> None:
    with pytest.raises(OutcropError):
        _core.search_order(*arguments, 0, 1)


@pytest.mark.parametrize(
    "arguments", [(3, 4, 4, False), (9, 1, 8, False), (1, 1, 8, False), (3, 1, 2000, False)]
)
def test_exact_searches_refuse(arguments: tuple[int, int, int, bool]) -> None:
    with pytest.raises(OutcropError):
        _core.exact_order(*arguments, 5, 100, 1, 1)


def test_residencies() -> None:
    assert residencies(GOOD)[:4] == [(0, 0, 3), (1, 0, 0), (2, 0, 1), (3, 1, 2)]
    assert sum(last - first + 1 for _, first, last in residencies(GOOD)) == sum(map(len, GOOD.states))


@pytest.mark.parametrize("ending", ["svg", "html"])
def test_command(tmp_path: Path, ending: str) -> None:
    options = ["--partitions", "7", "--buffer", "3", "--order", "legend"]
    files = ["--json", str(tmp_path / "o.json"), "--plot", str(tmp_path / f"o.{ending}")]
    done = CliRunner().invoke(app, ["embed", "orders", *options, *files])
    assert done.exit_code == 0, done.output
    order = make_order("legend", 7, 3)
    result = json.loads((tmp_path / "o.json").read_text())
    assert result["states"] == [list(s) for s in order.states]
    assert result["buckets"] == [[list(b) for b in bs] for bs in order.buckets]
    assert result["overlapped"] == [[list(b) for b in bs] for bs in order.overlapped]
    assert f"{len(order.states)} (with one load a swap at least 10)" in done.output
    assert "verified" in done.output
    text = (tmp_path / f"o.{ending}").read_text()
    if ending == "svg":
        marks = [e for e in ElementTree.fromstring(text).iter() if "mark" in e.get("class", "")]
        assert len(marks) == len(residencies(order)) + len(order.swaps)
    assert "7 partitions, 3 resident" in text


def test_command_refuses(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["embed", "orders", "--partitions", "4", "--buffer", "1"])
    assert isinstance(done.exception, ArgumentError)
    done = CliRunner().invoke(app, ["embed", "orders", "--plot", str(tmp_path / "x.pdf")])
    assert isinstance(done.exception, ArgumentError)
