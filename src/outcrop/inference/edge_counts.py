"""How many edges lead from each node, and to it: counted in one pass, kept as an artifact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outcrop.inference.division import MIN_EDGES, memory_of
from outcrop.inference.in_order import PIECE_EDGES, lists_in_order
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter, DiskArray
from outcrop.store.edges import spans
from outcrop.store.graph import Graph
from outcrop.store.manifest import ArraySpec, Manifest
from outcrop.store.record import align_page

COUNTS_FORMAT, COUNTS_VERSION = "outcrop.edge-counts", 1
_COUNT_BYTES = 64  # of one edge while counting
_MOST_CHUNK_BYTES = 1 << 20


def are_there(graph: Graph, folder: Path, uses: bool) -> bool:
    """Tells whether ``folder`` has what :func:`count_edges` would write."""
    return manifests.is_current(folder, COUNTS_FORMAT, COUNTS_VERSION, *_expected(graph, uses))


def _expected(graph: Graph, uses: bool) -> tuple[dict, dict[str, str]]:
    """Returns config and input digests of the artifact."""
    return {} if uses else {"uses": False}, {"graph": graph.digest()}


def written_bytes(graph: Graph, uses: bool) -> int:
    """Counts the bytes that :func:`count_edges` writes."""
    return (uses + (not graph.is_typed)) * align_page(graph.num_nodes * 4)


def count_edges(
    graph: Graph, out: Path, runtime: Runtime, uses: bool = True, held_bytes: int = 0
) -> Manifest:
    """Counts edges per node, in one pass: in a graph without types ``degree`` int32 [N], edges that lead to the node
    from other nodes; where ``uses`` are wanted, ``uses`` uint32 [N], edges that lead from it.

    ``uses`` is all zeros where its counters take more than a quarter of the budget, of which ``held_bytes`` are taken:
    then no rows are cached.
    """
    memory, nodes = max(memory_of(runtime) - held_bytes, 0), graph.num_nodes
    block_edges = max(
        min(memory_tables.EDGE_COUNTS.bytes_of(memory) // _COUNT_BYTES, graph.num_edges), MIN_EDGES
    )
    counted = uses and nodes * 4 <= memory_tables.USES.bytes_of(memory)
    counters = runtime.budget.empty("infer-counts", nodes * 4).view(np.uint32) if counted else None
    if counters is not None:
        counters[:] = 0
    runtime.progress.start("count edges", nodes, "nodes")
    with (
        manifests.publishing(out) as folder,
        runtime.budget.reserve("infer-counts", block_edges * _COUNT_BYTES),
    ):
        arrays: dict[str, ArraySpec] = {}
        if not graph.is_typed:
            degree = ArrayWriter(runtime, folder, "degree", "int32")
            for degrees in _degrees(graph, runtime, block_edges, counters):
                degree.append(degrees)
            degree.finish_into(arrays)
        elif counters is not None:
            _count_uses(graph, runtime, block_edges, counters)
        if uses:
            writer = ArrayWriter(runtime, folder, "uses", "uint32")
            for start in range(0, nodes, 1 << 14):
                stop = min(start + (1 << 14), nodes)
                writer.append(np.zeros(stop - start, np.uint32) if counters is None else counters[start:stop])
            writer.finish_into(arrays)
        graph.require_unchanged()
        manifest = Manifest(COUNTS_FORMAT, COUNTS_VERSION, arrays, {}, *_expected(graph, uses))
        manifests.write(folder, manifest)
    runtime.progress.finish("count edges")
    return manifest


def _degrees(
    graph: Graph, runtime: Runtime, most_edges: int, counters: np.ndarray | None
) -> Iterator[np.ndarray]:
    """Yields, some targets at a time, int32: edges that lead there from other nodes; adds to the ``counters`` of all
    nodes. Every page of the topology is read once.
    """
    chunk = memory_tables.READ_SCRATCH.bytes_of(memory_of(runtime))
    # Two chunks of each of two arrays, in half of what is left.
    chunk = min(chunk, _MOST_CHUNK_BYTES, runtime.budget.free_bytes // 8)
    rest = np.zeros(1, np.int32)  # of a target whose list comes in pieces
    for lists in lists_in_order(graph, runtime, most_edges, most_edges, chunk, min(PIECE_EDGES, most_edges)):
        if counters is not None:
            _add_counts(counters, lists.col)
        degrees = np.diff(lists.without_loops().rowptr)
        if not lists.begins:
            degrees = degrees + rest
        if lists.ends:
            yield degrees
            runtime.progress.advance("count edges", len(degrees))
        else:
            rest = degrees


def _count_uses(graph: Graph, runtime: Runtime, most_edges: int, counters: np.ndarray) -> None:
    """Adds to the ``counters`` of all nodes the edges that lead from each, of a graph with types."""
    for target in graph.node_types:
        to = graph.lists_to(target)
        most_targets = max(most_edges // max(len(to.edge_types), 1), 1)
        for span in spans(graph, runtime, most_targets, most_edges, to=to):
            for lists in span.lists:
                source = lists.edge_type.source
                for begin, end in lists.ranges():
                    of_type = counters[source.first : source.first + source.num_nodes]
                    _add_counts(of_type, lists.read(begin, end).col)
            runtime.progress.advance("count edges", len(span.ids))


def _add_counts(counters: np.ndarray, col: np.ndarray) -> None:
    sources, counts = np.unique(col, return_counts=True)
    counters[sources] += counts.astype(np.uint32)


@dataclass(frozen=True)
class Counts:
    """Opens the artifact of :func:`count_edges`."""

    folder: Path
    manifest: Manifest

    def array(self, runtime: Runtime, name: str) -> DiskArray:
        return DiskArray(runtime, self.folder, self.manifest.arrays[name])


def open_counts(folder: Path) -> Counts:
    return Counts(folder, manifests.read(folder, COUNTS_FORMAT, COUNTS_VERSION))
