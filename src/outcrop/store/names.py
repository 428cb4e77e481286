"""Node names of a graph: ``names`` uint8, the UTF-8 text of all names, and ``name_offsets`` int64 [N + 1]."""

from __future__ import annotations

from outcrop.runtime import Runtime
from outcrop.store.graph import Graph


def read_names(graph: Graph, runtime: Runtime, start: int = 0, stop: int | None = None) -> list[str]:
    """Names of nodes ``start:stop``. Raises FormatError where the graph has none."""
    offsets, text = graph.array(runtime, "name_offsets"), graph.array(runtime, "names")
    stop = graph.num_nodes if stop is None else stop
    ends = offsets.read("node-names", start, stop + 1)
    raw = text.read("node-names", int(ends[0]), int(ends[-1])).tobytes()
    first = int(ends[0])
    return [
        raw[a - first : b - first].decode()
        for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    ]
