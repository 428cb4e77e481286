"""The paged topology: the same batches as in memory, every page read as often as the rules say, within the budget."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from outcrop import _core
from outcrop.config import SampleConfig
from outcrop.errors import ArgumentError, BudgetError, FormatError, IoError
from outcrop.preparation.sample import BatchOrigin, sample
from outcrop.runtime import system
from outcrop.runtime.runtime import Runtime
from outcrop.runtime.sharing import Among
from outcrop.sampling.sampler import BatchSampler
from outcrop.sampling.topology import coming_bytes, load_topology, placement_of
from outcrop.store.batches import BatchGraph
from outcrop.testing import write_graph
from sampling_support import Csc, csc, draw, random_csc, same

Make = Callable[..., Runtime]
PAGE = 4096
SAMPLERS = ("neighbor", "labor", "shadow", "weighted")


@dataclass
class OnDisk:
    """A topology in files of their own."""

    runtime: Runtime
    graph: Csc
    pages: Any
    keep: tuple

    def draw(
        self, seeds: Sequence[Sequence[int]], fanouts: Sequence[int], **options: Any
    ) -> list[BatchGraph]:
        untrimmed = options.get("sampler") == "shadow"
        key = {name: options.pop(name, 0) for name in ("split", "epoch", "first_batch")}
        wave = options.pop("wave", max(len(seeds), 1))
        sampler = _core.WaveSampler(
            self.runtime.workers, self.pages, self.runtime.budget, list(fanouts), wave=wave, **options
        )
        flat = np.array([s for batch in seeds for s in batch], np.int64)
        offsets = np.cumsum([0, *map(len, seeds)]).astype(np.int64)
        return [
            BatchGraph.of_one_type(
                n, r, c, tuple(nodes), tuple(edges), np.zeros(nodes[0], np.int64), untrimmed=untrimmed
            )
            for n, r, c, nodes, edges in sampler.sample(flat, offsets, *key.values())
        ]

    def reads(self) -> int:
        return self.runtime.io.counters.read_bytes


def on_disk(
    folder: Path,
    runtime: Runtime,
    graph: Csc,
    *,
    dtype: type = np.uint32,
    weights: np.ndarray | None = None,
    cache: int = 0,
    scratch: int = 1 << 20,
    indptr_in_memory: bool = False,
) -> OnDisk:
    arrays = {"indptr": graph[0], "indices": graph[1].astype(dtype)}
    if weights is not None:
        arrays["weights"] = weights.astype(np.float32)
    files = {}
    for name, values in arrays.items():
        data = values.tobytes()
        (folder / name).write_bytes(data + bytes(-len(data) % PAGE))
        files[name] = runtime.io.open(str(folder / name), _core.OpenMode.read)
    pages = _core.PagedTopology(
        runtime.io,
        runtime.budget,
        num_nodes=len(graph[0]) - 1,
        num_edges=len(graph[1]),
        indptr=graph[0] if indptr_in_memory else None,
        indptr_file=None if indptr_in_memory else files["indptr"],
        indptr_cache_bytes=cache,
        indices_file=files["indices"],
        index_bytes=np.dtype(dtype).itemsize,
        indices_cache_bytes=cache,
        weights_file=files.get("weights"),
        weights_cache_bytes=cache,
        scratch_bytes=scratch,
    )
    return OnDisk(runtime, graph, pages, (graph[0],))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("fanouts", [(3, 4), (-1, 2), (40, 1, 5), (70,)])
@pytest.mark.parametrize(
    ("dtype", "cache", "scratch", "in_memory"),
    [
        (np.uint32, 0, 1 << 16, False),
        (np.int64, 1 << 16, 1 << 20, True),
        (np.uint32, 1 << 20, 1 << 17, False),
    ],
)
def test_batches_are_those_of_memory(
    tmp_path, make_runtime, sampler, fanouts, dtype, cache, scratch, in_memory
):
    graph = random_csc(3000, 60000, 1)
    weights = np.random.default_rng(0).random(len(graph[1])) * (np.arange(len(graph[1])) % 5 > 0)
    seeds = [list(range(i, i + 30)) for i in range(0, 240, 30)]
    options = {"sampler": sampler, "seed": 3, "split": 1, "epoch": 2}
    expected = draw(graph, seeds, fanouts, weights=weights.astype(np.float32), **options)
    disk = on_disk(
        tmp_path,
        make_runtime(threads=2),
        graph,
        dtype=dtype,
        weights=weights,
        cache=cache,
        scratch=scratch,
        indptr_in_memory=in_memory,
    )
    together = disk.draw(seeds, fanouts, **options)
    assert all(same(a, b) for a, b in zip(together, expected, strict=True))
    for i, one in enumerate(seeds):  # a wave of one, and pages that are in the cache now
        (alone,) = disk.draw([one], fanouts, **options, first_batch=i)
        assert same(alone, expected[i])


@pytest.mark.parametrize("replace", [False, True])
def test_replacement_and_empty_lists(tmp_path, make_runtime, replace):
    graph = csc([[], [0], [], list(range(5)), []])
    disk = on_disk(tmp_path, make_runtime(threads=1), graph)
    seeds = [[0], [3, 1], [], [4, 2, 0, 1]]
    for sampler in ("neighbor", "shadow"):
        expected = draw(graph, seeds, (2, 3), sampler=sampler, replace=replace)
        assert all(
            same(a, b)
            for a, b in zip(disk.draw(seeds, (2, 3), sampler=sampler, replace=replace), expected, strict=True)
        )


def test_degrees_edges_and_membership(tmp_path, make_runtime):
    rng = np.random.default_rng(3)
    edges = np.unique(rng.integers(0, 3000, (2, 40000)), axis=1)
    graph = write_graph(tmp_path / "g", edges, 3000, make_runtime(threads=1))
    memory = load_topology(graph, make_runtime(), placement="memory")
    paged = load_topology(graph, make_runtime(), placement="paged")
    small = load_topology(graph, make_runtime("400KiB"), placement="paged")
    assert (memory.placement, paged.placement, small.placement) == ("memory", "paged", "paged")
    assert paged.indptr is not None
    ids, pairs = rng.integers(0, 3000, 500), rng.integers(0, 3000, (2, 4000))
    pairs[:, :1000] = edges[:, rng.integers(0, edges.shape[1], 1000)]
    known = set(map(tuple, edges.T.tolist()))
    order = np.lexsort((edges[0], edges[1]))
    degrees = np.bincount(edges[1][edges[0] != edges[1]], minlength=3000)[ids]
    positions = rng.integers(0, edges.shape[1], 700)
    for topology in (memory, paged, small):
        assert np.array_equal(topology.degrees(ids), degrees)
        assert topology.has_edges(*pairs).tolist() == [pair in known for pair in map(tuple, pairs.T.tolist())]
        assert np.array_equal(topology.edges(positions), edges[:, order[positions]].T)
    with pytest.raises(ArgumentError, match="out of range"):
        paged.neighbors(np.array([edges.shape[1]]))
    with pytest.raises(ArgumentError, match="out of range"):
        paged.pages.read_ranges(np.array([3000]), np.zeros(2, np.int64))


def pages_of(positions: np.ndarray, width: int) -> set[int]:
    return set((positions * width // PAGE).tolist())


@pytest.mark.exact_io
def test_each_page_is_read_once_per_hop_and_wave(tmp_path, make_runtime):
    graph = random_csc(20000, 300000, 2)
    disk = on_disk(tmp_path, make_runtime(threads=1), graph, scratch=4 << 20)
    seeds = [list(range(i, i + 40)) for i in range(0, 160, 40)]
    batches = draw(graph, seeds, (5, 5), seed=1)
    before = disk.reads()
    disk.draw(seeds, (5, 5), seed=1)
    indptr, indices = graph
    wanted = 0
    for hop in range(2):
        ends, places = [], []
        for batch in batches:
            cuts = np.cumsum([0, *batch.nodes_per_hop])
            rows = range(cuts[hop], cuts[hop + 1])
            nodes = batch.n_id[cuts[hop] : cuts[hop + 1]]
            ends.append(np.concatenate([nodes, nodes + 1]))
            for row, node in zip(rows, nodes.tolist(), strict=True):
                picked = batch.n_id[batch.col[batch.rowptr[row] : batch.rowptr[row + 1]]]
                places.append(
                    indptr[node] + np.searchsorted(indices[indptr[node] : indptr[node + 1]], picked)
                )
        wanted += len(pages_of(np.concatenate(ends), 8)) + len(pages_of(np.concatenate(places), 4))
    assert disk.reads() - before == wanted * PAGE
    stats = disk.pages.stats
    assert sum(stats[name]["read"] for name in ("indptr", "indices")) == wanted
    assert stats["indices"]["hits"] == 0
    assert disk.reads() - before < 1.2 * (graph[0].nbytes + graph[1].nbytes // 2)


@pytest.mark.exact_io
def test_in_many_rounds_too_a_page_is_read_once(tmp_path, make_runtime):
    """None of the batches goes on to lists that others do not reach in the same round."""
    graph = random_csc(40000, 600000, 2)
    disk = on_disk(tmp_path, make_runtime(threads=2), graph, scratch=1 << 17, indptr_in_memory=True)
    seeds = [list(range(i, 32000, 320)) for i in range(32)]
    disk.draw(seeds, (5, 5), seed=1)
    rounds = sum(len(b.col) for b in draw(graph, seeds, (5, 5), seed=1)) / ((1 << 16) / 16)
    assert rounds > 10
    pages = graph[1].nbytes // 2 // PAGE  # half: 32 bits on disk
    assert disk.reads() < 0.7 * 2 * pages * PAGE  # hop 0 does not want all of them
    alone = disk.reads()
    for i, one in enumerate(seeds):
        disk.draw([one], (5, 5), seed=1, first_batch=i)
    assert disk.reads() - alone > 5 * alone


@pytest.mark.exact_io
@pytest.mark.parametrize(
    ("sampler", "memory", "most"),
    [("neighbor", "16MiB", 4.1), ("labor", "28MiB", 8.0), ("weighted", "20MiB", 8.0)],
)
def test_in_little_memory_many_batches_wait_for_their_lists_together(
    tmp_path, make_runtime, sampler, memory, most
):
    """Where the budget has room to enter the nodes of one batch of 40 at a time; reading for one costs 30x to 47x."""
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 300_000, (2, 1_500_000))
    columns = {"edge_weight": rng.random(1_500_000, np.float32)} if sampler == "weighted" else {}
    graph = write_graph(
        tmp_path / "g", edges, 300_000, make_runtime(), splits={"train": np.arange(0, 300_000, 15)}, **columns
    )
    config = SampleConfig(fanouts=(5, 5), batch_size=500, splits=("train",), sampler=sampler)
    read = {}
    for limit, placement in ((memory, "paged"), (None, "memory")):
        runtime = make_runtime(limit, threads=2)
        sample(graph, config, tmp_path / placement, runtime, BatchOrigin(placement))
        read[placement] = runtime.io.counters.read_bytes
        assert limit is None or runtime.budget.peak_bytes <= runtime.budget.limit_bytes
    assert len(list((tmp_path / "paged").iterdir())) > 1
    for path in (tmp_path / "paged").iterdir():
        assert path.read_bytes() == (tmp_path / "memory" / path.name).read_bytes()
    assert read["paged"] < most * read["memory"]


@pytest.mark.exact_io
@pytest.mark.parametrize("fanout", [1, 10, 33])
def test_a_hub_costs_a_page_per_drawn_neighbour(tmp_path, make_runtime, fanout):
    """Only the drawn places are read: not the list."""
    degree = 1_000_000
    indptr = np.array([0, degree] + [degree] * 100, np.int64)
    graph = (indptr, np.arange(degree) % 101)
    disk = on_disk(tmp_path, make_runtime(threads=1), graph, indptr_in_memory=True)
    before = disk.reads()
    (batch,) = disk.draw([[0]], (fanout,), seed=8)
    assert batch.num_edges == fanout
    (expected,) = draw(graph, [[0]], (fanout,), seed=8)
    assert same(batch, expected)
    assert 0 < disk.reads() - before <= fanout * PAGE
    # All of a list: its pages once, whatever the size of the rounds.
    before = disk.reads()
    (batch,) = disk.draw([[0]], (fanout,), sampler="labor", seed=8)
    assert disk.reads() - before == -(-degree * 4 // PAGE) * PAGE
    assert same(batch, draw(graph, [[0]], (fanout,), sampler="labor", seed=8)[0])


class Clock:
    """The rules of the cache: a hit raises a page's counter (at most 3); the hand lowers and evicts at 0."""

    def __init__(self, frames: int):
        self.frames, self.where, self.pages, self.counters, self.hand = frames, {}, [], [], 0

    def access(self, wanted: list[int]) -> int:
        """Pages of one gather, ascending, all in one window; returns how many are read."""
        missing = [page for page in wanted if page not in self.where]
        for page in wanted:
            if page in self.where:
                at = self.where[page]
                self.counters[at] = min(3, self.counters[at] + 1)
        for page in missing:
            self.admit(page)
        return len(missing)

    def admit(self, page: int) -> None:
        if not self.frames:
            return
        if len(self.pages) < self.frames:
            self.where[page] = len(self.pages)
            self.pages.append(page)
            self.counters.append(0)
            return
        while self.counters[self.hand]:
            self.counters[self.hand] -= 1
            self.hand = (self.hand + 1) % self.frames
        del self.where[self.pages[self.hand]]
        self.where[page], self.pages[self.hand] = self.hand, page
        self.hand = (self.hand + 1) % self.frames


@pytest.mark.exact_io
@pytest.mark.parametrize("frames", [0, 1, 7, 60, 10**4])
def test_the_cache_keeps_what_its_rules_say(tmp_path, make_runtime, frames):
    rng = np.random.default_rng(frames)
    values = rng.integers(0, 1000, 200_000)
    graph = (np.array([0, len(values)] + [len(values)] * 999, np.int64), values)
    table = _core.PagedTopology.table_bytes(4, len(values))
    cache = table + frames * (PAGE + 8)
    disk = on_disk(tmp_path, make_runtime(threads=1), graph, cache=cache, indptr_in_memory=True)
    total = -(-len(values) * 4 // PAGE)
    assert disk.pages.stats["indices"]["cache_pages"] == min(frames, total)
    clock, before = Clock(min(frames, total)), disk.reads()
    read = wanted = 0
    for _ in range(60):
        positions = (rng.random(50) ** 4 * len(values)).astype(np.int64)  # some pages far more than others
        out = np.empty(50, np.int64)
        disk.pages.read_neighbors(positions, out)
        assert np.array_equal(out, values[positions])
        pages = sorted(pages_of(positions, 4))
        read, wanted = read + clock.access(pages), wanted + len(pages)
    stats = disk.pages.stats["indices"]
    assert (stats["read"], stats["wanted"], stats["hits"]) == (read, wanted, wanted - read)
    assert disk.reads() - before == read * PAGE
    if frames >= total:
        assert read == len(clock.pages)


@pytest.mark.exact_io
def test_neighbouring_pages_are_one_request(tmp_path, make_runtime):
    values = np.arange(300_000) % 1000
    graph = (np.array([0, len(values)] + [len(values)] * 999, np.int64), values)
    disk = on_disk(tmp_path, make_runtime(threads=1), graph, scratch=1 << 20, indptr_in_memory=True)
    positions = np.concatenate([np.arange(5) * 1024, [50 * 1024, 51 * 1024 - 1, 51 * 1024], [200 * 1024]])
    before = disk.runtime.io.counters
    disk.pages.read_neighbors(positions, np.empty(len(positions), np.int64))
    after = disk.runtime.io.counters
    assert after.read_bytes - before.read_bytes == 8 * PAGE
    assert after.read_ops - before.read_ops == 3


def test_damaged_files_are_refused(tmp_path, make_runtime):
    graph = csc([[1, 2], [0], [0, 1]])
    for position, value in ((1, -1), (1, 6), (2, 1)):
        indptr = graph[0].copy()
        indptr[position] = value
        for in_memory in (False, True):
            disk = on_disk(tmp_path, make_runtime(threads=1), (indptr, graph[1]), indptr_in_memory=in_memory)
            with pytest.raises(FormatError, match="topology is damaged"):
                disk.draw([[0, 1, 2]], (2,))
    indices = graph[1].copy()
    indices[1] = 7
    for sampler in ("neighbor", "labor", "shadow"):
        disk = on_disk(tmp_path, make_runtime(threads=1), (graph[0], indices))
        with pytest.raises(FormatError, match="neighbour 7"):
            disk.draw([[0]], (2,), sampler=sampler)
    runtime = make_runtime(threads=1)
    disk = on_disk(tmp_path, runtime, graph)
    with pytest.raises(ArgumentError, match="seed node 3"):
        disk.draw([[3]], (2,))
    (tmp_path / "short").write_bytes(bytes(PAGE))
    file = runtime.io.open(str(tmp_path / "short"), _core.OpenMode.read)
    with pytest.raises(IoError, match="truncated"):
        _core.PagedTopology(
            runtime.io,
            runtime.budget,
            num_nodes=1,
            num_edges=1025,
            indptr=np.zeros(2, np.int64),
            indices_file=file,
            index_bytes=4,
            scratch_bytes=1 << 16,
        )
    with pytest.raises(BudgetError, match=r"at least 65536 bytes \(64.0 KiB\) of scratch"):
        on_disk(tmp_path, runtime, graph, scratch=1000)


@pytest.mark.parametrize("at", [3, 8, 16])
def test_a_read_error_ends_sampling(tmp_path, make_runtime, at):
    """While the next window is being read; what the cache holds is right afterwards."""
    faults = _core.FaultPlan()
    faults.fail_at_op = at
    graph = random_csc(3000, 60000, 1)
    runtime = make_runtime(threads=1, faults=faults)
    disk = on_disk(tmp_path, runtime, graph, scratch=1 << 16, cache=1 << 16)
    with pytest.raises(IoError):
        disk.draw([list(range(50))], (5, 5))
    for seed in range(2):
        (batch,) = disk.draw([list(range(50))], (5, 5), seed=seed)
        assert same(batch, draw(graph, [list(range(50))], (5, 5), seed=seed)[0])


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("memory", ["900KiB", "2MiB", "3MiB"])
def test_a_small_budget_holds_and_changes_nothing(tmp_path, make_runtime, sampler, memory):
    """Topology of 1.5 MB: drawn from disk within the budget, indptr in memory or paged, the same batches."""
    rng = np.random.default_rng(0)
    edges = np.unique(rng.integers(0, 30000, (2, 350000)), axis=1)
    graph = write_graph(
        tmp_path / "g",
        edges,
        30000,
        make_runtime(threads=1),
        splits={"train": np.arange(0, 3000, 7)},
        edge_weight=rng.random(edges.shape[1]),
    )
    config = SampleConfig(fanouts=(3, 3), batch_size=20, seed=4, sampler=sampler, degrees=True)
    whole = BatchSampler(graph, config, make_runtime(threads=1))
    assert whole.topology.placement == "memory"
    runtime = make_runtime(memory, threads=2)
    small = BatchSampler(graph, config, runtime, topology="paged")
    assert small.topology.placement == "paged"
    for epoch in (0, 1):
        for a, b in zip(whole.epoch("train", epoch), small.epoch("train", epoch), strict=True):
            assert same(a, b)
            assert np.array_equal(a.degree, b.degree)
    assert runtime.budget.peak_bytes <= runtime.budget.limit_bytes
    assert runtime.io.counters.read_bytes > 0


def test_the_placement_can_be_chosen(tmp_path, make_runtime):
    graph = write_graph(
        tmp_path / "g", np.array([[0, 1], [1, 2]]), 3, make_runtime(), splits={"train": np.arange(3)}
    )
    for topology in ("memory", "map", "paged"):
        config = SampleConfig(fanouts=(2,), batch_size=2)
        sampler = BatchSampler(graph, config, make_runtime(), topology=topology)
        assert sampler.topology.placement == topology
        assert [b.n_id.tolist() for b in sampler.batches("train", 0, np.arange(3))] == [[0, 1], [2, 1]]
    with pytest.raises(
        ArgumentError, match="topology 'tape' is unknown; known: automatic, memory, paged, map"
    ):
        load_topology(graph, make_runtime(), placement="tape")
    with pytest.raises(BudgetError):
        load_topology(
            write_graph(tmp_path / "h", np.zeros((2, 100000), np.int64), 9, make_runtime()),
            make_runtime("300KiB"),
            placement="memory",
        )


@pytest.mark.parametrize(
    ("budget", "system_has", "placement"),
    [(1000, 0, "memory"), (999, 2000, "map"), (999, 1999, "paged"), (0, 0, "paged")],
)
def test_what_does_not_fit_is_mapped_where_the_system_has_room(monkeypatch, budget, system_has, placement):
    monkeypatch.setattr(system, "available_memory", lambda: system_has)
    assert placement_of("automatic", 1000, budget) == placement
    for asked in ("memory", "map", "paged"):
        assert placement_of(asked, 1000, budget) == asked


@pytest.mark.parametrize(
    ("system_has", "coming", "placement"),
    [(1550, 300, "map"), (1549, 300, "paged"), (2000, 900, "map"), (1999, 900, "paged")],
)
def test_what_is_known_to_come_leaves_room_for_less(monkeypatch, system_has, coming, placement):
    monkeypatch.setattr(system, "available_memory", lambda: system_has)
    assert placement_of("automatic", 1000, 999, coming) == placement


def test_torch_is_still_to_come_until_it_is_imported(make_runtime: Make, monkeypatch):
    """``sys.modules`` has it from the moment at which a thread begins to import it."""
    runtime = make_runtime("1MiB")
    module = ModuleType("torch")
    module.__spec__ = ModuleSpec("torch", None)
    with_torch = {}
    for state in ("none", "begun", "there"):
        if state == "none":
            monkeypatch.delitem(sys.modules, "torch", raising=False)
        else:
            monkeypatch.setitem(sys.modules, "torch", module)
            module.__spec__._initializing = state == "begun"
        with_torch[state] = coming_bytes(runtime) - runtime.budget.free_bytes
    assert with_torch["none"] == with_torch["begun"] >= 200 << 20
    assert with_torch["there"] == 0


def test_all_processes_of_the_machine_are_to_come(make_runtime: Make):
    """Lists are mapped once for all of them, but each fills its own budget."""
    alone, shared = make_runtime("1MiB"), make_runtime("1MiB", sharing=Among(3))
    assert coming_bytes(shared) == 3 * coming_bytes(alone)


def test_the_system_knows_its_memory():
    """No more than the machine has, and something: this test runs in it."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 1 << 20 < system.available_memory() <= machine
