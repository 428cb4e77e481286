"""Which batches each sample pool of a training holds: those of whole epochs, or a part of those of one epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from outcrop.advisor.epochs_at_a_time import num_batches
from outcrop.config import SampleConfig
from outcrop.training.batch_request import BatchRequest


@dataclass(frozen=True)
class PoolNumbers:
    """Numbers the pools of a training from 0 on, in the order in which they are trained on.

    A pool holds ``sampling.epochs`` epochs; or, where ``part`` is given, ``part`` batches of one epoch, the last one of
    an epoch what is left. Then an epoch has several pools, and where epochs are replayed the same parts are prepared
    again each time.

    Attributes:
        sampling: What is sampled.
        epochs: Epochs that are trained.
        fresh: Whether every epoch has batches of its own, instead of those of ``sampling.epochs`` epochs.
        part: Batches of a pool that holds a part of an epoch; None: pools hold whole epochs.
        batches: Batches of an epoch; does not matter where pools hold whole epochs.
    """

    sampling: SampleConfig
    epochs: int
    fresh: bool = True
    part: int | None = None
    batches: int = 0

    @classmethod
    def of_request(cls, request: BatchRequest) -> PoolNumbers:
        """Numbers the pools of the training that ``request`` is from."""
        part, sampling = request.pool_batches, request.sampling
        batches = 0 if part is None else num_batches(request.graph, sampling, "train")
        return cls(sampling, request.epochs, request.refresh, part, batches)

    @property
    def pools_an_epoch(self) -> int:
        """Counts the pools of an epoch, where each holds a part of it; else 1."""
        return 1 if self.part is None else max(-(-self.batches // self.part), 1)

    @property
    def epochs_a_pool(self) -> int:
        """Counts the epochs that a pool has batches of."""
        return self.sampling.epochs if self.part is None else 1

    @property
    def count(self) -> int:
        """Counts the pools of the training."""
        return -(-self.epochs // self.epochs_a_pool) * self.pools_an_epoch

    def number(self, epoch: int, batch: int = 0) -> int:
        """Returns the pool that has ``batch`` of ``epoch``; where the epoch ends before it, the pool after that."""
        first = epoch // self.epochs_a_pool * self.pools_an_epoch
        if self.part is not None:
            first += self.pools_an_epoch if batch >= self.batches else batch // self.part
        return min(first, self.count - 1)

    def first_epoch(self, number: int) -> int:
        """Returns the epoch of the training that pool ``number`` begins with."""
        return number // self.pools_an_epoch * self.epochs_a_pool

    def batches_in(self, number: int) -> range:
        """Returns which batches of its epoch pool ``number`` holds, of those that hold a part of one."""
        assert self.part is not None
        first = number % self.pools_an_epoch * self.part
        return range(first, min(first + self.part, self.batches))

    def of_epoch(self, epoch: int) -> Iterator[tuple[int, range]]:
        """Yields the pools that hold parts of ``epoch``, in order, and which of its batches each holds."""
        first = epoch * self.pools_an_epoch
        for number in range(first, first + self.pools_an_epoch):
            yield number, self.batches_in(number)

    def config(self, number: int) -> SampleConfig:
        """Returns what is sampled for pool ``number``."""
        first = self.first_epoch(number)
        if self.part is None:
            epochs = min(self.sampling.epochs, self.epochs - first)
            return replace(self.sampling, splits=("train",), first_epoch=first, epochs=epochs)
        held = self.batches_in(number)
        return replace(
            self.sampling,
            splits=("train",),
            first_epoch=first if self.fresh else self.sampling.epoch_number("train", first),
            epochs=1,
            first_batch=held.start,
            batches=len(held),
        )
