"""Batches from elsewhere: what was yielded arrives, up to the documented order; models agree; junk is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

import outcrop
from batch_reference import parts_of
from outcrop.api.train import train
from outcrop.errors import ArgumentError
from outcrop.nn.models import build_model
from outcrop.sampling.external import ExternalBatches, convert
from outcrop.store.batches import BatchGraph
from outcrop.store.minibatch import MiniBatch
from outcrop.testing import write_graph
from prepare_support import prepare
from sampling_support import draw, random_csc

NODES, WIDTH = 300, 9


class HopSampler(BaseSampler):
    """A sampler in Python for torch_geometric's NodeLoader: all neighbours of two hops, discovery order shuffled."""

    def __init__(self, edge_index: np.ndarray, tell_hops: bool):
        self.edges, self.tell_hops = edge_index, tell_hops

    def sample_from_nodes(self, inputs: NodeSamplerInput, **_: Any) -> SamplerOutput:
        rng = np.random.default_rng(int(inputs.node[0]))
        nodes = inputs.node.tolist()
        frontier, per_hop, edges_per_hop, rows, cols = list(nodes), [len(nodes)], [], [], []
        for _hop in range(2):
            inside = np.flatnonzero(np.isin(self.edges[1], frontier))
            inside = inside[np.argsort([frontier.index(t) for t in self.edges[1, inside]], kind="stable")]
            new = [s for s in dict.fromkeys(self.edges[0, inside].tolist()) if s not in nodes]
            rng.shuffle(new)
            nodes += new
            rows.append(self.edges[0, inside])
            cols.append(self.edges[1, inside])
            frontier = new
            per_hop.append(len(new))
            edges_per_hop.append(len(inside))
        local = {node: i for i, node in enumerate(nodes)}
        row, col = ([local[n] for n in np.concatenate(part).tolist()] for part in (rows, cols))
        return SamplerOutput(
            node=torch.tensor(nodes),
            row=torch.tensor(row),
            col=torch.tensor(col),
            edge=None,
            num_sampled_nodes=per_hop if self.tell_hops else None,
            num_sampled_edges=edges_per_hop if self.tell_hops else None,
            metadata=(inputs.input_id, inputs.time),
        )

    def sample_from_edges(self, *_: Any, **__: Any) -> SamplerOutput:
        raise NotImplementedError


def a_problem(folder: Path) -> tuple[Any, Data]:
    rng = np.random.default_rng(0)
    edges = np.unique(rng.integers(0, NODES, (2, 1500)), axis=1)
    features = rng.standard_normal((NODES, WIDTH)).astype(np.float32)
    labels = rng.integers(0, 4, NODES)
    with outcrop.Runtime() as runtime:
        graph = write_graph(
            folder / "g",
            edges,
            NODES,
            runtime,
            features=features,
            labels=labels,
            splits={"train": np.arange(60), "valid": np.arange(60, 80), "test": np.arange(80, 100)},
        )
    data = Data(x=torch.from_numpy(features), edge_index=torch.from_numpy(edges), y=torch.from_numpy(labels))
    return graph, data


def node_loader(data: Data, tell_hops: bool, nodes: torch.Tensor, size: int = 16) -> NodeLoader:
    assert data.edge_index is not None
    return NodeLoader(
        data,
        node_sampler=HopSampler(data.edge_index.numpy(), tell_hops),
        input_nodes=nodes,
        batch_size=size,
        shuffle=False,
    )


def edges_of(n_id: Any, edge_index: Any) -> list[tuple[int, int]]:
    ids, pairs = np.asarray(n_id), np.asarray(edge_index)
    return sorted(zip(ids[pairs[0]].tolist(), ids[pairs[1]].tolist(), strict=True))


@pytest.mark.parametrize("tell_hops", [True, False])
def test_torch_geometrics_loader_packs(tmp_path, tell_hops):
    graph, data = a_problem(tmp_path)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    loader = node_loader(data, tell_hops, order)
    valid = node_loader(data, tell_hops, torch.arange(60, 80))
    run = outcrop.prepare(
        graph, tmp_path / "run", batches={"train": loader, "valid": valid}, memory="4MiB", epochs=2
    )
    assert run.info.sample.sampler == "foreign"
    assert run.info.sample.splits == ("train", "valid")
    torch.manual_seed(0)
    convs = torch.nn.ModuleList([SAGEConv(WIDTH, 8), SAGEConv(8, 4)])

    def scores(batch: Any) -> torch.Tensor:
        hidden = convs[0](batch.x, batch.edge_index).relu()
        return convs[1](hidden, batch.edge_index)[: batch.batch_size]

    for split, source in (("train", loader), ("valid", valid)):
        for mode in ("packed", "memory", "online"):
            count = 0
            for ours, theirs in zip(run.loader(1, split=split, mode=mode), source, strict=True):
                assert ours.batch_size == theirs.batch_size
                assert sorted(ours.n_id.tolist()) == sorted(theirs.n_id.tolist())
                assert edges_of(ours.n_id, ours.edge_index) == edges_of(theirs.n_id, theirs.edge_index)
                seeds, back = torch.sort(theirs.n_id[: theirs.batch_size])
                assert torch.equal(ours.n_id[: ours.batch_size], seeds)
                assert torch.equal(ours.y, theirs.y[: theirs.batch_size][back])
                assert torch.equal(ours.x, data.x[ours.n_id])  # type: ignore[index]
                with torch.no_grad():
                    assert torch.allclose(scores(ours), scores(theirs)[back], rtol=1e-4, atol=1e-5)
                if tell_hops:
                    assert ours.num_sampled_nodes == list(theirs.num_sampled_nodes)
                    assert ours.num_sampled_edges == list(theirs.num_sampled_edges)
                else:
                    assert "num_sampled_nodes" not in ours
                count += 1
                del ours
            assert count == len(source)


@pytest.mark.parametrize("tell_hops", [True, False])
def test_our_models_say_what_theirs_say(tmp_path, tell_hops):
    _, data = a_problem(tmp_path)
    for theirs in node_loader(data, tell_hops, torch.arange(60)):
        batch = convert(theirs, NODES, "here")
        assert batch.untrimmed is not tell_hops
        x = data.x[torch.from_numpy(batch.n_id)]  # type: ignore[index]
        model = build_model("sage", WIDTH, 8, 4, 2).eval()
        mini = MiniBatch(batch, (x,), torch.from_numpy(batch.labels))
        hidden = model.convs[0](theirs.x, theirs.edge_index).relu()
        expected = model.convs[1](hidden, theirs.edge_index)[: theirs.batch_size]
        with torch.no_grad():
            assert torch.allclose(model(mini), expected, rtol=1e-4, atol=1e-5)
        gcn = build_model("gcn", WIDTH, 8, 4, 1).eval()
        if not tell_hops:
            conv = gcn.convs[0]
            assert isinstance(conv, GCNConv)
            with torch.no_grad():
                found, wanted = gcn(mini), conv(theirs.x, theirs.edge_index)[: theirs.batch_size]
            assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


def of_ours(batch: BatchGraph, rng: np.random.Generator) -> SimpleNamespace:
    """A batch of our own sampler with its nodes shuffled within hops, as a stranger would yield it."""
    cuts = np.cumsum([0, *batch.nodes_per_hop])
    order = np.concatenate([a + rng.permutation(b - a) for a, b in pairwise(cuts)])
    rank = np.argsort(order)
    return SimpleNamespace(
        n_id=batch.n_id[order],
        edge_index=rank[batch.edge_index()],
        batch_size=batch.num_seeds,
        num_sampled_nodes=list(batch.nodes_per_hop),
        num_sampled_edges=list(batch.edges_per_hop),
    )


def test_batches_of_our_sampler_come_back_the_same():
    rng, graph = np.random.default_rng(0), random_csc(400, 6000, 1)
    for batch in draw(graph, [list(range(i, i + 25)) for i in range(0, 200, 25)], (3, 4, 2)):
        back = convert(of_ours(batch, rng), 400, "here")
        assert (back.nodes_per_hop, back.edges_per_hop) == (batch.nodes_per_hop, batch.edges_per_hop)
        assert all(np.array_equal(getattr(back, n), getattr(batch, n)) for n in ("n_id", "rowptr", "col"))
        assert (back.n_id.dtype, back.rowptr.dtype, back.col.dtype) == (np.int64, np.int32, np.int32)
        assert not back.untrimmed


def a_batch(**changes: Any) -> SimpleNamespace:
    fields = {"n_id": [5, 2, 9], "edge_index": [[2, 1, 0], [0, 0, 1]], "batch_size": 2}
    return SimpleNamespace(
        **{name: value for name, value in {**fields, **changes}.items() if value is not None}
    )


def test_order_labels_and_edges_to_predict():
    batch = convert(a_batch(y=[7, 3, 1], edge_label_index=[[0, 1], [1, 1]], edge_label=[1, 0]), 10, "here")
    assert batch.n_id.tolist() == [2, 5, 9]
    assert batch.labels.tolist() == [3, 7]
    assert batch.untrimmed
    assert (batch.nodes_per_hop, batch.edges_per_hop) == ((2, 1), (3,))
    assert batch.rowptr.tolist() == [0, 1, 3, 3]
    assert batch.col.tolist() == [1, 2, 0]
    assert batch.edge_label_index is not None
    assert batch.edge_label is not None
    assert batch.edge_label_index.tolist() == [[1, 0], [0, 0]]
    assert batch.edge_label.tolist() == [1, 0]
    link = convert(a_batch(batch_size=None, edge_label_index=[[0, 1], [1, 0]]), 10, "here")
    assert link.num_seeds == 2
    assert link.edge_label is not None
    assert link.edge_label.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"n_id": None}, "it has no n_id"),
        ({"n_id": [5, 2, 10]}, "n_id holds 10"),
        ({"n_id": [5, 2, -1]}, "n_id holds -1"),
        ({"n_id": [5, 2, 5]}, "lists a node twice"),
        ({"n_id": [5.0, 2, 1]}, "integers are needed"),
        ({"n_id": [[5, 2, 1]]}, "one dimension"),
        ({"edge_index": None}, "it has no edge_index"),
        ({"edge_index": [[0, 3], [0, 0]]}, "edge_index holds 3"),
        ({"edge_index": [0, 1, 2]}, r"\[2, edges\] is needed"),
        ({"batch_size": None}, "it has no batch_size"),
        ({"batch_size": 4}, "batch_size 4 is not in 0..3"),
        ({"y": [1.5, 2.5]}, "one whole number per seed"),
        ({"y": [1]}, "one whole number per seed"),
        ({"y": [-2, 0]}, "below -1"),
        ({"edge_label_index": [[0], [2]]}, "nodes must be seeds"),
        ({"edge_label_index": [[0], [1]], "edge_label": [1, 0]}, "edge_label has shape"),
        ({"num_sampled_nodes": [2, 1], "num_sampled_edges": [2, 1]}, "do not belong together"),
        ({"num_sampled_nodes": [2, 2], "num_sampled_edges": [3]}, "do not sum"),
        ({"num_sampled_nodes": [1, 2], "num_sampled_edges": [3]}, "do not begin with its 2 seeds"),
        (
            {"edge_index": [[0], [2]], "num_sampled_nodes": [2, 1], "num_sampled_edges": [1]},
            "edge 0 of hop 0 leads from node 0 to 2",
        ),
    ],
)
def test_what_is_no_batch_is_refused(changes, problem):
    with pytest.raises(ArgumentError, match=problem) as error:
        convert(a_batch(**changes), 10, "batch 3 of epoch 1")
    assert str(error.value).startswith("batch 3 of epoch 1")


def test_a_batch_may_be_a_dict():
    fields = {"y": [7, 3, 1], "num_sampled_nodes": [2, 1], "num_sampled_edges": [3]}
    found, expected = (convert(b, 10, "here") for b in (vars(a_batch(**fields)), a_batch(**fields)))
    for name, value in parts_of(expected).items():
        np.testing.assert_array_equal(parts_of(found)[name], value, name)
    assert [b.n_id.tolist() for b in ExternalBatches([vars(a_batch())], 10).epoch("train", 0)] == [[2, 5, 9]]
    with pytest.raises(ArgumentError, match="here: it has no edge_index"):
        convert({"n_id": [1]}, 10, "here")


def test_iterables_and_functions():
    batches = [a_batch(), a_batch(n_id=[1, 2, 3])]
    once = ExternalBatches(iter(batches), 10)
    assert once.hops == 1
    assert [b.n_id.tolist() for b in once.epoch("train", 0)] == [[2, 5, 9], [1, 2, 3]]
    assert list(once.epoch("train", 1)) == []
    by_epoch = ExternalBatches(lambda epoch: [a_batch(n_id=[epoch, 8, 9])], 10)
    assert [[b.n_id.tolist() for b in by_epoch.epoch("train", e)] for e in (0, 3)] == [
        [[0, 8, 9]],
        [[3, 8, 9]],
    ]
    spelled = ExternalBatches({"train": batches, "val": batches}, 10)
    assert spelled.splits == ("train", "valid")
    assert [b.n_id.tolist() for b in spelled.epoch("valid", 0)] == [[2, 5, 9], [1, 2, 3]]
    twice = {"train": batches, "val": batches, "valid": batches}
    for wrong in ({}, {"valid": batches}, {"train": batches, "check": batches}, twice):
        with pytest.raises(ArgumentError, match="batches are given for"):
            ExternalBatches(wrong, 10)
    with pytest.raises(ArgumentError, match="iterable is empty"):
        ExternalBatches([], 10)
    with pytest.raises(ArgumentError, match="batches of split 'train' are a int: pass an iterable"):
        ExternalBatches(3, 10)  # type: ignore[arg-type]
    hops = {"num_sampled_nodes": [2, 1, 0], "num_sampled_edges": [3, 0]}
    with pytest.raises(
        ArgumentError, match="batch 1 of epoch 0 of split 'train' has 2 hops, the first batch 1"
    ):
        list(ExternalBatches([a_batch(), a_batch(**hops)], 10).epoch("train", 0))


def test_preparing_again_and_what_is_skipped(tmp_path):
    graph, data = a_problem(tmp_path)
    asked = []

    def source(epoch: int) -> Iterator[Any]:
        asked.append(epoch)
        yield from node_loader(data, True, torch.arange(60))

    report = prepare(graph, tmp_path / "run", batches=source, memory="4MiB", epochs=2)
    assert report.skipped == []
    report = prepare(graph, tmp_path / "run", batches=source, memory="4MiB", epochs=2)
    assert report.skipped == ["plan", "pack"]  # sampled again, and the same
    asked.clear()
    report = prepare(graph, tmp_path / "run", batches=source, batches_key="a", memory="4MiB", epochs=2)
    assert asked == [0, 1]
    asked.clear()
    report = prepare(graph, tmp_path / "run", batches=source, batches_key="a", memory="4MiB", epochs=2)
    assert report.skipped == ["sample", "plan", "pack"]
    assert asked == [0]  # only to learn the number of hops
    with pytest.raises(ArgumentError, match="epoch 1 of split 'train' has 0 batches, the first has 4"):
        prepare(graph, tmp_path / "once", batches=source(0), epochs=2)
    with pytest.raises(ArgumentError, match="needs batches"):
        prepare(graph, tmp_path / "none", sampler="foreign")


@pytest.mark.parametrize("tell_hops", [True, False])
def test_training_on_them(tmp_path, tell_hops):
    graph, data = a_problem(tmp_path)
    outcrop.prepare(
        graph,
        tmp_path / "run",
        batches={"train": node_loader(data, tell_hops, torch.arange(60))},
        degrees=True,
        memory="4MiB",
    )
    losses = {}
    for mode in ("packed", "memory", "online"):
        report = train(
            graph,
            run=tmp_path / "run",
            mode=mode,
            model="gcn",
            layers=2,
            hidden=8,
            epochs=2,
            memory="8MiB",
            trace_losses=True,
        )
        losses[mode] = report.batch_losses
    assert losses["packed"] == losses["memory"] == losses["online"]
    assert len(losses["packed"]) == 8
