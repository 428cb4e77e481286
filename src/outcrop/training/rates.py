"""Learning rates in closed form, functions of the epoch and of the number of updates: resuming needs no state."""

from __future__ import annotations

import math

from outcrop.config import TrainConfig


def learning_rate(config: TrainConfig, epoch: int, update: int) -> float:
    """Returns the learning rate of one update.

    Equals ``torch.optim.lr_scheduler.CosineAnnealingLR(T_max=config.epochs)`` or ``StepLR(config.step_epochs,
    config.step_factor)``, stepped after every epoch, chained with ``LinearLR(1 / (config.warmup_steps + 1),
    total_iters=config.warmup_steps)``, stepped after every update.

    Args:
        epoch: Epoch of the update, from 0.
        update: Updates before it, of all epochs.
    """
    factor = 1.0
    if config.schedule == "cosine":
        factor = (1 + math.cos(math.pi * epoch / config.epochs)) / 2
    elif config.schedule == "step":
        factor = config.step_factor ** (epoch // config.step_epochs)
    if update < config.warmup_steps:
        factor *= (update + 1) / (config.warmup_steps + 1)
    return config.learning_rate * factor
