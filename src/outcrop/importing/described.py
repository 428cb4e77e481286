"""Generate a graph with types of which only the sizes are known, smaller if asked, to count batches on.

How often the nodes of a type stand at the ends of edges falls with a power of their rank; ranks lie anywhere among the
ids. Where only a part of the graph is near the training nodes, the first ranks of each type are that part: edges lead
from it to it, or from the rest to the rest, in proportion, so that nodes of both have as many edges on average. Rows
are holes in their files: nothing reads what is in them, and they take no disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.config import ImportConfig
from outcrop.config.described import DescribedGraph, DescribedNodes, near_nodes
from outcrop.importing.sources.base import (
    REVERSE,
    EdgeBlock,
    EdgeSource,
    LabelSource,
    NodeSource,
    TypedSource,
)
from outcrop.importing.typed_graph import TypedImport
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.graph import Graph, open_graph
from outcrop.store.manifest import ArraySpec

_EDGE_BLOCK = 1 << 17  # edges of a block
_BLOCK_BYTES = 16 << 20  # what making a block takes, at the most


def generate_described(path: Path, graph: DescribedGraph, runtime: Runtime) -> Graph:
    """Makes ``graph`` at ``path``, streamed within the budget of ``runtime``.

    Raises:
        BudgetError: The budget is too small.
    """
    source = TypedSource(
        f"described graph {graph.name}",
        tuple(_nodes(graph, number, runtime) for number in range(len(graph.nodes))),
        tuple(_edges(graph, number, runtime) for number in range(len(graph.edges))),
    )
    config = ImportConfig(keep_duplicates=True, keep_self_loops=True, reverse=None)
    with (
        manifests.publishing(path) as work,
        runtime.budget.reserve("generate", _BLOCK_BYTES),
        runtime.trace.span("generate", nodes=graph.num_nodes),
    ):
        importing = TypedImport(source, config, runtime)
        importing.write(work)
        for number, of in enumerate(graph.nodes):
            if of.width:
                importing.add_array(f"n{number}.features", _hole(work, f"n{number}.features", of))
        importing.write_manifest(work, {"described": graph.name})
    return open_graph(path)


def _hole(work: Path, name: str, of: DescribedNodes) -> ArraySpec:
    """Makes the file of the rows of a type, of which nothing is written."""
    size = -(-of.num_nodes * of.row_bytes // PAGE_BYTES) * PAGE_BYTES
    path = work / f"{name}.bin"
    path.touch()
    os.truncate(path, size)
    return ArraySpec(path.name, of.dtype, (of.num_nodes, of.width), of.row_bytes, 0, size)


def _nodes(graph: DescribedGraph, number: int, runtime: Runtime) -> NodeSource:
    of = graph.nodes[number]

    def labels(num_nodes: int) -> Iterator[np.ndarray]:
        for first in range(0, num_nodes, _EDGE_BLOCK):
            yield np.zeros(min(_EDGE_BLOCK, num_nodes - first), np.int64)

    def splits(num_nodes: int) -> dict[str, np.ndarray] | None:
        if not of.train:
            return None
        ends = _EndIds(graph, number)
        if graph.near == 1:
            return {"train": np.arange(of.train, dtype=np.int64) * num_nodes // of.train}
        middles = (2 * np.arange(of.train, dtype=np.int64) + 1) * ends.near // (2 * of.train)
        return {"train": np.sort(ends.of_ranks(middles, runtime))}

    return NodeSource(
        f"described nodes {of.name}",
        of.num_nodes,
        labels=LabelSource(f"described labels of {of.name}", of.num_nodes, labels) if of.train else None,
        splits=splits,
        type_name=of.name,
        whose=f"node type {of.name!r} has",
    )


def _edges(graph: DescribedGraph, number: int, runtime: Runtime) -> EdgeSource:
    of = graph.edges[number]
    numbers = {nodes.name: place for place, nodes in enumerate(graph.nodes)}
    ends = [_EndIds(graph, numbers[name]) for name in (of.source, of.target)]

    def blocks() -> Iterator[EdgeBlock]:
        for block in range(-(-of.num_edges // _EDGE_BLOCK)):
            count = min(_EDGE_BLOCK, of.num_edges - block * _EDGE_BLOCK)
            draws = np.random.Generator(np.random.Philox(key=np.array([number, block], np.uint64)))
            near = draws.random(count) < graph.near if graph.near < 1 else np.ones(count, np.bool_)
            source, target = (ids.drawn(draws.random(count), near, runtime) for ids in ends)
            yield source, target

    return EdgeSource(
        name=f"described edges {' '.join(of.key)!r}",
        key=of.key,
        edges=blocks,
        num_edges=of.num_edges,
        reverse=REVERSE + of.relation if of.reverse else None,
    )


class _EndIds:
    """Draws nodes of a type as ends of edges; who is often drawn is the same for all edge types.

    Attributes:
        near: Nodes of the part that training nodes are in.
    """

    def __init__(self, graph: DescribedGraph, number: int):
        of = graph.nodes[number]
        self._count, self._power = of.num_nodes, 1 / (1 - of.skew)
        self._ids = _core.Permutation(100 + number, of.num_nodes)
        self.near = near_nodes(of, graph.near)

    def drawn(self, unit: np.ndarray, near: np.ndarray, runtime: Runtime) -> np.ndarray:
        """Returns a node for each number from 0 to below 1, of the part near training nodes or of the rest: int64."""
        rest = self._count - self.near
        inside = near | (rest == 0)
        size = np.where(inside, self.near, rest)
        ranks = np.minimum((unit**self._power * size).astype(np.int64), size - 1)
        return self.of_ranks(ranks + np.where(inside, 0, self.near), runtime)

    def of_ranks(self, ranks: np.ndarray, runtime: Runtime) -> np.ndarray:
        """Returns the node of each rank: int64."""
        out = np.empty(len(ranks), np.int64)
        self._ids.map(ranks, out, False, runtime.workers)
        return out
