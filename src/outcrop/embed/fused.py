"""The softmax loss over shared negatives, and its gradients with it, of all chunks of a batch: kernels in Triton.

For score functions that are products of a query and a candidate: dot, DistMult, ComplEx.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor
ROWS, COLUMNS, MOST_STEP = 32, 32, 128
LAUNCH = {"num_warps": 8, "num_stages": 2}
"""With these tiles two blocks have room on a processor of sm_80, sm_90 and sm_100: tests compile and ask."""
_LEAST_STEP = 16  # of a product on tensor cores
_PROGRAMS = 1024  # as many as keep a GPU busy


def usable(device: torch.device) -> bool:
    """Tells whether kernels can run on ``device``: it is CUDA, and Triton is there."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def precision_of_torch() -> str:
    """Returns the precision that products of float32 have in torch, as Triton names it.

    ``tf32`` where ``torch.set_float32_matmul_precision("high")`` or ``torch.backends`` allows it. Else ``tf32x3``:
    three products of TF32 that together are as exact as float32, and faster than its own.
    """
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


@dataclass(frozen=True)
class Plan:
    """Says what the kernels do for some sizes.

    Attributes:
        n: Queries, all chunks together.
        k: Candidates of a chunk.
        dim: Floats of each.
        chunk: Queries of a chunk; the last may have fewer.
        keep: Whether scores are written down for the gradients; else they are made again.
    """

    n: int
    k: int
    dim: int
    chunk: int
    keep: bool

    @property
    def chunks(self) -> int:
        return -(-self.n // self.chunk)

    @property
    def step(self) -> int:
        """Returns how many dimensions a program takes at a time: a power of 2."""
        return min(max(1 << (self.dim - 1).bit_length(), _LEAST_STEP), MOST_STEP)

    @property
    def parts(self) -> int:
        return -(-self.dim // self.step)

    @property
    def row_blocks(self) -> int:
        """Returns the blocks of rows of a chunk, as ``column_blocks`` does those of columns."""
        return -(-min(self.chunk, self.n) // ROWS)

    @property
    def column_blocks(self) -> int:
        return -(-self.k // COLUMNS)

    @property
    def share(self) -> int:
        """Returns of how many queries of a chunk a program sums the gradients of candidates."""
        programs = self.chunks * self.column_blocks * self.parts
        shares = max(1, min(self.row_blocks, _PROGRAMS // programs))
        return -(-self.row_blocks // shares) * ROWS

    @property
    def shares(self) -> int:
        return -(-self.row_blocks * ROWS // self.share)

    @property
    def stride(self) -> int:
        """Returns floats of a row of scores."""
        return self.column_blocks * COLUMNS

    @property
    def score_bytes(self) -> int:
        return 4 * self.n * self.stride if self.keep else 0

    @property
    def scratch_bytes(self) -> int:
        """Returns what :func:`softmax` holds at most beside its results: scores, sums of shares, three floats of a
        query.
        """
        return self.score_bytes + 4 * self.shares * self.chunks * self.k * self.dim + 24 * self.n

    @property
    def products(self) -> int:
        """Returns how many products of tiles, ROWS x COLUMNS x step, of one block of queries and one of candidates.

        Scores are one for each part of the dimensions, and so is either gradient; without ``keep`` every program of a
        gradient makes all parts of the scores again, but for that of queries where one program has all dimensions.
        """
        again = 0 if self.keep else self.parts * (1 if self.parts == 1 else 2 * self.parts)
        return 3 * self.parts + again


def softmax(
    queries: Tensor,
    positive: Tensor,
    candidates: Tensor,
    wanted: Tensor,
    ids: Tensor,
    *,
    chunk: int = 0,
    keep: bool = True,
    precision: str = "",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes the cross-entropy of each query's positive against all candidates of its chunk but the one that it looks
    for.

    Equals, with ``c = arange(n) // chunk`` and ``scores = (queries[:, None] * candidates[c]).sum(2)`` where
    ``wanted[:, None] != ids[c]``, else -inf, ``cross_entropy(cat([positive[:, None], scores], 1), zeros(n),
    reduction="sum")`` and its gradients.

    Args:
        queries: float32 [n, dim], those of a chunk together.
        positive: float32 [n], scores.
        candidates: float32 [chunks, k, dim], or [k, dim] for a single chunk.
        wanted, ids: int64 [n] and [chunks, k] (or [k]), not negative: what is the same is left out.
        chunk: Queries of each chunk, but the last may have fewer; 0: all are one chunk.
        keep: Write scores down, once, for both gradients; else make them again: see :class:`Plan` for both costs.
        precision: Precision of products: ``tf32``, ``tf32x3`` or ``ieee``; empty: :func:`precision_of_torch`.

    Returns:
        The sum, float64 [], and the gradients by queries, positive and candidates. Nothing waits for the GPU.
    """
    kernels: Any = importlib.import_module("outcrop.embed.fused_kernels")  # brings Triton
    n, dim = queries.shape
    plan = Plan(n, candidates.shape[-2], dim, chunk or max(n, 1), keep)
    if n == 0 or plan.k == 0:
        return (
            positive.new_zeros((), dtype=torch.float64),
            torch.zeros_like(queries),
            torch.zeros_like(positive),
            torch.zeros_like(candidates),
        )
    assert candidates.numel() == plan.chunks * plan.k * dim, "candidates of another number of chunks"
    sizes: dict[str, Any] = {
        "DIM": dim, "ROWS": ROWS, "COLUMNS": COLUMNS, "STEP": plan.step, "KEEP": keep,
        "PRECISION": precision or precision_of_torch(),
    }  # fmt: skip
    sizes |= LAUNCH
    queries, candidates = queries.contiguous(), candidates.contiguous()
    log_sums, to_queries = torch.empty_like(positive), torch.empty_like(queries)
    scores = positive.new_empty(plan.score_bytes // 4)
    row_programs = plan.chunks * plan.row_blocks
    ends = (n, plan.k, plan.chunk, plan.stride)
    kernels.forward[(row_programs,)](
        queries, positive, candidates, wanted, ids, log_sums, to_queries, scores, *ends, plan.row_blocks,
        WHOLE=plan.parts == 1, **sizes,
    )  # fmt: skip
    inputs = (queries, candidates, wanted, ids, log_sums)
    if plan.parts > 1:
        kernels.query_gradients[(row_programs, plan.parts)](
            *inputs, to_queries, scores, *ends, plan.row_blocks, **sizes
        )
    to_candidates = torch.empty(plan.shares, *candidates.shape, device=queries.device)
    kernels.candidate_gradients[(plan.chunks * plan.column_blocks, plan.parts, plan.shares)](
        *inputs, to_candidates, scores, *ends, plan.column_blocks, plan.share, **sizes
    )
    losses = log_sums - positive
    return losses.sum(dtype=torch.float64), to_queries, torch.expm1(-losses), to_candidates.sum(0)
