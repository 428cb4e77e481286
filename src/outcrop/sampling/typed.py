"""Batches of graphs with types: fanouts by edge type, seeds in the numbering of all nodes, and batches type by type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from outcrop.config import SampleConfig
from outcrop.config.sampling import EXTERNAL
from outcrop.errors import ArgumentError
from outcrop.store.batches import BatchGraph, Edges, Nodes
from outcrop.store.graph import Graph
from outcrop.store.graph_types import EdgeType


def every_fanout(config: SampleConfig, graph: Graph) -> list[list[int]]:
    """Returns the fanouts of each edge type of ``graph``, [edge type][hop].

    Raises:
        ArgumentError: ``config.fanouts_by_type`` names an edge type that the graph has not.
    """
    by_name = {" ".join(one.key): one for one in graph.edge_types}
    every = [list(config.fanouts) for _ in graph.edge_types]
    for name, fanouts in config.fanouts_by_type:
        found = by_name.get(name) if graph.is_typed else None
        if found is None:
            known = f"name one of {', '.join(map(repr, by_name))}" if graph.is_typed else "it has no types"
            raise ArgumentError(f"{graph.path} has no edge type {name!r} to give fanouts for: {known}")
        every[found.number] = list(fanouts)
    return every


def check_served(config: SampleConfig, graph: Graph, chosen_links: bool = False) -> None:
    """Refuses what the graph has not, and what is not drawn from graphs with types yet.

    Args:
        chosen_links: A caller says which edges are predicted.

    Raises:
        ArgumentError: The features or weights of edges, the task, the sampler or the degrees that ``config`` asks for.
    """
    graph.require_edge_rows(config.edge_rows)
    graph.require_edge_weights(config.edge_weights)
    if not graph.is_typed:
        return
    asked = None
    if config.task != "node" and not chosen_links:
        asked = f"task {config.task!r}"
    elif config.sampler not in ("neighbor", "labor", "weighted", EXTERNAL):
        asked = f"sampler {config.sampler!r}"
    elif config.degrees:
        asked = "degrees of nodes, which model gcn needs,"
    elif config.edge_weights:
        asked = "recording weights of edges, which model gcn takes (--edge-weights),"
    if asked and config.task == "link":
        raise ArgumentError(
            f"{graph.path} has types of nodes and edges, for which no run of task 'link' can be made: "
            "outcrop.pyg.LinkNeighborLoader draws batches of edges to be predicted as they are needed"
        )
    if asked:
        raise ArgumentError(
            f"{graph.path} has types of nodes and edges, for which {asked} is not there yet: use task 'node', sampler "
            "'neighbor', 'labor' or 'weighted', and a model for graphs with types, such as 'rsage'"
        )


def wants_distinct_edges(config: SampleConfig, graph: Graph) -> bool:
    """Tells whether batches say which row each edge has: edges come several times, or in another order than rows.

    Args:
        graph: With the rows of edges that ``config`` asks for (:meth:`outcrop.Graph.with_edge_rows`), and no others.
    """
    return graph.has_edge_rows and (config.replace or config.sampler == "shadow")


def batch_of(
    graph: Graph,
    nodes: Sequence[tuple[np.ndarray, Sequence[int]]],
    edges: Sequence[tuple[np.ndarray, np.ndarray, Sequence[int], np.ndarray | None]],
    labels: np.ndarray,
) -> BatchGraph:
    """Makes a batch of what the sampler gives: ids within their types and new nodes per hop of each node type; rowptr,
    col, edges per hop and positions of each edge type.
    """
    return BatchGraph(
        tuple(Nodes(ids, tuple(per_hop)) for ids, per_hop in nodes),
        tuple(Edges(rowptr, col, tuple(per_hop), positions) for rowptr, col, per_hop, positions in edges),
        labels,
        seed_type=graph.seed_type.number,
    )


def most_reached(
    fanouts: Sequence[Sequence[int]],
    edge_types: Sequence[EdgeType],
    seeds: Mapping[int, int],
    slack: int = 1,
) -> tuple[int, int, int]:
    """Counts the most nodes and edges that a batch can have, and the edges of its last hop among them.

    Args:
        seeds: How many it has, by the number of their node type.
        slack: How many times its fanout a node is counted to have.

    Returns:
        Nodes before the last hop with all edges of it, edges, edges of the last hop.
    """
    sizes = {one.number: one.num_nodes for edges in edge_types for one in (edges.source, edges.target)}
    frontier = dict(seeds)
    reached, total, last, before = dict(frontier), 0, 0, sum(seeds.values())
    for hop in range(len(fanouts[0]) if fanouts else 0):
        before, last, met = sum(reached.values()), 0, dict.fromkeys(sizes, 0)
        for edges, counts in zip(edge_types, fanouts, strict=True):
            of_hop = counts[hop]
            wanted = frontier.get(edges.target.number, 0)
            drawn = edges.num_edges if of_hop == -1 else min(wanted * of_hop * slack, edges.num_edges)
            drawn = drawn if wanted else 0
            last += drawn
            met[edges.source.number] += drawn
        total += last
        frontier = {number: min(count, sizes[number]) for number, count in met.items()}
        for number, count in met.items():
            reached[number] = min(reached.get(number, 0) + count, sizes[number])
    return before + last, total, last
