"""Scores, loss and gradients of a batch of embeddings, fused and by torch. Legend, Table 10."""

from __future__ import annotations

from functools import partial

import torch

from outcrop.bench.gpu_figures.measure import Case, Setup, Ways, in_turns
from outcrop.bench.gpu_figures.result import Bar, Benchmark, Cases
from outcrop.embed import fused
from outcrop.errors import DeviceError

_CHUNK = 2000  # queries that share negatives in training: 1000 edges, both ends
_WRONG = {
    "high": 0.02,
    "highest": 1e-3,
}  # of the largest, by torch's precision of float32: TF32, or as exact as that
Tensors = tuple[torch.Tensor, ...]


def inputs(setup: Setup, queries: int) -> Tensors:
    """Returns queries, scores of their positives, candidates, ids wanted, ids of candidates."""
    k, dim, device = setup.sizes.negatives, setup.sizes.dim, setup.device
    rows = torch.randn(queries, dim, device=device) / dim, torch.randn(k, dim, device=device) / dim
    positive, ids = torch.randn(queries, device=device), torch.arange(k, device=device)
    wanted = torch.randint(0, 10 * k, (queries,), device=device)
    return rows[0], positive, rows[1], wanted, ids


def plain(queries: torch.Tensor, positive: torch.Tensor, candidates: torch.Tensor, wanted: torch.Tensor,
          ids: torch.Tensor) -> Tensors:  # fmt: skip
    """Gives loss and gradients by queries, positive and candidates: what :func:`outcrop.embed.fused.softmax` equals."""
    leaves = [x.detach().requires_grad_() for x in (queries, positive, candidates)]
    scores = (leaves[0] @ leaves[2].T).masked_fill(wanted[:, None] == ids, -torch.inf)
    loss = torch.cat([leaves[1][:, None], scores], 1).logsumexp(1).sum() - leaves[1].sum()
    return loss.detach(), *torch.autograd.grad(loss, leaves)


def _gradients(setup: Setup, queries: int, precision: str) -> Case:
    given = inputs(setup, queries)
    ways: Ways = {"plain": partial(plain, *given)}
    figures: dict[str, float | None] = {"speed_up": None}
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        if fused.usable(setup.device):
            ways["fused"] = partial(fused.softmax, *given)
            figures |= _differences(ways["fused"](), ways["plain"](), _WRONG[precision])
        timed = in_turns(setup, ways)
    finally:
        torch.set_float32_matmul_precision(before)
    products = 2 * queries * setup.sizes.negatives * setup.sizes.dim * 3
    figures |= {f"{way}_teraflops": products / s / 1e12 for way, s in timed.seconds.items()}
    if "fused" in ways:
        figures["speed_up"] = timed.seconds["plain"] / timed.seconds["fused"]
    shape = {"queries": queries, "negatives": setup.sizes.negatives, "dim": setup.sizes.dim}
    return Case(shape | {"precision": precision}, timed.seconds, timed.samples, figures)


def _differences(found: Tensors, expected: Tensors, most: float) -> dict[str, float | None]:
    names = ("loss", "queries", "positive", "candidates")
    apart = {
        f"difference_{name}": float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
        for name, a, b in zip(names, found, expected, strict=True)
    }
    wrong = [name for name, difference in apart.items() if not difference <= most]
    if wrong:
        raise DeviceError(f"the fused kernels gave other gradients than torch: {', '.join(wrong)}")
    return dict(apart)


def _cases(setup: Setup) -> Cases:
    for queries in dict.fromkeys((setup.sizes.queries, min(_CHUNK, setup.sizes.queries))):
        for precision in _WRONG:
            name = f"{queries} x {setup.sizes.negatives} x {setup.sizes.dim}, {precision}"
            yield name, partial(_gradients, setup, queries, precision)


def _bars(cases: dict[str, Case]) -> list[Bar]:
    most = max(case.parameters["queries"] for case in cases.values())
    (case,) = (
        c for c in cases.values() if (c.parameters["queries"], c.parameters["precision"]) == (most, "high")
    )
    return [Bar("fused gradients against plain torch, both in TF32", case.figures["speed_up"], least=3)]


BENCHMARKS = {"legend-table-10": Benchmark("Legend, Table 10", _cases, _bars)}
