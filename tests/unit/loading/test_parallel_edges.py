"""Edges that a graph has more than once: each has a weight and an id of its own, that of the arrays imported."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

import outcrop as oc
from outcrop.pyg import NeighborLoader
from outcrop.runtime.observer import Observer

NODES, EDGES = 12, 90
RNG = np.random.default_rng(3)
ENDS = RNG.integers(0, NODES, (2, EDGES))  # of 144 pairs: many are there twice, some more often
WEIGHTS = RNG.permutation(EDGES).astype(np.float32) + 1  # each once
QUIET = Observer(progress=False)
IMPORT = oc.ImportConfig(keep_duplicates=True, keep_self_loops=True)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> oc.Graph:
    splits = {name: np.arange(NODES) for name in ("train",)}
    parts = {
        "edges": ENDS, "edge_weight": WEIGHTS, "features": np.eye(NODES, dtype=np.float32),
        "labels": np.arange(NODES) % 2, "splits": splits,
    }  # fmt: skip
    return oc.import_graph(parts, tmp_path_factory.mktemp("parallel") / "g.oc", IMPORT, progress=False)


@pytest.fixture(scope="module")
def typed(tmp_path_factory) -> oc.Graph:
    """Items that users buy and return; purchases have weights."""
    folder = tmp_path_factory.mktemp("typed")
    for name, array in (
        ("buys", ENDS.T),
        ("returns", ENDS.T[:40]),
        ("w", WEIGHTS),
        ("x", np.eye(NODES, 4, dtype="f4")),
    ):
        np.save(folder / f"{name}.npy", array)
    (folder / "graph.toml").write_text("""
nodes = [{ name = "user", features = "x.npy" }, { name = "item", features = "x.npy" }]
[[edges]]
source = "user"
relation = "buys"
target = "item"
file = "buys.npy"
weights = "w.npy"
[[edges]]
source = "user"
relation = "returns"
target = "item"
file = "returns.npy"
""")
    return oc.import_graph(f"arrays:{folder}", folder / "g.oc", IMPORT, progress=False)


def edges_of(n_id: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor) -> Counter:
    sources, targets = n_id[edge_index].tolist()
    return Counter(zip(sources, targets, weight.tolist(), strict=True))


ALL = Counter(zip(*ENDS.tolist(), WEIGHTS.tolist(), strict=True))


@pytest.mark.parametrize("mode", ["online", "memory", "ondisk", "memmap"])
@pytest.mark.parametrize("edge_ids", [False, True])
def test_all_neighbours_have_all_weights(graph, mode, edge_ids):
    found = Counter()
    for batch in NeighborLoader(graph, [-1], batch_size=5, mode=mode, edge_ids=edge_ids):
        targets = batch.edge_index[1] < batch.batch_size
        found += edges_of(batch.n_id, batch.edge_index[:, targets], batch.edge_weight[targets])
        assert ("e_id" in batch) == edge_ids
        if edge_ids:
            assert torch.equal(
                torch.from_numpy(graph.edge_index()[:, batch.e_id]), batch.n_id[batch.edge_index]
            )
            assert len(batch.e_id.unique()) == len(batch.e_id)
    assert found == ALL


def test_all_neighbours_of_types_have_all_weights(typed):
    found = Counter()
    for batch in NeighborLoader(
        typed, [-1], batch_size=5, input_nodes=("item", torch.arange(NODES)), edge_ids=True
    ):
        bought = batch["user", "buys", "item"]
        users, items = (
            batch[of].n_id[ends].tolist()
            for of, ends in zip(("user", "item"), bought.edge_index, strict=True)
        )
        found += Counter(zip(users, items, bought.edge_weight.tolist(), strict=True))
        of_type = typed.edge_index(("user", "returns", "item"))[:, batch["user", "returns", "item"].e_id]
        assert np.array_equal(of_type[0], batch["user"].n_id[batch["user", "returns", "item"].edge_index[0]])
    assert found == ALL


@pytest.mark.parametrize(("weight_attr", "shares"), [(None, (0.5, 0.5)), ("edge_weight", (0.25, 0.75))])
def test_each_of_two_is_drawn_as_often_as_it_should_be(tmp_path, weight_attr, shares):
    parts = {
        "edges": np.array([[0, 1], [0, 1], [1, 0]]),
        "edge_weight": np.array([1, 3, 9], "f4"),
        "features": np.eye(2, dtype="f4"),
    }
    pair = oc.import_graph(parts, tmp_path / "g.oc", IMPORT, progress=False)
    loader = NeighborLoader(
        pair, [1], batch_size=1, input_nodes=torch.full((1,), 1), weight_attr=weight_attr, shuffle=True
    )
    drawn = Counter(float(batch.edge_weight[0]) for _ in range(400) for batch in loader)
    assert drawn[1.0] + drawn[3.0] == 400
    assert abs(drawn[1.0] / 400 - shares[0]) < 0.1  # four standard deviations


def test_a_run_knows_which_it_has_where_that_was_recorded(graph, tmp_path):
    sampling = oc.SampleConfig(fanouts=(3, 2), batch_size=5, edge_ids=True)
    run = oc.prepare(graph, tmp_path / "run", sampling=sampling, observer=QUIET)
    batches = 0
    for mode in ("packed", "online"):
        for batch in run.loader(mode=mode):
            assert torch.equal(
                torch.from_numpy(graph.edge_index()[:, batch.e_id]), batch.n_id[batch.edge_index]
            )
            found = edges_of(batch.n_id, batch.edge_index, batch.edge_weight)
            assert not found - ALL
            batches += 1
    assert batches == 6


def test_a_run_without_names_the_edge_and_the_remedy(graph, tmp_path):
    run = oc.prepare(
        graph, tmp_path / "run", sampling=oc.SampleConfig(fanouts=(-1,), batch_size=5), observer=QUIET
    )
    with pytest.raises(oc.ArgumentError, match=r"from node \d+ to node \d+ more than once.*--edge-ids"):
        list(run.loader())
