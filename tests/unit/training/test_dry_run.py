"""What a dry run tells is what the training then reports; it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import outcrop as oc
from artifact_support import memory_folder
from outcrop.advisor.machine import measure_profile
from outcrop.api.train import dry_run
from outcrop.cli.main import app
from outcrop.errors import ArgumentError, BudgetError, IoError, OutcropError
from outcrop.store.graph import Graph

SMALL: dict[str, Any] = {"fanouts": (3, 3), "batch_size": 20, "hidden": 8, "epochs": 3, "memory": "8MiB"}
CASES: dict[str, dict[str, Any]] = {
    "packed": {},
    "replayed": {"sample_epochs": 2},
    "refreshed": {"refresh": True},
    "pools": {"disk_space": "900KiB"},
    "online": {"mode": "online", "disk_space": 0},
    "memory": {"mode": "memory", "model": "gat", "hidden": None},
    "partition": {"mode": "partition", "partitions": 4, "resident": 2},
}


@pytest.fixture
def graph() -> Iterator[Graph]:
    with memory_folder() as folder:
        yield oc.generate_graph(
            folder / "g.oc",
            oc.GenerateConfig(nodes=500, edges=4000, features=32, classes=3, train_fraction=0.3),
            progress=False,
        )


def files(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*")}


@pytest.mark.parametrize("case", CASES)
def test_a_dry_run_tells_what_training_does(graph: Graph, case: str) -> None:
    options = SMALL | CASES[case] | {"checkpoint": graph.path.parent / "ckpt"}
    before = files(graph.path.parent)
    told = dry_run(graph, options)
    assert files(graph.path.parent) == before
    assert json.loads(json.dumps(told)) == told
    done = oc.train(graph, **options, trace_losses=True, progress=False, on_choice=lambda why: None)
    assert told["mode"] == done.mode
    assert told["distinct_epochs"] == done.distinct_epochs
    assert told["writes"] == done.kept_folder
    assert told["epochs_at_a_time"] == done.prepared_epochs
    assert told["epochs"] == len(done.epochs)
    if told["batches_per_epoch"] is not None:
        assert told["batches_per_epoch"] * told["epochs"] == len(done.batch_losses)
    assert (told["memory"], told["disk_space"]) == (done.budget["memory"], done.budget["disk_space"])
    width = next(iter(done.model.state_dict().values())).numel()
    assert width in (told["hidden"], told["hidden"] * graph.feature_dim), "of the first layer"
    assert set(told["chosen"]) <= set(done.chosen.splitlines())
    again = dry_run(graph, {**options, "epochs": 4})
    assert (told["next_epoch"], again["next_epoch"]) == (0, 3)
    assert dry_run(graph, options)["next_epoch"] is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "quick"},
        {"heads": 0},
        {"mode": "online", "refresh": True, "run": "there"},
        {"loss": "mse"},
        {"class_weights": (1.0, 2.0)},
        {"memory": "much"},
        {"checkpoint_minutes": 1.0},
        {"sample_on": "gpu"},
    ],
    ids=str,
)
def test_a_dry_run_is_refused_as_the_training_is(graph: Graph, wrong: dict[str, Any]) -> None:
    messages = []
    for call in (lambda: dry_run(graph, SMALL | wrong), lambda: oc.train(graph, **(SMALL | wrong))):
        with pytest.raises(OutcropError) as refused:
            call()
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("partition", "pools")])
def test_too_little_memory_is_refused_as_the_training_is(graph: Graph, case: str) -> None:
    """To the byte: what a dry run takes for enough is enough, and the refusal names the same."""
    options = SMALL | CASES[case]

    def refused(call: Callable[[], Any]) -> BudgetError:
        before = set(graph.path.parent.iterdir())
        with pytest.raises(BudgetError) as found:
            call()
        for path in set(graph.path.parent.iterdir()) - before:
            shutil.rmtree(path)
        return found.value

    def without_kept(error: BudgetError) -> str:
        return re.sub(r"; [^;]* keeps the mini-batches that were drawn [^;]*", "", str(error))

    named = refused(lambda: dry_run(graph, options | {"memory": 20_000}))
    assert without_kept(refused(lambda: oc.train(graph, **options | {"memory": 20_000}))) == str(named)
    least = named.smallest
    assert least is not None
    too_little = options | {"memory": least - 1}
    assert without_kept(refused(lambda: oc.train(graph, **too_little))) == str(
        refused(lambda: dry_run(graph, too_little))
    )
    told = dry_run(graph, options | {"memory": least})
    done = oc.train(graph, **options | {"memory": least}, progress=False, on_choice=lambda why: None)
    assert told["mode"] == done.mode
    assert all(line in done.chosen or "mode online" in line for line in told["chosen"])


@pytest.mark.parametrize("disk_space", ["600KiB", "400KiB"])
def test_what_depends_on_the_disk_is_not_refused_by_the_memory(graph: Graph, disk_space: str) -> None:
    """Pools of fewer epochs take less of it; whether they fit is known when they are prepared."""
    assert (
        dry_run(graph, SMALL | {"disk_space": disk_space, "memory": 1_000_000, "mode": "packed"})["memory"]
        == 10**6
    )


def test_a_graph_in_a_folder_that_is_not_writable(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a folder that many users share: what to do instead is said before anything is prepared, and works."""
    parent, access = graph.path.parent, os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != parent and access(path, mode))
    for call in (lambda: dry_run(graph, SMALL), lambda: oc.train(graph, **SMALL)):
        with pytest.raises(
            IoError, match=r"is not writable, where batches would be prepared beside g.oc"
        ) as refused:
            call()
    assert f"outcrop prepare {graph.path} RUN" in str(refused.value)
    assert [path.name for path in parent.iterdir()] == ["g.oc"]
    assert oc.train(graph, **SMALL | CASES["online"]).epochs
    sampling = oc.SampleConfig(fanouts=(3, 3), batch_size=20)
    with memory_folder() as elsewhere:
        oc.prepare(graph, elsewhere / "RUN", sampling=sampling, epochs=1, memory="8MiB")
        assert oc.train(graph, run=elsewhere / "RUN", epochs=1).epochs
    with pytest.raises(IoError, match=r"cannot be measured: name another folder .*outcrop doctor --folder"):
        measure_profile(parent)


def test_the_command(graph: Graph, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app,
        ["train", str(graph.path), "--dry-run", "--memory", "8MiB", "--json", str(tmp_path / "r.json")],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    told = json.loads((tmp_path / "r.json").read_text())
    assert told == dry_run(graph, {"memory": "8MiB"})
    lines = dict(line.split("  ", 1) for line in result.output.splitlines() if "  " in line)
    assert lines["memory"].strip() == "8.0 MiB"
    assert lines["epochs"].strip() == "10, new batches in every epoch"
    assert lines["prepared first"].strip().startswith(f"{graph.path}.run, 10 of 10")


def test_a_finished_training_prepares_nothing(graph: Graph) -> None:
    """With another budget, or without the run, which may be deleted: only the test nodes are scored again."""
    options = SMALL | {"checkpoint": graph.path.parent / "ckpt", "progress": False}
    first = oc.train(graph, **options)
    shutil.rmtree(first.kept_folder)
    before = files(graph.path.parent)
    assert dry_run(graph, {**options, "memory": "9MiB"})["writes"] is None
    again = oc.train(graph, **{**options, "memory": "9MiB"})
    assert not Path(first.kept_folder).exists()
    assert set(files(graph.path.parent)) == set(before)
    assert (again.test_accuracy, again.trained_epochs, again.kept_folder) == (first.test_accuracy, 0, None)


def test_a_wrong_option_leaves_the_run_that_is_there(graph: Graph) -> None:
    first = oc.train(graph, **SMALL, progress=False)
    before = files(Path(first.kept_folder))
    with pytest.raises(ArgumentError, match="2 class weights are given for 3 classes"):
        oc.train(graph, **{**SMALL, "epochs": 4}, class_weights=(1, 1), progress=False)
    assert files(Path(first.kept_folder)) == before


def test_a_finished_training_refuses_a_budget_by_what_scoring_takes(graph: Graph) -> None:
    """Nothing is left to train: the smallest budget that is named is enough to score the test nodes, and no more."""
    options = SMALL | {"checkpoint": graph.path.parent / "ckpt", "progress": False}
    done = oc.train(graph, **options)

    def again(memory: int) -> oc.TrainReport:
        return oc.train(graph, **(options | {"memory": memory}))

    with pytest.raises(oc.BudgetError) as refused:
        again(20_000)
    smallest = refused.value.smallest
    assert smallest is not None
    result = again(smallest)
    assert (result.test_accuracy, result.trained_epochs) == (done.test_accuracy, 0)
    with pytest.raises(oc.BudgetError, match=str(smallest)):
        again(smallest - 1)
