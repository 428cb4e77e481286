"""Vectors as features of a graph: what ``embed export --format features`` writes, an import of the graph takes."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from sparse_reference import features_of

pytestmark = pytest.mark.leaks("fd", reason="Arrow keeps a pipe when it first reads text")
COUNT = 40
NAMES = {
    "numbers": lambda i: i,
    "integers": lambda i: 10 * i + 7,
    "text": lambda i: f"node {i}, with a comma",
}


@pytest.mark.parametrize("kind", NAMES)
def test_vectors_become_the_features_of_their_nodes(tmp_path: Path, kind: str) -> None:
    """Nodes are listed backwards, so that neither their places nor an order by name would do."""
    name, random = NAMES[kind], np.random.default_rng(0)
    folder = tmp_path / "data"
    folder.mkdir()
    ends = np.concatenate(
        [np.stack([np.arange(COUNT), np.arange(COUNT) ^ 1], 1), random.integers(0, COUNT, (200, 2))]
    )
    with (folder / "edges.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("src", "dst"), *((name(a), name(b)) for a, b in ends.tolist())])
    if kind != "numbers":
        with (folder / "nodes.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("id",), *((name(i),) for i in reversed(range(COUNT)))])
    config = oc.ImportConfig(reverse=False)
    graph = oc.import_graph(f"arrays:{folder}", tmp_path / "g.oc", config, progress=False)
    buckets = oc.embed_prepare(graph, tmp_path / "emb", oc.BucketConfig(2), progress=False)
    small = oc.EmbedConfig("dot", dim=6, epochs=1, negatives=5, batch=50)
    trained = oc.embed_train(buckets, small, observer=oc.Observer(progress=False))
    (vectors, *_) = oc.embed_export(trained, "npy", tmp_path / "npy", progress=False)
    want = np.load(vectors)

    made = oc.embed_export(trained, "features", folder, progress=False)
    assert made == [folder / "features.parquet"]
    with_features = oc.import_graph(f"arrays:{folder}", tmp_path / "f.oc", config, progress=False)
    assert with_features.feature_dim == 6
    np.testing.assert_array_equal(features_of(with_features), want)
    assert len(np.unique(want, axis=0)) == COUNT  # a wrong order would be seen
