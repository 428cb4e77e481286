"""Features of edges in batches: rows of ``e_id``, bit for bit, from every mode, sampler and topology; and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outcrop as oc
from outcrop.config import SampleConfig
from outcrop.loading.modes import MODES
from outcrop.loading.open import open_session
from outcrop.pyg import NeighborLoader
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph, open_graph

NODES, EDGES = 300, 4000
SPLITS = {"train": np.arange(60), "valid": np.arange(60, 90), "test": np.arange(90, 100)}
OPTIONS: dict[str, Any] = {"memory": "4MiB", "batch_size": 20}
FANOUTS = (4, 3)
EVERY_MODE = [mode.name for mode in MODES if mode.name != "partition"]


def hub(count: int, nodes: int, seed: int) -> np.ndarray:
    """Edges among few nodes, many of them twice, and loops: float32 [2, count]."""
    rng = np.random.default_rng(seed)
    return np.stack([(rng.random(count) ** 3 * nodes).astype(np.int64), rng.integers(0, nodes, count)])


def rows_of(count: int, dtype: str, width: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 100, (count, width)).astype(dtype)


@pytest.fixture
def plain(tmp_path: Path) -> Graph:
    """A graph without types, with duplicates, weights and rows of its edges."""
    parts = {
        "edges": hub(EDGES, NODES, 0).T,
        "edge_features": rows_of(EDGES, "int16", 7, 1),
        "edge_weight": np.random.default_rng(2).random(EDGES),
        "features": rows_of(NODES, "float32", 20, 3),
        "labels": np.arange(NODES) % 5,
    }
    return oc.import_graph(parts, tmp_path / "plain.oc", splits=SPLITS, progress=False)


@pytest.fixture
def typed(tmp_path: Path) -> Graph:
    """Papers and authors; citations and writing have rows of their own width, the reverse has the same again."""
    folder = tmp_path / "typed"
    folder.mkdir()
    np.save(folder / "x.npy", rows_of(NODES, "float32", 20, 3))
    np.save(folder / "y.npy", np.arange(NODES) % 5)
    for split, ids in SPLITS.items():
        np.save(folder / f"{split}.npy", ids)
    np.save(folder / "cites.npy", hub(EDGES, NODES, 0).T)
    np.save(folder / "cites-x.npy", rows_of(EDGES, "int16", 7, 1))
    np.save(folder / "cites-w.npy", np.random.default_rng(2).random(EDGES).astype(np.float32))
    np.save(folder / "writes.npy", np.stack([hub(900, 50, 4)[0], hub(900, NODES, 5)[1]], axis=1))
    np.save(folder / "writes-x.npy", rows_of(900, "float64", 2, 6))
    np.save(folder / "knows.npy", hub(200, 50, 7).T)
    np.save(folder / "knows-w.npy", np.random.default_rng(8).random(200).astype(np.float32))
    splits = "".join(f'{split} = "{split}.npy"\n' for split in SPLITS)
    edges = "".join(
        f'[[edges]]\nsource = "{source}"\nrelation = "{name}"\ntarget = "{target}"\nfile = "{name}.npy"\n{more}\n'
        for source, name, target, more in (
            ("paper", "cites", "paper", 'features = "cites-x.npy"\nweights = "cites-w.npy"'),
            ("author", "writes", "paper", 'features = "writes-x.npy"\nreverse = true'),
            ("author", "knows", "author", 'weights = "knows-w.npy"'),
        )
    )
    (folder / "graph.toml").write_text(
        f'[[nodes]]\nname = "paper"\nfeatures = "x.npy"\nlabels = "y.npy"\n{splits}'
        f'[[nodes]]\nname = "author"\nnum_nodes = 50\n{edges}'
    )
    return oc.import_graph(f"arrays:{folder}", tmp_path / "typed.oc", progress=False)


@pytest.fixture(params=["plain", "typed"])
def graph(request: pytest.FixtureRequest) -> Graph:
    return request.getfixturevalue(request.param)


class Expected:
    """Knows the edges, rows and weights of a graph on disk."""

    def __init__(self, graph: Graph):
        self.graph = graph
        arrays = graph.manifest.arrays
        with Runtime() as runtime:
            self.rows = {
                of.number: graph.array(runtime, of.array("features")).read("test")
                for of in graph.edge_types
                if of.array("features") in arrays
            }
            every = graph.array(runtime, "edge_weight").read("test")
        self.edges = [graph.edge_index(of) for of in graph.edge_types]
        self.weights, first = {}, 0
        for of in graph.edge_types:
            if of.weighted:
                self.weights[of.number] = every[first : first + of.num_edges]
                first += of.num_edges

    def check(self, data: Any, *, rows: bool = True) -> int:
        """Fails unless every edge of a batch is the one that ``e_id`` says, with its row and weight; counts rows."""
        found = 0
        for of in self.graph.edge_types:
            store = data[of.key] if self.graph.is_typed else data
            ends = [data[end.name] if self.graph.is_typed else data for end in (of.source, of.target)]
            has = rows and of.number in self.rows
            assert ("edge_attr" in store) == has
            assert ("edge_weight" in store) == (of.number in self.weights)
            if has:
                e_id, wanted = store.e_id.numpy(), self.rows[of.number]
                met = np.stack([end.n_id[at].numpy() for end, at in zip(ends, store.edge_index, strict=True)])
                assert np.array_equal(met, self.edges[of.number][:, e_id])
                assert store.edge_attr.dtype == getattr(torch, wanted.dtype.name)
                assert store.edge_attr.numpy().tobytes() == wanted[e_id].tobytes()
                found += len(e_id)
                if of.number in self.weights:
                    assert np.array_equal(store.edge_weight.numpy(), self.weights[of.number][e_id])
        return found


@pytest.fixture(params=["neighbor", "replace", "shadow"])
def drawing(request: pytest.FixtureRequest, graph: Graph) -> dict[str, Any]:
    """How batches are drawn: edges each once in the order of their rows, several times, or in another order."""
    if request.param == "shadow" and graph.is_typed:
        pytest.skip("no induced subgraphs of graphs with types")
    return {"neighbor": {}, "replace": {"replace": True}, "shadow": {"sampler": "shadow"}}[request.param]


def loaded(graph: Graph, mode: str, run: Path | None, drawing: dict[str, Any]) -> list[Any]:
    """Structures and rows of all batches of an epoch, copied."""
    config = SampleConfig(FANOUTS, batch_size=20, edge_rows=True, **drawing)
    with (
        Runtime("8MiB", threads=2) as runtime,
        open_session(graph, runtime, mode, run_folder=run, config=config) as session,
    ):
        found = []
        for batch in session.batches("train", 0):
            found.append((batch.graph, [rows.clone() for rows in batch.rows]))
            del batch
        return found


def prepared(graph: Graph, out: Path, **options: Any) -> oc.Run:
    sampling = SampleConfig(FANOUTS, batch_size=20, **{"edge_rows": True, **options})
    return oc.prepare(
        graph, out, sampling=sampling, epochs=2, memory="4MiB", observer=oc.Observer(progress=False)
    )


@pytest.mark.quick_cases(14)
@pytest.mark.parametrize("mode", EVERY_MODE)
def test_a_run_gives_rows_and_positions_in_every_mode(graph, tmp_path, mode, drawing):
    expected = Expected(graph)
    run = prepared(graph, tmp_path / "run", **drawing)
    count = 0
    for split in ("train", "valid"):
        loader = run.loader(split, mode=mode)
        for _ in range(2 if split == "train" else 1):
            for data in loader:
                count += expected.check(data)
                del data
        loader.close()
    assert count > 1000


@pytest.mark.parametrize("recorded", [False, True])
def test_rows_are_equal_in_all_modes(graph, tmp_path, recorded, drawing):
    folder = prepared(graph, tmp_path / "run", **drawing).path if recorded else None
    modes = EVERY_MODE if recorded else [name for name in EVERY_MODE if name not in ("packed", "belady")]
    first = loaded(graph, modes[0], folder, drawing)
    for structure, rows in first:  # each row once, whatever comes several times
        for of, x in zip(graph.row_files, rows, strict=True):
            if of.kind == "edges":
                assert len(x) == len(np.unique(structure.edges[of.owner.number].positions))
    drawn = [structure.edges[0].positions for structure, _ in first]
    assert any(len(np.unique(one)) < len(one) for one in drawn) == ("replace" in drawing)
    for mode in modes[1:]:
        for (a, mine), (b, theirs) in zip(loaded(graph, mode, folder, drawing), first, strict=True):
            assert np.array_equal(a.edges[0].positions, b.edges[0].positions)
            assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replace": True},
        {"shuffle": True},
        {"weight_attr": "edge_weight"},
        {"mode": "memory"},
        {"mode": oc.Online(topology="paged")},
        {"input_nodes": [200, 3, 77, 150]},
        {"subgraph_type": "induced"},
    ],
)
def test_the_neighbor_loader_gives_them_unasked(graph, options):
    if graph.is_typed and "subgraph_type" in options:
        pytest.skip("no induced subgraphs of graphs with types")
    expected = Expected(graph)
    nodes = options.pop("input_nodes", "train")
    loader = NeighborLoader(graph, list(FANOUTS), nodes, **OPTIONS, **options)
    for _ in range(2):
        for data in loader:
            assert expected.check(data) or graph.is_typed
            del data
    for data in NeighborLoader(graph.with_edge_rows(False), list(FANOUTS), nodes, **OPTIONS, **options):
        assert expected.check(data, rows=False) == 0
        del data


def draw(graph: Graph, topology: str, steps: bool = False, **options: Any) -> list[BatchGraph]:
    config = SampleConfig(FANOUTS, batch_size=20, **options)
    with Runtime("16MiB", threads=2) as runtime:
        sampler = BatchSampler(graph, config, runtime, topology=topology)
        if steps:
            return [sampler.sample(seeds, lambda nodes: None) for seeds in sampler.seeds("train", 0)]
        return list(sampler.epoch("train", 0))


@pytest.mark.parametrize("sampler", ["neighbor", "labor", "shadow", "weighted"])
@pytest.mark.parametrize("topology", ["memory", "map", "paged"])
@pytest.mark.parametrize("steps", [False, True])
def test_every_sampler_says_where_edges_lie(plain, sampler, topology, steps):
    """Nodes and sources of each target are those of before, the latter in the order of their positions."""
    index = Expected(plain).edges[0]
    with_rows = draw(plain, topology, steps, sampler=sampler, edge_rows=True)
    without = draw(plain, "memory", sampler=sampler)
    for ours, before in zip(with_rows, without, strict=True):
        assert np.array_equal(ours.n_id, before.n_id)
        assert np.array_equal(ours.rowptr, before.rowptr)
        assert ours.edges_per_hop == before.edges_per_hop
        assert ours.untrimmed == before.untrimmed
        positions = ours.edge_ids
        assert before.edge_ids is None
        assert positions is not None
        met = ours.n_id[ours.edge_index()]
        assert np.array_equal(met, index[:, positions])
        for a, b in zip(ours.rowptr[:-1], ours.rowptr[1:], strict=True):
            assert (np.diff(positions[a:b]) > 0).all()
            assert sorted(ours.col[a:b]) == sorted(before.col[a:b])


def test_edges_to_be_predicted_come_with_rows(tmp_path):
    edges, rows = hub(EDGES, NODES, 0), rows_of(EDGES, "uint8", 3, 0)
    parts = {"edges": edges.T, "edge_features": rows, "features": rows_of(NODES, "float32", 4, 1)}
    graph = oc.import_graph(parts, tmp_path / "g.oc", progress=False)
    stored = graph.edge_index()
    with Runtime() as runtime:
        table = graph.array(runtime, "e0.features").read("test")
    run = prepared(graph, tmp_path / "run", task="link", splits=("train",))
    data: Any
    for data in run.loader():
        assert np.array_equal(data.n_id[data.edge_index].numpy(), stored[:, data.e_id.numpy()])
        assert np.array_equal(data.edge_attr.numpy(), table[data.e_id.numpy()])
        assert data.edge_label_index.shape[0] == 2
        del data


def test_a_graph_of_edge_rows_alone(tmp_path):
    edges, rows = hub(500, 40, 0), rows_of(500, "float32", 3, 0)
    graph = oc.import_graph({"edges": edges.T, "edge_features": rows}, tmp_path / "g.oc", progress=False)
    data: Any
    for data in NeighborLoader(graph, [3], batch_size=10):
        assert "x" not in data
        assert data.edge_attr.shape == (data.num_edges, 3)
        del data


def test_what_cannot_be_had_is_refused(plain, tmp_path):
    run = prepared(plain, tmp_path / "run")
    with pytest.raises(
        oc.ArgumentError, match=r"features of the edges of .* mode partition loads those of nodes"
    ):
        next(iter(run.loader(mode="partition")))
    without = prepared(plain, tmp_path / "other", edge_rows=False, edge_ids=True)
    for data in without.loader():
        assert "edge_attr" not in data
        del data
    nothing = oc.import_graph(
        {"edges": hub(50, 9, 0).T, "features": rows_of(9, "float32", 2, 0)},
        tmp_path / "n.oc",
        splits={"train": [1]},
        progress=False,
    )
    with pytest.raises(
        oc.ArgumentError, match=r"n.oc has no features of edges, which edge_rows \(--edge-rows\)"
    ):
        prepared(nothing, tmp_path / "third")
    drawn = [data.clone() for data in NeighborLoader(plain, [2], "train", **OPTIONS)]
    with pytest.raises(oc.ArgumentError, match="batches from elsewhere have edges of their own"):
        oc.prepare(plain, tmp_path / "x", sampling=SampleConfig(FANOUTS, edge_rows=True), batches=drawn)


def test_ids_and_weights_of_typed_batches_without_rows(typed, tmp_path):
    """Recorded, since some edges stand there twice."""
    expected = Expected(typed)
    run = prepared(typed, tmp_path / "run", edge_rows=False, edge_ids=True)
    for data in run.loader():
        for of in typed.edge_types:
            store = data[of.key]
            ends = [
                data[end.name].n_id[at].numpy()
                for end, at in zip((of.source, of.target), store.edge_index, strict=True)
            ]
            e_id = store.e_id.numpy()
            assert np.array_equal(np.stack(ends), expected.edges[of.number][:, e_id])
            if of.weighted:
                assert np.array_equal(store.edge_weight.numpy(), expected.weights[of.number][e_id])
        del data


def test_runs_of_the_options_of_before_are_not_made_again(plain, tmp_path):
    run = prepared(plain, tmp_path / "run", edge_rows=False)
    assert "edge_rows" not in (run.path / "run.json").read_text()
    assert "edge_rows" not in (run.path / "sample" / "manifest.json").read_text()
    assert open_graph(plain.path).digest() == plain.digest()
