"""When a training ends before its last epoch, and by what an epoch is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def stopped_early(records: Sequence[Mapping[str, Any]], best_epoch: int, patience: int | None) -> bool:
    """Tells whether the last ``patience`` scores of validation, by the records of the epochs, were no better than
    before.
    """
    if patience is None:
        return False
    since = [record for record in records[best_epoch + 1 :] if score_of(record) is not None]
    return len(since) >= patience


def score_of(record: Mapping[str, Any]) -> float | None:
    """Returns by what the best epoch is chosen; records of the first version have an accuracy alone."""
    metric = record.get("valid_metric")
    return record["valid_accuracy"] if metric is None else metric
