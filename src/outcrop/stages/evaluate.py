"""Accuracy and loss of a model over batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from outcrop.store.minibatch import MiniBatch


@dataclass(frozen=True)
class EvalResult:
    """Counts over the labelled seeds; ``loss_sum`` is the sum of their cross-entropies (in float64, nats)."""

    correct: int
    count: int
    loss_sum: float

    @property
    def accuracy(self) -> float:
        """Share of labelled seeds whose highest score is their label; NaN where there are none."""
        return self.correct / self.count if self.count else float("nan")

    @property
    def loss(self) -> float:
        return self.loss_sum / self.count if self.count else float("nan")


def evaluate(model: nn.Module, batches: Iterable[MiniBatch]) -> EvalResult:
    """Scores the seeds of ``batches`` without dropout or gradients; seeds labelled -1 are left out.

    The mode of the model and torch's random state are as before afterwards. Batches are not kept.
    """
    was_training, iterator = model.training, iter(batches)
    correct, count, loss_sum = 0, 0, 0.0
    model.eval()
    try:
        with torch.no_grad():
            while (batch := next(iterator, None)) is not None:
                found, labelled, loss = _score(model, batch)
                correct, count, loss_sum = correct + found, count + labelled, loss_sum + loss
                del batch
    finally:
        model.train(was_training)
        if (close := getattr(iterator, "close", None)) is not None:
            close()
    return EvalResult(correct, count, loss_sum)


def _score(model: nn.Module, batch: MiniBatch) -> tuple[int, int, float]:
    scores = model(batch)
    labelled = batch.y >= 0
    loss = F.cross_entropy(scores, batch.y, ignore_index=-1, reduction="none").double().sum()
    correct = (scores.argmax(1) == batch.y) & labelled
    return int(correct.sum()), int(labelled.sum()), float(loss)
