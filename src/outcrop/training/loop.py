"""Training: epochs of batches from anywhere, validation after each, the best model kept, checkpoints.

A run is a function of the batches and of ``TrainConfig.seed``: parameters are initialised, and dropout is drawn, from
generators seeded by (seed, epoch, batch); the caller's random state is left alone. So a run that went on from a
checkpoint gives the same bits as one that was never interrupted.

No batch is kept when the next is asked for: loaders fill their buffers again.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from outcrop.config import Checkpoints
from outcrop.device import resolve
from outcrop.errors import ArgumentError, FormatError, NumericError, RankError
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.adam import Adam
from outcrop.nn.checkpoint import Checkpoint
from outcrop.nn.checkpoint_meta import BEST, LAST, Meta
from outcrop.nn.learned_rows import STATE as ROWS
from outcrop.nn.learned_rows import RowAdam
from outcrop.nn.models import Model, build_model, warm_allocator
from outcrop.nn.typed import TypedModel
from outcrop.runtime.group import Group
from outcrop.runtime.progress import skip
from outcrop.store.minibatch import MiniBatch
from outcrop.store.tensors import State, digest
from outcrop.training.callbacks import Callbacks
from outcrop.training.early_stopping import score_of, stopped_early
from outcrop.training.last_checkpoint import read_last
from outcrop.training.learning import LearningTask
from outcrop.training.metrics import loss_of, num_known
from outcrop.training.objectives import Objective
from outcrop.training.rates import learning_rate
from outcrop.training.steps import BatchLoss, OrderedGradients, OwnGradients, StepGradients
from outcrop.training.stored_checkpoints import StoredCheckpoints

if TYPE_CHECKING:
    from outcrop.runtime.progress import Progress
    from outcrop.runtime.runtime import Runtime
    from outcrop.runtime.trace import Trace


class Scores(Protocol):
    """Holds what a model scored on batches: the accuracy, and all metrics by name."""

    @property
    def accuracy(self) -> float: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...


Batches = Iterable[MiniBatch]
Evaluate = Callable[[Model | TypedModel, Batches], Scores]


@dataclass(frozen=True)
class EpochRecord:
    """Records one epoch.

    Attributes:
        seconds: Of the epoch, validation and checkpoint not counted.
        load_seconds: Of these, spent waiting for batches.
        loss: Mean loss of the labelled seeds.
        valid_accuracy: None without validation batches, and for labels that are no classes.
        valid_metric: What the best epoch is chosen by; of classes the accuracy, unless another metric was asked for.
        counters: What the caller counts, for example bytes read.
    """

    epoch: int
    seconds: float
    load_seconds: float
    loss: float
    valid_accuracy: float | None = None
    counters: dict[str, Any] = field(default_factory=dict)
    valid_metric: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the counters beside the fields."""
        flat = asdict(self)
        return flat | flat.pop("counters")


@dataclass(frozen=True)
class TrainResult:
    """Holds what a training has learned. ``model`` has the parameters of ``best_epoch``: best validation accuracy, the
    earliest of equals; without validation the last epoch. ``resumed_from``: epochs that a checkpoint had behind it,
    None without one. ``stopped_early``: validation got no better, or a callback said so, and training ended before its
    last epoch.
    """

    model: Model | TypedModel
    epochs: list[EpochRecord]
    best_epoch: int
    batch_losses: list[float]
    resumed_from: int | None = None
    stopped_early: bool = False


def train(
    batches_for_epoch: Callable[..., Batches],
    valid_batches: Callable[[], Batches] | None,
    learning: LearningTask,
    runtime: Runtime,
    *,
    evaluate: Evaluate,
    kept: Checkpoints | None = None,
    counters: Callable[[], dict[str, Any]] | None = None,
    class_weights: Sequence[float] | None = None,
    callbacks: Sequence[Any] = (),
    num_batches: int | None = None,
    group: Group | None = None,
) -> TrainResult:
    """Trains a model by Adam on the mean loss of each batch's labelled seeds.

    Args:
        batches_for_epoch: The batches of an epoch, counted from 0; where training goes on within it, called with the
            number of the first batch, too. An iterator with ``close`` is closed, also early; the seconds of one with
            ``between`` (:class:`outcrop.loading.session.Between`) are none of the epoch.
        valid_batches: Batches to score after an epoch.
        learning: Model and how it is trained; its ``layers`` are given.
        evaluate: Scores a model on batches; :func:`outcrop.training.evaluate.evaluate`.
        kept: Folder for ``last.safetensors`` and ``best.safetensors``, and when they are written; None writes none.
        counters: Called after each epoch's batches and before validation; goes into its record.
        class_weights: What ``TrainConfig.class_weights`` come to, one number per class.
        callbacks: Told of every update and epoch (:class:`outcrop.Callback`).
        num_batches: Batches of an epoch, of all processes; None where that is not known.
        group: The processes that train together; ``batches_for_epoch`` gives the batches of this one. None: it is
            alone.

    Raises:
        ArgumentError: No batches, a label that is no class, or a checkpoint of another training.
        NumericError: A loss is infinite or not a number.
        DeviceError: The device is not there.
        FormatError: The checkpoint cannot be read.
    """
    config, objective = learning.training, learning.objective
    every = config.epochs if kept is None else kept.every
    if config.patience is not None and valid_batches is None:
        raise ArgumentError("patience needs validation nodes to score: import a valid split, or leave it out")
    told = Callbacks(callbacks)
    group = group or Group()
    run = _Run(learning, kept, class_weights, told if group.leads else Callbacks(()), group, num_batches)
    with group.together("reading the checkpoint"):
        if kept is not None and kept.resume and (kept.path / LAST).exists():
            run.restore()
    group.require_same(run.place)
    warm_allocator()

    def score(record: EpochRecord) -> EpochRecord:
        if valid_batches is None:
            return record
        with runtime.trace.span("train.validate", epoch=record.epoch):
            with group.together("beginning to score"):
                scored = valid_batches()
            return _add_scores(record, evaluate(run.model, scored), objective)

    runtime.progress.start("train", config.epochs, "epochs")
    skip(runtime.progress, "train", min(run.epochs_done, config.epochs))
    showing = _EpochProgress(runtime.progress, num_batches)
    for epoch in range(run.epochs_done, config.epochs):
        if run.stopped:
            break
        with runtime.trace.span("train.epoch", epoch=epoch):
            first = run.sums.batch
            with group.together("beginning an epoch"):
                batches = batches_for_epoch(epoch, first) if first else batches_for_epoch(epoch)
            record = run.epoch(epoch, batches, runtime.trace, counters or dict, showing)
            run.require_equal(epoch)
        last, scores = epoch + 1 == config.epochs, (epoch + 1) % config.evaluate_every == 0
        if last or scores:
            record = score(record)
        with group.together("calling back after an epoch"):
            ends = group.leads and told.on_epoch(epoch, record.to_json())
        run.ended = any(group.gather(ends))
        if run.ended and not (last or scores):
            record = score(record)  # as the last one is
        run.finish(record)
        runtime.trace.event("train.record", **record.to_json())
        if last or run.stopped or (epoch + 1) % every == 0:
            with runtime.trace.span("train.checkpoint", epoch=epoch), group.together("writing a checkpoint"):
                run.save()
        showing.ended(_note(record, objective))
    runtime.progress.finish("train")
    return run.result()


def _add_scores(record: EpochRecord, scores: Scores, objective: Objective) -> EpochRecord:
    accuracy = scores.accuracy if objective.kind == "class" else None
    metric = accuracy if objective.metric == "accuracy" and accuracy is not None else None
    return replace(
        record,
        valid_accuracy=accuracy,
        valid_metric=scores.metrics[objective.metric] if metric is None else metric,
    )


def _note(record: EpochRecord, objective: Objective) -> str:
    score = score_of(vars(record))
    said = "" if score is None else f", validation {objective.metric.replace('_', ' ')} {score:.4f}"
    return f"loss {record.loss:.4f}{said}"


class _EpochProgress:
    """Shows which batch of which epoch a training has come to, and what is known of the epoch before."""

    def __init__(self, progress: Progress, num_batches: int | None):
        self._progress, self._before = progress, ""
        self._of = "" if num_batches is None else f" of {num_batches:,}"

    def batch(self, epoch: int, done: int) -> None:
        self._progress.note("train", f"epoch {epoch + 1}: {done:,}{self._of} batches{self._before}")
        self._progress.advance("train", 0)

    def ended(self, note: str) -> None:
        self._before = f"; the epoch before: {note}"
        self._progress.note("train", note)
        self._progress.advance("train", 1)


@dataclass
class _Sums:
    """Adds up what an epoch has come to. ``batch``: the number of the next one."""

    batch: int = 0
    loss: float = 0.0
    labelled: int = 0
    seconds: float = 0.0
    load_seconds: float = 0.0
    counters: dict[str, Any] = field(default_factory=dict)


# Counters of an epoch that are the same in all processes, or of one of them.
_NOT_ADDED = ("distinct_batches", "prepare_seconds")


def _added(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """Adds counters of the parts of an epoch, also those within counters; what is no number is of the last part."""
    sums = dict(left)
    for name, value in right.items():
        if isinstance(value, dict):
            sums[name] = _added(left.get(name, {}), value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            sums[name] = left.get(name, 0) + value
        else:
            sums[name] = value
    return sums


class _Run:
    """Holds model, optimizer and history of one training."""

    def __init__(
        self,
        learning: LearningTask,
        kept: Checkpoints | None,
        class_weights: Sequence[float] | None,
        callbacks: Callbacks,
        group: Group,
        num_batches: int | None,
    ):
        self._group, self._num_batches = group, num_batches
        self._learning, self._kept, self._callbacks = learning, kept, callbacks
        self._objective, self.config, self.num_classes = (
            learning.objective,
            learning.training,
            learning.num_classes,
        )
        self.device = resolve(self.config.device)
        shape = learning.model
        assert shape.layers is not None
        with _seeded(self.device, self.config.seed):
            model = build_model(
                shape.name,
                learning.model_inputs,
                shape.hidden,
                learning.num_classes,
                shape.layers,
                heads=shape.heads,
                dropout=shape.dropout,
            )
        if isinstance(model, Model):
            model.edge_weights = shape.edge_weights
        self.model = model.to(self.device)
        self.optimizer = Adam(self.model.parameters(), weight_decay=self.config.weight_decay)
        self.rows = RowAdam(self.model.learned if isinstance(self.model, TypedModel) else None)
        self.records: list[EpochRecord] = []
        self.batch_losses: list[float] = []
        parameters = list(self.model.parameters())
        self._gradients: StepGradients = (
            OwnGradients(parameters)
            if group.alone
            else OrderedGradients(group, parameters, self.config.step_batches)
        )
        self.best_epoch, self.best = -1, dict[str, torch.Tensor]()
        self.resumed_from: int | None = None
        self.updates, self.sums, self._saved = 0, _Sums(), time.monotonic()
        self._save_now = False
        self.ended = False  # by a callback
        self._weight = None
        if class_weights is not None:
            self._weight = torch.tensor(class_weights, dtype=torch.float32, device=self.device)

    @property
    def epochs_done(self) -> int:
        return len(self.records)

    @property
    def stopped(self) -> bool:
        """Tells whether a callback ended the training, or validation got no better for as long as patience lasts."""
        records = [vars(record) for record in self.records]
        return self.ended or stopped_early(records, self.best_epoch, self.config.patience)

    def epoch(
        self,
        epoch: int,
        batches: Batches,
        trace: Trace,
        counters: Callable[[], dict[str, Any]],
        showing: _EpochProgress,
    ) -> EpochRecord:
        """Trains what is left of the epoch."""
        self.model.train()
        self._gradients.exchange_seconds = 0.0
        before, sums = replace(self.sums), self.sums
        start = time.perf_counter()
        iterator = iter(batches)
        start -= _between(iterator)

        def seconds() -> float:
            return before.seconds + time.perf_counter() - _between(iterator) - start

        try:
            while self._step(epoch, iterator, trace):
                showing.batch(epoch, sums.batch)
                if self._save_now:
                    sums.seconds = seconds()
                    with (
                        trace.span("train.checkpoint", epoch=epoch),
                        self._group.together("writing a checkpoint"),
                    ):
                        sums.counters = _added(before.counters, self._counted(counters()))
                        self.save()
        finally:
            if (close := getattr(iterator, "close", None)) is not None:
                close()
        if sums.batch == 0:
            raise ArgumentError(f"epoch {epoch} has no training batches: the train split is empty")
        took = seconds()
        loss = sums.loss / sums.labelled if sums.labelled else math.nan
        counted = _added(before.counters, self._counted(counters()))
        self.sums = _Sums()
        return EpochRecord(epoch, took, sums.load_seconds, loss, counters=counted)

    def _step(self, epoch: int, iterator: Iterator[MiniBatch], trace: Trace) -> bool:
        """Trains on the batches of the next step; False where the epoch is over."""
        sums = self.sums
        stop = sums.batch + self.config.step_batches
        if not self._group.alone:
            return self._step_of_several(epoch, iterator, trace, stop)
        for number in range(sums.batch, stop):
            batch = self._next(iterator)
            if batch is None:
                if number > sums.batch:  # the epoch ended within a step
                    self._update(epoch, number)
                return False
            with trace.span("compute", split="train", epoch=epoch, batch=number):
                self._train_on(batch, epoch, number)
                del batch
                if number + 1 == stop:
                    self._update(epoch, stop)
        return True

    def _step_of_several(self, epoch: int, iterator: Iterator[MiniBatch], trace: Trace, stop: int) -> bool:
        """Does the same in one of several processes: it computes its own batches, and hears of the others'."""
        begin, num_batches = self.sums.batch, self._num_batches
        assert num_batches is not None
        if begin == num_batches:
            with self._group.together("the end of an epoch"):
                self._next(iterator)  # which may say what was wrong with the last one
            return False
        stop = min(stop, num_batches)
        try:
            for number in range(begin + self._group.rank, stop, self._group.world):
                batch = self._next(iterator)
                if batch is None:
                    raise RankError(f"epoch {epoch} ended before batch {number} of {num_batches}")
                with trace.span("compute", split="train", epoch=epoch, batch=number):
                    self._train_on(batch, epoch, number)
                del batch
        except Exception as error:
            self._gradients.fail(error)
        with trace.span("exchange", split="train", epoch=epoch, batch=stop - 1):
            self._update(epoch, stop)
        return True

    def _next(self, iterator: Iterator[MiniBatch]) -> MiniBatch | None:
        asked = time.perf_counter() - _between(iterator)
        batch = next(iterator, None)
        self.sums.load_seconds += time.perf_counter() - _between(iterator) - asked
        return batch

    @property
    def place(self) -> dict[str, Any]:
        """Returns where the training is, as plain values: what a checkpoint has given, the same in all processes."""
        state = self.model.state_dict() | self.optimizer.state()
        where = {
            "epochs done": self.epochs_done,
            "batches of the next": self.sums.batch,
            "updates": self.updates,
        }
        return where | ({} if self._group.alone else {"parameters": digest(state)})

    def require_equal(self, epoch: int) -> None:
        """Checks that all processes have learned the same; where processors differ, sees to it.

        Raises:
            RankError: They have not.
        """
        if self._group.alone:
            return
        state = self.model.state_dict() | self.optimizer.state()
        digests = self._group.gather(digest(state))
        other = next((rank for rank, found in enumerate(digests) if found != digests[0]), None)
        if other is None:
            return
        if not self._group.alike:
            self._group.follow(state.values())
            return
        raise RankError(
            f"rank {other} has learned other parameters than rank 0 in epoch {epoch}: its processor, its memory or the "
            "network gave other values; start again, without that machine: training goes on from its last checkpoint"
        )

    def _counted(self, own: dict[str, Any]) -> dict[str, Any]:
        """Returns the counters of all processes, added up, and what exchanging gradients took."""
        if self._group.alone:
            return own
        found: dict[str, Any] = {}
        waits = self._group.gather((own, self.sums.load_seconds, self._gradients.exchange_seconds))
        for counted, _, _ in waits:
            found = _added(found, counted)
        found["ranks"] = {
            "load_seconds": [load for _, load, _ in waits],
            "exchange_seconds": [exchange for _, _, exchange in waits],
            "bytes_read": [counted.get("bytes_read", 0) for counted, _, _ in waits],
        }
        return found | {name: own[name] for name in _NOT_ADDED if name in own}

    def _is_time_to_save(self, stop: int) -> bool:
        """Tells whether a checkpoint is due after the step that ends before batch ``stop``."""
        kept = self._kept
        if kept is None or not self._group.leads:
            return False
        if kept.steps is not None and -(-stop // self.config.step_batches) % kept.steps == 0:
            return True
        return kept.minutes is not None and time.monotonic() - self._saved >= 60 * kept.minutes

    def _train_on(self, batch: MiniBatch, epoch: int, number: int) -> None:
        """Adds a batch to the step; one whose seeds have no labels adds nothing."""
        count = num_known(self._objective, batch.y)
        if count == 0:
            self._gradients.add(BatchLoss(0.0, 0))
            return
        if self._objective.kind == "class" and int(batch.y.max()) >= self.num_classes:
            raise ArgumentError(
                f"epoch {epoch}, batch {number}: label {int(batch.y.max())} is no class of "
                f"{self.num_classes}, counted from 0"
            )
        low = self.config.precision == "bfloat16"
        with (
            _seeded(self.device, self.config.seed, epoch, number, needed=self._learning.model.dropout > 0),
            torch.autocast(self.device.type, torch.bfloat16) if low else nullcontext(),
        ):
            scores = self.model(batch)
        loss = loss_of(self._objective, scores, batch.y, self._weight)
        self._gradients.begin()
        loss.backward()
        value = loss.item()
        if not math.isfinite(value):
            raise NumericError(
                f"epoch {epoch}, batch {number}: the loss is {value}; look for infinite or missing "
                f"values in the features, or lower the learning rate ({self.config.learning_rate})"
            )
        self._gradients.add(BatchLoss(value, count))

    def _update(self, epoch: int, stop: int) -> None:
        """Ends a step before batch ``stop``: one update by the mean gradient of its batches with labelled seeds."""
        sums = self.sums
        batches, told = self._gradients.finish(stop - sums.batch, [float(self._is_time_to_save(stop))])
        for loss, labelled in batches:
            sums.loss, sums.labelled = sums.loss + loss * labelled, sums.labelled + labelled
        if self.config.trace_losses:
            self.batch_losses.extend(loss for loss, _ in batches)
        sums.batch = stop
        losses = [loss for loss, labelled in batches if labelled]
        if losses:
            rate = learning_rate(self.config, epoch, self.updates)
            self.optimizer.step(rate, len(losses))
            self.rows.step(rate, self.updates + 1)
            values = {
                "epoch": epoch,
                "batch": stop - 1,
                "loss": sum(losses) / len(losses),
                "learning_rate": rate,
            }
            self._callbacks.on_step(self.updates, values)
            self.updates += 1
        self._save_now = bool(told.any()) and self.updates > 0

    def finish(self, record: EpochRecord) -> None:
        """Adds the record and keeps the model if it is the best so far."""
        self.records.append(record)
        if self.best_epoch >= 0:
            before, now = score_of(vars(self.records[self.best_epoch])), score_of(vars(record))
            if before is not None and (now is None or not self._objective.better(now, before)):
                return
        self.best_epoch, self.best = record.epoch, {}  # the copy before goes first
        self.best = {
            name: value.detach().to("cpu", copy=True) for name, value in self.model.state_dict().items()
        }

    def save(self) -> None:
        """Writes both files; within an epoch only ``last``: the best model is as it was. Of several processes one
        does."""
        if self._kept is None or not self._group.leads:
            return
        out = self._kept.path
        meta = Meta(
            self.epochs_done,
            self.best_epoch,
            self._learning.identity,
            self._learning.inputs,
            [asdict(record) for record in self.records],
            self.batch_losses,
            self.updates,
            asdict(self.sums) if self.sums.batch else {},
            list(self._group.processors),
        )
        state: State = self.model.state_dict()
        checkpoints.write(
            out / LAST,
            Checkpoint(meta, state, self.best, self.optimizer.state() | self.rows.state()),
        )
        if not meta.partial:
            checkpoints.write(out / BEST, Checkpoint(meta, self.best))
        if isinstance(self._kept, StoredCheckpoints):
            self._kept.push()
        self._saved = time.monotonic()

    def restore(self) -> None:
        assert self._kept is not None
        path = self._kept.path / LAST
        found = read_last(self._kept.path, self._learning)
        checkpoints.load_into(path, self.model, found.model)
        self.optimizer.restore({n: v for n, v in found.optimizer.items() if not n.startswith(ROWS)})
        try:
            self.rows.restore(found.optimizer)
            self.records = [EpochRecord(**record) for record in found.meta.history]
            self.updates, self.sums = found.meta.updates, _Sums(**found.meta.partial)
            if len(self.records) != found.meta.epochs_done or not -1 <= found.meta.best_epoch < len(
                self.records
            ):
                raise ValueError(f"{len(self.records)} records of {found.meta.epochs_done} epochs")
        except (TypeError, ValueError) as error:
            raise FormatError(
                f"{path} lacks or garbles a field ({error}): train again, or point to another folder"
            ) from None
        self.batch_losses = list(found.meta.batch_losses)
        self.best_epoch, self.best = found.meta.best_epoch, found.best
        self.resumed_from = self.epochs_done
        if self._group.leads:
            checkpoints.renew_best(self._kept.path, found)

    def result(self) -> TrainResult:
        self.model.load_state_dict(self.best)
        early = self.stopped and self.epochs_done < self.config.epochs
        return TrainResult(
            self.model, self.records, self.best_epoch, self.batch_losses, self.resumed_from, early
        )


def _between(batches: Iterator[MiniBatch]) -> float:
    """Returns the seconds that a pass stood still so far for what is no part of the epoch."""
    between = getattr(batches, "between", None)
    return 0.0 if between is None else between.seconds


@contextmanager
def _seeded(device: torch.device, *key: int, needed: bool = True) -> Iterator[None]:
    """Seeds torch by ``key`` within the block and gives the caller's random state back after it."""
    if not needed:
        yield
        return
    text = ",".join(map(str, key)).encode()
    seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    if device.type == "cuda":
        with torch.random.fork_rng(devices=[device]):
            torch.manual_seed(seed)
            yield
        return
    # Equals torch.manual_seed within torch.random.fork_rng, which look for a GPU, for half a millisecond a step.
    generator = torch.default_generator
    before = generator.get_state()
    try:
        generator.manual_seed(seed)
        yield
    finally:
        generator.set_state(before)
