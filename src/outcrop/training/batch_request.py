"""Which batches a training asks for: what those who supply them have in common."""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.config import PlanConfig, SampleConfig, TopologyChoice
from outcrop.loading.modes import Packed
from outcrop.loading.needs import BatchCounter
from outcrop.runtime.progress import Progress
from outcrop.store.graph import Graph


@dataclass(frozen=True)
class BatchRequest:
    """Says which batches of a graph a training asks for, and within which limits.

    Attributes:
        epochs: Number of epochs of the training.
        next_epoch: First epoch that is still to be trained; None: all are done.
        next_batch: Batch of ``next_epoch`` that training goes on with.
        refresh: Whether every epoch has batches of its own, instead of those of
            ``sampling.epochs`` epochs again and again.
        rate: Bytes per second of preparing beside training; None = no limit.
        pool_batches: Batches of an epoch that are prepared at a time, in sample pools that hold a part of one; None:
            whole epochs are.
        concurrent: Whether pools are prepared beside training where the budget is large enough.
        topology: Where neighbour lists are read from.
        paranoid: Whether the rows of every batch are compared with their checksums.
        counter: Memory of how large batches are, where a budget is refused and modes are tried.
    """

    graph: Graph
    sampling: SampleConfig
    limits: PlanConfig
    epochs: int
    next_epoch: int | None
    next_batch: int = 0
    refresh: bool = False
    rate: int | None = None
    pool_batches: int | None = None
    concurrent: bool = True
    topology: TopologyChoice = "automatic"
    paranoid: bool = False
    progress: Progress | None = None
    counter: BatchCounter | None = None

    @property
    def packed(self) -> Packed:
        """Returns the mode that loads what is prepared for it."""
        return Packed(paranoid=self.paranoid)
