"""The compute side of a training step against the least it could be: the bare dense and sparse products."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch

from outcrop.nn.models import warm_allocator
from outcrop.nn.sparse import Block, as_input, blocks_of, spmm, spmm_transposed
from outcrop.nn.typed_layers import Mean
from outcrop.nn.typed_models import MeanModel
from outcrop.store.minibatch import MiniBatch


def bare_products(batch: MiniBatch, hidden: int = 256, num_classes: int = 47) -> Callable[[], None]:
    """One call does the products that a training step of ``sage`` cannot do without, and nothing else.

    Per layer one sparse product and two dense ones forward, two dense ones for the weights' gradients, and for all
    layers but the first two dense and one sparse for the gradient of the input. No activation, bias, loss or
    optimiser; the same kernels and the same order of sparse and dense (aggregate first) as the model's.
    """
    x, blocks = as_input(batch.x), blocks_of(batch)
    widths = [x.shape[1]] + [hidden] * (len(blocks) - 1) + [num_classes]
    generator = torch.Generator().manual_seed(0)
    weights = [
        [torch.randn(out, width, generator=generator) for _ in range(2)] for width, out in pairwise(widths)
    ]
    for block in blocks[1:]:
        _ = block.transposed
    gradient = torch.randn(blocks[-1].num_targets, num_classes, generator=generator)

    def run() -> None:
        inputs, sums = [x], []
        for block, (left, right) in zip(blocks, weights, strict=True):
            sums.append(spmm(block, inputs[-1]))
            inputs.append((sums[-1] @ left.t()).addmm_(inputs[-1][: block.num_targets], right.t()))
        grad = gradient
        for index in reversed(range(len(blocks))):
            grad = _bare_backward(blocks[index], inputs[index], sums[index], weights[index], grad, index > 0)

    return run


def _bare_backward(
    block: Block,
    x: torch.Tensor,
    total: torch.Tensor,
    weights: list[torch.Tensor],
    grad: torch.Tensor,
    wants_input: bool,
) -> torch.Tensor:
    left, right = weights
    grad.t().mm(total)
    grad.t().mm(x[: block.num_targets])
    if not wants_input:
        return grad
    below = spmm_transposed(block, grad @ left)
    below[: block.num_targets].addmm_(grad, right)
    return below


def bare_typed_products(batch: MiniBatch, model: MeanModel) -> Callable[[], None]:
    """Does for ``rgcn`` and ``rsage`` what :func:`bare_products` does for ``sage``.

    Per layer and edge type one sparse and one dense product forward, per node type one dense; backward those of the
    weights, and for all layers but the first those of the input. Each product of an edge type is mapped first or
    aggregated first as the model has it.
    """
    layers, rows = model._layers_of(batch), [as_input(found) for found in model._rows_of(batch)]
    steps = []
    for index, layer in enumerate(layers):
        targets = model.targets(index)
        parts = [
            (source, target, layer.blocks[number], model.edge_weight(index, key).detach())
            for number, key, source, target in model.edges_to(targets)
        ]
        roots = {
            target: (layer.num_targets[target], model.root(index, target)[0].detach()) for target in targets
        }
        steps.append((parts, roots))
    for parts, _ in steps:
        for _, _, block, _ in parts:
            _ = block.transposed

    def run() -> None:
        inputs: list[dict[int, torch.Tensor]] = [dict(enumerate(rows))]
        sums = []
        for parts, roots in steps:
            x, kept = inputs[-1], []
            found: dict[int, torch.Tensor] = {}
            for source, target, block, weight in parts:
                if Mean(source, target, block, weight).aggregates_first:
                    kept.append(spmm(block, x[source]))
                    _add_product(found, target, kept[-1], weight)
                else:
                    kept.append(None)
                    mapped = spmm(block, x[source].mm(weight.t()))
                    found[target] = mapped if target not in found else found[target].add_(mapped)
            for target, (count, root) in roots.items():
                _add_product(found, target, x[target][:count], root)
            inputs.append(found)
            sums.append(kept)
        grads = inputs[-1]
        for index in reversed(range(len(steps))):
            grads = _bare_typed_backward(steps[index], inputs[index], sums[index], grads, index > 0)

    return run


def _add_product(
    found: dict[int, torch.Tensor], target: int, rows: torch.Tensor, weight: torch.Tensor
) -> None:
    """Adds ``rows @ weight.T`` to what a node type has, in place where it has something."""
    found[target] = found[target].addmm_(rows, weight.t()) if target in found else rows.mm(weight.t())


def _bare_typed_backward(
    step: tuple[list[tuple[int, int, Block, torch.Tensor]], dict[int, tuple[int, torch.Tensor]]],
    x: dict[int, torch.Tensor],
    sums: list[torch.Tensor | None],
    grads: dict[int, torch.Tensor],
    wants_input: bool,
) -> dict[int, torch.Tensor]:
    parts, roots = step
    below: dict[int, torch.Tensor] = {}
    for (source, target, block, weight), total in zip(parts, sums, strict=True):
        grad, found = grads[target], None
        if total is not None:
            grad.t().mm(total)
            found = spmm_transposed(block, grad.mm(weight)) if wants_input else None
        else:
            inner = spmm_transposed(block, grad)
            inner.t().mm(x[source])
            found = inner.mm(weight) if wants_input else None
        if found is not None:
            below[source] = found if source not in below else below[source].add_(found)
    for target, (count, root) in roots.items():
        grads[target].t().mm(x[target][:count])
        if wants_input:
            if target not in below:
                below[target] = torch.zeros_like(x[target])
            below[target][:count].addmm_(grads[target], root)
    return below


def compare(first: Callable[[], None], second: Callable[[], None], rounds: int = 15) -> dict[str, float]:
    """Times both in turns. Returns medians in seconds, and ``ratio`` = the median of first / second per round."""
    warm_allocator()
    times: list[tuple[float, float]] = []
    for turn in range(rounds + 3):
        pair = []
        for call in (first, second):
            start = time.perf_counter()
            call()
            pair.append(time.perf_counter() - start)
        if turn >= 3:
            times.append((pair[0], pair[1]))
    return {
        "first_seconds": median(a for a, _ in times),
        "second_seconds": median(b for _, b in times),
        "ratio": median(a / b for a, b in times),
    }
