"""What must hold inside a mini-batch record whose checksum is right: a run that was downloaded is an input.

Kernels that aggregate and caches that are looked up take these numbers as addresses, so a lie in them ends the process
(or worse, reads elsewhere). Each check is one pass of a NumPy reduction over an array that was just copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from outcrop.errors import FormatError
from outcrop.store.address_table import AddressTable
from outcrop.store.batches import BatchGraph
from outcrop.store.levels import Level


def check(
    graph: BatchGraph,
    table: AddressTable,
    where: str,
    num_nodes: int | None = None,
    num_classes: int | None = None,
    cache_rows: Mapping[Level, int] | None = None,
) -> None:
    """Raises FormatError, naming ``where``, unless the arrays of a batch fit each other and the graph.

    Args:
        num_nodes, num_classes: Numbers of the graph; None = not known, so ids and labels may be any that are not
            negative (labels: -1 too).
        cache_rows: Rows of the caches ``host``, ``device`` and ``disk``; None = not known.
    """
    problem = (
        _problem_of_hops(graph)
        or _problem_of_edges(graph)
        or _problem_of_values(graph, num_nodes, num_classes)
        or _problem_of_table(table, graph.num_nodes, cache_rows or {})
    )
    if problem:
        raise FormatError(
            f"{where}: {problem}, though its checksum is right: it was not written by Outcrop; remove its folder "
            "and prepare the run again"
        )


def _problem_of_hops(graph: BatchGraph) -> str | None:
    nodes, edges, rows = graph.nodes_per_hop, graph.edges_per_hop, len(graph.rowptr) - 1
    if min(*nodes, *edges) < 0 or sum(nodes) != graph.num_nodes or sum(edges) != graph.num_edges:
        return f"its hops with {nodes} nodes and {edges} edges are not its {graph.num_nodes} and {graph.num_edges}"
    if rows != (graph.num_nodes if graph.untrimmed else graph.num_nodes - nodes[-1]):
        return f"it has {rows} rows for {nodes} nodes"
    return None


def _problem_of_edges(graph: BatchGraph) -> str | None:
    rowptr, col = graph.rowptr, graph.col
    if rowptr[0] != 0 or rowptr[-1] != len(col) or (rowptr[1:] < rowptr[:-1]).any():
        return f"its row pointers do not rise from 0 to its {len(col)} edges"
    if graph.untrimmed:
        return (
            None if _below(col, graph.num_nodes) else "an edge comes from a node that the mini-batch has not"
        )
    ends, begin = list(accumulate(graph.nodes_per_hop)), 0
    for hop, stop in enumerate(accumulate(graph.edges_per_hop)):
        if rowptr[ends[hop]] != stop:
            return f"hop {hop} ends with edge {rowptr[ends[hop]]}, not {stop}"
        if not _below(col[begin:stop], ends[hop + 1]):
            return f"an edge of hop {hop} comes from a node that is not met by then"
        begin = stop
    return None


def _problem_of_values(graph: BatchGraph, num_nodes: int | None, num_classes: int | None) -> str | None:
    labels, index = graph.labels, graph.edge_label_index
    if not _below(graph.n_id, num_nodes or 1 << 63):
        return f"a node id is not below {num_nodes or 1 << 63}"
    if len(labels) and (labels.min() < -1 or (num_classes and labels.max() >= num_classes)):
        return f"it has labels from {labels.min()} to {labels.max()}, there are {num_classes} classes"
    if graph.degree is not None and not _below(graph.degree, 1 << 31):
        return "a node has a negative degree"
    if index is not None and not _below(index, graph.num_seeds):
        return "an edge to be predicted ends in a node that is no seed"
    return None


def _problem_of_table(table: AddressTable, nodes: int, cache_rows: Mapping[Level, int]) -> str | None:
    for level, positions, rows in (
        (Level.HOST, table.host_positions, table.host_rows),
        (Level.DEVICE, table.device_positions, table.device_rows),
        (Level.DISK, table.disk_positions, table.disk_rows),
    ):
        limit = cache_rows.get(level, 1 << 31)
        if not (_below(positions, nodes) and _below(rows, limit)):
            return f"it wants a row of the {level} cache that is not one of the {limit}, or for no node of its own"
    return None


def _below(values: np.ndarray, limit: int) -> bool:
    """Equals ``bool(((values >= 0) & (values < limit)).all())``, in one pass and without a temporary array."""
    if not values.size:
        return True
    return int(values.view(f"u{values.itemsize}").max()) < limit
