"""How a model is trained, and where its checkpoints go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from outcrop.config.declared import check_types
from outcrop.config.places import is_uri
from outcrop.config.sizes import out_of_range
from outcrop.errors import ArgumentError

PRECISIONS = ("float32", "bfloat16")
SCHEDULES = ("constant", "cosine", "step")


@dataclass(frozen=True)
class TrainConfig:
    """Says how a model is trained.

    Attributes:
        epochs: Epochs in all, those before the checkpoint included.
        learning_rate: Step size of Adam.
        weight_decay: L2 penalty of Adam.
        seed: The same seed gives the same parameters at the beginning and the same dropout.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        trace_losses: Whether the result lists the loss of every batch.
        evaluate_every: Epochs between scores of the validation nodes, which are drawn and read on the fly: with many of
            them that takes longer than an epoch. The last epoch always has one.
        patience: Training ends when the validation nodes were scored so many times without a better score; None: never.
        schedule: Learning rate from epoch to epoch: ``constant``; ``cosine``, to 0 after the last; or ``step``: times
            ``step_factor`` after every ``step_epochs``. torch's CosineAnnealingLR and StepLR.
        warmup_steps: Updates at the beginning over which the learning rate rises linearly; torch's LinearLR.
        step_epochs: Epochs between the steps of schedule ``step``.
        step_factor: What schedule ``step`` multiplies the learning rate by, above 0 and at most 1.
        class_weights: What the loss of a seed counts, by its label: one number per class, or ``balanced``.
        precision: Arithmetic of dense products in training: ``float32``, or ``bfloat16`` as under ``torch.autocast``.
            Parameters, sums over neighbours and scores of validation are float32 in both.
        loss: ``cross_entropy`` of classes; ``bce`` of multi-label targets; ``mse`` (default) or ``l1`` of regression.
        metric: What the best epoch and ``patience`` go by: of classes ``accuracy`` (default), ``macro_f1`` or ``auc``
            (each class against the others, the mean; of two, of the second); of multi-label targets ``micro_f1``
            (default), ``macro_f1``, ``accuracy`` or ``auc``; of regression ``mae`` (default) or ``rmse``.
        test: Whether the test nodes are scored at the end.
        accumulate: Batches of a step: parameters are updated by the mean gradient of so many batches, added up in their
            order. The last step of an epoch may have fewer. None: as a checkpoint that training goes on from has it,
            else one for each process that trains.
    """

    epochs: int = 10
    learning_rate: float = 3e-3
    weight_decay: float = 0.0
    seed: int = 0
    device: str = "cpu"
    trace_losses: bool = False
    evaluate_every: int = 1
    patience: int | None = None
    schedule: Literal["constant", "cosine", "step"] = "constant"
    warmup_steps: int = 0
    step_epochs: int = 10
    step_factor: float = 0.1
    class_weights: str | Sequence[float] | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    loss: str | None = None
    metric: str | None = None
    test: bool = True
    accumulate: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.class_weights is not None and not isinstance(self.class_weights, str):
            object.__setattr__(self, "class_weights", _as_weights(self.class_weights))
        if problems := [*self._problems_of_learning(), *self._problems_of_weights()]:
            raise ArgumentError("; ".join(problems))

    @property
    def step_batches(self) -> int:
        """Returns the batches of a step in one process."""
        return 1 if self.accumulate is None else self.accumulate

    def _problems_of_learning(self) -> list[str]:
        counts = ("epochs", "evaluate_every", "patience", "step_epochs", "accumulate")
        problems = out_of_range(**{name: getattr(self, name) for name in counts})
        if not 0.0 < self.learning_rate < math.inf:
            problems.append(f"learning rate {self.learning_rate} is not a positive number")
        if not 0.0 <= self.weight_decay < math.inf:
            problems.append(f"weight decay {self.weight_decay} is negative or not a number")
        if not -(2**63) <= self.seed < 2**64:
            problems.append(f"seed {self.seed} does not fit 64 bits")
        for name, known in (("schedule", SCHEDULES), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                problems.append(f"{name} {getattr(self, name)!r} is unknown; known: {', '.join(known)}")
        if self.warmup_steps < 0:
            problems.append(f"warmup steps {self.warmup_steps} is negative")
        if not 0.0 < self.step_factor <= 1.0:
            problems.append(f"step factor {self.step_factor} is not in (0, 1]")
        return problems

    def _problems_of_weights(self) -> list[str]:
        problems = []
        weights = self.class_weights
        if isinstance(weights, str) and weights != "balanced":
            problems.append(f"class weights {weights!r} are not 'balanced'; else give one number per class")
        if isinstance(weights, tuple) and not all(0.0 <= weight < math.inf for weight in weights):
            problems.append(f"class weights {weights} are not all finite and at least 0")
        return problems


def _as_weights(weights: Sequence[float]) -> tuple[float, ...]:
    try:
        return tuple(map(float, weights))
    except (TypeError, ValueError):
        raise ArgumentError(
            f"class_weights {weights!r} are not all numbers: give one number per class, or 'balanced'"
        ) from None


def with_epochs(training: TrainConfig | None, epochs: int | None) -> TrainConfig:
    """Returns ``training`` with ``epochs``, the short way to say it.

    Raises:
        ArgumentError: Both name epochs; the default of ``training`` counts as not named.
    """
    training = training or TrainConfig()
    if epochs is None:
        return training
    if training.epochs not in (TrainConfig.epochs, epochs):
        raise ArgumentError(
            f"epochs={epochs} and training=TrainConfig(epochs={training.epochs}): keep one of them"
        )
    return replace(training, epochs=epochs)


@dataclass(frozen=True)
class Checkpoints:
    """Says where checkpoints go, and how often.

    Attributes:
        folder: Folder of the checkpoints, or a URI (s3://BUCKET/FOLDER, gs://, abfs://, hdfs://, file:///FOLDER);
            training goes on from the one it holds. :func:`outcrop.load_model` reads the trained model from it.
        minutes: Time between checkpoints within an epoch, from which training goes on with the next batch; None: only
            between epochs; 0: after every step.
        every: Epochs between checkpoints; the last epoch always has one.
        resume: Whether training goes on from the checkpoint that is there; else it starts over and overwrites it.
        steps: Steps of an epoch between checkpoints within it, beside those by ``minutes``; None: none.
    """

    folder: str | Path
    minutes: float | None = None
    every: int = 1
    resume: bool = True
    steps: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        is_uri(self.folder)  # raises where it has lost a slash
        counts = {"epochs between checkpoints": self.every, "steps between checkpoints": self.steps}
        problems = out_of_range(**counts)
        if self.minutes is not None and not 0.0 <= self.minutes < math.inf:
            problems.append(f"{self.minutes} minutes between checkpoints are not possible")
        if problems:
            raise ArgumentError("; ".join(problems))

    @property
    def path(self) -> Path:
        return Path(self.folder)
