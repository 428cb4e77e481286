"""Loss and metrics of a model over batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from outcrop.store.minibatch import MiniBatch
from outcrop.training.objectives import CLASSES, Objective, Tally


@dataclass(frozen=True)
class EvalResult:
    """Counts over the labelled seeds.

    Attributes:
        correct: Of them, those whose highest score is their label; 0 for labels that are no classes.
        loss_sum: Sum of their losses (float64; cross-entropies in nats): mean of each batch times its labelled seeds.
        metrics: Every metric of the objective by name (:data:`outcrop.training.objectives.METRICS`).
    """

    correct: int
    count: int
    loss_sum: float
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """Returns the share of labelled seeds whose highest score is their label; NaN where there are none."""
        return self.correct / self.count if self.count else float("nan")

    @property
    def loss(self) -> float:
        return self.loss_sum / self.count if self.count else float("nan")


def evaluate(model: nn.Module, batches: Iterable[MiniBatch], objective: Objective = CLASSES) -> EvalResult:
    """Scores the seeds of ``batches`` without dropout or gradients; what is unknown of their labels is left out.

    The mode of the model and torch's random state are as before afterwards. Batches are not kept; the scores of all
    seeds are for the metric ``auc``.
    """
    was_training, iterator = model.training, iter(batches)
    correct, count, loss_sum, tally = 0, 0, 0.0, Tally(objective)
    model.eval()
    try:
        with torch.no_grad():
            while (batch := next(iterator, None)) is not None:
                found, labelled, loss = _score(model, batch, objective, tally)
                correct, count, loss_sum = correct + found, count + labelled, loss_sum + loss
                del batch
    finally:
        model.train(was_training)
        if (close := getattr(iterator, "close", None)) is not None:
            close()
    return EvalResult(correct, count, loss_sum, tally.values())


def _score(model: nn.Module, batch: MiniBatch, objective: Objective, tally: Tally) -> tuple[int, int, float]:
    scores = model(batch)
    tally.add(scores, batch.y)
    if objective.kind != "class":
        known = objective.num_known(batch.y)
        return 0, known, float(objective.loss_of(scores, batch.y)) * known if known else 0.0
    labelled = batch.y >= 0
    loss = F.cross_entropy(scores, batch.y, ignore_index=-1, reduction="none").double().sum()
    correct = (scores.argmax(1) == batch.y) & labelled
    return int(correct.sum()), int(labelled.sum()), float(loss)
