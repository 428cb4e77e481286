"""Rows of edges: streamed in the order in which their source lists the edges, stored in that of the neighbor lists; and
which edge of the source each edge is.

The sort of the edges tells for each edge that is kept which one of the source it is; the core puts the rows in order by
that, out of core (core/graph/permute.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.errors import ArgumentError
from outcrop.importing.lists import file_specs
from outcrop.importing.nodes import check_finite, convert, stored_dtype
from outcrop.importing.sources.base import FeatureSource, block_bytes
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import ArrayWriter, as_bytes
from outcrop.store.manifest import ArraySpec

NUMBERS_FILE = "numbers.bin"  # is gone when the rows are written


@dataclass(frozen=True)
class EdgeNumbers:
    """Says which edge of the source each stored edge is.

    Attributes:
        path: File of int64, in the order of the stored edges, of all edge types that have rows or keep origins.
        first: Where those of this edge type begin in it.
        count: How many edges of this type are stored.
        listed: How many edges the source lists.
        slots: How often an edge of the source may be stored: twice, where its reverse is of the same type.
    """

    path: Path
    first: int
    count: int
    listed: int
    slots: int = 1


def check_rows(rows: FeatureSource, listed: int | None, edges: str) -> None:
    """Raises ArgumentError where there is not a row for each of ``listed`` edges; None: their number is not known yet.

    Args:
        edges: What messages call the source of the edges.
    """
    if listed is not None and rows.num_rows != listed:
        raise ArgumentError(
            f"{rows.name} has {rows.num_rows} rows of features, {edges} lists {listed} edges: each edge needs one, in "
            "the order of the edges"
        )


def write_edge_rows(
    rows: FeatureSource, numbers: EdgeNumbers, runtime: Runtime, work: Path, name: str, nonfinite: bool
) -> dict[str, ArraySpec]:
    """Writes the array ``name`` into ``work``: equals ``concatenate(list(rows.blocks(n)))[numbers]``.

    Every row is read from the source once. Where the rows of the edge type exceed what the budget has for them, each is
    also written to a scratch file and read back, in large pieces.

    Args:
        nonfinite: Whether rows may have NaN and infinity.

    Returns:
        What was written, and the checksums of its pages; nothing where ``runtime`` measures.

    Raises:
        ArgumentError: There is not a row for each edge.
        FormatError: A value is not finite; says where.
        BudgetError: The budget has too little room.
    """
    dtype = stored_dtype(rows)
    if not rows.num_rows:
        specs: dict[str, ArraySpec] = {}
        ArrayWriter(runtime, work, name, dtype, (rows.dim,), page_sums=True).finish_into(specs)
        return specs
    row_bytes, memory = rows.dim * rows.dtype.itemsize, _memory(rows, numbers.slots, runtime)
    if runtime.measures:
        with runtime.budget.reserve("edge-rows", memory):
            _stream(rows, runtime, dtype, nonfinite, None)
        return {}
    permuter = _core.RowPermuter(
        runtime.io,
        runtime.budget,
        runtime.workers,
        scratch_folder=str(work),
        numbers_path=str(numbers.path),
        first=numbers.first,
        count=numbers.count,
        num_rows=numbers.listed,
        row_bytes=row_bytes,
        slots=numbers.slots,
        memory_bytes=memory,
    )
    _stream(rows, runtime, dtype, nonfinite, permuter)
    file = permuter.finish(str(work / f"{name}.bin"))
    return file_specs(name, dtype, (numbers.count, rows.dim), file)


def write_origins(numbers: EdgeNumbers, runtime: Runtime, work: Path, name: str) -> dict[str, ArraySpec]:
    """Writes ``numbers`` themselves as the array ``name`` into ``work``, int64 [count].

    Returns:
        What was written, and the checksums of its pages; nothing where ``runtime`` measures.
    """
    specs: dict[str, ArraySpec] = {}
    writer = ArrayWriter(runtime, work, name, "int64", page_sums=True)
    at_once = block_bytes(runtime) // 8
    with runtime.budget.reserve("import", 8 * at_once):
        if runtime.measures:
            return specs
        for done in range(0, numbers.count, at_once):
            count = min(at_once, numbers.count - done)
            writer.append(np.fromfile(numbers.path, np.int64, count, offset=8 * (numbers.first + done)))
    writer.finish_into(specs)
    return specs


def _memory(rows: FeatureSource, slots: int, runtime: Runtime) -> int:
    """Returns the bytes for putting rows in order: a share of what is free, as far as so much is of use."""
    most, row_bytes = rows.num_rows * slots, rows.dim * rows.dtype.itemsize
    share = memory_tables.EDGE_ROWS.bytes_of(runtime.budget.free_bytes)
    least = _core.RowPermuter.least_memory(most, row_bytes)
    return max(least, min(share, _core.RowPermuter.most_memory(most, row_bytes)))


def _stream(
    rows: FeatureSource, runtime: Runtime, dtype: str, nonfinite: bool, into: _core.RowPermuter | None
) -> None:
    """Hands the rows on; to measure, just the first block is read."""
    row_bytes, row = rows.dim * rows.dtype.itemsize, 0
    at_once = min(max(1, block_bytes(runtime) // row_bytes), rows.num_rows)
    with (
        runtime.task("edge rows", rows.num_rows, "rows"),
        runtime.budget.reserve("import", 2 * at_once * row_bytes),
    ):
        for block in rows.blocks(at_once):
            if into is None:
                return
            if row + len(block) > rows.num_rows:
                break
            converted = convert(block, dtype)
            if not nonfinite:
                check_finite(rows, converted, dtype, row)
            into.add(as_bytes(converted), len(converted))
            row += len(block)
            runtime.progress.advance("edge rows", len(block))
    if into is not None and row != rows.num_rows:
        raise ArgumentError(f"{rows.name} has other than {rows.num_rows} rows, one for each edge: it changed")
