"""Benchmark ``typed-sampling``: drawing batches of a graph with types against one type with the same lists.

Both sides draw on one thread, in memory, by the same core; passes over all training batches take turns. Two cases:

- *every edge type*: batches of the graph as they are trained on. Each hop of the one-type graph, which has a node for
  each neighbor list of the other, starts at the very lists that the typed hop draws from; both draw as many edges.
- *one list a node*: the graph of papers and authors with ``writes`` and its reverse alone. Every node has one list, so
  the same files are those of a graph of one type, too, which draws its batches whole.

Timed are the hops and what makes arrays of them, not the hashing of the seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.bench.epoch import Log, Setting, ensure_graph, plain
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.seeds import split_ids
from outcrop.sampling.topology import Topology, load_topology
from outcrop.store.graph import Graph, open_graph
from outcrop.store.graph_types import EdgeType

_PASSES = 7
_ONE_LIST = (("author", "writes", "paper"), ("paper", "rev_writes", "author"))


@dataclass
class Drawn:
    """Counts what passes over batches drew.

    Attributes:
        lists: Neighbor lists that were drawn from.
        seconds: What the hops and the arrays of their batches took.
    """

    lists: int = 0
    edges: int = 0
    seconds: float = 0.0

    def add(self, other: Drawn) -> None:
        self.lists, self.edges = self.lists + other.lists, self.edges + other.edges
        self.seconds += other.seconds


Draw = Callable[[int], Drawn]  # a batch, by its number


def run(folder: Path, setting: Setting, log: Log) -> dict[str, Any]:
    """Draws the training batches of the graph of ``setting`` both ways, in turn.

    Raises:
        AssertionError: One side drew from other lists, or another number of edges, where both should draw the same.
    """
    graph = open_graph(ensure_graph(folder, setting.shape, log))
    fanouts = [int(part) for part in setting.fanouts.split(",")]
    with Runtime(threads=1) as runtime:
        topology = load_topology(graph, runtime, placement="memory")
        ids = np.asarray(split_ids(graph, runtime, "train"), np.int64) + graph.seed_type.first
        seeds = [ids[at : at + setting.batch_size] for at in range(0, len(ids), setting.batch_size)]
        cases = {}
        for name, sides in (
            ("every edge type", _every_type(graph, topology, runtime, seeds, fanouts)),
            ("one list a node", _one_list(graph, topology, runtime, seeds, fanouts)),
        ):
            log(f"drawing: {name}")
            cases[name] = _compare(*sides, len(seeds))
    both = cases["every edge type"]
    if both["typed"]["edges"] != both["one type"]["edges"]:
        raise AssertionError(f"the same lists gave {both['typed']} and {both['one type']}")
    return {
        "experiment": "typed-sampling",
        "setting": plain(setting),
        "cases": cases,
        "columns": ["case", "lists", "edges", "with types", "one type, the same lists", "ratio"],
        "rows": [
            [
                name,
                f"{case['typed']['lists']:,}",
                f"{case['typed']['edges']:,}",
                *(f"{case[side]['edges_per_s'] / 1e6:.2f} M edges/s" for side in ("typed", "one type")),
                f"{case['ratio']:.2f}",
            ]
            for name, case in cases.items()
        ],
        "says": f"medians of {_PASSES} passes over {len(seeds)} batches, on one thread",
    }


def _compare(typed: Draw, flat: Draw, batches: int) -> dict[str, Any]:
    """Times both in turn; a pass before the first warms up and is not counted."""
    passes: dict[str, list[Drawn]] = {"typed": [], "one type": []}
    for turn in range(_PASSES + 1):
        sides = [("typed", typed), ("one type", flat)]
        for name, draw in sides if turn % 2 else reversed(sides):
            total = Drawn()
            for number in range(batches):
                total.add(draw(number))
            if turn:
                passes[name].append(total)
    rates = {name: [one.edges / one.seconds for one in found] for name, found in passes.items()}
    return {
        **{
            name: {
                "lists": found[-1].lists,
                "edges": found[-1].edges,
                "edges_per_s": median(rates[name]),
                "all_edges_per_s": rates[name],
            }
            for name, found in passes.items()
        },
        "ratio": median(a / b for a, b in zip(rates["typed"], rates["one type"], strict=True)),
    }


def _sampler(
    topology: Topology,
    runtime: Runtime,
    fanouts: Sequence[int] | Sequence[Sequence[int]],
    relations: Any = None,
) -> _core.NeighborSampler:
    assert topology.indptr is not None
    assert topology.indices is not None
    return _core.NeighborSampler(
        runtime.workers, topology.indptr, topology.indices, fanouts, relations=relations
    )


def _every_type(
    graph: Graph, topology: Topology, runtime: Runtime, seeds: Sequence[np.ndarray], fanouts: Sequence[int]
) -> tuple[Draw, Draw]:
    """Returns how a batch is drawn with all edge types, and how from the lists of each of its hops."""
    typed = _sampler(topology, runtime, [list(fanouts)] * len(graph.edge_types), topology.relations)
    flat = [_sampler(topology, runtime, [fanout]) for fanout in fanouts]
    lists = []
    for number, nodes in enumerate(seeds):
        frontiers = _frontiers(typed, nodes, number, len(fanouts))
        lists.append([_lists_of(graph.edge_types, frontier) for frontier in frontiers])

    def draw_flat(number: int) -> Drawn:
        total = Drawn()
        for sampler, starts in zip(flat, lists[number], strict=True):
            total.add(_drawn(sampler, starts, number, 1, len(starts)))
        return total

    def draw_typed(number: int) -> Drawn:
        return _drawn(typed, seeds[number], number, len(fanouts), sum(map(len, lists[number])))

    return draw_typed, draw_flat


def _one_list(
    graph: Graph, topology: Topology, runtime: Runtime, seeds: Sequence[np.ndarray], fanouts: Sequence[int]
) -> tuple[Draw, Draw]:
    """Returns how a batch is drawn from papers and authors, and how where these are of one type."""
    alone = _lists_alone(topology, [graph.edge_type(key) for key in _ONE_LIST])
    sides = (
        _sampler(alone, runtime, [list(fanouts)] * len(_ONE_LIST), alone.relations),
        _sampler(alone, runtime, list(fanouts)),
    )
    lists = [
        [sum(map(len, _frontiers(one, nodes, number, len(fanouts)))) for number, nodes in enumerate(seeds)]
        for one in sides
    ]

    def draw(side: int) -> Draw:
        return lambda number: _drawn(sides[side], seeds[number], number, len(fanouts), lists[side][number])

    return draw(0), draw(1)


def _lists_alone(topology: Topology, edge_types: Sequence[EdgeType]) -> Topology:
    """Returns a topology with the lists of ``edge_types`` alone, one for each node of the first node types in order."""
    assert topology.indptr is not None
    assert topology.indices is not None
    indptr, indices = [np.zeros(1, np.int64)], []
    for edges in edge_types:
        ends = topology.indptr[edges.first_list : edges.first_list + edges.target.num_nodes + 1]
        indptr.append(ends[1:] - ends[0] + indptr[-1][-1])
        indices.append(topology.indices[ends[0] : ends[-1]])
    targets = [edges.target for edges in edge_types]
    nodes = targets[-1].first + targets[-1].num_nodes
    relations = _core.Relations(
        [*(one.first for one in targets), nodes],
        [(edges.source.number, edges.target.number, edges.num_edges, False) for edges in edge_types],
    )
    parts = np.concatenate(indptr), np.concatenate(indices)
    return Topology(nodes, len(parts[1]), "memory", *parts, relations=relations)


def _frontiers(sampler: _core.NeighborSampler, seeds: np.ndarray, number: int, hops: int) -> list[np.ndarray]:
    """Returns the nodes that each hop of a batch starts at."""
    sampler.begin(seeds, 0, 0, number)
    frontiers = [seeds]
    for _ in range(hops - 1):
        frontiers.append(np.array(sampler.hop()))
    return frontiers


def _lists_of(edge_types: Sequence[EdgeType], nodes: np.ndarray) -> np.ndarray:
    """Returns the lists of ``nodes``, int64: of each its node's in every edge type that leads to it."""
    found = []
    for edges in edge_types:
        target = edges.target
        inside = nodes[(target.first <= nodes) & (nodes < target.first + target.num_nodes)]
        found.append(inside + edges.first_list - target.first)
    return np.concatenate(found)


def _drawn(sampler: _core.NeighborSampler, seeds: np.ndarray, number: int, hops: int, lists: int) -> Drawn:
    sampler.begin(seeds, 0, 0, number)
    begin = time.thread_time()
    for _ in range(hops):
        sampler.hop()
    parts = sampler.finish()
    seconds = time.thread_time() - begin
    return Drawn(lists, _edges_of(parts), seconds)


def _edges_of(parts: Sequence[Any]) -> int:
    """Counts the edges of a batch: of several types a list of ``(rowptr, col, ...)``, else ``col``."""
    if len(parts) == 2:
        return sum(len(edges[1]) for edges in parts[1])
    return len(parts[2])
