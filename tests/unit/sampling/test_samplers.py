"""LABOR, ShaDow and weighted sampling against brute force: which edges, how often, and that nothing else matters."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats
from torch_geometric.nn import GATConv, GCNConv, SAGEConv
from torch_geometric.utils import k_hop_subgraph, subgraph

from outcrop.config import SampleConfig
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.nn.models import build_model
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.store.batches import BatchGraph
from outcrop.store.minibatch import MiniBatch
from outcrop.testing import write_graph
from sampling_support import RARE, Csc, csc, draw, random_csc, same

Make = Callable[..., Runtime]


def lists_of(graph: Csc) -> list[list[int]]:
    indptr, indices = graph
    return [indices[a:b].tolist() for a, b in pairwise(indptr)]


def rows_of(batch: BatchGraph) -> dict[int, list[int]]:
    """Global ids: the picked neighbours of each node that has a row."""
    return {
        int(batch.n_id[r]): batch.n_id[batch.col[a:b]].tolist()
        for r, (a, b) in enumerate(zip(batch.rowptr[:-1], batch.rowptr[1:], strict=True))
    }


def check_hops(
    batch: BatchGraph, graph: Csc, seeds: list[int], count: Callable[[int, int, int], bool]
) -> None:
    """Conventions of any batch sampled hop by hop; ``count(hop, node, picked)``: as many as there may be."""
    lists, ends = lists_of(graph), np.cumsum(batch.nodes_per_hop)
    assert batch.n_id[: ends[0]].tolist() == seeds
    assert len(batch.rowptr) - 1 == ends[-2]
    assert batch.rowptr[-1] == len(batch.col) == sum(batch.edges_per_hop)
    assert len(set(batch.n_id.tolist())) == len(batch.n_id) == ends[-1]
    met = set(seeds)
    for hop in range(batch.hops):
        new = set()
        begin, end = (ends[hop - 1] if hop else 0), ends[hop]
        assert batch.rowptr[end] - batch.rowptr[begin] == batch.edges_per_hop[hop]
        for row in range(begin, end):
            node = int(batch.n_id[row])
            picked = batch.n_id[batch.col[batch.rowptr[row] : batch.rowptr[row + 1]]].tolist()
            assert len(picked) == len(set(picked))
            assert set(picked) <= set(lists[node])
            assert count(hop, node, len(picked))
            new |= set(picked)
        assert batch.n_id[ends[hop] : ends[hop + 1]].tolist() == sorted(new - met)
        met |= new


@pytest.mark.parametrize("fanouts", [(1,), (3, 4), (40,), (-1, 2), (5, 5, 5)])
def test_labor_batches_are_batches(fanouts):
    graph = random_csc(400, 6000, 1)
    degrees = np.diff(graph[0])
    seeds = np.random.default_rng(2).permutation(400)
    batches = [seeds[i : i + 50].tolist() for i in range(0, 400, 50)]

    def count(hop: int, node: int, picked: int) -> bool:
        few = fanouts[hop] == -1 or degrees[node] <= fanouts[hop]
        return picked == degrees[node] if few else picked <= degrees[node]

    for batch, wanted in zip(draw(graph, batches, fanouts, sampler="labor", seed=9), batches, strict=True):
        check_hops(batch, graph, wanted, count)


def star(leaves: int) -> Csc:
    return csc([list(range(1, leaves + 1))] + [[] for _ in range(leaves)])


@pytest.mark.parametrize(("leaves", "fanout"), [(3, 5), (4, 4), (5, 1), (9, 4), (40, 33), (300, 10)])
def test_labor_keeps_every_edge_with_probability_fanout_over_degree(leaves, fanout):
    draws = 20000
    batches = draw(star(leaves), [[0]] * draws, (fanout,), sampler="labor", seed=5)
    found = np.zeros((draws, leaves), bool)
    for i, batch in enumerate(batches):
        found[i, batch.n_id[batch.col] - 1] = True
    p = min(1.0, fanout / leaves)
    counts = found.sum(axis=0)
    if p == 1:
        assert (counts == draws).all()
        return
    statistic = ((counts - draws * p) ** 2 / (draws * p * (1 - p))).sum()  # independent neighbours
    assert RARE < stats.chi2.sf(statistic, leaves) < 1 - RARE
    sizes = found.sum(axis=1)  # Binomial(leaves, p): the expected fanout is kept, not the exact one
    assert abs(sizes.mean() - fanout) < 5 * np.sqrt(leaves * p * (1 - p) / draws)
    assert abs(sizes.var() / (leaves * p * (1 - p)) - 1) < 0.1


def test_labor_shares_one_number_per_node_and_hop():
    """r_t can be read off: what a target of low degree keeps, one of higher degree keeps only if r_t is lower."""
    leaves = list(range(3, 63))
    graph = csc([leaves, leaves[:30], leaves[:15]] + [[] for _ in leaves])
    for batch in draw(graph, [[0, 1, 2]] * 200, (6,), sampler="labor", seed=1):
        kept = [set(picked) for picked in (rows_of(batch)[node] for node in (0, 1, 2))]
        assert kept[0] & set(leaves[:30]) <= kept[1]  # 6 / 60 < 6 / 30 < 6 / 15
        assert kept[1] & set(leaves[:15]) <= kept[2]
    twins = csc([leaves, leaves, []] + [[] for _ in leaves])
    for batch in draw(twins, [[0, 1]] * 50, (6,), sampler="labor", seed=1):
        assert rows_of(batch)[0] == rows_of(batch)[1]
    # Batches and hops have numbers of their own.
    picked = [tuple(rows_of(b)[0]) for b in draw(star(60), [[0]] * 50, (6,), sampler="labor", seed=1)]
    assert len(set(picked)) > 45


def test_dependent_batches_keep_most_of_what_was_drawn():
    leaves, fanout, k, count = 60, 6, 8, 4000
    options = {"sampler": "labor", "seed": 5}
    picked = np.zeros((count, leaves + 1), bool)
    for b, batch in enumerate(draw(star(leaves), [[0]] * count, (fanout,), dependency=k, **options)):
        picked[b, rows_of(batch)[0]] = True
    changes = picked[1:, 1:] ^ picked[:-1, 1:]  # [b]: between batch b and b + 1
    phases = [set((np.flatnonzero(leaf) % k).tolist()) for leaf in changes.T]
    assert all(
        len(phase) == 1 for phase in phases
    )  # each leaf's number is drawn anew at one place of every k batches
    assert {p for phase in phases for p in phase} == set(range(k))  # and not all leaves' at once
    # What one batch has is what LABOR-0 draws: an edge is kept with probability fanout / degree.
    groups = picked[k // 2 :: k, 1:].sum(axis=0)  # independent of each other
    low, high = stats.binom.ppf([RARE, 1 - RARE], len(picked[k // 2 :: k]), fanout / leaves)
    assert ((low <= groups) & (groups <= high)).all()
    graph, seeds = random_csc(400, 6000, 1), [list(range(i, i + 20)) for i in range(0, 400, 20)]
    alone, same_as = (draw(graph, seeds, (5, 5), **options, **more) for more in ({}, {"dependency": 1}))
    assert all(same(a, b) for a, b in zip(alone, same_as, strict=True))
    with pytest.raises(ArgumentError, match="batch dependency of 2 is not possible"):
        draw(graph, seeds, (5,), dependency=2)
    with pytest.raises(ArgumentError, match="batch dependency 3 is not 1 or, with sampler labor, more"):
        SampleConfig(batch_dependency=3)


def test_labor_meets_fewer_nodes_than_neighbour_sampling():
    rng = np.random.default_rng(0)
    graph = csc([sorted(rng.choice(300, 60, replace=False).tolist()) for _ in range(300)])
    seeds = [list(range(50))]
    uniform = [draw(graph, seeds, (5,), seed=s)[0] for s in range(20)]
    shared = [draw(graph, seeds, (5,), seed=s, sampler="labor")[0] for s in range(20)]
    edges = np.array([[b.num_edges for b in side] for side in (uniform, shared)])
    nodes = np.array([[b.num_nodes for b in side] for side in (uniform, shared)])
    assert abs(edges[1].mean() / edges[0].mean() - 1) < 0.15
    assert nodes[1].max() < 0.7 * nodes[0].min()


# ShaDow.


def adjacency(graph: Csc) -> sparse.csr_array:
    """Row v lists the in-neighbours of v."""
    indptr, indices = graph
    return sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(len(indptr) - 1,) * 2)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [(2,), (3, 4), (2, 2, 2)])
def test_shadow_is_the_induced_subgraph_of_what_sampling_reaches(fanouts, replace):
    graph = random_csc(400, 6000, 3)
    seeds = [list(range(i, i + 20)) for i in range(0, 200, 20)]
    reached = draw(graph, seeds, fanouts, seed=4, replace=replace)
    for batch, plain in zip(
        draw(graph, seeds, fanouts, seed=4, sampler="shadow", replace=replace), reached, strict=True
    ):
        assert batch.n_id.tolist() == plain.n_id.tolist()
        assert batch.nodes_per_hop == plain.nodes_per_hop
        expected = adjacency(graph)[batch.n_id][:, batch.n_id]
        found = sparse.csr_array((np.ones(batch.num_edges), batch.col, batch.rowptr), shape=expected.shape)
        assert (found != expected).nnz == 0
        assert batch.edges_per_hop == (batch.num_edges, *[0] * (len(fanouts) - 1))


def test_shadow_of_one_seed_is_torch_geometrics_subgraph():
    """ShaDowKHopSampler makes one subgraph per seed: all nodes within k hops, and the edges among them."""
    graph = random_csc(120, 500, 5)
    targets = np.repeat(np.arange(120), np.diff(graph[0]))
    edge_index = torch.from_numpy(np.stack([graph[1], targets]))
    for seed in range(0, 120, 7):
        (batch,) = draw(graph, [[seed]], (-1, -1), sampler="shadow")
        nodes = k_hop_subgraph(seed, 2, edge_index, num_nodes=120)[0]
        assert sorted(batch.n_id.tolist()) == sorted(nodes.tolist())
        kept, _ = subgraph(nodes, edge_index, num_nodes=120)
        assert sorted(zip(*batch.n_id[batch.edge_index()].tolist(), strict=True)) == sorted(
            zip(*kept.tolist(), strict=True)
        )


@pytest.mark.parametrize("model", ["sage", "gcn", "gat"])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_models_run_on_the_whole_subgraph(model, layers):
    """Any number of layers; the same as torch_geometric's layers on the subgraph, whose seeds are compared."""
    graph = random_csc(300, 3000, 6)
    (batch,) = draw(graph, [list(range(0, 60, 3))], (3, 3), sampler="shadow", seed=1)
    assert batch.untrimmed
    torch.manual_seed(layers)
    x = torch.randn(batch.num_nodes, 11)
    ours = build_model(model, 11, 16, 5, layers, heads=2).eval()
    mini = MiniBatch(batch, (x,), torch.zeros(batch.num_seeds, dtype=torch.int64))
    hidden, edge_index = x, torch.from_numpy(batch.edge_index())
    for index, conv in enumerate(ours.convs):
        assert isinstance(conv, (SAGEConv, GCNConv, GATConv))
        hidden = conv(hidden, edge_index)
        if index + 1 < layers:
            hidden = torch.nn.functional.elu(hidden) if model == "gat" else hidden.relu()
    with torch.no_grad():
        assert torch.allclose(ours(mini), hidden[: batch.num_seeds], rtol=1e-4, atol=1e-5)


# Weighted.


def weighted(graph: Csc, weights: np.ndarray, seeds: list[list[int]], fanouts: tuple[int, ...], **options):
    return draw(graph, seeds, fanouts, sampler="weighted", weights=weights.astype(np.float32), **options)


@pytest.mark.parametrize("fanouts", [(1,), (3, 4), (-1, 2), (40,)])
def test_weighted_batches_are_batches(fanouts):
    graph = random_csc(400, 6000, 1)
    weights = np.random.default_rng(0).random(len(graph[1])) * (np.arange(len(graph[1])) % 3 > 0)
    positive = np.add.reduceat(np.append(weights > 0, 0), graph[0][:-1]) * (np.diff(graph[0]) > 0)
    seeds = np.random.default_rng(2).permutation(400)
    batches = [seeds[i : i + 50].tolist() for i in range(0, 400, 50)]

    def count(hop: int, node: int, picked: int) -> bool:
        return picked == (positive[node] if fanouts[hop] == -1 else min(fanouts[hop], positive[node]))

    for batch, wanted in zip(weighted(graph, weights, batches, fanouts, seed=3), batches, strict=True):
        check_hops(batch, graph, wanted, count)


def successive(weights: np.ndarray, count: int) -> dict[tuple[int, ...], float]:
    """Probability of each set: drawing one after the other in proportion to what is left, enumerated."""
    out: dict[tuple[int, ...], float] = {}
    for order in permutations(range(len(weights)), count):
        left, p = weights.sum(), 1.0
        for item in order:
            p *= weights[item] / left
            left -= weights[item]
        key = tuple(sorted(order))
        out[key] = out.get(key, 0.0) + p
    return out


@pytest.mark.parametrize(
    ("weights", "fanout"),
    [([1, 2, 3, 4], 1), ([1, 2, 3, 4], 2), ([5, 1, 1, 0.5, 0.25, 3], 3), ([1] * 6, 4), ([0.01, 1, 100], 2)],
)
def test_weighted_sets_have_the_enumerated_probabilities(weights, fanout):
    draws, w = 30000, np.array(weights, np.float64)
    expected = successive(w, fanout)
    assert abs(sum(expected.values()) - 1) < 1e-12
    found = dict.fromkeys(expected, 0)
    for batch in weighted(star(len(w)), w, [[0]] * draws, (fanout,), seed=7):
        found[tuple(sorted((batch.n_id[batch.col] - 1).tolist()))] += 1
    keys = [k for k in expected if draws * expected[k] >= 5]
    rest = draws - sum(found[k] for k in keys)
    observed = np.array([found[k] for k in keys] + ([rest] if len(keys) < len(expected) else []))
    wanted = np.array([draws * expected[k] for k in keys])
    if len(keys) < len(expected):
        wanted = np.append(wanted, draws - wanted.sum())
    assert stats.chisquare(observed, wanted).pvalue > RARE


def test_weights_of_zero_never_win_and_equal_weights_are_uniform():
    w = np.array([0, 1, 0, 1, 1, 1, 0, 1], float)
    batches = weighted(star(8), w, [[0]] * 20000, (2,), seed=1)
    counts = np.bincount(np.concatenate([b.n_id[b.col] - 1 for b in batches]), minlength=8)
    assert (counts[w == 0] == 0).all()
    pairs = {pair: 0 for pair in combinations(np.flatnonzero(w).tolist(), 2)}
    for batch in batches:
        pairs[tuple(sorted((batch.n_id[batch.col] - 1).tolist()))] += 1
    assert stats.chisquare(list(pairs.values())).pvalue > RARE
    assert all(len(b.col) == 5 for b in weighted(star(8), w, [[0]] * 3, (-1,)))


def test_a_large_list_is_drawn_in_proportion():
    """Long lists skip most logarithms: the frequencies must not notice."""
    w = np.repeat([1.0, 10.0], 2000)
    batches = weighted(star(4000), w, [[0]] * 3000, (8,), seed=2)
    heavy = sum(int((b.n_id[b.col] > 2000).sum()) for b in batches)
    p = 10 / 11  # drawing 8 of 4000 hardly changes what is left
    assert abs(heavy - 24000 * p) < 6 * np.sqrt(24000 * p * (1 - p))


@st.composite
def problems(make: Callable):
    nodes = make(st.integers(1, 25))
    edges = make(st.sets(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=100))
    lists = [sorted(u for u, v in edges if v == node) for node in range(nodes)]
    seeds = make(st.lists(st.lists(st.integers(0, nodes - 1), unique=True, max_size=nodes), max_size=4))
    return csc(lists), seeds, make(st.lists(st.sampled_from([-1, 1, 2, 5]), min_size=1, max_size=3))


SAMPLERS = ("neighbor", "labor", "shadow", "weighted")


@pytest.mark.parametrize("sampler", SAMPLERS)
@given(problem=problems(), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=40)
def test_threads_width_and_company_do_not_matter(sampler, problem, seed):
    graph, seeds, fanouts = problem
    weights = np.linspace(0, 2, len(graph[1])).astype(np.float32)
    options = {"sampler": sampler, "seed": seed, "weights": weights}
    expected = draw(graph, seeds, fanouts, **options)
    again = draw(graph, seeds, fanouts, **options, threads=3, dtype=np.int64)
    assert all(same(a, b) for a, b in zip(expected, again, strict=True))
    for i, one in enumerate(seeds):
        assert same(draw(graph, [one], fanouts, **options, first_batch=i)[0], expected[i])


def test_impossible_samplers_are_refused():
    graph = star(3)
    with pytest.raises(ArgumentError, match="sampler 'random' is unknown"):
        draw(graph, [[0]], (2,), sampler="random")
    for sampler in ("labor", "weighted"):
        with pytest.raises(ArgumentError, match="without replacement"):
            draw(graph, [[0]], (2,), sampler=sampler, replace=True, weights=np.ones(3, np.float32))
        with pytest.raises(ArgumentError, match="without replacement"):
            SampleConfig(sampler=sampler, replace=True)
    with pytest.raises(ArgumentError, match="needs edge weights"):
        draw(graph, [[0]], (2,), sampler="weighted")
    with pytest.raises(ArgumentError, match="2 edge weights for 3 edges"):
        draw(graph, [[0]], (2,), sampler="weighted", weights=np.ones(2, np.float32))
    with pytest.raises(ArgumentError, match="sampler 'random' is unknown; known: neighbor, labor"):
        SampleConfig(sampler="random")  # type: ignore[arg-type]


def test_a_graph_without_weights_is_refused(tmp_path, runtime):
    graph = write_graph(tmp_path / "g", np.array([[0], [1]]), 2, runtime, splits={"train": np.arange(2)})
    with pytest.raises(FormatError, match="holds no edge_weight"):
        BatchSampler(graph, SampleConfig(sampler="weighted"), runtime)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_memory_of_one_batch_is_bounded(sampler):
    graph = random_csc(3000, 60000, 7)
    options = {"sampler": sampler, "weights": np.ones(len(graph[1]), np.float32)}
    seeds = [list(range(200))]
    with pytest.raises(BudgetError, match=r"needs \d+ bytes \(.*\), 20000 bytes \(19.5 KiB\) are set aside"):
        draw(graph, seeds, (10, 10), max_batch_bytes=20000, **options)
    assert draw(graph, seeds, (10, 10), max_batch_bytes=1 << 24, **options)
