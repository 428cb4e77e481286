"""What inference layer by layer will move, counted before it begins: ``outcrop infer --dry-run`` tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outcrop.inference import division, edge_counts
from outcrop.inference import export as exporting
from outcrop.inference.task import InferTask
from outcrop.inference.ways import Ways, ways_of
from outcrop.runtime.runtime import Runtime


@dataclass(frozen=True)
class PredictedBytes:
    """Counts bytes of all layers.

    Attributes:
        read: Bytes that are read, exactly; None where that depends on which sources a span wants.
        written: Bytes that are written, exactly, but for the file of predictions.
        on_disk: Bytes of files that are there at a time at the most, the file of predictions with them.
    """

    read: int | None
    written: int
    on_disk: int


def predicted_bytes(task: InferTask, ways: Ways) -> PredictedBytes:
    """Counts what ``ways`` of the steps of ``task`` read, write, and keep until later layers have read it."""
    steps = task.steps
    sizes = [sum(map(ways.output_bytes, layer)) for layer in steps]
    scratch = [max((ways.disk_bytes(step) for step in layer), default=0) for layer in steps]
    counts = 0 if ways.counts is None else edge_counts.written_bytes(task.graph, ways.counts)
    output = exporting.output_bytes(task.num_rows, task.out_dim, task.output, task.name_bytes)
    most = max(map(sum, zip([0, *sizes[:-1]], sizes, scratch, strict=True)))
    written = sum(sizes) + counts + sum(map(ways.disk_bytes, ways.steps))
    return PredictedBytes(ways.bytes_read(task.graph), written, most + counts + output)


def facts(task: InferTask, batch_size: int | None, limit: int) -> dict[str, Any]:
    """Lists what is known of an inference before anything is computed, in plain values.

    Args:
        batch_size: Nodes of a batch where nodes are scored in sampled batches; None: layer by layer.

    Returns:
        - ``graph``, ``nodes``, ``edges``; ``rows``, ``columns`` and ``output``: what is written to ``out``;
        - ``method``; ``memory``: the budget in bytes;
        - ``layers``: of each step ``layer``, ``node_type`` where there are types, ``by`` (``columns`` or ``spans``),
          ``passes`` over the lists and ``bytes_read`` (None by spans), ``bytes_written``; none of sampled batches;
        - ``bytes_read``, ``bytes_written``, ``disk_bytes``: those of :class:`PredictedBytes`; None of sampled batches;
        - ``batches``: how many sampled batches there are, or None.

    Raises:
        BudgetError: The budget cannot hold one part of a layer; names the smallest that can.
    """
    graph = task.graph
    found: dict[str, Any] = {
        "graph": str(graph.path),
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "out": str(task.out),
        "rows": task.num_rows,
        "columns": task.out_dim,
        "output": task.output,
        "method": task.scored.method,
        "memory": limit,
        "layers": [],
        "bytes_read": None,
        "bytes_written": None,
        "disk_bytes": None,
        "batches": None if batch_size is None else -(-task.num_rows // batch_size),
    }
    if batch_size is not None:
        return found
    with Runtime(limit) as runtime, runtime.budget.reserve("infer-ids", task.id_bytes):
        memory = division.memory_of(runtime)
        ways = ways_of(task, memory)
    for step in ways.steps:
        plan = ways.plan_of(step)
        one: dict[str, Any] = {"layer": step.index}
        if graph.is_typed:
            one["node_type"] = step.to.target.name
        if plan is None:
            passes, read, written = None, None, step.output_bytes
        else:
            passes, read, written = plan.passes, plan.bytes_read, plan.bytes_written
        by = "spans" if plan is None else "columns"
        found["layers"].append(
            {**one, "by": by, "passes": passes, "bytes_read": read, "bytes_written": written}
        )
    every = predicted_bytes(task, ways)
    return found | {"bytes_read": every.read, "bytes_written": every.written, "disk_bytes": every.on_disk}
