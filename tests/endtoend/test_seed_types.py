"""Graphs of which several node types have labels: batches begin with the one that is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from typer.testing import CliRunner

import outcrop as oc
from outcrop.cli.main import app
from outcrop.pyg import NeighborLoader
from outcrop.store.graph import Graph

QUIET = oc.Observer(progress=False)
COUNTS = {"user": 300, "item": 200, "tag": 40}
CLASSES = {"user": 3, "item": 5}


def hetero_data() -> HeteroData:
    """Users and items with labels and splits, tags with neither."""
    rng, data = np.random.default_rng(0), HeteroData()
    for name, count in COUNTS.items():
        data[name].x = torch.from_numpy(rng.standard_normal((count, 4), dtype=np.float32))
        if name in CLASSES:
            data[name].y = torch.from_numpy(rng.integers(0, CLASSES[name], count))
            order = rng.permutation(count)
            for split, nodes in (("train", order[: count // 2]), ("val", order[count // 2 : count // 4 * 3])):
                mask = np.zeros(count, bool)
                mask[nodes] = True
                data[name][f"{split}_mask"] = torch.from_numpy(mask)
    for key in (("user", "likes", "item"), ("item", "has", "tag"), ("user", "knows", "user")):
        ends = [rng.integers(0, COUNTS[name], 1500) for name in (key[0], key[2])]
        data[key].edge_index = torch.from_numpy(np.unique(np.stack(ends), axis=1))
    return data


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = tmp_path_factory.mktemp("seeds") / "g.oc"
    return oc.import_graph(hetero_data(), path, oc.ImportConfig(reverse=True), progress=False)


def sampling(node_type: str | None) -> oc.SampleConfig:
    return oc.SampleConfig(fanouts=(4, 3), batch_size=32, node_type=node_type)


@pytest.mark.parametrize("node_type", CLASSES)
@pytest.mark.parametrize("options", [{"loading": "memory"}, {"memory": "8MiB"}], ids=["memory", "packed"])
def test_training_learns_the_type_that_is_asked_for(
    graph: Graph, tmp_path: Path, node_type: str, options: dict[str, Any]
) -> None:
    (tmp_path / "g.oc").symlink_to(graph.path)
    found = oc.train(
        tmp_path / "g.oc",
        model=oc.ModelConfig("rsage", hidden=8),
        sampling=sampling(node_type),
        training=oc.TrainConfig(trace_losses=True),
        epochs=2,
        checkpoint=tmp_path / "ckpt",
        observer=QUIET,
        **options,
    )
    assert len(found.batch_losses) == 2 * -(-(COUNTS[node_type] // 2) // 32)
    model = oc.load_model(tmp_path / "ckpt")
    assert (model.schema.seed_type, model.schema.num_classes) == (node_type, CLASSES[node_type])


def test_a_run_keeps_the_type_that_it_was_drawn_for(graph: Graph, tmp_path: Path) -> None:
    oc.prepare(graph, tmp_path / "run", sampling=sampling("item"), memory="8MiB", epochs=1, observer=QUIET)
    run = oc.open_run(tmp_path / "run")
    data = hetero_data()
    seen = []
    for batch in run.loader("train"):
        seeds = batch["item"].n_id[: batch["item"].batch_size]
        assert torch.equal(batch["item"].y, data["item"].y[seeds])
        assert torch.equal(batch["user"].x, data["user"].x[batch["user"].n_id])
        seen.append(seeds)
    assert torch.equal(torch.cat(seen).sort().values, data["item"].train_mask.nonzero().view(-1))
    found = oc.train(
        graph, model=oc.ModelConfig("rsage", hidden=8), run=tmp_path / "run", epochs=1, observer=QUIET
    )
    direct = oc.train(
        graph,
        model=oc.ModelConfig("rsage", hidden=8),
        sampling=sampling("item"),
        loading="memory",
        epochs=1,
        observer=QUIET,
    )
    assert found.epochs[0]["loss"] == direct.epochs[0]["loss"]


@pytest.mark.parametrize("node_type", COUNTS)
def test_a_loader_begins_with_any_type(graph: Graph, node_type: str) -> None:
    data, seen = hetero_data(), []
    for batch in NeighborLoader(graph, [3, 3], input_nodes=(node_type, None), batch_size=64, mode="memory"):
        seeds = batch[node_type].n_id[: batch[node_type].batch_size]
        if node_type in CLASSES:
            assert torch.equal(batch[node_type].y, data[node_type].y[seeds])
        seen.append(seeds)
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(COUNTS[node_type]))


def test_nobody_is_left_to_guess(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(
        oc.ArgumentError, match=r"several node types .* \(user, item\): say which .*--node-type"
    ):
        oc.train(graph, model="rsage", loading="memory", observer=QUIET)
    with pytest.raises(oc.ArgumentError, match="no node type 'author': choose one of 'user', 'item', 'tag'"):
        oc.train(graph, model="rsage", sampling=sampling("author"), observer=QUIET)
    none_train = r"no training nodes of type 'tag': choose 'user' or 'item' \(--node-type, .*--train-fraction"
    with pytest.raises(oc.ArgumentError, match=none_train):
        oc.train(graph, model="rsage", sampling=sampling("tag"), loading="memory", observer=QUIET)


def test_a_type_without_nodes_is_named(tmp_path: Path) -> None:
    """Nobody gets a loop that ends before it begins."""
    data = hetero_data()
    data["shop"].num_nodes = 0
    data["shop", "sells", "item"].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    empty, run = oc.import_graph(data, tmp_path / "g.oc", progress=False), tmp_path / "run"
    of = r"g\.oc has no nodes of type 'shop', so no batch has any: choose 'user' or 'item' or 'tag' \(--node-type"
    named: list[Any] = [("shop", None), "shop", ("shop", "train")]
    for nodes in named:
        with pytest.raises(oc.ArgumentError, match=of):
            NeighborLoader(empty, [3, 3], input_nodes=nodes)
    with pytest.raises(oc.ArgumentError, match=of):
        oc.train(empty, model="rsage", sampling=sampling("shop"), loading="memory", observer=QUIET)
    with pytest.raises(oc.ArgumentError, match=of):
        oc.prepare(empty, run, sampling=sampling("shop"), observer=QUIET)
    with pytest.raises(
        oc.ArgumentError, match=r"no training nodes of type 'tag': choose 'user' or 'item' \("
    ):
        oc.prepare(empty, run, sampling=sampling("tag"), observer=QUIET)
    assert not (run / "sample").exists()


def test_the_command_has_it_as_an_option(graph: Graph, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = [
        "--model",
        "rsage",
        "--node-type",
        "item",
        "--mode",
        "memory",
        "--epochs",
        "1",
        "--json",
        str(out),
    ]
    found = CliRunner().invoke(app, ["train", str(graph.path), *options, "--quiet"])
    assert found.exit_code == 0, found.output
    assert json.loads(out.read_text())["epochs"][0]["loss"] > 0


def seeds_seen(run: Path) -> set[str]:
    """Names of the node types with which the training batches of a run begin."""
    return {
        name for batch in oc.open_run(run).loader("train") for name in COUNTS if "batch_size" in batch[name]
    }


def test_a_type_that_the_graph_was_given_is_kept_with_the_run(graph: Graph, tmp_path: Path) -> None:
    run, options = tmp_path / "run", {"memory": "8MiB", "epochs": 1, "observer": QUIET}
    oc.prepare(graph.with_seeds("item"), run, sampling=sampling(None), **options)
    assert seeds_seen(run) == {"item"}
    with pytest.raises(oc.ArgumentError, match="node_type"):
        oc.prepare(graph.with_seeds("user"), run, sampling=sampling(None), **options)
    again = oc.open_run(run, graph=graph.with_seeds("user"))
    assert again.graph.seed_type.name == "item"


@pytest.mark.parametrize("way", ["sampling", "nothing"])
def test_a_type_that_the_graph_was_given_is_trained(graph: Graph, tmp_path: Path, way: str) -> None:
    (tmp_path / "g.oc").symlink_to(graph.path)
    opened = oc.open_graph(tmp_path / "g.oc")
    for node_type in (
        "item",
        "user",
    ):  # the batches of the first are beside the graph, and no use for the second
        asked = {"sampling": sampling(None)} if way == "sampling" else {}
        found = oc.train(
            opened.with_seeds(node_type),
            model=oc.ModelConfig("rsage", hidden=8),
            training=oc.TrainConfig(trace_losses=True),
            memory="8MiB",
            run=oc.Replay(1),
            checkpoint=tmp_path / node_type,
            epochs=1,
            observer=QUIET,
            **asked,
        )
        assert oc.load_model(tmp_path / node_type).schema.seed_type == node_type
        batch_size = 32 if asked else 1024
        assert len(found.batch_losses) == -(-(COUNTS[node_type] // 2) // batch_size)


@pytest.mark.parametrize("given", [None, "user", "item"])
def test_sampled_batches_score_the_type_that_was_learned(
    graph: Graph, tmp_path: Path, given: str | None
) -> None:
    oc.train(
        graph,
        model=oc.ModelConfig("rsage", hidden=8),
        sampling=sampling("item"),
        loading="memory",
        epochs=1,
        checkpoint=tmp_path / "ckpt",
        observer=QUIET,
    )
    scores = []
    for method in ("layerwise", "sampled"):
        options = {"method": method, "output": "logits", "observer": QUIET}
        every = oc.InferSampling((-1, -1))
        scores.append(
            oc.predict(
                graph.with_seeds(given), model=tmp_path / "ckpt", nodes=[7, 3], sampling=every, **options
            )
        )
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5, atol=1e-6)
