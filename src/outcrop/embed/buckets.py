"""Edges sorted into the buckets of their slices: what training of embeddings reads.

Nodes are divided into ``p = partitions * slices`` slices; what lies on disk, is read, written and trained, is theirs.
Arrays: ``edges`` uint32 [E, 3] (source, relation, target), without relations [E, 2]; sources and targets by their
number within their slice. ``starts`` int64 [p * p + 1]: bucket (i, j) has the edges from ``starts[i * p + j]`` on.
``valid``, ``test`` (where there are such edges) int64 [n, 3] or [n, 2]: rows of the whole table instead.
``degrees`` uint32 [N]: training edges that begin or end at each row. ``order`` int64 [N]: the node of each row, for
numbering ``degree``. ``entity_names``, ``entity_name_offsets``, and of relations: as the source has them.
Attributes: num_nodes, num_relations (0: no relations), partitions, slices (of each partition); integer_names (true
where the names of nodes are integers, written as text).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from outcrop.embed.numbering import ById, Division, ListedOrder, NodeNumbering, Random
from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import DiskArray
from outcrop.store.manifest import Manifest
from outcrop.store.names import read_text

FORMAT, VERSION = "outcrop.buckets", 2
FOLDER = "buckets"


class Buckets:
    """Opens buckets; that reads the manifest only."""

    def __init__(self, path: Path, manifest: Manifest):
        self.path, self.manifest = path, manifest
        self.num_nodes: int = manifest.attributes["num_nodes"]
        self.num_relations: int = manifest.attributes["num_relations"]
        self.partitions: int = manifest.attributes["partitions"]
        self.slices: int = manifest.attributes["slices"]
        self.division = Division(self.num_nodes, self.partitions * self.slices)
        self.width = 3 if self.num_relations else 2
        shapes = {
            "edges": (None, self.width),
            "starts": (self.division.parts**2 + 1,),
            "degrees": (self.num_nodes,),
        }
        shapes |= {split: (None, self.width) for split in ("valid", "test") if self.has(split)}
        for name, shape in shapes.items():
            found = manifest.arrays[name].shape
            if len(found) != len(shape) or any(w not in (None, f) for w, f in zip(shape, found, strict=True)):
                raise FormatError(f"{path}: array {name!r} has shape {found}, expected {shape}")

    def __repr__(self) -> str:
        return (
            f"Buckets(nodes={self.num_nodes}, edges={self.num_edges}, relations={self.num_relations}, "
            f"partitions={self.partitions}, path={str(self.path)!r})"
        )

    @property
    def integer_names(self) -> bool:
        """Tells whether the names of nodes are integers, written as text."""
        return self.manifest.attributes.get("integer_names") is True

    @property
    def num_edges(self) -> int:
        return self.manifest.arrays["edges"].shape[0]

    def has(self, name: str) -> bool:
        return name in self.manifest.arrays

    def count(self, split: str) -> int:
        return self.manifest.arrays[split].shape[0] if self.has(split) else 0

    def array(self, runtime: Runtime, name: str) -> DiskArray:
        if not self.has(name):
            raise FormatError(f"{self.path} holds no {name}: prepare it again from edges that have them")
        return DiskArray(runtime, self.path, self.manifest.arrays[name])

    def starts(self, runtime: Runtime) -> np.ndarray:
        """Returns the first edge of each bucket, and their number: int64 [p * p + 1].

        Raises:
            FormatError: They do not ascend, or lead beyond the edges.
        """
        starts = self.array(runtime, "starts").read("bucket-starts")
        if starts[0] != 0 or starts[-1] != self.num_edges or (np.diff(starts) < 0).any():
            raise FormatError(
                f"{self.path}: starts of buckets do not lead through its edges: prepare it again"
            )
        return starts

    def numbering(self, runtime: Runtime) -> NodeNumbering:
        kind = self.manifest.config["numbering"]
        if kind == "degree":
            return ListedOrder(self.array(runtime, "order").read("numbering"), runtime)
        return ById() if kind == "id" else Random(self.num_nodes, self.manifest.config["seed"], runtime)

    def reserve_numbering(self, runtime: Runtime) -> list[object]:
        """Reserves what :meth:`numbering` holds, of a budget whose memory is never touched; returns what holds it."""
        if self.manifest.config["numbering"] != "degree":
            return []
        order = self.array(runtime, "order").read("numbering")
        return [order, runtime.budget.reserve("numbering", 16 * self.num_nodes)]

    def names(self, runtime: Runtime, kind: str, start: int = 0, stop: int | None = None) -> list[str]:
        """Returns names of nodes (kind ``entity``) or relations ``start:stop``; FormatError where there are none."""
        arrays = (f"{kind}_names", f"{kind}_name_offsets")
        return read_text(runtime, self.path, self.manifest, arrays, start, stop)


def open_buckets(run: Path | str) -> Buckets:
    """Opens the buckets of the embedding run at ``run``.

    Raises:
        FormatError: Missing, foreign, of another version, or truncated.
    """
    path = Path(run) / FOLDER
    if not path.is_dir():
        raise FormatError(f"{run} is no embedding run: make one with outcrop embed prepare")
    with manifests.opening(path, FORMAT, VERSION) as manifest:
        return Buckets(path, manifest)
