"""``outcrop.pyg``: NeighborLoader from disk against a graph in memory, and the stores against torch_geometric's own."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import outcrop
from artifact_support import memory_folder
from outcrop.config import DeviceConfig
from outcrop.errors import ArgumentError, OutcropWarning
from outcrop.loading.open import open_session
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.testing import write_graph

importlib.import_module("torch_geometric")

NODES = 300


@pytest.fixture(scope="module")
def graph() -> Iterator[Graph]:
    rng = np.random.default_rng(0)
    edges = np.unique(rng.integers(0, NODES, (2, 2500)), axis=1)
    with memory_folder() as folder:
        yield write_graph(
            folder / "graph",
            edges,
            NODES,
            Runtime(threads=1),
            features=rng.standard_normal((NODES, 6)).astype(np.float32),
            labels=rng.integers(0, 4, NODES),
            splits={"train": np.arange(0, 100), "test": np.arange(120, 150)},
            edge_weight=(rng.random(edges.shape[1]) + 0.1).astype(np.float32),
        )


def features_of(graph: Graph) -> np.ndarray:
    return np.fromfile(graph.path / "features.bin", "<f4", NODES * 6).reshape(NODES, 6)


def in_neighbors(graph: Graph) -> list[list[int]]:
    source, target = graph.edge_index()
    lists: list[list[int]] = [[] for _ in range(NODES)]
    for u, v in zip(source.tolist(), target.tolist(), strict=True):
        lists[v].append(u)
    return lists


def test_batches_are_neighborloaders(graph):
    """Hop by hop: each node met in the hop before has min(fanout, degree) distinct in-neighbours of the graph's."""
    lists, x = in_neighbors(graph), features_of(graph)
    train = torch.arange(0, 100)
    torch.manual_seed(11)
    loader = outcrop.pyg.NeighborLoader(
        str(graph.path), num_neighbors=[5, 3], batch_size=32, input_nodes=train, shuffle=True, memory="4MiB"
    )
    assert len(loader) == 4
    epochs = []
    for _ in range(2):
        seen, seeds = [], []
        for batch in loader:
            assert batch.validate()
            assert np.array_equal(batch.x.numpy(), x[batch.n_id.numpy()])
            assert torch.equal(train[batch.input_id], batch.n_id[: batch.batch_size])
            source, target = batch.n_id[batch.edge_index].tolist()
            degree = np.bincount(target, minlength=NODES)
            first = 0
            for size, fanout in zip(batch.num_sampled_nodes, (5, 3), strict=False):
                for v in batch.n_id[first : first + size].tolist():
                    assert degree[v] == min(fanout, len(lists[v]))
                first += size
            pairs = list(zip(source, target, strict=True))
            assert len(set(pairs)) == len(pairs)
            assert all(u in lists[v] for u, v in pairs)
            seen.append(batch.n_id.tolist())
            seeds += seen[-1][: batch.batch_size]
        assert sorted(seeds) == list(range(100))
        epochs.append(seen)
    assert epochs[0] != epochs[1]  # each iteration draws anew
    torch.manual_seed(11)
    again = outcrop.pyg.NeighborLoader(
        graph,
        [5, 3],
        train,
        batch_size=32,
        shuffle=True,
        mode="memory",
        num_workers=4,
        persistent_workers=True,
    )
    assert [batch.n_id.tolist() for batch in again] == epochs[0]


def test_graphs_without_features_have_batches_of_ids(graph, tmp_path):
    """For tables of embeddings that a script indexes by ``n_id``: the batches are those of the graph with features."""
    parts = {"edges": graph.edge_index().T, "labels": np.arange(NODES) % 3}
    bare = outcrop.import_graph(parts, tmp_path / "bare", progress=False)
    whole = outcrop.import_graph(
        {**parts, "features": np.ones((NODES, 2))}, tmp_path / "whole", progress=False
    )
    options = {"batch_size": 64, "shuffle": True, "seed": 2}
    for mode in ("online", "memory", "memmap", "ondisk", "dynamic", outcrop.Online(topology="paged")):
        loaders = [
            outcrop.pyg.NeighborLoader(data, [3, 2], mode=mode, memory="4MiB", **options)
            for data in (whole, bare)
        ]
        for with_rows, without in zip(*loaders, strict=True):
            assert "x" not in without
            assert without.num_nodes == with_rows.num_nodes
            for name in ("n_id", "edge_index", "y", "input_id"):
                assert torch.equal(without[name], with_rows[name])
            del with_rows, without
    (batch,) = outcrop.pyg.LinkNeighborLoader(bare, [2], torch.tensor([[1], [2]]))
    assert batch.n_id[:2].tolist() == [1, 2]
    with pytest.raises(outcrop.FormatError, match=r"no features.* or load its batches for the CPU"):
        open_session(bare, Runtime(threads=1), "online", device=DeviceConfig("cuda"))


def test_seeds_come_as_asked_for(graph):
    loader = outcrop.pyg.NeighborLoader(graph, [-1], batch_size=64)
    assert torch.equal(torch.cat([b.n_id[: b.batch_size] for b in loader]), torch.arange(NODES))
    dropped = outcrop.pyg.NeighborLoader(graph, [2], "test", batch_size=8, drop_last=True)
    assert (len(dropped), [b.batch_size for b in dropped]) == (3, [8, 8, 8])
    shown = outcrop.pyg.NeighborLoader(
        graph, [2], batch_size=100, transform=lambda batch: batch.n_id.tolist()
    )
    assert len({tuple(ids) for _ in range(2) for ids in shown}) == 6  # drawn anew without shuffling, too


def test_induced_and_weighted_batches(graph):
    lists = in_neighbors(graph)
    (batch,) = outcrop.pyg.NeighborLoader(graph, [2, 2], [7, 8], batch_size=2, subgraph_type="induced")
    inside = set(batch.n_id.tolist())
    ends = set(zip(*batch.n_id[batch.edge_index].tolist(), strict=True))
    assert ends == {(u, v) for v in inside for u in lists[v] if u in inside}
    del batch
    (batch,) = outcrop.pyg.NeighborLoader(
        graph, [2], [7, 8], batch_size=2, weight_attr="edge_weight", edge_ids=True
    )
    weights = np.fromfile(graph.path / "edge_weight.bin", "<f4", graph.num_edges)
    assert np.array_equal(weights[batch.e_id.numpy()], batch.edge_weight.numpy())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time_attr": "time"}, "time_attr is not possible"),
        ({"disjoint": True, "input_time": torch.zeros(1)}, r"input_time .*; disjoint .*"),
        ({"subgraph_type": "sideways"}, "subgraph_type is not possible: known: "),
        ({"weight_attr": "w"}, "edge_weight"),
        ({"input_nodes": torch.tensor([NODES])}, f"the first {NODES}, are not in 0 to {NODES - 1}"),
        ({"input_nodes": "valid"}, "no split 'valid'; it has all, train, test"),
        ({"num_neighbors": {("a", "b", "c"): [1]}}, "one type of edges"),
        ({"num_neighbors": [0]}, "fanout 0"),
        ({"data": object()}, "import it once"),
        ({"mode": "packed"}, "mode packed"),
    ],
)
def test_what_cannot_be_followed_is_named(graph, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        outcrop.pyg.NeighborLoader(**{"data": graph, "num_neighbors": [2], **arguments})


def test_the_feature_store_equals_torch_geometrics(graph):
    from torch_geometric.testing import MyFeatureStore

    store, _ = outcrop.pyg.stores(graph.path)
    reference = MyFeatureStore()
    masks = {f"{name}_mask": np.isin(np.arange(NODES), ids) for name, ids in
             (("train", np.arange(100)), ("test", np.arange(120, 150)))}  # fmt: skip
    tables = {"x": features_of(graph), "y": np.fromfile(graph.path / "labels.bin", "<i8", NODES), **masks}
    for name, table in tables.items():
        reference.put_tensor(torch.from_numpy(table), group_name=None, attr_name=name, index=None)
    assert [a.attr_name for a in store.get_all_tensor_attrs()] == list(tables)
    indices = [None, slice(None), torch.tensor([5, 2, 5, 299]), torch.zeros(0, dtype=torch.long)]
    for name in tables:
        for index in indices:
            asked = {"group_name": None, "attr_name": name, "index": index}
            assert torch.equal(store.get_tensor(**asked), reference.get_tensor(**asked))
        assert store.get_tensor_size(None, name) == tuple(reference.get_tensor_size(None, name))
        part = store.get_tensor(group_name=None, attr_name=name, index=slice(10, 20))
        assert torch.equal(part, torch.from_numpy(tables[name][10:20]))
    assert torch.equal(
        store.view(group_name=None)["x"][torch.tensor([3])], torch.from_numpy(tables["x"][[3]])
    )
    with pytest.raises(KeyError, match="it has x, y"):
        store.get_tensor(group_name=None, attr_name="z", index=None)
    with pytest.raises(ArgumentError, match="cannot be changed"):
        store.put_tensor(torch.zeros(1), group_name=None, attr_name="x", index=None)


def test_the_graph_store_equals_torch_geometrics(graph):
    from torch_geometric.testing import MyGraphStore

    _, store = outcrop.pyg.stores(graph)
    coo = torch.from_numpy(graph.edge_index())
    reference = MyGraphStore()
    reference.put_edge_index(
        (coo[0], coo[1]), edge_type=None, layout="coo", is_sorted=True, size=(NODES, NODES)
    )
    for layout in ("csc", "csr", "coo"):
        for ours, theirs in zip(getattr(store, layout)()[:2], getattr(reference, layout)()[:2], strict=True):
            assert torch.equal(ours, theirs)
    row, colptr = store.get_edge_index(edge_type=None, layout="csc")
    target = torch.repeat_interleave(torch.arange(NODES), colptr.diff())
    assert torch.equal(torch.stack([row, target]), coo)
    with pytest.raises(KeyError, match="not found"):
        store.get_edge_index(edge_type=("a", "b", "c"), layout="coo")


def seeds_of(loader) -> list[list[int]]:
    return [batch.n_id[: batch.batch_size].tolist() for batch in loader]


def test_each_loader_without_a_seed_draws_its_own(graph):
    """As a DataLoader: torch's generator moves on with each loader, and ``manual_seed`` brings the same again."""

    def run() -> list[list[list[int]]]:
        torch.manual_seed(3)
        return [
            seeds_of(outcrop.pyg.NeighborLoader(graph, [3], None, batch_size=50, shuffle=True))
            for _ in range(3)
        ]

    first = run()
    assert first[0] != first[1] != first[2] != first[0]
    assert run() == first
    drawn = [
        seeds_of(
            outcrop.pyg.NeighborLoader(
                graph, [3], None, batch_size=50, shuffle=True, generator=torch.Generator().manual_seed(seed)
            )
        )
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_loader_without_a_seed_goes_on_from_a_state(graph):
    """Scripts that set no seed go on all the same; a seed that was given is kept, and named where it differs."""
    options = {"num_neighbors": [3], "batch_size": 20, "shuffle": True}
    loader = outcrop.pyg.NeighborLoader(graph, **options)
    batches = iter(loader)
    next(batches)
    next(batches)
    state = loader.state_dict()
    rest = seeds_of(batches)
    other = outcrop.pyg.NeighborLoader(graph, **options)
    assert seeds_of(other) != rest
    other.load_state_dict(state)
    assert seeds_of(other) == rest
    assert other.state_dict()["sampling"] == state["sampling"]
    given = outcrop.pyg.NeighborLoader(graph, **options, seed=5)
    seed = state["sampling"]["seed"]
    with pytest.raises(
        ArgumentError, match=rf"a loader with seed {seed}, here 5: open the loader as the one"
    ):
        given.load_state_dict(state)
    with pytest.raises(ArgumentError, match=r"a loader with batches \d+, here it is"):
        outcrop.pyg.NeighborLoader(graph, [3], batch_size=10, shuffle=True).load_state_dict(state)
    with pytest.raises(ArgumentError, match=r"a loader with fanouts \[3\], here \[4\]: open"):
        outcrop.pyg.NeighborLoader(graph, [4], batch_size=20, shuffle=True).load_state_dict(state)


def test_what_dataloaders_take_besides(graph):
    loader = outcrop.pyg.NeighborLoader(
        graph, [3], np.arange(30), batch_size=8, worker_init_fn=print, timeout=3, sampler=None
    )
    assert len(loader.dataset) == 30
    assert len(outcrop.pyg.NeighborLoader(graph, [3]).dataset) == NODES
    with pytest.raises(
        ArgumentError, match="sampler is not possible: seeds are drawn by the loader: pass them as"
    ):
        outcrop.pyg.NeighborLoader(graph, [3], sampler=[1, 2])
    with pytest.raises(TypeError, match="unexpected keyword argument 'sufle'"):
        outcrop.pyg.NeighborLoader(graph, [3], sufle=True)
    with pytest.raises(ArgumentError, match=r"memory is 'auto'.* give a loader bytes"):
        outcrop.pyg.NeighborLoader(graph, [3], memory="auto")


def test_masks(graph):
    mask = np.zeros(NODES, bool)
    mask[[3, 7, 150]] = True
    for given in (mask, torch.from_numpy(mask), mask.astype(np.uint8)):
        loader = outcrop.pyg.NeighborLoader(graph, [3], given, batch_size=8)
        assert seeds_of(loader) == [[3, 7, 150]]
    with pytest.raises(ArgumentError, match="node 0 is there more than once: convert a mask to bool"):
        outcrop.pyg.NeighborLoader(graph, [3], mask.astype(np.int64))
    with pytest.raises(ArgumentError, match=rf"the mask of {NODES} nodes selects none"):
        outcrop.pyg.NeighborLoader(graph, [3], ~mask & mask)


def test_processes_that_all_go_over_a_whole_split_are_warned(graph, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    everything = np.ones(NODES, bool)
    for nodes in (None, "all", everything, everything.astype(np.uint8), np.arange(NODES)):
        with pytest.warns(
            OutcropWarning, match=r"2 processes train, and each goes over all of these seeds: divide"
        ):
            outcrop.pyg.NeighborLoader(graph, [3], nodes, shuffle=True)
    with pytest.warns(OutcropWarning, match=r"2 processes train"):
        outcrop.pyg.LinkNeighborLoader(graph, [3], shuffle=True)
    outcrop.pyg.NeighborLoader(graph, [3], np.arange(NODES // 2), shuffle=True)  # warnings are errors here
    outcrop.pyg.NeighborLoader(graph, [3])  # which evaluates
