"""Where edges to embed come from: an imported knowledge graph, or any imported graph, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import triples
from outcrop.store.arrays import DiskArray
from outcrop.store.edges import spans
from outcrop.store.graph import FORMAT as GRAPH_FORMAT
from outcrop.store.graph import Graph, open_graph
from outcrop.store.manifest import Manifest
from outcrop.store.triples import Triples

# Names in the source -> names in what is made from it.
_TRIPLE_NAMES = {
    f"{kind}_{part}": f"{kind}_{part}" for kind in triples.KINDS for part in ("names", "name_offsets")
}
_GRAPH_NAMES = {"names": "entity_names", "name_offsets": "entity_name_offsets"}
_EDGE_BYTES = 64  # of a block: what was read, int64 copies, and what is worked out of them


class EdgeSource(Protocol):
    """Yields edges. ``blocks``: int64 [n, 3] (source, relation, target), or [n, 2] where there are no relations."""

    path: Path
    manifest: Manifest
    num_nodes: int
    num_relations: int
    text_arrays: dict[str, str]

    def count(self, split: str) -> int: ...
    def blocks(self, runtime: Runtime, split: str, most_bytes: int) -> Iterator[np.ndarray]: ...


class TripleSource:
    text_arrays = _TRIPLE_NAMES

    def __init__(self, found: Triples):
        self._triples = found
        self.path, self.manifest = found.path, found.manifest
        self.num_nodes, self.num_relations = found.num_entities, found.num_relations
        self.count = found.count

    def blocks(self, runtime: Runtime, split: str, most_bytes: int) -> Iterator[np.ndarray]:
        yield from _blocks(self._triples.array(runtime, split), runtime, most_bytes)


class GraphSource:
    """Yields all edges of a graph, or those of its edge splits where it has them. It has no relations."""

    text_arrays = _GRAPH_NAMES
    num_relations = 0

    def __init__(self, graph: Graph):
        self._graph = graph
        self.path, self.manifest, self.num_nodes = graph.path, graph.manifest, graph.num_nodes

    def count(self, split: str) -> int:
        name = f"{split}_edges"
        if self._graph.has(name):
            return self._graph.spec(name).shape[0]
        return self._graph.num_edges if split == "train" else 0

    def blocks(self, runtime: Runtime, split: str, most_bytes: int) -> Iterator[np.ndarray]:
        name = f"{split}_edges"
        if self._graph.has(name):
            yield from _blocks(self._graph.array(runtime, name), runtime, most_bytes)
            return
        most = max(most_bytes // _EDGE_BYTES, 1024)
        for span in spans(self._graph, runtime, most, most):
            (lists,) = span.lists
            for begin, end in lists.ranges():
                edges = lists.read(begin, end)
                yield np.stack([edges.col.astype(np.int64), span.ids[edges.row]], axis=1)


def _blocks(array: DiskArray, runtime: Runtime, most_bytes: int) -> Iterator[np.ndarray]:
    rows = max(most_bytes // _EDGE_BYTES, 1024)
    try:
        for start in range(0, array.num_rows, rows):
            yield array.read("edges", start, min(start + rows, array.num_rows)).astype(np.int64)
    finally:
        array.close()


def open_source(path: Path | str) -> EdgeSource:
    """Opens what ``outcrop import`` or ``outcrop generate`` made.

    Raises:
        FormatError: It is neither a knowledge graph nor a graph.
    """
    path = Path(path)
    kind = manifests.kind(path)
    if kind == triples.FORMAT:
        return TripleSource(triples.open_triples(path))
    if kind == GRAPH_FORMAT:
        return GraphSource(open_graph(path))
    raise FormatError(
        f"{path} is {kind!r}, neither a knowledge graph nor a graph: make one with outcrop import"
    )
