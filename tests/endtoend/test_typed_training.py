"""Training graphs with types: the same losses in all modes, resumed or not, and models that learn."""

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

SAMPLING = oc.SampleConfig(
    fanouts=(6, 4), batch_size=64, fanouts_by_type={("paper", "cites", "paper"): [8, 8]}
)  # type: ignore[arg-type]
QUIET = oc.Observer(progress=False)
TRACED = oc.TrainConfig(trace_losses=True)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = tmp_path_factory.mktemp("typed") / "g.oc"
    config = oc.GenerateConfig(nodes=4000, edges=120_000, kind="typed", train_fraction=0.3)
    return oc.generate_graph(path, config, progress=False)


def model(name: str = "rsage") -> oc.ModelConfig:
    return oc.ModelConfig(name, hidden=32, no_rows="random:8", heads=4)


def trained(graph: Graph, **options: Any) -> Any:
    asked = {"model": model(), "sampling": SAMPLING, "training": TRACED, "epochs": 2, "observer": QUIET}
    if "limits" not in options:
        asked["memory"] = "16MiB"
    return oc.train(graph, **{**asked, **options})


@pytest.fixture(scope="module")
def losses(graph: Graph) -> list[float]:
    found = trained(graph, loading="memory").batch_losses
    assert len(found) == 2 * -(-graph.spec("train").shape[0] // 64)
    return found


@pytest.mark.parametrize("mode", ["memmap", "ondisk", "dynamic", "online"])
def test_every_mode_has_the_losses_of_memory(graph: Graph, losses: list[float], mode: str) -> None:
    assert trained(graph, loading=mode).batch_losses == losses


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"memory": "8MiB"},
        {"run": oc.Refresh(epochs=1)},
        {"limits": oc.Limits(memory="8MiB", disk_space="10MiB")},
    ],
    ids=["packed", "less memory", "new batches", "little disk"],
)
def test_prepared_batches_have_them_too(
    graph: Graph, losses: list[float], tmp_path: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "g.oc").symlink_to(graph.path)
    assert trained(oc.open_graph(tmp_path / "g.oc"), **options).batch_losses == losses


def test_batches_of_labor_are_the_same_in_every_mode(graph: Graph) -> None:
    sampling = oc.SampleConfig(fanouts=(3, 3), batch_size=64, sampler="labor", batch_dependency=2)
    found = {
        mode: trained(graph, loading=mode, sampling=sampling, memory="24MiB").batch_losses
        for mode in ("memory", "packed", "online", "ondisk")
    }
    assert all(losses == found["memory"] for losses in found.values())
    uniform = oc.SampleConfig(fanouts=(3, 3), batch_size=64)
    assert trained(graph, loading="memory", sampling=uniform, epochs=1).batch_losses[0] != found["memory"][0]


def test_a_training_that_goes_on_has_the_losses_of_one_that_did_not_end(
    graph: Graph, losses: list[float], tmp_path: Path
) -> None:
    kept = tmp_path / "ckpt"
    first = trained(graph, loading="ondisk", epochs=1, checkpoint=kept)
    again = trained(graph, loading="online", epochs=2, checkpoint=kept)
    assert first.batch_losses == losses[: len(losses) // 2]
    assert again.batch_losses == losses
    with pytest.raises(oc.ArgumentError, match="fanouts_by_type"):
        trained(
            graph, loading="ondisk", checkpoint=kept, sampling=oc.SampleConfig(fanouts=(6, 4), batch_size=64)
        )


def test_the_model_of_a_checkpoint_scores_batches_of_a_loader(graph: Graph, tmp_path: Path) -> None:
    trained(graph, loading="memory", epochs=8, memory=None, checkpoint=tmp_path / "ckpt")
    scorer = oc.load_model(tmp_path / "ckpt")
    right = count = 0
    loader = NeighborLoader(graph, [-1, -1], input_nodes="test", mode="memory", batch_size=256)
    made = scorer.make_rows
    for data in loader:
        rows = {
            name: data[name].x.float() if "x" in data[name] else made(number, data[name].n_id.numpy())
            for number, name in enumerate(data.node_types)
        }
        with torch.no_grad():
            scores = scorer(rows, data.edge_index_dict)[: data["paper"].batch_size]
        right += int((scores.argmax(1) == data["paper"].y).sum())
        count += len(data["paper"].y)
    labels = np.bincount([y for data in loader for y in data["paper"].y.tolist()])
    assert count == labels.sum()
    assert right / count > 1.5 * labels.max() / count


@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
def test_every_model_is_trained(graph: Graph, name: str) -> None:
    first, *_, last = trained(graph, model=model(name), loading="memory", epochs=3).epochs
    assert last["loss"] < first["loss"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "sage"}, "for model 'sage' choose rgcn, rsage, rgat, hgt"),
        ({"model": "rsage"}, "node type 'institution' has no rows"),
        ({"loading": "partition"}, "mode partition loads graphs with one type"),
        (
            {"sampling": oc.SampleConfig(fanouts=(2, 2), sampler="shadow")},
            "sampler 'shadow' is not there yet",
        ),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(
    graph: Graph, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(oc.ArgumentError, match=message):
        trained(graph, **options)


def test_the_report_of_a_run_tells_types_apart(graph: Graph, tmp_path: Path) -> None:
    run = oc.prepare(graph, tmp_path / "g.run", sampling=SAMPLING, memory="8MiB", observer=QUIET)
    trained(graph, run=run.path, sampling=None, limits=oc.Limits())
    done = CliRunner().invoke(
        app, ["report", str(run.path), "--out", str(tmp_path / "r.html"), "--no-measure"]
    )
    assert done.exit_code == 0, done.output
    page = (tmp_path / "r.html").read_text()
    assert "Bytes of a row: paper 512, author 128, topic 32." in page
    assert "of the bytes of rows are of paper" in page
    told = CliRunner().invoke(app, ["doctor", "--folder", str(graph.path), "--no-measure"])
    assert told.exit_code == 0, told.output


def test_a_typed_model_needs_a_graph_with_types(tmp_path: Path) -> None:
    flat = oc.generate_graph(tmp_path / "flat.oc", oc.GenerateConfig(nodes=300, edges=2000), progress=False)
    with pytest.raises(
        oc.ArgumentError, match="has no types of nodes or edges: for model 'rsage' choose sage"
    ):
        oc.train(flat, model="rsage", observer=QUIET)


def test_the_command_trains_too(graph: Graph, losses: list[float], tmp_path: Path) -> None:
    arguments = ["train", str(graph.path), "--model", "rsage", "--no-rows", "random:8", "--hidden", "32"]
    arguments += [
        "--fanouts",
        "6,4",
        "--batch-size",
        "64",
        "--fanout",
        "paper cites paper=8,8",
        "--epochs",
        "2",
    ]
    arguments += ["--mode", "online", "--memory", "16MiB", "--quiet", "--json", str(tmp_path / "out.json")]
    done = CliRunner().invoke(app, [*arguments, "--trace-losses"])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "out.json").read_text())["batch_losses"] == losses


def test_a_graph_without_any_rows_is_trained_too(tmp_path: Path) -> None:
    """As graphs of RDF are: rows of all types are made. There is nothing to pack, so batches are drawn as needed."""
    rng = np.random.default_rng(0)
    ends = {key: rng.integers(0, 200, (2, 900)) for key in (("a", "to", "b"), ("b", "to", "a"))}
    data = HeteroData()
    for name in "ab":
        data[name].num_nodes = 200
    data["a"].y = torch.from_numpy(rng.integers(0, 3, 200))
    for key, pairs in ends.items():
        data[key].edge_index = torch.from_numpy(np.unique(pairs, axis=1))
    shares = oc.ImportConfig(train_fraction=0.5, valid_fraction=0.2, test_fraction=0.3)
    graph = oc.import_graph(data, tmp_path / "g.oc", shares, progress=False)
    assert graph.feature_bytes == 0
    sampling = oc.SampleConfig(fanouts=(4, 3), batch_size=16)
    losses = {
        mode: trained(graph, sampling=sampling, loading=mode).batch_losses
        for mode in ("memory", "memmap", "ondisk", "dynamic", "online", None)
    }
    assert len(losses["memory"]) == 2 * -(-graph.spec("train").shape[0] // 16)
    assert all(found == losses["memory"] for found in losses.values())
    with pytest.raises(oc.ArgumentError, match=r"has no features to place: .*--mode online"):
        oc.prepare(graph, tmp_path / "run", sampling=sampling, memory="16MiB", epochs=1, observer=QUIET)
    loader = NeighborLoader(graph, [4, 3], input_nodes="train", batch_size=16, memory="8MiB")
    kept = [(batch["a"].n_id, batch["a"].n_id.clone()) for batch in loader]
    assert all(torch.equal(held, copy) for held, copy in kept)


def test_the_command_prepares_too(graph: Graph, tmp_path: Path) -> None:
    options = ["--fanouts", "6,4", "--batch-size", "64", "--memory", "8MiB", "--epochs", "1"]
    out = tmp_path / "out.json"
    found = CliRunner().invoke(
        app, ["prepare", str(graph.path), str(tmp_path / "run"), *options, "--json", str(out)]
    )
    assert found.exit_code == 0, found.output
    assert json.loads(out.read_text())["predicted"]["epochs"]["train"]
