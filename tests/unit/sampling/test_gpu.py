"""Batches drawn by the code of the GPU's kernels are those of the C++ sampler, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outcrop import _core
from outcrop.api.train import train
from outcrop.config import SampleConfig
from outcrop.errors import ArgumentError, FormatError
from outcrop.sampling.gpu import DeviceSampler, sample_on
from outcrop.sampling.sampler import BatchSampler, DrawingDevice
from outcrop.sampling.topology import Topology
from outcrop.testing import write_graph
from sampling_support import Csc, csc, draw, random_csc, same

CPU = torch.device("cpu")


def in_memory(graph: Csc, dtype: type = np.uint32) -> Topology:
    indptr, indices = graph
    return Topology(len(indptr) - 1, len(indices), "memory", indptr, indices.astype(dtype))


def hot_lists(graph: Csc, chosen: np.ndarray) -> tuple[Any, np.ndarray]:
    """What DeviceSampler.cache_lists takes, of the ``chosen`` nodes; bool [num_nodes]."""
    ids, none = np.flatnonzero(chosen), np.zeros(0, np.int64)
    return _core.HotIndex(_core.Budget.create(1 << 20), len(chosen), none, ids), ids


@st.composite
def graphs(draw_from: st.DrawFn) -> Csc:
    """Isolated nodes, hubs, edges that stand several times, loops; lists a little longer than fanouts."""
    nodes = draw_from(st.integers(1, 120))
    random = np.random.default_rng(draw_from(st.integers(0, 2**32)))
    lengths = random.choice([0, 1, 2, 5, 11, 34, nodes, 2 * nodes], nodes)
    return csc([np.sort(random.integers(0, nodes, length)).tolist() for length in lengths])


@settings(max_examples=100)
@given(
    graph=graphs(),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 4, 10, 31, 33, 50, 100]), min_size=1, max_size=3),
    kind=st.sampled_from(["neighbor", "neighbor", "replace", "labor", "shadow"]),
    size=st.integers(0, 20),
    dtype=st.sampled_from([np.uint32, np.int64]),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 5),
    few=st.booleans(),
    hot=st.booleans(),
)
def test_batches_are_those_of_the_core(graph, fanouts, kind, size, dtype, seed, epoch, few, hot):
    random = np.random.default_rng(seed)
    seeds = [random.permutation(len(graph[0]) - 1)[:size] for _ in range(2)]
    replace = kind == "replace"
    fanouts = [abs(f) for f in fanouts] if replace else fanouts
    options: dict[str, Any] = {"sampler": "neighbor" if replace else kind, "seed": seed, "replace": replace}
    expected = draw(graph, seeds, fanouts, epoch=epoch, first_batch=7, split=1, dtype=dtype, **options)
    cpu_kernel = _core.cpu_sample
    with pytest.MonkeyPatch.context() as patch:
        if few:  # warps that take turns, in the other order
            patch.setattr(
                _core, "cpu_sample", lambda entry, warps, what: cpu_kernel(entry, min(warps, 3), what, True)
            )
        for number, (wanted, ids) in enumerate(zip(expected, seeds, strict=True)):
            key = {"split": 1, "epoch": epoch, "batch": 7 + number}
            lists = hot_lists(graph, random.integers(0, 2, len(graph[0]) - 1) > 0) if hot else None
            found = sample_on(CPU, in_memory(graph, dtype), ids, fanouts=fanouts, hot=lists, **key, **options)
            assert same(found, wanted)
            assert [x.dtype for x in (found.n_id, found.rowptr, found.col)] == [np.int64, np.int32, np.int32]


@pytest.mark.parametrize("options", [{}, {"sampler": "labor"}, {"sampler": "shadow"}])
def test_cached_lists_are_read_where_they_are_cached(options):
    """Once they are, the others' memory alone is read: what it says of the cached nodes is torn."""
    graph, seeds = random_csc(300, 3000, 1), np.arange(0, 300, 7)
    (wanted,) = draw(graph, [seeds], [4, 3], **options)
    chosen = np.arange(300) % 3 > 0
    topology = in_memory(graph)
    assert topology.indptr is not None
    assert topology.indices is not None
    sampler = DeviceSampler(topology, CPU, fanouts=[4, 3], **options)
    sampler.cache_lists(*hot_lists(graph, chosen))
    topology.indices[np.repeat(chosen, np.diff(graph[0]))] = 12345
    n_id, rowptr, col, *_ = sampler.draw(seeds, 0, 0, 0).parts()
    for found, expected in zip((n_id, rowptr, col), (wanted.n_id, wanted.rowptr, wanted.col), strict=True):
        assert np.array_equal(found, expected)
    assert len(n_id) > len(seeds)


@settings(max_examples=60)
@given(
    graph=graphs(),
    fanouts=st.lists(st.sampled_from([-1, 1, 4, 33]), min_size=1, max_size=3),
    kind=st.sampled_from(["neighbor", "labor", "shadow"]),
    size=st.integers(0, 20),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    tiered=st.booleans(),
    few=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_rows_are_found_where_they_are_cached(graph, fanouts, kind, size, share, tiered, few, seed):
    """By the CPU kernels, against NumPy: tables and rows of all, ids and positions of those that are read."""
    random, nodes = np.random.default_rng(seed), len(graph[0]) - 1
    ids, none = np.flatnonzero(random.random(nodes) < share), np.zeros(0, np.int64)
    index = _core.HotIndex(_core.Budget.create(1 << 20), nodes, ids, none)
    on_device = random.random(len(ids)) < 0.5 if tiered else np.zeros(len(ids), bool)
    tiers = np.where(on_device, -np.cumsum(on_device), np.cumsum(~on_device) - 1).astype(np.int32)
    sampler = DeviceSampler(in_memory(graph), CPU, fanouts=fanouts, sampler=kind, seed=seed)
    sampler.look_up_rows(index, tiers if tiered else None)
    cpu_kernel = _core.cpu_sample
    with pytest.MonkeyPatch.context() as patch:
        if few:  # warps that take turns, in the other order
            patch.setattr(
                _core, "cpu_sample", lambda entry, warps, what: cpu_kernel(entry, min(warps, 3), what, True)
            )
        drawn = sampler.draw(random.permutation(nodes)[:size], 0, 0, 0)
    found, n_id = drawn.rows, drawn.n_id.numpy()
    assert found is not None
    place_of = np.full(nodes, -1, np.int64)
    place_of[ids[on_device]] = np.arange(on_device.sum())
    place_of[ids[~on_device]] = (1 << 56) + np.arange((~on_device).sum())
    expected = np.where(np.isin(n_id, ids), place_of[n_id], (2 << 56) + np.arange(len(n_id)))
    np.testing.assert_array_equal(found.place.numpy(), expected)
    order = np.argsort(n_id)
    order = order[~np.isin(n_id[order], ids)]
    np.testing.assert_array_equal(found.missing.numpy(), n_id[order])
    np.testing.assert_array_equal(found.positions.numpy(), order)
    assert found.positions.dtype == torch.int32
    assert found.in_host == np.isin(n_id, ids[~on_device]).sum()
    assert found.on_device == np.isin(n_id, ids[on_device]).sum()


def test_a_damaged_list_is_not_cached():
    indptr, indices = csc([[1], [2, 3], [0, 1, 4], [4], []])
    damaged_list(indptr, indices)
    sampler = DeviceSampler(in_memory((indptr, indices)), CPU, fanouts=[2])
    with pytest.raises(FormatError, match=r"neighbours of node 2 are said to lie at 3\.\.99 of 7"):
        sampler.cache_lists(*hot_lists((indptr, indices), np.arange(5) == 2))


@pytest.mark.parametrize("task", ["node", "link"])
def test_epochs_are_those_of_the_core(tmp_path, make_runtime, task):
    """Through BatchSampler: batch numbers, waves, labels, degrees and link seeds."""
    indptr, indices = random_csc(300, 3000, 1)
    edges = np.stack([indices, np.repeat(np.arange(300), np.diff(indptr))])
    labels, splits = np.arange(300) % 3, {"train": np.arange(0, 300, 2)}
    graph = write_graph(tmp_path / "g", edges, 300, make_runtime(), labels=labels, splits=splits)
    config = SampleConfig(fanouts=(3, 2), batch_size=40, task=task, degrees=True, splits=("train",), seed=5)
    found, wanted = (
        list(BatchSampler(graph, config, make_runtime(), on=on).epoch("train", 2))
        for on in (DrawingDevice(CPU), None)
    )
    assert len(found) == len(wanted) > 3
    for a, b in zip(found, wanted, strict=True):
        assert same(a, b)
        assert np.array_equal(a.labels, b.labels)
        assert np.array_equal(a.degree, b.degree)
        assert a.edge_label is b.edge_label is None or np.array_equal(a.edge_label, b.edge_label)


def test_a_topology_read_by_pages_is_refused_with_what_helps(tmp_path, make_runtime):
    """Each of the three remedies that the message names is one."""
    indptr, indices = random_csc(300, 3000, 1)
    edges = np.stack([indices, np.repeat(np.arange(300), np.diff(indptr))])
    graph = write_graph(tmp_path / "g", edges, 300, make_runtime(), splits={"train": np.arange(0, 300, 2)})
    config = SampleConfig(fanouts=(3, 2), batch_size=40, splits=("train",), seed=5)
    sizes = graph.spec("indptr").data_bytes + graph.spec("indices").data_bytes
    said = rf"{graph.path}: its topology \({sizes} bytes.*read by pages from disk.*raise --memory .*"
    said += r"--topology map, .*--sample-on cpu"

    def drawn(topology, on):
        return list(BatchSampler(graph, config, make_runtime(), topology=topology, on=on).epoch("train", 0))

    with pytest.raises(ArgumentError, match=said):
        drawn("paged", DrawingDevice(CPU))
    wanted = drawn("paged", None)
    for topology in ("memory", "map"):
        for a, b in zip(drawn(topology, DrawingDevice(CPU)), wanted, strict=True):
            assert same(a, b)


def damaged_neighbour(indptr: np.ndarray, indices: np.ndarray) -> None:
    indices[indptr[2]] = 77


def damaged_list(indptr: np.ndarray, indices: np.ndarray) -> None:
    indptr[3] = 99


@pytest.mark.parametrize(
    ("options", "seeds", "damage", "error"),
    [
        ({"fanouts": [2]}, [2, 9], None, ArgumentError),
        ({"fanouts": [2]}, [-1], None, ArgumentError),
        ({"fanouts": [2]}, [1, 3, 1], None, ArgumentError),
        ({"fanouts": []}, [1], None, ArgumentError),
        ({"fanouts": [2, 0]}, [1], None, ArgumentError),
        ({"fanouts": [-1], "replace": True}, [1], None, ArgumentError),
        ({"fanouts": [2], "replace": True, "sampler": "labor"}, [1], None, ArgumentError),
        ({"fanouts": [-1]}, [1, 2], damaged_neighbour, FormatError),
        ({"fanouts": [2], "sampler": "labor"}, [2], damaged_list, FormatError),
    ],
)
def test_what_is_wrong_is_said_as_by_the_core(
    options: dict[str, Any], seeds: list[int], damage: Callable[..., None] | None, error: type[Exception]
):
    indptr, indices = csc([[1], [2, 3], [0, 1, 4], [4], []])
    if damage is not None:
        damage(indptr, indices)
    with pytest.raises(error) as wanted:
        draw((indptr, indices), [seeds], **options)
    with pytest.raises(error) as found:
        sample_on(CPU, in_memory((indptr, indices)), np.array(seeds), **options)
    assert str(found.value) == str(wanted.value)


def test_what_no_gpu_draws_is_refused():
    topology = in_memory(csc([[0]]))
    with pytest.raises(ArgumentError, match="'weighted' is not drawn on a GPU, only neighbor, labor, shadow"):
        DeviceSampler(topology, CPU, fanouts=[1], sampler="weighted")
    with pytest.raises(ArgumentError, match="from disk, where a GPU cannot sample: raise --memory"):
        DeviceSampler(Topology(1, 1, "paged", topology.indptr, None), CPU, fanouts=[1])
    for where, mode, said in (("gpu", "packed", "--mode online"), ("tpu", "online", "write cpu or gpu")):
        with pytest.raises(ArgumentError, match=said):
            train("nowhere", mode=mode, sample_on=where)
    with pytest.raises(ArgumentError, match="no sampling kernel sample_nothing"):
        _core.cpu_sample("sample_nothing", 1, [])
    with pytest.raises(ArgumentError, match="sample_draw takes 9 arguments, not 7"):
        _core.cpu_sample("sample_draw", 1, [0] * 7)
