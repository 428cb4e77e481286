"""Which schedule a training of embeddings has: partitions in an order, or slices that are exchanged one at a time."""

from __future__ import annotations

import numpy as np

from outcrop.config import EmbedConfig
from outcrop.embed.buckets import Buckets
from outcrop.embed.orders import ORDERS
from outcrop.embed.rounds import make_rounds
from outcrop.embed.schedule import Schedule
from outcrop.embed.slice_schedule import SliceSchedule
from outcrop.errors import ArgumentError

SLICES = "slices"  # the order that is none of partitions


def make_schedule(buckets: Buckets, config: EmbedConfig, starts: np.ndarray) -> Schedule:
    """Returns the schedule that ``config`` asks for.

    Args:
        starts: First edge of each bucket of slices (:meth:`outcrop.embed.buckets.Buckets.starts`).

    Raises:
        ArgumentError: There is no such order, or none for so many partitions, groups or slices in memory.
    """
    groups = config.groups or 1
    if config.order not in (*ORDERS, SLICES):
        raise ArgumentError(f"order {config.order!r} is unknown; known: {', '.join((*ORDERS, SLICES))}")
    if config.order != SLICES:
        rounds = make_rounds(config.order, buckets.partitions, config.buffer, groups)
        return Schedule(rounds, buckets.slices, starts, config.seed, config.sweeps)
    if groups > 1:
        raise ArgumentError(
            f"order slices trains one group of slices, and {groups} are asked for (--groups, or a process each): "
            "choose another order, or train in one process without --groups"
        )
    resident = min(config.buffer, buckets.partitions) * buckets.slices
    return SliceSchedule(buckets.division.parts, resident, starts, config.seed, config.sweeps)
