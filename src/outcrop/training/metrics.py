"""Losses and metrics of an objective, computed from scores and labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from outcrop.training.objectives import METRICS, Objective


def num_known(objective: Objective, y: Tensor) -> int:
    """Counts the seeds that have a label, or some of their targets."""
    if objective.kind == "class":
        return int((y >= 0).sum())
    known = ~y.isnan()
    return int((known.any(1) if known.dim() == 2 else known).sum())


def loss_of(objective: Objective, scores: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Returns the mean loss of what is known, a scalar.

    Args:
        scores: float [n, columns].
        y: Labels as the objective has them.
        weight: float [num_classes], of classes only.
    """
    if objective.kind == "class":
        return F.cross_entropy(scores, y, weight=weight, ignore_index=-1)
    target = y.view_as(scores)
    known = ~target.isnan()
    compute = {"bce": F.binary_cross_entropy_with_logits, "mse": F.mse_loss, "l1": F.l1_loss}[objective.loss]
    return compute(scores[known], target[known])


@dataclass(frozen=True)
class BatchTally:
    """Says what a batch adds to the metrics of an objective.

    Attributes:
        known, right: Labels that are known, and those of them that were found.
        absolute, squared: Sums of errors, of regression.
        counts: float64 [3, columns]: true positives, false positives, false negatives; None of regression.
        scores: What only ``auc`` needs: scores and labels, both float32 [n, columns].
    """

    known: int
    right: int = 0
    absolute: float = 0.0
    squared: float = 0.0
    counts: Tensor | None = None
    scores: tuple[Tensor, Tensor] | None = None


def batch_tally(objective: Objective, scores: Tensor, y: Tensor) -> BatchTally:
    """Returns what a batch adds up to.

    Args:
        scores: float [n, columns].
        y: Labels as the objective has them.
    """
    scores, y = scores.detach().float().cpu(), y.cpu()
    if objective.kind == "regression":
        error = (scores.double() - y.view_as(scores).double()).abs()
        error = error[~error.isnan()]
        return BatchTally(len(error), 0, float(error.sum()), float(error.square().sum()))
    if objective.kind == "class":
        tally = class_tally(scores.argmax(1), y, scores.shape[1])
        if objective.metric != "auc":
            return tally
        there, columns = y >= 0, scores.shape[1]
        true = F.one_hot(y[there], columns)
        return replace(
            tally, scores=(_against_rest(scores[there]), (true[:, 1:] if columns == 2 else true).float())
        )
    known, found, true = ~y.isnan(), scores > 0, y > 0.5
    right = int(((found == true) & known).sum())
    parts = [found & true & known, found & ~true & known, ~found & true & known]
    counts = torch.stack([part.sum(0) for part in parts]).double()
    kept = (scores, y) if objective.metric == "auc" else None
    return BatchTally(int(known.sum()), right, counts=counts, scores=kept)


def class_tally(found: Tensor, y: Tensor, columns: int) -> BatchTally:
    """Returns what classes that were found add up to.

    Args:
        found: int64 [n], below ``columns``.
        y: int64 [n], below ``columns``; -1 = unknown.
        columns: Number of classes.
    """
    there = y >= 0
    found, y = found[there], y[there]
    right = found == y
    parts = (y[right], found[~right], y[~right])
    counts = torch.stack([torch.bincount(part, minlength=columns) for part in parts]).double()
    return BatchTally(len(y), int(right.sum()), counts=counts)


@dataclass
class Tally:
    """Adds up what the metrics of an objective need, batch by batch, on the CPU."""

    objective: Objective

    def __post_init__(self) -> None:
        self._counts: Tensor | None = None
        self._right = self._known = 0
        self._absolute = self._squared = 0.0
        self._scores: list[tuple[Tensor, Tensor]] = []

    def add(self, batch: BatchTally) -> None:
        """Adds a batch."""
        self._right, self._known = self._right + batch.right, self._known + batch.known
        self._absolute, self._squared = self._absolute + batch.absolute, self._squared + batch.squared
        if batch.scores is not None:
            self._scores.append(batch.scores)
        if batch.counts is not None:
            self._counts = batch.counts if self._counts is None else self._counts + batch.counts

    def values(self) -> dict[str, float]:
        """Returns every metric of the kind by name; ``auc`` where it is the objective's. NaN where nothing was
        known.
        """
        known = self._known or math.nan
        if self.objective.kind == "regression":
            return {"mae": self._absolute / known, "rmse": math.sqrt(self._squared / known)}
        values = {"accuracy": self._right / known}
        if self._counts is None:
            return dict.fromkeys(METRICS[self.objective.kind], math.nan)
        true, wrong, missed = self._counts
        total = 2 * true + wrong + missed
        by_column = torch.where(total > 0, 2 * true / total.clamp(min=1), 0.0)
        if self.objective.kind == "class":  # of classes that are there, or were found
            values["macro_f1"] = float(by_column[total > 0].mean())
        else:
            values["micro_f1"] = float(2 * true.sum() / total.sum().clamp(min=1))
            values["macro_f1"] = float(by_column.mean())
        if self._scores:
            scores, y = (torch.cat(parts) for parts in zip(*self._scores, strict=True))
            values["auc"] = mean_auc(scores, y)
        return values


def _against_rest(scores: Tensor) -> Tensor:
    """Returns what ranks each class against the others: log-probabilities [n, classes]; of two classes [n, 1]."""
    if scores.shape[1] == 2:
        return scores[:, 1:] - scores[:, :1]
    return scores.log_softmax(1)


def mean_auc(scores: Tensor, y: Tensor) -> float:
    """Returns the mean over columns of the area under the ROC curve; columns without both labels are left out.

    Equals scikit-learn's ``roc_auc_score`` of each column's known values: the chance that a positive scores above a
    negative, ties half.

    Args:
        scores: float32 [n, columns].
        y: float32 [n, columns] of 0 and 1, NaN = unknown.
    """
    areas = []
    for column, target in zip(scores.unbind(1), y.unbind(1), strict=True):
        known = ~target.isnan()
        values, positive = column[known], target[known] > 0.5
        above, below = int(positive.sum()), int((~positive).sum())
        if not above or not below:
            continue
        order = values.sort().values
        # Middle of the ranks of equals, counted from 1/2.
        rank = (
            torch.searchsorted(order, values) + torch.searchsorted(order, values, right=True)
        ).double() / 2
        areas.append((float(rank[positive].sum()) - above * above / 2) / (above * below))
    return sum(areas) / len(areas) if areas else math.nan
