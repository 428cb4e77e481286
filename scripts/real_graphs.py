#!/usr/bin/env python3
"""Imports five small real graphs, which ``outcrop bench quality`` compares accuracies on.

    scripts/real_graphs.py DATA OUT

``DATA`` has a folder for each, with the files as they were published: ``gnnbench-cora`` and ``gnnbench-citeseer``
(https://github.com/shchur/gnn-benchmark), ``hetero-tolokers`` (https://github.com/yandex-research/heterophilous-graphs),
``musae-chameleon`` (https://github.com/benedekrozemberczki/MUSAE), ``eukloc`` (https://github.com/Tianqi-py/MLGNC,
data/EukaryoteGo). Of chameleon the logarithm of the visits is learned; a tenth of eukloc's training nodes validate.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import outcrop as oc

NPZ = {
    "cora": "gnnbench-cora/cora.npz",
    "citeseer": "gnnbench-citeseer/citeseer.npz",
    "tolokers": "hetero-tolokers/tolokers.npz",
}
SHARES = {"train_fraction": 0.6, "valid_fraction": 0.2, "test_fraction": 0.2}


def chameleon(folder: Path) -> dict[str, Any]:
    """Reads pages, their words and the visits of a month."""
    words = json.loads((folder / "chameleon.json").read_text())
    visits = np.loadtxt(folder / "chameleon_target.csv", delimiter=",", skiprows=1, dtype=np.int64)
    nodes, columns = len(visits), 1 + max(max(row, default=0) for row in words.values())
    features = np.zeros((nodes, columns), np.float32)
    for node, row in words.items():
        features[int(node), row] = 1
    labels = np.zeros(nodes, np.float32)
    labels[visits[:, 0]] = np.log(visits[:, 1])
    edges = np.loadtxt(folder / "chameleon_edges.csv", delimiter=",", skiprows=1, dtype=np.int64).T
    return {"edges": edges, "features": features, "labels": labels}


def eukloc(folder: Path) -> dict[str, Any]:
    """Reads proteins, what is known of them, which of them interact, and where in the cell they are."""
    edges = np.loadtxt(folder / "edge_list.csv", delimiter=",", skiprows=1, usecols=(0, 1)).astype(np.int64).T
    given = {
        name: np.loadtxt(folder / f"{name}.txt", skiprows=1, dtype=np.int64) for name in ("train", "test")
    }
    rest = np.random.default_rng(0).permutation(given["train"])
    return {
        "edges": edges,
        "features": np.loadtxt(folder / "features.csv", delimiter=",", dtype=np.float32),
        "labels": np.loadtxt(folder / "labels.csv", delimiter=",", dtype=np.float64).astype(np.uint8),
        **{"train": rest[len(rest) // 10 :], "valid": rest[: len(rest) // 10], "test": given["test"]},
    }


def main() -> None:
    data, out = (Path(argument) for argument in sys.argv[1:])
    out.mkdir(exist_ok=True)
    for name, file in NPZ.items():
        oc.import_graph(f"npz:{data / file}", out / f"{name}.oc")
    both = {"reverse": True}
    config = oc.ImportConfig(label_kind="regression", **SHARES, **both)
    oc.import_graph(chameleon(data / "musae-chameleon"), out / "chameleon.oc", config)
    config = oc.ImportConfig(label_kind="multilabel", **both)
    oc.import_graph(eukloc(data / "eukloc"), out / "eukloc.oc", config)


if __name__ == "__main__":
    main()
