"""Triton kernels of the softmax loss over shared negatives. Importing this imports Triton: see fused.py.

All chunks of a batch are one grid: the first axis counts blocks of all chunks. ``forward`` makes the scores tile by
tile with a running log-sum-exp (Milakov and Gimelshein 2018) and, where a program holds all dimensions, the gradients
of the queries in the same pass (as attention does: Dao et al. 2022). With ``KEEP`` it writes the scores down and both
gradients read them (Legend, section 6); without, they are made again.

Addresses are a number of the first row, int64, and int32 offsets within a tile: few registers, and no overflow.
"""

# Triton is an extra; what is bound under a constexpr is used under it:
# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl


@triton.jit
def _tile(x, first, count, at, DIM: tl.constexpr, SIZE: tl.constexpr):
    """Loads x[first : first + SIZE, at], 0 from row ``count`` on and from dimension ``DIM`` on."""
    rows = tl.arange(0, SIZE)
    mask = (rows[:, None] < count) & (at[None, :] < DIM)
    return tl.load(x + first * DIM + (rows[:, None] * DIM + at[None, :]), mask=mask, other=0.0)


@triton.jit
def _turned(x, first, count, at, DIM: tl.constexpr, SIZE: tl.constexpr):
    """Returns the transpose of :func:`_tile`."""
    rows = tl.arange(0, SIZE)
    mask = (rows[None, :] < count) & (at[:, None] < DIM)
    return tl.load(x + first * DIM + (rows[None, :] * DIM + at[:, None]), mask=mask, other=0.0)


@triton.jit
def _left_out(
    scores, wanted, ids, row, rows, column, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Returns -inf where there is no candidate, or it is what the query looks for."""
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    mine = tl.load(wanted + row + i, mask=i < rows, other=-1)
    theirs = tl.load(ids + column + j, mask=j < columns, other=-2)
    nothing = (mine[:, None] == theirs[None, :]) | (j[None, :] >= columns)
    return tl.where(nothing, -float("inf"), scores)


@triton.jit
def _made(
    queries, candidates, wanted, ids, row, rows, column, columns,
    DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Returns [ROWS, COLUMNS]: scores of ``rows`` queries from ``row`` on against ``columns`` candidates from
    ``column`` on.
    """
    out = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, DIM, STEP):
        at = begin + tl.arange(0, STEP)
        q = _tile(queries, row, rows, at, DIM, ROWS)
        c = _turned(candidates, column, columns, at, DIM, COLUMNS)
        out = tl.dot(q, c, out, input_precision=PRECISION)
    return _left_out(out, wanted, ids, row, rows, column, columns, ROWS, COLUMNS)


@triton.jit
def _kept(scores, row, rows, begin, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Returns [ROWS, COLUMNS]: what ``forward`` wrote down; rows of it are filled up with -inf."""
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    place = scores + row * stride + begin + (i[:, None] * stride + j[None, :])
    return tl.load(place, mask=(i < rows)[:, None], other=-float("inf"))


@triton.jit
def forward(
    queries, positive, candidates, wanted, ids, log_sums, to_queries, scores,
    n, k, chunk, stride, row_blocks,
    DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
    KEEP: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Computes log_sums[i] = log(exp(positive[i]) + sum of exp(scores[i])), and what :func:`query_gradients` makes if
    WHOLE.
    """
    number = (tl.program_id(0) // row_blocks).to(tl.int64)
    local = tl.program_id(0) % row_blocks * ROWS
    row = number * chunk + local
    rows = tl.minimum(chunk - local, n - row).to(tl.int32)
    i, j, at = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, STEP)
    largest = tl.load(positive + row + i, mask=i < rows, other=0.0)
    total = tl.full([ROWS], 1.0, tl.float32)
    q = total  # of use where it is WHOLE
    if WHOLE:
        q = _tile(queries, row, rows, at, DIM, ROWS)
        sums = tl.zeros([ROWS, STEP], tl.float32)
    for begin in range(0, k, COLUMNS):
        column, columns = number * k + begin, k - begin
        if WHOLE:
            s = tl.dot(q, _turned(candidates, column, columns, at, DIM, COLUMNS), input_precision=PRECISION)
            s = _left_out(s, wanted, ids, row, rows, column, columns, ROWS, COLUMNS)
        else:
            s = _made(
                queries, candidates, wanted, ids, row, rows, column, columns,
                DIM, ROWS, COLUMNS, STEP, PRECISION,
            )  # fmt: skip
        if KEEP:
            place = scores + row * stride + begin + (i[:, None] * stride + j[None, :])
            tl.store(place, s, mask=(i < rows)[:, None])
        larger = tl.maximum(largest, tl.max(s, 1))
        weights = tl.exp(s - larger[:, None])
        scale = tl.exp(largest - larger)
        total = total * scale + tl.sum(weights, 1)
        if WHOLE:
            c = _tile(candidates, column, columns, at, DIM, COLUMNS)
            sums = tl.dot(weights, c, sums * scale[:, None], input_precision=PRECISION)
        largest = larger
    tl.store(log_sums + row + i, largest + tl.log(total), mask=i < rows)
    if WHOLE:
        mask = (i[:, None] < rows) & (at[None, :] < DIM)
        tl.store(to_queries + row * DIM + (i[:, None] * DIM + at[None, :]), sums / total[:, None], mask=mask)


@triton.jit
def query_gradients(
    queries, candidates, wanted, ids, log_sums, to_queries, scores,
    n, k, chunk, stride, row_blocks,
    DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    """Computes to_queries[i] = sum over j of exp(scores[i, j] - log_sums[i]) * candidates[j], STEP dimensions a
    program.
    """
    number = (tl.program_id(0) // row_blocks).to(tl.int64)
    local = tl.program_id(0) % row_blocks * ROWS
    row = number * chunk + local
    rows = tl.minimum(chunk - local, n - row).to(tl.int32)
    i, at = tl.arange(0, ROWS), tl.program_id(1) * STEP + tl.arange(0, STEP)
    log_sum = tl.load(log_sums + row + i, mask=i < rows, other=0.0)
    sums = tl.zeros([ROWS, STEP], tl.float32)
    for begin in range(0, k, COLUMNS):
        column, columns = number * k + begin, k - begin
        if KEEP:
            s = _kept(scores, row, rows, begin, stride, ROWS, COLUMNS)
        else:
            s = _made(
                queries, candidates, wanted, ids, row, rows, column, columns,
                DIM, ROWS, COLUMNS, STEP, PRECISION,
            )  # fmt: skip
        c = _tile(candidates, column, columns, at, DIM, COLUMNS)
        sums = tl.dot(tl.exp(s - log_sum[:, None]), c, sums, input_precision=PRECISION)
    mask = (i[:, None] < rows) & (at[None, :] < DIM)
    tl.store(to_queries + row * DIM + (i[:, None] * DIM + at[None, :]), sums, mask=mask)


@triton.jit
def candidate_gradients(
    queries, candidates, wanted, ids, log_sums, out, scores,
    n, k, chunk, stride, column_blocks, share,
    DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    """Computes out[s, j] = sum over the queries i of share s of exp(scores[i, j] - log_sums[i]) * queries[i]."""
    number = (tl.program_id(0) // column_blocks).to(tl.int64)
    first = tl.program_id(0) % column_blocks * COLUMNS
    column, columns = number * k + first, k - first
    i, j, at = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.program_id(1) * STEP + tl.arange(0, STEP)
    count = tl.minimum(chunk, n - number * chunk).to(tl.int32)
    sums = tl.zeros([COLUMNS, STEP], tl.float32)
    for begin in range(tl.program_id(2) * share, tl.minimum(count, (tl.program_id(2) + 1) * share), ROWS):
        row, rows = number * chunk + begin, count - begin
        log_sum = tl.load(log_sums + row + i, mask=i < rows, other=float("inf"))
        if KEEP:
            s = _kept(scores, row, rows, first, stride, ROWS, COLUMNS)
        else:
            s = _made(
                queries, candidates, wanted, ids, row, rows, column, columns,
                DIM, ROWS, COLUMNS, STEP, PRECISION,
            )  # fmt: skip
        weights = tl.exp(s - log_sum[:, None])
        q = _tile(queries, row, rows, at, DIM, ROWS)
        sums = tl.dot(tl.trans(weights), q, sums, input_precision=PRECISION)
    place = (tl.program_id(2) * (tl.num_programs(0) // column_blocks)).to(tl.int64) * k + column
    mask = (j[:, None] < columns) & (at[None, :] < DIM)
    tl.store(out + place * DIM + (j[:, None] * DIM + at[None, :]), sums, mask=mask)
