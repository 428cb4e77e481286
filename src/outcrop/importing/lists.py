"""What building neighbor lists takes, and the files that it leaves."""

from __future__ import annotations

import math

import numpy as np

import outcrop._core as _core
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import UNLIMITED, Runtime
from outcrop.store.manifest import PAGE_SUMS, ArraySpec

_SMALL_GRAPH_SORT_BYTES = 4 << 20


def topology_specs(result: _core.CscResult, weighted: bool = False) -> dict[str, ArraySpec]:
    """Returns specs of the files that a CscBuilder wrote, and of the checksums of their pages."""
    files = [("indptr", "int64", result.num_lists + 1, result.indptr)]
    files += [("indices", "int64" if result.wide else "uint32", result.num_edges, result.indices)]
    if weighted:
        files += [("edge_weight", "float32", result.weights.data_bytes // 4, result.weights)]
    specs: dict[str, ArraySpec] = {}
    for name, dtype, rows, file in files:
        specs |= file_specs(name, dtype, (rows,), file)
    return specs


def file_specs(name: str, dtype: str, shape: tuple[int, ...], file: _core.ArrayFile) -> dict[str, ArraySpec]:
    """Returns the specs of array ``name``, which the core wrote to ``file``, and of the checksums of its pages."""
    width = np.dtype(dtype).itemsize * math.prod(shape[1:])
    sums, pages = name + PAGE_SUMS, file.file_bytes // PAGE_BYTES
    table_bytes = -(-4 * pages // PAGE_BYTES) * PAGE_BYTES
    return {
        name: ArraySpec(f"{name}.bin", dtype, shape, width, file.crc32c, file.file_bytes),
        sums: ArraySpec(f"{sums}.bin", "uint32", (pages,), 4, file.page_crc, table_bytes),
    }


def sort_bytes(runtime: Runtime, num_edges: int | None, *, reverse: bool, numbered: bool) -> int:
    """Returns the memory for sorting: what avoids spilling, at most half of what is free.

    Args:
        num_edges: Edges that are added; None: not known.
        reverse: Whether the reverse of each is sorted, too.
        numbered: Whether each carries its number, because edges have rows.

    Raises:
        BudgetError: Less is free than sorting needs, and what is read meanwhile.
    """
    edge_bytes = (2 if reverse else 1) * (48 if numbered else 32)
    need = UNLIMITED if num_edges is None else _SMALL_GRAPH_SORT_BYTES + num_edges * edge_bytes
    least, reserve = _core.CscBuilder.MIN_MEMORY_BYTES, memory_tables.SORT_RESERVE.least
    with runtime.budget.reserve("sort", reserve + 2 * least):  # refuses where so much is not free
        pass
    return min(need, memory_tables.EDGE_SORT.bytes_of(runtime.budget.free_bytes - reserve, least))
