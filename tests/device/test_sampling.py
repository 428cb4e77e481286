"""Sampling on the GPU: batches of the C++ sampler, without the host waiting between hops, in memory that is counted."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from device_under_test import FAKE
from device_under_test import NAME as GPU
from torch.utils._python_dispatch import TorchDispatchMode

from outcrop import _core
from outcrop.config import DeviceConfig, SampleConfig
from outcrop.device.budget import DeviceBudget
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.loading.device_buffers import DeviceBuffer
from outcrop.loading.modes import Mode, Online
from outcrop.loading.open import open_session
from outcrop.rows import HotRows
from outcrop.rows.rings import submitter
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.gpu import DeviceSampler
from outcrop.sampling.gpu.room import drawing_bytes
from outcrop.sampling.topology import Topology
from outcrop.store.batches import BatchGraph
from run_support import a_graph
from sampling_support import Csc, draw, random_csc, same

DEVICE = torch.device(GPU)
NODES = 3000
# What makes the host wait for the device: sizes that depend on values, and values themselves.
WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "_unique2",
    "unique",
    "masked_select",
    "equal",
    "repeat_interleave",
)


class HostWaits(TorchDispatchMode):
    """Counts what the host waits for: fences, copies to memory that is not asked for ahead, sizes and values."""

    def __init__(self, gpu, monkeypatch):
        super().__init__()
        self.count, self._patch = 0, monkeypatch
        fence = gpu.fence

        def counted(stream):
            made = fence(stream)
            wait = made.synchronize
            made.synchronize = lambda: (self._add(), wait())
            return made

        monkeypatch.setattr(gpu, "fence", counted)

    def _add(self) -> None:
        self.count += 1

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = op.name().split("::")[1].split(".")[0]
        there = any(isinstance(x, torch.Tensor) and x.device.type == GPU for x in args)
        to_host = name == "_to_copy" and str(kwargs.get("device", "")) == "cpu"
        in_turn = (
            name == "copy_"
            and args[0].device != args[1].device
            and not (kwargs.get("non_blocking") or args[2:])
        )
        masked = name in ("index", "index_put_") and any(
            x is not None and x.dtype == torch.bool for x in args[1]
        )
        self.count += there and (name in WAITING or to_host or in_turn or masked)
        return op(*args, **kwargs)


@pytest.fixture(scope="module")
def graph() -> Csc:
    return random_csc(NODES, 40_000, 1)


def in_memory(graph: Csc) -> Topology:
    indptr, indices = graph
    return Topology(len(indptr) - 1, len(indices), "memory", indptr, indices.astype(np.uint32))


def on_host(drawn) -> BatchGraph:
    n_id, rowptr, col, nodes, edges = drawn.parts()
    return BatchGraph.of_one_type(
        n_id, rowptr, col, tuple(nodes), tuple(edges), np.zeros(nodes[0], np.int64), untrimmed=drawn.untrimmed
    )


def a_budget(gpu, num_bytes: int) -> DeviceBudget:
    return DeviceBudget(gpu, torch.device(GPU, 0), num_bytes)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({"fanouts": [5, 4, 3]}, 1),
        ({"fanouts": [5, 40], "replace": True}, 1),
        ({"fanouts": [5, -1, 3]}, 2),  # how much whole lists hold, only the device knows
        ({"fanouts": [5, 4], "sampler": "labor"}, 3),
        ({"fanouts": [5, 4], "sampler": "shadow"}, 2),
    ],
)
def test_the_host_waits_once_a_batch(gpu, monkeypatch, graph, options, waits, in_place):
    random = np.random.default_rng(3)
    seeds = [np.sort(random.permutation(NODES)[:size]) for size in (60, 200, 1)]
    expected = draw(graph, seeds, epoch=2, first_batch=7, split=1, seed=9, **options)
    sampler = DeviceSampler(in_memory(graph), DEVICE, seed=9, in_place=in_place, **options)
    with monkeypatch.context() as patch, HostWaits(gpu, patch) as host:
        drawn = [sampler.draw(ids, 1, 2, 7 + i) for i, ids in enumerate(seeds)]
    assert host.count == waits * len(seeds)
    for found, wanted in zip(drawn, expected, strict=True):  # what was drawn first is not overwritten
        assert found.n_id.device.type == found.col.device.type == GPU
        assert same(on_host(found), wanted)


def test_batches_go_to_the_host_in_one_copy(gpu, monkeypatch, graph):
    seeds = np.arange(0, 600, 2)
    (expected,) = draw(graph, [seeds], [5, 4], seed=9)
    sampler = DeviceSampler(in_memory(graph), DEVICE, fanouts=[5, 4], seed=9)
    with monkeypatch.context() as patch, HostWaits(gpu, patch) as host:
        ((n_id, rowptr, col, *_),) = sampler.sample(seeds, np.array([0, len(seeds)]), 0, 0, 0)
    assert host.count == 2
    assert np.array_equal(n_id, expected.n_id)
    assert np.array_equal(rowptr, expected.rowptr)
    assert np.array_equal(col, expected.col)


@pytest.mark.parametrize("options", [{"fanouts": [9, 9]}, {"fanouts": [9, 9], "sampler": "labor"}])
def test_memory_is_counted_and_less_of_it_costs_waiting(gpu, monkeypatch, graph, options):
    """With room for the bound the host waits once; with less for hops that have none, then there is an error."""
    seeds = np.sort(np.random.default_rng(3).permutation(NODES)[:300])
    (expected,) = draw(graph, [seeds], seed=9, **options)
    bound = drawing_bytes(len(seeds), options["fanouts"], False, NODES, len(graph[1]))
    assert bound is not None
    waits = {}
    for name, limit in (("ample", 4 * bound), ("half", bound)):
        budget = a_budget(gpu, limit)
        sampler = DeviceSampler(in_memory(graph), DEVICE, seed=9, in_place=True, budget=budget, **options)
        with monkeypatch.context() as patch, HostWaits(gpu, patch) as host:
            free, total = gpu.memory(0)
            held = total - free if FAKE else torch.cuda.memory_allocated()  # a real one is not ours alone
            ballast = torch.empty(max(gpu.peak_bytes(0) - held, 1), dtype=torch.uint8, device=DEVICE)
            before = gpu.peak_bytes(0)
            found = sampler.draw(seeds, 0, 0, 0)
            grown = gpu.peak_bytes(0) - before
            del ballast
        assert same(on_host(found), expected)
        del found
        waits[name] = host.count
        rounded = 0 if FAKE else 32 * 512  # of each block
        assert 0 < grown - rounded <= budget.by_tag()["sampling"] <= limit
    assert waits == ({"ample": 1, "half": 2} if "sampler" not in options else {"ample": 3, "half": 3})
    limit, named = 20_000, []
    while True:  # each message names what was needed so far
        budget, said = a_budget(gpu, limit), ""
        sampler = DeviceSampler(in_memory(graph), DEVICE, seed=9, in_place=True, budget=budget, **options)
        try:
            found = sampler.draw(seeds, 0, 0, 0)
            break
        except BudgetError as error:
            said = str(error)
        (number,) = re.findall(
            r"for sampling do not fit .*raise --gpu-memory to (\d+) bytes .* or more$", said
        )
        named.append(limit := int(number))
    assert 0 < len(named) <= 2  # hops
    assert named[-1] == budget.by_tag()["sampling"] < bound
    assert same(on_host(found), expected)


def test_memory_for_the_largest_batch_is_taken_before_it_is_drawn(gpu, graph):
    budget = a_budget(gpu, 1 << 22)
    bound = drawing_bytes(100, (5, 4), False, NODES, len(graph[1]))
    seeds = np.arange(100)
    (expected,) = draw(graph, [seeds], [5, 4], seed=9)
    sampler = DeviceSampler(
        in_memory(graph), DEVICE, fanouts=[5, 4], seed=9, in_place=True, budget=budget, most_seeds=100
    )
    assert budget.by_tag() == {"sampling": bound}
    assert same(on_host(sampler.draw(seeds, 0, 0, 0)), expected)
    assert budget.by_tag() == {"sampling": bound}


def test_lists_on_the_device_take_budget_and_change_nothing(gpu, graph):
    seeds = np.arange(0, NODES, 11)
    (expected,) = draw(graph, [seeds], [5, 4], seed=9)
    ids = np.flatnonzero(np.arange(NODES) % 3 == 1)
    index = _core.HotIndex(_core.Budget.create(1 << 20), NODES, np.zeros(0, np.int64), ids)
    budget = a_budget(gpu, 1 << 22)
    sampler = DeviceSampler(in_memory(graph), DEVICE, fanouts=[5, 4], seed=9, in_place=True, budget=budget)
    sampler.cache_lists(index, ids)
    degrees = np.diff(graph[0])
    blocks, held = 24 * (NODES // 64 + 1), 8 * (len(ids) + 1) + 4 * int(degrees[ids].sum())
    assert (budget.by_tag()["cache-index"], budget.by_tag()["list-cache"]) == (blocks, held)
    assert same(on_host(sampler.draw(seeds, 0, 0, 0)), expected)
    with pytest.raises(BudgetError, match="for list-cache do not fit"):
        DeviceSampler(
            in_memory(graph), DEVICE, fanouts=[5], budget=a_budget(gpu, blocks + held - 1), in_place=True
        ).cache_lists(index, ids)


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_a_mapped_topology_passes_through_little_host_memory(gpu, tmp_path, dtype):
    """Copied from its file through two pinned pieces, which are counted and given back; batches are the same."""
    indptr, indices = random_csc(NODES, 400_000, 1)
    indices.astype(dtype).tofile(tmp_path / "indices")
    mapped = np.memmap(tmp_path / "indices", dtype, "r")
    topology = Topology(NODES, len(indices), "map", indptr, mapped)
    host, seeds = _core.Budget.create(1 << 20), np.arange(0, NODES, 11)
    (expected,) = draw((indptr, indices), [seeds], [5, 4], seed=9)
    DeviceSampler(topology, DEVICE, fanouts=[5, 4])  # what the first one imports is not counted below
    tracemalloc.start()
    try:
        sampler = DeviceSampler(topology, DEVICE, fanouts=[5, 4], seed=9, host_budget=host)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    staging = host.by_tag["topology-staging"]
    assert staging.peak_bytes == 128 << 10  # an eighth of the budget
    assert (host.free_bytes, staging.peak_bytes * 4 < mapped.nbytes) == (1 << 20, True)
    assert peak < 256 << 10  # a piece of it was 16 MiB before, or all
    assert same(on_host(sampler.draw(seeds, 0, 0, 0)), expected)
    with pytest.raises(BudgetError, match="topology-staging"):
        DeviceSampler(topology, DEVICE, fanouts=[5], host_budget=_core.Budget.create(60 << 10))


def half_of_the_rows() -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """An index of rows, those in the memory of the host and of the device, and their tiers."""
    ids = np.flatnonzero(np.arange(NODES) % 2 == 0)
    index = _core.HotIndex(_core.Budget.create(1 << 20), NODES, ids, np.zeros(0, np.int64))
    there = np.arange(len(ids)) % 3 == 0
    tiers = np.where(there, -np.cumsum(there), np.cumsum(~there) - 1).astype(np.int32)
    return index, ids[~there], ids[there], tiers


@pytest.mark.parametrize(
    ("options", "waits"), [({}, 1), ({"sampler": "labor"}, 3), ({"sampler": "shadow"}, 2)]
)
def test_rows_are_looked_up_without_waiting(gpu, monkeypatch, graph, options, waits):
    """As often as without it; the places are those of the host's index, batch after batch."""
    index, in_host, on_device, tiers = half_of_the_rows()
    budget = a_budget(gpu, 1 << 24)
    sampler = DeviceSampler(
        in_memory(graph), DEVICE, fanouts=[5, 4], seed=9, in_place=True, budget=budget, **options
    )
    sampler.look_up_rows(index, tiers)
    assert budget.by_tag()["cache-index"] == 24 * (NODES // 64 + 1) + tiers.nbytes
    seeds = [np.arange(0, NODES, step) for step in (11, 50, 7)]
    expected = draw(graph, seeds, [5, 4], seed=9, **options)
    with monkeypatch.context() as patch, HostWaits(gpu, patch) as host:
        drawn = [sampler.draw(ids, 0, 0, i) for i, ids in enumerate(seeds)]
    assert host.count == waits * len(seeds)
    row_of = np.full(NODES, -1)
    row_of[on_device] = np.arange(len(on_device))
    row_of[in_host] = (1 << 56) + np.arange(len(in_host))
    for found, wanted in zip(drawn, expected, strict=True):
        n_id, rows = wanted.n_id, found.rows
        assert same(on_host(found), wanted)
        place = np.where(row_of[n_id] < 0, (2 << 56) + np.arange(len(n_id)), row_of[n_id])
        assert np.array_equal(rows.place.cpu().numpy(), place)
        missing = np.sort(n_id[row_of[n_id] < 0])
        assert np.array_equal(rows.missing.cpu().numpy(), missing)
        assert np.array_equal(n_id[rows.positions.cpu().numpy()], missing)
        counts = [np.isin(n_id, of).sum() for of in (in_host, on_device)]
        assert [rows.in_host, rows.on_device] == counts
    with pytest.raises(BudgetError, match="for cache-index do not fit"):
        DeviceSampler(
            in_memory(graph), DEVICE, fanouts=[5], budget=a_budget(gpu, 5000), in_place=True
        ).look_up_rows(index, tiers)


@pytest.mark.parametrize("kind", ["neighbor", "labor", "shadow"])
def test_batches_that_a_gpu_draws_stay_there(gpu, monkeypatch, tmp_path, kind):
    """rowptr and col reach the batch without the host's; batches that are let go early are not written over."""
    staged = []
    stage = DeviceBuffer.stage

    def watched(buffer, x_bytes, arrays, *drawn):
        staged.append(set(arrays))
        return stage(buffer, x_bytes, arrays, *drawn)

    monkeypatch.setattr(DeviceBuffer, "stage", watched)
    with Runtime() as here, Runtime() as there:
        made = a_graph(tmp_path / "graph", here, width=5, train=200)
        config = SampleConfig(fanouts=(3, 3), batch_size=20, sampler=kind)
        to = DeviceConfig(GPU, 1 << 21, draws=True)
        with (
            open_session(made, here, "online", config=config) as ours,
            open_session(made, there, "online", config=config, device=to) as theirs,
        ):
            sums, wanted = [], []
            for x, y in zip(ours.batches("train"), theirs.batches("train"), strict=True):
                assert y.graph.on_device is None
                assert (y.rowptr.device.type, y.rowptr.dtype, y.col.dtype) == (GPU, torch.int32, torch.int32)
                weights = (torch.arange(len(y.col)) % 7).to(GPU), (torch.arange(len(y.rowptr)) % 5).to(GPU)
                sums.append((y.col * weights[0]).sum() + (y.rowptr * weights[1]).sum())
                del y
                row, col = (torch.from_numpy(a) for a in (x.graph.rowptr.copy(), x.graph.col.copy()))
                wanted.append(
                    (col * (torch.arange(len(col)) % 7)).sum() + (row * (torch.arange(len(row)) % 5)).sum()
                )
                del x
            assert [s.item() for s in sums] == [w.item() for w in wanted]
        assert there.device_peaks["sampled-batches"] > 0
        assert sum(there.device_peaks.values()) <= 1 << 21
    assert len(staged) == len(sums) > 5
    assert all(names.isdisjoint({"rowptr", "col"}) and "y" in names for names in staged)


def loaded(graph, config, to, memory, mode: str | Mode = "online") -> tuple[list, list, dict]:
    """Of an epoch in mode online: features and nodes of each batch, and how many rows came from each level."""
    with Runtime(memory) as runtime:
        with open_session(graph, runtime, mode, config=config, device=to) as session:
            batches, found = session.batches("train"), []
            for batch in batches:
                found.append((batch.x.clone(), batch.graph.n_id))
                del batch
            levels = batches.stats.rows_by_level
        return [x.cpu().numpy() for x, _ in found], [n_id for _, n_id in found], levels


@pytest.mark.parametrize("kind", ["neighbor", "labor", "shadow"])
def test_ids_of_a_batch_are_not_looked_up_on_the_host(gpu, monkeypatch, tmp_path, kind):
    """Rows are those of the file, and from the levels that the host's lookup names, which is refused here."""
    staged = []
    stage = DeviceBuffer.stage

    def watched(buffer, x_bytes, arrays, *drawn):
        staged.append((set(arrays), set(drawn[0])))
        return stage(buffer, x_bytes, arrays, *drawn)

    def no_lookup(*_):
        raise AssertionError("ids were looked up on the host")

    with Runtime() as runtime:
        made = a_graph(tmp_path / "graph", runtime, width=129, train=200)
        rows = made.array(runtime, "features").memmap(check=True)[:].copy()
    config = SampleConfig(fanouts=(3, 3), batch_size=20, sampler=kind)
    expected_x, expected_ids, _ = loaded(made, config, DeviceConfig(), 1 << 22)
    with monkeypatch.context() as patch:  # as where the index has no room on the device
        patch.setattr(DeviceSampler, "look_up_rows", lambda *_: refuse())
        to, levels = with_rows_of_all_levels(made, config)
    monkeypatch.setattr(DeviceBuffer, "stage", watched)
    monkeypatch.setattr(HotRows, "submit_uncached", no_lookup)
    monkeypatch.setattr(HotRows, "submit", no_lookup)
    xs, ids, found = loaded(made, config, to, MEMORY)
    assert found == levels
    for x, wanted, n_id, wanted_ids in zip(xs, expected_x, ids, expected_ids, strict=True):
        assert np.array_equal(n_id, wanted_ids)
        assert np.array_equal(x, wanted)
        assert np.array_equal(x, rows[n_id])
    assert len(staged) == len(xs) > 5
    assert all("row_addresses" not in names and "row_addresses" in drawn for names, drawn in staged)


MEMORY = 600 << 10


def with_rows_of_all_levels(graph, config, mode: str | Mode = "online") -> tuple[DeviceConfig, dict]:
    """A device, limited so that rows come from its cache, from the host's and from disk, and how many from each."""
    tried = []
    for limit in range(1 << 20, 1 << 17, -(1 << 17)):
        to = DeviceConfig(GPU, limit, draws=True)
        *_, levels = loaded(graph, config, to, MEMORY, mode)
        if all(levels[name] > 0 for name in ("device", "host", "disk")):
            return to, levels
        tried.append((limit, levels))
    raise AssertionError(tried)


def refuse() -> None:
    raise BudgetError("no room", limit="device")


def test_ids_of_rows_that_rings_read_stay_on_the_gpu(gpu, monkeypatch, tmp_path):
    """With --io gpu no list of ids goes to the host and back: kernels submit what the lookup has listed."""
    given, tensors = submitter.Kernels.given, []

    def watched(self, numbers):
        tensors.append(isinstance(numbers, torch.Tensor) and numbers.device.type == GPU)
        return given(self, numbers)

    monkeypatch.setattr(submitter.Kernels, "given", watched)
    monkeypatch.setattr(HotRows, "submit_uncached", lambda *_: pytest.fail("ids were looked up on the host"))
    with Runtime() as runtime:
        made = a_graph(tmp_path / "graph", runtime, width=129, train=200)
        rows = made.array(runtime, "features").memmap(check=True)[:].copy()
    config, by_rings = SampleConfig(fanouts=(3, 3), batch_size=20), Online(row_reads="gpu")
    to, levels = with_rows_of_all_levels(made, config, by_rings)
    tensors.clear()
    xs, ids, found = loaded(made, config, to, MEMORY, by_rings)
    assert found == levels
    for x, n_id in zip(xs, ids, strict=True):
        assert np.array_equal(x, rows[n_id])
    filling = len(tensors) - 2 * len(xs)  # the caches: before any batch, from ids of the host
    assert tensors == [False] * filling + [True] * 2 * len(xs)


def test_a_place_that_the_gpu_found_is_named_where_it_is_none(gpu, monkeypatch, tmp_path):
    """Of the rows that are said to be on the device one lies beyond its cache."""
    with Runtime() as runtime:
        made = a_graph(tmp_path / "graph", runtime, width=129, train=200)
    look_up = DeviceSampler.look_up_rows
    monkeypatch.setattr(
        DeviceSampler,
        "look_up_rows",
        lambda self, index, tiers, stay: look_up(self, index, np.full_like(tiers, -77777), stay),
    )
    config = SampleConfig(fanouts=(3, 3), batch_size=20)
    with pytest.raises(ArgumentError, match="of a batch is at no place: 0x12fd0 is beyond what was cached"):
        loaded(made, config, DeviceConfig(GPU, 1 << 20, draws=True), MEMORY)


def test_damage_is_found_where_the_host_looks_once(gpu):
    indptr, indices = np.array([0, 1, 3, 6, 7, 7]), np.array([1, 2, 3, 77, 1, 4, 4])
    for wrong, said in (
        ((indptr, indices), "neighbour 77 in a graph of 5 nodes"),
        (
            (np.array([0, 1, 3, 99, 7, 7]), indices % 5),
            r"neighbours of node 2 are said to lie at 3\.\.99 of 7",
        ),
    ):
        sampler = DeviceSampler(in_memory(wrong), DEVICE, fanouts=[9, 9, 9])
        with pytest.raises(FormatError, match=said):
            sampler.draw(np.array([2]), 0, 0, 0)
