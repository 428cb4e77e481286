"""Small graphs from arrays in memory: for tests, and for trying things out.

``python -m outcrop.testing mydata`` writes a folder of made-up data, as README's first example imports it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from outcrop.config.sampling import SPLITS
from outcrop.runtime.runtime import Runtime
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


def write_mydata(folder: str | Path) -> Path:
    """Writes made-up data to the new folder ``folder``, always the same: 3000 nodes of four classes.

    ``edges.parquet`` (20,000 in both directions, four fifths of them between nodes of one class), ``features.npy``
    (float32 [3000, 100], normal, four columns moved by the class), ``labels.npy``, and node ids ``train.npy`` (1500),
    ``valid.npy`` (700), ``test.npy`` (800).

    Raises:
        FileExistsError: Something is there.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    nodes, classes = 3000, 4
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, nodes)
    src = rng.integers(0, nodes, 20_000)
    same = np.argsort(labels, kind="stable")
    dst = np.where(rng.random(len(src)) < 0.8, same[np.searchsorted(labels[same], labels[src])], 0)
    dst = (dst + rng.integers(0, nodes // classes // 2, len(src))) % nodes
    folder = Path(folder)
    folder.mkdir()
    both = pa.table({"src": np.concatenate([src, dst]), "dst": np.concatenate([dst, src])})
    pq.write_table(both, folder / "edges.parquet")
    features = rng.standard_normal((nodes, 100), np.float32)
    features[:, :classes] += 4 * np.eye(classes, dtype=np.float32)[labels]
    np.save(folder / "features.npy", features)
    np.save(folder / "labels.npy", labels)
    order = rng.permutation(nodes)
    for name, part in zip(SPLITS, np.split(order, [1500, 2200]), strict=True):
        np.save(folder / f"{name}.npy", part)
    return folder


def main(arguments: Sequence[str]) -> None:
    """Writes made-up data to the folder that ``arguments`` names, and prints what it wrote and the next command.

    Raises:
        SystemExit: No folder is named, or something is there; says so.
    """
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise SystemExit("name one folder to write to, such as: python -m outcrop.testing mydata")
    try:
        folder = write_mydata(arguments[0])
    except OSError as error:
        raise SystemExit(f"{arguments[0]} cannot be made ({error.strerror}): name a new folder") from None
    files = ", ".join(sorted(path.name for path in folder.iterdir()))
    source = shlex.quote(f"arrays:{folder}")
    print(f"{folder}: a made-up graph of 3000 nodes of four classes, in {files}")
    print(f"next: outcrop import {source} my.oc")


if __name__ == "__main__":
    main(sys.argv[1:])
