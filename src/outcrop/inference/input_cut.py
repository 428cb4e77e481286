"""Input rows of a layer cut into columns, as ``columns.bin`` has them: blocks of nodes one after the other, in each the
cuts of what sources give, each with the scores of its heads behind its columns, then scores as targets, head by head,
then own rows where they are kept there.

A layer that is computed in several passes over the lists cuts its input itself, or the layer before cuts each block of
its output as soon as that is made: rows are then neither written nor read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from outcrop.inference.columns import ColumnPlan, OwnRows, padded
from outcrop.inference.edge_counts import Counts
from outcrop.inference.steps import Step
from outcrop.nn.sparse import as_input
from outcrop.runtime.runtime import Runtime
from outcrop.store.record import align_page

TAG = "infer-columns"


def scale_of(step: Step, counts: Counts | None, runtime: Runtime) -> Tensor | None:
    """Reads what rows are scaled by, of all nodes, padded with zeros; None where the layer does not scale."""
    if not step.layer.uses_degrees:
        return None
    assert counts is not None
    nodes, array = step.to.target.num_nodes, counts.array(runtime, "degree")
    try:
        held = runtime.budget.empty(TAG, 4 * padded(nodes))
        array.read_bytes(0, held[: align_page(4 * nodes)])
    finally:
        array.close()
    degree, scale = held.view(np.int32)[:nodes], held.view(np.float32)[:nodes]
    block = 1 << 16
    for start in range(0, nodes, block):
        own = slice(start, start + block)
        scale[own] = 1 / np.sqrt(degree[own].astype(np.float32) + 1)
    held.view(np.float32)[nodes:] = 0
    return torch.from_numpy(held.view(np.float32))


def cut_rows(step: Step, plan: ColumnPlan, x: Tensor, scale: Tensor | None) -> list[Tensor]:
    """Returns what ``columns.bin`` has of a block, one part after the other.

    Args:
        x: float32 [n, in_dim], input rows, padded.
        scale: float32 [n], theirs.
    """
    sums = step.layer.columns
    assert sums is not None
    found: list[Tensor] = []
    if plan.passes > 1 or plan.cut is not None:
        found += [*sums.given(x, scale, plan.cuts), *sums.target_scores(x)]
    return found + ([sums.own(x)] if plan.own is OwnRows.STORED else [])


@torch.no_grad()
def cut_blocks(
    step: Step, plan: ColumnPlan, rows: Iterable[np.ndarray], counts: Counts | None, runtime: Runtime
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Cuts ``rows``, all input rows of ``step`` in order, float32 [n, in_dim] each with any n.

    Yields:
        Of each block how many nodes it has, and what ``columns.bin`` has of it.
    """
    assert plan.cut is not None
    (shape,) = step.inputs.values()
    rows = iter(rows)
    coming = next(rows, None)  # the memory of who makes them is free only then
    nodes, scale = step.to.target.num_nodes, scale_of(step, counts, runtime)
    held = runtime.budget.empty(TAG, plan.rows * shape.row_bytes).view(np.float32).reshape(plan.rows, -1)
    first = filled = 0
    with runtime.budget.reserve("infer-part", plan.fill_bytes):
        while (some := coming) is not None:
            at = 0
            while at < len(some):
                taken = min(len(some) - at, min(plan.rows, nodes - first) - filled)
                held[filled : filled + taken] = some[at : at + taken]
                at, filled = at + taken, filled + taken
                if filled < min(plan.rows, nodes - first):
                    continue
                held[filled : padded(filled)] = 0
                here = slice(first, first + padded(filled))
                x = as_input(torch.from_numpy(held[: padded(filled)]))
                parts = cut_rows(step, plan, x, None if scale is None else scale[here])
                yield filled, [part.contiguous().numpy() for part in parts]
                first, filled = first + filled, 0
            coming = next(rows, None)
