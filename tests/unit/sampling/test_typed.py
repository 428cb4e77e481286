"""Batches of typed graphs against the reference: which edges, how often, and the same wherever the lists lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import typed_reference as reference
from outcrop import _core
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.runtime.runtime import Runtime
from sampling_support import RARE, draw, random_csc
from typed_reference import TypedBatch, TypedGraph
from typed_support import arrays_of, batch_of, draw_typed, on_disk

Make = Callable[..., Runtime]
SAMPLERS: tuple[dict[str, Any], ...] = (
    {},
    {"replace": True},
    {"sampler": "weighted"},
    {"sampler": "labor"},
    {"sampler": "labor", "dependency": 3},
)


def large_graph(seed: int, weighted: bool = False) -> TypedGraph:
    """Four types, one of them empty and one of one node, with lists that span pages."""
    rng = np.random.default_rng(seed)
    sizes = (900, 0, 1, 2000)
    edge_types = ((0, 0), (3, 0), (2, 0), (0, 3), (1, 3), (3, 2), (0, 0))
    lists = []
    for source, target in edge_types:
        most = min(sizes[source], 40)
        counts = (rng.random(sizes[target]) ** 3 * (most + 1)).astype(int)
        lists.append(
            tuple(
                tuple(sorted(rng.choice(sizes[source], n, replace=False).tolist())) if n else ()
                for n in counts
            )
        )
    weights = tuple(
        None if r == 3 else tuple(tuple((rng.integers(0, 4, len(row)) / 2).tolist()) for row in rows)
        for r, rows in enumerate(lists)
    )
    return TypedGraph(sizes, edge_types, tuple(lists), weights if weighted else None)


LARGE_SEEDS = [{0: list(range(i, i + 20)), 2: [0], 3: [7, 3, i]} for i in range(100, 160, 10)]


def kind_of(sampler: dict[str, Any]) -> dict[str, bool]:
    """How the reference is told of a sampler."""
    found = {name: sampler.get("sampler") == name for name in ("weighted", "labor")}
    return {"replaced": "replace" in sampler, **found}


def _check_samples(data: st.DataObject, kind: dict[str, Any], seed: int, positions: bool) -> None:
    wanted_kind = kind_of(kind)
    graph = data.draw(reference.typed_graphs(weighted=wanted_kind["weighted"]))
    seeds = [data.draw(reference.seeds_of(graph)) for _ in range(2)]
    fanouts = data.draw(reference.fanouts_of(graph, replaced=wanted_kind["replaced"]))
    drawn = draw_typed(arrays_of(graph), seeds, fanouts, seed=seed, positions=positions, **kind)
    for batch, wanted in zip(drawn, seeds, strict=True):
        reference.check(batch, graph, wanted, fanouts, **wanted_kind)
        assert all((p is None) != positions for _, p in chain(*chain(*batch.rows)))


@settings(max_examples=300)
@given(st.data(), st.sampled_from(SAMPLERS), st.integers(0, 2**32), st.booleans())
def test_batches_are_those_of_neighbor_sampling(data, kind, seed, positions):
    _check_samples(data, kind, seed, positions)


@pytest.mark.slow
@settings(max_examples=10000)
@given(st.data(), st.sampled_from(SAMPLERS), st.integers(0, 2**32), st.booleans())
def test_many_batches_are_those_of_neighbor_sampling(data, kind, seed, positions):
    _check_samples(data, kind, seed, positions)


@settings(max_examples=300)
@given(st.data(), st.integers(1, 3), st.booleans())
def test_without_a_choice_batches_are_the_reference_s(data, hops, weighted):
    """All neighbors; by weight, too, where no weight is zero."""
    graph = data.draw(reference.typed_graphs())
    if weighted:
        ones = tuple(tuple(tuple(1.0 for _ in row) for row in rows) for rows in graph.lists)
        graph = TypedGraph(graph.sizes, graph.edge_types, graph.lists, ones)
    seeds = data.draw(reference.seeds_of(graph))
    fanouts = [[-1] * hops for _ in graph.edge_types]
    options: dict[str, Any] = {"sampler": "weighted"} if weighted else {}
    expected = reference.sample(graph, seeds, hops)
    assert draw_typed(arrays_of(graph), [seeds], fanouts, positions=True, **options) == [expected]
    (plain,) = draw_typed(arrays_of(graph), [seeds], fanouts, **options)
    assert plain == expected.without_positions()


@settings(max_examples=200)
@given(st.data(), st.integers(1, 3))
def test_with_all_neighbors_a_batch_is_that_of_the_flat_graph(data, hops):
    graph = data.draw(reference.typed_graphs())
    seeds = data.draw(reference.seeds_of(graph))
    arrays = arrays_of(graph)
    (typed,) = draw_typed(arrays, [seeds], [[-1] * hops for _ in graph.edge_types])
    lists = reference.flat(graph)
    indptr = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    indices = np.array([u for sources in lists for u in sources], np.int64)
    (flat,) = draw((indptr, indices), [arrays.seeds(seeds)], [-1] * hops)
    firsts = [graph.first_node(t) for t in range(len(graph.sizes))]
    for hop in range(hops + 1):
        begin, end = sum(flat.nodes_per_hop[:hop]), sum(flat.nodes_per_hop[: hop + 1])
        of_types = [
            firsts[t] + node
            for t, (ids, per_hop) in enumerate(zip(typed.nodes, typed.nodes_per_hop, strict=True))
            for node in ids[sum(per_hop[:hop]) : sum(per_hop[: hop + 1])]
        ]
        assert of_types == flat.n_id[begin:end].tolist()
    source, target = flat.n_id[flat.edge_index()]
    edges = Counter(
        (firsts[s] + typed.nodes[s][u], firsts[t] + typed.nodes[t][i])
        for (s, t), rows in zip(graph.edge_types, typed.rows, strict=True)
        for i, row in enumerate(rows)
        for u, _ in row
    )
    assert edges == Counter(zip(source.tolist(), target.tolist(), strict=True))
    assert np.sum(typed.edges_per_hop, axis=0).tolist() == list(flat.edges_per_hop)


@pytest.mark.parametrize(
    "sampler", [{}, {"replace": True}, {"sampler": "weighted"}, {"sampler": "labor"}, {"sampler": "shadow"}]
)
def test_one_named_type_equals_one_without_a_name(sampler):
    indptr, indices = random_csc(400, 6000, 1)
    weights = (np.arange(len(indices)) % 4).astype(np.float32)
    weighted: dict[str, Any] = {"weights": weights} if "weighted" in sampler.values() else {}
    relations = _core.Relations([0, 400], [(0, 0, len(indices), True)])
    named_or_not: tuple[dict[str, Any], ...] = ({}, {"relations": relations})
    seeds, offsets = np.random.default_rng(2).permutation(400), np.arange(0, 401, 50)
    for fanouts in ([5, 3], [40, 2, 2]):
        one, named = (
            _core.NeighborSampler(
                _core.WorkerPool(2), indptr, indices, given, seed=4, **sampler, **weighted, **more
            ).sample(seeds, offsets, 1, 2, 3)
            for given, more in zip((fanouts, [fanouts]), named_or_not, strict=True)
        )
        for (n_id, rowptr, col, nodes, edges), (by_node, by_edge) in zip(one, named, strict=True):
            ((ids, nodes_of_type),), ((*csr, edges_of_type, positions),) = by_node, by_edge
            assert (nodes_of_type, edges_of_type, positions) == (nodes, edges, None)
            for a, b in zip((n_id, rowptr, col), (ids, *csr), strict=True):
                assert np.array_equal(a, b)


def test_the_first_edge_type_draws_as_one_alone():
    """Also beside others, which have draws of their own."""
    indptr, indices = random_csc(300, 6000, 3)
    lists = tuple(tuple(indices[a:b].tolist()) for a, b in pairwise(indptr))
    twice = TypedGraph((300,), ((0, 0), (0, 0)), (lists, lists))
    seeds = list(range(0, 300, 3))
    (both,) = draw_typed(arrays_of(twice), [{0: seeds}], [[4], [4]], seed=7)
    (alone,) = draw((indptr, indices), [seeds], (4,), seed=7)
    picked = [[[both.nodes[0][u] for u, _ in row] for row in both.rows[r]] for r in range(2)]
    ends = alone.rowptr.tolist()
    assert picked[0] == [alone.n_id[alone.col[a:b]].tolist() for a, b in pairwise(ends)]
    long = [i for i, v in enumerate(seeds) if len(lists[v]) > 8]
    assert len(long) > 20
    assert sum(picked[0][i] == picked[1][i] for i in long) < len(long) // 4


def inclusion(batches: list[TypedBatch], edge_type: int, edges: int) -> np.ndarray:
    counts = np.zeros(edges, np.int64)
    for batch in batches:
        for _, position in chain(*batch.rows[edge_type]):
            counts[position] += 1
    return counts


@pytest.mark.parametrize("degree", [3, 7, 40])
def test_neighbors_are_drawn_equally_often(degree):
    """Each edge with probability fanout / degree; of two edge types independently."""
    draws, fanout = 6000, 3
    lists = (tuple(range(degree)),)
    graph = TypedGraph((1, degree), ((1, 0), (1, 0)), (lists, lists))
    batches = draw_typed(arrays_of(graph), [{0: [0]}] * draws, [[fanout], [fanout]], positions=True, seed=3)
    p = fanout / degree
    for r in range(2):
        counts = inclusion(batches, r, degree)
        assert counts.sum() == draws * fanout
        if p < 1:
            # indicators of a draw of fixed size: variance p (1 - p), covariance -p (1 - p) / (degree - 1)
            statistic = ((counts - draws * p) ** 2).sum() / (draws * p * (1 - p)) * (degree - 1) / degree
            assert RARE < stats.chi2.sf(statistic, degree - 1) < 1 - RARE
    if p < 1:
        both = np.zeros((2, draws), bool)  # whether neighbor 0 was drawn by each
        for i, batch in enumerate(batches):
            for r in range(2):
                both[r, i] = any(position == 0 for _, position in chain(*batch.rows[r]))
        table = [
            [(both[0] & both[1]).sum(), (both[0] & ~both[1]).sum()],
            [(~both[0] & both[1]).sum(), (~both[0] & ~both[1]).sum()],
        ]
        assert stats.chi2_contingency(table).pvalue > RARE


def test_numbers_of_labor_are_of_an_edge_type():
    """Two targets of one edge type keep the same sources; another edge type has numbers of its own."""
    leaves, fanout, draws = 40, 8, 3000
    lists = (tuple(range(leaves)),) * 2
    graph = TypedGraph((2, leaves), ((1, 0), (1, 0)), (lists, lists))
    options = {"positions": True, "seed": 3, "sampler": "labor"}
    batches = draw_typed(arrays_of(graph), [{0: [0, 1]}] * draws, [[fanout], [fanout]], **options)
    kept = np.zeros((2, draws, leaves), bool)
    for i, batch in enumerate(batches):
        for r in range(2):
            first, second = ([batch.nodes[1][u] for u, _ in row] for row in batch.rows[r])
            assert first == second
            kept[r, i, first] = True
    p = fanout / leaves
    for r in range(2):
        counts = kept[r].sum(axis=0)
        statistic = ((counts - draws * p) ** 2 / (draws * p * (1 - p))).sum()
        assert RARE < stats.chi2.sf(statistic, leaves) < 1 - RARE
    both = (kept[0] & kept[1]).mean()  # of 120,000 pairs
    assert abs(both - p * p) < 5 * np.sqrt(p * p * (1 - p * p) / kept[0].size)


def test_weights_of_an_edge_type_are_its_own():
    """One neighbor in proportion to weights where there are some, uniformly where there are none."""
    draws, weights = 6000, np.array([0, 1, 2, 0, 5, 2], float)
    lists = (tuple(range(6)),)
    graph = TypedGraph(
        (1, 6), ((1, 0),) * 3, (lists,) * 3, ((tuple(weights[::-1]),), None, (tuple(weights),))
    )
    batches = draw_typed(
        arrays_of(graph), [{0: [0]}] * draws, [[1]] * 3, positions=True, seed=3, sampler="weighted"
    )
    for r, expected in enumerate((weights[::-1], np.ones(6), weights)):
        counts, share = inclusion(batches, r, 6), expected / expected.sum()
        assert (counts[share == 0] == 0).all()
        assert RARE < stats.chisquare(counts[share > 0], draws * share[share > 0]).pvalue < 1 - RARE


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("positions", [False, True])
def test_threads_widths_and_steps_change_nothing(sampler, positions):
    graph = large_graph(1, weighted=True)
    arrays = arrays_of(graph)
    fanouts = [[3, 2, 2], [5, 1, 0], [1, 0, 3], [30, 2, 5], [2, 2, 2], [0, 10, 1], [4, 4, 4]]
    options = {"positions": positions, "seed": 5, "split": 1, "epoch": 2, **sampler}
    expected = draw_typed(arrays, LARGE_SEEDS, fanouts, **options)
    for batch, seeds in zip(expected, LARGE_SEEDS, strict=True):
        reference.check(batch, graph, seeds, fanouts, **kind_of(sampler))
    assert draw_typed(arrays, LARGE_SEEDS, fanouts, threads=3, dtype=np.uint32, **options) == expected
    assert draw_typed(arrays, LARGE_SEEDS[2:3], fanouts, first_batch=2, **options) == expected[2:3]
    weights: dict[str, Any] = {"weights": arrays.weights} if kind_of(sampler)["weighted"] else {}
    steps = _core.NeighborSampler(
        _core.WorkerPool(1),
        arrays.indptr,
        arrays.indices,
        fanouts,
        relations=arrays.relations,
        positions=positions,
        seed=5,
        **sampler,
        **weights,
    )
    steps.begin(np.array(arrays.seeds(LARGE_SEEDS[0]), np.int64), 1, 2, 0)
    for hop in range(1, 4):
        met = [
            graph.first_node(t) + node
            for t, (ids, per_hop) in enumerate(zip(expected[0].nodes, expected[0].nodes_per_hop, strict=True))
            for node in ids[sum(per_hop[:hop]) : sum(per_hop[: hop + 1])]
        ]
        assert np.asarray(steps.hop()).tolist() == met
    assert batch_of(*steps.finish()) == expected[0]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    ("dtype", "cache", "scratch", "in_memory", "positions"),
    [
        (np.uint32, 0, 1 << 16, False, True),
        (np.int64, 1 << 16, 1 << 18, True, True),
        (np.uint32, 1 << 18, 1 << 17, False, False),
    ],
)
def test_batches_by_pages_and_mapped_are_those_of_memory(
    tmp_path: Path, make_runtime: Make, sampler, dtype, cache, scratch, in_memory, positions
):
    arrays = arrays_of(large_graph(2, weighted=True))
    options = {"positions": positions, "seed": 9, "epoch": 1, **sampler}
    disk = on_disk(
        arrays,
        tmp_path,
        make_runtime(threads=2),
        dtype=dtype,
        cache=cache,
        scratch=scratch,
        indptr_in_memory=in_memory,
    )
    for fanouts in (
        [[3, 2, 2], [5, 1, 0], [1, 0, 3], [30, 2, 5], [2, 2, 2], [0, 10, 1], [4, 4, 4]],
        [[1 if sampler else -1, 2]] * 7,
    ):
        expected = draw_typed(arrays, LARGE_SEEDS, fanouts, **options)
        assert disk.draw(LARGE_SEEDS, fanouts, **options) == expected
        assert draw_typed(disk.mapped(), LARGE_SEEDS, fanouts, dtype=dtype, **options) == expected
        alone = [
            disk.draw([seeds], fanouts, first_batch=i, **options)[0] for i, seeds in enumerate(LARGE_SEEDS)
        ]
        assert alone == expected
    disk.close()


@pytest.mark.parametrize("positions", [False, True])
def test_memory_of_a_batch_counts_it_in_both_orders(positions):
    """Hop by hop while it is drawn, and by type when it is done."""
    arrays = arrays_of(large_graph(5))
    seeds = np.array(arrays.seeds({0: list(range(200)), 3: list(range(300))}), np.int64)
    offsets = np.array([0, len(seeds)], np.int64)
    fanouts = [[-1]] * 7

    def sampler(**limit: Any) -> Any:
        return _core.NeighborSampler(
            _core.WorkerPool(1),
            arrays.indptr,
            arrays.indices,
            fanouts,
            relations=arrays.relations,
            positions=positions,
            **limit,
        )

    free = sampler()
    ((by_node, by_edge),) = free.sample(seeds, offsets, 0, 0, 0)
    edges = sum(len(part[1]) for part in by_edge)
    rows = 1 + sum(len(part[0]) - 1 for part in by_edge)
    nodes = len(seeds) + edges  # at the most
    table = 12 * (1 << (2 * nodes - 1).bit_length())
    drawn = 8 * nodes + 4 * rows + (12 if positions else 4) * edges
    needed = free.most_batch_bytes
    assert needed == 2 * drawn + 4 * nodes + table // 2 * 3 + 20 * edges
    assert edges > sum(len(part[0]) for part in by_node) > len(seeds)
    assert len(sampler(max_batch_bytes=needed).sample(seeds, offsets, 0, 0, 0)) == 1
    with pytest.raises(BudgetError, match="raise the memory budget"):
        sampler(max_batch_bytes=needed - 1).sample(seeds, offsets, 0, 0, 0)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("every", [1, 3])
def test_lists_in_memory_are_not_read(tmp_path: Path, make_runtime: Make, sampler, every):
    """All, or each third; those of edge types without weights have numbers in their place that nobody looks at."""
    graph = large_graph(4, weighted=True)
    arrays, runtime = arrays_of(graph), make_runtime(threads=1)
    fanouts = [[3, 2], [5, 1], [1, 0], [30, 2], [2, 2], [0, 10], [4, 4]]
    lists = np.arange(0, len(arrays.indptr) - 1, every, dtype=np.int64)
    starts, ends = arrays.indptr[lists], arrays.indptr[lists + 1]
    places = np.concatenate([np.arange(a, b) for a, b in zip(starts, ends, strict=True)])
    assert graph.weights is not None
    weights = np.concatenate(
        [
            np.full(sum(map(len, rows)), -1) if w is None else np.fromiter(chain(*w), float)
            for rows, w in zip(graph.lists, graph.weights, strict=True)
        ]
    ).astype(np.float32)
    held = (
        np.cumsum([0, *(ends - starts)], dtype=np.int64),
        arrays.indices[places].astype(np.uint32).view(np.uint8),
        weights[places].view(np.uint8),
    )
    disk = on_disk(arrays, tmp_path, runtime)
    index = _core.HotIndex(runtime.budget, len(arrays.indptr) - 1, lists[:0], lists)
    options = {"seed": 9, **sampler}
    for positions in (False, True):
        expected = draw_typed(arrays, LARGE_SEEDS, fanouts, positions=positions, **options)
        before = disk.pages.stats["indices"]["read"]
        disk.pages.cache_lists(index, *held, **({"starts": starts} if positions else {}))
        assert disk.draw(LARGE_SEEDS, fanouts, positions=positions, **options) == expected
        assert (disk.pages.stats["indices"]["read"] == before) == (every == 1)
        if not positions:
            with pytest.raises(ArgumentError, match="cache them with their starts"):
                disk.draw(LARGE_SEEDS, fanouts, positions=True, **options)
        disk.pages.drop_lists()
    short = _core.HotIndex(runtime.budget, 100, lists[:0], lists[:0])
    with pytest.raises(ArgumentError, match="the index numbers 100 lists, the topology has"):
        disk.pages.cache_lists(short, *held)
    disk.close()


@settings(max_examples=60)
@given(st.data(), st.sampled_from(SAMPLERS), st.booleans())
def test_small_graphs_by_pages(tmp_path_factory, data, kind, positions):
    graph = data.draw(reference.typed_graphs(weighted="sampler" in kind))
    seeds = [data.draw(reference.seeds_of(graph)) for _ in range(2)]
    fanouts = data.draw(reference.fanouts_of(graph, replaced="replace" in kind))
    arrays = arrays_of(graph)
    expected = draw_typed(arrays, seeds, fanouts, positions=positions, **kind)
    with Runtime("4MiB", threads=1) as runtime:
        disk = on_disk(arrays, tmp_path_factory.mktemp("small"), runtime)
        assert disk.draw(seeds, fanouts, positions=positions, **kind) == expected
        disk.close()


@pytest.mark.exact_io
def test_pages_of_a_hop_are_read_once_across_edge_types(tmp_path: Path, make_runtime: Make):
    """All lists are wanted whole: a hop reads the distinct pages of its lists, and no page twice."""
    arrays = arrays_of(large_graph(3))
    disk = on_disk(arrays, tmp_path, make_runtime(threads=1), scratch=4 << 20)
    seeds = [{0: list(range(i, i + 300))} for i in (0, 200)]
    disk.draw(seeds, [[-1]] * 7)
    lists = {
        first + v
        for first, ends in zip(arrays.relations.first_lists, arrays.graph.edge_types, strict=True)
        if ends[1] == 0
        for v in range(500)
    }
    ends = {8 * i // 4096 for v in lists for i in (v, v + 1)}
    values = {4 * p // 4096 for v in lists for p in range(arrays.indptr[v], arrays.indptr[v + 1])}
    stats_of = disk.pages.stats
    assert (stats_of["indptr"]["read"], stats_of["indices"]["read"]) == (len(ends), len(values))
    disk.close()


def _draw(graph: TypedGraph, seeds: list[int], fanouts: Any = None, **options: Any) -> None:
    arrays = arrays_of(graph)
    given = [[2]] * len(graph.edge_types) if fanouts is None else fanouts
    _core.NeighborSampler(
        _core.WorkerPool(1), arrays.indptr, arrays.indices, given, relations=arrays.relations, **options
    ).sample(np.array(seeds, np.int64), np.array([0, len(seeds)], np.int64), 0, 0, 0)


TWO = TypedGraph((2, 3), ((0, 1), (1, 0)), (((0, 1), (1,), ()), ((2,), (0, 1))))


def test_what_cannot_be_is_refused():
    _draw(TWO, [1, 0, 4, 2])
    for words, seeds, options in (
        ("seeds go by node type", [4, 1], {}),
        ("stands twice", [1, 1], {}),
        ("is not in 0..4", [5], {}),
        ("fanouts of 1 edge types are given, there are 2", [0], {"fanouts": [[2]]}),
        ("fanouts for 2 hops, the first for 1", [0], {"fanouts": [[2], [2, 2]]}),
        ("no fanouts", [0], {"fanouts": []}),
        ("fanout -2", [0], {"fanouts": [[2], [-2]]}),
        ("fanout -1", [0], {"fanouts": [[2], [-1]], "replace": True}),
        ("one node type and one edge type: choose", [0], {"sampler": "shadow"}),
    ):
        with pytest.raises(ArgumentError, match=words):
            _draw(TWO, seeds, **options)
    one = TypedGraph((2,), ((0, 0),), (((0, 1), (1,)),))
    with pytest.raises(ArgumentError, match="fanout 0"):
        _draw(one, [0], [[0]])
    with pytest.raises(ArgumentError, match="give the relations"):
        _core.NeighborSampler(
            _core.WorkerPool(1), np.array([0, 0]), np.array([], np.int64), [2], positions=True
        )
    with pytest.raises(BudgetError, match="raise the memory budget"):
        _draw(TWO, [0, 1], max_batch_bytes=100)


@pytest.mark.parametrize(
    ("words", "first_nodes", "edge_types"),
    [
        ("at least one node type", [0], [(0, 0, 1, True)]),
        ("at least one node type and one edge type", [0, 3], []),
        ("begin at 0", [1, 3], [(0, 0, 1, True)]),
        ("node type 1 begins at 3 and ends at 2", [0, 3, 2], [(0, 0, 1, True)]),
        ("leads from node type 0 to 2, there are 2", [0, 3, 4], [(0, 2, 1, True)]),
        ("edge type 0 has -1 edges", [0, 3], [(0, 0, -1, True)]),
    ],
)
def test_relations_that_cannot_be_are_refused(words, first_nodes, edge_types):
    with pytest.raises(ArgumentError, match=words):
        _core.Relations(first_nodes, edge_types)


def test_arrays_that_do_not_fit_their_types_are_refused():
    arrays = arrays_of(TWO)
    for words, indptr, indices, weights in (
        ("indptr has 5 entries for 5 neighbor lists", arrays.indptr[:-1], arrays.indices, None),
        ("edge types have 6 edges, indices has 5", arrays.indptr, arrays.indices[:-1], None),
        ("2 edge weights for 0 edges", arrays.indptr, arrays.indices, np.ones(2, np.float32)),
    ):
        with pytest.raises(ArgumentError, match=words):
            _core.NeighborSampler(
                _core.WorkerPool(1), indptr, indices, [2], weights=weights, relations=arrays.relations
            )


@pytest.mark.parametrize("positions", [False, True])
def test_a_damaged_topology_is_noticed(tmp_path: Path, make_runtime: Make, positions):
    """A source of another type, and a list of another edge type."""
    arrays = arrays_of(TWO)
    arrays.indices[0] = 3
    message = "damaged: neighbour 3 where the sources are 0..2"
    with pytest.raises(FormatError, match=message):
        draw_typed(arrays, [{1: [0]}], [[-1], [-1]], positions=positions)
    disk = on_disk(arrays, tmp_path, make_runtime(threads=1))
    with pytest.raises(FormatError, match=message):
        disk.draw([{1: [0]}], [[-1], [-1]], positions=positions)
    disk.close()
    same = TypedGraph((2,), ((0, 0), (0, 0)), (((0,), (1,)), ((1,), (0,))))
    shifted = arrays_of(same)
    shifted.indptr[2] = 3
    with pytest.raises(FormatError, match=r"node 1 are said to lie at 1\.\.3 of 2"):
        draw_typed(shifted, [{0: [0, 1]}], [[-1], [-1]], positions=positions)
