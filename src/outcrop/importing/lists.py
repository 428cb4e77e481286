"""What building neighbor lists takes, and the files that it leaves."""

from __future__ import annotations

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
    specs = {}
    for name, dtype, rows, file in files:
        width, pages = np.dtype(dtype).itemsize, file.file_bytes // PAGE_BYTES
        specs[name] = ArraySpec(f"{name}.bin", dtype, (rows,), width, file.crc32c, file.file_bytes)
        sums = name + PAGE_SUMS
        table_bytes = -(-4 * pages // PAGE_BYTES) * PAGE_BYTES
        specs[sums] = ArraySpec(f"{sums}.bin", "uint32", (pages,), 4, file.page_crc, table_bytes)
    return specs


def sort_bytes(runtime: Runtime, num_edges: int | None, reverse: bool) -> int:
    """Returns the memory for sorting: what avoids spilling, at most half of what is free.

    Raises:
        BudgetError: Less is free than sorting needs, and what is read meanwhile.
    """
    need = UNLIMITED if num_edges is None else _SMALL_GRAPH_SORT_BYTES + num_edges * (64 if reverse else 32)
    least, reserve = _core.CscBuilder.MIN_MEMORY_BYTES, memory_tables.SORT_RESERVE.least
    with runtime.budget.reserve("sort", reserve + 2 * least):  # refuses where so much is not free
        pass
    return min(need, memory_tables.EDGE_SORT.bytes_of(runtime.budget.free_bytes - reserve, least))
