"""Callbacks: objects that are told what every update and every epoch of a training gave.

TensorBoard::

    class Board(oc.Callback):
        writer = SummaryWriter("logs")
        def on_step(self, step, values): self.writer.add_scalar("loss", values["loss"], step)

Weights & Biases, after ``wandb.init(project=...)``::

    class Wandb(oc.Callback):
        def on_epoch(self, epoch, values): wandb.log(values, step=epoch)

MLflow, within ``with mlflow.start_run():``::

    class MLflow(oc.Callback):
        def on_epoch(self, epoch, values): mlflow.log_metric("loss", values["loss"], step=epoch)

Optuna, which ends trials that promise little::

    class Pruning(oc.Callback):
        def on_epoch(self, epoch, values):
            trial.report(values["valid_metric"], epoch)
            return trial.should_prune()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from outcrop.errors import ArgumentError


class Callback:
    """Is told what training does; inherit from it and say what to do. Any object with one of its methods will do.

    An error that is raised in a callback ends the training, which goes on from its last checkpoint.
    """

    def on_step(self, step: int, values: dict[str, Any]) -> None:
        """Is called after every update.

        Args:
            step: Updates before this one, of all epochs; goes on where a training is resumed.
            values: ``epoch``, ``batch`` (of the epoch, from 0), ``loss`` (of the batch), ``learning_rate``.
        """

    def on_epoch(self, epoch: int, values: dict[str, Any]) -> bool | None:
        """Is called after every epoch, when it was validated and before its checkpoint. Where it returns True, the
        training ends with this epoch as with its last one: it is validated, and the best model is kept, tested and
        returned.

        Args:
            epoch: From 0.
            values: What ``--json`` has of the epoch: ``loss``, ``valid_accuracy``, ``seconds``, ``bytes_read`` ...
        """


class Callbacks:
    """Calls several callbacks in order.

    Raises:
        ArgumentError: One has neither ``on_step`` nor ``on_epoch``.
    """

    def __init__(self, callbacks: Sequence[Any]):
        for callback in callbacks:
            if not any(callable(getattr(callback, name, None)) for name in ("on_step", "on_epoch")):
                raise ArgumentError(
                    f"callback {callback!r} has neither on_step(step, values) nor on_epoch(epoch, values): see "
                    "outcrop.Callback"
                )
        self._on_step = [c.on_step for c in callbacks if hasattr(c, "on_step")]
        self._on_epoch = [c.on_epoch for c in callbacks if hasattr(c, "on_epoch")]

    def on_step(self, step: int, values: dict[str, Any]) -> None:
        for call in self._on_step:
            call(step, dict(values))

    def on_epoch(self, epoch: int, values: dict[str, Any]) -> bool:
        """Tells whether one of them ends the training; all are called."""
        said = [call(epoch, dict(values)) for call in self._on_epoch]
        return any(isinstance(one, bool | np.bool_) and bool(one) for one in said)
