"""How many mini-batches are drawn at a time, and what memory they take meanwhile."""

from __future__ import annotations

import numpy as np

import outcrop._core as _core
from outcrop.config import SampleConfig
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.typed import every_fanout, most_reached, wants_distinct_edges
from outcrop.store.graph import Graph

_MIB = 1 << 20
_SLACK = _MIB // 8  # of a batch that waits, where there are few; where there are many, an eighth of it each


def most_seeds(config: SampleConfig, graph: Graph) -> int:
    """Counts the seeds of the largest batch."""
    ends = 2 + 2 * int(np.ceil(config.negatives)) if config.task == "link" else 1
    return min(config.batch_size * ends, graph.seed_type.num_nodes)


def _most_reached(config: SampleConfig, graph: Graph, seeds: int, slack: int = 1) -> tuple[int, int, int]:
    """Counts the most nodes and edges of a batch (:func:`outcrop.sampling.typed.most_reached`)."""
    return most_reached(every_fanout(config, graph), graph.edge_types, seeds, graph.seed_type.number, slack)


def _bytes_by_type(
    config: SampleConfig, graph: Graph, nodes: int, edges: int, last: int, reached: int
) -> int:
    """Counts what several types of edges, positions and weights of edges take in a batch."""
    found = 0
    if graph.is_typed:
        found = 8 * len(graph.edge_types) * (nodes - last + 2) + 8 * nodes
        found += edges * (20 if graph.has_edge_rows or config.edge_ids else 4)
    elif graph.has_edge_rows or config.edge_weights or config.edge_ids:
        found = 8 * edges  # where they lie
        if config.edge_weights:
            found += 4 * edges + 16 * reached
    if wants_distinct_edges(config, graph):
        found += 12 * edges  # each once, and which of them an edge is
    return found


def _entered_bytes(config: SampleConfig, graph: Graph, on_disk: bool) -> int:
    """Counts the most bytes that a batch can need while its nodes are entered (core/sampling/batch_builder.cpp,
    check_memory).

    Of samplers whose batches depend on the graph, what they need unless it is unusual: twice the edges of each hop that
    are expected of LABOR, and for an induced subgraph eight times the mean degree per node.
    """
    seeds = most_seeds(config, graph)
    nodes, edges, last = _most_reached(config, graph, seeds, 2 if config.sampler == "labor" else 1)
    reached = min(seeds + edges, graph.num_nodes)
    if config.sampler == "shadow":
        edges = max(edges, min(graph.num_edges, 8 * reached * max(graph.num_edges // graph.num_nodes, 1)))
    extra = 0 if config.sampler == "neighbor" else 8 * last
    if on_disk:  # what was read, and where the lists lie
        extra = 16 * last + 16 * reached
    table = 12 * (1 << (max(2 * nodes, 64) - 1).bit_length())
    by_type = _bytes_by_type(config, graph, nodes, edges, last, reached)
    return 12 * nodes + table // 2 * 3 + 4 * edges + 20 * last + extra + by_type + _MIB


def _waiting_bytes(config: SampleConfig, graph: Graph) -> int:
    """Counts the bytes of a batch while it waits for its lists, or drawn for those before it (core/sampling/wave.h):
    the most, or of LABOR twice what is expected of it, which of several that wait is more than they have together.
    """
    seeds = most_seeds(config, graph)
    nodes, edges, last = _most_reached(config, graph, seeds)
    expanded = nodes - last  # 8 each for the id, rowptr while it grows, and both ends of the list
    kept = 8 * last  # neighbours before they are entered, which makes nodes and edges of them
    found = 24 * expanded + max(4 * (edges - last) + kept, 8 * last + 4 * edges)
    if config.sampler == "weighted":
        found += 8 * last + 8 * expanded  # places that were chosen, and where those of a list end
    found += _bytes_by_type(config, graph, nodes, edges, last, min(seeds + edges, graph.num_nodes))
    return (2 if config.sampler == "labor" else 1) * found + _SLACK


class Wave:
    """Decides how many mini-batches are drawn at a time, by whom, and holds the memory for them: fewer where ``most``
    bytes are few.

    As many as threads enter theirs at a time: each takes its worst case twice. More wait meanwhile (:meth:`widen`).
    """

    def __init__(
        self,
        config: SampleConfig,
        graph: Graph,
        most: int,
        runtime: Runtime,
        on_disk: bool = False,
        at_once: int | None = None,
    ):
        worst = _entered_bytes(config, graph, on_disk)
        # An induced subgraph is entered while its lists are read, and grows meanwhile.
        self._waiting_bytes = 2 * worst if config.sampler == "shadow" else _waiting_bytes(config, graph)
        threads = runtime.workers.threads
        self._runtime = runtime
        self._shared = _SLACK // 8 * 7 if config.sampler == "neighbor" else 0  # of the slack, where many wait
        self.batches = min(max(most // 2 // worst, 1), at_once or threads, threads)
        self.workers = runtime.workers if self.batches == threads else _core.WorkerPool(self.batches)
        self._batch_bytes = max(min(worst, most // 2 // self.batches), 1)
        self._held = [runtime.budget.reserve("sampler", 2 * self.batches * self._batch_bytes)]

    def widen(self, batches: int, most: int) -> None:
        """Draws up to ``batches`` at a time, where ``most`` bytes more allow it."""
        each = self._waiting_bytes - (self._shared if most >= memory_tables.MORE_WAITING_FROM // 2 else 0)
        more = min(batches - self.batches, most // each)
        if more > 0:
            self._held.append(self._runtime.budget.reserve("sampler", more * each))
            self.batches += more

    @property
    def most_batch_bytes(self) -> int:
        """Counts what one batch may take: once drawn it takes a fifth of what is reserved."""
        return self._batch_bytes * 3 // 2
