"""The nearest nodes of one, for a look at what was learned: exact search, a partition at a time.

By usearch where it is installed (the extra ``outcrop[look]``), which is faster; else by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import numpy as np

from outcrop.embed.model import EmbeddingModel
from outcrop.errors import ArgumentError

Search = Callable[[np.ndarray, np.ndarray, int, str], tuple[np.ndarray, np.ndarray]]
METRICS = {"cosine": "cos", "dot": "ip", "euclidean": "l2sq"}
_NAMES = 1 << 16  # looked through at a time
_BLOCK = 1 << 14  # rows whose differences are held at a time


def find_node(model: EmbeddingModel, name: str | int) -> int:
    """Returns the id of the node called ``name``; an integer is an id, and so is its text where nodes have no names.

    Raises:
        ArgumentError: There is none.
    """
    buckets = model.buckets
    if not isinstance(name, str) or not buckets.has("entity_names"):
        if str(name).isdecimal() and int(name) < model.num_nodes:
            return int(name)
        raise ArgumentError(
            f"node {name!r} is not in {buckets.path}: pass an id from 0 to {model.num_nodes - 1}"
        )
    part = []
    for start in range(0, model.num_nodes, _NAMES):
        names = buckets.names(model.runtime, "entity", start, min(start + _NAMES, model.num_nodes))
        if name in names:
            return start + names.index(name)
        part += [other for other in names if name.lower() in other.lower()][: 5 - len(part)]
    hint = f"; there are {', '.join(part)}" if part else ""
    raise ArgumentError(f"node {name!r} is not in {buckets.path}{hint}")


def neighbors(
    model: EmbeddingModel, node: int, count: int, metric: str = "cosine"
) -> list[tuple[int, str | None, float]]:
    """Returns (id, name, distance) of the ``count`` nodes nearest to ``node``, itself left out, nearest first.

    Distances: one minus cosine, one minus the product, or the squared distance.

    Raises:
        ArgumentError: No such metric.
    """
    if metric not in METRICS:
        raise ArgumentError(f"metric {metric!r} is unknown; known: {', '.join(METRICS)}")
    search = _searcher()
    buckets, runtime = model.buckets, model.runtime
    numbering = buckets.numbering(runtime)
    row = numbering.rows(np.array([node], np.int64))
    query = model.vectors(row)[0]
    nearest: list[tuple[float, int]] = []
    for first, vectors in model.slices():
        held = np.ascontiguousarray(vectors)
        distances, keys = search(held, query, min(count + 1, len(held)), metric)
        nearest += [
            (distance, first + key) for distance, key in zip(distances.tolist(), keys.tolist(), strict=True)
        ]
        nearest = sorted(nearest)[: count + 1]
    others = [(distance, other) for distance, other in nearest if other != row[0]][:count]
    nodes = numbering.nodes(np.array([other for _, other in others], np.int64)).tolist()
    named = buckets.has("entity_names")
    return [
        (n, buckets.names(runtime, "entity", n, n + 1)[0] if named else None, distance)
        for n, (distance, _) in zip(nodes, others, strict=True)
    ]


def _searcher() -> Search:
    """Returns ``search(vectors, query, count, metric)``, which gives distances float [count], nearest first, and rows
    int [count].
    """
    try:
        by_usearch = import_module("usearch.index").search
    except ImportError:
        return nearest_rows

    def search(
        vectors: np.ndarray, query: np.ndarray, count: int, metric: str
    ) -> tuple[np.ndarray, np.ndarray]:
        found = by_usearch(vectors, query, count, METRICS[metric], exact=True)
        return found.distances, found.keys

    return search


def nearest_rows(
    vectors: np.ndarray, query: np.ndarray, count: int, metric: str
) -> tuple[np.ndarray, np.ndarray]:
    """Searches float [n, dim] by NumPy: ``np.argsort(distances, kind="stable")[:count]`` and their distances."""
    if metric == "euclidean":
        distances = np.concatenate(
            [
                ((vectors[start : start + _BLOCK] - query) ** 2).sum(1)
                for start in range(0, len(vectors), _BLOCK)
            ]
        )
    else:
        distances = 1 - vectors @ query
        if metric == "cosine":
            lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
            distances = 1 - (1 - distances) / np.maximum(lengths, np.finfo(np.float32).tiny)
    rows = np.argsort(distances, kind="stable")[:count]
    return distances[rows], rows
