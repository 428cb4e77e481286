"""Writes one small graph with types in the layouts that benchmarks are published in, with NumPy, gzip and text alone.

It has isolated nodes, a type without nodes, types without rows, edges that are listed twice, edges from a node to
itself, nodes without a label, and ids as int32 and uint64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from foreign_layouts import write_gzip
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from sparse_reference import features_of
from table_oracle import in_order

Key = tuple[str, str, str]


@dataclass(frozen=True)
class ForeignTypes:
    """Holds a graph with types.

    Attributes:
        sizes: Nodes by type.
        features: float32 or float16 [N, D] of some types.
        labels: float64 [N] of some types; NaN = none.
        splits: Nodes by split of some types.
        edges: int64 [E, 2] of each edge type, as they are listed.
        edge_features: float32 [E, D] of some edge types.
    """

    sizes: dict[str, int]
    features: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]
    splits: dict[str, dict[str, np.ndarray]]
    edges: dict[Key, np.ndarray]
    edge_features: dict[Key, np.ndarray] = field(default_factory=dict)


def foreign_types(scale: int = 1, dim: int = 6, seed: int = 0) -> ForeignTypes:
    """Returns the graph: papers cite papers and are written by authors, fields have no rows, venues no nodes."""
    rng = np.random.default_rng(seed)
    sizes = {"paper": 60 * scale, "author": 40 * scale, "field": 7, "venue": 0}
    labels = np.arange(sizes["paper"]) % 5 * 1.0
    labels[3::7] = np.nan
    known = rng.permutation(np.flatnonzero(~np.isnan(labels)))
    cuts = np.split(known, [len(known) // 2, len(known) * 3 // 4, len(known) - 1])[:3]
    born = np.arange(sizes["author"]) % 3 * 1.0
    edges = {}
    for key, count in (
        (("paper", "cites", "paper"), 400),
        (("author", "writes", "paper"), 150),
        (("paper", "about", "field"), 90),
        (("paper", "at", "venue"), 0),
    ):
        pairs = np.stack(
            [rng.integers(0, max(sizes[end] - 2, 1), count * scale) for end in (key[0], key[2])], 1
        )
        pairs[7::20] = pairs[6::20][: len(pairs[7::20])]
        if key[0] == key[2]:
            pairs[5::20, 1] = pairs[5::20, 0]
        edges[key] = pairs
    return ForeignTypes(
        sizes,
        {
            "paper": rng.standard_normal((sizes["paper"], dim)).astype(np.float32),
            "author": rng.standard_normal((sizes["author"], dim)).astype(np.float32),
        },
        {"paper": labels, "author": born},
        {"paper": dict(zip(("train", "valid", "test"), cuts, strict=True))},
        edges,
    )


def read(graph: Graph, name: str) -> np.ndarray:
    with Runtime() as runtime:
        return graph.array(runtime, name).read("test")


def check_same(graph: Graph, made: ForeignTypes, reversed_keys: bool = False) -> None:
    """Checks that a graph is the one that was written: nodes, rows, labels, splits, edges of every type."""
    assert {one.name: one.num_nodes for one in graph.node_types} == made.sizes
    rows = {one.array for one in graph.row_files}
    for of in graph.node_types:
        assert (of.array("features") in rows) == (of.name in made.features)
        if of.name in made.features:
            assert np.array_equal(features_of(graph, of.array("features")), made.features[of.name])
        assert (of.array("labels") in graph.manifest.arrays) == (of.name in made.labels)
        if of.name in made.labels:
            labels = made.labels[of.name]
            assert np.array_equal(read(graph, of.array("labels")), np.where(np.isnan(labels), -1, labels))
        for split in ("train", "valid", "test"):
            assert (of.array(split) in graph.manifest.arrays) == (of.name in made.splits)
            if of.name in made.splits:
                assert np.array_equal(read(graph, of.array(split)), np.sort(made.splits[of.name][split]))
    assert len(graph.edge_types) == len(made.edges) * (1 + reversed_keys)
    for key, pairs in made.edges.items():
        assert np.array_equal(graph.edge_index(key), _stored(pairs)), key
        if reversed_keys:
            back = (key[2], f"rev_{key[1]}", key[0])
            assert np.array_equal(graph.edge_index(back), _stored(pairs[:, ::-1])), back


def _stored(pairs: np.ndarray) -> np.ndarray:
    return in_order(pairs.astype(np.int64).T)


def write_ogb_text(folder: Path, made: ForeignTypes, split: str = "time") -> Path:
    """Writes the csv layout of data sets of OGB with types; returns ``folder``."""
    raw, listed = folder / "raw", list(made.sizes)
    write_gzip(raw / "num-node-dict.csv.gz", [listed, [made.sizes[name] for name in listed]])
    write_gzip(raw / "triplet-type-list.csv.gz", list(made.edges))
    for key, pairs in made.edges.items():
        relation = raw / "relations" / "___".join(key)
        write_gzip(relation / "edge.csv.gz", pairs)
        write_gzip(relation / "num-edge-list.csv.gz", [len(pairs)])
        write_gzip(relation / "edge_reltype.csv.gz", np.zeros(len(pairs), int))
        if key in made.edge_features:
            write_gzip(relation / "edge-feat.csv.gz", made.edge_features[key])
    for name, rows in made.features.items():
        write_gzip(raw / "node-feat" / name / "node-feat.csv.gz", rows)
        write_gzip(raw / "node-feat" / name / "node_year.csv.gz", np.full(len(rows), 2012))
    write_gzip(raw / "nodetype-has-label.csv.gz", [listed, [name in made.labels for name in listed]])
    for name, labels in made.labels.items():
        write_gzip(raw / "node-label" / name / "node-label.csv.gz", labels)
    where = folder / "split" / split
    write_gzip(where / "nodetype-has-split.csv.gz", [listed, [name in made.splits for name in listed]])
    for name, splits in made.splits.items():
        for part, nodes in splits.items():
            write_gzip(where / name / f"{part}.csv.gz", nodes)
    return folder


def write_igb(folder: Path, made: ForeignTypes, *, raw: bool = False, dtype: Any = np.int64) -> Path:
    """Writes the layout of the Illinois Graph Benchmark: every type has rows; returns ``folder``.

    Args:
        raw: Features have no header, as those of the sizes large and full.
        dtype: Type of the ids.
    """
    for name, rows in made.features.items():
        where = folder / "processed" / name
        where.mkdir(parents=True)
        if raw:
            rows.astype(np.float32).tofile(where / "node_feat.npy")
        else:
            np.save(where / "node_feat.npy", rows.astype(np.float32))
    labels = made.labels["paper"].astype(np.float32)
    np.save(folder / "processed" / "paper" / "node_label_19.npy", labels)
    np.save(folder / "processed" / "paper" / "node_label_2K.npy", 150 * labels)
    for key, pairs in made.edges.items():
        where = folder / "processed" / "__".join(key)
        where.mkdir()
        np.save(where / "edge_index.npy", pairs.astype(dtype))
    return folder


def write_graphbolt(folder: Path, made: ForeignTypes, *, form: str = "numpy", dtype: Any = np.int64) -> Path:
    """Writes a data set of GraphBolt with a task of nodes; returns ``folder``.

    Args:
        form: ``csv`` (edges; the rest is numpy), ``numpy``, or ``torch`` (all but the edges).
        dtype: Type of the ids.
    """
    import torch
    import yaml

    folder.mkdir(parents=True)

    def save(name: str, array: np.ndarray, form: str) -> dict[str, str]:
        path = folder / f"{name}.{ {'csv': 'csv', 'numpy': 'npy', 'torch': 'pt'}[form] }"
        if form == "csv":
            path.write_text("".join(f"{a},{b}\n" for a, b in array.tolist()))
        elif form == "numpy":
            np.save(path, array)
        else:
            torch.save(torch.from_numpy(array), path)
        return {"format": form, "path": path.name}

    data = "torch" if form == "torch" else "numpy"
    edges, rows = [], []
    for number, (key, pairs) in enumerate(made.edges.items()):
        listed = pairs if form == "csv" else pairs.T.copy()
        file = save(f"edges{number}", listed.astype(dtype), "csv" if form == "csv" else "numpy")
        edges.append({"type": ":".join(key), **file})
        if key in made.edge_features:
            of = {"domain": "edge", "type": ":".join(key), "name": "feat"}
            rows.append(of | save(f"edge_feat{number}", made.edge_features[key], data))
    for name, features in made.features.items():
        rows.append({"domain": "node", "type": name, "name": "feat"} | save(f"{name}_feat", features, data))
    task: dict[str, Any] = {"name": "classes", "num_classes": 5}
    for split, key in (("train", "train_set"), ("valid", "validation_set"), ("test", "test_set")):
        task[key] = [
            {
                "type": name,
                "data": [
                    {"name": "seeds"} | save(f"{name}_{split}", splits[split].astype(dtype), data),
                    {"name": "labels"}
                    | save(f"{name}_{split}_labels", made.labels[name][splits[split]].astype(np.int64), data),
                ],
            }
            for name, splits in made.splits.items()
        ]
    nodes = [{"type": name, "num": size} for name, size in made.sizes.items()]
    said = {"graph": {"nodes": nodes, "edges": edges}, "feature_data": rows, "tasks": [task]}
    (folder / "metadata.yaml").write_text(yaml.safe_dump(said))
    return folder


def write_ogb_arrays(folder: Path, made: ForeignTypes, dtype: Any = np.int64) -> Path:
    """Writes the npz layout of data sets of OGB with types; returns ``folder``."""
    import torch

    raw, where = folder / "raw", folder / "split" / "random"
    raw.mkdir(parents=True)
    where.mkdir(parents=True)
    named = {"___".join(key): pairs for key, pairs in made.edges.items()}

    def save(name: str, arrays: dict[str, np.ndarray]) -> None:
        np.savez_compressed(raw / f"{name}.npz", **arrays)  # pyright: ignore[reportArgumentType]

    save("num_nodes_dict", {name: np.array([size]) for name, size in made.sizes.items()})
    save("num_edges_dict", {name: np.array([len(pairs)]) for name, pairs in named.items()})
    save(
        "edge_index_dict",
        {name: np.ascontiguousarray(pairs.T.astype(dtype)) for name, pairs in named.items()},
    )
    save("node_feat_dict", made.features)
    save("node_year", {name: np.full((len(rows), 1), 2012) for name, rows in made.features.items()})
    save("node-label", {name: labels[:, None] for name, labels in made.labels.items()})
    if made.edge_features:
        save("edge_feat_dict", {"___".join(key): rows for key, rows in made.edge_features.items()})
    parts = {s: {name: splits[s] for name, splits in made.splits.items()} for s in ("train", "valid", "test")}
    torch.save(parts, where / "split_dict.pt")
    return folder
