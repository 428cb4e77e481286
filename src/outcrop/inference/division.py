"""How the budget of a layer is divided: parts of its sources, spans of its targets, rows that are cached."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import outcrop._core as _core
from outcrop.config import exact_bytes, least_bytes
from outcrop.errors import BudgetError
from outcrop.inference.steps import Step
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import UNLIMITED, Runtime

UNLIMITED_BYTES = 4 << 30  # what is planned with where there is no budget
_EDGE_BYTES = 56  # of one edge while its part is found and waits
_TARGET_BYTES = 72
_LIST_BYTES = (
    16  # of a target for each edge type beyond the first: where its lists begin, and how long they are
)
_SOURCE_BYTES = 48
MIN_EDGES = 256
_SCALE_ROW_BYTES = 4


@dataclass(frozen=True)
class Division:
    """Says how the budget of one layer is divided.

    Attributes:
        targets, edges: Most of one span; edges of each edge type.
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


def divide(step: Step, memory: int, held_bytes: int = 0) -> Division:
    """Divides ``memory`` bytes, but for ``held_bytes`` of them: a quarter for parts, half for spans, the rest caches.

    Raises:
        BudgetError: Not even one target with one source fits; names the smallest budget that does.
    """
    work, shapes = step.layer.cost, step.inputs.values()
    num_targets, most_edges = step.to.target.num_nodes, max(step.num_edges, default=0)
    num_sources = max(shape.num_rows for shape in shapes)
    row_bytes = max(shape.row_bytes for shape in shapes)
    computed = max(shape.widened_bytes for shape in shapes) + 4 * step.layer.entered_dim
    per_row = work.row + _SOURCE_BYTES + computed
    per_slot_row = memory_tables.BATCH_BUFFERS * row_bytes
    lists = max(len(step.num_edges) - 1, 0) * _LIST_BYTES
    per_target, per_edge = work.target + _TARGET_BYTES + lists, work.edge + _EDGE_BYTES
    smallest_span = per_target + min(MIN_EDGES, max(most_edges, 1)) * per_edge

    def available(total: int) -> int:
        return total - held_bytes - _fixed_bytes(total, step)

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
    rows = min(max(most, 1), max(num_sources, 1))
    half = memory_tables.LAYER_SPANS.bytes_of(total)
    degree = -(-most_edges // max(num_targets, 1))
    targets = min(max(half // (per_target + degree * per_edge), 1), max(num_targets, 1))
    edges = min((half - targets * per_target) // per_edge, most_edges)
    edges = max(edges, min(MIN_EDGES, most_edges), 1)
    span_bytes, part_bytes = targets * per_target + edges * per_edge, rows * per_row
    return Division(
        targets,
        edges,
        rows,
        span_bytes,
        part_bytes,
        max(total - span_bytes - part_bytes - rows * per_slot_row, 0),
        step.num_rows <= targets and num_targets <= targets and most_edges <= edges,
    )


def transferred_bytes(step: Step, division: Division) -> int:
    """Counts about how many bytes a step without types reads and writes by spans: each span is taken to want sources at
    random, and no row to be cached.
    """
    (shape,) = step.inputs.values()
    page_rows = max(PAGE_BYTES // max(shape.row_bytes, 1), 1)
    edges = sum(step.num_edges) * step.num_rows // max(step.to.target.num_nodes, 1)
    count = max(-(-step.num_rows // division.targets), -(-edges // division.edges), 1)
    pages = -(-shape.num_rows // page_rows)
    wanted = count * min(-(-edges // count), pages) + min(step.num_rows, pages)
    of_page = max(PAGE_BYTES, shape.row_bytes)
    return wanted * of_page + 4 * edges + step.num_rows * step.output.row_bytes


def scratch_bytes(total: int, step: Step) -> int:
    """Returns what each reader of rows of ``step`` has for pages in flight, where a row does not need more."""
    readers = sum(shape.stored for shape in step.inputs.values())
    return memory_tables.READ_SCRATCH.bytes_of(total) // max(readers, 1)


def _fixed_bytes(total: int, step: Step) -> int:
    each = scratch_bytes(total, step)
    stored = [shape.row_bytes for shape in step.inputs.values() if shape.stored]
    scratch = sum(max(each, _core.RowReader.min_scratch_bytes(row_bytes)) for row_bytes in stored)
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
    limit = runtime.budget.limit_bytes
    return UNLIMITED_BYTES if limit == UNLIMITED else limit
