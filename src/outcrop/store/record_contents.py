"""What must hold inside a mini-batch record whose checksum is right: a run that was downloaded is an input.

Kernels that aggregate and caches that are looked up take these numbers as addresses, so a lie in them ends the process
(or worse, reads elsewhere). Each check is one pass of a NumPy reduction over an array that was just copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NoReturn

import numpy as np

from outcrop.errors import FormatError
from outcrop.store.address_table import AddressTable
from outcrop.store.batches import BatchGraph, Edges
from outcrop.store.graph_types import RowFile
from outcrop.store.levels import Level


@dataclass(frozen=True)
class Bounds:
    """Says what the numbers of a record must be below, as far as it is known; None = it is not.

    Attributes:
        num_nodes: Nodes of each node type.
        num_edges: Edges of each edge type.
        ends: Numbers of the source type and the target type of each edge type; needed where there are several types.
        num_classes: Classes of the labels.
        row_files: Row files that the address tables are of; needed where there are several.
        cache_rows: Rows of the caches ``host``, ``device`` and ``disk`` of each row file.
        seed_type: Number of the node type of the seeds: it is this one.
    """

    num_nodes: Sequence[int] | None = None
    num_edges: Sequence[int] | None = None
    ends: Sequence[tuple[int, int]] = ((0, 0),)
    num_classes: int | None = None
    row_files: Sequence[RowFile] | None = None
    cache_rows: Sequence[Mapping[Level, int]] | None = None
    seed_type: int | None = None


ANY = Bounds()


def check(graph: BatchGraph, tables: Sequence[AddressTable], where: str, bounds: Bounds = ANY) -> None:
    """Raises FormatError, naming ``where``, unless the arrays of a batch fit each other and the graph."""
    problem = (
        _problem_of_types(graph, tables, bounds)
        or _problem_of_hops(graph, bounds.ends)
        or _problem_of_edges(graph, bounds.ends)
        or _problem_of_values(graph, bounds)
        or _problem_of_tables(graph, tables, bounds)
    )
    if problem:
        refuse(where, problem)


def refuse(where: str, problem: str) -> NoReturn:
    """Raises FormatError: what a record says cannot be."""
    raise FormatError(
        f"{where}: {problem}, though its checksum is right: it was not written by Outcrop; remove its folder "
        "and prepare the run again"
    )


def _problem_of_types(graph: BatchGraph, tables: Sequence[AddressTable], bounds: Bounds) -> str | None:
    types, relations = len(graph.nodes), len(graph.edges)
    if bounds.num_nodes is not None and types != len(bounds.num_nodes):
        return f"it has {types} node types, the graph {len(bounds.num_nodes)}"
    if relations != len(bounds.ends) or max(map(max, bounds.ends)) >= types:
        return f"it has {relations} edge types, the graph {len(bounds.ends)}"
    if bounds.seed_type not in (None, graph.seed_type):
        return f"its seeds are of node type {graph.seed_type}, those of the others of {bounds.seed_type}"
    for rows in bounds.row_files or ():
        edges = graph.edges[rows.owner.number] if rows.kind == "edges" else None
        if edges is not None and edges.positions is None and len(edges.col):
            return f"edges of type {rows.owner.number} have rows, and their positions are not there"
    files = len(tables) if bounds.row_files is None else len(bounds.row_files)
    unpacked = len(tables) == 1 and not tables[0].num_cached  # as the sample stage writes it
    if len(tables) != files and not unpacked:
        return f"it has address tables of {len(tables)} row files, the graph has {files}"
    return None


def _problem_of_hops(graph: BatchGraph, ends: Sequence[tuple[int, int]]) -> str | None:
    for nodes in graph.nodes:
        if min(nodes.per_hop) < 0 or sum(nodes.per_hop) != len(nodes.ids):
            return f"its hops with {nodes.per_hop} nodes are not its {len(nodes.ids)}"
    for edges, (_, target) in zip(graph.edges, ends, strict=True):
        if min(edges.per_hop) < 0 or sum(edges.per_hop) != len(edges.col):
            return f"its hops with {edges.per_hop} edges are not its {len(edges.col)}"
        there = graph.nodes[target]
        if edges.num_rows != (len(there.ids) if graph.untrimmed else len(there.ids) - there.per_hop[-1]):
            return f"it has {edges.num_rows} rows for {there.per_hop} nodes"
    return None


def _problem_of_edges(graph: BatchGraph, ends: Sequence[tuple[int, int]]) -> str | None:
    for edges, (source, target) in zip(graph.edges, ends, strict=True):
        if problem := _problem_of_csr(graph, edges, source, target):
            return problem
    return None


def _problem_of_csr(graph: BatchGraph, edges: Edges, source: int, target: int) -> str | None:
    rowptr, col = edges.rowptr, edges.col
    if rowptr[0] != 0 or rowptr[-1] != len(col) or (rowptr[1:] < rowptr[:-1]).any():
        return f"its row pointers do not rise from 0 to its {len(col)} edges"
    if edges.positions is not None and len(edges.positions) != len(col):
        return f"it has positions of {len(edges.positions)} edges, and {len(col)} edges"
    if graph.untrimmed:
        there = len(graph.nodes[source].ids)
        return None if _below(col, there) else "an edge comes from a node that the mini-batch has not"
    sources, targets = (list(accumulate(graph.nodes[number].per_hop)) for number in (source, target))
    begin = 0
    for hop, stop in enumerate(accumulate(edges.per_hop)):
        if rowptr[targets[hop]] != stop:
            return f"hop {hop} ends with edge {rowptr[targets[hop]]}, not {stop}"
        if not _below(col[begin:stop], sources[hop + 1]):
            return f"an edge of hop {hop} comes from a node that is not met by then"
        begin = stop
    return None


def _problem_of_values(graph: BatchGraph, bounds: Bounds) -> str | None:
    labels, index, classes = graph.labels, graph.edge_label_index, bounds.num_classes
    for number, nodes in enumerate(graph.nodes):
        limit = 1 << 63 if bounds.num_nodes is None else bounds.num_nodes[number]
        if not _below(nodes.ids, limit):
            return f"a node id is not below {limit}"
    for number, edges in enumerate(graph.edges):
        limit = 1 << 63 if bounds.num_edges is None else bounds.num_edges[number]
        if edges.positions is not None and not _below(edges.positions, limit):
            return f"the position of an edge is not below {limit}"
    if len(labels) and (labels.min() < -1 or (classes and labels.max() >= classes)):
        return f"it has labels from {labels.min()} to {labels.max()}, there are {classes} classes"
    if graph.degree is not None and not _below(graph.degree, 1 << 31):
        return "a node has a negative degree"
    for values in (graph.weight_sums, *(edges.weight for edges in graph.edges)):
        # In one pass each: what is not a number is not at least 0 either.
        if values is not None and len(values) and not (values.min() >= 0 and values.max() < np.inf):
            return "a weight of an edge, or a sum of weights, is negative, infinite or not a number"
    if index is not None and not _below(index, graph.num_seeds):
        return "an edge to be predicted ends in a node that is no seed"
    return None


def _problem_of_tables(graph: BatchGraph, tables: Sequence[AddressTable], bounds: Bounds) -> str | None:
    for number, table in enumerate(tables):
        rows = len(graph.nodes[0].ids) if len(graph.nodes) == len(tables) == 1 else 1 << 31
        if bounds.row_files is not None:
            rows = len(graph.section(bounds.row_files[number]).ids)
        cache_rows = bounds.cache_rows[number] if bounds.cache_rows else {}
        if problem := _problem_of_table(table, rows, cache_rows):
            return problem
    return None


def _problem_of_table(table: AddressTable, rows: int, cache_rows: Mapping[Level, int]) -> str | None:
    for level, positions, cached in (
        (Level.HOST, table.host_positions, table.host_rows),
        (Level.DEVICE, table.device_positions, table.device_rows),
        (Level.DISK, table.disk_positions, table.disk_rows),
    ):
        limit = cache_rows.get(level, 1 << 31)
        if not (_below(positions, rows) and _below(cached, limit)):
            return f"it wants a row of the {level} cache that is not one of the {limit}, or for no row of its own"
    return None


def _below(values: np.ndarray, limit: int) -> bool:
    """Equals ``bool(((values >= 0) & (values < limit)).all())``, in one pass and without a temporary array."""
    if not values.size:
        return True
    return int(values.view(f"u{values.itemsize}").max()) < limit
