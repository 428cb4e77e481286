"""Mode ``partition``: what it draws, what it reads, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from outcrop.api.train import train
from outcrop.config import SampleConfig
from outcrop.errors import ArgumentError, BudgetError
from outcrop.loading.modes import Partition
from outcrop.loading.open import open_session
from outcrop.rows import NodePartitions
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.partitioned import PartitionStructures, fitting_partitions, resident_bytes
from outcrop.sampling.sampler import BatchSampler
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.testing import write_graph
from run_support import a_graph, as_rows, random_features
from support import held_bytes

Make = Callable[..., Runtime]
NODES = 300


@pytest.fixture
def graph(tmp_path: Path, make_runtime: Make) -> Graph:
    return a_graph(tmp_path / "g", make_runtime(threads=1), nodes=NODES, edges=3000, width=30, train=120)


@pytest.mark.parametrize(
    ("parts", "resident"), [(1, 1), (7, 1), (8, 3), (8, 4), (16, 15), (16, 16), (300, 7)]
)
def test_every_partition_takes_its_turn_once(parts: int, resident: int) -> None:
    shape = NodePartitions(NODES, parts, resident, seed=5)
    orders = []
    for epoch in range(4):
        visits = shape.visits(epoch)
        assert len(visits) == -(-parts // resident)
        assert sorted(p for visit in visits for p in visit.seeds) == list(range(parts))
        for visit in visits:
            assert len(set(visit.resident)) == resident
            assert set(visit.seeds) <= set(visit.resident)
            assert list(visit.resident) == sorted(visit.resident)
        orders.append(visits)
        assert visits == NodePartitions(NODES, parts, resident, seed=5).visits(epoch)
    assert (orders[0] != orders[1]) == (resident < parts)
    sizes = np.diff(shape.bounds)
    assert (shape.bounds[0], shape.bounds[-1]) == (0, NODES)
    assert sizes.max() - sizes.min() <= 1
    steps = NodePartitions(NODES, min(parts, 8), 1, step=8)
    assert (steps.bounds[:-1] % 8 == 0).all()
    assert (steps.bounds[0], steps.bounds[-1], steps.most_nodes % 8) == (0, NODES, 0)
    assert (abs(np.diff(steps.bounds) - NODES / min(parts, 8)) <= 8).all()
    owners = np.searchsorted(shape.bounds, np.arange(NODES), side="right") - 1
    assert np.array_equal(shape.owners(np.arange(NODES)), owners)


@pytest.mark.parametrize(("parts", "resident"), [(0, 0), (4, 0), (4, 5), (301, 4), (-1, -1)])
def test_impossible_partitions(parts: int, resident: int) -> None:
    with pytest.raises(ArgumentError, match="resident"):
        NodePartitions(NODES, parts, resident)


def drawn(
    graph: Graph, runtime: Runtime, config: SampleConfig, shape: NodePartitions, epoch: int
) -> list[tuple[object, BatchGraph]]:
    structures = PartitionStructures(graph, config, shape, BatchSampler(graph, config, runtime), runtime)
    return list(structures.scheduled("train", epoch))


def neighbors(graph: Graph) -> list[np.ndarray]:
    indptr = np.fromfile(graph.path / "indptr.bin", "<i8", NODES + 1)
    indices = np.fromfile(graph.path / "indices.bin", "<u4", int(indptr[-1])).astype(np.int64)
    return np.split(indices, indptr[1:-1])


@pytest.mark.parametrize("piece", [1 << 20, 64, 4])
@pytest.mark.parametrize("resident", [1, 3, 8])
def test_all_neighbours_are_those_among_resident_nodes(graph, make_runtime, monkeypatch, resident, piece):
    """Fanout -1: the whole neighbourhood that is in memory, and nothing else; lists read in pieces of any size."""
    monkeypatch.setattr("outcrop.sampling.partitioned._PIECE_BYTES", piece)
    shape, runtime = NodePartitions(NODES, 8, resident), make_runtime(threads=2)
    config = SampleConfig(fanouts=(-1, -1), batch_size=16, degrees=True)
    lists = neighbors(graph)
    labels = np.fromfile(graph.path / "labels.bin", "<i8", NODES)
    train, seen = np.fromfile(graph.path / "train.bin", "<i8", 120), []
    for visit, batch in drawn(graph, runtime, config, shape, 3):
        inside = np.isin(shape.owners(np.arange(NODES)), visit.resident)
        seeds = batch.n_id[: batch.num_seeds]
        seen.append(seeds)
        assert np.isin(shape.owners(seeds), visit.seeds).all()
        assert inside[batch.n_id].all()
        assert len(np.unique(batch.n_id)) == batch.num_nodes
        assert np.array_equal(batch.labels, labels[seeds])
        for row, node in enumerate(batch.n_id[: sum(batch.nodes_per_hop[:2])]):
            got = batch.n_id[batch.col[batch.rowptr[row] : batch.rowptr[row + 1]]]
            wanted = lists[node][inside[lists[node]]]
            assert sorted(got) == sorted(wanted)
        wanted = [np.count_nonzero(inside[lists[v]] & (lists[v] != v)) for v in batch.n_id]
        assert batch.degree is not None
        assert batch.degree.tolist() == wanted
    assert sorted(np.concatenate(seen)) == train.tolist()


@pytest.mark.parametrize("threads", [1, 2])
def test_all_resident_draws_what_every_mode_draws(graph, make_runtime, threads):
    config = SampleConfig(fanouts=(3, 2), batch_size=16, epochs=2, seed=9)
    runtime = make_runtime(threads=threads)
    sessions = [
        open_session(graph, runtime, mode, config=config)
        for mode in ("memory", Partition(partitions=5, resident=5))
    ]
    for split, epoch in [("train", 0), ("train", 1), ("train", 2), ("valid", 0), ("test", 0)]:
        want, got = ([b.graph for b in session.batches(split, epoch)] for session in sessions)
        assert len(want) == len(got) > 0
        for a, b in zip(want, got, strict=True):
            assert (a.nodes_per_hop, a.edges_per_hop) == (b.nodes_per_hop, b.edges_per_hop)
            for name in ("n_id", "rowptr", "col", "labels"):
                assert np.array_equal(getattr(a, name), getattr(b, name))
    for session in sessions:
        session.close()


@pytest.mark.exact_io
def test_each_partition_is_read_once_an_epoch(tmp_path, make_runtime):
    """Sequentially, in few requests; evaluation reads only what is not resident."""
    runtime = make_runtime(threads=1)
    nodes, width = 4096, 256
    graph = a_graph(tmp_path / "g", runtime, nodes=nodes, edges=20_000, width=width, train=2000)
    features = as_rows(random_features(nodes, width, "float32"))
    config = SampleConfig(fanouts=(3, 3), batch_size=100)
    with open_session(graph, runtime, Partition(partitions=8, resident=2), config=config) as session:
        for epoch in range(3):
            before, batches = runtime.io.counters, session.batches("train", epoch)
            for batch in batches:
                assert np.array_equal(as_rows(batch.x.numpy()), features[batch.graph.n_id])
                del batch
            assert set(k for k, v in batches.stats.rows_by_level.items() if v) == {"host"}
            read = runtime.io.counters.read_bytes - before.read_bytes
            topology = 20_000 * 4 + 8 * nodes + 8 * 16 * 4096
            assert nodes * width * 4 * 3 // 4 <= read <= nodes * width * 4 + topology
            assert runtime.io.counters.read_ops - before.read_ops < 8 * 6
        batches = session.batches("valid")
        for batch in batches:
            assert np.array_equal(as_rows(batch.x.numpy()), features[batch.graph.n_id])
            del batch
        assert batches.stats.rows_by_level["host"] > 0 < batches.stats.rows_by_level["disk"]


def test_as_many_partitions_as_fit(graph, make_runtime):
    sizes = [resident_bytes(graph, 8, count) for count in range(1, 9)]
    assert sizes == sorted(sizes)
    for count, size in enumerate(sizes, start=1):
        assert fitting_partitions(graph, 8, None, size, 0).resident == count
        assert fitting_partitions(graph, 8, count, size, 0).resident == count
        said = rf"{count} of 8 partitions take {size} bytes \(.*\), {size - 1} bytes \(.*\) are left"
        with pytest.raises(BudgetError, match=said):
            fitting_partitions(graph, 8, count, size - 1, 0)
    with pytest.raises(BudgetError, match="1 of 8"):
        fitting_partitions(graph, 8, None, 100, 0)
    assert fitting_partitions(graph, 1000, None, 1 << 40, 0).parts == NODES
    for parts, enough in ((16, 4), (64, 4)):
        size = resident_bytes(graph, parts, enough)
        chosen = fitting_partitions(graph, None, None, size, 0)
        assert (chosen.parts, chosen.resident) == (parts, enough)
    chosen = fitting_partitions(graph, None, None, 1 << 40, 0)
    assert (chosen.parts, chosen.resident) == (16, 16)
    with pytest.raises(BudgetError, match=f"1 of {NODES} partitions"):
        fitting_partitions(graph, None, None, 10, 0)


def test_the_budget_holds(graph, make_runtime):
    runtime = make_runtime("1MiB", threads=1)
    before = held_bytes(runtime)
    config = SampleConfig(fanouts=(3, 3), batch_size=20)
    with open_session(graph, runtime, Partition(partitions=8, resident=2), config=config) as session:
        assert sum(len(b.x) > 0 for b in session.batches("train")) >= 6
        held = (
            runtime.budget.by_tag["partition-rows"].now_bytes
            + runtime.budget.by_tag["partition-topology"].now_bytes
        )
        assert held <= resident_bytes(graph, 8, 2)
    assert runtime.budget.peak_bytes <= 1 << 20
    del session
    assert held_bytes(runtime) <= before + (8 << 10) + 4096  # the open graph's ids


def test_another_sampler_is_refused(graph, make_runtime):
    runtime, config = make_runtime(threads=1), SampleConfig()
    online = BatchSampler(graph, config, runtime)
    object.__setattr__(config, "sampler", "labor")
    with pytest.raises(ArgumentError, match="labor"):
        PartitionStructures(graph, config, NodePartitions(NODES, 2, 1), online, runtime)


# What it costs.


@pytest.fixture
def long_range(tmp_path: Path, make_runtime: Make) -> Graph:
    """A node's label is the colour of its neighbours, which all lie in the other half of the nodes."""
    nodes, half, rng = 1600, 800, np.random.default_rng(0)
    colour = rng.integers(0, 4, nodes)
    labels = rng.integers(0, 4, nodes)
    targets = np.repeat(np.arange(nodes), 4)
    pools = [
        [np.flatnonzero(colour[part * half :][:half] == c) + part * half for c in range(4)] for part in (0, 1)
    ]
    sources = np.array([rng.choice(pools[int(v < half)][labels[v]]) for v in targets])
    features = np.eye(4, dtype=np.float32)[colour] + 0.1 * rng.standard_normal((nodes, 4)).astype(np.float32)
    order = rng.permutation(nodes)
    return write_graph(
        tmp_path / "long", np.stack([sources, targets]), nodes, make_runtime(threads=1), features=features,
        labels=labels, splits={"train": order[:1000], "valid": order[1000:1300], "test": order[1300:]},
    )  # fmt: skip


def test_accuracy_is_lost_where_neighbours_are_far_away(long_range):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    options = {"fanouts": (4,), "batch_size": 100, "hidden": 16, "epochs": 12, "memory": "32MiB", "seed": 1,
               "learning_rate": 0.02, "trace_losses": True}  # fmt: skip
    try:
        memory = train(long_range, mode="memory", **options)
        same = train(long_range, mode="partition", partitions=2, resident=2, **options)
        halves = train(long_range, mode="partition", partitions=2, resident=1, **options)
        quarters = train(long_range, mode="partition", partitions=4, resident=2, **options)
    finally:
        torch.set_num_threads(before)
    assert (same.batch_losses, same.test_accuracy) == (memory.batch_losses, memory.test_accuracy)
    assert [e["valid_accuracy"] for e in same.epochs] == [e["valid_accuracy"] for e in memory.epochs]
    assert None not in (memory.test_accuracy, halves.test_accuracy, quarters.test_accuracy)
    assert memory.test_accuracy > 0.95
    # No neighbour is ever seen: the weights for neighbours stay what they were at the start.
    assert halves.test_accuracy < memory.test_accuracy - 0.3
    assert halves.test_accuracy < quarters.test_accuracy <= memory.test_accuracy
