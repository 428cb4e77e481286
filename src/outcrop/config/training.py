"""How a model is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from outcrop.config.models import HEADS, MODELS
from outcrop.config.sizes import out_of_range
from outcrop.errors import ArgumentError

PRECISIONS = ("float32", "bfloat16")
SCHEDULES = ("constant", "cosine", "step")


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained.

    Attributes:
        hidden: Width between layers, for gat all heads together; None = 256, for gat 32 per head.
        layers: As many as the batches have hops.
        dropout: Share of hidden values zeroed between layers.
        device: cpu, cuda or cuda:N.
        trace_losses: Whether the result lists the loss of every batch.
        checkpoint_every: Epochs between checkpoints; the last epoch always has one.
        evaluate_every: Epochs between scores of the validation nodes; the last epoch always has one.
        patience: Training ends when the validation nodes were scored so many times without a better score; None: never.
        schedule: Learning rate from epoch to epoch: ``constant``; ``cosine``, to 0 after the last; ``step``: times
            ``step_factor`` after every ``step_epochs`` (:mod:`outcrop.training.rates`).
        warmup_steps: Updates at the beginning over which the rate rises linearly to where it should be.
        class_weights: What the loss of a seed counts, by its label: one number per class, or ``balanced``.
        precision: Of dense products in training: ``float32``, or ``bfloat16`` as under ``torch.autocast``. Parameters,
            sums over neighbours and scores of validation are float32 in both.
        loss, metric: What is learned, and what the best epoch is chosen by; None: as goes with the labels
            (:mod:`outcrop.training.objectives`).
        checkpoint_minutes: Time between checkpoints within an epoch; None: only between epochs; 0: after every batch.
    """

    model: str = "sage"
    hidden: int | None = None
    layers: int = 2
    heads: int = HEADS
    dropout: float = 0.0
    epochs: int = 10
    learning_rate: float = 3e-3
    weight_decay: float = 0.0
    seed: int = 0
    device: str = "cpu"
    trace_losses: bool = False
    checkpoint_every: int = 1
    evaluate_every: int = 1
    patience: int | None = None
    schedule: Literal["constant", "cosine", "step"] = "constant"
    warmup_steps: int = 0
    step_epochs: int = 10
    step_factor: float = 0.1
    class_weights: str | tuple[float, ...] | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    loss: str | None = None
    metric: str | None = None
    checkpoint_minutes: float | None = None

    def __post_init__(self) -> None:
        found = (self._problems_of_the_model, self._problems_of_learning, self._problems_of_weights)
        if problems := [problem for of in found for problem in of()]:
            raise ArgumentError("; ".join(problems))

    def _problems_of_the_model(self) -> list[str]:
        problems = []
        if self.model not in MODELS:
            problems.append(f"model {self.model!r} is unknown; known: {', '.join(MODELS)}")
        names = (
            "hidden", "layers", "heads", "epochs", "checkpoint_every", "evaluate_every", "patience", "step_epochs",
        )  # fmt: skip
        problems += out_of_range(**{name: getattr(self, name) for name in names})
        if self.model == "gat" and self.hidden is not None and self.heads >= 1 and self.hidden % self.heads:
            problems.append(f"hidden {self.hidden} is no multiple of heads {self.heads}")
        if not 0.0 <= self.dropout < 1.0:
            problems.append(f"dropout {self.dropout} is not in [0, 1)")
        return problems

    def _problems_of_learning(self) -> list[str]:
        problems = []
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
        if self.checkpoint_minutes is not None and not 0.0 <= self.checkpoint_minutes < math.inf:
            problems.append(f"{self.checkpoint_minutes} minutes between checkpoints are not possible")
        return problems

    def _problems_of_weights(self) -> list[str]:
        problems = []
        weights = self.class_weights
        if isinstance(weights, str) and weights != "balanced":
            problems.append(f"class weights {weights!r} are not 'balanced'; else give one number per class")
        if isinstance(weights, tuple) and not all(0.0 <= weight < math.inf for weight in weights):
            problems.append(f"class weights {weights} are not all finite and at least 0")
        return problems
