"""What is trained when: units of training in the sequence of an order, sweep after sweep.

Each partition of the order is made of slices, which are what lies on disk. An epoch is one or more sweeps over the
order, each with another part of the edges of every bucket, and for every sweep the slices are dealt out to partitions
anew, as MariusGNN deals partitions out to groups (Waleffe et al. 2023, section 5.1): nodes that are in memory together
are others each time, which is what accuracy depends on (docs/design/partitions-and-quality.md).

Several groups (:mod:`outcrop.embed.rounds`) train at the same time, each its partitions of a round; a sweep has all
rounds. Slices that a group had in the last round of a sweep are dealt out among its partitions of the first round of
the next, so that nothing moves between groups there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from outcrop.embed.orders import State
from outcrop.embed.orders.between import last_states
from outcrop.embed.rounds import Rounds
from outcrop.runtime.keyed_random import key_of, mix64

UNIT_EDGES = 1 << 17  # read, shuffled and trained together

Swap = tuple[State, State]  # slices evicted, loaded


@dataclass(frozen=True, eq=False)
class TrainUnit:
    """Holds edges that are shuffled together: of all buckets that are trained at the same time.

    Attributes:
        number: Number of the unit among those of its group in a round; where there is one group, in the epoch.
        key: What makes its random numbers its own, beside the seed.
        pieces: int64 [k, 4]: (source, target, first, stop): edges ``first:stop``, all between these two slices.
        state: Slices that are resident.
        pool: Those of them that negatives come from: all that no swap touches.
        swap: (evicted, loaded) of the swap that begins before this unit; of a swap that nothing hides, after the last.
        last: Whether it is the last of its state: the swap must be over after it.
        exposed: Nothing of its state can be trained while the swap runs, which therefore begins after the last unit.
        leaving: Those evicted by the swap that the group will not have again in this round.
    """

    number: int
    key: tuple[int, ...]
    pieces: np.ndarray
    state: tuple[int, ...]
    pool: tuple[int, ...]
    swap: Swap | None = None
    last: bool = False
    exposed: bool = False
    leaving: tuple[int, ...] = ()

    @property
    def num_edges(self) -> int:
        return int((self.pieces[:, 3] - self.pieces[:, 2]).sum())


class Schedule:
    """Lists the units of every epoch. They are the same for the same rounds, buckets and seed, whatever is in memory.

    The first state of a sweep is the last one of the sweep before: nothing is loaded between them.

    Args:
        slices: Slices of each partition of ``rounds``.
        starts: int64 [(partitions * slices)^2 + 1]: first edge of each bucket of slices.
        sweeps: Over all rounds, in an epoch.
    """

    def __init__(self, rounds: Rounds, slices: int, starts: np.ndarray, seed: int, sweeps: int = 1):
        self._rounds, self._starts, self._seed, self._sweeps = rounds, starts, seed, sweeps
        self._count = rounds.partitions * slices
        self._dealt = [self._random(0).reshape(rounds.partitions, slices)]

    @property
    def groups(self) -> int:
        return self._rounds.groups

    @property
    def most_resident(self) -> int:
        """Counts the slices that a group holds at the most."""
        return self._rounds.most_resident * self._count // self._rounds.partitions

    @property
    def rounds(self) -> int:
        """Counts the rounds of an epoch, after which groups pass partitions on; one, where there is one group."""
        return 1 if self.groups == 1 else self._sweeps * self._rounds.count

    def _random(self, sweep: int) -> np.ndarray:
        keys = np.random.Philox(key=np.array([self._seed, sweep], np.uint64)).random_raw(self._count)
        return np.argsort(keys, kind="stable")

    def partitions(self, sweep: int) -> np.ndarray:
        """Returns int64 [p, slices]: the slices of each partition in a sweep, counted through all epochs."""
        rounds = self._rounds
        first, last = rounds.orders[0].states[0], rounds.orders[-1].states[-1]
        while len(self._dealt) <= sweep:
            before, rank = self._dealt[-1], self._random(len(self._dealt))
            now = np.empty_like(before)
            for had, has in zip(rounds.members[-1], rounds.members[0], strict=True):
                seats = has[list(first[: len(last)])]
                stays = before[had[list(last[: len(seats)])]].ravel()
                others = np.setdiff1d(before[had], stays)
                for places, slices in ((seats, stays), (np.setdiff1d(has, seats), others)):
                    now[places] = slices[np.argsort(rank[slices], kind="stable")].reshape(-1, now.shape[1])
            self._dealt.append(now)
        return self._dealt[sweep]

    def holders(self, epoch: int, round: int) -> np.ndarray:
        """Returns int64 by slice: the group that has it in a round of an epoch."""
        sweep, turn = divmod(epoch * self.rounds + round, self._rounds.count)
        groups = np.empty(self._count, np.int64)
        for group, members in enumerate(self._rounds.members[turn]):
            groups[self.partitions(sweep)[members]] = group
        return groups

    @property
    def num_edges(self) -> int:
        return int(self._starts[-1])

    @property
    def most_edges(self) -> int:
        """A bound of the edges of a unit: each bucket may have one more than its share."""
        return min(self.num_edges, UNIT_EDGES + self._count**2)

    def units(self, epoch: int, round: int = 0, group: int = 0) -> Iterator[TrainUnit]:
        """Yields the units of a group in a round, in order. Every edge is in one of them, of one group and round."""
        if self.groups > 1:
            yield from self._sweep(epoch, *divmod(round, self._rounds.count), group, 0)
            return
        number = 0
        for sweep in range(self._sweeps):
            for unit in self._sweep(epoch, sweep, 0, 0, number):
                yield unit
                number = unit.number + 1

    def edges_of(self, epoch: int, round: int, group: int) -> int:
        """Counts the edges that a group trains in a round of an epoch."""
        if self.groups == 1:
            return self.num_edges
        return sum(unit.num_edges for unit in self.units(epoch, round, group))

    def units_of_all(self, epoch: int, round: int) -> Iterator[TrainUnit]:
        """Yields the units of all groups in a round."""
        for group in range(self.groups):
            yield from self.units(epoch, round, group)

    def all_units(self, epoch: int) -> Iterator[TrainUnit]:
        """Yields the units of all groups and rounds."""
        for round in range(self.rounds):
            yield from self.units_of_all(epoch, round)

    def _sweep(self, epoch: int, sweep: int, turn: int, group: int, number: int) -> Iterator[TrainUnit]:
        """Yields what ``group`` trains in the round ``turn`` of a sweep, counted in the epoch."""
        order, nothing = self._rounds.orders[turn], np.empty((0, 4), np.int64)
        where = () if self.groups == 1 else (sweep * self._rounds.count + turn, group)
        members = self.partitions(epoch * self._sweeps + sweep)[self._rounds.members[turn, group]]
        last_of = last_states(order)
        for s, state in enumerate(order.states):
            here, swap, meanwhile = _slices(members, state), None, 0
            leaving: tuple[int, ...] = ()
            if s < len(order.swaps):
                evicted, loaded = (_slices(members, partitions) for partitions in order.swaps[s])
                swap, meanwhile = (evicted, loaded), len(order.overlapped[s])
                leaving = _slices(members, tuple(part for part in order.swaps[s][0] if last_of[part] == s))
            stay = tuple(part for part in here if not swap or part not in swap[0])
            begin = len(order.buckets[s]) - meanwhile
            units = [
                (pieces, during)
                for buckets, during in ((order.buckets[s][:begin], False), (order.buckets[s][begin:], True))
                for pieces in self._mixed(epoch, sweep, members, buckets)
            ]
            hidden = next((at for at, (_, during) in enumerate(units) if during), None)
            if not units and swap:  # nothing to train here, but the buffer must move on
                units = [(nothing, False)]
            for at, (pieces, during) in enumerate(units):
                last = at == len(units) - 1
                begins = at == hidden or (hidden is None and last)
                yield TrainUnit(
                    number,
                    (epoch, number, *where),
                    pieces,
                    here,
                    stay if during else here,
                    swap if begins else None,
                    last,
                    hidden is None,
                    leaving if last else (),
                )
                number += 1

    def _mixed(
        self, epoch: int, sweep: int, members: np.ndarray, buckets: tuple[tuple[int, int], ...]
    ) -> Iterator[np.ndarray]:
        """Yields pieces of as few units as hold what this sweep trains of ``buckets``, an equal share of each in every
        unit; the shares are not the same ones together in every epoch.

        Args:
            members: int64 [n, slices]: the slices of each partition that ``buckets`` number.
        """
        if not buckets:
            return
        among = np.array(buckets)
        source = np.repeat(members[among[:, 0]], members.shape[1], axis=1).ravel()
        target = np.tile(members[among[:, 1]], members.shape[1]).ravel()
        first, stop = self.part(source, target, sweep)
        count = self.units_for(first, stop)
        turn = self.turn(source, target, epoch)
        for unit in range(count):
            begin, end = share_of(first, stop, (turn + unit) % count, count)
            pieces = np.stack([source, target, begin, end], axis=1)
            yield pieces[begin < end]

    @staticmethod
    def units_for(first: np.ndarray, stop: np.ndarray) -> int:
        """Counts the units that edges ``first:stop`` of buckets are divided among."""
        return -(-int((stop - first).sum()) // UNIT_EDGES)

    def part(self, source: np.ndarray, target: np.ndarray, sweep: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns which edges, ``first:stop``, a sweep of an epoch trains of each bucket (source, target) of slices."""
        bucket = source * self._count + target
        return share_of(self._starts[bucket], self._starts[bucket + 1], sweep, self._sweeps)

    def turn(self, source: np.ndarray, target: np.ndarray, epoch: int) -> np.ndarray:
        """Draws int64 [n], one for each bucket and epoch: by how many shares the first of an epoch lies further on."""
        bucket = (source * self._count + target).astype(np.uint64)
        return (mix64(bucket ^ key_of(self._seed, 2, epoch)) >> np.uint64(1)).astype(np.int64)


def share_of(
    first: np.ndarray, stop: np.ndarray, share: np.ndarray | int, count: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns where share number ``share`` of ``count`` equal ones of ``first:stop`` begins and ends."""
    size = stop - first
    return first + size * share // count, first + size * (share + 1) // count


def _slices(members: np.ndarray, state: State) -> tuple[int, ...]:
    return tuple(members[list(state)].ravel().tolist())


def key_pair(*parts: int) -> np.ndarray:
    """Returns uint64 [2]: a key of NumPy's Philox for a tuple of numbers."""
    return np.concatenate([key_of(*parts), key_of(*parts, 1)])
