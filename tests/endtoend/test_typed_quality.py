"""What seeing types is worth on the made-up graph whose labels need several edge types, beside models that see less."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import outcrop as oc
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph

pytestmark = pytest.mark.slow
QUIET = oc.Observer(progress=False)
SEEDS = range(5)
EPOCHS = 4


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    fractions = {"train_fraction": 0.1, "valid_fraction": 0.1, "test_fraction": 0.1}
    config = oc.GenerateConfig(nodes=60_000, edges=522_000, kind="typed", **fractions)
    return oc.generate_graph(tmp_path_factory.mktemp("quality") / "g.oc", config, progress=False)


def accuracy(graph: Graph, model: oc.ModelConfig, seed: int) -> float:
    sampling = oc.SampleConfig(fanouts=(8, 8), batch_size=256, seed=seed)
    training = oc.TrainConfig(learning_rate=3e-3, seed=seed)
    found = oc.train(
        graph,
        model=model,
        sampling=sampling,
        training=training,
        loading="memory",
        epochs=EPOCHS,
        observer=QUIET,
    )
    assert found.test_metric is not None
    return found.test_metric


def of_papers(graph: Graph, name: str) -> np.ndarray:
    with Runtime() as runtime:
        return graph.array(runtime, f"n0.{name}").read(name)


def multilayer_perceptron(
    x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, seed: int
) -> float:
    torch.manual_seed(seed)
    layers = (torch.nn.Linear(x.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, int(y.max()) + 1))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rows, labels = torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(EPOCHS):
        for batch in torch.from_numpy(train)[torch.randperm(len(train))].split(256):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(rows[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return float((model(rows[test]).argmax(1) == labels[test]).float().mean())


def test_rgcn_is_ahead_of_an_mlp_and_of_sage_on_citations(graph: Graph, tmp_path: Path) -> None:
    """By 20 and by 5 points, in the median over seeds; the graph of citations is one without types."""
    parts = {name: of_papers(graph, name) for name in ("features", "labels", "train", "valid", "test")}
    cites = graph.edge_index(("paper", "cites", "paper"))
    splits = {name: parts[name] for name in ("train", "valid", "test")}
    citations = oc.import_graph(
        cites,
        tmp_path / "cites.oc",
        features=parts["features"],
        labels=parts["labels"],
        splits=splits,
        progress=False,
    )
    typed, plain, alone = [], [], []
    for seed in SEEDS:
        typed.append(accuracy(graph, oc.ModelConfig("rgcn", hidden=64, no_rows="random:8"), seed))
        plain.append(accuracy(citations, oc.ModelConfig("sage", hidden=64), seed))
        alone.append(
            multilayer_perceptron(parts["features"], parts["labels"], parts["train"], parts["test"], seed)
        )
    rgcn, sage, mlp = map(np.median, (typed, plain, alone))
    assert mlp > 1.5 / graph.num_classes  # it learns what rows show
    assert rgcn >= mlp + 0.20
    assert rgcn >= sage + 0.05
