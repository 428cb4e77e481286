"""``prepare`` as users call it: which arguments it has, what it replaces, which rates of the disk it was made for."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import outcrop
from artifact_support import small_graph, tree
from outcrop.api.prepare import PrepareOptions
from outcrop.api.train import train
from outcrop.cli import main
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.preparation import prepare as preparing
from outcrop.store import run as runs
from outcrop.store.graph import Graph
from prepare_support import prepare

OPTIONS: dict[str, Any] = {"fanouts": (3, 3), "batch_size": 15, "seed": 4, "memory": "2MiB", "epochs": 2}
BOUND: dict[str, Any] = {"fanouts": (4, 4), "batch_size": 15, "seed": 4, "memory": "1700KiB", "epochs": 6}
BOUND["disk_space"] = "1700KiB"
DISKS = [(1e7, 1e6), (4e9, 200.0)]  # where sharing rows costs next to nothing, and where it costs most


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return small_graph(tmp_path_factory.mktemp("prepare") / "graph")


def files(run: Path) -> dict[str, bytes]:
    return {name: content for name, content in tree(run).items() if "history" not in name}


def test_every_argument_is_named_and_documented() -> None:
    public = inspect.signature(outcrop.prepare).parameters
    asked = inspect.signature(PrepareOptions).parameters
    assert {*public} - {*asked} == {"observer", "memory"}  # which is one of the limits
    assert {*asked} <= {*public}
    for name in public:
        assert name in ("observer", "memory") or public[name].default in (None, asked[name].default), name
        assert public[name].kind is not inspect.Parameter.VAR_KEYWORD
        assert f"        {name}: " in (outcrop.prepare.__doc__ or ""), name


def test_the_same_rates_give_the_same_files(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured anew each time, layouts differ; given the rates that were said, every byte is the same."""
    made = []
    for number, (sequential, random) in enumerate(DISKS):
        measured = {"sequential_bytes_per_s": sequential + 0.3, "random_ops_per_s": random}
        monkeypatch.setattr(preparing, "read_rates", lambda path, measured=measured: measured)
        report = prepare(graph, tmp_path / f"measured-{number}", **BOUND)
        assert report.disk_rates == {"sequential_bytes_per_s": sequential, "random_reads_per_s": random}
        made.append(report)
        again = prepare(graph, tmp_path / f"measured-{number}", **BOUND)
        assert again.skipped == ["sample", "plan", "pack"]
    assert files(tmp_path / "measured-0") != files(tmp_path / "measured-1")
    for number, report in enumerate(made):
        rates = tuple(report.as_dict()["disk_rates"].values())
        given = prepare(graph, tmp_path / f"given-{number}", rates=rates, **BOUND)
        assert given.disk_rates == report.disk_rates
        assert files(tmp_path / f"given-{number}") == files(tmp_path / f"measured-{number}")
    assert prepare(graph, tmp_path / "free", **OPTIONS).disk_rates is None
    with pytest.raises(ArgumentError, match="positive"):
        prepare(graph, tmp_path / "none", rates=(0, 1), **OPTIONS)


def test_the_command_takes_the_rates_that_it_said(graph: Graph, tmp_path: Path) -> None:
    options = "--fanouts 4,4 --batch-size 15 --memory 1700KiB --epochs 6 --disk-space 1700KiB"
    command = [
        "prepare",
        str(graph.path),
        str(tmp_path / "run"),
        *options.split(),
        "--disk-rates",
        "10MB,1000000",
    ]
    done = CliRunner().invoke(main.app, [*command, "--json", str(tmp_path / "json")])
    assert done.exit_code == 0, done.output
    assert "10000000,1000000" in done.output
    rates = json.loads((tmp_path / "json").read_text())["disk_rates"]
    assert rates == {"sequential_bytes_per_s": 10_000_000, "random_reads_per_s": 1_000_000}
    wrong = CliRunner().invoke(main.app, [*command[:-1], "fast"])
    assert isinstance(wrong.exception, ArgumentError)


def test_a_run_of_other_options_is_replaced_only_when_asked(graph: Graph, tmp_path: Path) -> None:
    run = tmp_path / "run"
    prepare(graph, run, **OPTIONS)
    before = tree(run)
    for change, named in (
        ({"seed": 5}, r"seed \(there 4, now 5\)"),
        ({"fanouts": (2, 2), "epochs": 3}, r"fanouts .*epochs \(there 2, now 3\)"),
        ({"memory": "3MiB"}, r"memory \(there 2097152 bytes \(2.0 MiB\), now 3145728 bytes \(3.0 MiB\)\)"),
        ({"memory": None}, r"memory \(there 2097152 bytes \(2.0 MiB\), now no limit\)"),
    ):
        with pytest.raises(ArgumentError, match=f"{named}.*--overwrite"):
            prepare(graph, run, **(OPTIONS | change))
        assert tree(run) == before
    said: list[str] = []
    prepare(graph, run, **(OPTIONS | {"seed": 5}), overwrite=True, on_choice=said.append)
    assert runs.read(run).sample.seed == 5
    assert said == [f"{run} is replaced: it differs in seed (there 4, now 5)"]
    prepare(graph, tmp_path / "want", **(OPTIONS | {"seed": 5}))
    assert files(run) == files(tmp_path / "want")


@pytest.mark.parametrize("refused", [1, 20_000, 300_000])
def test_a_refused_budget_leaves_a_run_or_says_that_it_is_replaced(
    graph: Graph, tmp_path: Path, refused: int
) -> None:
    """Nothing is announced either; but where the plan is refused, the samples are new, and that is said."""
    run = tmp_path / "run"
    prepare(graph, run, **OPTIONS)
    before, said = files(run), list[str]()
    other = {**OPTIONS, "seed": 5, "memory": refused, "overwrite": True}
    with pytest.raises(BudgetError):
        prepare(graph, run, **other, on_choice=said.append)
    assert (len(said), files(run) != before) == (refused == 300_000, refused == 300_000)
    again = prepare(graph, run, **OPTIONS, overwrite=True)
    assert (again.skipped == ["sample", "plan", "pack"]) == (not said)
    assert files(run) == before


def test_training_announces_what_it_replaces_when_it_does(tmp_path: Path) -> None:
    graph, said = small_graph(tmp_path / "g"), list[str]()
    options: dict[str, Any] = {"mode": "packed", "fanouts": (3, 3), "hidden": 4, "epochs": 1, "test": False}
    train(graph, batch_size=30, memory="2MiB", **options)
    with pytest.raises(BudgetError) as refused:
        train(graph, batch_size=20, memory=20_000, on_choice=said.append, **options)
    assert [line for line in said if "is replaced" in line] == []
    train(graph, batch_size=20, memory=refused.value.smallest, on_choice=said.append, **options)
    assert len([line for line in said if line.startswith(f"{tmp_path / 'g.run'} is replaced")]) == 1


def test_what_is_not_finished_or_worth_nothing_is_replaced_without_asking(tmp_path: Path) -> None:
    graph, run = small_graph(tmp_path / "graph"), tmp_path / "run"
    prepare(graph, run, **OPTIONS, stop_after="plan")
    prepare(graph, run, **(OPTIONS | {"memory": "3MiB"}), stop_after="plan")  # other limits are planned
    prepare(graph, run, **(OPTIONS | {"memory": "3MiB"}))
    small_graph(tmp_path / "other", seed=7)
    with pytest.raises(ArgumentError, match=r"graph \(there"):  # the run of another graph
        prepare(tmp_path / "other", run, **OPTIONS)
    changed = small_graph(tmp_path / "graph", seed=5)  # nothing can be trained on it any more
    assert prepare(changed, run, **OPTIONS).skipped == []


def test_a_run_that_does_not_exist_is_said_to_be_missing(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"new does not exist: make the run with outcrop prepare") as error:
        train(graph, run=tmp_path / "new", fanouts=(10, 10))
    assert "its own sampling" not in str(error.value)


def test_what_a_killed_replacement_was_to_say_does_not_stay(graph: Graph, tmp_path: Path) -> None:
    """It was to say that the run is of other options; the run stays as it is, and says so already."""
    run, left = tmp_path / "run", tmp_path / "run" / ".run.json.tmp"
    outcrop.prepare(graph, run, **OPTIONS)
    before = files(run)
    left.write_text("{")
    outcrop.prepare(graph, run, **OPTIONS)
    assert files(run) == before
