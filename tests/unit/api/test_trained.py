"""What a training leaves: its model in hand and on disk, and what running it again says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import outcrop as oc
from outcrop.cli.main import app
from outcrop.errors import ArgumentError, FormatError

pytestmark = pytest.mark.leaks(
    "env", reason="torch sets TORCHINDUCTOR_CACHE_DIR when its compiler is first imported"
)

GRAPH = Path(__file__).parents[2] / "golden" / "checkpoint-0.1" / "graph.oc"
OPTIONS = {"mode": "memory", "hidden": 4, "fanouts": [3, 2], "batch_size": 16, "sample_epochs": 1}


@pytest.mark.parametrize("kind", [str, Path])
def test_the_model_is_in_the_result_and_in_the_folder(tmp_path, kind):
    result = oc.train(GRAPH, epochs=3, checkpoint=kind(tmp_path), **OPTIONS)
    loaded = oc.load_model(kind(tmp_path))
    assert isinstance(result.model, torch.nn.Module)
    assert not result.model.training
    assert not loaded.training
    states = [dict(model.state_dict()) for model in (result.model, loaded)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    # It is the model of the best epoch: training only so far gives the same.
    early = oc.train(GRAPH, epochs=result.best_epoch + 1, **OPTIONS).model.state_dict()
    assert all(torch.equal(early[name], states[0][name]) for name in early)
    assert (result.resumed_from, result.trained_epochs) == (None, 3)
    written = json.loads(json.dumps(result.as_dict()))
    assert (written["model"], written["model_file"]) == ("sage", str(tmp_path / "best.safetensors"))
    with pytest.raises(FormatError, match=r"best\.safetensors is a file: name the folder that it is in"):
        oc.load_model(kind(tmp_path / "best.safetensors"))


def test_without_a_checkpoint_folder_the_model_is_not_lost():
    result = oc.train(GRAPH, epochs=1, **OPTIONS)
    assert result.as_dict()["model_file"] is None
    assert sum(p.numel() for p in result.model.parameters()) == 2 * 4 * 4 + 4 + 2 * 4 * 3 + 3


def test_training_again_says_that_all_was_trained(tmp_path):
    def train(*more: str) -> tuple[str, dict]:
        arguments = ["--mode", "memory", "--hidden", "4", "--fanouts", "3,2", "--batch-size", "16", *more]
        out = tmp_path / "result.json"
        ran = CliRunner().invoke(
            app, ["train", str(GRAPH), "--checkpoint", str(tmp_path / "c"), "--json", str(out), *arguments]
        )
        assert ran.exit_code == 0, ran.output
        return " ".join(ran.stdout.split()), json.loads(out.read_bytes())

    said, first = train("--epochs", "2")
    assert "already trained" not in said
    assert first["trained_epochs"] == 2
    said, again = train("--epochs", "2")
    assert "already trained 2 epochs: nothing was left to do; more with --epochs, anew with --fresh" in said
    assert (again["resumed_from"], again["trained_epochs"], again["epochs"]) == (2, 0, first["epochs"])
    said, more = train("--epochs", "3")
    assert "went on after 2 epochs of the checkpoint" in said
    assert (more["resumed_from"], more["trained_epochs"]) == (2, 1)


def test_layers_that_batches_have_not_are_refused_before_anything_is_replaced(tmp_path):
    """A run of many epochs beside the graph was lost to a mistake that could be seen at once."""
    graph = tmp_path / "g.oc"
    shutil.copytree(GRAPH, graph)
    options = {**OPTIONS, "mode": "packed", "epochs": 1}
    oc.train(graph, **options)
    run = tmp_path / "g.oc.run"
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*")}
    with pytest.raises(
        ArgumentError, match=r"the model has 3 layers, the batches 2 hops \(fanouts 4,2\): give one"
    ):
        oc.train(graph, **{**options, "fanouts": [4, 2], "layers": 3})
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*")}
    shadow = oc.SampleConfig(fanouts=(4, 2), batch_size=16, sampler="shadow")
    model = oc.ModelConfig("sage", hidden=4, layers=3)
    oc.train(graph, sampling=shadow, model=model, epochs=1, loading="memory")  # whole batches have none


def test_a_checkpoint_of_another_training_is_refused_before_anything_is_prepared(tmp_path):
    graph = tmp_path / "g.oc"
    shutil.copytree(GRAPH, graph)
    options = {**OPTIONS, "mode": "packed", "epochs": 1, "checkpoint": tmp_path / "c"}
    oc.train(graph, **options)
    run = tmp_path / "g.oc.run"
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(ArgumentError, match="differs in model"):
        oc.train(graph, **options, model="gcn")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="file is a file: checkpoints need a folder"):
        oc.train(graph, **{**options, "checkpoint": tmp_path / "file", "fanouts": [2, 2]})
    with pytest.raises(ArgumentError, match=r"g\.oc is a graph: checkpoints need a folder of their own"):
        oc.train(graph, **{**options, "checkpoint": graph})
    assert not list(graph.glob("*.safetensors"))
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_run_that_stays_beside_the_graph_is_named(tmp_path):
    graph = tmp_path / "g.oc"
    shutil.copytree(GRAPH, graph)
    command = [
        "train",
        str(graph),
        "--epochs",
        "1",
        "--hidden",
        "4",
        "--fanouts",
        "3,2",
        "--batch-size",
        "16",
    ]
    ran = CliRunner().invoke(app, command, catch_exceptions=False)
    folder = tmp_path / "g.oc.run"
    assert folder.is_dir()
    said = "".join(ran.stdout.split())
    assert str(folder) in said
    assert "itmaybedeleted" in said
    options = {name: value for name, value in OPTIONS.items() if name not in ("mode", "sample_epochs")}
    result = oc.train(graph, epochs=1, **options)
    assert (result.kept_folder, str(folder) in repr(result)) == (str(folder), True)
    named = oc.train(graph, run=folder, epochs=1, hidden=4)  # made by the user: not ours to speak of
    drawn = oc.train(graph, epochs=1, **options, mode="memory")
    assert (named.kept_folder, drawn.kept_folder) == (None, None)
    pools = oc.train(graph, epochs=2, **options, refresh=True, memory="4MiB")
    assert pools.kept_folder == str(tmp_path / "g.oc.pools")
    assert any((tmp_path / "g.oc.pools").rglob("manifest.json"))


@pytest.mark.parametrize("fanouts", [10, [2.5, 3], ["5", "5"]])
def test_fanouts_are_integers_of_hops(fanouts):
    with pytest.raises(ArgumentError, match="one integer for each hop"):
        oc.train(GRAPH, epochs=1, **{**OPTIONS, "fanouts": fanouts})
