"""Mode online: what is hot, how it is looked up, and rows that are read while batches are drawn."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outcrop import _core
from outcrop.config import SampleConfig
from outcrop.errors import ArgumentError
from outcrop.loading.modes import Mode, Online
from outcrop.loading.online.feeder import LiveSampler
from outcrop.loading.online.hotness import AccessKind, Hotness, rows_and_lists
from outcrop.loading.online.static_cache import build_static_caches
from outcrop.loading.open import open_session
from outcrop.rows import DiskStream, HotRows, StaticCache
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from run_support import a_graph, as_rows, random_features
from section_support import ReferenceSampler, section_graph
from support import held_bytes

MakeRuntime = Callable[..., Runtime]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), nodes=st.integers(1, 300))
def test_one_lookup_for_rows_and_lists(data: st.DataObject, nodes: int):
    some = st.lists(st.integers(0, nodes - 1), unique=True).map(sorted)
    rows, lists = (np.array(data.draw(some), np.int64) for _ in range(2))
    ids = np.array(data.draw(st.lists(st.integers(0, nodes - 1), max_size=400)), np.int64)
    index = _core.HotIndex(_core.Budget.create(1 << 20), nodes, rows, lists)
    table = np.random.default_rng(nodes).integers(0, 256, (nodes, 7), np.uint8)
    out = np.zeros((len(ids), 7), np.uint8)
    missing, places = index.take_rows(_core.WorkerPool(1), table[rows].reshape(-1), 7, ids, out.reshape(-1))
    assert (index.num_rows, index.num_lists) == (len(rows), len(lists))
    hit = np.isin(ids, rows)
    np.testing.assert_array_equal(out[hit], table[ids[hit]])
    assert not out[~hit].any()
    np.testing.assert_array_equal(missing, np.sort(ids[~hit]))
    np.testing.assert_array_equal(ids[places], missing)
    assert len(set(places.tolist())) == len(missing)


def test_what_the_index_refuses():
    budget = _core.Budget.create(1 << 20)
    none = np.zeros(0, np.int64)
    for bad in ([1, 1], [2, 1], [-1], [5]):
        with pytest.raises(ArgumentError, match="must rise and be below 5"):
            _core.HotIndex(budget, 5, np.array(bad), none)
    index = _core.HotIndex(budget, 5, np.array([1]), none)
    with pytest.raises(ArgumentError, match="outside the table of 5 rows"):
        index.take_rows(_core.WorkerPool(1), np.zeros(4, np.uint8), 4, np.array([5]), np.zeros(4, np.uint8))


def test_an_index_of_nothing_takes_nothing():
    """A budget with room for no cache has none for its index either (375 KB for these nodes)."""
    none = np.zeros(0, np.int64)
    index = _core.HotIndex(_core.Budget.create(1024), 1_000_000, none, none)
    ids = np.array([0, 64, 999_999])
    missing, places = index.take_rows(
        _core.WorkerPool(1), np.zeros(0, np.uint8), 4, ids, np.zeros(12, np.uint8)
    )
    np.testing.assert_array_equal(missing, ids)
    np.testing.assert_array_equal(places, np.arange(3))
    with pytest.raises(ArgumentError, match="outside the table"):
        index.take_rows(_core.WorkerPool(1), none.view(np.uint8), 4, ids + 1, np.zeros(12, np.uint8))


def _batches(seed: int, nodes: int, count: int) -> list[BatchGraph]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        n_id = rng.choice(nodes, size=int(rng.integers(3, nodes)), replace=False)
        hops = (1, 1, len(n_id) - 2)
        made.append(
            BatchGraph.of_one_type(
                n_id, np.zeros(3, np.int32), np.zeros(0, np.int32), hops, (0, 0), np.zeros(1, np.int64)
            )
        )
    return made


def _kinds(nodes: int, *, expand_all: bool = False) -> tuple[AccessKind, AccessKind]:
    """Rows and lists of as many nodes; the batches expand two."""
    return AccessKind(nodes, lambda b: b.n_id), AccessKind(
        nodes, lambda b: b.n_id[: None if expand_all else 2]
    )


@pytest.mark.parametrize("share", [0.5, 1e-9], ids=["whole", "windows"])
def test_hotness_counts_rows_and_expanded_lists(make_runtime: MakeRuntime, share: float):
    batches, runtime = _batches(1, 3000, 5), make_runtime(1 << 20)
    drawn: list[int] = []

    def draw() -> Iterator[BatchGraph]:
        drawn.append(1)
        return iter(batches)

    for expand_all in (False, True):
        drawn.clear()
        before = held_bytes(runtime)
        hotness = Hotness(_kinds(3000, expand_all=expand_all), draw, runtime, memory_fraction=share)
        assert held_bytes(runtime) - before >= hotness.held_bytes
        found = [(w.kind, w.first, w.wanted.copy()) for w in hotness.windows()]
        assert len(drawn) == (1 if share == 0.5 else 3)
        assert hotness.held_bytes == 8 * (3000 if share == 0.5 else 1024)
        rows = np.bincount(np.concatenate([b.n_id for b in batches]), minlength=3000)
        lists = np.bincount(
            np.concatenate([b.n_id if expand_all else b.n_id[:2] for b in batches]), minlength=3000
        )
        for kind, expected in enumerate((rows, lists)):
            counts = np.concatenate([c for k, _, c in found if k == kind])
            np.testing.assert_array_equal(counts, expected)
            ends = np.cumsum([len(c) for k, _, c in found if k == kind])
            assert [first for k, first, _ in found if k == kind] == [0, *ends[:-1]]
        most = max(len(b.n_id) for b in batches)
        assert hotness.most == [most, most if expand_all else 2]
        hotness.close()
        assert held_bytes(runtime) == before


def test_lists_that_typed_batches_want(tmp_path: Path):
    """Each node before the last hop wants its list of each edge type that leads to its type."""
    graph = section_graph(tmp_path / "g")
    *_, lists = rows_and_lists(graph)
    *_, all_lists = rows_and_lists(graph, expand_all=True)
    assert lists.count == sum(len(of) for of in graph.lists.lists)
    for batch in ReferenceSampler(graph, SampleConfig()).epoch("train", 0):
        for kind, hops in ((lists, -1), (all_lists, None)):
            wanted = [
                sum(map(len, graph.lists.lists[:r])) + v
                for r, (_, target) in enumerate(graph.lists.edge_types)
                for v in batch.nodes[target].ids[: sum(batch.nodes[target].per_hop[:hops])].tolist()
            ]
            assert sorted(kind.wanted(batch).tolist()) == sorted(wanted)
            assert len(set(wanted)) == len(wanted)


class _Rows:
    """A stream of rows that say their number, without a file."""

    takes_gpu_ids = False

    def __init__(self, num_rows: int, row_bytes: int):
        self.num_rows, self.row_bytes = num_rows, row_bytes

    def submit(self, ids: np.ndarray, positions: object, out: np.ndarray) -> _Rows:
        out.view(np.int64)[:] = ids[:, None]
        return self

    def wait(self) -> None: ...
    def close(self) -> None: ...


@pytest.mark.slow
def test_a_plan_for_a_hundred_million_nodes_keeps_to_the_budget():
    """Oracle: every distinct node of the batches sorted by how often they have it."""
    nodes, row_bytes, memory = 10**8, 512, 512 << 20
    rng = np.random.default_rng(0)
    ids = [np.unique((nodes * rng.random(70_000) ** 3).astype(np.int64)) for _ in range(16)]
    nothing, hops = np.zeros(0, np.int32), (1, 0)
    batches = [
        BatchGraph.of_one_type(
            n, np.zeros(2, np.int32), nothing, (*hops, len(n) - 1), (0, 0), np.zeros(1, np.int64)
        )
        for n in ids
    ]
    tracemalloc.start()
    with Runtime(memory) as runtime:
        hotness = Hotness(_kinds(nodes), lambda: iter(batches), runtime)
        (cache,) = build_static_caches([_Rows(nodes, row_bytes)], None, hotness, runtime, nodes)
        assert runtime.budget.peak_bytes <= memory
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < memory // 2  # of what planning takes beside the budget
    node, wanted = np.unique(np.concatenate(ids), return_counts=True)
    held = cache.index.bytes(nodes) + len(cache.rows)
    assert memory * 0.9 < held <= memory
    count = len(cache.rows) // row_bytes
    cached = cache.rows.view(np.int64).reshape(count, -1)[:, 0]
    assert (np.diff(cached) > 0).all()
    found = wanted[np.searchsorted(node, cached)]
    np.testing.assert_array_equal(np.sort(found)[::-1], np.sort(wanted)[::-1][:count])


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    with Runtime() as runtime:
        folder = tmp_path_factory.mktemp("online")
        return a_graph(folder / "graph", runtime, nodes=6000, edges=90_000, width=48, train=600)


@pytest.mark.parametrize("sampler", ["neighbor", "labor", "shadow"])
@pytest.mark.parametrize("topology", ["memory", "paged"])
def test_sampling_hop_by_hop_is_sampling(
    graph: Graph, make_runtime: MakeRuntime, sampler: str, topology: str
):
    dependency = 4 if sampler == "labor" else 1
    config = SampleConfig(fanouts=(4, 3), batch_size=50, sampler=sampler, batch_dependency=dependency)  # type: ignore[arg-type]
    whole = BatchSampler(graph, config, make_runtime())
    stepwise = BatchSampler(graph, config, make_runtime(), topology=topology, at_once=1)
    hopwise = LiveSampler(stepwise)
    for seeds, expected in zip(hopwise.seeds("train", 0), whole.epoch("train", 0), strict=True):
        met: list[np.ndarray] = []
        batch = hopwise.sample(seeds, met.append)
        np.testing.assert_array_equal(np.concatenate(met), expected.n_id)
        assert [len(m) for m in met] == list(expected.nodes_per_hop)
        for name in ("n_id", "rowptr", "col", "labels"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name))


def _pass(
    graph: Graph, runtime: Runtime, mode: str | Mode, config: SampleConfig
) -> tuple[list, dict[str, int]]:
    with open_session(graph, runtime, mode, config=config) as session:
        batches = session.batches("train", 0)
        seen = [(b.graph.n_id, b.graph.col, b.x.numpy().copy()) for b in batches]
        return seen, batches.stats.rows_by_level


@pytest.mark.parametrize("sampler", ["neighbor", "shadow"])
def test_batches_are_those_of_memory_and_the_budget_goes_to_what_is_hot(
    graph: Graph, make_runtime: MakeRuntime, sampler: str
):
    config = SampleConfig(fanouts=(4, 3), batch_size=50, sampler=sampler)  # type: ignore[arg-type]
    expected, _ = _pass(graph, make_runtime(), "memory", config)
    hits = []
    for memory in ("1.6MiB", "2.5MiB", None):
        seen, levels = _pass(graph, make_runtime(memory), Online(topology="paged"), config)
        for a, b in zip(seen, expected, strict=True):
            for x, y in zip(a, b, strict=True):
                np.testing.assert_array_equal(x, y)
        assert sum(levels.values()) == sum(len(n_id) for n_id, _, _ in expected)
        hits.append(levels["host"])
    assert hits[0] < hits[1] < hits[2]
    assert hits[2] == sum(len(n_id) for n_id, _, _ in expected)  # all that was counted is there


def test_lists_that_are_cached_are_not_read(graph: Graph, make_runtime: MakeRuntime):
    config = SampleConfig(fanouts=(4, 3), batch_size=50)
    runtime = make_runtime()
    sampler = BatchSampler(graph, config, runtime, topology="paged", at_once=1, page_cache=False)
    expected = [b.col for b in sampler.epoch("train", 0)]
    read = sampler.topology.pages.stats["indices"]["read"]
    assert read
    ids = np.arange(0, graph.num_nodes, dtype=np.int64)
    for cached in (ids[::3], ids):
        index = _core.HotIndex(runtime.budget, graph.num_nodes, ids[:0], cached)
        fresh = BatchSampler(graph, config, runtime, topology="paged", at_once=1, page_cache=False)
        fresh.topology.cache_lists(index, cached, runtime)
        before = fresh.topology.pages.stats["indices"]["read"]
        for got, want in zip(fresh.epoch("train", 0), expected, strict=True):
            np.testing.assert_array_equal(got.col, want)
        more = fresh.topology.pages.stats["indices"]["read"] - before
        assert more == 0 if len(cached) == len(ids) else 0 < more < read
        assert fresh.topology.pages.stats["indices"]["held"]


def test_a_batch_larger_than_its_buffer_is_asked_for_again(
    graph: Graph, make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
):
    config = SampleConfig(fanouts=(4, 3), batch_size=50)
    expected, _ = _pass(graph, make_runtime(), "memory", config)
    monkeypatch.setattr(Hotness, "most", property(lambda _: [10, 10], lambda *_: None), raising=False)
    seen, levels = _pass(graph, make_runtime(), "online", config)
    for a, b in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(a[2], b[2])
    assert sum(levels.values()) == sum(len(n_id) for n_id, _, _ in expected)


def test_rows_under_way_may_be_dropped(graph: Graph, make_runtime: MakeRuntime):
    runtime = make_runtime()
    none = np.zeros(0, np.int64)
    cache = StaticCache(_core.HotIndex(runtime.budget, graph.num_nodes, none, none), np.zeros(0, np.uint8))
    rows = HotRows(
        cache, DiskStream(graph.array(runtime, "features"), runtime, scratch_bytes=1 << 16), runtime
    )
    ids = np.arange(0, graph.num_nodes, 2)
    for _ in range(5):
        rows.submit(ids, np.empty(len(ids) * rows.row_bytes, np.uint8))  # with its output
    out = np.empty(len(ids) * rows.row_bytes, np.uint8)
    assert rows.read_rows(ids, out) == {"host": 0, "disk": len(ids)}
    features = as_rows(random_features(graph.num_nodes, 48, "float32"))
    np.testing.assert_array_equal(out.reshape(len(ids), -1), features[ids])
    rows.close()
