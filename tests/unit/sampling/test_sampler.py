"""The sampler against brute force: which edges, how many, in what order; how often; and that nothing else matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch_geometric.utils import trim_to_layer

from outcrop import _core
from outcrop.config import SampleConfig
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.pyg import to_pyg
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.sampling.seeds import SPLIT_CODES, epoch_seeds
from outcrop.store.batches import BatchGraph
from outcrop.store.minibatch import MiniBatch
from outcrop.testing import write_graph
from sampling_support import RARE, Csc, csc, draw, random_csc, same


def check(
    batch: BatchGraph, graph: Csc, seeds: Sequence[int], fanouts: Sequence[int], replace: bool = False
) -> None:
    """Everything that must hold for any draw."""
    indptr, indices = graph
    assert (batch.n_id.dtype, batch.rowptr.dtype, batch.col.dtype) == (np.int64, np.int32, np.int32)
    assert len(batch.nodes_per_hop) == len(fanouts) + 1
    assert len(batch.edges_per_hop) == len(fanouts)
    assert sum(batch.nodes_per_hop) == len(batch.n_id) == len(set(batch.n_id.tolist()))
    ends = np.cumsum(batch.nodes_per_hop)
    assert batch.n_id[: ends[0]].tolist() == list(seeds)
    assert len(batch.rowptr) == ends[-2] + 1
    assert batch.rowptr[0] == 0
    assert batch.rowptr[-1] == len(batch.col) == sum(batch.edges_per_hop)
    first_met = np.full(len(batch.n_id), len(fanouts) + 1)  # hop in which an edge first leads to a node
    first_met[: ends[0]] = 0
    for hop, fanout in enumerate(fanouts):
        begin, end = (ends[hop - 1] if hop else 0), ends[hop]
        new = batch.n_id[ends[hop] : ends[hop + 1]]
        assert (np.diff(new) > 0).all()
        assert batch.rowptr[end] - batch.rowptr[begin] == batch.edges_per_hop[hop]
        for row in range(begin, end):
            node = batch.n_id[row]
            neighbors = indices[indptr[node] : indptr[node + 1]].tolist()
            cols = batch.col[batch.rowptr[row] : batch.rowptr[row + 1]]
            assert (cols >= 0).all()
            assert (cols < ends[hop + 1]).all()
            picked = batch.n_id[cols].tolist()
            assert set(picked) <= set(neighbors)
            if replace:
                assert len(picked) == (fanout if neighbors else 0)
            else:
                assert (
                    len(picked)
                    == len(set(picked))
                    == (len(neighbors) if fanout == -1 else min(fanout, len(neighbors)))
                )
            first_met[cols] = np.minimum(first_met[cols], hop + 1)
    assert first_met.tolist() == np.repeat(np.arange(len(fanouts) + 1), batch.nodes_per_hop).tolist()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [(1,), (3, 4), (40,), (2, 70, 3), (5, 5, 5, 5)])
def test_any_draw_is_a_draw(fanouts, replace):
    graph = random_csc(400, 6000, 1)
    assert (np.diff(graph[0]) == 0).any()
    assert np.diff(graph[0]).max() > 80
    seeds = np.random.default_rng(2).permutation(400)
    batches = [seeds[i : i + 50].tolist() for i in range(0, 400, 50)]
    for batch, wanted in zip(draw(graph, batches, fanouts, replace=replace, seed=9), batches, strict=True):
        check(batch, graph, wanted, fanouts, replace)


def test_all_neighbours_are_breadth_first_search():
    graph = random_csc(300, 900, 3)
    indptr, indices = graph
    (batch,) = draw(graph, [[7, 250, 31]], (-1, -1, -1))
    check(batch, graph, [7, 250, 31], (-1, -1, -1))
    seen, frontier = [7, 250, 31], [7, 250, 31]
    for _ in range(3):
        frontier = sorted(
            {u for v in frontier for u in indices[indptr[v] : indptr[v + 1]].tolist()} - set(seen)
        )
        seen += frontier
    assert batch.n_id.tolist() == seen
    rows = [
        batch.n_id[batch.col[a:b]].tolist() for a, b in zip(batch.rowptr[:-1], batch.rowptr[1:], strict=True)
    ]
    assert rows == [indices[indptr[v] : indptr[v + 1]].tolist() for v in seen[: len(rows)]]


@st.composite
def problems(make: Callable):
    nodes = make(st.integers(1, 30))
    edges = make(st.sets(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=120))
    adjacency = [sorted(u for u, v in edges if v == node) for node in range(nodes)]
    seeds = make(st.lists(st.lists(st.integers(0, nodes - 1), unique=True, max_size=nodes), max_size=4))
    replace = make(st.booleans())
    fanouts = make(
        st.lists(
            st.integers(1, 40) if replace else st.sampled_from([-1, 1, 2, 3, 10, 33]), min_size=1, max_size=4
        )
    )
    return csc(adjacency), seeds, fanouts, replace


@given(problems(), st.integers(0, 2**64 - 1), st.sampled_from([np.uint32, np.int64]))
@settings(max_examples=120)
def test_any_draw_on_any_graph(problem, seed, dtype):
    graph, seeds, fanouts, replace = problem
    drawn = draw(graph, seeds, fanouts, replace=replace, seed=seed, dtype=dtype)
    assert len(drawn) == len(seeds)
    for batch, wanted in zip(drawn, seeds, strict=True):
        check(batch, graph, wanted, fanouts, replace)


def star(leaves: int) -> Csc:
    """Node 0 has in-neighbours 1..leaves."""
    return csc([list(range(1, leaves + 1))] + [[] for _ in range(leaves)])


def many_draws(leaves: int, fanout: int, draws: int, *, replace: bool = False) -> np.ndarray:
    """int64 [draws, fanout]: which leaves were drawn, from 0."""
    batches = draw(star(leaves), [[0]] * draws, (fanout,), replace=replace, seed=5)
    return np.array([b.n_id[b.col] - 1 for b in batches])


# (degree, fanout): the two ways to look for repeats (up to 32, above), nearly all neighbours, one, a large degree.
@pytest.mark.parametrize(
    ("leaves", "fanout", "draws"),
    [
        (5, 1, 20000),
        (7, 3, 20000),
        (20, 19, 20000),
        (33, 32, 8000),
        (40, 33, 8000),
        (100, 64, 5000),
        (70000, 40, 2000),
        (70000, 3, 20000),
    ],
)
def test_every_neighbour_is_equally_likely(leaves, fanout, draws):
    drawn = many_draws(leaves, fanout, draws)
    assert all(len(set(row)) == fanout for row in drawn.tolist())
    bins = min(leaves, 50)
    size = np.bincount(np.arange(leaves) * bins // leaves)
    counts = np.bincount((drawn * bins // leaves).ravel(), minlength=bins)
    p, share = fanout / leaves, size / leaves
    if (
        leaves == bins
    ):  # inclusion counts; the covariance of sampling without replacement makes this chi-square
        statistic = ((counts - draws * p) ** 2).sum() / (draws * p * (1 - p)) * (leaves - 1) / leaves
        assert RARE < stats.chi2.sf(statistic, leaves - 1) < 1 - RARE
    else:
        correction = (leaves - 1) / (leaves - fanout)
        statistic = ((counts - draws * fanout * share) ** 2 / (draws * fanout * share)).sum() * correction
        assert RARE < stats.chi2.sf(statistic, bins - 1) < 1 - RARE


@pytest.mark.parametrize(("leaves", "fanout", "draws"), [(5, 2, 20000), (6, 4, 20000), (35, 33, 20000)])
def test_every_set_of_neighbours_is_equally_likely(leaves, fanout, draws):
    """Stronger than single inclusion: all subsets, so pairs and everything else jointly."""
    subsets = {s: i for i, s in enumerate(combinations(range(leaves), fanout))}
    found = np.bincount(
        [subsets[tuple(sorted(row))] for row in many_draws(leaves, fanout, draws).tolist()],
        minlength=len(subsets),
    )
    assert RARE < stats.chisquare(found).pvalue < 1 - RARE


@pytest.mark.parametrize(("leaves", "fanout"), [(9, 3), (40, 36)])
def test_pairs_of_neighbours_are_equally_likely(leaves, fanout):
    draws = 20000
    drawn = many_draws(leaves, fanout, draws)
    inside = np.zeros((draws, leaves))
    np.put_along_axis(inside, drawn, 1, axis=1)
    together = (inside.T @ inside)[np.triu_indices(leaves, 1)]
    p = fanout * (fanout - 1) / (leaves * (leaves - 1))
    z = (together - draws * p) / np.sqrt(draws * p * (1 - p))
    assert np.abs(z).max() < stats.norm.isf(RARE / len(z))


def test_draws_with_replacement_are_uniform_and_independent():
    drawn = many_draws(6, 4, 20000, replace=True)
    for position in range(4):
        assert stats.chisquare(np.bincount(drawn[:, position], minlength=6)).pvalue > RARE
    for a, b in combinations(range(4), 2):
        table = np.zeros((6, 6))
        np.add.at(table, (drawn[:, a], drawn[:, b]), 1)
        assert stats.chi2_contingency(table).pvalue > RARE


def test_nodes_of_one_batch_draw_independently():
    """Two nodes with the same neighbours, in one batch: no correlation between what they draw."""
    graph = csc([list(range(2, 8)), list(range(2, 8))] + [[] for _ in range(6)])
    table = np.zeros((6, 6))
    for batch in draw(graph, [[0, 1]] * 20000, (1,), seed=3):
        table[tuple(batch.n_id[batch.col] - 2)] += 1
    assert stats.chi2_contingency(table).pvalue > RARE
    assert stats.chisquare(table.ravel()).pvalue > RARE


def test_nothing_depends_on_threads_or_index_width():
    graph = random_csc(500, 8000, 4)
    seeds = [list(range(i, i + 23)) for i in range(0, 460, 23)]
    expected = draw(graph, seeds, (4, 6, 40), seed=1)
    for threads in (1, 2, 4):
        for dtype in (np.uint32, np.int64):
            again = draw(graph, seeds, (4, 6, 40), seed=1, threads=threads, dtype=dtype)
            assert all(same(a, b) for a, b in zip(expected, again, strict=True))
    one_by_one = [draw(graph, [s], (4, 6, 40), seed=1, first_batch=i)[0] for i, s in enumerate(seeds)]
    assert all(same(a, b) for a, b in zip(expected, one_by_one, strict=True))


def test_the_key_is_seed_split_epoch_and_batch():
    graph = random_csc(500, 20000, 5)
    base: dict[str, int] = {"seed": 1, "split": 0, "epoch": 2, "first_batch": 3}
    (reference,) = draw(graph, [list(range(30))], (3, 3), **base)
    assert same(reference, draw(graph, [list(range(30))], (3, 3), **base)[0])
    others = [
        draw(graph, [list(range(30))], (3, 3), **{**base, name: value})[0]
        for name in base
        for value in (7, 8, base[name] + 1)
    ]
    for a, b in combinations([reference, *others], 2):
        assert not same(a, b) or a is b


def rows_of_hop(batch: BatchGraph, hop: int) -> dict[int, list[int]]:
    ends = np.cumsum([0, *batch.nodes_per_hop])
    return {
        int(batch.n_id[r]): batch.n_id[batch.col[batch.rowptr[r] : batch.rowptr[r + 1]]].tolist()
        for r in range(ends[hop], ends[hop + 1])
    }


def test_what_a_node_draws_does_not_depend_on_its_company():
    graph = random_csc(500, 20000, 6)
    (alone,) = draw(graph, [[5, 9, 11]], (3, 4), seed=2)
    (among,) = draw(graph, [[400, 9, 3, 5, 77, 11, 120]], (3, 4), seed=2)
    first, second = rows_of_hop(alone, 0), rows_of_hop(among, 0)
    assert all(second[node] == first[node] for node in (5, 9, 11))
    first, second = rows_of_hop(alone, 1), rows_of_hop(among, 1)
    common = first.keys() & second.keys()
    assert common
    assert all(first[node] == second[node] for node in common)


def test_hops_draw_differently():
    """The same node, expanded in hop 1 or in hop 2, draws from different streams."""
    graph = csc([[1], list(range(2, 60))] + [[] for _ in range(58)])
    first = [rows_of_hop(b, 0)[1] for b in draw(graph, [[1]] * 20, (5, 5), seed=1)]
    second = [rows_of_hop(b, 1)[1] for b in draw(graph, [[0]] * 20, (5, 5), seed=1)]
    assert all(a != b for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_damaged_topology_is_refused(dtype):
    indptr, indices = csc([[1, 2], [0], [0, 1]])
    for position, value in ((1, -1), (1, 4), (2, 1), (3, 6)):
        broken = indptr.copy()
        broken[position] = value
        if position == 3:
            broken[3] = len(indices) + 1
        with pytest.raises(FormatError, match="topology is damaged"):
            draw((broken, indices), [[0, 1, 2]], (2,), dtype=dtype)
    for value in (3, 2**31) + ((-1,) if dtype is np.int64 else (2**32 - 1,)):
        broken = indices.copy()
        broken[1] = value
        with pytest.raises(FormatError, match="neighbour"):
            draw((indptr, broken), [[0]], (2,), dtype=dtype)
        with pytest.raises(FormatError, match="neighbour"):
            draw((indptr, broken), [[0]], (2,), dtype=dtype, threads=2)


def test_impossible_arguments_are_refused():
    graph = csc([[1, 2], [0], [0, 1]])
    for seeds in ([[3]], [[-1]], [[0, 2**40]]):
        with pytest.raises(ArgumentError, match=r"seed node .* is not in 0\.\.2"):
            draw(graph, seeds, (2,))
    with pytest.raises(ArgumentError, match="seed node 1 stands twice"):
        draw(graph, [[0], [1, 2, 1]], (2,))
    for fanouts, replace in (((), False), ((0,), False), ((-2,), False), ((2, -1), True)):
        with pytest.raises(ArgumentError, match="fanout"):
            draw(graph, [[0]], fanouts, replace=replace)
    with pytest.raises(ArgumentError, match="uint32 or int64"):
        draw(graph, [[0]], (2,), dtype=np.float32)
    with pytest.raises(ArgumentError, match="indptr is empty"):
        draw((np.zeros(0, np.int64), np.zeros(0, np.int64)), [[]], (2,))
    sampler = _core.NeighborSampler(_core.WorkerPool(1), *graph, [2])
    for offsets in ([0, 3], [1, 0], [-1, 1]):
        with pytest.raises(ArgumentError, match="offsets must rise"):
            sampler.sample(np.array([0, 1]), np.array(offsets), 0, 0, 0)
    assert sampler.sample(np.zeros(0, np.int64), np.zeros(1, np.int64), 0, 0, 0) == []


def test_a_batch_beyond_its_memory_is_refused_and_the_sampler_goes_on():
    graph = random_csc(3000, 60000, 7)
    seeds = list(range(200))
    with pytest.raises(BudgetError, match=r"needs \d+ bytes \(.*\), 20000 bytes \(19.5 KiB\) are set aside"):
        draw(graph, [seeds], (10, 10), max_batch_bytes=20000)
    sampler = _core.NeighborSampler(_core.WorkerPool(1), *graph, [10, 10], max_batch_bytes=40000)
    with pytest.raises(BudgetError):
        sampler.sample(np.array(seeds), np.array([0, 200]), 0, 0, 0)
    n_id = sampler.sample(np.array([2999]), np.array([0, 1]), 0, 0, 0)[0][0]
    assert n_id.tolist() == draw(graph, [[2999]], (10, 10))[0].n_id.tolist()


def test_whether_a_batch_fits_does_not_depend_on_those_before():
    """What suffices once suffices always: else the outcome would depend on which thread draws which batch."""
    graph = random_csc(3000, 60000, 7)
    seeds = [list(range(i, i + 100)) for i in range(0, 600, 100)]

    def fits(limit: int, batches: list[list[int]]) -> bool:
        try:
            draw(graph, batches, (10, 10), max_batch_bytes=limit)
        except BudgetError:
            return False
        return True

    low, high = 1, 1 << 24
    while high - low > 1:
        middle = (low + high) // 2
        if all(fits(middle, [s]) for s in seeds):
            high = middle
        else:
            low = middle
    assert fits(high, seeds)
    assert fits(high, seeds[::-1])


def small_graph(folder: Path, runtime: Runtime):
    rng = np.random.default_rng(0)
    edges = np.unique(rng.integers(0, 2000, (2, 350000)), axis=1)
    splits = {"train": rng.choice(2000, 333, replace=False), "valid": np.arange(50, 77)}
    return write_graph(
        folder / "g", edges, 2000, runtime, labels=rng.integers(0, 5, 2000), splits=splits
    ), splits


def test_batch_sampler_equals_the_core_wherever_the_topology_is(tmp_path, make_runtime):
    graph, splits = small_graph(tmp_path, make_runtime())
    config = SampleConfig(fanouts=(5, 7), batch_size=50, seed=4)
    topology = (
        np.fromfile(graph.path / "indptr.bin", "<i8", graph.num_nodes + 1),
        np.fromfile(graph.path / "indices.bin", "<u4", graph.num_edges),
    )
    labels = np.fromfile(graph.path / "labels.bin", "<i8", 2000)
    for threads, memory, placement in (
        (1, "64MiB", "memory"),
        (2, "64MiB", "memory"),
        (2, "3MiB", "paged"),
        (3, "3MiB", "paged"),
    ):
        topology_of = "automatic" if placement == "memory" else placement
        sampler = BatchSampler(graph, config, make_runtime(memory, threads=threads), topology=topology_of)
        assert sampler.topology.placement == placement
        for split, epoch in (("train", 0), ("train", 3), ("valid", 0)):
            seeds = epoch_seeds(np.sort(splits[split]), config, split, epoch)
            parts = [seeds[i : i + 50].tolist() for i in range(0, len(seeds), 50)]
            got = list(sampler.batches(split, epoch, seeds))
            expected = draw(topology, parts, (5, 7), seed=4, split=SPLIT_CODES[split], epoch=epoch)
            assert all(same(a, b) for a, b in zip(got, expected, strict=True))
            assert all(np.array_equal(b.labels, labels[b.n_id[: b.num_seeds]]) for b in got)


def test_epoch_seeds_are_keyed_permutations():
    ids, config = np.arange(0, 3000, 3), SampleConfig(batch_size=64, seed=1)
    orders = [epoch_seeds(ids, config, "train", e) for e in range(3)]
    orders.append(epoch_seeds(ids, SampleConfig(batch_size=64, seed=2), "train", 0))
    for order in orders:
        assert np.array_equal(np.sort(order), ids)
        assert all((np.diff(order[i : i + 64]) > 0).all() for i in range(0, len(order), 64))
    assert not any(np.array_equal(a, b) for a, b in combinations(orders, 2))
    assert np.array_equal(epoch_seeds(ids, config, "train", 1), orders[1])
    assert np.array_equal(epoch_seeds(ids, config, "valid", 5), ids)
    # Which batch a node falls in is uniform over epochs.
    first = sum(np.isin(ids[:100], epoch_seeds(ids, config, "train", e)[:64]).sum() for e in range(400))
    assert abs(first - 400 * 6.4) < 5 * np.sqrt(400 * 6.4)


def test_no_labels_and_no_edges(tmp_path, make_runtime):
    graph = write_graph(
        tmp_path / "g", np.zeros((2, 0), np.int64), 9, make_runtime(), splits={"train": np.arange(9)}
    )
    sampler = BatchSampler(
        graph, SampleConfig(fanouts=(3, -1), batch_size=4), make_runtime("8MiB", threads=2)
    )
    batches = list(sampler.batches("train", 0, np.arange(9)))
    assert [b.n_id.tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert all(b.num_edges == 0 and b.labels.tolist() == [-1] * b.num_seeds for b in batches)
    assert list(sampler.batches("valid", 0, np.zeros(0, np.int64))) == []


def test_batches_keep_torch_geometrics_conventions():
    graph, seeds = random_csc(400, 6000, 8), [11, 5, 300, 42]
    (batch,) = draw(graph, [seeds], (4, 3, 5), seed=6)
    x = torch.arange(400 * 2, dtype=torch.float32).reshape(400, 2)[torch.from_numpy(batch.n_id)]
    data = to_pyg(MiniBatch(batch, (x,), torch.from_numpy(batch.labels)))
    assert data.validate()
    assert data.is_sorted(sort_by_row=False)
    assert sum(data.num_sampled_nodes) == data.num_nodes == len(data.n_id.unique())
    assert sum(data.num_sampled_edges) == data.num_edges
    assert data.n_id[: data.batch_size].tolist() == seeds
    assert data.num_sampled_nodes[0] == data.batch_size
    ends = np.cumsum(data.num_sampled_nodes)
    edge_ends = np.cumsum([0, *data.num_sampled_edges])
    for hop in range(3):  # edges of hop h point at the nodes met in hop h
        source, target = data.edge_index[:, edge_ends[hop] : edge_ends[hop + 1]]
        assert (target < ends[hop]).all()
        assert (target >= (ends[hop - 1] if hop else 0)).all()
        assert (source < ends[hop + 1]).all()
    for layer in range(3):
        trimmed, edge_index, _ = trim_to_layer(
            layer, data.num_sampled_nodes, data.num_sampled_edges, data.x, data.edge_index
        )
        data.x, data.edge_index = trimmed, edge_index
        assert edge_index.numel() == 0 or edge_index.max() < len(trimmed)
