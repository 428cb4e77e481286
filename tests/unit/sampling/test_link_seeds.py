"""Link prediction: positive edges are edges, each once per epoch; negatives as many as asked; keyed; packed too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import outcrop
from outcrop.api.train import train
from outcrop.config import SampleConfig
from outcrop.errors import ArgumentError
from outcrop.sampling.link_seeds import ChosenEdges
from outcrop.sampling.sampler import BatchSampler
from outcrop.store.batches import BatchGraph
from outcrop.testing import write_graph
from sampling_support import RARE, same
from typed_reference import TypedGraph
from typed_store import write_typed

NODES = 200


def a_graph(folder: Path, runtime, **options):
    rng = np.random.default_rng(0)
    edges = np.unique(rng.integers(0, NODES, (2, 900)), axis=1)
    features = rng.standard_normal((NODES, 6)).astype(np.float32)
    splits = {"train": np.arange(20)}
    graph = write_graph(folder / "g", edges, NODES, runtime, features=features, splits=splits, **options)
    return graph, edges, features


def pairs_of(batch: BatchGraph) -> tuple[np.ndarray, np.ndarray]:
    """Global (source, target) [2, L] and labels."""
    assert batch.edge_label_index is not None
    assert batch.edge_label is not None
    return batch.n_id[batch.edge_label_index], batch.edge_label


@pytest.mark.parametrize("sampler", ["neighbor", "labor", "shadow"])
@pytest.mark.parametrize("negatives", [0.0, 0.5, 3.0])
def test_an_epoch_has_every_edge_once_and_negatives_as_asked(tmp_path, make_runtime, sampler, negatives):
    runtime = make_runtime(threads=2)
    graph, edges, _ = a_graph(tmp_path, runtime)
    config = SampleConfig(
        fanouts=(3, 2), batch_size=64, task="link", negatives=negatives, seed=5, sampler=sampler
    )
    drawn = BatchSampler(graph, config, runtime)
    assert drawn.num_batches("train") == -(-edges.shape[1] // 64)
    assert drawn.num_batches("valid") == 0
    seen = []
    for batch in drawn.epoch("train", 0):
        pairs, label = pairs_of(batch)
        positive = int(label.sum())
        assert label.tolist() == [1] * positive + [0] * int(np.ceil(negatives * positive))
        assert batch.n_id[: batch.num_seeds].tolist() == sorted(set(pairs.ravel().tolist()))
        assert batch.edge_label_index is not None
        assert batch.edge_label_index.max() < batch.num_seeds
        assert batch.edge_label_index.dtype == np.int32
        seen.append(pairs[:, :positive])
    found = np.concatenate(seen, axis=1)
    assert sorted(map(tuple, found.T.tolist())) == sorted(map(tuple, edges.T.tolist()))
    assert len({p.tobytes() for p in seen}) == len(seen)


def test_filtered_negatives_are_no_edges_and_uniform_ones_are_uniform(tmp_path, make_runtime):
    runtime = make_runtime(threads=1)
    rng = np.random.default_rng(1)
    dense = np.unique(rng.integers(0, 12, (2, 200)), axis=1)  # most pairs are edges
    graph = write_graph(tmp_path / "g", dense, 12, runtime)
    edges = set(map(tuple, dense.T.tolist()))
    config = SampleConfig(fanouts=(2,), batch_size=50, task="link", negatives=20.0)
    rates = {}
    for filtered in (False, True):
        options = {**vars(config), "filter_negatives": filtered}
        pairs = []
        for epoch in range(3):
            for batch in BatchSampler(graph, SampleConfig(**options), runtime).epoch("train", epoch):
                both, label = pairs_of(batch)
                pairs.append(both[:, label == 0])
        drawn = np.concatenate(pairs, axis=1)
        counts = np.zeros((12, 12))
        np.add.at(counts, tuple(drawn), 1)
        possible = np.ones((12, 12), bool)
        if filtered:
            possible[tuple(dense)] = False
            assert (counts[~possible] == 0).all()
        assert stats.chisquare(counts[possible]).pvalue > RARE
        rates[filtered] = sum(tuple(p) in edges for p in drawn.T.tolist())
    assert rates[False] > 0 == rates[True]
    full = write_graph(tmp_path / "full", np.indices((4, 4)).reshape(2, -1), 4, runtime)
    options = {**vars(config), "filter_negatives": True}
    with pytest.raises(ArgumentError, match="too dense to filter negatives"):
        list(BatchSampler(full, SampleConfig(**options), runtime).epoch("train", 0))


def test_nothing_but_the_key_matters(tmp_path, make_runtime):
    graph, _, _ = a_graph(tmp_path, make_runtime(threads=1))
    config = SampleConfig(fanouts=(3, 2), batch_size=64, task="link", filter_negatives=True, seed=5)

    def epoch(number: int, runtime, topology: str = "automatic", **changes) -> list[BatchGraph]:
        changed = SampleConfig(**{**vars(config), **changes})
        return list(BatchSampler(graph, changed, runtime, topology=topology).epoch("train", number))

    expected = epoch(1, make_runtime(threads=1))
    for threads, topology in ((3, "automatic"), (2, "paged"), (2, "map")):
        for a, b in zip(expected, epoch(1, make_runtime(threads=threads), topology), strict=True):
            assert same(a, b)
            assert np.array_equal(pairs_of(a)[0], pairs_of(b)[0])
    others = [epoch(0, make_runtime()), epoch(1, make_runtime(), seed=6)]
    assert all(not np.array_equal(pairs_of(expected[0])[0], pairs_of(o[0])[0]) for o in others)


def test_listed_edges_are_the_positives(tmp_path, make_runtime):
    lists = {
        name: np.random.default_rng(i).integers(0, NODES, (70, 2))
        for i, name in enumerate(("train", "valid"))
    }
    graph, _, _ = a_graph(tmp_path, make_runtime(), edge_splits=lists)
    sampler = BatchSampler(graph, SampleConfig(fanouts=(2,), batch_size=30, task="link"), make_runtime())
    for split, edges in lists.items():
        found = []
        for batch in sampler.epoch(split, 0):
            pairs, label = pairs_of(batch)
            found.append(pairs[:, label == 1].T)
        assert [len(f) for f in found] == [30, 30, 10]
        together = np.concatenate(found)
        if split == "valid":
            assert np.array_equal(together, edges)
        assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, edges.tolist()))
    assert sampler.num_batches("test") == 0


@pytest.mark.parametrize("filtered", [False, True])
def test_triplets_begin_where_positive_edges_do(tmp_path, make_runtime, filtered):
    graph, edges, _ = a_graph(tmp_path, make_runtime())
    known = set(map(tuple, edges.T.tolist()))
    sampling = SampleConfig(
        fanouts=(2,),
        batch_size=64,
        task="link",
        negatives=3,
        negative_mode="triplet",
        filter_negatives=filtered,
    )
    run = outcrop.prepare(graph, tmp_path / "run", sampling=sampling, epochs=1, memory="2MiB")
    targets: list[int] = []
    for data in run.loader():
        pairs, positive = data.n_id[data.edge_label_index].numpy(), int(data.edge_label.sum())
        assert pairs.shape[1] == 4 * positive
        assert np.array_equal(pairs[0, positive:], np.repeat(pairs[0, :positive], 3))
        targets += pairs[1, positive:].tolist()
        hits = sum((u, v) in known for u, v in pairs[:, positive:].T.tolist())
        assert hits == 0 if filtered else hits < 20
        del data
    if not filtered:
        assert stats.chisquare(np.bincount(targets, minlength=NODES)).pvalue > RARE
    assert run.info.sample.negative_mode == "triplet"


def test_negatives_between_types_are_no_edges(tmp_path, make_runtime):
    """Most pairs of the two types are edges; ids are within the types."""
    rows = tuple(tuple(u for u in range(8) if (u + v) % 4) for v in range(6))
    graph = write_typed(tmp_path / "g", TypedGraph((6, 8), ((1, 0),), (rows,)))
    (of,) = graph.edge_types
    config = SampleConfig(fanouts=(2,), batch_size=36, task="link", negatives=10, filter_negatives=True)
    for topology in ("memory", "map", "paged"):
        sampler = BatchSampler(
            graph.with_seeds("t0"),
            config,
            make_runtime(),
            topology=topology,
            ids={"train": ChosenEdges(of, of.num_edges)},
        )
        (batch,) = sampler.epoch("train", 0)
        assert batch.edge_label_index is not None
        source, target = batch.edge_label_index
        pairs = np.stack([batch.nodes[1].ids[source], batch.nodes[0].ids[target]])
        assert sorted(map(tuple, pairs[:, :36].T.tolist())) == sorted(
            (u, v) for v in range(6) for u in rows[v]
        )
        assert ((pairs[0] + pairs[1])[36:] % 4 == 0).all()
        assert pairs.shape[1] == 36 * 11


@pytest.mark.parametrize("sampler", ["neighbor", "shadow"])
def test_runs_deliver_them_in_every_mode(tmp_path, make_runtime, sampler):
    graph, edges, features = a_graph(tmp_path, make_runtime())
    known = set(map(tuple, edges.T.tolist()))
    run = outcrop.prepare(
        graph,
        tmp_path / "run",
        fanouts=(3, 2),
        batch_size=100,
        task="link",
        filter_negatives=True,
        epochs=2,
        sampler=sampler,
        memory="2MiB",
    )
    reference = []
    for mode in ("packed", "online", "memory"):
        found = []
        for data in run.loader(1, mode=mode):
            assert np.array_equal(data.x.numpy(), features[data.n_id.numpy()])
            assert data.edge_label_index.dtype is not None
            pairs = data.n_id[data.edge_label_index].numpy()
            for (source, target), label in zip(pairs.T.tolist(), data.edge_label.tolist(), strict=True):
                assert ((source, target) in known) == bool(label)
            found.append((pairs.copy(), data.edge_label.clone().numpy(), data.edge_index.clone().numpy()))
            del data
        reference = reference or found
        assert len(found) == len(reference) == -(-edges.shape[1] // 100)
        for a, b in zip(reference, found, strict=True):
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    with pytest.raises(ArgumentError, match="holds edges to be predicted"):
        train(graph_with_labels(tmp_path, make_runtime()), run=tmp_path / "run")


@pytest.mark.parametrize("mode", ["packed", "online", "memory"])
def test_training_refuses_edges_before_it_prepares_any(tmp_path, make_runtime, mode):
    graph = graph_with_labels(tmp_path, make_runtime())
    with pytest.raises(
        ArgumentError, match=r"task 'link' .*prepare a run of them, and train .*a loop of your own"
    ):
        train(graph, sampling=SampleConfig(task="link"), loading=mode)
    assert [path.name for path in tmp_path.iterdir()] == ["labelled"]


def graph_with_labels(folder: Path, runtime):
    return write_graph(
        folder / "labelled",
        np.array([[0], [1]]),
        2,
        runtime,
        features=np.ones((2, 2), np.float32),
        labels=np.array([0, 1]),
        splits={"train": np.arange(2)},
    )


def test_impossible_tasks_are_refused():
    with pytest.raises(ArgumentError, match="task 'graph' is unknown; known: node, link"):
        SampleConfig(task="graph")  # type: ignore[arg-type]
    for negatives in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ArgumentError, match="negatives per edge"):
            SampleConfig(negatives=negatives)
    for negatives in (0.0, 1.5):
        with pytest.raises(ArgumentError, match="give a whole number from 1"):
            SampleConfig(task="link", negatives=negatives, negative_mode="triplet")
    with pytest.raises(ArgumentError, match="negative mode triplet is for task link"):
        SampleConfig(negative_mode="triplet")
    with pytest.raises(ArgumentError, match="makes batches of more than 2147483647 ends: lower one of them"):
        SampleConfig(task="link", negatives=1e12)
    with pytest.raises(ArgumentError, match="negative mode 'pairs' is unknown; known: binary, triplet"):
        SampleConfig(negative_mode="pairs")  # type: ignore[arg-type]
