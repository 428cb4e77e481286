"""The artifact of the sample stage: the mini-batches of several epochs and of the evaluation splits, graphs only.

Arrays: ``batches`` uint8, one record (store/record.py) per batch, each on a page boundary; ``offsets`` int64 [B + 1],
where the records start; ``shape`` int64 [B, hops + 3]: nodes per hop (hops + 1 columns), rows, edges. Optional:
``label_edges`` int64 [B], edges to be predicted.
Attributes: ``groups``, which batches belong to a split: ``{"train": {"first", "epochs", "per_epoch"}, ...}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.address_table import AddressTable
from outcrop.store.arrays import DiskArray
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.levels import Level
from outcrop.store.manifest import Manifest

FORMAT, VERSION = "outcrop.sample", 1


class BatchSizes(Protocol):
    """Says how large the mini-batches of a run are: of a :class:`SampleSet`, or of batches that were only counted."""

    id_bytes: int
    hops: int

    @property
    def num_batches(self) -> int: ...
    @property
    def num_nodes(self) -> np.ndarray:
        """Counts the nodes of each batch: int64 [num_batches]."""
        ...

    @property
    def max_nodes(self) -> int: ...
    @property
    def max_seeds(self) -> int: ...
    @property
    def max_record_bytes(self) -> int: ...


@dataclass(frozen=True)
class Group:
    """Describes the batches of one split: ``epochs`` times ``per_epoch`` from number ``first`` on.

    ``first_epoch``: by what number training knows the first of them.
    """

    first: int
    epochs: int
    per_epoch: int
    first_epoch: int = 0

    def batches(self, epoch: int) -> range:
        """Returns the batch numbers of ``epoch``; a pool of E epochs is replayed: of one from epoch 0 on, epoch e uses
        e mod E.
        """
        start = self.first + (epoch - self.first_epoch) % self.epochs * self.per_epoch
        return range(start, start + self.per_epoch)

    def all_batches(self) -> range:
        return range(self.first, self.first + self.epochs * self.per_epoch)


def groups_of(manifest: Manifest) -> dict[str, Group]:
    """Returns the batches of each split, as the manifest of a sample set lists them."""
    begins = {"train": manifest.config.get("first_epoch", 0)}
    return {
        name: Group(**g, first_epoch=begins.get(name, 0)) for name, g in manifest.attributes["groups"].items()
    }


class SampleSet:
    """Reads sampled mini-batches from disk; holds the small tables in memory."""

    def __init__(self, runtime: Runtime, path: Path, manifest: Manifest, graph: Graph | None = None):
        self.path, self.manifest = path, manifest
        self._runtime = runtime
        self._graph_nodes = int(graph.num_nodes if graph else manifest.attributes["num_nodes"])
        self._classes = graph.num_classes or None if graph and graph.label_kind == "class" else None
        self.groups = groups_of(manifest)
        self.id_bytes: int = manifest.attributes["id_bytes"]
        self.hops: int = manifest.attributes["hops"]
        self.degrees: bool = manifest.attributes["degrees"]
        names = [name for name in ("offsets", "shape", "label_edges") if name in manifest.arrays]
        tables = {name: DiskArray(runtime, path, manifest.arrays[name]) for name in names}
        self.offsets = tables["offsets"].read("batch-index")
        shape = tables["shape"].read("batch-index")
        self.num_label_edges = (
            tables["label_edges"].read("batch-index")
            if "label_edges" in tables
            else np.zeros(len(shape), "<i8")
        )
        for table in tables.values():
            table.close()
        self.nodes_per_hop = shape[:, : self.hops + 1]
        self.num_rows, self.num_edges = shape[:, -2], shape[:, -1]
        self.num_nodes = self.nodes_per_hop.sum(axis=1)
        self.file = DiskArray(runtime, path, manifest.arrays["batches"])
        self._check(shape)

    def _check(self, shape: np.ndarray) -> None:
        """Refuses tables that do not fit each other: what reads batches relies on it."""
        groups = self.groups.values()
        good = (
            shape.shape == (self.num_batches, self.hops + 3)
            and self.id_bytes in (4, 8)
            and self.offsets[0] == 0
            and self.offsets[-1] == self.file.spec.data_bytes
            and bool((np.diff(self.offsets) > 0).all())
            and bool((shape >= 0).all())
            and self.num_label_edges.shape == (self.num_batches,)
            and bool((self.num_label_edges >= 0).all())
            and all(group.first >= 0 and group.epochs > 0 and group.per_epoch > 0 for group in groups)
            and all(group.all_batches().stop <= self.num_batches for group in groups)
        )
        if not good:
            raise FormatError(
                f"{self.path}: its tables contradict each other; remove the folder and prepare the run again"
            )

    @property
    def num_batches(self) -> int:
        return len(self.offsets) - 1

    def group(self, split: str) -> Group:
        try:
            return self.groups[split]
        except KeyError:
            raise ArgumentError(
                f"{self.path} holds no batches of split {split!r}, only of {', '.join(self.groups)}"
            ) from None

    def where(self, batch: int) -> str:
        return f"{self.file.path}, mini-batch {batch} at byte {self.offsets[batch]}"

    def record_bytes(self, batch: int) -> int:
        return int(self.offsets[batch + 1] - self.offsets[batch])

    def meta_bytes(self, batch: int, cached: int) -> int:
        """Counts the bytes of the meta part of ``batch`` with an address table of ``cached`` rows, not padded."""
        return record.meta_bytes(
            int(self.num_nodes[batch]),
            int(self.num_rows[batch]),
            int(self.num_edges[batch]),
            int(self.nodes_per_hop[batch, 0]),
            cached,
            self.id_bytes,
            self.degrees,
            int(self.num_label_edges[batch]),
        )

    def read(self, batch: int, buffer: np.ndarray) -> BatchGraph:
        """Reads the graph of ``batch`` through ``buffer``, uint8 of at least ``max_record_bytes``."""
        part = buffer[: self.record_bytes(batch)]
        self.file.read_bytes(int(self.offsets[batch]), part)
        return self.decode(part, self.where(batch))[0]

    def decode(
        self, meta: np.ndarray, where: str, cache_rows: Mapping[Level, int] | None = None
    ) -> tuple[BatchGraph, AddressTable]:
        """Decodes a record of this run (:func:`record.decode`), whose ids and labels must be of its graph."""
        return record.decode(
            meta, where, num_nodes=self._graph_nodes, num_classes=self._classes, cache_rows=cache_rows
        )

    def read_node_ids(self, batch: int, buffer: np.ndarray) -> np.ndarray:
        """Reads ``n_id`` of ``batch`` alone, int32 or int64, into ``buffer``."""
        offset, count = record.node_ids_range(
            int(self.offsets[batch]), int(self.num_nodes[batch]), self.id_bytes
        )
        self.file.read_bytes(offset, buffer[:count])
        ids = buffer[:count].view(f"<i{self.id_bytes}")
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._graph_nodes:
            raise FormatError(
                f"{self.where(batch)}: its node ids leave the graph, the file was damaged after it was "
                f"written; remove {self.path} and prepare the run again"
            )
        return ids

    @property
    def max_record_bytes(self) -> int:
        return int(np.diff(self.offsets).max(initial=PAGE_BYTES))

    @property
    def max_nodes(self) -> int:
        return int(self.num_nodes.max(initial=0))

    @property
    def max_seeds(self) -> int:
        return int(self.nodes_per_hop[:, 0].max(initial=0))


def open_samples(runtime: Runtime, path: Path, graph: Graph | None = None) -> SampleSet:
    """Opens the artifact of the sample stage at ``path``.

    Args:
        graph: Whose nodes and classes ids and labels must be; None: the number of nodes is what the artifact says.

    Raises:
        FormatError: Missing, foreign, of another version, or tables that contradict each other.
    """
    with manifests.opening(path, FORMAT, VERSION) as manifest:
        return SampleSet(runtime, path, manifest, graph)
