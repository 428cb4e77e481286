"""Learning options: schedules, early stopping, class weights, callbacks, and going on within an epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import outcrop as oc
from outcrop.config import TrainConfig
from outcrop.errors import ArgumentError, FormatError
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn import layers
from outcrop.nn.checkpoint import BEST, LAST
from outcrop.nn.models import MODELS, build_model
from outcrop.training.weights import class_weights
from training_support import CLASSES, DIM, Problem, Settings, quick

__all__ = ["quick"]  # a fixture of every test here
pytestmark = pytest.mark.leaks(
    "env", reason="torch sets TORCHINDUCTOR_CACHE_DIR when its compiler is first imported"
)

GRAPH = Path(__file__).parents[2] / "golden" / "checkpoint-0.1" / "graph.oc"
CONFIG = Settings(hidden=16, epochs=4, dropout=0.4, learning_rate=0.01, seed=3, trace_losses=True)
BATCHES = 5  # of an epoch of Problem
SCHEDULED = replace(CONFIG, schedule="cosine", warmup_steps=7)


class Noting(oc.Callback):
    """Keeps what it is told; raises before update ``stop``."""

    def __init__(self, stop: int | None = None):
        self.steps, self.epochs, self._stop = [], [], stop

    def on_step(self, step, values):
        if step == self._stop:
            raise KeyboardInterrupt
        self.steps.append((step, values))

    def on_epoch(self, epoch, values):
        self.epochs.append((epoch, values))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem()


def learned(result):
    """A result without its times."""
    return (
        [replace(record, seconds=0, load_seconds=0) for record in result.epochs],
        result.best_epoch,
        result.batch_losses,
    )


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("warmup", [0, 3, 12])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
def test_rates_are_those_of_torchs_schedulers(problem, schedule, warmup):
    config = replace(CONFIG, schedule=schedule, warmup_steps=warmup, step_epochs=2, step_factor=0.3, epochs=5)
    noted = Noting()
    problem.run(config, callbacks=[noted])
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    schedulers = torch.optim.lr_scheduler
    by_epoch = {
        "constant": lambda: schedulers.ConstantLR(optimizer, factor=1.0),
        "cosine": lambda: schedulers.CosineAnnealingLR(optimizer, T_max=5),
        "step": lambda: schedulers.StepLR(optimizer, 2, 0.3),
    }[schedule]()
    by_step = schedulers.LinearLR(optimizer, 1 / (warmup + 1), total_iters=warmup) if warmup else None
    rates = []
    for _ in range(5):
        for _ in range(BATCHES):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if by_step is not None:
                by_step.step()
        by_epoch.step()
    assert [values["learning_rate"] for _, values in noted.steps] == pytest.approx(rates, rel=1e-9)


def test_callbacks_hear_of_every_update_and_epoch(problem):
    noted = Noting()
    only_epochs = SimpleNamespace(
        on_epoch=lambda epoch, values: values.clear()
    )  # the others are told all the same
    result = problem.run(CONFIG, callbacks=[only_epochs, noted])
    assert [step for step, _ in noted.steps] == list(range(4 * BATCHES))
    assert [(v["epoch"], v["batch"]) for _, v in noted.steps] == [
        (e, b) for e in range(4) for b in range(BATCHES)
    ]
    assert [values["loss"] for _, values in noted.steps] == result.batch_losses
    assert noted.epochs == [(record.epoch, record.to_json()) for record in result.epochs]
    with pytest.raises(ArgumentError, match=r"has neither on_step\(step, values\) nor on_epoch"):
        problem.run(CONFIG, callbacks=[print])


@pytest.mark.parametrize("true", [True, np.True_])
def test_a_callback_ends_the_training(problem, tmp_path, true):
    """As if the epoch had been the last one; called again, the training goes on behind it."""
    noted = Noting()
    ending = SimpleNamespace(on_epoch=lambda epoch, values: true if epoch == 1 else 1)  # 1 is no answer
    stopped = problem.run(CONFIG, tmp_path / "a", callbacks=[ending, noted])
    short = problem.run(replace(CONFIG, epochs=2))
    assert stopped.stopped_early
    assert not short.stopped_early
    assert learned(stopped) == learned(short)
    assert same(stopped.model.state_dict(), short.model.state_dict())
    assert [epoch for epoch, _ in noted.epochs] == [0, 1], "the others hear of the last epoch"
    whole = problem.run(CONFIG)
    again = problem.run(CONFIG, tmp_path / "a")
    assert again.resumed_from == 2
    assert learned(again) == learned(whole)
    rarely = replace(CONFIG, evaluate_every=3)
    stopped, short = problem.run(rarely, callbacks=[ending]), problem.run(replace(rarely, epochs=2))
    assert learned(stopped) == learned(short), "its last epoch is validated, too"
    last = problem.run(CONFIG, callbacks=[SimpleNamespace(on_epoch=lambda epoch, values: epoch == 3)])
    assert not last.stopped_early, "all epochs were trained"


def test_training_stops_when_validation_gets_no_better(problem, tmp_path):
    scores = [0.2, 0.5, 0.4, 0.5, 0.6, 0.1]

    def run(folder, patience):
        """Every epoch has its own score, also where training goes on."""
        done = checkpoints.read(folder / LAST).meta.epochs_done if (folder / LAST).exists() else 0
        left = iter(scores[done:])
        config = replace(CONFIG, epochs=6, patience=patience, checkpoint_every=6)
        return problem.run(config, folder, evaluate=lambda *_: SimpleNamespace(accuracy=next(left)))

    stopped = run(tmp_path / "a", 2)
    assert ([r.valid_accuracy for r in stopped.epochs], stopped.best_epoch) == (scores[:4], 1)
    assert stopped.stopped_early
    again = run(tmp_path / "a", 2)  # nothing is trained, and nothing scored
    assert learned(again) == learned(stopped)
    assert again.stopped_early
    whole, gone_on = run(tmp_path / "b", None), run(tmp_path / "a", 3)
    assert not whole.stopped_early
    assert not gone_on.stopped_early
    assert learned(gone_on) == learned(whole)
    assert whole.best_epoch == 4
    for file in (LAST, BEST):
        assert same(load_file(tmp_path / "a" / file), load_file(tmp_path / "b" / file))
    with pytest.raises(ArgumentError, match="patience needs validation nodes"):
        problem.run(replace(CONFIG, patience=1), valid_batches=None)


def test_class_weights_weigh_the_loss(problem):
    weights = (0.5, 0.0, 2.0)
    config = replace(CONFIG, dropout=0.0, class_weights=weights, epochs=1)
    losses = problem.run(config, class_weights=weights).batch_losses
    start = problem.run(replace(config, learning_rate=1e-30), valid_batches=None).model
    batch = next(iter(problem.train_batches(0)))
    rows = F.log_softmax(build_and_load(start)(batch), 1).detach().double().numpy()
    by_seed = np.array(weights)[batch.y.numpy()]
    expected = -(rows[np.arange(len(rows)), batch.y.numpy()] * by_seed).sum() / by_seed.sum()
    assert losses[0] == pytest.approx(expected, rel=1e-5)


def build_and_load(model):
    made = build_model("sage", DIM, 16, CLASSES, 2)
    made.load_state_dict(model.state_dict())
    return made


def test_balanced_weights(make_runtime):
    runtime, graph = make_runtime(threads=1), oc.open_graph(GRAPH)
    labels = graph.array(runtime, "labels").memmap()[graph.split(runtime, "train")]
    counts = {label: int((labels == label).sum()) for label in set(labels.tolist())}
    expected = [len(labels) / (len(counts) * counts[c]) if c in counts else 0.0 for c in range(3)]
    assert class_weights(graph, "balanced", runtime) == pytest.approx(expected, rel=1e-12)
    assert class_weights(graph, None, runtime) is None
    with pytest.raises(ArgumentError, match="2 class weights are given for 3 classes"):
        class_weights(graph, (1.0, 2.0), runtime)


@pytest.mark.parametrize("stop", [1, 2, 3, 7])
def test_training_in_steps_of_several_batches_goes_on_between_them(problem, tmp_path, stop):
    """Killed before update ``stop``, of three in an epoch of five batches: two, two and one."""
    config = replace(SCHEDULED, checkpoint_minutes=0.0, accumulate=2)
    asked = []

    def batches(epoch, first=0):
        asked.append((epoch, first))
        return list(problem.train_batches(epoch))[first:]

    whole = problem.run(replace(SCHEDULED, accumulate=2), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        problem.run(config, tmp_path / "parts", train_batches=batches, callbacks=[Noting(stop)])
    assert checkpoints.read(tmp_path / "parts" / LAST).meta.updates == stop
    asked.clear()
    parts = problem.run(config, tmp_path / "parts", train_batches=batches)
    epoch, step = divmod(stop, 3)
    assert asked[0] == (epoch, 2 * step)
    assert parts.batch_losses == whole.batch_losses
    for file in (LAST, BEST):
        assert same(load_file(tmp_path / "whole" / file), load_file(tmp_path / "parts" / file))
    with pytest.raises(ArgumentError, match=r"accumulate \(there 2, now 1\)"):
        problem.run(replace(config, accumulate=1), tmp_path / "parts")


class Looking(oc.Callback):
    """Notes the batches of all epochs that the checkpoint has at each update, and ends before ``stop``."""

    def __init__(self, folder, stop=None):
        self.path, self.stop, self.seen = folder / LAST, stop, []

    def on_step(self, step, values):
        if step == self.stop:
            raise KeyboardInterrupt
        meta = checkpoints.read(self.path).meta if self.path.exists() else None
        self.seen.append(meta and BATCHES * meta.epochs_done + meta.partial.get("batch", 0))


@pytest.mark.parametrize(
    ("accumulate", "every", "saved"),
    [(1, 2, (2, 4, 5)), (2, 2, (4, 5)), (2, 1, (2, 4, 5)), (1, 3, (3, 5)), (1, 9, (5,))],
)
def test_a_checkpoint_after_every_so_many_steps_of_an_epoch(problem, tmp_path, accumulate, every, saved):
    """Of five batches, and at the end of each epoch; killed in the second one, it goes on from the last of them."""
    usual = replace(SCHEDULED, accumulate=accumulate)
    config = replace(usual, checkpoint_steps=every)
    whole = problem.run(usual, tmp_path / "whole")
    looking = Looking(tmp_path / "parts", stop=2 * -(-BATCHES // accumulate) - 1)
    with pytest.raises(KeyboardInterrupt):
        problem.run(config, tmp_path / "parts", callbacks=[looking])
    places = [epoch * BATCHES + batch for epoch in (0, 1) for batch in saved]
    starts = [e * BATCHES + batch for e in (0, 1) for batch in range(0, BATCHES, accumulate)]
    assert looking.seen == [max((p for p in places if p <= start), default=None) for start in starts[:-1]]

    def batches(epoch, first=0):
        asked.append(epoch * BATCHES + first)
        return list(problem.train_batches(epoch))[first:]

    asked: list[int] = []
    parts = problem.run(config, tmp_path / "parts", train_batches=batches)
    assert asked[0] == max(p for p in places if p <= starts[-1])
    assert parts.batch_losses == whole.batch_losses
    for file in (LAST, BEST):
        assert same(load_file(tmp_path / "whole" / file), load_file(tmp_path / "parts" / file))


@pytest.mark.parametrize("stop", [1, 2, 4, 5, 8, 19])
def test_training_goes_on_within_an_epoch_bit_for_bit(problem, tmp_path, stop):
    """Killed before update ``stop``; rates, dropout, sums and counters go on where they were."""
    config = replace(SCHEDULED, checkpoint_minutes=0.0)

    def run(folder, callbacks=()):
        asked = []

        def batches(epoch, first=0):
            asked.append((epoch, first))
            return list(problem.train_batches(epoch))[first:]

        def counters():  # of this pass
            return {"passes": 1, "levels": {"host": 2}}

        done = problem.run(config, folder, train_batches=batches, counters=counters, callbacks=callbacks)
        return done, asked

    whole = problem.run(SCHEDULED, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", [Noting(stop)])
    assert checkpoints.read(tmp_path / "parts" / LAST).meta.updates == stop
    if stop < BATCHES:
        with pytest.raises(FormatError, match="finished no epoch yet"):
            checkpoints.load_model(tmp_path / "parts")
    noted = Noting()
    parts, asked = run(tmp_path / "parts", [noted])
    assert [step for step, _ in noted.steps] == list(range(stop, 4 * BATCHES))
    epoch, batch = divmod(stop, BATCHES)
    assert asked == [(epoch, batch), *((e, 0) for e in range(epoch + 1, 4))]
    assert parts.batch_losses == whole.batch_losses
    assert [r.loss for r in parts.epochs] == [r.loss for r in whole.epochs]
    passes = [2 if batch and e == epoch else 1 for e in range(4)]
    assert [r.counters for r in parts.epochs] == [{"passes": n, "levels": {"host": 2 * n}} for n in passes]
    for file in (LAST, BEST):
        assert same(load_file(tmp_path / "whole" / file), load_file(tmp_path / "parts" / file))


@pytest.mark.parametrize("mode", ["packed", "online", "memory", "partition"])
def test_every_mode_goes_on_within_an_epoch(tmp_path, mode):
    options = {"mode": mode, "hidden": 4, "epochs": 2, "trace_losses": True, "memory": "8MiB"}
    options |= {"fanouts": [3, 2], "batch_size": 8, "sample_epochs": 2}
    if mode == "packed":
        oc.prepare(GRAPH, tmp_path / "run", fanouts=[3, 2], batch_size=8, epochs=2, memory="8MiB")
        options = {k: v for k, v in options.items() if k not in ("fanouts", "batch_size", "sample_epochs")}
        options["run"] = tmp_path / "run"
    whole = oc.train(GRAPH, **options)
    count = len(whole.batch_losses)
    assert count >= 8
    stopped = {**options, "checkpoint": tmp_path / "c", "checkpoint_minutes": 0}
    with pytest.raises(KeyboardInterrupt):
        oc.train(GRAPH, **stopped, callbacks=[Noting(count // 2 + 2)])
    noted = Noting()
    parts = oc.train(GRAPH, **stopped, callbacks=[noted])
    assert [step for step, _ in noted.steps] == list(range(count // 2 + 2, count))
    assert parts.batch_losses == whole.batch_losses
    assert same(parts.model.state_dict(), whole.model.state_dict())


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_rounds_factors_of_dense_products_and_nothing_else(problem, name):
    """Against float32 products of factors rounded by hand, forwards and backwards."""
    batch = next(iter(problem.train_batches(0)))
    torch.manual_seed(5)
    model = build_model(name, DIM, 16, CLASSES, 2)

    def results(low, product):
        model.zero_grad()
        with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16, enabled=low):
            if product is not None:
                patch.setattr(layers.Products, "mm", product)
                patch.setattr(layers.Products, "addmm", lambda self, bias, a, b: bias + self.mm(a, b))
                patch.setattr(layers.Products, "addmm_", lambda self, out, a, b: out.add_(self.mm(a, b)))
            scores = model(batch)
            F.cross_entropy(scores.float(), batch.y).backward()
        return [scores.detach(), *(p.grad.clone() for p in model.parameters())]

    def by_hand(self, left, right):
        return left.bfloat16().float() @ right.bfloat16().float()

    exact, low, oracle = results(False, None), results(True, None), results(False, by_hand)
    assert all(value.dtype == torch.float32 for value in low)
    for a, b, c in zip(exact, low, oracle, strict=True):
        assert not torch.equal(a, b)
        scale = float(c.abs().max()) + 1e-6
        assert float((b - c).abs().max()) < 0.02 * scale
        assert float((b - a).abs().max()) < 0.1 * scale


def test_training_in_bfloat16_goes_on_bit_for_bit(problem, tmp_path):
    config = replace(CONFIG, precision="bfloat16", epochs=3)
    whole = problem.run(config, tmp_path / "whole")
    problem.run(replace(config, epochs=1), tmp_path / "parts")
    assert learned(problem.run(config, tmp_path / "parts")) == learned(whole)
    assert whole.batch_losses != problem.run(replace(CONFIG, epochs=3)).batch_losses
    with pytest.raises(ArgumentError, match=r"precision \(there 'bfloat16', now 'float32'\)"):
        problem.run(replace(CONFIG, epochs=3), tmp_path / "parts")


def test_the_end_of_a_cosine_is_part_of_what_is_trained(problem, tmp_path):
    problem.run(replace(SCHEDULED, epochs=2), tmp_path)
    with pytest.raises(ArgumentError, match=r"differs in epochs \(there 2, now 3\)"):
        problem.run(replace(SCHEDULED, epochs=3), tmp_path)


def test_problems_of_learning_are_named_together():
    with pytest.raises(ArgumentError) as error:
        TrainConfig(
            schedule="linear",  # type: ignore[arg-type]
            warmup_steps=-1,
            step_factor=0.0,
            patience=0,
            class_weights="even",
        )
    for words in ("'linear' is unknown", "steps -1", "factor 0.0", "patience 0", "'even'"):
        assert words in str(error.value)


def test_steps_between_checkpoints_are_at_least_one():
    with pytest.raises(ArgumentError, match="steps between checkpoints"):
        oc.Checkpoints("folder", steps=0)
