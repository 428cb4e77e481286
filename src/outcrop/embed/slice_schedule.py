"""What is trained when, where slices are exchanged one at a time: more nodes meet more others than with partitions.

The slice that has been in memory longest goes, and another comes that has not yet met those that stay, until every two
have met. All edges among those that are there are trained, shuffled together, before a swap and, of those that stay,
meanwhile; of a bucket a share each time that both of its slices are there. So edges of many slices are together at any
moment, which is what accuracy depends on (docs/design/partitions-and-quality.md). A sweep reads 1.2 to 1.3 times what
one over 8 or 12 partitions does, 3 of them in memory; more where there are more of both.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from outcrop.embed.schedule import Schedule, Swap, TrainUnit, share_of
from outcrop.errors import ArgumentError

State = tuple[int, ...]  # the slices that are resident, the oldest first


class SliceSchedule(Schedule):
    """Lists the units of every epoch, as :class:`Schedule` does, of one group.

    Args:
        count: Slices.
        resident: Slices in memory.
        starts: int64 [count^2 + 1]: first edge of each bucket of slices.
        sweeps: Times that an epoch brings every two slices together.

    Raises:
        ArgumentError: No two slices fit in memory.
    """

    def __init__(self, count: int, resident: int, starts: np.ndarray, seed: int, sweeps: int = 1):
        if min(2, count) > resident:
            raise ArgumentError(
                f"{resident} of {count} slices in memory are no two: raise --buffer to 2 or more"
            )
        self._starts, self._seed, self._sweeps, self._count = starts, seed, sweeps, count
        self._resident = min(resident, count)
        self._begins = _begins(count, self._resident, seed)
        if not self._begins:
            self._begins.append(tuple(self._random(0)[: self._resident].tolist()))
        self._latest: tuple[int, list[State]] | None = None

    @property
    def groups(self) -> int:
        return 1

    @property
    def most_resident(self) -> int:
        return self._resident

    def holders(self, epoch: int, round: int) -> np.ndarray:
        return np.zeros(self._count, np.int64)

    def states(self, sweep: int) -> list[State]:
        """Returns the states of a sweep, counted through all epochs; the first is the last of the sweep before."""
        while self._latest is None or self._latest[0] != sweep:
            at = min(sweep, len(self._begins) - 1)
            states = _states(self._begins[at], self._count, self._random(at + 1))
            if at + 1 == len(self._begins):
                self._begins.append(states[-1])
            self._latest = (at, states)
        return self._latest[1]

    def _sweep(self, epoch: int, sweep: int, turn: int, group: int, number: int) -> Iterator[TrainUnit]:
        states = self.states(epoch * self._sweeps + sweep)
        moments = _moments(states)
        times = np.zeros((self._count, self._count), np.int64)  # that two slices are trained together
        for _, there in moments:
            times[np.ix_(there, there)] += 1
        so_far = np.zeros_like(times)
        for s, there in moments:
            swap: Swap | None = None
            if len(there) < len(states[s]):
                swap = states[s][:1], states[s + 1][-1:]
            last = swap is not None or s + 1 == len(states)
            units = list(self._units_of(epoch, sweep, there, so_far, times))
            so_far[np.ix_(there, there)] += 1
            for at, pieces in enumerate(units):
                yield TrainUnit(
                    number,
                    (epoch, number),
                    pieces,
                    states[s],
                    tuple(there.tolist()),
                    swap if at == 0 else None,
                    last and at == len(units) - 1,
                )
                number += 1

    def _units_of(
        self, epoch: int, sweep: int, there: np.ndarray, so_far: np.ndarray, times: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yields pieces of as few units as hold what is trained of the slices ``there``; one at least."""
        source, target = np.repeat(there, len(there)), np.tile(there, len(there))
        shares = times[source, target]
        share = (self.turn(source, target, epoch) + so_far[source, target]) % shares
        first, stop = share_of(*self.part(source, target, sweep), share, shares)
        count = max(self.units_for(first, stop), 1)
        for unit in range(count):
            begin, end = share_of(first, stop, unit, count)
            pieces = np.stack([source, target, begin, end], axis=1)
            yield pieces[begin < end]


@functools.lru_cache(maxsize=4)
def _begins(count: int, resident: int, seed: int) -> list[State]:
    """Returns the first states of the sweeps that were asked for so far, for all schedules of these numbers: each
    follows from the one before, and an evaluation or a look ahead makes a schedule of its own.
    """
    return []


def _states(begin: Sequence[int], count: int, rank: np.ndarray) -> list[State]:
    """Exchanges slices until every two of ``count`` have been together.

    Args:
        begin: Those in memory, the oldest first.
        rank: int64 [count], which of those that are as good comes first.
    """
    state = list(begin)
    states = [tuple(state)]
    apart = np.ones((count, count), bool)  # pairs that have not been together
    left = apart.sum(1)  # of each slice
    urgent = np.arange(len(state) - 1, 0, -1)  # of those that stay: the oldest leaves first
    while True:
        among = np.ix_(state, state)
        left[state] -= apart[among].sum(1)
        apart[among] = False
        if not left.any():
            return states
        gain = (apart[:, state[1:]] @ urgent * (count + 1) + left) * count + rank
        gain[state] = -1
        state = [*state[1:], int(np.argmax(gain))]
        states.append(tuple(state))


def _moments(states: Sequence[State]) -> list[tuple[int, np.ndarray]]:
    """Returns when what is trained, (number of the state, slices): before a swap all that are there, meanwhile those
    that stay.
    """
    found = []
    for s, state in enumerate(states):
        found.append((s, np.array(state)))
        if s + 1 < len(states):
            found.append((s, np.array(state[1:])))
    return found
