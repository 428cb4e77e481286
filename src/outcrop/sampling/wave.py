"""How many mini-batches are drawn at a time, and what memory they take meanwhile."""

from __future__ import annotations

import math
from dataclasses import dataclass

import outcrop._core as _core
from outcrop.config import SampleConfig
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.typed import every_fanout, most_reached, wants_distinct_edges
from outcrop.store.graph import Graph
from outcrop.store.graph_types import EdgeType

_MIB = 1 << 20
_SLACK = _MIB // 8  # of a batch that waits, where there are few; where there are many, an eighth of it each


@dataclass(frozen=True)
class BatchBounds:
    """Counts what a mini-batch takes at the most.

    Attributes:
        predicted: Type of the edges to be predicted; None: the only one, where any are.
    """

    config: SampleConfig
    graph: Graph
    predicted: EdgeType | None = None

    @property
    def seeds(self) -> dict[int, int]:
        """Counts the seeds of the largest batch, by the number of their node type."""
        config, graph = self.config, self.graph
        if config.task != "link":
            return {graph.seed_type.number: min(config.batch_size, graph.seed_type.num_nodes)}
        of = self.predicted or graph.edge_types[0]
        targets = config.batch_size * (1 + math.ceil(config.negatives))
        found: dict[int, int] = {}
        for end, count in (
            (of.source, config.batch_size if config.negative_mode == "triplet" else targets),
            (of.target, targets),
        ):
            found[end.number] = min(found.get(end.number, 0) + count, end.num_nodes)
        return found

    @property
    def num_seeds(self) -> int:
        """Counts the seeds of the largest batch."""
        return sum(self.seeds.values())

    def reached(self, slack: int = 1) -> tuple[int, int, int]:
        """Counts the most nodes and edges of a batch (:func:`outcrop.sampling.typed.most_reached`)."""
        graph = self.graph
        return most_reached(every_fanout(self.config, graph), graph.edge_types, self.seeds, slack)

    def _bytes_by_type(self, nodes: int, edges: int, last: int, reached: int) -> int:
        """Counts what several types of edges, positions and weights of edges take in a batch."""
        config, graph, found = self.config, self.graph, 0
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

    def entered_bytes(self, on_disk: bool) -> int:
        """Counts the most bytes that a batch can need while its nodes are entered (core/sampling/batch_builder.cpp,
        check_memory).

        Of samplers whose batches depend on the graph, what they need unless it is unusual: twice the edges of each hop
        that are expected of LABOR, and for an induced subgraph eight times the mean degree per node.
        """
        sampler, graph = self.config.sampler, self.graph
        nodes, edges, last = self.reached(2 if sampler == "labor" else 1)
        reached = min(self.num_seeds + edges, graph.num_nodes)
        if sampler == "shadow":
            edges = max(edges, min(graph.num_edges, 8 * reached * max(graph.num_edges // graph.num_nodes, 1)))
        extra = 0 if sampler == "neighbor" else 8 * last
        if on_disk:  # what was read, and where the lists lie
            extra = 16 * last + 16 * reached
        table = 12 * (1 << (max(2 * nodes, 64) - 1).bit_length())
        by_type = self._bytes_by_type(nodes, edges, last, reached)
        return 12 * nodes + table // 2 * 3 + 4 * edges + 20 * last + extra + by_type + _MIB

    def waiting_bytes(self) -> int:
        """Counts the bytes of a batch while it waits for its lists, or drawn for those before it
        (core/sampling/wave.h): the most, or of LABOR twice what is expected of it, which of several that wait is more
        than they have together.
        """
        sampler = self.config.sampler
        nodes, edges, last = self.reached()
        expanded = nodes - last  # 8 each for the id, rowptr while it grows, and both ends of the list
        kept = 8 * last  # neighbours before they are entered, which makes nodes and edges of them
        found = 24 * expanded + max(4 * (edges - last) + kept, 8 * last + 4 * edges)
        if sampler == "weighted":
            found += 8 * last + 8 * expanded  # places that were chosen, and where those of a list end
        found += self._bytes_by_type(nodes, edges, last, min(self.num_seeds + edges, self.graph.num_nodes))
        return (2 if sampler == "labor" else 1) * found + _SLACK


class Wave:
    """Decides how many mini-batches are drawn at a time, by whom, and holds the memory for them: fewer where ``most``
    bytes are few.

    As many as threads enter theirs at a time: each takes its worst case twice. More wait meanwhile (:meth:`widen`).
    """

    def __init__(
        self,
        bounds: BatchBounds,
        most: int,
        runtime: Runtime,
        on_disk: bool = False,
        at_once: int | None = None,
    ):
        worst, sampler = bounds.entered_bytes(on_disk), bounds.config.sampler
        # An induced subgraph is entered while its lists are read, and grows meanwhile.
        self._waiting_bytes = 2 * worst if sampler == "shadow" else bounds.waiting_bytes()
        threads = runtime.workers.threads
        self._runtime = runtime
        self._shared = _SLACK // 8 * 7 if sampler == "neighbor" else 0  # of the slack, where many wait
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
