"""The Triton kernel of the softmax loss over shared negatives. Importing this imports Triton: see fused.py.

Between the products of the scores and of the gradients, which are torch's, torch alone goes over the scores a dozen
times: masks, copies, exponents, sums. The kernel reads them once and writes them once, in place.
"""

# Triton is an extra; what is bound under a constexpr is used under it:
# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl


@triton.jit
def _scores(places, mine, ids, column, columns, K: tl.constexpr):
    """Returns [ROWS, COLUMNS] scores; -inf where there is no candidate, or it is what the query looks for."""
    theirs = tl.load(ids + column + columns, mask=column + columns < K, other=-2)
    nothing = (mine[:, None] == theirs[None, :]) | (column + columns >= K)[None, :]
    s = tl.load(
        places + column, mask=(mine >= 0)[:, None] & (column + columns < K)[None, :], other=-float("inf")
    )
    return tl.where(nothing, -float("inf"), s)


@triton.jit
def weigh(
    scores, positive, wanted, ids, log_sums,
    rows,
    K: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Computes log_sums[i] = log(exp(positive[i]) + sum of exp(scores[i])), then
    scores[i] = exp(scores[i] - log_sums[i]).

    The second axis of programs counts chunks of ``rows`` queries, each with ``K`` ids of its own; the first their
    blocks of ROWS queries. The sum runs along with the largest score so far (Milakov and Gimelshein 2018). Where
    COLUMNS are all, scores stay in registers between the two.
    """
    chunk = tl.program_id(1).to(tl.int64)
    i, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    row = chunk * rows + i
    ids += chunk * K
    mine = tl.load(wanted + row, mask=i < rows, other=-1)
    largest = tl.load(positive + row, mask=i < rows, other=0.0)
    total = tl.full([ROWS], 1.0, tl.float32)
    places = scores + row[:, None] * STRIDE + columns[None, :]
    if K <= COLUMNS:
        s = _scores(places, mine, ids, 0, columns, K)
        larger = tl.maximum(largest, tl.max(s, 1))
        total = tl.exp(largest - larger) + tl.sum(tl.exp(s - larger[:, None]), 1)
        log_sum = larger + tl.log(total)
        tl.store(places, tl.exp(s - log_sum[:, None]), mask=(i < rows)[:, None] & (columns < K)[None, :])
    else:
        for column in range(0, K, COLUMNS):
            s = _scores(places, mine, ids, column, columns, K)
            larger = tl.maximum(largest, tl.max(s, 1))
            total = total * tl.exp(largest - larger) + tl.sum(tl.exp(s - larger[:, None]), 1)
            largest = larger
        log_sum = largest + tl.log(total)
        for column in range(0, K, COLUMNS):
            s = _scores(places, mine, ids, column, columns, K)
            mask = (i < rows)[:, None] & (column + columns < K)[None, :]
            tl.store(places + column, tl.exp(s - log_sum[:, None]), mask=mask)
    tl.store(log_sums + row, log_sum, mask=i < rows)
