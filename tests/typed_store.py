"""Graphs with types on disk, written array by array from the reference's form: nothing of the import takes part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import FORMAT, TYPED_VERSION, Graph, open_graph
from outcrop.store.manifest import Manifest
from typed_reference import TypedGraph
from typed_support import arrays_of


def names_of(graph: TypedGraph) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Names node types t0, t1 ... and relations r0, r1 ..."""
    nodes = [f"t{i}" for i in range(len(graph.sizes))]
    return nodes, [(nodes[s], f"r{r}", nodes[t]) for r, (s, t) in enumerate(graph.edge_types)]


def write_typed(
    path: Path,
    graph: TypedGraph,
    parts: Mapping[str, np.ndarray] | None = None,
    classes: Mapping[int, int] | None = None,
    kinds: Mapping[int, str] | None = None,
    names: tuple[list[str], list[tuple[str, str, str]]] | None = None,
) -> Graph:
    """Writes ``graph`` as an artifact of version 2.

    Args:
        parts: Arrays of types, by names such as ``n0.features``.
        classes: Classes of the node types that have labels.
        kinds: What the labels of these node types are, where they are no classes.
        names: Of node types, and (source, relation, target) of edge types; None: :func:`names_of`.
    """
    arrays, (nodes, keys) = arrays_of(graph), names or names_of(graph)
    weights = graph.weights or (None,) * len(keys)
    columns = {"indptr": arrays.indptr, "indices": arrays.indices.astype(np.uint32)}
    if graph.weights and any(w is not None for w in weights):
        columns["edge_weight"] = arrays.weights
    attributes: dict[str, Any] = {
        "num_nodes": sum(graph.sizes),
        "num_edges": len(arrays.indices),
        "node_types": [
            {"name": name, "num_nodes": size, "num_classes": (classes or {}).get(i, 0)}
            | ({"label_kind": kinds[i]} if kinds and i in kinds else {})
            for i, (name, size) in enumerate(zip(nodes, graph.sizes, strict=True))
        ],
        "edge_types": [
            {
                "source": source,
                "relation": relation,
                "target": target,
                "num_edges": sum(map(len, rows)),
                "order": "source",
                "weighted": w is not None,
            }
            for (source, relation, target), rows, w in zip(keys, graph.lists, weights, strict=True)
        ],
    }
    with Runtime() as runtime, manifests.publishing(path) as folder:
        specs: dict[str, Any] = {}
        for name, values in {**columns, **(parts or {})}.items():
            paged = name in columns or name.endswith(".features")
            writer = ArrayWriter(runtime, folder, name, values.dtype.name, values.shape[1:], page_sums=paged)
            writer.append(values)
            writer.finish_into(specs)
        manifests.write(folder, Manifest(FORMAT, TYPED_VERSION, specs, attributes))
    return open_graph(path)
