"""The artifact of the sample stage: the mini-batches of several epochs and of the evaluation splits, graphs only.

Arrays: ``batches`` uint8, one record (store/record.py) per batch, each on a page boundary; ``offsets`` int64 [B + 1],
where the records start; ``shape`` int64 [B, hops + 3]: nodes per hop (hops + 1 columns), rows, edges. Optional:
``label_edges`` int64 [B], edges to be predicted.
Attributes: ``groups``, which batches belong to a split: ``{"train": {"first", "epochs", "per_epoch"}, ...}``;
``num_nodes`` of the graph.

``edge_weights`` and ``weight_sums``, where they are true: whether records have weights of edges, and what these come to
for each node.

With K parts (versions 3 and 4; store/parts.py) ``batches`` lies in K files, and ``offsets`` are what they would be if
it lay in one.

Versions 2 and 4, of graphs with T node types and R edge types, or whose edges have rows: ``shape`` has new nodes per
hop of each node type, rows of each edge type, edges of each edge type, edges per hop of each edge type, T (hops + 1) +
2 R + R hops columns. ``num_nodes`` is a list, with a number for each node type; ``edge_types`` has {"source", "target",
"num_edges", "positions"} for each edge type, the last saying whether positions of edges are recorded; ``seed_type`` is
the node type of the seeds.

Versions 6 and 8 are the same of batches whose edges come several times or in another order than their rows: records say
which row each edge has, and ``shape`` has R hops columns more, the rows per hop of each edge type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

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
from outcrop.store.graph_types import RowFile
from outcrop.store.levels import Level
from outcrop.store.manifest import Manifest
from outcrop.store.parts import RecordFiles, count_of, deal
from outcrop.store.record import POSITION_BYTES, RecordSizes
from outcrop.store.record_contents import Bounds

FORMAT, VERSIONS = "outcrop.sample", (1, 2, 3, 4, 6, 8)


def version_of(typed: bool, parts: int, distinct: bool) -> int:
    """Returns the version of a sample set; ``distinct``: records say which row each edge has."""
    return 1 + typed + 2 * (parts > 1) + 4 * distinct


class SectionSizes(Protocol):
    """Says how many rows of one row file the mini-batches of a run want."""

    id_bytes: int

    @property
    def num_rows(self) -> np.ndarray:
        """Counts the rows that each batch wants: int64 [num_batches]."""
        ...

    @property
    def num_runs(self) -> int:
        """Counts the runs of a batch: within each, ids rise."""
        ...

    @property
    def max_rows(self) -> int: ...


class BatchSizes(Protocol):
    """Says how large the mini-batches of a run are: of a :class:`SampleSet`, or of batches that were only counted."""

    hops: int

    @property
    def num_batches(self) -> int: ...
    def section(self, rows: RowFile) -> SectionSizes:
        """Says what the batches want of ``rows``."""
        ...

    @property
    def columns(self) -> int:
        """Counts the numbers that the table of shapes has of each batch."""
        ...

    @property
    def num_nodes(self) -> np.ndarray:
        """Counts the nodes of each batch: int64 [num_batches]."""
        ...

    @property
    def max_nodes(self) -> int: ...
    @property
    def decoded_bytes(self) -> int:
        """Counts the bytes by which the ids of a batch grow when they are decoded, at the most."""
        ...

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


_AT_A_TIME = 1 << 20


def _bytes_at_a_time(runtime: Runtime) -> int:
    """Counts the bytes of small batches that are read at a time: fewer where memory is scarce."""
    return min(_AT_A_TIME, runtime.budget.free_bytes // 16)


_ONE_EDGE_TYPE = {"source": 0, "target": 0, "num_edges": 1 << 62, "positions": False}  # of version 1


class SampleSection:
    """Says which rows of one row file the batches of a sample set want: those of their nodes, or of their edges.

    Attributes:
        id_bytes: Bytes of an id in the file.
        runs: Rows per run of each batch, int64 [B, runs]; a run is what is first met in one hop.
        num_rows: Rows of each batch, int64 [B].
    """

    def __init__(self, samples: SampleSet, kind: Literal["nodes", "edges"], number: int, below: int):
        self._samples, self._kind, self._below = samples, kind, below
        if kind == "nodes":
            self.id_bytes, self.runs = samples.id_bytes, samples.nodes[:, number]
        else:
            assert samples.edge_rows_per_hop is not None
            self.id_bytes, self.runs = POSITION_BYTES, samples.edge_rows_per_hop[:, number]
        self.num_rows = self.runs.sum(axis=1)
        self._starts = samples.ids_starts(kind, number)

    @property
    def num_runs(self) -> int:
        return self.runs.shape[1]

    @property
    def max_rows(self) -> int:
        return int(self.num_rows.max(initial=0))

    @property
    def buffer_bytes(self) -> int:
        """Counts the bytes that :meth:`read_ids` needs for any batch."""
        return max(self.max_rows * self.id_bytes, 1)

    def read_ids(self, batch: int, buffer: np.ndarray) -> np.ndarray:
        """Reads the ids of the rows that ``batch`` wants, int32 or int64, into ``buffer``."""
        count = int(self.num_rows[batch]) * self.id_bytes
        self._samples.files.of(batch).read_bytes(int(self._starts[batch]), buffer[:count])
        return self._checked(batch, buffer[:count])

    def in_turn(self, batches: Sequence[int], runtime: Runtime, tag: str) -> Iterator[np.ndarray]:
        """Returns what :meth:`read_ids` gives for each of ``batches``; valid until the next one is asked for.

        Args:
            runtime: Whose memory is used, from now on.
            tag: What that is called in the budget.
        """
        buffer = runtime.budget.empty(tag, max(self.buffer_bytes, _bytes_at_a_time(runtime)))
        pieces = self._samples.files.in_turn(batches, self._starts, self.num_rows * self.id_bytes, buffer)
        return (self._checked(batch, read) for batch, read in pieces)

    def _checked(self, batch: int, read: np.ndarray) -> np.ndarray:
        ids = read.view(f"<i{self.id_bytes}")
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._below:
            what = "node ids" if self._kind == "nodes" else "positions of edges"
            raise FormatError(
                f"{self._samples.where(batch)}: its {what} leave the graph, the file was damaged after it was "
                f"written; remove {self._samples.path} and prepare the run again"
            )
        return ids


def shape_columns(types: int, relations: int, hops: int, typed: bool, distinct: bool) -> int:
    """Counts the columns of ``shape`` of a graph with so many node types and edge types."""
    return types * (hops + 1) + 2 * relations + relations * hops * (typed + distinct)


class SampleSet:
    """Reads sampled mini-batches from disk; holds the small tables in memory.

    Attributes:
        nodes: New nodes per hop of each batch and node type, int64 [B, T, hops + 1].
        rows: Rows of each batch and edge type, int64 [B, R].
        edges: Edges of each batch and edge type, int64 [B, R].
        edges_per_hop: Those of each hop, int64 [B, R, hops]; None of graphs without types, whose edges have no rows.
        edge_rows_per_hop: Rows that they want, where they have some: the same, but for edges that come several times.
        num_label_edges: Edges to be predicted of each batch, int64 [B].
        num_parts, part: Files that the records lie in, and in which each lies: int64 [B].
        files: Those files.
        seed_type: Number of the node type of the seeds.
    """

    def __init__(self, runtime: Runtime, path: Path, manifest: Manifest, graph: Graph | None = None):
        self.path, self.manifest = path, manifest
        self._runtime = runtime
        attributes = manifest.attributes
        self.groups = groups_of(manifest)
        self.id_bytes: int = attributes["id_bytes"]
        self.hops: int = attributes["hops"]
        self.degrees: bool = attributes["degrees"]
        self.weights: bool = attributes.get("edge_weights", False)
        self.weight_sums: bool = attributes.get("weight_sums", False)
        self.seed_type: int = attributes.get("seed_type", 0)
        self._typed, self._distinct = manifest.version % 2 == 0, manifest.version > 4
        num_nodes = attributes["num_nodes"]
        edge_types = attributes["edge_types"] if self._typed else [_ONE_EDGE_TYPE]
        self._positions = np.array([one["positions"] for one in edge_types], bool)
        self._bounds = Bounds(
            seed_type=self.seed_type,
            num_nodes=tuple(num_nodes) if self._typed else (num_nodes,),
            num_edges=tuple(one["num_edges"] for one in edge_types),
            ends=tuple((one["source"], one["target"]) for one in edge_types),
        )
        if graph is not None:
            self._bounds = replace(self._bounds, **_known_of(graph, self.seed_type))
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
        self._check(shape)
        passes = [
            (g.first + k * g.per_epoch, g.per_epoch) for g in self.groups.values() for k in range(g.epochs)
        ]
        self.num_parts = count_of(manifest, path)
        self.part = deal(passes, self.num_batches, self.num_parts)
        self.files = RecordFiles(runtime, path, manifest, "batches", np.diff(self.offsets), self.part)
        types, relations = len(self._bounds.num_nodes or ()), len(edge_types)
        counts = types * (self.hops + 1) + relations * np.array([0, 1, 2, 2 + self.hops])
        nodes, self.rows, self.edges, per_hop, wanted = np.split(shape, counts, axis=1)
        self.nodes = nodes.reshape(-1, types, self.hops + 1)
        self.edges_per_hop = per_hop.reshape(-1, relations, self.hops) if self._typed else None
        self.edge_rows_per_hop = (
            wanted.reshape(-1, relations, self.hops) if self._distinct else self.edges_per_hop
        )
        self._sections: dict[tuple[str, int], SampleSection] = {}

    def _check(self, shape: np.ndarray) -> None:
        """Refuses tables that do not fit each other: what reads batches relies on it."""
        groups, ends = self.groups.values(), self._bounds.ends
        types = len(self._bounds.num_nodes or ())
        good = (
            types > 0
            and 0 <= self.seed_type < types
            and len(ends) == len(self._positions) > 0
            and all(0 <= end < types for both in ends for end in both)
            and shape.shape == (self.num_batches, self.columns)
            and self.id_bytes in (4, 8)
            and self.offsets[0] == 0
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
    def columns(self) -> int:
        """Counts the columns of ``shape``."""
        types, relations = len(self._bounds.num_nodes or ()), len(self._bounds.ends)
        return shape_columns(types, relations, self.hops, self._typed, self._distinct)

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
        return f"{self.files.path_of(batch)}, mini-batch {batch} at byte {self.files.starts[batch]}"

    def record_bytes(self, batch: int) -> int:
        return int(self.offsets[batch + 1] - self.offsets[batch])

    def section(self, rows: RowFile) -> SampleSection:
        """Says what the batches want of ``rows``."""
        return self.section_of(rows.kind, rows.owner.number)

    def section_of(self, kind: Literal["nodes", "edges"], number: int) -> SampleSection:
        """Says what the batches want of the rows that nodes or edges of type ``number`` have."""
        if (kind, number) not in self._sections:
            limits = self._bounds.num_nodes if kind == "nodes" else self._bounds.num_edges
            assert limits is not None
            self._sections[kind, number] = SampleSection(self, kind, number, limits[number])
        return self._sections[kind, number]

    @property
    def num_nodes(self) -> np.ndarray:
        """Counts the nodes of each batch, of all types: int64 [B]."""
        return self.nodes.sum(axis=(1, 2))

    @property
    def num_edges(self) -> np.ndarray:
        """Counts the edges of each batch, of all types: int64 [B]."""
        return self.edges.sum(axis=1)

    @property
    def num_seeds(self) -> np.ndarray:
        """Counts the seeds of each batch: int64 [B]."""
        return self.nodes[:, self.seed_type, 0]

    @property
    def nodes_per_hop(self) -> np.ndarray:
        """Counts the new nodes of each batch and hop, of all types: int64 [B, hops + 1]."""
        return self.nodes.sum(axis=1)

    def sizes(self, batches: np.ndarray, cached: np.ndarray) -> RecordSizes:
        """Counts what the records of ``batches`` hold.

        Args:
            batches: Numbers of batches, int64 [P].
            cached: Rows that lie in caches, of each row file: int64 [P, K].
        """
        edges = self.edges[batches]
        recorded = edges if self.edge_rows_per_hop is None else self.edge_rows_per_hop[batches].sum(axis=2)
        return RecordSizes(
            self.hops,
            tuple(self.nodes[batches].sum(axis=2).T),
            tuple(edges.T),
            tuple(self.rows[batches].T),
            tuple((recorded * self._positions).T),
            self.num_seeds[batches],
            tuple(cached.T),
            self.num_label_edges[batches],
            self.degrees,
            self.weights,
            self.weight_sums,
            self._distinct,
        )

    def meta_bytes(self, batches: np.ndarray, cached: np.ndarray) -> np.ndarray:
        """Counts the bytes of the meta part of each of ``batches``, not padded, int64 [P].

        Args:
            batches, cached: As of :meth:`sizes`.
        """
        return self.sizes(batches, cached).meta_bytes(self.id_bytes)

    def ids_starts(self, kind: Literal["nodes", "edges"], number: int) -> np.ndarray:
        """Tells where in the file of records the ids of the nodes of a type, or the positions of its edges, begin, of
        each batch: int64 [B].
        """
        every = self.sizes(np.arange(self.num_batches), np.zeros((self.num_batches, 0), np.int64))
        before = number if kind == "nodes" else len(every.nodes) + number
        start = self.files.starts + record.HEADER_BYTES + every.counts_bytes
        return start + sum(every.ids_bytes(self.id_bytes)[:before])

    def in_turn(self, batches: Sequence[int], runtime: Runtime, tag: str) -> Iterator[BatchGraph]:
        """Returns what :meth:`read` gives for each of ``batches``.

        Args:
            runtime: Whose memory is used, from now on.
            tag: What that is called in the budget.
        """
        buffer = runtime.budget.empty(tag, max(self.max_record_bytes, _bytes_at_a_time(runtime)))
        pieces = self.files.in_turn(batches, self.files.starts, np.diff(self.offsets), buffer)
        return (self.decode(read, self.where(batch))[0] for batch, read in pieces)

    def read(self, batch: int, buffer: np.ndarray) -> BatchGraph:
        """Reads the graph of ``batch`` through ``buffer``, uint8 of at least ``max_record_bytes``."""
        part = buffer[: self.record_bytes(batch)]
        self.files.of(batch).read_bytes(int(self.files.starts[batch]), part)
        return self.decode(part, self.where(batch))[0]

    def decode(
        self, meta: np.ndarray, where: str, cache_rows: Sequence[Mapping[Level, int]] | None = None
    ) -> tuple[BatchGraph, tuple[AddressTable, ...]]:
        """Decodes a record of this run (:func:`record.decode`), whose ids and labels must be of its graph.

        Args:
            cache_rows: Rows of the caches of each row file.
        """
        bounds = self._bounds if cache_rows is None else replace(self._bounds, cache_rows=cache_rows)
        return record.decode(meta, where, bounds)

    @property
    def max_record_bytes(self) -> int:
        return int(np.diff(self.offsets).max(initial=PAGE_BYTES))

    @property
    def max_nodes(self) -> int:
        return int(self.num_nodes.max(initial=0))

    @property
    def decoded_bytes(self) -> int:
        """Counts the bytes by which the ids of a batch grow when they are decoded, at the most."""
        positions = POSITION_BYTES * int(self.num_edges.max(initial=0)) if self._distinct else 0
        return self.max_nodes * (8 - self.id_bytes) + positions

    @property
    def max_seeds(self) -> int:
        return int(self.num_seeds.max(initial=0))


def _known_of(graph: Graph, seed_type: int) -> dict[str, Any]:
    """Returns what ids and labels of a batch of ``graph`` must be below."""
    seeds = graph.node_types[seed_type] if seed_type < len(graph.node_types) else None
    classes = seeds.num_classes if seeds is not None and seeds.label_kind == "class" else 0
    return {
        "num_nodes": tuple(nodes.num_nodes for nodes in graph.node_types),
        "num_edges": tuple(edges.num_edges for edges in graph.edge_types),
        "ends": tuple((edges.source.number, edges.target.number) for edges in graph.edge_types),
        "num_classes": classes or None,
        "row_files": graph.row_files or None,
    }


def open_samples(runtime: Runtime, path: Path, graph: Graph | None = None) -> SampleSet:
    """Opens the artifact of the sample stage at ``path``.

    Args:
        graph: Whose nodes and classes ids and labels must be; None: the number of nodes is what the artifact says.

    Raises:
        FormatError: Missing, foreign, of another version, or tables that contradict each other.
    """
    with manifests.opening(path, FORMAT, VERSIONS) as manifest:
        return SampleSet(runtime, path, manifest, graph)
