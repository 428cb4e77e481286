"""Batches of typed graphs as loops get them: against the reference, from wherever lists lie, with rows in all modes."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.data import HeteroData

import outcrop as oc
import typed_reference as reference
from outcrop.config import SampleConfig
from outcrop.pyg import NeighborLoader
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.sampling.typed import most_reached
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.placement import open_placement
from typed_reference import TypedBatch, TypedGraph
from typed_store import names_of, write_typed

WIDTHS = (("float32", 5), ("float16", 40), ("int8", 3), None)  # of node types, in turn


def written(path: Path, graph: TypedGraph, seed_type: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """The graph on disk, with rows of some types, and labels and splits of one."""
    rng, parts = np.random.default_rng(3), {}
    for t, size in enumerate(graph.sizes):
        width = WIDTHS[t % len(WIDTHS)]
        if width is not None:
            dtype, columns = width
            parts[f"n{t}.features"] = rng.integers(0, 99, (size, columns)).astype(dtype)
    size = graph.sizes[seed_type]
    parts[f"n{seed_type}.labels"] = np.arange(size, dtype=np.int64) % 3
    parts[f"n{seed_type}.train"] = np.arange(size, dtype=np.int64)
    parts[f"n{seed_type}.valid"] = np.arange(0, size, 2, dtype=np.int64)
    shutil.rmtree(path, ignore_errors=True)
    return write_typed(path, graph, parts, {seed_type: 3}), parts


def as_reference(batch: BatchGraph) -> TypedBatch:
    rows = []
    for edges in batch.edges:
        positions = [None] * len(edges.col) if edges.positions is None else edges.positions.tolist()
        pairs = list(zip(edges.col.tolist(), positions, strict=True))
        rows.append(tuple(tuple(pairs[a:b]) for a, b in pairwise(edges.rowptr.tolist())))
    return TypedBatch(
        tuple(tuple(nodes.ids.tolist()) for nodes in batch.nodes),
        tuple(nodes.per_hop for nodes in batch.nodes),
        tuple(rows),
        tuple(edges.per_hop for edges in batch.edges),
    )


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_batches_are_ones_that_neighbor_sampling_can_give(tmp_path: Path, data: st.DataObject) -> None:
    lists = data.draw(reference.typed_graphs())
    seed_type = data.draw(st.sampled_from([t for t, size in enumerate(lists.sizes) if size]))
    graph, parts = written(tmp_path / "g.oc", lists, seed_type)
    fanouts = data.draw(reference.fanouts_of(lists))
    named = {key: each for key, each in zip(names_of(lists)[1], fanouts, strict=True)}
    config = SampleConfig(fanouts=(1,) * len(fanouts[0]), batch_size=2, fanouts_by_type=named, seed=5)  # type: ignore[arg-type]
    found = {}
    for placement in ("memory", "map", "paged"):
        with Runtime("64MiB", threads=2) as runtime:
            sampler = BatchSampler(graph, config, runtime, topology=placement)
            drawn = list(sampler.epoch("train", 1))
            hopwise = []
            for seeds in sampler.seeds("train", 1):
                met: list[int] = []
                hopwise.append(sampler.sample(seeds, lambda nodes, met=met: met.extend(nodes.tolist())))
                every = [
                    of.first + node
                    for of, nodes in zip(graph.node_types, hopwise[-1].nodes, strict=True)
                    for node in nodes.ids.tolist()
                ]
                assert sorted(met) == sorted(every)
            assert [as_reference(b) for b in hopwise] == [as_reference(b) for b in drawn]
            found[placement] = [as_reference(batch) for batch in drawn]
            assert sampler.most_batch_bytes <= sampler._wave.most_batch_bytes
    assert found["memory"] == found["map"] == found["paged"]
    assert sorted(
        node for b in found["memory"] for node in b.nodes[seed_type][: b.nodes_per_hop[seed_type][0]]
    ) == (list(range(lists.sizes[seed_type])))
    for batch, ours in zip(found["memory"], drawn, strict=True):
        seeds = ours.seeds.tolist()
        if all(count == -1 for each in fanouts for count in each):
            assert batch.nodes == reference.sample(lists, {seed_type: seeds}, len(fanouts[0])).nodes
        assert ours.labels.tolist() == parts[f"n{seed_type}.labels"][seeds].tolist()
        assert ours.seed_type == seed_type
        check_without_positions(batch, lists, {seed_type: seeds}, fanouts)


def check_without_positions(
    batch: TypedBatch, graph: TypedGraph, seeds: dict[int, list[int]], fanouts: list[list[int]]
) -> None:
    """Each row has as many edges as its fanout and list allow, all of the list; hops are those of the reference."""
    hops = len(fanouts[0])
    for r, (source, target) in enumerate(graph.edge_types):
        ends = np.cumsum(batch.nodes_per_hop[target])
        for i, row in enumerate(batch.rows[r]):
            of_list = list(graph.lists[r][batch.nodes[target][i]])
            fanout = fanouts[r][int(np.searchsorted(ends, i, side="right"))]
            assert len(row) == (len(of_list) if fanout == -1 else min(fanout, len(of_list)))
            for u, _ in row:
                of_list.remove(batch.nodes[source][u])
        assert len(batch.rows[r]) == sum(batch.nodes_per_hop[target][:hops])
    for t, ids in enumerate(batch.nodes):
        assert list(ids[: batch.nodes_per_hop[t][0]]) == seeds.get(t, [])


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_the_most_that_a_batch_can_reach(data: st.DataObject) -> None:
    """No batch has more nodes or edges than the memory of drawing is counted for."""
    from outcrop.store.graph_types import EdgeType, NodeType

    lists = data.draw(reference.typed_graphs())
    seed_type = data.draw(st.sampled_from([t for t, size in enumerate(lists.sizes) if size]))
    nodes = [NodeType(t, str(t), lists.first_node(t), size, 0) for t, size in enumerate(lists.sizes)]
    edges = [
        EdgeType(r, nodes[s], str(r), nodes[t], sum(map(len, lists.lists[r])), 0, 0, "")
        for r, (s, t) in enumerate(lists.edge_types)
    ]
    fanouts = data.draw(reference.fanouts_of(lists))
    seeds = data.draw(st.sets(st.integers(0, lists.sizes[seed_type] - 1), min_size=1))
    batch = reference.sample(
        lists, {seed_type: sorted(seeds)}, len(fanouts[0]), reference.pick_some(fanouts, seed=1)
    )
    most_nodes, most_edges, most_last = most_reached(fanouts, edges, {seed_type: len(seeds)})
    last = sum(per_hop[-1] for per_hop in batch.edges_per_hop)
    before = sum(sum(per_hop[:-1]) for per_hop in batch.nodes_per_hop)
    assert sum(map(sum, batch.edges_per_hop)) <= most_edges
    assert last <= most_last
    assert before + last <= most_nodes


LISTS = TypedGraph(
    (60, 40, 7, 5),
    ((0, 0), (1, 0), (0, 1), (2, 0), (3, 1), (1, 3)),
    tuple(
        tuple(
            tuple(sorted(np.random.default_rng([r, v]).integers(0, sources, 1 + (v * 7 + r) % 9).tolist()))
            for v in range(targets)
        )
        for r, (sources, targets) in enumerate([(60, 60), (40, 60), (60, 40), (7, 60), (5, 40), (40, 5)])
    ),
)
OPTIONS: dict[str, Any] = {"batch_size": 8, "seed": 11}


@pytest.fixture
def made(tmp_path: Path) -> tuple[Graph, dict[str, np.ndarray]]:
    return written(tmp_path / "g.oc", LISTS, 0)


def check_rows(data: HeteroData, parts: dict[str, np.ndarray]) -> None:
    assert data.validate()
    for t, name in enumerate(("t0", "t1", "t2", "t3")):
        n_id = data[name].n_id.numpy()
        if f"n{t}.features" in parts:
            expected = parts[f"n{t}.features"][n_id]
            assert data[name].x.dtype == getattr(torch, expected.dtype.name)
            assert np.array_equal(data[name].x.numpy(), expected)
        else:
            assert "x" not in data[name]
    count = data["t0"].batch_size
    assert data["t0"].y.tolist() == parts["n0.labels"][data["t0"].n_id[:count].numpy()].tolist()


@pytest.mark.parametrize("mode", ["memory", "memmap", "ondisk", "dynamic", "online"])
def test_loaders_give_the_rows_of_every_type(made: Any, mode: str) -> None:
    graph, parts = made
    first = None
    for _ in range(2):
        loader = NeighborLoader(graph, [4, 3], input_nodes=("t0", None), mode=mode, memory="16MiB", **OPTIONS)
        seen = []
        for data in loader:
            check_rows(data, parts)
            seen.append([data[name].n_id.tolist() for name in ("t0", "t1", "t2", "t3")])
        assert sorted(node for ids in seen for node in ids[0][:8])[-1] == 59
        assert len(seen) == 8  # of 8 seeds, the last of 4
        assert first in (None, seen)
        first = seen
    ids = [5, 9, 2]
    (data,) = NeighborLoader(graph, [4, 3], input_nodes=("t0", ids), mode=mode, **OPTIONS)
    assert data["t0"].n_id[:3].tolist() == ids


def test_packed_batches_are_those_of_a_loader(made: Any, tmp_path: Path) -> None:
    graph, parts = made
    sampling = oc.SampleConfig(
        fanouts=(4, 3), batch_size=8, seed=11, fanouts_by_type={("t0", "r0", "t0"): [2, 1]}
    )  # type: ignore[arg-type]
    run = oc.prepare(
        graph,
        tmp_path / "run",
        sampling=sampling,
        epochs=2,
        memory="4MiB",
        observer=oc.Observer(progress=False),
    )
    with Runtime("16MiB") as runtime:
        sampler = BatchSampler(graph, SampleConfig.from_stored(sampling.as_stored()), runtime)
        expected = [[as_reference(batch) for batch in sampler.epoch("train", epoch)] for epoch in range(2)]
    loader = run.loader("train")
    for epoch in range(2):
        count = 0
        for data, batch in zip(loader, expected[epoch], strict=True):
            check_rows(data, parts)
            assert [tuple(data[f"t{t}"].n_id.tolist()) for t in range(4)] == list(batch.nodes)
            count += 1
        assert count == len(expected[epoch])
    again = oc.prepare(
        graph,
        tmp_path / "run",
        sampling=sampling,
        epochs=2,
        memory="4MiB",
        observer=oc.Observer(progress=False),
    )
    assert again.path == run.path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_neighbors": {("t0", "r0", "t0"): [1, 1]}}, "names no fanouts for edge type 't1 r1 t0'"),
        ({"input_nodes": ("t1", [10**6])}, "are not in 0 to"),
        ({"input_nodes": [60]}, "are not in 0 to 59"),
        ({"subgraph_type": "induced"}, "sampler 'shadow' is not there yet"),
    ],
)
def test_what_cannot_be_given_is_refused(made: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(oc.ArgumentError, match=message):
        next(iter(NeighborLoader(made[0], **{"num_neighbors": [2, 2], **OPTIONS, **options})))


def test_fanouts_of_edge_types_are_checked(made: Any) -> None:
    with pytest.raises(
        oc.ArgumentError, match="1 fanouts are given for edge type 'a b c', one for each of 2"
    ):
        SampleConfig(fanouts=(2, 2), fanouts_by_type={"a b c": [3]})  # type: ignore[arg-type]
    with pytest.raises(oc.ArgumentError, match="fanout -2 of edge type"):
        SampleConfig(fanouts=(2,), fanouts_by_type={"a b c": [-2]})  # type: ignore[arg-type]
    with pytest.raises(oc.ArgumentError, match="are not understood"):
        SampleConfig(fanouts=(2,), fanouts_by_type=7)  # type: ignore[arg-type]
    unknown = SampleConfig(fanouts=(2,), fanouts_by_type={"a b c": [2]})  # type: ignore[arg-type]
    with Runtime() as runtime, pytest.raises(oc.ArgumentError, match="has no edge type 'a b c'"):
        BatchSampler(made[0], unknown, runtime)
    assert SampleConfig.from_stored(unknown.as_stored()) == unknown
    assert "fanouts_by_type" not in SampleConfig().as_stored()


@pytest.mark.parametrize("placement", ["memory", "map", "paged"])
@pytest.mark.parametrize("sampler", ["neighbor", "weighted"])
def test_lists_that_lie_in_another_edge_type_are_refused(
    tmp_path: Path, placement: str, sampler: str
) -> None:
    """A list of the first edge type, whose edges have weights, that is said to lie where the second has none."""
    lists = TypedGraph((4, 60), ((1, 0), (1, 0)), (((1, 2), (3,), (4,), ()), (tuple(range(50)),) * 4))
    weighted = TypedGraph(
        lists.sizes, lists.edge_types, lists.lists, (((1.0, 1.0), (1.0,), (1.0,), ()), None)
    )
    graph, _ = written(tmp_path / "g.oc", weighted, 0)
    path = graph.path / graph.spec("indptr").file
    indptr = np.fromfile(path, np.int64)
    indptr[1:3] = 120, 170  # within all edges, and rising from one list to its end
    path.write_bytes(indptr.tobytes())
    config = SampleConfig(fanouts=(3,), batch_size=4, sampler=sampler)  # type: ignore[arg-type]
    with Runtime("64MiB", threads=1) as runtime, pytest.raises(oc.FormatError):
        list(BatchSampler(graph, config, runtime, topology=placement).epoch("train", 0))


def test_rows_of_the_second_type_alone_are_packed_too(tmp_path: Path) -> None:
    """One row file, of another type than the first, in memory, in the disk cache and packed."""
    rng = np.random.default_rng(5)
    parts = {
        "n0.labels": np.arange(60) % 3,
        "n0.train": np.arange(60),
        "n1.features": rng.integers(0, 99, (40, 100)).astype("float32"),
    }
    graph = write_typed(tmp_path / "g.oc", LISTS, parts, {0: 3})
    asked: dict[str, Any] = {
        "sampling": oc.SampleConfig(fanouts=(4, 3), batch_size=8, seed=11),
        "epochs": 1,
        "observer": oc.Observer(progress=False),
    }
    with pytest.raises(oc.BudgetError) as refused:
        oc.prepare(graph, tmp_path / "none", limits=oc.Limits(memory="100KiB", disk_space="8MiB"), **asked)
    smallest = re.search(r"smallest budget that can is (\d+) bytes", str(refused.value))
    assert smallest is not None
    for layout in ("packed", "3,1"):
        limits = oc.Limits(memory=int(smallest[1]), disk_space="8MiB")  # nearly nothing is cached
        run = oc.prepare(
            graph, tmp_path / layout, limits=limits, packing=oc.PackConfig(layout=layout), **asked
        )
        with Runtime() as runtime:
            (placed,) = open_placement(runtime, run.path / "plan").files
            assert (placed.num_disk_rows > 0) == (layout == "3,1")
        for data in run.loader("train"):
            assert np.array_equal(data["t1"].x.numpy(), parts["n1.features"][data["t1"].n_id.numpy()])


def test_batches_of_a_graph_without_features_have_the_rest(tmp_path: Path) -> None:
    parts = {"n0.labels": np.arange(60) % 3, "n0.train": np.arange(60)}
    bare = write_typed(tmp_path / "bare.oc", LISTS, parts, {0: 3})
    rows = {"n0.features": np.arange(60, dtype=np.float32)[:, None]}
    full = write_typed(tmp_path / "full.oc", LISTS, parts | rows, {0: 3})
    for mode in ("memory", "online", "ondisk"):
        loaders = (NeighborLoader(one, [2, 2], mode=mode, batch_size=9, seed=1) for one in (bare, full))
        for a, b in zip(*loaders, strict=True):
            assert "x" in b["t0"]
            assert not any("x" in store for store in a.node_stores)
            del b["t0"].x
            for one, other in zip(a.stores, b.stores, strict=True):
                assert list(one.keys()) == list(other.keys())
                assert all(np.array_equal(one[name], other[name]) for name in one)
