"""ogbn-mag as it is published, small: the commands of README import it as it is, and learn from all of its types."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from foreign_mag import CLASSES, WRITES, FaithfulMag, faithful_mag, write_mag
from foreign_types import check_same, read
from outcrop import _core
from support import REPOSITORY, script

pytestmark = pytest.mark.slow
LEARNED = 0.65  # of the test papers; 1 / CLASSES is chance


def commands() -> tuple[str, str]:
    """Returns what README says: how to import ogbn-mag, and how to train."""
    blocks = script("quickstart").blocks((REPOSITORY / "README.md").read_text(), "")
    lines = [line for block in blocks for line in block.splitlines() if " mag.oc " in line]
    bring, train = (line for line in lines if line.split()[1] in ("import", "train"))
    assert "ogb:dataset/ogbn_mag" in bring
    return bring, train


def run(line: str, folder: Path, *more: str) -> str:
    package = str(Path(_core.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1"}  # layers are small
    command = [sys.executable, "-m", *shlex.split(line, comments=True), *more]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made() -> FaithfulMag:
    return faithful_mag()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, made: FaithfulMag) -> Path:
    """A folder with the data set where the ogb package puts it, and the graph that README's command makes of it."""
    folder = tmp_path_factory.mktemp("mag")
    write_mag(folder / "dataset" / "ogbn_mag", made)
    run(commands()[0], folder)
    return folder


def nearest_mean(made: FaithfulMag) -> float:
    """Returns the accuracy of what sees a paper's own row alone: the class whose mean is nearest."""
    rows, classes, splits = (
        made.graph.features["paper"],
        made.graph.labels["paper"],
        made.graph.splits["paper"],
    )
    train, test = splits["train"], splits["test"]
    means = np.stack([rows[train][classes[train] == one].mean(0) for one in range(CLASSES)])
    distances = np.square(rows[test][:, None] - means).sum(2)
    return float((distances.argmin(1) == classes[test]).mean())


def test_the_graph_is_the_data_set_with_its_reverses(workplace: Path, made: FaithfulMag) -> None:
    graph = oc.open_graph(workplace / "mag.oc")
    check_same(graph, made.graph, reversed_keys=True)
    assert [one.name for one in graph.node_types] == ["author", "field_of_study", "institution", "paper"]
    assert graph.num_classes == CLASSES
    years = made.years[read(graph, graph.node_type("paper").array("test"))]
    assert (years == 2019).all()


def test_training_sees_more_than_rows_of_papers_and_is_the_same_in_memory(
    workplace: Path, made: FaithfulMag
) -> None:
    found: dict[str, dict[str, Any]] = {}
    for mode in ("packed", "memory"):
        written = workplace / f"{mode}.json"
        run(commands()[1], workplace, "--mode", mode, "--trace-losses", "--json", str(written))
        found[mode] = json.loads(written.read_text())
    losses = found["packed"]["batch_losses"]
    assert len(losses) == 5 * -(-len(made.graph.splits["paper"]["train"]) // 256)
    assert losses == found["memory"]["batch_losses"]
    assert found["packed"]["test_accuracy"] == found["memory"]["test_accuracy"]
    assert found["packed"]["test_accuracy"] > max(LEARNED, nearest_mean(made) + 0.15)


def test_rows_of_types_without_rows_may_be_means_of_neighbors(workplace: Path, made: FaithfulMag) -> None:
    """As the Open Graph Benchmark's examples of MAG240M have it; then nothing has to be said of such types."""
    graph = oc.open_graph(workplace / "mag.oc")
    for name, mean, by in (
        ("author", "paper", "rev_writes"),
        ("field_of_study", "paper", "has_topic"),
        ("institution", "author", "affiliated_with"),
    ):
        graph = oc.derive_rows(graph, name, mean=mean, by=by, progress=False)
    papers, pairs = made.graph.features["paper"].astype(np.float64), made.graph.edges[WRITES]
    sums = np.zeros((made.graph.sizes["author"], papers.shape[1]))
    np.add.at(sums, pairs[:, 0], papers[pairs[:, 1]])
    means = sums / np.maximum(np.bincount(pairs[:, 0], minlength=len(sums)), 1)[:, None]
    assert np.allclose(read(graph, graph.node_type("author").array("features")), means, atol=1e-6)
    train = commands()[1].replace("--no-rows random:64", "")
    run(train, workplace, "--mode", "memory", "--json", "derived.json")
    assert json.loads((workplace / "derived.json").read_text())["test_accuracy"] > LEARNED
