"""How the budget of a layer is divided: parts of its sources, spans of its targets, rows that are cached."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch

import outcrop._core as _core
from outcrop.config import exact_bytes, least_bytes
from outcrop.errors import BudgetError
from outcrop.inference import layer_sums
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph

UNLIMITED_BYTES = 4 << 30  # what is planned with where there is no budget
_EDGE_BYTES = 56  # of one edge while its part is found and waits
_TARGET_BYTES = 72
_SOURCE_BYTES = 48
MIN_EDGES = 256
_SCALE_ROW_BYTES = 4


@dataclass(frozen=True)
class Division:
    """Says how the budget of one layer is divided.

    Attributes:
        targets, edges: Most of one span.
        rows: Most of one part, and of a buffer.
        span_bytes, part_bytes: What they take while they are worked on, buffers not counted.
        cache_bytes: Left for rows that are wanted often.
        whole: One span holds everything: every row is wanted once, a cache is of no use.
    """

    targets: int
    edges: int
    rows: int
    span_bytes: int
    part_bytes: int
    cache_bytes: int
    whole: bool


def divide(
    graph: Graph, conv: torch.nn.Module, row_bytes: int, widen: bool, num_targets: int, memory: int
) -> Division:
    """Divides ``memory`` bytes: a quarter for parts, half for spans, the rest caches.

    Args:
        row_bytes: Bytes of a row of the input as stored; ``widen``: it is not float32.
        num_targets: Nodes whose output is wanted.

    Raises:
        BudgetError: Not even one target with one source fits; names the smallest budget that does.
    """
    work = layer_sums.cost(conv)
    per_row = work.row + _SOURCE_BYTES + (4 * layer_sums.widths(conv)[0] if widen else 0)
    per_slot_row = memory_tables.BATCH_BUFFERS * row_bytes
    per_target, per_edge = work.target + _TARGET_BYTES, work.edge + _EDGE_BYTES
    smallest_span = per_target + min(MIN_EDGES, max(graph.num_edges, 1)) * per_edge

    def available(total: int) -> int:
        return total - _fixed_bytes(total, row_bytes)

    def enough(total: int) -> bool:
        return available(total) >= 4 * (per_row + per_slot_row) and available(total) >= 2 * smallest_span

    if not enough(memory):
        top = 1 << 20
        while not enough(top):
            top *= 2
        smallest = bisect_left(range(top), True, key=enough)
        raise BudgetError(
            f"a memory budget of {exact_bytes(memory)} cannot hold one part of a layer with rows of "
            f"{exact_bytes(row_bytes)}; the smallest budget that can is {least_bytes(smallest)}"
        )
    total = available(memory)
    most = memory_tables.LAYER_PARTS.bytes_of(total) // (per_row + per_slot_row)
    rows = min(max(most, 1), max(graph.num_nodes, 1))
    half = memory_tables.LAYER_SPANS.bytes_of(total)
    degree = -(-graph.num_edges // max(graph.num_nodes, 1))
    targets = min(max(half // (per_target + degree * per_edge), 1), max(graph.num_nodes, 1))
    edges = min((half - targets * per_target) // per_edge, graph.num_edges)
    edges = max(edges, min(MIN_EDGES, graph.num_edges), 1)
    span_bytes, part_bytes = targets * per_target + edges * per_edge, rows * per_row
    return Division(
        targets,
        edges,
        rows,
        span_bytes,
        part_bytes,
        max(total - span_bytes - part_bytes - rows * per_slot_row, 0),
        num_targets <= targets and graph.num_nodes <= targets and graph.num_edges <= edges,
    )


def _fixed_bytes(total: int, row_bytes: int) -> int:
    scratch = memory_tables.READ_SCRATCH.bytes_of(total, _core.RowReader.min_scratch_bytes(row_bytes))
    scales = memory_tables.SCALE_SCRATCH.bytes_of(total, _core.RowReader.min_scratch_bytes(_SCALE_ROW_BYTES))
    return (
        memory_tables.INFER_IO_BUFFERS.bytes_of(total)
        + scratch
        + scales
        + memory_tables.INFER_WRITE_BUFFER.bytes_of(total)
        + memory_tables.SMALL_TABLES_OF_A_LAYER.least
    )


def default_memory(available_bytes: int) -> int:
    """Returns the budget where none is named: a power of two, so that it seldom differs, up to half of what is
    available.
    """
    return min(1 << max(available_bytes // 2, 1).bit_length() - 1, UNLIMITED_BYTES)


def memory_of(runtime: Runtime) -> int:
    """Returns the budget to plan with."""
    return min(runtime.budget.limit_bytes, UNLIMITED_BYTES)
