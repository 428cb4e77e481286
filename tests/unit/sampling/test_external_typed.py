"""Batches of graphs with types from elsewhere, as HeteroData: of torch_geometric's loader, and with our own losses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, NodeSamplerInput

import outcrop as oc
from outcrop.errors import ArgumentError
from outcrop.sampling.external import convert_typed
from outcrop.store.graph import Graph

QUIET = oc.Observer(progress=False)
SAMPLING = oc.SampleConfig(fanouts=(4, 3), batch_size=32)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = tmp_path_factory.mktemp("typed") / "g.oc"
    config = oc.GenerateConfig(nodes=2000, edges=30_000, kind="typed", train_fraction=0.2)
    return oc.generate_graph(path, config, progress=False)


def given(batch: HeteroData, rng: np.random.Generator, tell_hops: bool = True) -> HeteroData:
    """A batch with the nodes of each type shuffled within hops, as a stranger would yield it."""
    data, ranks = HeteroData(), {}
    for name in batch.node_types:
        per_hop, ids = batch[name].num_sampled_nodes, batch[name].n_id
        cuts = np.cumsum([0, *per_hop])
        order = np.concatenate([a + rng.permutation(b - a) for a, b in pairwise(cuts)])
        ranks[name] = torch.from_numpy(np.argsort(order))
        if len(ids):  # others are left out
            data[name].n_id = ids[torch.from_numpy(order)]
            if tell_hops:
                data[name].num_sampled_nodes = per_hop
        if "batch_size" in batch[name]:
            data[name].batch_size = batch[name].batch_size
    for key in batch.edge_types:
        ends = batch[key].edge_index
        if ends.shape[1]:
            data[key].edge_index = torch.stack([ranks[key[0]][ends[0]], ranks[key[2]][ends[1]]])
            if tell_hops:
                data[key].num_sampled_edges = batch[key].num_sampled_edges
    return data


@pytest.fixture(scope="module")
def ours(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> oc.Run:
    return oc.prepare(
        graph, tmp_path_factory.mktemp("runs") / "a", sampling=SAMPLING, epochs=2, memory="16MiB"
    )


def batches(run: oc.Run, tell_hops: bool = True) -> Any:
    def of_epoch(epoch: int) -> Iterator[HeteroData]:
        rng = np.random.default_rng(epoch)
        for batch in run.loader(epoch, mode="memory"):
            yield given(batch, rng, tell_hops)

    return of_epoch


def losses(graph: Graph, run: oc.Run, loading: str) -> list[float]:
    return oc.train(
        graph,
        run=run.path,
        loading=loading,
        model=oc.ModelConfig("rsage", hidden=8, layers=2, no_rows="random:4"),
        training=oc.TrainConfig(trace_losses=True, test=False),
        epochs=2,
        memory="24MiB",
        observer=QUIET,
    ).batch_losses


def test_our_own_batches_come_back_with_their_losses(graph: Graph, ours: oc.Run, tmp_path: Path) -> None:
    run = oc.prepare(graph, tmp_path / "b", batches=batches(ours), epochs=2, memory="16MiB")
    assert run.info.sample.sampler == "foreign"
    count = 0
    for epoch in range(2):
        for found, wanted in zip(run.loader(epoch), ours.loader(epoch, mode="memory"), strict=True):
            for name in wanted.node_types:
                for key in ("n_id", "x", "y"):
                    assert (key in found[name]) == (key in wanted[name])
                    assert key not in wanted[name] or torch.equal(found[name][key], wanted[name][key])
                assert found[name].num_sampled_nodes == wanted[name].num_sampled_nodes
            for key in wanted.edge_types:
                assert found[key].num_sampled_edges == wanted[key].num_sampled_edges
                theirs = [
                    edges[:, np.lexsort(edges.numpy())]
                    for edges in (found[key].edge_index, wanted[key].edge_index)
                ]
                assert torch.equal(*theirs)
            count += 1
            del found, wanted
    assert count == 2 * -(-graph.spec("train").shape[0] // SAMPLING.batch_size)
    expected = losses(graph, ours, "packed")
    for loading in ("packed", "memory", "online", "ondisk"):
        np.testing.assert_allclose(losses(graph, run, loading), expected, rtol=1e-5)  # sums in another order
    assert losses(graph, run, "packed") == losses(graph, run, "memory") == losses(graph, run, "online")


def test_batches_that_do_not_tell_hops(graph: Graph, ours: oc.Run, tmp_path: Path) -> None:
    run = oc.prepare(graph, tmp_path / "b", batches=batches(ours, tell_hops=False), memory="16MiB")
    for found, wanted in zip(run.loader(0), ours.loader(0, mode="memory"), strict=True):
        for name in wanted.node_types:
            assert set(found[name].n_id.tolist()) == set(wanted[name].n_id.tolist())
            assert "num_sampled_nodes" not in found[name]
        for key in wanted.edge_types:
            pairs = [
                {
                    (int(batch[key[0]].n_id[s]), int(batch[key[2]].n_id[t]))
                    for s, t in batch[key].edge_index.T.tolist()
                }
                for batch in (found, wanted)
            ]
            assert pairs[0] == pairs[1]
        del found, wanted
    assert losses(graph, run, "packed") == losses(graph, run, "memory")


class OneHop(BaseSampler):
    """A sampler in Python for torch_geometric's NodeLoader: all neighbours of one hop, in every edge type."""

    def __init__(self, edges: dict[tuple[str, str, str], np.ndarray], sizes: dict[str, int], seeds: str):
        self.edges, self.sizes, self.seeds = edges, sizes, seeds

    def sample_from_nodes(self, inputs: NodeSamplerInput, **_: Any) -> HeteroSamplerOutput:
        nodes: dict[str, list[int]] = {name: [] for name in self.sizes}
        nodes[self.seeds] = inputs.node.tolist()
        first, row, col = len(inputs.node), {}, {}
        for key, (sources, targets) in self.edges.items():
            inside = (
                np.flatnonzero(np.isin(targets, nodes[self.seeds][:first])) if key[2] == self.seeds else []
            )
            for source in dict.fromkeys(sources[inside].tolist()):
                if source not in nodes[key[0]]:
                    nodes[key[0]].append(source)
            row[key] = torch.tensor(
                [nodes[key[0]].index(s) for s in sources[inside].tolist()], dtype=torch.int64
            )
            col[key] = torch.tensor(
                [nodes[key[2]].index(t) for t in targets[inside].tolist()], dtype=torch.int64
            )
        per_hop = {
            n: [first * (n == self.seeds), len(ids) - first * (n == self.seeds)] for n, ids in nodes.items()
        }
        return HeteroSamplerOutput(
            node={name: torch.tensor(ids, dtype=torch.int64) for name, ids in nodes.items()},
            row=row,
            col=col,
            edge=dict.fromkeys(row),
            num_sampled_nodes=per_hop,
            num_sampled_edges={key: [len(there)] for key, there in row.items()},
            metadata=(inputs.input_id, inputs.time),
        )

    def sample_from_edges(self, *_: Any, **__: Any) -> HeteroSamplerOutput:
        raise NotImplementedError


def test_torch_geometrics_loader_packs(graph: Graph, tmp_path: Path) -> None:
    edges = {of.key: graph.edge_index(of) for of in graph.edge_types}
    sizes = {of.name: of.num_nodes for of in graph.node_types}
    data = HeteroData()
    for name, count in sizes.items():
        data[name].num_nodes = count
    for key, ends in edges.items():
        data[key].edge_index = torch.from_numpy(ends)
    seeds = graph.seed_type.name
    sampler = OneHop(edges, sizes, seeds)
    loader = NodeLoader(data, sampler, input_nodes=(seeds, torch.arange(40)), batch_size=16)
    run = oc.prepare(graph, tmp_path / "run", batches=loader, memory="16MiB")
    with oc.Runtime() as runtime:
        rows = {file.owner.name: graph.array(runtime, file.array).read("rows") for file in graph.row_files}
    for found, theirs in zip(run.loader(0), loader, strict=True):
        assert found[seeds].batch_size == theirs[seeds].batch_size
        for name in sizes:
            assert sorted(found[name].n_id.tolist()) == sorted(theirs[name].n_id.tolist())
            if name in rows:
                assert np.array_equal(found[name].x.numpy(), rows[name][found[name].n_id.numpy()])
        for key in edges:
            assert found[key].edge_index.shape == theirs[key].edge_index.shape
            there = {(s, t) for s, t in edges[key].T.tolist()}
            for s, t in found[key].edge_index.T.tolist():
                assert (int(found[key[0]].n_id[s]), int(found[key[2]].n_id[t])) in there
        del found


def broken(batch: HeteroData, name: str, key: tuple[str, str, str], **changes: Any) -> HeteroData:
    for attribute, value in changes.items():
        store: Any = batch[key] if "edge" in attribute else batch[name]
        store[attribute] = value
    return batch


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"n_id": torch.tensor([0, 0])}, "nodes 'paper': "),
        ({"n_id": torch.tensor([10**6])}, r"nodes 'paper': (batch_size|n_id holds)"),
        ({"edge_index": torch.tensor([[10**6], [0]])}, "edges 'paper cites paper': edge_index holds 1000000"),
        ({"num_sampled_nodes": [3, 2, 1]}, "nodes 'paper': num_sampled_nodes .* do not sum"),
        (
            {"num_sampled_edges": [3]},
            "edges 'paper cites paper': num_sampled_nodes .* do not belong together",
        ),
        ({"num_sampled_edges": [3, 2]}, "edges 'paper cites paper': num_sampled_edges .* do not sum"),
        ({"edge_label_index": torch.zeros((2, 0), dtype=torch.int64)}, "links cannot be predicted"),
        ({"batch_size": None}, r"batch_size is there for \[\], its seeds must be \['paper'\]"),
    ],
)
def test_what_is_no_batch_is_refused(
    graph: Graph, ours: oc.Run, changes: dict[str, Any], problem: str
) -> None:
    (batch, *_) = [given(batch, np.random.default_rng(0)) for batch in ours.loader(0, mode="memory")]
    bad = broken(batch, "paper", ("paper", "cites", "paper"), **changes)
    with pytest.raises(ArgumentError, match=problem) as error:
        convert_typed(bad, graph, "batch 3")
    assert str(error.value).startswith("batch 3")


def test_other_types_are_refused(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"batch 3: it is a dict, and .* has types: give HeteroData"):
        convert_typed({}, graph, "batch 3")
    data = HeteroData()
    data["paper"].n_id, data["paper"].batch_size = torch.arange(3), 3
    with pytest.raises(ArgumentError, match="degrees of nodes, which model gcn needs, is not there yet"):
        oc.prepare(graph, tmp_path / "run", batches=[data], sampling=oc.SampleConfig(degrees=True))
    data = HeteroData()
    data["film"].n_id = torch.arange(3)
    with pytest.raises(ArgumentError, match=r"batch 3: it has type 'film', which .* has not"):
        convert_typed(data, graph, "batch 3")
    data = HeteroData()
    data["author"].n_id, data["author"].batch_size = torch.arange(3), 3
    with pytest.raises(
        ArgumentError, match=r"batch_size is there for \['author'\], its seeds must be \['paper'\]"
    ):
        convert_typed(data, graph, "batch 3")
