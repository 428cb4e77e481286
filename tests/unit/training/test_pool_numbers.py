"""Which batches each pool holds: every batch of every epoch once, in order, against a list of all of them."""

from __future__ import annotations

import pytest

from outcrop.advisor.epochs_at_a_time import EpochBytes
from outcrop.config import SampleConfig
from outcrop.training.pool_numbers import PoolNumbers


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(("batches", "part"), [(7, 3), (7, 1), (7, 7), (7, 9), (6, 3), (1, 1)])
def test_pools_of_parts_hold_every_batch_once(fresh: bool, batches: int, part: int) -> None:
    epochs, sampling = 5, SampleConfig((2,), 4, epochs=2, splits=("train", "valid"))
    numbers = PoolNumbers(sampling, epochs, fresh, part, batches)
    held = []
    for pool in range(numbers.count):
        config = numbers.config(pool)
        assert (config.splits, config.epochs) == (("train",), 1)
        own = config.batches_of("train", batches)
        assert own == numbers.batches_in(pool)
        assert numbers.first_epoch(pool) % (epochs if fresh else 2) == config.first_epoch
        held += [(numbers.first_epoch(pool), batch, pool) for batch in own]
        assert (pool, own) in list(numbers.of_epoch(numbers.first_epoch(pool)))
    assert [(epoch, batch) for epoch, batch, _ in held] == [
        (e, b) for e in range(epochs) for b in range(batches)
    ]
    for epoch, batch, pool in held:
        assert numbers.number(epoch, batch) == pool
    # Where an epoch was trained to its end the first of the next is wanted; after the last epoch there is none.
    ended = [numbers.number(epoch, batches) for epoch in range(epochs)]
    assert ended == [*(numbers.number(epoch) for epoch in range(1, epochs)), numbers.count - 1]


@pytest.mark.parametrize("each", [1, 2, 5, 8])
def test_pools_of_whole_epochs(each: int) -> None:
    numbers = PoolNumbers(SampleConfig((2,), 4, epochs=each), 5)
    assert numbers.count == len(range(0, 5, each))
    for epoch in range(5):
        pool = numbers.number(epoch, 3)
        config = numbers.config(pool)
        assert config.first_epoch <= epoch < config.first_epoch + config.epochs <= 5
        assert not config.is_part
    assert [numbers.first_epoch(pool) for pool in range(numbers.count)] == list(range(0, 5, each))


def test_the_most_batches_of_a_part() -> None:
    """The largest of which rows and caches fit, by trying all."""
    for cached in (0, 300, 5000):
        size = EpochBytes(epoch=1000, evaluation=0, rows=900, most_cached=cached, train_batches=20)
        for space in (10, 94, 95, 250, 299, 300, 349, 350, 1000, 1300, 1900, 9000):
            fit = [n for n in range(21) if n * 50 + min(cached, n * 45) <= space]
            assert size.part_fitting(space) == max(fit)
