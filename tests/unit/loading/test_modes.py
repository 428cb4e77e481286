"""The list of modes: complete, what every message and help text reads, and each of them opens and loads features."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main

import outcrop
from outcrop.api.run import Run
from outcrop.cli.main import app
from outcrop.config import SampleConfig
from outcrop.errors import ArgumentError
from outcrop.loading import modes, session
from outcrop.loading.modes import (
    BASELINES,
    CHOICES,
    MODES,
    Mode,
    Online,
    Packed,
    Partition,
    mode_named,
    mode_with,
)
from outcrop.loading.open import open_session
from outcrop.pyg import NeighborLoader
from outcrop.runtime.runtime import Runtime
from outcrop.sampling import sampler, topology
from outcrop.sampling.topology import placement_of
from outcrop.store.graph import Graph
from run_support import a_graph, as_rows, random_features
from support import REPOSITORY

NAMES = [mode.name for mode in MODES]
SAMPLING = {"fanouts": (3, 3), "batch_size": 20}
NODES, WIDTH = 300, 16


@pytest.fixture
def graph(tmp_path: Path, make_runtime: Callable[..., Runtime]) -> Graph:
    return a_graph(tmp_path / "g.oc", make_runtime(threads=1), nodes=NODES, edges=2500, width=WIDTH, train=50)


@pytest.fixture
def run(graph: Graph, tmp_path: Path) -> Path:
    return outcrop.prepare(graph, tmp_path / "run", epochs=1, progress=False, **SAMPLING).path


def test_every_string_has_a_class_and_every_class_a_file() -> None:
    assert NAMES[:3] == ["packed", "online", "memory"]
    assert sorted(NAMES[3:]) == ["belady", "dynamic", "memmap", "ondisk", "partition"]
    assert [mode_named(name) for name in NAMES] == list(MODES)
    files = [name for _, name, _ in pkgutil.iter_modules(modes.__path__) if name != "base"]
    written = {
        value
        for file in files
        for value in vars(importlib.import_module(f"outcrop.loading.modes.{file}")).values()
        if isinstance(value, type) and issubclass(value, Mode) and "name" in vars(value)
    }
    assert written == {type(mode) for mode in MODES}
    assert sorted(files) == sorted(NAMES)
    assert tuple(NAMES) == session.MODES


def assert_loads_features(opened: session.LoadSession) -> None:
    features, seen = as_rows(random_features(NODES, WIDTH, "float32")), 0
    with opened:
        for batch in opened.batches("train", 0):
            x = batch.x.view(torch.uint8).numpy().reshape(batch.graph.num_nodes, -1)
            assert np.array_equal(x, features[batch.graph.n_id])
            seen += batch.graph.num_seeds
            del batch
    assert seen == 50


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_mode_opens_with_a_run(graph: Graph, run: Path, make_runtime, mode: Mode) -> None:
    assert_loads_features(open_session(graph, make_runtime(threads=1), mode, run_folder=run))


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_mode_opens_without_a_run_or_says_that_it_needs_one(
    graph: Graph, make_runtime, mode: Mode
) -> None:
    runtime, config = make_runtime(threads=1), SampleConfig(**SAMPLING)
    if mode.needs_run:
        with pytest.raises(ArgumentError, match=f"mode {mode} needs a run"):
            open_session(graph, runtime, mode, config=config)
    else:
        assert_loads_features(open_session(graph, runtime, mode.name, config=config))


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_batches_of_any_nodes(graph: Graph, run: Path, mode: Mode) -> None:
    """Where a mode has none the message names those that have; packed draws them as online does."""
    opened = Run(run)
    if mode.any_nodes or mode.prepares:
        loader = opened.loader(np.array([5, 3, 8]), mode=mode.name)
        assert [batch.n_id[: batch.batch_size].tolist() for batch in loader] == [[5, 3, 8]]
        return
    others = ", ".join(other.name for other in MODES if other.any_nodes)
    with pytest.raises(ArgumentError, match=f"mode {mode} has no batches .*: use {others}$"):
        opened.loader(np.array([5, 3, 8]), mode=mode.name)


def test_only_batches_by_budget_are_an_identity() -> None:
    for mode in MODES:
        assert bool(mode.identity()) == mode.batches_by_budget


def test_an_option_of_another_mode_is_refused() -> None:
    assert mode_with("partition", {"partitions": 8, "topology": "paged"}) == Partition(8, topology="paged")
    assert mode_with(None, {}) == Packed()
    for mode, options, message in (
        ("packed", {"sample_on": "gpu"}, "--sample-on is for --mode online, not packed: leave it out"),
        (None, {"row_reads": "gpu"}, "--io is for --mode online, not packed"),
        ("online", {"cache_policy": "lru"}, "--cache-policy is for --mode dynamic, not online"),
        ("belady", {"resident": 2}, "--resident is for --mode partition, not belady"),
        ("memory", {"topology": "disk"}, "'disk'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            mode_with(mode, options)


def test_loaders_do_what_the_options_of_a_mode_say(
    graph: Graph, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same batches, with neighbor lists read where the mode says; what a machine lacks is refused at once."""
    seen = []

    def load_topology(graph: Graph, runtime: Runtime, *rest: Any, **options: Any) -> Any:
        seen.append(placement_of(options["placement"], 1, 1 << 40))
        return topology.load_topology(graph, runtime, *rest, **options)

    monkeypatch.setattr(sampler, "load_topology", load_topology)
    nodes, opened = np.arange(40), Run(run)
    found = {}
    for name, mode in (
        ("usual", "online"),
        ("paged", Online(topology="paged")),
        ("memory", Online(topology="memory")),
    ):
        found[name] = [batch.x.clone() for batch in opened.loader(nodes, mode=mode)]
    assert seen == ["memory", "paged", "memory"]
    batches = NeighborLoader(graph, [3, 3], nodes, batch_size=20, mode=Online(topology="paged"))
    assert [batch.batch_size for batch in batches] == [20, 20]
    assert seen[3:] == ["paged"]
    for other in ("paged", "memory"):
        assert all(torch.equal(a, b) for a, b in zip(found["usual"], found[other], strict=True)), other
    with pytest.raises(ArgumentError, match="--sample-on gpu needs a GPU as --device, not cpu"):
        opened.loader(mode=Online(sample_on="gpu"))


def in_order(text: str) -> list[str]:
    """The names of modes in ``text``, each where it is first."""
    return list(dict.fromkeys(re.findall(rf"\b({'|'.join(NAMES)})\b", text)))


def test_help_names_what_users_choose_among_first() -> None:
    command = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    (help_text,) = [option.help for option in command.params if "--mode" in option.opts]
    assert in_order(help_text) == NAMES
    choices, compared = help_text.split("to compare with:")
    assert in_order(choices) == [mode.name for mode in CHOICES]
    assert in_order(compared) == [mode.name for mode in BASELINES]


def test_the_front_door_says_the_same() -> None:
    text = re.search(r"\n +loading: (.*?)\n +limits: ", outcrop.train.__doc__ or "", re.DOTALL)
    assert text is not None
    assert in_order(text[1]) == NAMES


def test_unknown_names_are_refused_once_with_the_list(graph: Graph, run: Path, make_runtime) -> None:
    message = f"mode 'paper' is unknown; known: {', '.join(NAMES)}"
    asked = (
        lambda: mode_named("paper"),
        lambda: open_session(graph, make_runtime(threads=1), "paper", run_folder=run),
        lambda: Run(run).loader(mode="paper"),
        lambda: outcrop.train(graph, mode="paper", progress=False),
    )
    for ask in asked:
        with pytest.raises(ArgumentError) as refused:
            ask()
        assert str(refused.value) == message


def test_nothing_compares_the_name_of_a_mode() -> None:
    """What a mode is or can is an attribute; benchmarks have names of their own for what they measure."""
    found = []
    for path in (REPOSITORY / "src" / "outcrop").rglob("*.py"):
        if path.parent.name in ("bench", "modes"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                about = any(getattr(s, "id", getattr(s, "attr", "")) in ("mode", "_mode") for s in sides)
                strings = [c.value for s in sides for c in ast.walk(s) if isinstance(c, ast.Constant)]
                found += [f"{path}:{node.lineno}" for s in strings if about and s in NAMES]
    assert found == []
