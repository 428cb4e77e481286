"""Writes one small graph in the layouts that benchmarks are published in, with NumPy, gzip, zipfile and text alone.

The graph has isolated nodes, edges that are listed twice, edges from a node to itself, and nodes without a label.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ISOLATED = 6


@dataclass(frozen=True)
class ForeignGraph:
    """Holds a graph with one type of nodes and of edges.

    Attributes:
        edges: int64 [E, 2], source and target, as they are listed.
        features: float32 [N, D].
        labels: float64 [N], or [N, T] of 0 and 1; NaN = none.
        splits: Nodes by split, int64.
        weights: float32 [E].
    """

    edges: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    splits: dict[str, np.ndarray] = field(default_factory=dict)
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def num_nodes(self) -> int:
        return len(self.features)


def foreign_graph(
    nodes: int = 60, edges: int = 400, dim: int = 5, classes: int = 4, seed: int = 0
) -> ForeignGraph:
    """Returns the graph; its last nodes have no edges, half of the nodes are in a split."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, nodes - ISOLATED, (edges, 2))
    pairs[5::20, 1] = pairs[5::20, 0]
    pairs[7::20] = pairs[6::20]
    labels = np.arange(nodes) % classes * 1.0
    labels[3::7] = np.nan
    order = rng.permutation(np.flatnonzero(~np.isnan(labels)))
    cuts = np.split(order, [len(order) // 2, len(order) * 3 // 4, len(order) - 2])
    return ForeignGraph(
        pairs,
        rng.standard_normal((nodes, dim)).astype(np.float32),
        labels,
        dict(zip(("train", "valid", "test"), cuts, strict=False)),
        rng.integers(0, 5, edges).astype(np.float32),
    )


def write_gzip(path: Path, rows: Iterable[Any]) -> None:
    """Writes rows of numbers as ``.csv.gz`` without a header; NaN is an empty cell, in quotes where it is alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        for row in rows:
            cells = np.atleast_1d(row)
            file.write((",".join("" if cell != cell else str(cell) for cell in cells) or '""') + "\n")


def whole(labels: np.ndarray) -> np.ndarray:
    """Labels as text has them: integers where each node has one."""
    return labels if np.isnan(labels).any() else labels.astype(np.int64)


def write_ogb_text(folder: Path, graph: ForeignGraph, split: str = "time", *, weights: bool = False) -> Path:
    """Writes the csv layout of OGB; returns ``folder``."""
    raw = folder / "raw"
    write_gzip(raw / "edge.csv.gz", graph.edges)
    write_gzip(raw / "num-node-list.csv.gz", [graph.num_nodes])
    write_gzip(raw / "num-edge-list.csv.gz", [len(graph.edges)])
    write_gzip(raw / "node-feat.csv.gz", graph.features)
    write_gzip(raw / "node-label.csv.gz", whole(graph.labels))
    if weights:
        write_gzip(raw / "edge_weight.csv.gz", graph.weights.astype(np.int64))
    for name, nodes in graph.splits.items():
        write_gzip(folder / "split" / split / f"{name}.csv.gz", nodes)
    return folder


def write_ogb_arrays(
    folder: Path, graph: ForeignGraph, *, deflated: bool = True, **members: np.ndarray | None
) -> Path:
    """Writes the npz layout of OGB; ``members`` replace those of data.npz, or are left out where None."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    save: Any = np.savez_compressed if deflated else np.savez
    arrays: dict[str, np.ndarray | None] = {
        "edge_index": np.ascontiguousarray(graph.edges.T),
        "num_nodes_list": np.array([graph.num_nodes]),
        "num_edges_list": np.array([len(graph.edges)]),
        "node_feat": graph.features,
        "node_year": np.full((graph.num_nodes, 1), 2012),
    }
    arrays |= members
    save(raw / "data.npz", **{name: array for name, array in arrays.items() if array is not None})
    save(raw / "node-label.npz", node_label=graph.labels.astype(np.float32)[:, None])
    for name, nodes in graph.splits.items():
        write_gzip(folder / "split" / "time" / f"{name}.csv.gz", nodes)
    return folder


def write_igb(folder: Path, graph: ForeignGraph, *, raw: bool = False, dtype: Any = np.int64) -> Path:
    """Writes papers and citations as the Illinois Graph Benchmark has them; of 2983 classes every 150th is there.

    Args:
        raw: Features and labels have no header, as those of the sizes large and full.
        dtype: Type of the ids.
    """
    papers, cites = folder / "processed" / "paper", folder / "processed" / "paper__cites__paper"
    papers.mkdir(parents=True)
    cites.mkdir()
    np.save(cites / "edge_index.npy", graph.edges.astype(dtype))
    arrays = {"node_feat": graph.features, "node_label_19": graph.labels, "node_label_2K": 150 * graph.labels}
    for name, array in arrays.items():
        if raw:
            array.astype(np.float32).tofile(papers / f"{name}.npy")
        else:
            np.save(papers / f"{name}.npy", array.astype(np.float32))
    return folder


def write_graphbolt(
    folder: Path,
    graph: ForeignGraph,
    *,
    form: str = "numpy",
    dtype: Any = np.int64,
    classes: int | None = None,
) -> Path:
    """Writes a data set of GraphBolt with a task of nodes.

    Args:
        form: ``csv`` (edges; the rest is numpy), ``numpy``, or ``torch`` (all but the edges).
        dtype: Type of the ids.
        classes: What metadata.yaml says of their number; None = nothing.
    """
    import torch

    folder.mkdir(parents=True)

    def save(name: str, array: np.ndarray, form: str) -> str:
        if form == "csv":
            (folder / f"{name}.csv").write_text("".join(f"{a},{b}\n" for a, b in array.tolist()))
        elif form == "numpy":
            np.save(folder / f"{name}.npy", array)
        else:
            torch.save(torch.from_numpy(array), folder / f"{name}.pt")
        path = f"{name}.{ {'csv': 'csv', 'numpy': 'npy', 'torch': 'pt'}[form] }"
        return f"format: {form}\npath: {path}"

    def item(text: str, depth: int) -> str:
        """A list item of YAML."""
        return " " * depth + "- " + text.replace("\n", "\n" + " " * (depth + 2)) + "\n"

    data = "torch" if form == "torch" else "numpy"
    edges = graph.edges if form == "csv" else graph.edges.T.copy()
    text = f"dataset_name: small\ngraph:\n  nodes:\n    - num: {graph.num_nodes}\n  edges:\n"
    text += item(save("edges", edges.astype(dtype), "csv" if form == "csv" else "numpy"), 4)
    text += "feature_data:\n"
    text += item(f"domain: node\nname: feat\nin_memory: false\n{save('feat', graph.features, data)}", 2)
    text += "tasks:\n  - name: node_classification\n" + (f"    num_classes: {classes}\n" if classes else "")
    for split, key in (("train", "train_set"), ("valid", "validation_set"), ("test", "test_set")):
        if split in graph.splits:
            seeds = graph.splits[split]
            labels = graph.labels[seeds].astype(np.int64)
            text += f"    {key}:\n      - data:\n"
            text += item(f"name: seeds\n{save(f'{split}_seeds', seeds.astype(dtype), data)}", 10)
            text += item(f"name: labels\n{save(f'{split}_labels', labels, data)}", 10)
    (folder / "metadata.yaml").write_text(text)
    return folder
