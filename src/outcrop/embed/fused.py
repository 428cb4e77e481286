"""The softmax loss over shared negatives, its gradients with it, without ever storing a score: kernels in Triton.

For score functions that are products of a query and a candidate: dot, DistMult, ComplEx.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch

Tensor = torch.Tensor
ROWS, COLUMNS, MOST_STEP = 64, 64, 128
_LEAST_STEP = 16  # of a product on tensor cores
_PROGRAMS = 1024  # as many as keep a GPU busy


def usable(device: torch.device) -> bool:
    """Whether kernels can run on ``device``: CUDA, and Triton is there."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def step_of(dim: int) -> int:
    """Dimensions that a program takes at a time."""
    return min(max(1 << (dim - 1).bit_length(), _LEAST_STEP), MOST_STEP)


def most_bytes(candidates: int, dim: int) -> int:
    """What :func:`softmax` holds at most beside its results: gradients of candidates by shares of the queries."""
    programs = -(-candidates // COLUMNS) * -(-dim // step_of(dim))
    return 4 * max(_PROGRAMS // programs, 1) * candidates * dim


def softmax(
    queries: Tensor,
    positive: Tensor,
    candidates: Tensor,
    wanted: Tensor,
    ids: Tensor,
    *,
    precision: str = "tf32",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cross-entropy of each query's positive against all candidates but the one that it looks for.

    Equals, with ``scores = (queries @ candidates.T).masked_fill(wanted[:, None] == ids, -inf)``,
    ``cross_entropy(cat([positive[:, None], scores], 1), zeros(n), reduction="sum")`` and its gradients.

    Args:
        queries: float32 [n, dim], contiguous, as all are.
        positive: float32 [n], scores.
        candidates: float32 [k, dim].
        wanted, ids: int64 [n] and [k], not negative: what is the same is left out.
        precision: Of products: ``tf32``, ``tf32x3`` or ``ieee``.

    Returns:
        The sum, and the gradients by queries, positive and candidates.
    """
    kernels: Any = importlib.import_module("outcrop.embed.fused_kernels")  # brings Triton
    n, dim = queries.shape
    k, step = len(candidates), step_of(dim)
    if n == 0 or k == 0:
        return (
            positive.new_zeros(()),
            torch.zeros_like(queries),
            torch.zeros_like(positive),
            torch.zeros_like(candidates),
        )
    sizes: dict[str, Any] = {"ROWS": ROWS, "COLUMNS": COLUMNS, "STEP": step, "PRECISION": precision}
    parts, row_blocks, column_blocks = -(-dim // step), -(-n // ROWS), -(-k // COLUMNS)
    queries, candidates = queries.contiguous(), candidates.contiguous()
    log_sums = torch.empty_like(positive)
    kernels.log_sum_exp[(row_blocks,)](
        queries, positive, candidates, wanted, ids, log_sums, n, k, dim, **sizes
    )
    to_queries = torch.empty_like(queries)
    kernels.query_gradients[(row_blocks, parts)](
        queries, candidates, wanted, ids, log_sums, to_queries, n, k, dim, **sizes
    )
    shares = max(1, min(row_blocks, _PROGRAMS // (column_blocks * parts)))
    share = -(-row_blocks // shares) * ROWS
    shares = -(-n // share)
    to_candidates = torch.empty(shares, k, dim, device=queries.device)
    kernels.candidate_gradients[(column_blocks, parts, shares)](
        queries, candidates, wanted, ids, log_sums, to_candidates, n, k, dim, share, **sizes
    )
    loss = (log_sums - positive).sum()
    return loss, to_queries, (positive - log_sums).exp() - 1, to_candidates.sum(0)
