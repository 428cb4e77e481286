"""How many edges lead from each node, and to it: counted in one pass, kept as an artifact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outcrop.inference.division import MIN_EDGES, memory_of
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter, DiskArray
from outcrop.store.edges import spans
from outcrop.store.graph import Graph
from outcrop.store.graph_types import ListsTo
from outcrop.store.manifest import ArraySpec, Manifest

COUNTS_FORMAT, COUNTS_VERSION = "outcrop.edge-counts", 1
_COUNT_BYTES = 64  # of one edge while counting


def expected_counts(graph: Graph) -> tuple[dict, dict[str, str]]:
    """Returns config and input digests of the artifact that :func:`count_edges` would write."""
    return {}, {"graph": graph.digest()}


def count_edges(graph: Graph, out: Path, runtime: Runtime) -> Manifest:
    """Counts edges per node, in one pass: ``uses`` uint32 [N], edges that lead from the node; in a graph without types
    ``degree`` int32 [N], edges that lead to it from other nodes.

    ``uses`` is all zeros where its counters take more than a quarter of the budget: then no rows are cached.
    """
    memory, nodes = memory_of(runtime), graph.num_nodes
    block_edges = max(
        min(memory_tables.EDGE_COUNTS.bytes_of(memory) // _COUNT_BYTES, graph.num_edges), MIN_EDGES
    )
    counted = nodes * 4 <= memory_tables.USES.bytes_of(memory)
    uses = runtime.budget.empty("infer-counts", nodes * 4).view(np.uint32) if counted else None
    if uses is not None:
        uses[:] = 0
    runtime.progress.start("count edges", nodes, "nodes")
    with (
        manifests.publishing(out) as folder,
        runtime.budget.reserve("infer-counts", block_edges * _COUNT_BYTES),
    ):
        arrays: dict[str, ArraySpec] = {}
        if graph.is_typed:
            for target in graph.node_types if counted else ():
                for _ in _degrees(graph, runtime, block_edges, uses, graph.lists_to(target)):
                    pass
        else:
            degree = ArrayWriter(runtime, folder, "degree", "int32")
            for degrees in _degrees(graph, runtime, block_edges, uses, graph.lists_to(graph.node_types[0])):
                degree.append(degrees)
            degree.finish_into(arrays)
        writer = ArrayWriter(runtime, folder, "uses", "uint32")
        for start in range(0, nodes, 1 << 14):
            stop = min(start + (1 << 14), nodes)
            writer.append(np.zeros(stop - start, np.uint32) if uses is None else uses[start:stop])
        arrays["uses"] = writer.finish()
        graph.require_unchanged()
        manifest = Manifest(COUNTS_FORMAT, COUNTS_VERSION, arrays, {}, *expected_counts(graph))
        manifests.write(folder, manifest)
    runtime.progress.finish("count edges")
    return manifest


def _degrees(
    graph: Graph, runtime: Runtime, most_edges: int, uses: np.ndarray | None, to: ListsTo
) -> Iterator[np.ndarray]:
    """Yields, a span at a time, int32 [targets]: edges that lead there from other nodes; adds to the ``uses`` of all
    nodes.
    """
    most_targets = max(most_edges // max(len(to.edge_types), 1), 1)
    for span in spans(graph, runtime, most_targets, most_edges, to=to):
        degrees = np.zeros(len(span.ids), np.int32)
        for lists in span.lists:
            source = lists.edge_type.source
            for begin, end in lists.ranges():
                edges = lists.read(begin, end)
                others = edges.col != span.ids[edges.row] if source == to.target else slice(None)
                degrees += np.bincount(edges.row[others], minlength=len(degrees)).astype(np.int32)
                if uses is not None:
                    sources, counts = np.unique(edges.col, return_counts=True)
                    uses[sources + source.first] += counts.astype(np.uint32)
        yield degrees
        runtime.progress.advance("count edges", len(span.ids))


@dataclass(frozen=True)
class Counts:
    """Opens the artifact of :func:`count_edges`."""

    folder: Path
    manifest: Manifest

    def array(self, runtime: Runtime, name: str) -> DiskArray:
        return DiskArray(runtime, self.folder, self.manifest.arrays[name])


def open_counts(folder: Path) -> Counts:
    return Counts(folder, manifests.read(folder, COUNTS_FORMAT, COUNTS_VERSION))
