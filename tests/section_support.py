"""Graphs with several row files, whose rows are random bytes; batches of them, from the reference of typed sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from outcrop.config import PlanConfig, SampleConfig
from outcrop.errors import BudgetError
from outcrop.preparation import sample as stage
from outcrop.preparation.plan_memory import divide_host_memory
from outcrop.runtime.runtime import Runtime
from outcrop.store.batches import BatchGraph, Edges, Nodes
from outcrop.store.graph import Graph
from outcrop.store.graph_types import NodeType
from outcrop.store.samples import SampleSet, open_samples
from typed_reference import TypedBatch, TypedGraph, pick_some, sample
from typed_store import write_typed

Width = tuple[str, int] | None  # dtype and columns; None: no rows
NodeWidths = dict[str, tuple[int, Width]]
EdgeWidths = dict[tuple[str, str, str], tuple[int, Width]]

# A type with rows that are a page and more, ones that share pages, one node, no node, no rows; edges below 64 bytes.
NODES: NodeWidths = {
    "paper": (500, ("float32", 128)),
    "author": (400, ("float16", 64)),
    "topic": (60, ("int8", 32)),
    "venue": (1, ("int16", 3)),
    "void": (0, ("float32", 4)),
    "school": (40, None),
}
EDGES: EdgeWidths = {
    ("paper", "cites", "paper"): (1500, ("uint8", 1)),
    ("author", "writes", "paper"): (1000, ("float16", 16)),
    ("topic", "about", "paper"): (300, None),
    ("venue", "prints", "paper"): (80, None),
    ("school", "has", "author"): (200, None),
    ("void", "of", "author"): (0, None),
}
FEW = ("paper", "author")  # types of a graph with two row files, one for each
FANOUTS, BATCH, EPOCHS = (4, 3), 20, 2
DIVISIONS = [
    (i, j, 5 - i - j) for i in range(6) for j in range(6 - i)
]  # all 21 of five parts among three row files


class SectionGraph(Graph):
    """Opens a graph with several row files, of which it is known what they hold.

    Attributes:
        tables: The rows of each row file.
        lists: Its neighbor lists.
    """

    def __init__(self, graph: Graph, tables: Sequence[np.ndarray], lists: TypedGraph):
        super().__init__(graph.path, graph.manifest)
        self.tables, self.lists = tuple(tables), lists

    def has(self, name: str) -> bool:
        """Tells whether there is an array of exactly this name, where graphs with types ask for the type as well."""
        return name in self.manifest.arrays

    def wanted(self, batch: BatchGraph) -> list[np.ndarray]:
        """Returns the rows that a batch must have of each row file: ``table[ids]``."""
        ids = [
            batch.nodes[file.owner.number].ids
            if isinstance(file.owner, NodeType)
            else batch.edges[file.owner.number].positions
            for file in self.row_files
        ]
        return [table[of] for table, of in zip(self.tables, ids, strict=True)]


def many_types(row_files: int) -> tuple[NodeWidths, EdgeWidths]:
    """Makes up node types, and an edge type from each to the one before, two thirds of the row files of nodes."""
    dtypes, columns = ("float32", "float16", "int8", "uint8", "int64"), (1, 3, 16, 50, 200)
    widths = [(dtypes[k % 5], columns[k * 3 % 5]) for k in range(row_files)]
    count = row_files - row_files // 3
    nodes: NodeWidths = {f"t{k}": (5 + 17 * k % 90, widths[k]) for k in range(count)}
    edges: EdgeWidths = {
        (f"t{k + 1}", "to", f"t{k}"): (40 + 7 * k, widths[count + k] if count + k < row_files else None)
        for k in range(count - 1)
    }
    return nodes, edges | {("t0", "next", "t5"): (90, None), ("t9", "far", "t0"): (90, None)}


def memory_with_cache(graph: Graph, samples: SampleSet, cache_bytes: int, **options: Any) -> int:
    """Returns the smallest budget of loading whose cache has ``cache_bytes``."""
    low, high = 1, 1 << 34
    while low < high:
        middle = (low + high) // 2
        try:
            config = PlanConfig(memory=middle, slots=2, **options)
            enough = divide_host_memory(samples, config, graph.row_files).cache_bytes >= cache_bytes
        except BudgetError:
            enough = False
        low, high = (low, middle) if enough else (middle + 1, high)
    return low


def graph_of(folder: Path, row_files: int) -> SectionGraph:
    """Writes a graph with 1, 2, 7 or 30 row files; of 7 and 30 some are those of edges."""
    if row_files == 30:
        graph = section_graph(folder, types=many_types(row_files))
    else:
        names = {1: ("paper", "school"), 2: FEW, 7: None}[row_files]
        graph = section_graph(folder, names=names, edge_rows=row_files > 2)
    assert len(graph.row_files) == row_files
    return graph


def section_graph(
    folder: Path,
    *,
    names: Sequence[str] | None = None,
    edge_rows: bool = True,
    types: tuple[NodeWidths, EdgeWidths] = (NODES, EDGES),
) -> SectionGraph:
    """Writes a graph whose rows are random bytes; the first of its node types has labels.

    Args:
        names: Its node types; None: all. Edge types are those between them.
        edge_rows: Whether edges have rows.
        types: What there is to choose from: how many of each type, and how wide rows are.
    """
    nodes = {name: types[0][name] for name in names or types[0]}
    edges = {key: value for key, value in types[1].items() if {key[0], key[2]} <= set(nodes)}
    numbers = {name: number for number, name in enumerate(nodes)}
    lists = TypedGraph(
        tuple(count for count, _ in nodes.values()),
        tuple((numbers[source], numbers[target]) for source, _, target in edges),
        tuple(
            _lists(nodes[source][0], nodes[target][0], count, seed)
            for seed, ((source, _, target), (count, _)) in enumerate(edges.items())
        ),
    )
    tables = {f"n{t}.features": _rows(*of) for t, of in enumerate(nodes.values()) if of[1]}
    if edge_rows:
        tables |= {f"e{r}.features": _rows(*of) for r, of in enumerate(edges.values()) if of[1]}
    labels = np.arange(lists.sizes[0], dtype=np.int64) % BATCH
    graph = write_typed(
        folder, lists, {**tables, "n0.labels": labels}, {0: BATCH}, names=(list(nodes), list(edges))
    )
    assert [file.array for file in graph.row_files] == list(tables)
    return SectionGraph(graph, list(tables.values()), lists)


def _lists(sources: int, targets: int, count: int, seed: int) -> tuple[tuple[int, ...], ...]:
    rng = np.random.default_rng(seed)
    lists: list[list[int]] = [[] for _ in range(targets)]
    for _ in range(count):
        lists[int(rng.integers(targets))].append(int(rng.random() ** 2 * sources))
    return tuple(tuple(sorted(one)) for one in lists)


def _rows(count: int, width: Width) -> np.ndarray:
    """Returns random bytes as ``count`` rows."""
    assert width is not None
    dtype, columns = np.dtype(width[0]), width[1]
    raw = np.random.default_rng(count + columns).integers(0, 256, count * columns * dtype.itemsize, np.uint8)
    return raw.view(dtype).reshape(count, columns)


def lists_on_disk(graph: Graph) -> TypedGraph:
    """Reads the neighbor lists of a graph."""
    with Runtime() as runtime:
        indptr, indices = (graph.array(runtime, name).read("lists") for name in ("indptr", "indices"))
    lists = [
        tuple(
            tuple((indices[indptr[at] : indptr[at + 1]].astype(np.int64) - of.source.first).tolist())
            for at in range(of.first_list, of.first_list + of.target.num_nodes)
        )
        for of in graph.edge_types
    ]
    sizes = tuple(of.num_nodes for of in graph.node_types)
    return TypedGraph(
        sizes, tuple((of.source.number, of.target.number) for of in graph.edge_types), tuple(lists)
    )


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
    """Draws batches around all nodes of the first type with the reference, in place of ``BatchSampler``.

    Attributes:
        topology: What mode online may cache lists of: none.
        most_batch_bytes: What drawing one takes of a budget.
    """

    most_batch_bytes = 0

    def __init__(self, graph: Graph, config: SampleConfig, *_: Any, **__: Any):
        self.config, self.lists = config, lists_on_disk(graph)
        self.topology = SimpleNamespace(placement="memory", drop_lists=lambda: None)

    def num_batches(self, split: str) -> int:
        return -(-self.lists.sizes[0] // BATCH)

    def seeds(
        self, split: str, epoch: int, numbers: Sequence[int] | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yields epoch and number of each batch."""
        every = range(self.num_batches(split)) if numbers is None else numbers
        yield from ((epoch, number) for number in every)

    def draw(self, seeds: tuple[int, int]) -> BatchGraph:
        epoch, number = seeds
        order = np.random.default_rng(epoch).permutation(self.lists.sizes[0])
        chosen = sorted(order[number * BATCH :][:BATCH].tolist())
        pick = pick_some([FANOUTS] * len(self.lists.edge_types), seed=1000 * epoch + number)
        return as_batch(sample(self.lists, {0: chosen}, len(FANOUTS), pick))

    def sample(
        self, seeds: tuple[int, int], on_new_nodes: Callable[[np.ndarray], None], on_located: Any = None
    ) -> BatchGraph:
        """Tells of the nodes that each hop meets first, in the numbering of all nodes, rising."""
        batch = self.draw(seeds)
        firsts = [self.lists.first_node(t) for t in range(len(batch.nodes))]
        parts = [np.split(nodes.ids, np.cumsum(nodes.per_hop)[:-1]) for nodes in batch.nodes]
        for hop in zip(*parts, strict=True):
            on_new_nodes(np.concatenate([ids + first for ids, first in zip(hop, firsts, strict=True)]))
        return batch

    def epoch(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[BatchGraph]:
        return map(self.draw, self.seeds(split, epoch, numbers))


def sample_by_reference(graph: Any, folder: Path, runtime: Runtime, config: SampleConfig) -> SampleSet:
    """Runs the sample stage with batches that the reference draws."""

    def epoch(split: str, number: int) -> Iterator[BatchGraph]:
        return ReferenceSampler(graph, config).epoch(split, number)

    external: Any = SimpleNamespace(splits=config.splits, epoch=epoch)
    stage.sample(
        graph, config, folder / "sample", runtime, stage.BatchOrigin(external=external, key="reference")
    )
    return open_samples(runtime, folder / "sample", graph)
