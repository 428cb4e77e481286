"""Small graphs from arrays in memory: for tests, and for trying things out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from outcrop.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import FORMAT, PAGED, VERSION, Graph, open_graph
from outcrop.store.manifest import ArraySpec, Manifest


def write_graph(
    path: Path,
    edge_index: np.ndarray,
    num_nodes: int,
    runtime: Runtime,
    *,
    features: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    splits: Mapping[str, np.ndarray] | None = None,
    feature_dtype: str | None = None,
    edge_weight: np.ndarray | None = None,
    edge_splits: Mapping[str, np.ndarray] | None = None,
) -> Graph:
    """Writes a graph artifact from arrays in memory.

    Args:
        edge_index: int64 [2, E], (source, target).
        features: [num_nodes, D]; for bfloat16 its bits as uint16 and ``feature_dtype="bfloat16"``.
        labels: int64 [num_nodes].
        splits: name -> node ids.
        edge_weight: [E], in the order of ``edge_index``.
        edge_splits: name -> int64 [M, 2], edges (source, target) to be predicted.
    """
    order = np.lexsort((edge_index[0], edge_index[1]))
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(edge_index[1], minlength=num_nodes), out=indptr[1:])
    columns: dict[str, tuple[np.ndarray, str]] = {
        "indptr": (indptr, "int64"),
        "indices": (edge_index[0][order].astype(np.uint32), "uint32"),
    }
    if features is not None:
        columns["features"] = (features, feature_dtype or features.dtype.name)
    if labels is not None:
        columns["labels"] = (labels.astype(np.int64), "int64")
    if edge_weight is not None:
        columns["edge_weight"] = (edge_weight[order].astype(np.float32), "float32")
    for name, edges in (edge_splits or {}).items():
        columns[f"{name}_edges"] = (edges.astype(np.int64), "int64")
    for name, ids in (splits or {}).items():
        columns[name] = (np.sort(ids).astype(np.int64), "int64")
    with manifests.publishing(path) as folder:
        arrays: dict[str, ArraySpec] = {}
        for name, (values, dtype) in columns.items():
            writer = ArrayWriter(runtime, folder, name, dtype, values.shape[1:], page_sums=name in PAGED)
            writer.append(values)
            writer.finish_into(arrays)
        attributes = {
            "num_nodes": num_nodes,
            "num_edges": edge_index.shape[1],
            "num_classes": 0 if labels is None or not len(labels) else int(labels.max()) + 1,
            "feature_dim": 0 if features is None else features.shape[1],
        }
        manifests.write(folder, Manifest(FORMAT, VERSION, arrays, attributes))
    return open_graph(path)
