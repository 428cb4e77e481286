"""The graph store: CSC topology, features, labels and splits in one artifact folder.

Arrays: ``indptr`` int64 [N + 1] and ``indices`` uint32 or int64 [E]: the in-neighbours (sources of the edges that
point at v) of node v are ``indices[indptr[v]:indptr[v + 1]]``, ascending. Optional: ``features`` [N, D] of any dtype,
``labels`` int64 [N] (-1 = none), ``train``, ``valid``, ``test`` int64 node ids, ascending; ``edge_weight`` float32 [E],
not negative, in the order of ``indices``; ``train_edges``, ``valid_edges``, ``test_edges`` int64 [M, 2] (source,
target), the positive edges of link prediction.
Attributes: num_nodes, num_edges, num_classes, feature_dim.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from outcrop.errors import FormatError
from outcrop.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import DiskArray
from outcrop.store.manifest import ArraySpec, Manifest

FORMAT, VERSION = "outcrop.graph", 1
SPLITS = ("train", "valid", "test")


class Graph:
    """A graph on disk. Opening reads the manifest only; arrays are opened as they are asked for."""

    def __init__(self, path: Path, manifest: Manifest):
        self.path, self.manifest = path, manifest
        try:
            attributes = manifest.attributes
            self.num_nodes: int = attributes["num_nodes"]
            self.num_edges: int = attributes["num_edges"]
            self.num_classes: int = attributes["num_classes"]
            self.feature_dim: int = attributes["feature_dim"]
        except KeyError as error:
            raise FormatError(f"{path}: its manifest lacks attribute {error}") from None
        shapes = {
            "indptr": self.num_nodes + 1,
            "indices": self.num_edges,
            "features": self.num_nodes,
            "labels": self.num_nodes,
            "edge_weight": self.num_edges,
        }
        for name, rows in shapes.items():
            spec = manifest.arrays.get(name)
            if spec is None and name in ("indptr", "indices"):
                raise FormatError(f"{path}: array {name!r} is missing")
            if not isinstance(rows, int) or rows < 0:
                raise FormatError(f"{path}: {rows!r} is no number of rows for array {name!r}")
            if spec is not None and spec.shape[0] != rows:
                raise FormatError(f"{path}: array {name!r} has {spec.shape[0]} rows, {rows} were expected")

    def __repr__(self) -> str:
        parts = [f"nodes={self.num_nodes}", f"edges={self.num_edges}"]
        if self.has("features"):
            spec = self.spec("features")
            parts.append(f"features={'x'.join(map(str, spec.shape))} {spec.dtype}")
        if self.num_classes:
            parts.append(f"classes={self.num_classes}")
        return f"Graph({', '.join(parts)}, path={str(self.path)!r})"

    def has(self, name: str) -> bool:
        return name in self.manifest.arrays

    def spec(self, name: str) -> ArraySpec:
        try:
            return self.manifest.arrays[name]
        except KeyError:
            raise FormatError(f"{self.path} holds no {name}: import them with the graph") from None

    def array(self, runtime: Runtime, name: str) -> DiskArray:
        """Array ``name`` open for reading. Raises FormatError where the graph has none."""
        return DiskArray(runtime, self.path, self.spec(name))

    def split(self, runtime: Runtime, name: str) -> np.ndarray:
        """Node ids of split ``name``, int64, ascending."""
        return self.array(runtime, name).read(f"split-{name}")

    @property
    def feature_bytes(self) -> int:
        """Bytes of the whole feature array (0 where there is none)."""
        return self.manifest.arrays["features"].data_bytes if self.has("features") else 0

    def digest(self) -> str:
        return self.manifest.digest()


def open_graph(path: Path | str) -> Graph:
    """Opens the graph artifact at ``path``.

    Raises:
        FormatError: Missing, foreign, of another version, or truncated.
    """
    path = Path(path)
    with manifests.opening(path, FORMAT, VERSION) as manifest:
        return Graph(path, manifest)
