"""Training on features of edges: models ask for them, and losses are the same from wherever rows come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import outcrop as oc
from outcrop.nn import checkpoint as checkpoints
from outcrop.store.graph import Graph

QUIET = oc.Observer(progress=False)
SAMPLING = oc.SampleConfig(fanouts=(6, 4), batch_size=40)
NODES, EDGES, CLASSES = 800, 8000, 4


def parts() -> dict[str, np.ndarray]:
    """Only the edges tell the class of a node: column c of an edge is large where its target is of class c."""
    rng = np.random.default_rng(0)
    edges, labels = rng.integers(0, NODES, (EDGES, 2)), rng.integers(0, CLASSES, NODES)
    rows = rng.normal(size=(EDGES, CLASSES)) + 2 * np.eye(CLASSES)[labels[edges[:, 1]]]
    return {
        "edges": edges,
        "edge_features": rows.astype(np.float32),
        "features": rng.normal(size=(NODES, 6)).astype(np.float32),
        "labels": labels,
    }


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    splits = {"train": np.arange(500), "valid": np.arange(500, 650), "test": np.arange(650, NODES)}
    path = tmp_path_factory.mktemp("edges") / "g.oc"
    return oc.import_graph(parts(), path, splits=splits, progress=False)


def trained(graph: Graph, model: str = "transformer", no_rows: str | None = None, **options: Any) -> Any:
    asked = {
        "model": oc.ModelConfig(model, hidden=16, heads=2, no_rows=no_rows),
        "sampling": SAMPLING,
        "training": oc.TrainConfig(trace_losses=True),
        "epochs": 2,
        "memory": "16MiB",
        "observer": QUIET,
    }
    return oc.train(graph, **{**asked, **options})


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("model", ["gat", "transformer", "gine"])
def test_losses_are_equal_in_every_mode(graph, model):
    found = trained(graph, model, loading="memory").batch_losses
    assert len(found) == 2 * -(-500 // 40)
    for mode in ("packed", "memmap", "ondisk", "dynamic", "online"):
        assert trained(graph, model, loading=mode).batch_losses == found, mode


def test_what_edges_say_is_learned(graph):
    training = oc.TrainConfig(learning_rate=0.01)
    options: dict[str, Any] = {"epochs": 8, "training": training, "loading": "memory"}
    blind = trained(graph, "sage", **options)
    seeing = trained(graph, "gine", **options)
    assert max(epoch["valid_metric"] for epoch in seeing.epochs) > 0.8
    assert max(epoch["valid_metric"] for epoch in blind.epochs) < 0.5


def test_training_goes_on_and_the_model_comes_back(graph, tmp_path):
    whole = trained(graph, epochs=3, checkpoint=tmp_path / "whole")
    trained(graph, epochs=1, checkpoint=tmp_path / "parts")
    gone_on = trained(graph, epochs=3, checkpoint=tmp_path / "parts")
    assert gone_on.batch_losses == whole.batch_losses
    for name, values in oc.load_model(tmp_path / "parts").state_dict().items():
        assert np.array_equal(values, whole.model.state_dict()[name])
    assert checkpoints.load_best(tmp_path / "whole")[1].config["edge_dim"] == CLASSES
    with pytest.raises(oc.ArgumentError, match=r"takes features of edges, so .*--method sampled"):
        oc.infer(graph, model=tmp_path / "whole", out=tmp_path / "out.npy")


@pytest.mark.parametrize("model", ["gat", "transformer", "gine"])
@pytest.mark.parametrize("output", ["logits", "embeddings"])
def test_inference_in_sampled_batches_reads_the_rows_of_edges(graph, tmp_path, model, output):
    """With all neighbours the scores are those that torch_geometric's layers give for the whole graph."""
    kept = trained(graph, model, epochs=1, checkpoint=tmp_path / "kept")
    options: dict[str, Any] = {"method": "sampled", "fanouts": (-1, -1), "memory": "16MiB"}
    report = oc.infer(graph, model=tmp_path / "kept", out=tmp_path / "o.npy", output=output, **options)
    given = {name: torch.from_numpy(values) for name, values in parts().items()}
    network = oc.load_model(tmp_path / "kept").double().eval()
    with torch.no_grad():
        hidden = given["features"].double()
        for number, conv in enumerate(network.convs[: 1 if output == "embeddings" else 2]):
            hidden = conv(hidden, given["edges"].t(), given["edge_features"].double())
            if number == 0:
                hidden = torch.nn.functional.elu(hidden) if model == "gat" else hidden.relu()
    found = np.load(tmp_path / "o.npy")
    assert found.shape == (report.rows, report.columns) == hidden.shape
    np.testing.assert_allclose(found, hidden.numpy(), rtol=1e-3, atol=1e-4)
    some = oc.predict(graph, kept.model, np.array([7, 3]), output=output, **options, progress=False)
    np.testing.assert_allclose(some, found[[7, 3]], rtol=1e-3, atol=1e-4)


def test_models_that_look_at_nodes_alone_load_nodes_alone(graph, tmp_path):
    run = oc.prepare(graph, tmp_path / "run", sampling=SAMPLING, epochs=2, memory="16MiB", observer=QUIET)
    assert not run.info.sample.edge_rows
    kept = trained(graph, "sage", run=tmp_path / "run", sampling=None)
    assert kept.batch_losses == trained(graph, "sage", run=oc.Replay(2)).batch_losses
    with pytest.raises(
        oc.ArgumentError, match=r"gine.* needs features of edges.* prepare it with --edge-rows"
    ):
        trained(graph, "gine", run=tmp_path / "run", sampling=None)
    with_rows = oc.SampleConfig(fanouts=(6, 4), batch_size=40, edge_rows=True)
    oc.prepare(graph, tmp_path / "rows", sampling=with_rows, epochs=2, memory="16MiB", observer=QUIET)
    assert len(trained(graph, "gine", run=tmp_path / "rows", sampling=None).batch_losses) == 26
    assert len(trained(graph, "sage", run=tmp_path / "rows", sampling=None).batch_losses) == 26


def test_what_cannot_be_is_refused(graph, tmp_path):
    with pytest.raises(oc.ArgumentError, match="mode partition loads those of nodes alone"):
        trained(graph, "gine", loading="partition")
    rng = np.random.default_rng(0)
    parts = {
        "edges": rng.integers(0, 50, (200, 2)),
        "features": rng.random((50, 3)),
        "labels": np.arange(50) % 3,
    }
    plain = oc.import_graph(parts, tmp_path / "p.oc", splits={"train": np.arange(40)}, progress=False)
    with pytest.raises(oc.ArgumentError, match=r"p.oc: model 'gine' needs features of edges"):
        trained(plain, "gine")
    with pytest.raises(oc.ArgumentError, match=r"p.oc has no features of edges"):
        trained(plain, "sage", sampling=oc.SampleConfig(fanouts=(6, 4), edge_rows=True))
    parts = {name: part for name, part in parts.items() if name != "features"}
    bare = oc.import_graph(
        parts | {"edge_features": rng.random((200, 2))},
        tmp_path / "b.oc",
        splits={"train": np.arange(40)},
        progress=False,
    )
    with pytest.raises(oc.ArgumentError, match=r"b.oc has no features to learn from"):
        trained(bare, "gine")


def test_memory_may_be_chosen(graph: Graph, tmp_path: Path) -> None:
    assert len(trained(graph, "gine", memory="auto", epochs=1).batch_losses) == 13


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Likewise, of users who rate items: the class of an item shows in its ratings alone. Users have no rows."""
    rng, data = np.random.default_rng(1), HeteroData()
    labels = rng.integers(0, CLASSES, NODES)
    ends = np.stack([rng.integers(0, 300, EDGES), rng.integers(0, NODES, EDGES)])
    rows = rng.normal(size=(EDGES, CLASSES)) + 2 * np.eye(CLASSES)[labels[ends[1]]]
    data["user"].num_nodes = 300
    data["item"].x = torch.from_numpy(rng.normal(size=(NODES, 6)).astype(np.float32))
    data["item"].y = torch.from_numpy(labels)
    for split, nodes in (("train", (0, 500)), ("val", (500, 650)), ("test", (650, NODES))):
        mask = torch.zeros(NODES, dtype=torch.bool)
        mask[slice(*nodes)] = True
        data["item"][f"{split}_mask"] = mask
    data["user", "rates", "item"].edge_index = torch.from_numpy(ends)
    data["user", "rates", "item"].edge_attr = torch.from_numpy(rows.astype(np.float16))
    data["user", "knows", "user"].edge_index = torch.from_numpy(rng.integers(0, 300, (2, 900)))
    path = tmp_path_factory.mktemp("typed-edges") / "g.oc"
    return oc.import_graph(data, path, oc.ImportConfig(reverse=True), progress=False)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("model", ["rgat", "rtransformer", "rgine"])
def test_losses_of_typed_models_are_equal_in_every_mode(typed, model):
    found = trained(typed, loading="memory", model=model, no_rows="random:4").batch_losses
    assert len(found) == 2 * -(-500 // 40)
    for mode in ("packed", "memmap", "ondisk", "dynamic", "online"):
        assert trained(typed, loading=mode, model=model, no_rows="random:4").batch_losses == found, mode


def test_what_edges_of_a_type_say_is_learned(typed, tmp_path):
    options: dict[str, Any] = {
        "epochs": 8,
        "training": oc.TrainConfig(learning_rate=0.01),
        "loading": "memory",
        "no_rows": "random:4",
    }
    blind = trained(typed, "rsage", **options)
    seeing = trained(typed, "rgine", **options, checkpoint=tmp_path / "ckpt")
    assert max(epoch["valid_metric"] for epoch in seeing.epochs) > 0.8
    assert max(epoch["valid_metric"] for epoch in blind.epochs) < 0.5
    schema = oc.load_model(tmp_path / "ckpt").schema
    rates = [typed.edge_type(key).number for key in schema.edge_types if "rates" in key[1]]
    assert next(schema.edge_width(number) for number in rates) == CLASSES
    options = {"nodes": "test", "method": "sampled", "memory": "16MiB", "progress": False}
    found = oc.predict(typed, tmp_path / "ckpt", output="classes", **options)
    labels = np.random.default_rng(1).integers(0, CLASSES, NODES)  # as the graph was made
    assert (found == labels[650:]).mean() > 0.8
    assert oc.predict(typed, seeing.model, output="embeddings", fanouts=(2, 2), **options).shape == (150, 16)


def test_advice_counts_the_rows_of_edges_that_a_model_takes(typed):
    for model, files in (("rgat", 3), ("rsage", 1)):
        network = oc.ModelConfig(model, no_rows="random:4")
        found = oc.advise(typed, model=network, sampling=SAMPLING, memory="16MiB")
        assert len(found["row_files"]) == files


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("drawn", [{"sampler": "shadow"}, {"replace": True}], ids=["shadow", "replace"])
@pytest.mark.parametrize("model", ["gat", "gine"])
def test_losses_are_equal_where_edges_come_twice_or_in_another_order(graph, drawn, model):
    sampling = oc.SampleConfig(fanouts=(6, 4), batch_size=40, edge_rows=True, **drawn)
    found = trained(graph, model, sampling=sampling, loading="memory").batch_losses
    for mode in ("packed", "memmap", "ondisk", "online"):
        assert trained(graph, model, sampling=sampling, loading=mode).batch_losses == found, mode
