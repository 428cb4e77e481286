"""Scores, losses, optimizer steps and one batch of training, against torch's autograd and NumPy."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from outcrop import _core
from outcrop.config import EmbedConfig
from outcrop.embed.losses import loss_function
from outcrop.embed.matches import matches
from outcrop.embed.scores import SCORES, score_function
from outcrop.embed.step import Relations, Stepper, stride
from outcrop.errors import ArgumentError
from outcrop.runtime.runtime import Runtime

DIM = 8
MODELS = list(SCORES)
LOSSES = ("softmax", "logistic", "margin")


def complex_of(x):
    return torch.complex(*x.chunk(2, -1))


# The papers' formulas, for broadcasting s, r, t.
FORMULAS = {
    "dot": lambda s, r, t: (s * t).sum(-1),
    "distmult": lambda s, r, t: (s * r * t).sum(-1),
    "complex": lambda s, r, t: (complex_of(s) * complex_of(r) * complex_of(t).conj()).sum(-1).real,
    "transe-l1": lambda s, r, t: -torch.linalg.vector_norm(s + r - t, 1, -1),
    "transe-l2": lambda s, r, t: -torch.linalg.vector_norm(s + r - t, 2, -1),
    "rotate": lambda s, r, t: (
        -(complex_of(s) * torch.polar(torch.ones_like(r), r) - complex_of(t)).abs().sum(-1)
    ),
}


# What each comparison equals.
DIRECT = {
    "Dot": lambda q, c: q @ c.T,
    "L1": lambda q, c: -(q[:, None] - c).abs().sum(-1),
    "L2": lambda q, c: -((q[:, None] - c) ** 2).sum(-1).sqrt(),
    "Modulus": lambda q, c: -complex_of(q[:, None] - c).abs().sum(-1),
}


def reference_loss(name, positive, negative, width):
    """From scores [n] and [n, k]; -inf is left out."""
    if name == "softmax":
        scores = torch.cat([positive[:, None], negative], 1)
        return torch.nn.functional.cross_entropy(scores, torch.zeros(len(scores)).long(), reduction="sum")
    total = 0
    for p, row in zip(positive, negative, strict=True):
        row = row[row > -torch.inf]
        if name == "logistic":
            total += -torch.nn.functional.logsigmoid(p)
            total += -torch.nn.functional.logsigmoid(-row).mean() if len(row) else 0
        elif len(row):
            total += torch.relu(width + row - p).mean()
    return total


@pytest.mark.parametrize("model", MODELS)
def test_scores_and_gradients_are_those_of_the_formula(model):
    torch.manual_seed(0)
    score = score_function(model, DIM)
    s, t = torch.randn(2, 7, DIM, dtype=torch.float64)
    c = torch.randn(11, DIM, dtype=torch.float64)
    width = score.relation_width(DIM)
    r = torch.randn(7, width, dtype=torch.float64) if width else None
    formula = FORMULAS[model]
    for side, known in (("target", s), ("source", t)):
        query = score.query(known, r, side)
        row = None if r is None else r[:, None]
        everything = (known[:, None], row, c) if side == "target" else (c, row, known[:, None])
        expected = formula(*everything)
        out = torch.empty(7, 11, dtype=torch.float64)
        score.compare.scores(query, c, out)
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
        pair = (s, r, t)
        torch.testing.assert_close(
            score.compare.pairs(query, t if side == "target" else s), formula(*pair), rtol=1e-10, atol=1e-10
        )
        weights = torch.randn(7, 11, dtype=torch.float64)
        q, k = query.clone().requires_grad_(), c.clone().requires_grad_()
        direct = DIRECT[type(score.compare).__name__](q, k)
        want = torch.autograd.grad(direct, (q, k), weights)
        to_q, to_c = torch.ones_like(query), torch.ones_like(c)  # written over, added to
        score.compare.gradients(query, c, out, weights.clone(), to_q, to_c)
        torch.testing.assert_close(to_q, want[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(to_c - 1, want[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", ["transe-l1", "transe-l2", "rotate"])
def test_no_gradient_where_query_and_candidate_are_the_same(model):
    compare = score_function(model, DIM).compare
    q = torch.ones(2, DIM, dtype=torch.float64)
    out = torch.empty(2, 2, dtype=torch.float64)
    compare.scores(q, q, out)
    to_q, to_c = torch.zeros(2, 2, DIM, dtype=torch.float64)
    compare.gradients(q, q, out, torch.ones_like(out), to_q, to_c)
    assert torch.isfinite(to_q).all()
    assert to_q.abs().max() < 1e-6
    assert to_c.abs().max() < 1e-6


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_losses_and_their_gradients(loss, scale):
    torch.manual_seed(1)
    positive = (torch.randn(6, dtype=torch.float64) * scale).requires_grad_()
    negative = (torch.randn(6, 9, dtype=torch.float64) * scale).requires_grad_()
    left_out = torch.zeros(6, 9, dtype=torch.bool)
    left_out[0, 3] = left_out[2, :5] = left_out[4] = True
    expected = reference_loss(loss, positive, negative.masked_fill(left_out, -torch.inf), 0.7)
    want = torch.autograd.grad(expected, (positive, negative))
    scores = negative.detach().masked_fill(left_out, -torch.inf)
    to_positive = torch.empty(6, dtype=torch.float64)
    value = loss_function(loss, 0.7)(positive.detach(), scores, to_positive)
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(to_positive, want[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(scores, want[1].masked_fill(left_out, 0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_large_scores_stay_finite_in_float32(loss):
    positive = torch.tensor([1e4, -1e4, 3e5])
    negative = torch.tensor([[-1e4, 1e4], [1e4, 1e4], [-3e5, 3e5]])
    to_positive = torch.empty(3)
    value = loss_function(loss, 1.0)(positive, negative, to_positive)
    assert torch.isfinite(value)
    assert torch.isfinite(to_positive).all()
    assert torch.isfinite(negative).all()


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("shape", [(1, 1), (3, 16), (40, 101), (200, 1000)])
def test_softmax_in_one_pass_equals_cross_entropy(shape, scale):
    torch.manual_seed(2)
    n, k = shape
    positive, negative = torch.randn(n) * scale, torch.randn(n, k) * scale
    candidates, wanted = torch.randint(0, k, (k,)), torch.randint(0, k, (n,))
    left_out = wanted[:, None] == candidates
    exact = [x.double().requires_grad_() for x in (positive, negative)]
    rows = torch.cat([exact[0][:, None], exact[1].masked_fill(left_out, -torch.inf)], 1)
    expected = torch.nn.functional.cross_entropy(rows, torch.zeros(n, dtype=torch.int64), reduction="sum")
    want = torch.autograd.grad(expected, exact)
    runtime, to_positive = Runtime(), torch.empty(n)
    _core.leave_out(negative.numpy(), candidates.numpy(), wanted.numpy(), runtime.workers)
    assert torch.equal(negative == -torch.inf, left_out)
    value = _core.softmax(negative.numpy(), positive.numpy(), to_positive.numpy(), runtime.workers)
    assert value == pytest.approx(expected.item(), rel=1e-6, abs=1e-30)
    torch.testing.assert_close(to_positive.double(), want[0], rtol=2e-6, atol=1e-30)
    torch.testing.assert_close(negative.double(), want[1], rtol=1e-5, atol=1e-37)  # scores near 87 round


@pytest.mark.parametrize(
    ("edges", "chunk", "k", "width"),
    [
        (1, 1, 1, 1),
        (7, 3, 5, 3),
        (48, 48, 16, 16),
        (1000, 400, 100, 100),
        (700, 1000, 33, 130),
        (481, 241, 1000, 17),
    ],
)
def test_comparing_in_one_pass_equals_autograd(edges, chunk, k, width):
    torch.manual_seed(3)
    chunks = -(-edges // chunk)
    queries, candidates = torch.randn(2 * edges, width) / 4, torch.randn(chunks * k, width) / 4
    positive, ids, wanted = (
        torch.randn(2 * edges),
        torch.randint(0, 40, (chunks * k,)),
        torch.randint(0, 40, (2 * edges,)),
    )
    exact = [x.double().requires_grad_() for x in (queries, positive, candidates)]
    place = torch.arange(2 * edges) % edges // chunk
    scores = (exact[0][:, None] * exact[2].view(chunks, k, width)[place]).sum(2)
    scores = scores.masked_fill(wanted[:, None] == ids.view(chunks, k)[place], -torch.inf)
    rows = torch.cat([exact[1][:, None], scores], 1)
    expected = torch.nn.functional.cross_entropy(
        rows, torch.zeros(2 * edges, dtype=torch.int64), reduction="sum"
    )
    want = torch.autograd.grad(expected, exact)
    found = {}
    for threads in (1, 2):
        workers = _core.WorkerPool(threads)
        compare = _core.SoftmaxCompare(workers, edges, chunk, k, width, 3)
        to = torch.empty_like(queries), torch.empty_like(positive), torch.ones_like(candidates)
        arrays = [x.numpy() for x in (queries, positive, candidates, ids, wanted, *to)]
        value = compare.run(*arrays)
        assert value == pytest.approx(expected.item(), rel=1e-5)
        torch.testing.assert_close(to[0].double(), want[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(to[1].double(), want[1], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(to[2].double() - 1, want[2], rtol=1e-4, atol=2e-5)
        found[threads] = (value, *(x.clone() for x in to))
    assert found[1][0] == found[2][0]
    assert all(torch.equal(a, b) for a, b in zip(found[1][1:], found[2][1:], strict=True))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_comparing_in_one_pass_does_not_hide_what_is_no_number(bad):
    compare = _core.SoftmaxCompare(_core.WorkerPool(1), 2, 2, 3, 4, 1)
    queries, candidates, ids = np.ones((4, 4), np.float32), np.ones((3, 4), np.float32), np.zeros(3, np.int64)
    queries[2, 1] = bad
    to = np.empty_like(queries), np.empty(4, np.float32), np.zeros_like(candidates)
    assert np.isnan(compare.run(queries, np.ones(4, np.float32), candidates, ids, np.ones(4, np.int64), *to))


def test_comparing_in_one_pass_refuses_what_it_has_no_room_for():
    compare = _core.SoftmaxCompare(_core.WorkerPool(1), 2, 2, 3, 4, 1)

    def run(edges, k, width):
        rows, others = np.ones((2 * edges, width), np.float32), np.ones((k, width), np.float32)
        numbers = np.zeros(2 * edges, np.float32)
        return compare.run(
            rows, numbers, others, np.zeros(k, np.int64), np.ones(2 * edges, np.int64),
            np.empty_like(rows), np.empty_like(numbers), np.zeros_like(others),
        )  # fmt: skip

    assert run(2, 3, 4) > 0
    for sizes in ((3, 3, 4), (2, 4, 4), (2, 3, 5)):
        with pytest.raises(ArgumentError, match=r"more than there is room for|another shape"):
            run(*sizes)
    with pytest.raises(ArgumentError, match="has no edges"):
        _core.SoftmaxCompare(_core.WorkerPool(1), 2, 0, 3, 4, 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_softmax_does_not_hide_what_is_no_number(bad):
    scores, out = np.zeros((2, 33), np.float32), np.empty(2, np.float32)
    scores[1, 7] = bad
    assert np.isnan(_core.softmax(scores, np.zeros(2, np.float32), out, Runtime().workers))


def test_matches_finds_all():
    random = np.random.default_rng(0)
    where, wanted = random.integers(0, 20, 60), random.integers(0, 25, 40)
    i, j = matches(where, wanted)
    expected = np.nonzero(wanted[:, None] == where)
    np.testing.assert_array_equal(i, expected[0])
    np.testing.assert_array_equal(j, expected[1])


def numpy_step(rows, ids, gradients, options, width):
    """In float64."""
    rows = rows.astype(np.float64)
    for row in np.unique(ids):
        g = gradients[ids == row].astype(np.float64).sum(0)
        x, state = rows[row, :width], rows[row, width:]
        if options.kind == _core.StepKind.sgd:
            x -= options.rate * g
        elif options.kind == _core.StepKind.adagrad:
            state[:width] += g**2
            x -= options.rate * g / (np.sqrt(state[:width]) + options.epsilon)
        else:
            state[:width] = options.beta1 * state[:width] + (1 - options.beta1) * g
            state[width] = options.beta2 * state[width] + (1 - options.beta2) * (g**2).mean()
            mean = state[:width] / (1 - options.beta1**options.step)
            square = state[width] / (1 - options.beta2**options.step)
            x -= options.rate * mean / (np.sqrt(square) + options.epsilon)
    return rows


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("width", [1, 7, 16])
def test_one_step_for_each_row(make_runtime, kind, width):
    random = np.random.default_rng(2)
    options = _core.StepOptions()
    options.kind, options.rate, options.epsilon = getattr(_core.StepKind, kind), 0.3, 1e-6
    floats = width + _core.state_width(options.kind, width)
    rows = random.standard_normal((500, floats + 2)).astype(np.float32)
    rows[:, width:] = np.abs(rows[:, width:])
    batches = [
        (random.integers(0, 500, 3000), random.standard_normal((3000, width)).astype(np.float32))
        for _ in range(3)
    ]
    tables = []
    for threads in (1, 3):
        table, expected = rows.copy(), rows
        runtime = make_runtime(threads=threads)
        for step, (ids, gradients) in enumerate(batches, 1):
            options.step = step
            expected = numpy_step(expected, ids, gradients, options, width)
            touched = _core.step_rows(table, width, ids, gradients, options, runtime.workers)
            assert touched == len(np.unique(ids))
        np.testing.assert_allclose(table, expected, rtol=2e-4, atol=2e-5)
        tables.append(table)
    np.testing.assert_array_equal(*tables)  # threads change nothing


def test_rows_are_taken_and_started_by_name(make_runtime):
    workers = make_runtime().workers
    table = np.full((1000, 6), 9, np.float32)
    names = np.random.default_rng(0).permutation(1000)
    _core.start_rows(table, 4, names, 0.5, 77, workers)
    assert np.abs(table[:, :4]).max() <= 0.5
    assert table[:, :4].std() == pytest.approx(0.5 / 3**0.5, rel=0.05)
    assert abs(table[:, :4].mean()) < 0.02
    assert (table[:, 4:] == 0).all()
    other = np.empty((1000, 4), np.float32)
    _core.start_rows(other, 4, np.arange(1000), 0.5, 77, workers)
    np.testing.assert_array_equal(other[names], table[:, :4])
    _core.start_rows(other, 4, np.arange(1000), 0.5, 78, workers)
    assert (other[names] != table[:, :4]).mean() > 0.99
    ids = np.random.default_rng(1).integers(0, 1000, 5000)
    out = np.empty((5000, 4), np.float32)
    _core.take_rows(table, 4, ids, out, workers)
    np.testing.assert_array_equal(out, table[ids, :4])


def test_rows_that_are_not_there(make_runtime):
    workers, table = make_runtime().workers, np.zeros((4, 6), np.float32)
    out = np.zeros((1, 3), np.float32)
    for row in (-1, 4):
        with pytest.raises(ArgumentError, match=f"row {row} was asked for of a table of 4"):
            _core.take_rows(table, 3, np.array([row]), out, workers)
        with pytest.raises(ArgumentError, match=f"row {row}"):
            _core.step_rows(table, 3, np.array([row]), out, _core.StepOptions(), workers)
    with pytest.raises(ArgumentError, match="no room"):
        _core.step_rows(table, 4, np.array([0]), np.zeros((1, 4), np.float32), _core.StepOptions(), workers)
    with pytest.raises(ArgumentError, match="longer than rows"):
        _core.take_rows(table, 7, np.array([0]), np.zeros((1, 7), np.float32), workers)


@pytest.mark.parametrize("complex_numbers", [False, True])
@pytest.mark.parametrize("shape", [(0, 6), (1, 2), (70, 34), (33, 0)])
def test_gradients_of_sizes_are_torchs(shape, complex_numbers):
    random = np.random.default_rng(sum(shape))
    x, before = random.standard_normal((2, *shape)).astype(np.float32)
    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    size = complex_of(leaf).abs() if complex_numbers else leaf.abs()
    loss = 0.3 * (size**3).sum() + 0.2 * (leaf**2).sum()
    (expected,) = torch.autograd.grad(loss, leaf)
    after = [before.copy() for _ in range(2)]
    for out, threads in zip(after, (1, 3), strict=True):
        _core.add_size_gradients(x, complex_numbers, 0.3, 0.2, out, _core.WorkerPool(threads))
    np.testing.assert_allclose(after[0], before + expected.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(*after)
    odd, workers = np.zeros((2, 3), np.float32), _core.WorkerPool(1)
    for given, out, of_complex in ((x, odd, False), (odd, odd, True)):
        with pytest.raises(ArgumentError, match="differ in shape from their vectors, or the width is odd"):
            _core.add_size_gradients(given, of_complex, 1, 1, out, workers)


_BATCHES = """
import resource, sys
import numpy as np
from outcrop.config import EmbedConfig
from outcrop.embed.step import Relations, Stepper, stride
from outcrop.runtime.runtime import Runtime

model = sys.argv[1]
config = EmbedConfig(model=model, dim=100, chunk=1000, batch=5000, negatives=100, n3=0.01, reciprocal=True)
random = np.random.default_rng(0)
rows = random.standard_normal((20_000, stride(config, 100))).astype(np.float32)
relations = Relations(random.standard_normal((20, 200)).astype(np.float32), 10, True)
stepper = Stepper(config, relations if model == "complex" else None, Runtime(threads=1))
source, target = random.integers(0, 20_000, (2, 5000))
relation = random.integers(0, 10, 5000) if model == "complex" else None
negatives = [random.integers(0, 20_000, 100) for _ in range(5)]
for step in range(1, 24):
    if step == 4:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    stepper.run(rows, source, relation, target, negatives, step)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20)
"""


@pytest.mark.parametrize("model", ["dot", "complex"])
def test_batches_ask_the_system_for_no_memory(model):
    """Memory that comes anew is cleared by the kernel, page by page, which took a fifth of the time of a batch."""
    asks = {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
        "OMP_NUM_THREADS": "1",
    }  # for each MiB, as a new process does
    done = subprocess.run(
        [sys.executable, "-c", _BATCHES, model],
        env=os.environ | asks,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200, "pages of a batch, whose vectors and gradients have 4,000 and more"


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", MODELS)
def test_a_batch_is_a_step_down_the_gradient_of_its_loss(make_runtime, model, loss, reciprocal):
    """With sgd at rate 1 rows change by minus the gradient, which torch finds from the formulas alone."""
    config = EmbedConfig(
        model=model, dim=DIM, loss=loss, margin=2.0, optimizer="sgd", learning_rate=1.0, chunk=10, batch=25,
        negatives=12, reciprocal=reciprocal, n3=0.01, l2=0.02,
    )  # fmt: skip
    runtime = make_runtime()
    random = np.random.default_rng(3)
    width = score_function(model, DIM).relation_width(DIM)
    rows = random.standard_normal((40, stride(config, DIM))).astype(np.float32)
    table = random.standard_normal((8 if reciprocal else 4, max(width, 1))).astype(np.float32)
    source, relation, target = (random.integers(0, n, 25) for n in (40, 4, 40))
    negatives = [random.integers(0, 40, 12) for _ in range(3)]

    x = torch.tensor(rows[:, :DIM], dtype=torch.float64, requires_grad=True)
    r = torch.tensor(table, dtype=torch.float64, requires_grad=True)
    formula, expected = FORMULAS[model], torch.zeros((), dtype=torch.float64)
    penalty = torch.zeros((), dtype=torch.float64)
    for number, others in enumerate(negatives):
        for i in range(10 * number, min(10 * number + 10, 25)):
            s, t, n = x[source[i]], x[target[i]], x[others]
            one, two = r[relation[i]], r[relation[i] + (4 if reciprocal else 0)]
            sides = [(formula(s, one, t), formula(s, one, n), target[i])]
            if reciprocal:
                sides.append((formula(t, two, s), formula(t, two, n), source[i]))
            else:
                sides.append((formula(s, one, t), formula(n, one, t), source[i]))
            for positive, negative, truth in sides:
                negative = negative.masked_fill(torch.tensor(others == truth), -torch.inf)
                expected = expected + reference_loss(loss, positive[None], negative[None], 2.0)
            factors = [s, t]
            if width == DIM:
                factors += [one, two] if reciprocal else [one]
            for factor in factors:
                size = (
                    complex_of(factor).abs() if score_function(model, DIM).complex_numbers else factor.abs()
                )
                penalty = penalty + 0.01 * (size**3).sum() + 0.02 * (factor**2).sum()
    to_x, to_r = torch.autograd.grad(expected + penalty, (x, r), allow_unused=True)

    relations = Relations(table.copy(), 4, reciprocal) if width else None
    stepper = Stepper(config, relations, runtime)
    after = rows.copy()
    value = stepper.run(after, source, relation, target, negatives, 1)
    assert value == pytest.approx(expected.item(), rel=1e-5)
    np.testing.assert_allclose(rows[:, :DIM] - after[:, :DIM], to_x.numpy(), rtol=2e-4, atol=2e-4)
    if relations is not None:
        np.testing.assert_allclose(table - relations.rows, to_r.numpy(), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("model", ["dot", "distmult", "complex"])
@pytest.mark.parametrize("dim", [2, 10, 64])
def test_queries_in_one_pass_are_those_of_torch(make_runtime, model, reciprocal, dim):
    torch.manual_seed(4)
    stepper = Stepper(EmbedConfig(model=model, dim=dim, reciprocal=reciprocal), None, make_runtime())
    ends = tuple(torch.randn(n, dim) for n in (70, 70, 5))
    count = 0 if model == "dot" else 2 if reciprocal else 1
    relations = [torch.randn(70, dim) for _ in range(count)]
    results = []
    for make in (stepper._product, stepper._by_autograd):
        to_ends = tuple(torch.ones_like(e) for e in ends)
        to_relations = [torch.ones_like(r) for r in relations]
        queries, positive, back = make(ends, to_ends, relations, to_relations)
        torch.manual_seed(5)
        back(torch.randn(140, dim), torch.randn(140))
        results.append([queries, positive, *to_ends, *to_relations])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_configuration_reports_all_problems_at_once():
    with pytest.raises(ArgumentError) as error:
        EmbedConfig(dim=0, negatives=0, learning_rate=0, n3=-1, by_degree=2, optimizer="x", buffer=0, seed=-1)  # type: ignore[arg-type]
    for word in (
        "dim 0",
        "negatives 0",
        "rate 0",
        "n3 -1",
        "by_degree 2",
        "optimizer 'x'",
        "buffer 0",
        "seed -1",
    ):
        assert word in str(error.value)
    with pytest.raises(ArgumentError, match="known: dot, distmult"):
        score_function("mlp", 4)
    with pytest.raises(ArgumentError, match="dim 7 must be even"):
        score_function("complex", 7)
    with pytest.raises(ArgumentError, match="known: softmax"):
        loss_function("l", 1)
