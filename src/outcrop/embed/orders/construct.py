"""Building blocks of orders: columns along Hamiltonian cycles, sweeps as in BETA, and a greedy end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from outcrop.embed.orders.order import State


def columns_then_greed(partitions: int, buffer: int) -> list[State]:
    """Goes over the columns once."""
    walk = Walk(partitions, buffer)
    walk.columns(list(range(partitions)))
    return walk.finish()


def columns_then_sweeps(partitions: int, buffer: int) -> list[State]:
    """Goes over the columns once, BETA among them."""
    walk = Walk(partitions, buffer)
    walk.sweeps(walk.columns(list(range(partitions))))
    return walk.finish()


def with_guests(states: list[State], p: int, c: int) -> list[State]:
    """Adds the partitions up to ``p``: each comes between two states, for a moment, where most that it lacks stay.

    One swap more brings ``c - 1`` pairs together.
    """
    n = 1 + max(map(max, states))
    stays = np.array([sorted({*a} & {*b}) for a, b in pairwise(states)]).reshape(-1, c - 1)
    guests: dict[int, list[int]] = {}
    for guest in range(n, p):
        lacks = np.ones(n, dtype=bool)
        while lacks.any():
            meets = lacks[stays].sum(1) * 2
            meets[list(guests)] -= 1  # each guest needs a bucket of those that stay
            at = int(meets.argmax())
            guests.setdefault(at, []).append(guest)
            lacks[stays[at]] = False
    walk = Walk(p, c)
    walk.become(states[0])
    for at, (before, after) in enumerate(pairwise(states)):
        (here,), (following,) = {*before} - {*after}, {*after} - {*before}
        for loaded in (*guests.get(at, ()), following):
            walk.swap(here, loaded)
            here = loaded
    return walk.finish()


def walecki_cycles(points: int) -> Iterator[list[int]]:
    """Yields Hamiltonian cycles that have each edge of the complete graph on ``points`` (odd) once, from the last
    point.

    Walecki's construction (Lucas, 1892): the last point, then a zigzag through the others on a circle, turned by one
    each time.
    """
    around = points - 1
    zigzag = [(-1) ** (i + 1) * ((i + 1) // 2) for i in range(around)]
    for turn in range(around // 2):
        yield [points - 1, *((turn + step) % around for step in zigzag)]


class Walk:
    """Holds the states so far, and the pairs that have not met."""

    def __init__(self, partitions: int, buffer: int):
        self.partitions, self.buffer = partitions, buffer
        self.fresh = ~np.eye(partitions, dtype=bool)
        self.state: list[int] = []
        self.states: list[State] = []
        self.last = -1

    def swap(self, evicted: int, loaded: int) -> None:
        self.state[self.state.index(evicted)] = self.last = loaded
        self._enter()

    def become(self, target: Sequence[int]) -> None:
        """Goes by the fewest swaps to a state with all of ``target``; the first state is free."""
        if not self.states:
            others = (i for i in range(self.partitions) if i not in target)
            self.state = [*target, *(next(others) for _ in range(self.buffer - len(target)))]
            self._enter()
        for loaded in target:
            if loaded not in self.state:
                old = [i for i in self.state if i not in target]
                self.swap(next((i for i in old if i != self.last), old[0]), loaded)

    def columns(self, members: list[int]) -> list[int]:
        """All pairs of points meet, and all of a point and a column; the columns are returned (see best.py)."""
        c = self.buffer
        cycles = (len(members) - 1) // c
        points, columns = members[: 2 * cycles + 1], members[2 * cycles + 1 :]
        if cycles == 0 or c == 2:
            return members
        groups = [columns[i : i + c - 2] for i in range(0, cycles * (c - 2), c - 2)]
        paths = [[points[i] for i in cycle] for cycle in walecki_cycles(len(points))]
        ends: list[int] = []  # of edges that no column follows
        before, here, *rest = paths[0]
        self.become([*groups[0], before, here])
        ends += [before, paths[0][-1]]
        for turn, group in enumerate(groups):
            for point in rest:
                self.swap(before, point)
                before, here = here, point
            if turn + 1 < len(groups):
                cycle = _from(here, paths[turn + 1], ends)
                ends += [here, cycle[-1]]
                for evicted, loaded in zip([before, *group], [*groups[turn + 1], cycle[1]], strict=True):
                    self.swap(evicted, loaded)
                before, here, rest = here, cycle[1], cycle[2:]
        return columns

    def sweeps(self, members: list[int]) -> None:
        """All but one of the buffer stay until the others have passed by."""
        while len(members) > 1:
            stay, members = members[: self.buffer - 1], members[self.buffer - 1 :]
            self.become(stay)
            for partition in members:
                if partition not in self.state and self.fresh[partition, stay].any():
                    self.swap(next(i for i in self.state if i not in stay), partition)

    def finish(self) -> list[State]:
        """Goes on greedily until all pairs have met."""
        self.become(range(self.buffer) if not self.states else [])
        while self.fresh.any():
            at = self.fresh[self.state]  # c x p
            gains = at.sum(0) - at  # by what is evicted, by what is loaded
            gains[:, self.state] = -1
            if self.last in self.state and self.buffer > 2:
                gains[self.state.index(self.last)] = -1
            # Of the best, what can be followed by a good one: next to a resident that lacks the same partitions.
            common = self.fresh.astype(np.float32) @ self.fresh.T
            follow = np.stack([common[[i for i in self.state if i != out]].max(0) for out in self.state])
            score = (4 * gains + np.minimum(follow, 3)) * self.partitions + self.fresh.sum(1)
            out, loaded = np.unravel_index(int(np.where(gains < 0, -1, score).argmax()), gains.shape)
            self.swap(self.state[int(out)], int(loaded))
        return self.states

    def _enter(self) -> None:
        self.fresh[np.ix_(self.state, self.state)] = False
        self.states.append(tuple(self.state))


def _from(start: int, cycle: list[int], ends: list[int]) -> list[int]:
    """Gives ``cycle`` from ``start``, in the direction that ends at a point where most edges were left over already."""
    at = cycle.index(start)
    forth = [*cycle[at:], *cycle[:at]]
    back = [start, *forth[:0:-1]]
    return max(forth, back, key=lambda way: ends.count(way[-1]))
