"""Graphs with several row files, and batches of them, both from plain NumPy and the reference of typed sampling.

What loading asks of a graph is here: its types, its row files, and the arrays on disk, which hold random bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import SampleConfig
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import ArrayWriter, DiskArray, storage_dtype
from outcrop.store.batches import BatchGraph, Edges, Nodes
from outcrop.store.graph_types import EdgeType, NodeType, RowFile, row_files_of
from outcrop.store.manifest import PAGE_SUMS, ArraySpec
from typed_reference import TypedBatch, TypedGraph, pick_some, sample
from typed_support import arrays_of

Width = tuple[str, int] | None  # dtype and columns; None: no rows

# A type with rows that are a page and more, ones that share pages, one node, no node, no rows; edges below 64 bytes.
NODES: dict[str, tuple[int, Width]] = {
    "paper": (500, ("float32", 128)),
    "author": (400, ("float16", 64)),
    "topic": (60, ("int8", 32)),
    "venue": (1, ("bfloat16", 3)),
    "void": (0, ("float32", 4)),
    "school": (40, None),
}
EDGES: dict[tuple[str, str, str], tuple[int, Width]] = {
    ("paper", "cites", "paper"): (1500, ("uint8", 1)),
    ("author", "writes", "paper"): (1000, ("float16", 16)),
    ("topic", "about", "paper"): (300, None),
    ("venue", "prints", "paper"): (80, None),
    ("school", "has", "author"): (200, None),
    ("void", "of", "author"): (0, None),
}
FEW = ("paper", "author")  # types of a graph with two row files, one for each
FANOUTS, BATCH, EPOCHS = (4, 3), 20, 2


@dataclass(frozen=True)
class SectionGraph:
    """Stands for a graph with several row files.

    Attributes:
        tables: The rows of each row file.
        lists: Its neighbor lists.
    """

    path: Path
    node_types: tuple[NodeType, ...]
    edge_types: tuple[EdgeType, ...]
    row_files: tuple[RowFile, ...]
    arrays: dict[str, ArraySpec]
    tables: tuple[np.ndarray, ...]
    lists: TypedGraph
    label_kind: str = "class"

    def has(self, name: str) -> bool:
        return name in self.arrays

    def spec(self, name: str) -> ArraySpec:
        return self.arrays[name]

    def open_rows(self, runtime: Runtime, rows: RowFile) -> DiskArray:
        return DiskArray(runtime, self.path, rows.spec, self.arrays.get(rows.array + PAGE_SUMS))

    @property
    def feature_bytes(self) -> int:
        return sum(rows.data_bytes for rows in self.row_files)

    def digest(self) -> str:
        return "that of the graph"

    def require_unchanged(self) -> None: ...

    @property
    def num_nodes(self) -> int:
        return sum(node_type.num_nodes for node_type in self.node_types)

    def wanted(self, batch: BatchGraph) -> list[np.ndarray]:
        """Returns the rows that a batch must have of each row file: ``table[ids]``."""
        ids = [
            batch.nodes[file.owner.number].ids
            if isinstance(file.owner, NodeType)
            else batch.edges[file.owner.number].positions
            for file in self.row_files
        ]
        return [table[of] for table, of in zip(self.tables, ids, strict=True)]


def section_graph(
    folder: Path, runtime: Runtime, *, names: Sequence[str] | None = None, edge_rows: bool = True
) -> SectionGraph:
    """Writes a graph whose rows are random bytes.

    Args:
        names: Its node types; None: all. Edge types are those between them.
        edge_rows: Whether edges have rows.
    """
    folder.mkdir()
    chosen = {name: NODES[name] for name in names or NODES}
    firsts = [0, *accumulate(count for count, _ in chosen.values())]
    nodes = tuple(
        NodeType(t, name, firsts[t], count, BATCH * (name == "paper"), prefix=f"n{t}.")
        for t, (name, (count, _)) in enumerate(chosen.items())
    )
    by_name = {of.name: of for of in nodes}
    between = {
        key: (count, width if edge_rows else None)
        for key, (count, width) in EDGES.items()
        if {key[0], key[2]} <= set(by_name)
    }
    edges, lists, edge, row = [], [], 0, 0
    for r, ((source, relation, target), (count, _)) in enumerate(between.items()):
        ends = by_name[source], by_name[target]
        edges.append(EdgeType(r, ends[0], relation, ends[1], count, row, edge, f"e{r}."))
        lists.append(_lists(ends[0].num_nodes, ends[1].num_nodes, count, r))
        row, edge = row + ends[1].num_nodes, edge + count
    reference = TypedGraph(
        tuple(of.num_nodes for of in nodes),
        tuple((of.source.number, of.target.number) for of in edges),
        tuple(lists),
    )
    arrays: dict[str, ArraySpec] = {}
    types = (*nodes, *edges)
    widths = [width for _, width in (*chosen.values(), *between.values())]
    tables = [
        _write_rows(folder, runtime, of, width, arrays)
        for of, width in zip(types, widths, strict=True)
        if width is not None
    ]
    files = row_files_of(arrays, types)
    topology = arrays_of(reference)
    for name, array in (("indptr", topology.indptr), ("indices", topology.indices)):
        writer = ArrayWriter(runtime, folder, name, "int64")
        writer.append(array)
        writer.finish_into(arrays)
    return SectionGraph(folder, nodes, tuple(edges), files, arrays, tuple(tables), reference)


def _lists(sources: int, targets: int, count: int, seed: int) -> tuple[tuple[int, ...], ...]:
    rng = np.random.default_rng(seed)
    lists: list[list[int]] = [[] for _ in range(targets)]
    for _ in range(count):
        lists[int(rng.integers(targets))].append(int(rng.random() ** 2 * sources))
    return tuple(tuple(sorted(one)) for one in lists)


def _write_rows(
    folder: Path,
    runtime: Runtime,
    of: NodeType | EdgeType,
    width: tuple[str, int],
    arrays: dict[str, ArraySpec],
) -> np.ndarray:
    dtype, columns = width
    count = of.num_nodes if isinstance(of, NodeType) else of.num_edges
    storage = storage_dtype(dtype)
    rng = np.random.default_rng(count + columns)
    raw = rng.integers(0, 256, count * columns * storage.itemsize, dtype=np.uint8)
    table = raw.view(storage).reshape(count, columns)
    writer = ArrayWriter(runtime, folder, of.array("features"), dtype, (columns,), page_sums=True)
    writer.append(table)
    writer.finish_into(arrays)
    return table


def as_batch(batch: TypedBatch, seed_type: int = 0) -> BatchGraph:
    """Returns a batch of the reference in the form that loading takes; labels are 0, 1, 2, ..."""
    edges = []
    for rows, per_hop in zip(batch.rows, batch.edges_per_hop, strict=True):
        flat = [edge for row in rows for edge in row]
        col, positions = (np.array([edge[i] for edge in flat]) for i in (0, 1)) if flat else ([], [])
        rowptr = np.cumsum([0, *map(len, rows)], dtype=np.int32)
        edges.append(Edges(rowptr, np.array(col, np.int32), per_hop, np.array(positions, np.int64)))
    nodes = tuple(
        Nodes(np.array(ids, np.int64), per_hop)
        for ids, per_hop in zip(batch.nodes, batch.nodes_per_hop, strict=True)
    )
    labels = np.arange(nodes[seed_type].per_hop[0], dtype=np.int64)
    return BatchGraph(nodes, tuple(edges), labels, seed_type=seed_type)


class ReferenceSampler:
    """Draws batches around all nodes of the first type with the reference, in place of ``BatchSampler``."""

    def __init__(self, graph: SectionGraph, config: SampleConfig, *_: Any, **__: Any):
        self.graph, self.config = graph, config

    def seeds(
        self, split: str, epoch: int, numbers: Sequence[int] | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yields epoch and number of each batch."""
        count = -(-self.graph.node_types[0].num_nodes // BATCH)
        yield from ((epoch, number) for number in (range(count) if numbers is None else numbers))

    def draw(self, seeds: tuple[int, int]) -> BatchGraph:
        epoch, number = seeds
        order = np.random.default_rng(epoch).permutation(self.graph.node_types[0].num_nodes)
        chosen = sorted(order[number * BATCH :][:BATCH].tolist())
        pick = pick_some([FANOUTS] * len(self.graph.edge_types), seed=1000 * epoch + number)
        return as_batch(sample(self.graph.lists, {0: chosen}, len(FANOUTS), pick))

    def epoch(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[BatchGraph]:
        return map(self.draw, self.seeds(split, epoch, numbers))
