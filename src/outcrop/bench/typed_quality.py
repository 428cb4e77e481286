"""Benchmark ``quality --kind typed``: what seeing types is worth on the generated graph whose labels need several.

``rgcn`` on all of it, ``sage`` on the citations alone, and a multilayer perceptron on single papers, with five seeds
each. Of every training the epoch with the best validation accuracy counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from outcrop.api.graph import import_graph
from outcrop.api.train import train
from outcrop.bench.epoch import Log, Setting, ensure_graph, plain
from outcrop.bench.quality import SEEDS
from outcrop.config import ModelConfig, SampleConfig, TrainConfig, as_fanouts
from outcrop.runtime.observer import Observer
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph

RGCN, SAGE, MLP = "rgcn", "sage on citations", "MLP on papers"
_CITES = ("paper", "cites", "paper")
_HIDDEN, _RATE = 64, 3e-3
_MLP_EPOCHS, _MLP_BATCH = 15, 256
_SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Score:
    """Says how a training ended: ``test`` is the accuracy of its best epoch, ``epoch``, counted from 1."""

    test: float
    epoch: int


def run(folder: Path, setting: Setting, log: Log, seeds: Sequence[int] = range(SEEDS)) -> dict[str, Any]:
    """Trains the three with each seed; ``setting`` says fanouts, batches, and the epochs of the first two."""
    graph = open_graph(ensure_graph(folder, setting.shape, log))
    alone = citations(graph, folder, log)
    papers = _papers(graph)
    scores: dict[str, list[Score]] = {RGCN: [], SAGE: [], MLP: []}
    for seed in seeds:
        for name, found in scores.items():
            log(f"{name}, seed {seed}")
            if name == MLP:
                found.append(_perceptron(papers, graph.num_classes, seed))
            else:
                model = ModelConfig("rgcn", _HIDDEN, no_rows=setting.no_rows)
                one, of = (graph, model) if name == RGCN else (alone, ModelConfig("sage", _HIDDEN))
                found.append(_trained(one, of, setting, seed))
    models = {name: _summary(found) for name, found in scores.items()}
    ahead = {name: models[RGCN]["mean"] - models[name]["mean"] for name in (SAGE, MLP)}
    return {
        "experiment": "quality",
        "setting": plain(setting),
        "seeds": list(seeds),
        "train_nodes": len(papers["train"][1]),
        "models": models,
        "rgcn_ahead_by": ahead,
        "columns": ["model", "test accuracy", "best epochs", "rgcn is ahead by"],
        "rows": [
            [
                name,
                f"{one['mean']:.4f} ± {one['spread']:.4f}",
                ", ".join(map(str, one["best_epochs"])),
                f"{100 * ahead[name]:.1f} points" if name in ahead else "-",
            ]
            for name, one in models.items()
        ],
        "says": f"means and standard deviations of {len(seeds)} seeds; {len(papers['train'][1]):,} papers train",
    }


def _summary(scores: Sequence[Score]) -> dict[str, Any]:
    tests = [one.test for one in scores]
    return {
        "test_accuracy": tests,
        "mean": mean(tests),
        "spread": pstdev(tests),
        "best_epochs": [one.epoch for one in scores],
    }


def citations(graph: Graph, folder: Path, log: Log) -> Graph:
    """Returns the graph of papers and citations alone, made in ``folder`` unless it is there."""
    path = folder / f"{graph.path.stem}-cites.oc"
    if not (path / "manifest.json").is_file():
        log(f"importing {path.name}: the citations alone")
        with Runtime() as runtime:
            labels, *splits = (
                graph.array(runtime, f"n0.{name}").read("bench") for name in ("labels", *_SPLITS)
            )
            import_graph(
                graph.edge_index(_CITES),
                path,
                features=_rows_of_papers(graph, runtime),
                labels=labels,
                splits=dict(zip(_SPLITS, splits, strict=True)),
                progress=False,
            )
    return open_graph(path)


def _rows_of_papers(graph: Graph, runtime: Runtime) -> np.ndarray:
    return graph.array(runtime, "n0.features").memmap()


def _papers(graph: Graph) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns rows and labels of the papers of each split."""
    with Runtime() as runtime:
        rows, labels = _rows_of_papers(graph, runtime), graph.array(runtime, "n0.labels").read("bench")
        ids = {split: graph.array(runtime, f"n0.{split}").read("bench") for split in _SPLITS}
        return {
            split: (torch.from_numpy(rows[of].astype(np.float32)), torch.from_numpy(labels[of]))
            for split, of in ids.items()
        }


def _trained(graph: Graph, model: ModelConfig, setting: Setting, seed: int) -> Score:
    result = train(
        graph,
        model=model,
        sampling=SampleConfig(
            as_fanouts(map(int, setting.fanouts.split(","))), setting.batch_size, seed=seed
        ),
        training=TrainConfig(setting.epochs, _RATE, seed=seed),
        loading="memory",
        observer=Observer(progress=False),
    )
    assert result.test_accuracy is not None
    return Score(result.test_accuracy, result.best_epoch + 1)


def _perceptron(papers: dict[str, tuple[Tensor, Tensor]], num_classes: int, seed: int) -> Score:
    """Trains on single papers, and returns the score of the epoch that is best on those of ``valid``."""
    torch.manual_seed(seed)
    rows, labels = papers["train"]
    model = nn.Sequential(nn.Linear(rows.shape[1], _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    best, score = -1.0, Score(0.0, 0)
    for epoch in range(_MLP_EPOCHS):
        for batch in torch.randperm(len(rows)).split(_MLP_BATCH):
            optimizer.zero_grad()
            cross_entropy(model(rows[batch]), labels[batch]).backward()
            optimizer.step()
        if (valid := _accuracy(model, *papers["valid"])) > best:
            best, score = valid, Score(_accuracy(model, *papers["test"]), epoch + 1)
    return score


@torch.no_grad()
def _accuracy(model: nn.Module, rows: Tensor, labels: Tensor) -> float:
    return float((model(rows).argmax(1) == labels).float().mean())
