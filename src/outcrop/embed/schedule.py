"""What is trained when: units of training in the sequence of an order, sweep after sweep.

Each partition of the order is made of slices, which are what lies on disk. An epoch is one or more sweeps over the
order, each with another part of the edges of every bucket, and for every sweep the slices are dealt out to partitions
anew, as MariusGNN deals partitions out to groups (Waleffe et al. 2023, section 5.1): nodes that are in memory together
are others each time, which is what accuracy depends on (docs/design/partitions-and-quality.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from outcrop.embed.orders import Order, State
from outcrop.runtime.keyed_random import key_of, mix64

UNIT_EDGES = 1 << 17  # read, shuffled and trained together

Swap = tuple[State, State]  # slices evicted, loaded


@dataclass(frozen=True, eq=False)
class TrainUnit:
    """Holds edges that are shuffled together: of all buckets that are trained at the same time.

    Attributes:
        number: Number of the unit in the epoch.
        pieces: int64 [k, 4]: (source, target, first, stop): edges ``first:stop``, all between these two slices.
        state: Slices that are resident.
        pool: Those of them that negatives come from: all that no swap touches.
        swap: (evicted, loaded) of the swap that begins before this unit; of a swap that nothing hides, after the last.
        last: Whether it is the last of its state: the swap must be over after it.
        exposed: Nothing of its state can be trained while the swap runs, which therefore begins after the last unit.
    """

    number: int
    pieces: np.ndarray
    state: tuple[int, ...]
    pool: tuple[int, ...]
    swap: Swap | None = None
    last: bool = False
    exposed: bool = False

    @property
    def num_edges(self) -> int:
        return int((self.pieces[:, 3] - self.pieces[:, 2]).sum())


class Schedule:
    """Lists the units of every epoch. They are the same for the same order, buckets and seed, whatever is in memory.

    The first state of a sweep is the last one of the sweep before: nothing is loaded between them.

    Args:
        slices: Slices of each partition of ``order``.
        starts: int64 [(partitions * slices)^2 + 1]: first edge of each bucket of slices.
        sweeps: Over the order, in an epoch.
    """

    def __init__(self, order: Order, slices: int, starts: np.ndarray, seed: int, sweeps: int = 1):
        self._order, self._starts, self._seed, self._sweeps = order, starts, seed, sweeps
        self._count = order.partitions * slices
        self._dealt = [self._random(0).reshape(order.partitions, slices)]

    def _random(self, sweep: int) -> np.ndarray:
        keys = np.random.Philox(key=np.array([self._seed, sweep], np.uint64)).random_raw(self._count)
        return np.argsort(keys, kind="stable")

    def partitions(self, sweep: int) -> np.ndarray:
        """Returns int64 [p, slices]: the slices of each partition in a sweep, counted through all epochs."""
        while len(self._dealt) <= sweep:
            before, rank = self._dealt[-1], self._random(len(self._dealt))
            first, last = self._order.states[0], self._order.states[-1]
            seats = list(first[: len(last)])
            stays = before[list(last[: len(seats)])].ravel()
            others = np.setdiff1d(before, stays)
            now = np.empty_like(before)
            free = np.setdiff1d(np.arange(len(now)), seats)
            for places, slices in ((seats, stays), (free, others)):
                now[places] = slices[np.argsort(rank[slices], kind="stable")].reshape(-1, now.shape[1])
            self._dealt.append(now)
        return self._dealt[sweep]

    @property
    def num_edges(self) -> int:
        return int(self._starts[-1])

    @property
    def most_edges(self) -> int:
        """A bound of the edges of a unit: each bucket may have one more than its share."""
        return min(self.num_edges, UNIT_EDGES + self._count**2)

    def _slices(self, sweep: int, state: State) -> tuple[int, ...]:
        return tuple(self.partitions(sweep)[list(state)].ravel().tolist())

    def units(self, epoch: int) -> Iterator[TrainUnit]:
        """Yields the units in order. Every edge is in one of them."""
        number = 0
        for sweep in range(epoch * self._sweeps, (epoch + 1) * self._sweeps):
            for unit in self._sweep(epoch, sweep, number):
                yield unit
                number = unit.number + 1

    def _sweep(self, epoch: int, sweep: int, number: int) -> Iterator[TrainUnit]:
        order, nothing = self._order, np.empty((0, 4), np.int64)
        for s, state in enumerate(order.states):
            here, swap, meanwhile = self._slices(sweep, state), None, 0
            if s < len(order.swaps):
                evicted, loaded = (self._slices(sweep, part) for part in order.swaps[s])
                swap, meanwhile = (evicted, loaded), len(order.overlapped[s])
            stay = tuple(part for part in here if not swap or part not in swap[0])
            begin = len(order.buckets[s]) - meanwhile
            units = [
                (pieces, during)
                for buckets, during in ((order.buckets[s][:begin], False), (order.buckets[s][begin:], True))
                for pieces in self._mixed(epoch, sweep, buckets)
            ]
            hidden = next((at for at, (_, during) in enumerate(units) if during), None)
            if not units and swap:  # nothing to train here, but the buffer must move on
                units = [(nothing, False)]
            for at, (pieces, during) in enumerate(units):
                last = at == len(units) - 1
                begins = at == hidden or (hidden is None and last)
                pool = stay if during else here
                yield TrainUnit(number, pieces, here, pool, swap if begins else None, last, hidden is None)
                number += 1

    def _mixed(self, epoch: int, sweep: int, buckets: tuple[tuple[int, int], ...]) -> Iterator[np.ndarray]:
        """Yields pieces of as few units as hold what this sweep trains of ``buckets``, an equal share of each in every
        unit; the shares are not the same ones together in every epoch.
        """
        if not buckets:
            return
        dealt, among = self.partitions(sweep), np.array(buckets)
        source = np.repeat(dealt[among[:, 0]], dealt.shape[1], axis=1).ravel()
        target = np.tile(dealt[among[:, 1]], dealt.shape[1]).ravel()
        bucket = source * self._count + target
        first, size = self._starts[bucket], self._starts[bucket + 1] - self._starts[bucket]
        part = sweep % self._sweeps
        first, stop = first + size * part // self._sweeps, first + size * (part + 1) // self._sweeps
        count = -(-int((stop - first).sum()) // UNIT_EDGES)
        turn = (mix64(bucket.astype(np.uint64) ^ key_of(self._seed, 2, epoch)) >> np.uint64(1)).astype(
            np.int64
        )
        for unit in range(count):
            share = (turn + unit) % count
            begin = first + (stop - first) * share // count
            end = first + (stop - first) * (share + 1) // count
            pieces = np.stack([source, target, begin, end], axis=1)
            yield pieces[begin < end]


def key_pair(*parts: int) -> np.ndarray:
    """Returns uint64 [2]: a key of NumPy's Philox for a tuple of numbers."""
    return np.concatenate([key_of(*parts), key_of(*parts, 1)])
