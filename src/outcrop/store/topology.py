"""The CSC topology of a graph, in memory where the budget allows it, else as a map through the page cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from outcrop.runtime import Runtime
from outcrop.store.graph import Graph


@dataclass(frozen=True)
class Topology:
    """``indptr`` int64 [N + 1], ``indices`` uint32 or int64 [E]."""

    indptr: np.ndarray
    indices: np.ndarray
    placement: Literal["memory", "map"]


def load_topology(graph: Graph, runtime: Runtime, *, share: float = 0.5) -> Topology:
    """Loads the topology whole if it takes at most ``share`` of the free budget, else maps it."""
    arrays = [graph.array(runtime, name) for name in ("indptr", "indices")]
    needed = sum(a.spec.data_bytes for a in arrays)
    try:
        if needed <= share * runtime.budget.free_bytes:
            return Topology(arrays[0].read("topology"), arrays[1].read("topology"), "memory")
        return Topology(arrays[0].memmap(), arrays[1].memmap(), "map")
    finally:
        for array in arrays:
            array.close()
