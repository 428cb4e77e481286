"""Triton kernels of the softmax loss over shared negatives. Importing this imports Triton: see fused.py.

Scores are made block by block and never stored: forwards a running log-sum-exp (Milakov and Gimelshein 2018), backwards
once more for the gradient of the queries and once for that of the candidates (Legend, section 6, reuses them likewise).
"""

# Triton is an extra:
# pyright: reportMissingImports=false

import triton
import triton.language as tl


@triton.jit
def _scores(
    queries, candidates, wanted, ids, rows, columns, n, k, dim,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """[ROWS, COLUMNS]; -inf where there is nothing, or the candidate is what the query looks for."""
    out = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, dim, STEP):
        at = begin + tl.arange(0, STEP)
        q = tl.load(
            queries + rows[:, None] * dim + at[None, :],
            mask=(rows[:, None] < n) & (at[None, :] < dim),
            other=0.0,
        )
        c = tl.load(
            candidates + columns[None, :] * dim + at[:, None],
            mask=(columns[None, :] < k) & (at[:, None] < dim),
            other=0.0,
        )
        out += tl.dot(q, c, input_precision=PRECISION)
    mine = tl.load(wanted + rows, mask=rows < n, other=-1)
    theirs = tl.load(ids + columns, mask=columns < k, other=-2)
    nothing = (mine[:, None] == theirs[None, :]) | (columns[None, :] >= k)
    return tl.where(nothing, -float("inf"), out)


@triton.jit
def log_sum_exp(
    queries, positive, candidates, wanted, ids, out, n, k, dim,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[i] = log(exp(positive[i]) + sum of exp(scores[i]))"""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    largest = tl.load(positive + rows, mask=rows < n, other=0.0)
    total = tl.full([ROWS], 1.0, tl.float32)
    for begin in range(0, k, COLUMNS):
        columns = (begin + tl.arange(0, COLUMNS)).to(tl.int64)
        scores = _scores(
            queries, candidates, wanted, ids, rows, columns, n, k, dim, ROWS, COLUMNS, STEP, PRECISION
        )
        larger = tl.maximum(largest, tl.max(scores, 1))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(scores - larger[:, None]), 1)
        largest = larger
    tl.store(out + rows, largest + tl.log(total), mask=rows < n)


@triton.jit
def query_gradients(
    queries, candidates, wanted, ids, log_sums, out, n, k, dim,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[i] = sum over j of exp(scores[i, j] - log_sums[i]) * candidates[j], a part of the dimensions a program."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    at = tl.program_id(1) * STEP + tl.arange(0, STEP)
    log_sum = tl.load(log_sums + rows, mask=rows < n, other=0.0)
    sums = tl.zeros([ROWS, STEP], tl.float32)
    for begin in range(0, k, COLUMNS):
        columns = (begin + tl.arange(0, COLUMNS)).to(tl.int64)
        scores = _scores(
            queries, candidates, wanted, ids, rows, columns, n, k, dim, ROWS, COLUMNS, STEP, PRECISION
        )
        weights = tl.exp(scores - log_sum[:, None])
        c = tl.load(
            candidates + columns[:, None] * dim + at[None, :],
            mask=(columns[:, None] < k) & (at[None, :] < dim),
            other=0.0,
        )
        sums += tl.dot(weights, c, input_precision=PRECISION)
    tl.store(out + rows[:, None] * dim + at[None, :], sums, mask=(rows[:, None] < n) & (at[None, :] < dim))


@triton.jit
def candidate_gradients(
    queries, candidates, wanted, ids, log_sums, out, n, k, dim, share,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[s, j] = the same sum over the queries of share s, by queries[i]."""
    columns = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    at = tl.program_id(1) * STEP + tl.arange(0, STEP)
    number = tl.program_id(2)
    sums = tl.zeros([COLUMNS, STEP], tl.float32)
    for begin in range(number * share, tl.minimum(n, (number + 1) * share), ROWS):
        rows = (begin + tl.arange(0, ROWS)).to(tl.int64)
        scores = _scores(
            queries, candidates, wanted, ids, rows, columns, n, k, dim, ROWS, COLUMNS, STEP, PRECISION
        )
        log_sum = tl.load(log_sums + rows, mask=rows < n, other=float("inf"))
        weights = tl.exp(scores - log_sum[:, None])
        q = tl.load(
            queries + rows[:, None] * dim + at[None, :],
            mask=(rows[:, None] < n) & (at[None, :] < dim),
            other=0.0,
        )
        sums += tl.dot(tl.trans(weights), q, input_precision=PRECISION)
    tl.store(
        out + (number * k + columns[:, None]) * dim + at[None, :],
        sums,
        mask=(columns[:, None] < k) & (at[None, :] < dim),
    )
