"""Trains GINE on EukaryoteGo, whose edges have 19 scores: the places of a protein in the cell, several for each.

    python examples/edge_features.py eukloc eukloc.oc

The folder holds the files of https://github.com/Tianqi-py/MLGNC, data/EukaryoteGo: edge_list.csv, features.csv,
labels.csv, train.txt and test.txt.
"""

import sys
from pathlib import Path

import numpy as np

import outcrop as oc

folder, path = Path(sys.argv[1]), Path(sys.argv[2])


def parts() -> dict:
    """Reads the files; each interaction goes both ways, with the same scores."""
    table = np.loadtxt(folder / "edge_list.csv", delimiter=",", skiprows=1, dtype=np.float64)
    ends, scores = table[:, :2].astype(np.int64), table[:, 2:].astype(np.float32)
    return {
        "edges": np.concatenate([ends, ends[:, ::-1]]),
        "edge_features": np.concatenate([scores, scores]),
        "features": np.loadtxt(folder / "features.csv", delimiter=",", dtype=np.float32),
        "labels": np.loadtxt(folder / "labels.csv", delimiter=",", dtype=np.float64).astype(np.uint8),
    }


def splits() -> dict:
    """Returns the published test nodes; a tenth of the others validate."""
    given = {
        name: np.loadtxt(folder / f"{name}.txt", skiprows=1, dtype=np.int64) for name in ("train", "test")
    }
    rest = np.random.default_rng(0).permutation(given["train"])
    return {"train": rest[len(rest) // 10 :], "valid": rest[: len(rest) // 10], "test": given["test"]}


if path.exists():
    graph = oc.open_graph(path)
else:
    config = oc.ImportConfig(label_kind="multilabel")
    graph = oc.import_graph(parts(), path, config, splits=splits())
print(graph)
report = oc.train(
    graph,
    model=oc.ModelConfig("gine", hidden=64, dropout=0.3),  # batches have features of edges, for it takes some
    sampling=oc.SampleConfig(fanouts=[10, 10], batch_size=128),
    training=oc.TrainConfig(learning_rate=0.003, patience=5),
    memory="64MiB",
    epochs=12,
)
print(report)
metric, name = report.test_metric, report.metric
