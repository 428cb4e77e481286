"""Training and evaluation: results, records, errors, what is kept and what is not."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from batch_reference import deliver, loopless_degrees, sample, shared_data
from outcrop.config import Checkpoints, ModelConfig, TrainConfig
from outcrop.errors import ArgumentError, DeviceError, NumericError
from outcrop.nn.models import MODELS, build_model
from outcrop.store.minibatch import MiniBatch
from outcrop.training.callbacks import Callback
from outcrop.training.evaluate import EvalResult, evaluate
from outcrop.training.loop import train
from training_support import CLASSES, DIM, Problem, Settings, a_runtime, learning, quick

__all__ = ["quick"]  # a fixture of every test here

CONFIG = Settings(hidden=16, epochs=3, learning_rate=0.01, seed=7)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem()


def same_tensors(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("name", MODELS)
def test_learns(problem, name):
    config = Settings(model=name, hidden=32, epochs=40, learning_rate=0.02)
    result = problem.run(config, valid_batches=None)
    losses = [record.loss for record in result.epochs]
    assert losses[-1] < 0.8 * losses[0]
    assert evaluate(result.model, problem.train_batches(99)).accuracy > 0.6


def test_equals_a_loop_written_out(problem):
    """The whole stage against its definition in plain torch, bit for bit."""
    config = replace(CONFIG, weight_decay=1e-3, trace_losses=True)
    result = problem.run(config, valid_batches=None)
    start = problem.run(
        replace(config, epochs=1, learning_rate=1e-30, weight_decay=0.0), valid_batches=None
    ).model
    model = build_model("sage", DIM, 16, CLASSES, 2)
    model.load_state_dict(start.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-3, fused=True)
    losses, means = [], []
    for epoch in range(3):
        epoch_losses = []
        for batch in problem.train_batches(epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), batch.y)
            loss.backward()
            optimizer.step()
            epoch_losses.append(loss.item())
        losses += epoch_losses
        means.append(np.mean(epoch_losses))
    assert result.batch_losses == losses
    assert [record.loss for record in result.epochs] == pytest.approx(means, rel=1e-12)
    assert same_tensors(model.state_dict(), result.model.state_dict())


@pytest.mark.parametrize("accumulate", [2, 3, 100])
def test_steps_of_several_batches_equal_a_loop_written_out(problem, accumulate):
    """As in a loop that adds up gradients: ``(((g_0 + g_1) + g_2) ...) / k``; the last step has what is left."""
    config = replace(CONFIG, trace_losses=True, weight_decay=1e-3, accumulate=accumulate)
    steps: list[dict] = []

    class Watching(Callback):
        def on_step(self, step, values):
            steps.append(dict(values))

    start = problem.run(
        replace(config, epochs=1, learning_rate=1e-30, weight_decay=0.0), valid_batches=None
    ).model
    result = problem.run(config, valid_batches=None, callbacks=[Watching()])
    model = build_model("sage", DIM, 16, CLASSES, 2)
    model.load_state_dict(start.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-3, fused=True)
    losses, means = [], []
    for epoch in range(config.epochs):
        batches = list(problem.train_batches(epoch))
        for first in range(0, len(batches), accumulate):
            optimizer.zero_grad()
            step = []
            for batch in batches[first : first + accumulate]:
                loss = F.cross_entropy(model(batch), batch.y)
                loss.backward()
                step.append(loss.item())
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= len(step)
            optimizer.step()
            losses += step
            means.append((epoch, min(first + accumulate, len(batches)) - 1, sum(step) / len(step)))
    assert result.batch_losses == losses
    assert same_tensors(model.state_dict(), result.model.state_dict())
    assert [(one["epoch"], one["batch"], one["loss"]) for one in steps] == means


def test_a_run_is_a_function_of_its_seed_and_leaves_torch_alone(problem):
    config = replace(CONFIG, dropout=0.5, trace_losses=True)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = problem.run(config)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert problem.run(config).batch_losses == first.batch_losses
    assert problem.run(replace(config, seed=8)).batch_losses != first.batch_losses
    assert problem.run(replace(config, dropout=0.0)).batch_losses != first.batch_losses


def test_dropout_differs_between_batches_and_epochs(problem):
    batch = next(problem.train_batches(0))
    config = replace(CONFIG, dropout=0.5, learning_rate=1e-30, epochs=3, trace_losses=True)
    losses = problem.run(config, train_batches=lambda _: [batch, batch]).batch_losses
    assert len(set(losses)) == 6


def test_best_epoch_is_the_earliest_of_equals_and_its_model_is_returned(problem):
    for accuracies, best in (([0.2, 0.7, 0.7, 0.1], 1), ([0.5, 0.5], 0), ([0.1, 0.2], 1)):
        scores, states = iter(accuracies), []

        def scored(model, batches, scores=scores, states=states):
            states.append({name: value.clone() for name, value in model.state_dict().items()})
            return SimpleNamespace(accuracy=next(scores))

        result = problem.run(replace(CONFIG, epochs=len(accuracies)), evaluate=scored)
        assert result.best_epoch == best
        assert [record.valid_accuracy for record in result.epochs] == accuracies
        assert same_tensors(result.model.state_dict(), states[best])
        assert len({value["convs.0.lin_l.weight"].sum().item() for value in states}) == len(states)


def test_validation_every_few_epochs_and_after_the_last(problem):
    for accuracies, best in (([0.2, 0.7, 0.1], 3), ([0.9, 0.7, 0.1], 1), ([0.1, 0.2, 0.3], 4)):
        scores = iter(accuracies)
        result = problem.run(
            replace(CONFIG, epochs=5, evaluate_every=2),
            evaluate=lambda model, batches, scores=scores: SimpleNamespace(accuracy=next(scores)),
        )
        assert [r.valid_accuracy for r in result.epochs] == [
            None, accuracies[0], None, accuracies[1], accuracies[2]
        ]  # fmt: skip
        assert result.best_epoch == best


def test_without_validation_the_last_epoch_is_best(problem):
    result = problem.run(CONFIG, valid_batches=None)
    assert result.best_epoch == 2
    assert [record.valid_accuracy for record in result.epochs] == [None] * 3


def test_records_carry_counters_beside_their_fields(problem):
    counts = iter([{"bytes_read": 10}, {"bytes_read": 20}, {"bytes_read": 30}])
    records = problem.run(CONFIG, counters=lambda: next(counts)).epochs
    assert [record.counters["bytes_read"] for record in records] == [10, 20, 30]
    assert records[0].to_json().keys() == {
        "epoch",
        "seconds",
        "load_seconds",
        "loss",
        "valid_accuracy",
        "valid_metric",
        "bytes_read",
    }
    assert all(0 <= record.load_seconds <= record.seconds for record in records)


@pytest.mark.parametrize("name", MODELS)
def test_no_batch_outlives_its_step(problem, name):
    """A loader's buffers are free when the next batch is asked for, without the garbage collector's help."""
    alive: list[weakref.ref] = []

    def watched(ids_key):
        for batch in problem.batches(problem.train_ids, ids_key):
            assert not any(reference() is not None for reference in alive)
            alive[:] = [weakref.ref(batch), weakref.ref(batch.x), weakref.ref(batch.x.untyped_storage())]
            yield_ = [batch]
            del batch
            yield yield_.pop()
        assert not any(reference() is not None for reference in alive)

    gc.disable()
    try:
        problem.run(
            Settings(model=name, hidden=16, epochs=2, dropout=0.3),
            train_batches=watched,
            valid_batches=lambda: watched(0),
        )
    finally:
        gc.enable()


def test_no_batches_is_an_error_before_anything_is_written(problem, tmp_path):
    with pytest.raises(ArgumentError, match="epoch 0 has no training batches"):
        problem.run(CONFIG, tmp_path / "out", train_batches=lambda _: [])
    assert not (tmp_path / "out").exists()


def test_an_infinite_loss_names_epoch_and_batch(problem):
    def poisoned(epoch):
        for number, batch in enumerate(problem.train_batches(epoch)):
            if (epoch, number) == (1, 2):
                batch.x[:] = float("inf")
            yield batch

    with pytest.raises(NumericError, match=r"epoch 1, batch 2: the loss is nan; .*learning rate"):
        problem.run(CONFIG, train_batches=poisoned)


def test_a_label_that_is_no_class_is_named(problem):
    def wrong(epoch):
        for batch in problem.train_batches(epoch):
            batch.y[0] = CLASSES
            yield batch

    with pytest.raises(ArgumentError, match="epoch 0, batch 0: label 3 is no class of 3"):
        problem.run(CONFIG, train_batches=wrong)


class ClosingIterator:
    def __init__(self, batches, fail_at=None):
        self.batches, self.closed, self.left = iter(batches), 0, fail_at

    def __iter__(self):
        return self

    def __next__(self):
        if self.left == 0:
            raise OSError("disk is gone")
        self.left = None if self.left is None else self.left - 1
        return next(self.batches)

    def close(self):
        self.closed += 1


def test_iterators_are_closed_also_on_errors(problem):
    opened: list[ClosingIterator] = []

    def remember(batches, fail_at=None):
        opened.append(ClosingIterator(batches, fail_at))
        return opened[-1]

    problem.run(
        replace(CONFIG, epochs=1),
        train_batches=lambda e: remember(problem.train_batches(e)),
        valid_batches=lambda: remember(problem.valid_batches()),
    )
    with pytest.raises(OSError, match="disk is gone"):
        problem.run(CONFIG, train_batches=lambda e: remember(problem.train_batches(e), 2))
    assert [iterator.closed for iterator in opened] == [1, 1, 1]


def test_unlabelled_seeds_do_not_count(problem):
    """Training with seeds labelled -1 equals training on the others; batches of them alone are skipped."""

    def masked(epoch):
        for number, batch in enumerate(problem.train_batches(epoch)):
            batch.y[::2] = -1
            if number == 1:
                batch.y[:] = -1
            yield batch

    result = problem.run(replace(CONFIG, trace_losses=True, epochs=1), train_batches=masked)
    assert result.batch_losses[1] == 0.0
    counts = [8, 0, 8, 8, 8]
    expected = sum(c * loss for c, loss in zip(counts, result.batch_losses, strict=True)) / sum(counts)
    assert result.epochs[0].loss == pytest.approx(expected, rel=1e-12)


def test_batches_without_labels_are_not_counted_in_a_step(problem):
    """A step of three batches of which one has no labelled seeds equals one of the other two."""

    def with_empty(epoch):
        first, second, *_ = problem.train_batches(epoch)
        empty = next(problem.train_batches(epoch))
        empty.y[:] = -1
        return [first, empty, second]

    def without(epoch):
        first, second, *_ = problem.train_batches(epoch)
        return [first, second]

    config = replace(CONFIG, accumulate=3)
    found = problem.run(config, train_batches=with_empty, valid_batches=None).model
    want = problem.run(config, train_batches=without, valid_batches=None).model
    assert same_tensors(found.state_dict(), want.state_dict())
    nothing = problem.run(config, train_batches=lambda e: with_empty(e)[1:2], valid_batches=None)
    assert [record.epoch for record in nothing.epochs] == [0, 1, 2]


class Fixed(torch.nn.Module):
    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def forward(self, batch):
        assert not self.training
        assert not torch.is_grad_enabled()
        return self.scores[: len(batch.y)]


def test_evaluation_counts_exactly(problem):
    scores = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 0.0], [1.0, 1.5]])
    labels = [torch.tensor([0, 1, 1, -1]), torch.tensor([1, -1]), torch.tensor([-1, -1])]
    batches = [MiniBatch(None, (torch.zeros(0),), y) for y in labels]  # type: ignore[arg-type]
    model = Fixed(scores).train()
    result = evaluate(model, batches)
    picked = [(0, 0), (1, 1), (2, 1), (0, 1)]
    loss = sum(
        math.log(sum(math.exp(s) for s in scores[row].tolist())) - scores[row, y].item() for row, y in picked
    )
    assert (result.correct, result.count) == (2, 4)
    assert result.accuracy == 0.5
    assert result.loss_sum == pytest.approx(loss, rel=1e-6)
    assert model.training
    assert math.isnan(EvalResult(0, 0, 0.0).accuracy)
    assert math.isnan(evaluate(model, []).loss)


def test_configuration_reports_all_problems_at_once():
    with pytest.raises(ArgumentError) as error:
        ModelConfig("mlp", layers=0, dropout=1.0)
    assert [word for word in ("mlp", "layers 0", "dropout 1.0") if word not in str(error.value)] == []
    with pytest.raises(ArgumentError) as error:
        TrainConfig(epochs=0, learning_rate=float("nan"), weight_decay=-1, evaluate_every=0)
    for word in ("epochs 0", "learning rate nan", "weight decay -1", "evaluate_every 0"):
        assert word in str(error.value)
    with pytest.raises(ArgumentError, match=r"epochs between checkpoints 0 .*-1\.0 minutes"):
        Checkpoints("folder", minutes=-1.0, every=0)
    with pytest.raises(ArgumentError, match="no multiple of heads 4"):
        ModelConfig("gat", hidden=30)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_an_error(problem):
    with pytest.raises(DeviceError, match="use --device cpu"):
        problem.run(replace(CONFIG, device="cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", MODELS)
def test_cuda_equals_cpu_closely(problem, name):
    def moved(batches):
        return (MiniBatch(b.graph, (b.x.cuda(),), b.y.cuda(), b.degree.cuda()) for b in batches)

    config = Settings(model=name, hidden=16, epochs=3, trace_losses=True)
    on_cuda = problem.run(
        replace(config, device="cuda"),
        train_batches=lambda e: moved(problem.train_batches(e)),
        valid_batches=lambda: moved(problem.valid_batches()),
    )
    assert on_cuda.batch_losses == pytest.approx(problem.run(config).batch_losses, rel=1e-3)


@pytest.fixture(scope="module")
def cora():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    with np.load(shared_data("gnnbench-cora") / "cora.npz", allow_pickle=False) as file:
        arrays = dict(file)
    parts = {
        kind: scipy_sparse.csr_array(
            (arrays[f"{kind}_data"], arrays[f"{kind}_indices"], arrays[f"{kind}_indptr"]),
            shape=tuple(arrays[f"{kind}_shape"]),
        )
        for kind in ("adj", "attr")
    }
    either = parts["adj"] + parts["adj"].T
    either.setdiag(0)
    either.eliminate_zeros()
    either.sort_indices()
    adjacency = [either.indices[a:b].tolist() for a, b in zip(either.indptr, either.indptr[1:], strict=False)]
    x = torch.from_numpy(parts["attr"].toarray().astype(np.float32))
    x /= x.sum(1, keepdim=True).clamp(min=1)
    return adjacency, x, arrays["labels"].astype(int).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_cora_reaches_the_published_range(cora, name):
    """20 training nodes per class and 1,000 test nodes, two layers over all neighbours: published 78 to 83 %."""
    adjacency, x, labels = cora
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).tolist()
    picked = [v for c in range(7) for v in [u for u in order if labels[u] == c][:20]]
    rest = [v for v in order if v not in set(picked)]
    valid, test = rest[:500], rest[500:1500]
    degrees = loopless_degrees(adjacency)
    batches = {
        split: deliver(sample(adjacency, ids, (-1, -1), labels=labels), x, degrees)
        for split, ids in (("train", picked), ("valid", valid), ("test", test))
    }
    config = Settings(
        model=name, hidden=64, heads=8, dropout=0.5, epochs=60, learning_rate=0.01, weight_decay=5e-4, seed=0
    )
    result = train(
        lambda _: [batches["train"]],
        lambda: [batches["valid"]],
        learning(config, x.shape[1], 7),
        a_runtime(),
        evaluate=evaluate,
    )
    accuracy = evaluate(result.model, [batches["test"]]).accuracy
    assert 0.76 <= accuracy <= 0.86
