"""Loss and metrics of a model over batches."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from outcrop.runtime.group import Group
from outcrop.store.minibatch import MiniBatch
from outcrop.training.metrics import BatchTally, Tally, batch_tally, loss_of, num_known
from outcrop.training.objectives import CLASSES, Objective


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


def evaluate(
    model: nn.Module,
    batches: Iterable[MiniBatch],
    objective: Objective = CLASSES,
    group: Group | None = None,
) -> EvalResult:
    """Scores the seeds of ``batches`` without dropout or gradients; what is unknown of their labels is left out.

    The mode of the model and torch's random state are as before afterwards. Batches are not kept; the scores of all
    seeds are for the metric ``auc``.

    Args:
        group: Processes that score together; ``batches`` are then those of this one, number ``rank``, ``rank + world``
            and so on. The result is that of all batches in their order. None: this one is alone.
    """
    group = group or Group()
    tally, correct, count, loss_sum = Tally(objective), 0, 0, 0.0
    with closing(_scored(model, batches, objective, group)) as scored:
        for one in scored:
            tally.add(one.tallied)
            correct, count, loss_sum = correct + one.correct, count + one.labelled, loss_sum + one.loss
    return EvalResult(correct, count, loss_sum, tally.values())


def _scored(model: nn.Module, batches: Iterable[MiniBatch], objective: Objective, group: Group) -> _Scores:
    """Yields what each batch came to, those of all processes, in the order of the batches."""
    if group.alone:
        yield from _scores(model, batches, objective)
        return
    with group.together("scoring"):
        own = list(_scores(model, batches, objective))
    for turn in zip_longest(*group.gather(own)):
        yield from (one for one in turn if one is not None)


class _BatchScores(NamedTuple):
    """Says what a batch came to: what :class:`EvalResult` adds up, and what the metrics do."""

    correct: int
    labelled: int
    loss: float
    tallied: BatchTally


_Scores = Generator[_BatchScores, None, None]


def _scores(model: nn.Module, batches: Iterable[MiniBatch], objective: Objective) -> _Scores:
    was_training, iterator = model.training, iter(batches)
    model.eval()
    try:
        while (batch := next(iterator, None)) is not None:
            with torch.no_grad():
                scored = _score(model, batch, objective)
            del batch
            yield scored
    finally:
        model.train(was_training)
        if (close := getattr(iterator, "close", None)) is not None:
            close()


def _score(model: nn.Module, batch: MiniBatch, objective: Objective) -> _BatchScores:
    scores = model(batch)
    tallied = batch_tally(objective, scores, batch.y)
    if objective.kind != "class":
        known = num_known(objective, batch.y)
        loss = float(loss_of(objective, scores, batch.y)) * known if known else 0.0
        return _BatchScores(0, known, loss, tallied)
    labelled = batch.y >= 0
    loss = F.cross_entropy(scores, batch.y, ignore_index=-1, reduction="none").double().sum()
    correct = (scores.argmax(1) == batch.y) & labelled
    return _BatchScores(int(correct.sum()), int(labelled.sum()), float(loss), tallied)
