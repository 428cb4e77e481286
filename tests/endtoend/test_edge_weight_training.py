"""GCN with weights of edges: what it computes is torch_geometric's, and the same from wherever batches come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv

import outcrop as oc
from batch_reference import deliver
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.models import Model, build_model
from outcrop.runtime.runtime import Runtime
from outcrop.sampling import topology as topologies
from outcrop.sampling.sampler import BatchSampler
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.minibatch import MiniBatch
from weight_support import CLASSES, DIM, draw, imported, whole

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
QUIET = oc.Observer(progress=False)
SAMPLING = oc.SampleConfig(fanouts=(6, 4), batch_size=40)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return imported(tmp_path_factory.mktemp("weights") / "g.oc")


def new_model(layers: int = 2) -> Model:
    torch.manual_seed(1)
    model = build_model("gcn", DIM, 8, CLASSES, layers).double()
    model.edge_weights = True
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def with_degrees(batch: BatchGraph, x: torch.Tensor) -> MiniBatch:
    found = deliver(batch, x)
    return MiniBatch(
        found.graph, found.rows, found.y, None if batch.degree is None else torch.from_numpy(batch.degree)
    )


def pyg(model: Model, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """torch_geometric's own layers with the parameters of the model."""
    for index, conv in enumerate(model.convs):
        theirs = GCNConv(*conv.lin.weight.shape[::-1]).double()
        theirs.lin.weight, theirs.bias = conv.lin.weight, conv.bias
        x = theirs(x, edge_index, weight)
        x = x if index == model.num_layers - 1 else F.relu(x)
    return x


def check_equal(
    ours: torch.Tensor, theirs: torch.Tensor, wanted: list[torch.Tensor], reference: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs, and gradients of a random sum of them, are equal to 1e-10; returns those of the first of ``wanted``,
    which may be of other rows.
    """
    torch.testing.assert_close(ours, theirs, **TIGHT)
    factors = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(5))
    ours = torch.autograd.grad((ours * factors).sum(), wanted)
    theirs = torch.autograd.grad((theirs * factors).sum(), reference)
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(a, b, **TIGHT)
    return ours[0], theirs[0]


@pytest.mark.parametrize("topology", ["memory", "map", "paged"])
@pytest.mark.parametrize("steps", [False, True])
def test_batches_of_all_neighbors_give_what_the_whole_graph_gives(graph, topology, steps, monkeypatch):
    monkeypatch.setattr(topologies, "_AT_ONCE", 37)
    x, edge_index, weight = whole()
    model = new_model()
    for batch in draw(graph, topology, steps, fanouts=(-1, -1)):
        every, of_batch = x.clone().requires_grad_(), x[batch.n_id].requires_grad_()
        loaded = with_degrees(batch, x)
        ours = model(MiniBatch(loaded.graph, (of_batch,), loaded.y, loaded.degree))
        theirs = pyg(model, every, edge_index, weight)[batch.seeds]
        found = check_equal(ours, theirs, [of_batch, *model.parameters()], [every, *model.parameters()])
        of_rows, of_every_row = found
        torch.testing.assert_close(of_rows, of_every_row[batch.n_id], **TIGHT)


def test_sampled_sums_are_those_of_the_whole_graph_on_average(graph):
    """Of one layer, over many epochs; the tolerance is five standard errors."""
    x, edge_index, weight = whole()
    model = new_model(1)
    with torch.no_grad():
        exact = pyg(model, x, edge_index, weight)[:300]
    config = oc.SampleConfig(fanouts=(3,), batch_size=300, degrees=True, edge_weights=True, epochs=1)
    found = []
    with Runtime() as runtime:
        sampler = BatchSampler(graph, config, runtime)
        for epoch in range(400):
            (batch,) = sampler.epoch("train", epoch)
            scores = torch.empty(300, CLASSES, dtype=torch.float64)
            with torch.no_grad():
                scores[batch.seeds] = model(with_degrees(batch, x))
            found.append(scores)
    every = torch.stack(found)
    error = every.std(0) / len(found) ** 0.5
    assert ((every.mean(0) - exact).abs() <= 5 * error + 1e-9).double().mean() > 0.999
    assert float(((every.mean(0) - exact) / exact.std()).mean().abs()) < 0.02


def test_weights_of_one_change_nothing(tmp_path):
    graph, x = imported(tmp_path / "ones.oc", "ones"), whole()[0]
    weighted, plain = new_model(), new_model()
    plain.edge_weights = False
    for batch in draw(graph):
        loaded = with_degrees(batch, x)
        torch.testing.assert_close(weighted(loaded), plain(loaded), **TIGHT)


def test_a_subgraph_of_shadow_is_a_graph_of_its_own(graph):
    x, model = whole()[0], new_model(3)
    for batch in draw(graph, sampler="shadow"):
        assert batch.edge_weight is not None
        index, weight = torch.from_numpy(batch.edge_index()), torch.from_numpy(batch.edge_weight).double()
        theirs = pyg(model, x[batch.n_id], index, weight)[: batch.num_seeds]
        parameters = list(model.parameters())
        torch.testing.assert_close(*check_equal(model(deliver(batch, x)), theirs, parameters, parameters))


def test_called_as_a_model_of_torch_geometric():
    (x, index, weight), model = whole(), new_model()
    parameters = list(model.parameters())
    theirs = pyg(model, x, index, weight)
    torch.testing.assert_close(
        *check_equal(model(x, index, edge_weight=weight), theirs, parameters, parameters)
    )
    torch.testing.assert_close(model(x, index, weight), theirs, **TIGHT)
    with pytest.raises(oc.ArgumentError, match="was trained with weights of edges: give edge_weight"):
        model(x, index)
    with pytest.raises(oc.ArgumentError, match=r"edge_weight has shape \[3\]: give \[\d+\]"):
        model(x, index, edge_weight=weight[:3])
    model.edge_weights = False
    torch.testing.assert_close(model(x, index), pyg(model, x, index, None), **TIGHT)
    torch.testing.assert_close(model(x, index, weight), theirs, **TIGHT)
    other = build_model("sage", DIM, 8, CLASSES, 2).double()
    with pytest.raises(oc.ArgumentError, match="takes no weights of edges"):
        other(x, index, edge_weight=weight)
    with pytest.raises(oc.ArgumentError, match="takes no weights of edges"):
        other.edge_weights = True


def trained(graph: Graph, weights: bool = True, **options: Any) -> Any:
    asked = {
        "model": oc.ModelConfig("gcn", hidden=16, edge_weights=weights),
        "sampling": SAMPLING,
        "training": oc.TrainConfig(trace_losses=True),
        "epochs": 2,
        "memory": "16MiB",
        "observer": QUIET,
    }
    return oc.train(graph, **{**asked, **options})


def test_losses_are_equal_in_every_mode(graph):
    found = trained(graph, loading="memory").batch_losses
    assert len(found) == 2 * -(-300 // 40)
    for mode in ("packed", "memmap", "ondisk", "dynamic", "online"):
        assert trained(graph, loading=mode).batch_losses == found, mode
    assert trained(graph, loading=oc.Online(topology="paged")).batch_losses == found
    assert trained(graph, weights=False, loading="memory").batch_losses != found


@pytest.mark.parametrize("sampler", ["labor", "shadow"])
def test_losses_of_other_samplers_are_equal(graph, sampler):
    sampling = oc.SampleConfig(fanouts=(6, 4), batch_size=40, sampler=sampler)
    found = trained(graph, loading="online", sampling=sampling).batch_losses
    assert trained(graph, loading="packed", sampling=sampling).batch_losses == found


def test_what_weights_say_is_learned(graph):
    options: dict[str, Any] = {
        "epochs": 8,
        "training": oc.TrainConfig(learning_rate=0.01),
        "loading": "memory",
        "sampling": oc.SampleConfig(fanouts=(20, 20), batch_size=40),
    }
    seeing = max(epoch["valid_metric"] for epoch in trained(graph, **options).epochs)
    blind = max(epoch["valid_metric"] for epoch in trained(graph, weights=False, **options).epochs)
    assert seeing > 0.45
    assert blind < 0.35  # a guess is right once in four


def test_training_goes_on_and_the_model_comes_back(graph, tmp_path):
    whole_training = trained(graph, epochs=3, checkpoint=tmp_path / "whole")
    trained(graph, epochs=1, checkpoint=tmp_path / "parts")
    gone_on = trained(graph, epochs=3, checkpoint=tmp_path / "parts")
    assert gone_on.batch_losses == whole_training.batch_losses
    model = oc.load_model(tmp_path / "parts")
    assert isinstance(model, Model)
    assert model.edge_weights
    with pytest.raises(oc.ArgumentError, match=r"edge_weights \(there True, now "):
        trained(graph, weights=False, epochs=4, checkpoint=tmp_path / "parts")
    trained(graph, weights=False, epochs=1, checkpoint=tmp_path / "without")
    assert "edge_weights" not in checkpoints.load_best(tmp_path / "without")[1].config


def test_inference_in_sampled_batches_is_exact_with_all_neighbors(graph, tmp_path):
    trained(graph, epochs=1, checkpoint=tmp_path / "c")
    with pytest.raises(oc.ArgumentError, match=r"--method sampled .* exact with --fanouts -1,-1"):
        oc.infer(graph, model=tmp_path / "c", out=tmp_path / "out.npy", observer=QUIET)
    sampling = oc.InferSampling(fanouts=(-1, -1))
    oc.infer(
        graph,
        model=tmp_path / "c",
        out=tmp_path / "out.npy",
        method="sampled",
        sampling=sampling,
        output="logits",
        observer=QUIET,
    )
    x, index, weight = whole()
    with torch.no_grad():
        exact = pyg(oc.load_model(tmp_path / "c").double(), x, index, weight)
    assert np.allclose(np.load(tmp_path / "out.npy"), exact.numpy(), atol=1e-5)


def test_a_run_has_weights_where_they_were_asked_for(graph, tmp_path):
    asked = oc.SampleConfig(fanouts=(6, 4), batch_size=40, degrees=True, edge_weights=True)
    oc.prepare(graph, tmp_path / "with", sampling=asked, epochs=2, memory="16MiB", observer=QUIET)
    found = trained(graph, run=tmp_path / "with", sampling=None).batch_losses
    assert found == trained(graph, run=oc.Replay(2)).batch_losses
    without = oc.SampleConfig(fanouts=(6, 4), batch_size=40, degrees=True)
    run = oc.prepare(graph, tmp_path / "without", sampling=without, epochs=2, memory="16MiB", observer=QUIET)
    assert "weight" not in (run.path / "sample" / "manifest.json").read_text()
    with pytest.raises(oc.ArgumentError, match="its run has none: prepare it with --edge-weights"):
        trained(graph, run=tmp_path / "without", sampling=None)
    # A loader gives weights in any case; those that were recorded are the same.
    for split in ("train", "valid"):
        for one, other in zip(
            oc.open_run(tmp_path / "with").loader(split=split, epoch=0),
            oc.open_run(tmp_path / "without").loader(split=split, epoch=0),
            strict=True,
        ):
            assert sorted(one.edge_weight.tolist()) == sorted(other.edge_weight.tolist())


def test_a_graph_without_weights_is_what_it_was(graph, tmp_path):
    plain = imported(tmp_path / "p.oc", "none")
    assert trained(plain, weights=False).batch_losses == trained(graph, weights=False).batch_losses
    with pytest.raises(oc.ArgumentError, match=r"p.oc has no edge weights, .*--edge-weights"):
        trained(plain)


def test_who_leaves_weights_out_is_told(graph, tmp_path):
    told: list[str] = []
    observer = oc.Observer(progress=False, on_choice=told.append)
    trained(graph, weights=False, epochs=1, observer=observer)
    assert [line for line in told if "counts all edges alike: --edge-weights" in line]
    told.clear()
    trained(graph, epochs=1, observer=observer)
    trained(graph, weights=False, epochs=1, model="sage", observer=observer)
    trained(imported(tmp_path / "p.oc", "none"), weights=False, epochs=1, observer=observer)
    assert not [line for line in told if "--edge-weights" in line]


def test_what_cannot_be_is_refused(graph):
    with pytest.raises(oc.ArgumentError, match=r"model 'sage' takes no edge weights .*choose gcn"):
        oc.ModelConfig("sage", edge_weights=True)
    weighted = oc.SampleConfig(fanouts=(6, 4), batch_size=40, sampler="weighted")
    with pytest.raises(oc.ArgumentError, match="would count them a second time"):
        trained(graph, sampling=weighted)
    with pytest.raises(oc.ArgumentError, match=r"weights of edges .*; mode partition loads edges alone"):
        trained(graph, loading="partition")
    x, model = whole()[0], new_model()
    batch = draw(graph, edge_weights=False)[0]
    with pytest.raises(oc.ArgumentError, match="the batch has none: load batches with edge_weights=True"):
        model(with_degrees(batch, x))
