"""What is trained when: units of training in the sequence of an order, epoch after epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from outcrop.embed.orders import Order, State
from outcrop.links import key_of

PIECE_EDGES = 1 << 18  # of a bucket; read, shuffled and trained as one unit

Swap = tuple[State, State]  # evicted, loaded


@dataclass(frozen=True)
class Unit:
    """Edges ``first:stop`` of bucket (source, target).

    Attributes:
        number: In the epoch.
        state: Partitions that are resident.
        pool: Those of them that negatives come from: all that no swap touches.
        swap: (evicted, loaded) of the swap that begins before this unit; of a swap that nothing hides, after the last.
        last: Of its state: the swap must be over after it.
    """

    number: int
    source: int
    target: int
    first: int
    stop: int
    state: tuple[int, ...]
    pool: tuple[int, ...]
    swap: Swap | None = None
    last: bool = False
    bare: bool = False


class Schedule:
    """The units of every epoch. The same for the same order, buckets and seed, whatever is in memory.

    Every epoch the partitions take the parts of the order anew, at random, but so that its first state is the last one
    of the epoch before: nothing is loaded between epochs.
    """

    def __init__(self, order: Order, starts: np.ndarray, seed: int):
        self._order, self._starts, self._seed = order, starts, seed
        self._parts = [self._random(0)]

    def _random(self, epoch: int) -> np.ndarray:
        keys = np.random.Philox(key=np.array([self._seed, epoch], np.uint64)).random_raw(
            self._order.partitions
        )
        return np.argsort(keys, kind="stable")

    def parts(self, epoch: int) -> np.ndarray:
        """int64 [p]: the partition that plays each part of the order."""
        while len(self._parts) <= epoch:
            before, number = self._parts[-1], len(self._parts)
            first, last = self._order.states[0], self._order.states[-1]
            rank = self._random(number)
            stays = before[list(last[: len(first)])]
            stays = stays[np.argsort(rank[stays], kind="stable")]
            others = np.setdiff1d(np.arange(self._order.partitions), stays)
            others = others[np.argsort(rank[others], kind="stable")]
            now = np.empty_like(before)
            seats = list(first[: len(stays)])
            now[seats] = stays
            now[np.setdiff1d(np.arange(self._order.partitions), seats)] = others
            self._parts.append(now)
        return self._parts[epoch]

    @property
    def num_edges(self) -> int:
        return int(self._starts[-1])

    def first_state(self, epoch: int) -> tuple[int, ...]:
        return self._named(epoch, self._order.states[0])

    def _named(self, epoch: int, state: tuple[int, ...]) -> tuple[int, ...]:
        parts = self.parts(epoch)
        return tuple(int(parts[i]) for i in state)

    def _swap(self, epoch: int, swap: Swap) -> Swap:
        return self._named(epoch, swap[0]), self._named(epoch, swap[1])

    def units(self, epoch: int) -> Iterator[Unit]:
        """In order. Every edge is in one of them."""
        order, parts, number = self._order, self.parts(epoch), 0
        for s, state in enumerate(order.states):
            here = self._named(epoch, state)
            meanwhile = len(order.overlapped[s]) if s < len(order.swaps) else 0
            swap = self._swap(epoch, order.swaps[s]) if s < len(order.swaps) else None
            stay = tuple(part for part in here if not swap or part not in swap[0])
            buckets = [(int(parts[i]), int(parts[j])) for i, j in order.buckets[s]]
            begin = len(buckets) - meanwhile
            pieces = [
                (bucket, piece, at >= begin)
                for at, bucket in enumerate(buckets)
                for piece in self._pieces(epoch, bucket)
            ]
            hidden = next((at for at, (_, _, during) in enumerate(pieces) if during), None)
            for at, ((source, target), (first, stop), during) in enumerate(pieces):
                yield Unit(
                    number,
                    source,
                    target,
                    first,
                    stop,
                    here,
                    stay if during else here,
                    swap if at == hidden or (hidden is None and at == len(pieces) - 1) else None,
                    at == len(pieces) - 1,
                    hidden is None,
                )
                number += 1
            if not pieces and swap:  # nothing to train here, but the buffer must move on
                yield Unit(number, here[0], here[0], 0, 0, here, here, swap, True, True)
                number += 1

    def _pieces(self, epoch: int, bucket: tuple[int, int]) -> list[tuple[int, int]]:
        """The pieces of a bucket that has edges, shuffled anew every epoch."""
        at = bucket[0] * self._order.partitions + bucket[1]
        first, stop = int(self._starts[at]), int(self._starts[at + 1])
        pieces = [(begin, min(begin + PIECE_EDGES, stop)) for begin in range(first, stop, PIECE_EDGES)]
        if len(pieces) < 2:
            return pieces
        keys = np.random.Philox(key=key_pair(self._seed, 2, epoch, at)).random_raw(len(pieces))
        return [pieces[i] for i in np.argsort(keys, kind="stable")]


def key_pair(*parts: int) -> np.ndarray:
    """uint64 [2]: a key of NumPy's Philox for a tuple of numbers."""
    return np.concatenate([key_of(*parts), key_of(*parts, 1)])
