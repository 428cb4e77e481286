"""Passes over the splits of a training: started, checked before every batch, and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from outcrop.loading.consecutive import ConsecutiveLoader, ConsecutiveSession
from outcrop.loading.ranks import Ranks
from outcrop.loading.session import Between, Loader, LoadSession
from outcrop.runtime.runtime import Runtime
from outcrop.store.levels import Level

if TYPE_CHECKING:
    from outcrop.store.minibatch import MiniBatch

_ALONE = Ranks()
# Of these reports always say how many rows there were.
_NONE = dict.fromkeys((Level.DEVICE, Level.HOST, Level.DISK_CACHE, Level.PACKED), 0)


class Passes:
    """Starts passes over splits and counts what the latest one read.

    Args:
        session: What loads an epoch of a split.
        check: Called for every batch; raises to end the training.
        about: What else is counted of a training epoch.
        num_batches: Counts the batches of an epoch of a split; None, or where it knows none: passes go through all
            batches to begin with a later one.
        ranks: Which of the batches of a training epoch this process has; of other splits those of its rank in turn.
    """

    def __init__(
        self,
        session: Callable[[str, int], LoadSession | ConsecutiveSession],
        runtime: Runtime,
        check: Callable[[], None] | None = None,
        about: Callable[[int], dict[str, Any]] | None = None,
        num_batches: Callable[[str], int | None] | None = None,
        ranks: Ranks = _ALONE,
    ):
        self._session, self._runtime, self._check, self._about = session, runtime, check, about
        self._num_batches, self._ranks = num_batches, ranks
        self._epoch = 0
        self._loader: Loader | ConsecutiveLoader | None = None
        self._before = runtime.io.counters

    def start(self, split: str, epoch: int, first: int = 0) -> Iterator[MiniBatch]:
        """Begins a pass over the batches of an epoch from number ``first`` on, those that this process has."""
        session = self._session(split, epoch)
        self._epoch = epoch
        self._before = self._runtime.io.counters
        several = not self._ranks.alone
        count = self._num_batches(split) if (first or several) and self._num_batches else None
        numbers = None if count is None else self._numbers(split, first, count)
        self._loader = session.batches(split, epoch, numbers=numbers)
        batches = self._loader if self._check is None else _CheckedPass(self._loader, self._check)
        if first and numbers is None:
            for _ in islice(batches, first):
                pass
        return batches

    def _numbers(self, split: str, first: int, count: int) -> Sequence[int]:
        ranks = self._ranks
        if ranks.alone:
            return range(first, count)
        if split != "train":
            ranks = replace(ranks, accumulate=ranks.world)
        return [number for number in ranks.batches(count) if number >= first]

    def counters(self) -> dict[str, Any]:
        assert self._loader is not None
        now, stats, between = self._runtime.io.counters, self._loader.stats, self._loader.between
        return {
            "bytes_read": now.read_bytes - self._before.read_bytes - between.bytes_read,
            "read_ops": now.read_ops - self._before.read_ops - between.read_ops,
            "bytes_needed_from_disk": stats.bytes_needed,
            "rows_by_level": {**_NONE, **stats.rows_by_level},
            **({"rows_by_file": stats.rows_by_file} if len(stats.rows_by_file) > 1 else {}),
            **({} if self._about is None else self._about(self._epoch)),
        }


class _CheckedPass(Iterator["MiniBatch"]):
    """Looks before every batch of a pass whether to go on."""

    def __init__(self, loader: Loader | ConsecutiveLoader, check: Callable[[], None]):
        self._loader, self._check = loader, check

    def __next__(self) -> MiniBatch:
        self._check()
        return next(self._loader)

    @property
    def between(self) -> Between:
        return self._loader.between

    def close(self) -> None:
        self._loader.close()
