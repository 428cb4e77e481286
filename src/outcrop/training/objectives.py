"""What is learned and by what it is judged: the loss and the metric that go with a kind of labels, by name.

They are computed in :mod:`outcrop.training.metrics`: nothing here needs torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from outcrop.errors import ArgumentError

# The first of each is the default.
LOSSES = {"class": ("cross_entropy",), "multilabel": ("bce",), "regression": ("mse", "l1")}
METRICS = {
    "class": ("accuracy", "macro_f1", "auc"),
    "multilabel": ("micro_f1", "macro_f1", "accuracy", "auc"),
    "regression": ("mae", "rmse"),
}
_LOWER_IS_BETTER = ("mae", "rmse")


@dataclass(frozen=True)
class Objective:
    """Says what a training minimises and measures; made by :func:`choose_objective`.

    Attributes:
        kind: Of the labels: ``class`` (int64 [n], -1 = unknown), ``multilabel`` (float32 [n, columns] of 0 and 1, NaN =
            unknown) or ``regression`` (float32 [n] or [n, columns], NaN = unknown).
        loss: ``cross_entropy``; ``bce``: torch's ``binary_cross_entropy_with_logits``; ``mse`` or ``l1``: means over
            what is known.
        metric: What the best epoch is chosen by: a name in ``METRICS[kind]``.
    """

    kind: str = "class"
    loss: str = "cross_entropy"
    metric: str = "accuracy"

    def better(self, now: float, before: float) -> bool:
        """Tells whether a score is better than one before; anything is better than none (NaN)."""
        if math.isnan(before):
            return True
        return now < before if self.metric in _LOWER_IS_BETTER else now > before


CLASSES = Objective()


def choose_objective(kind: str, loss: str | None = None, metric: str | None = None) -> Objective:
    """Returns the objective for labels of ``kind``.

    Raises:
        ArgumentError: The loss or the metric is for another kind.
    """
    for name, value, known in (("loss", loss, LOSSES[kind]), ("metric", metric, METRICS[kind])):
        if value is not None and value not in known:
            raise ArgumentError(
                f"{name} {value!r} does not go with labels of kind {kind}; known: {', '.join(known)}"
            )
    return Objective(kind, loss or LOSSES[kind][0], metric or METRICS[kind][0])
