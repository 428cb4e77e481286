"""The softmax loss over shared negatives, and its gradients with it, of all chunks of a batch.

For score functions that are products of a query and a candidate: dot, DistMult, ComplEx. Products are torch's, one
kernel in Triton does what is between them. Scores are made for so many queries at a time as have room, and become the
gradients by scores where they are (Legend, section 6, keeps them for both gradients).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor
MOST_COLUMNS = 2048
"""Of a block of scores: as many stay in registers."""
LAUNCH = {"num_warps": 4}
_TILE, _MOST_ROWS = 4096, 32  # scores of a program, and rows of them
_ALIGNED = 4  # floats: tensor cores take rows that begin at 16 bytes


def usable(device: torch.device) -> bool:
    """Tells whether kernels can run on ``device``: it is CUDA, and Triton is there."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


@dataclass(frozen=True)
class Block:
    """Says which queries have their scores made at a time: ``rows`` of each of ``chunks`` chunks, from ``begin`` on.

    Attributes:
        first: Of the chunks.
        begin: Of the queries, all chunks together.
        more: Whether queries of the same chunk were in a block before.
    """

    first: int
    chunks: int
    begin: int
    rows: int
    more: bool

    @property
    def queries(self) -> slice:
        return slice(self.begin, self.begin + self.chunks * self.rows)


@dataclass(frozen=True)
class Plan:
    """Says what is computed for some sizes.

    Attributes:
        n: Queries, all chunks together.
        k: Candidates of a chunk.
        dim: Floats of each.
        chunk: Queries of a chunk; the last may have fewer.
        most: Queries whose scores may be there at a time.
    """

    n: int
    k: int
    dim: int
    chunk: int
    most: int

    @property
    def stride(self) -> int:
        """Returns floats of a row of scores."""
        return -(-self.k // _ALIGNED) * _ALIGNED

    @property
    def score_bytes(self) -> int:
        return 4 * min(self.n, self.most) * self.stride

    @property
    def scratch_bytes(self) -> int:
        """Returns what :func:`softmax` holds at most beside the gradients of queries: scores, the gradients of
        candidates, three floats of a query.
        """
        chunks = -(-self.n // self.chunk)
        return self.score_bytes + 4 * chunks * self.k * self.dim + 24 * self.n

    def blocks(self) -> Iterator[Block]:
        """Gives whole chunks together where several have room, and parts of one where it has none."""
        whole = self.n // self.chunk  # chunks that have all of their queries
        together = self.most // self.chunk
        for first in range(0, whole, max(together, 1)):
            if together:
                yield Block(first, min(together, whole - first), first * self.chunk, self.chunk, more=False)
            else:
                yield from self._parts(first, self.chunk)
        yield from self._parts(whole, self.n - whole * self.chunk)

    def _parts(self, number: int, count: int) -> Iterator[Block]:
        """Gives the ``count`` queries of chunk ``number``."""
        for begin in range(0, count, self.most):
            rows = min(self.most, count - begin)
            yield Block(number, 1, number * self.chunk + begin, rows, more=begin > 0)


def tile_of(k: int) -> dict[str, int]:
    """Says which part of scores a program has, by what the kernel calls it."""
    columns = min(1 << (k - 1).bit_length(), MOST_COLUMNS)
    return {"ROWS": min(max(_TILE // columns, 1), _MOST_ROWS), "COLUMNS": columns}


def softmax(
    queries: Tensor,
    positive: Tensor,
    candidates: Tensor,
    wanted: Tensor,
    ids: Tensor,
    *,
    chunk: int = 0,
    most: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes the cross-entropy of each query's positive against all candidates of its chunk but the one that it looks
    for.

    Equals, with ``c = arange(n) // chunk`` and ``scores = (queries[:, None] * candidates[c]).sum(2)`` where
    ``wanted[:, None] != ids[c]``, else -inf, ``cross_entropy(cat([positive[:, None], scores], 1), zeros(n),
    reduction="sum")`` and its gradients. Products are as exact as ``torch.set_float32_matmul_precision`` says.

    Args:
        queries: float32 [n, dim], those of a chunk together.
        positive: float32 [n], scores.
        candidates: float32 [chunks, k, dim], or [k, dim] for a single chunk.
        wanted, ids: int64 [n] and [chunks, k] (or [k]), not negative: what is the same is left out.
        chunk: Queries of each chunk, but the last may have fewer; 0: all are one chunk.
        most: Queries whose scores are there at a time (see :class:`Plan`); 0: all.

    Returns:
        The sum, float64 [], and the gradients by queries, positive and candidates. Nothing waits for the GPU.
    """
    kernels: Any = importlib.import_module("outcrop.embed.fused_kernels")  # brings Triton
    n, dim = queries.shape
    k = candidates.shape[-2]
    plan = Plan(n, k, dim, chunk or max(n, 1), most or max(n, 1))
    to_candidates = torch.zeros_like(candidates, memory_format=torch.contiguous_format)
    if n == 0 or k == 0:
        nothing = positive.new_zeros((), dtype=torch.float64)
        return nothing, torch.zeros_like(queries), torch.zeros_like(positive), to_candidates
    queries, to_queries = (
        queries.contiguous(),
        torch.empty_like(queries, memory_format=torch.contiguous_format),
    )
    by_chunk, to_chunk = candidates.contiguous().view(-1, k, dim), to_candidates.view(-1, k, dim)
    assert len(by_chunk) == -(-n // plan.chunk), "candidates of another number of chunks"
    ids, log_sums = ids.contiguous().view(-1), torch.empty_like(positive)
    scores = positive.new_empty(plan.score_bytes // 4)
    tile = tile_of(k)
    for block in plan.blocks():
        shape, at = (block.chunks, block.rows, dim), block.queries
        chunks = slice(block.first, block.first + block.chunks)
        asked, against = queries[at].view(shape), by_chunk[chunks]
        made = scores[: block.chunks * block.rows * plan.stride].view(block.chunks, block.rows, -1)[:, :, :k]
        torch.bmm(asked, against.transpose(1, 2), out=made)
        kernels.weigh[(-(-block.rows // tile["ROWS"]), block.chunks)](
            made, positive[at], wanted[at], ids[block.first * k :], log_sums[at],
            block.rows, k, plan.stride, **tile, **LAUNCH,
        )  # fmt: skip
        torch.bmm(made, against, out=to_queries[at].view(shape))
        to_chunk[chunks].baddbmm_(made.transpose(1, 2), asked, beta=float(block.more))
    losses = log_sums - positive
    return losses.sum(dtype=torch.float64), to_queries, torch.expm1(-losses), to_candidates
