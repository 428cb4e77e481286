"""Replacement policies in plain Python, as their papers describe them, request by request."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import combinations


class Lru:
    def __init__(self, capacity: int):
        self.capacity, self.held = capacity, OrderedDict[int, None]()

    def request(self, x: int) -> bool:
        """Whether ``x`` was there; it is afterwards, unless there is no room for anything."""
        hit = x in self.held
        if hit:
            self.held.move_to_end(x)
        elif self.capacity:
            if len(self.held) == self.capacity:
                self.held.popitem(last=False)
            self.held[x] = None
        return hit


class Sieve:
    """NSDI'24, algorithm 1. ``queue`` has the newest first; the hand is an object or None."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.queue: list[int] = []
        self.visited: dict[int, bool] = {}
        self.hand: int | None = None

    def request(self, x: int) -> bool:
        if x in self.visited:
            self.visited[x] = True
            return True
        if self.capacity:
            if len(self.queue) == self.capacity:
                self.evict()
            self.queue.insert(0, x)
            self.visited[x] = False
        return False

    def evict(self) -> None:
        at = len(self.queue) - 1 if self.hand is None else self.queue.index(self.hand)
        while self.visited[self.queue[at]]:
            self.visited[self.queue[at]] = False
            at = at - 1 if at > 0 else len(self.queue) - 1
        self.hand = self.queue[at - 1] if at > 0 else None
        del self.visited[self.queue.pop(at)]


class S3Fifo:
    """SOSP'23, algorithm 1; left is new, right is old."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.small, self.main, self.ghosts = deque[int](), deque[int](), deque[int]()
        self.freq: dict[int, int] = {}

    def request(self, x: int) -> bool:
        if x in self.freq:
            self.freq[x] = min(self.freq[x] + 1, 3)
            return True
        if self.capacity:
            while len(self.small) + len(self.main) >= self.capacity:
                self.evict()
            if x in self.ghosts:
                self.ghosts.remove(x)
                self.main.appendleft(x)
            else:
                self.small.appendleft(x)
            self.freq[x] = 0
        return False

    def evict(self) -> None:
        if len(self.small) >= 0.1 * self.capacity:
            self.evict_small()
        else:
            self.evict_main()

    def evict_small(self) -> None:
        evicted = False
        while not evicted and self.small:
            t = self.small.pop()
            if self.freq[t] > 1:
                self.freq[t] = 0
                self.main.appendleft(t)
                if len(self.main) > 0.9 * self.capacity:
                    self.evict_main()
            else:
                del self.freq[t]
                self.ghosts.appendleft(t)
                if len(self.ghosts) > int(0.9 * self.capacity):
                    self.ghosts.pop()
                evicted = True

    def evict_main(self) -> None:
        while True:
            t = self.main.pop()
            if self.freq[t] == 0:
                del self.freq[t]
                return
            self.freq[t] -= 1
            self.main.appendleft(t)


POLICIES = {"lru": Lru, "sieve": Sieve, "s3fifo": S3Fifo}


def next_uses(batches: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each node of each batch of an endlessly repeated cycle, the number of the batch that needs it next."""
    cycle = len(batches)
    return [
        [min(now + d for d in range(1, cycle + 1) if x in batches[(now + d) % cycle]) for x in batch]
        for now, batch in enumerate(batches)
    ]


def fewest_misses(batches: Iterable[Sequence[int]], capacity: int) -> int:
    """By trying everything: what is kept after each batch is any choice of what was held and what came."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for batch in batches:
        after: dict[frozenset[int], int] = {}
        for held, cost in states.items():
            total = cost + len(set(batch) - held)
            pool = held | set(batch)
            for kept in combinations(sorted(pool), min(capacity, len(pool))):
                key = frozenset(kept)
                after[key] = min(after.get(key, total), total)
        states = after
    return min(states.values())
