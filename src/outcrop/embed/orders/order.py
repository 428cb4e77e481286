"""What an order is, which buckets it trains when, and whether it is right.

Nodes lie in ``p`` partitions, edges in p x p buckets: bucket ``(i, j)`` holds those from partition ``i`` to ``j``. A
buffer holds ``c`` partitions; a state is what it holds; a swap evicts partitions and loads others. Each bucket is
trained once an epoch, in a state with both of its partitions. A swap is hidden when something can be trained
meanwhile: a bucket of two partitions that stay (Legend, section 4, definition 1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

from outcrop.errors import ArgumentError, FormatError

State = tuple[int, ...]
Bucket = tuple[int, int]


@dataclass(frozen=True)
class Order:
    """Lists states in sequence, and what is trained in each.

    ``buckets[s]``: trained in state ``s``, in sequence; its tail ``overlapped[s]`` while the swap to state ``s + 1``
    runs. ``wanted``: what is trained; None: every bucket.
    """

    name: str
    partitions: int
    buffer: int
    states: tuple[State, ...]
    buckets: tuple[tuple[Bucket, ...], ...]
    overlapped: tuple[tuple[Bucket, ...], ...]
    wanted: frozenset[Bucket] | None = None

    @cached_property
    def swaps(self) -> tuple[tuple[State, State], ...]:
        """Returns what each swap evicts and loads."""
        return tuple(
            (tuple(sorted({*a} - {*b})), tuple(sorted({*b} - {*a}))) for a, b in pairwise(self.states)
        )

    @property
    def num_loads(self) -> int:
        """Counts the partitions that are read, those of the first state included."""
        return len(self.states[0]) + sum(len(loaded) for _, loaded in self.swaps)

    @property
    def exposed_swaps(self) -> tuple[int, ...]:
        """Returns swaps during which nothing is trained, so that nothing hides the time that they take."""
        return tuple(s for s, meanwhile in enumerate(self.overlapped) if not meanwhile)

    @property
    def hasty_evictions(self) -> tuple[int, ...]:
        """Returns swaps that evict what the swap before loaded (the paper's property 1 forbids them)."""
        return tuple(
            s + 1
            for s, ((_, loaded), (evicted, _)) in enumerate(pairwise(self.swaps))
            if {*loaded} & {*evicted}
        )

    def epoch_time(self, bucket: float, swap: float) -> float:
        """Returns the time of one epoch where a bucket takes ``bucket`` to train and a swap ``swap``, overlapping where
        they can.
        """
        waiting = sum(max(swap - len(meanwhile) * bucket, 0) for meanwhile in self.overlapped)
        return self.partitions**2 * bucket + waiting

    def verify(self) -> None:
        """Checks that every bucket is trained exactly once, where it can be.

        Raises:
            FormatError: What is wrong first.
        """
        why = next(
            (why for check in (_wrong_state, _wrong_bucket, _wrong_overlap) if (why := check(self))), None
        )
        if why:
            raise FormatError(
                f"order {self.name} of {self.partitions} partitions, {self.buffer} resident: {why}"
            )


def _wrong_state(order: Order) -> str | None:
    if not len(order.states) == len(order.buckets) == len(order.overlapped) + 1:
        return "states, buckets and swaps are not equally many"
    for s, state in enumerate(order.states):
        if len({*state}) != len(state) or not 0 < len(state) <= order.buffer:
            return f"state {s} holds {state}"
        if not {*state} <= {*range(order.partitions)}:
            return f"state {s} holds {state}, which are not all partitions"
    return None


def _wrong_bucket(order: Order) -> str | None:
    trained: set[Bucket] = set()
    for s, (state, buckets) in enumerate(zip(order.states, order.buckets, strict=True)):
        for bucket in buckets:
            if not {*bucket} <= {*state}:
                return f"bucket {bucket} is trained in state {s}, which holds {state}"
            if bucket in trained:
                return f"bucket {bucket} is trained twice"
            trained.add(bucket)
    wanted = frozenset(_buckets_of(range(order.partitions))) if order.wanted is None else order.wanted
    for bucket in sorted(wanted ^ trained):
        return f"bucket {bucket} is {'never trained' if bucket in wanted else 'trained, and is not wanted'}"
    return None


def _wrong_overlap(order: Order) -> str | None:
    for s, meanwhile in enumerate(order.overlapped):
        if order.buckets[s][len(order.buckets[s]) - len(meanwhile) :] != meanwhile:
            return f"what is trained during swap {s} is not the end of state {s}"
        for bucket in meanwhile:
            if not {*bucket} <= {*order.states[s + 1]}:
                return f"bucket {bucket} is trained during swap {s}, which evicts one of its partitions"
    return None


def least_states(partitions: int, buffer: int) -> int:
    """No order with one load a swap has fewer states: a load brings at most ``buffer - 1`` new pairs together."""
    p, c = partitions, min(buffer, partitions)
    pairs = p * (p - 1) // 2 - c * (c - 1) // 2
    return 1 + -(-pairs // max(c - 1, 1))


def check_sizes(partitions: int, buffer: int) -> None:
    """Raises ArgumentError unless an order of ``partitions`` with ``buffer`` resident can be made."""
    if partitions < 1:
        raise ArgumentError(f"{partitions} partitions: give at least 1")
    if buffer < 2 and partitions > 1:
        raise ArgumentError(
            f"a buffer of {buffer} holds no two partitions: give at least 2, or 3 to hide swaps (or one partition)"
        )


def _buckets_of(partitions: Sequence[int]) -> Iterator[Bucket]:
    return product(partitions, partitions)


def eager(
    name: str,
    partitions: int,
    buffer: int,
    states: Sequence[Sequence[int]],
    wanted: frozenset[Bucket] | None = None,
) -> Order:
    """Trains each bucket, or of those that are ``wanted``, in the first state that has it (Legend, algorithm 2).

    First what touches the partitions to be evicted, with older residents before those just loaded; then, during the
    swap, the rest.
    """
    trained: set[Bucket] = set()
    buckets, overlapped = [], []
    for s, state in enumerate(states):
        stay = {*state} & {*states[s + 1]} if s + 1 < len(states) else set()
        loaded = {*state} - {*states[s - 1]} if s else set()
        fresh = [
            b for b in _buckets_of(sorted(state)) if b not in trained and (wanted is None or b in wanted)
        ]
        trained.update(fresh)
        meanwhile = tuple(b for b in fresh if {*b} <= stay)
        before = [b for b in fresh if b not in meanwhile]
        before.sort(key=lambda b: bool({*b} & loaded))
        buckets.append((*before, *meanwhile))
        overlapped.append(meanwhile)
    return Order(
        name, partitions, buffer, tuple(map(tuple, states)), tuple(buckets), tuple(overlapped[:-1]), wanted
    )


def deferred(name: str, partitions: int, buffer: int, states: Sequence[Sequence[int]]) -> Order:
    """Keeps buckets back for the swaps that need them: as many as possible for the swap that has fewest.

    A bucket can be trained during any swap that keeps both of its partitions. Swaps take buckets in turn, one each a
    round; one that finds none left takes another's, which takes another instead (augmenting paths of a bipartite
    matching). What no swap takes is trained as soon as it can be.
    """
    stays = [sorted({*a} & {*b}) for a, b in pairwise(states)]
    taken: dict[Bucket, int] = {}
    full: set[int] = set()  # swaps that no path leads on from
    active = list(range(len(stays)))
    while active:
        active = [swap for swap in active if swap not in full and _take(swap, stays, taken, full)]
    meanwhile: list[list[Bucket]] = [[] for _ in stays]
    for bucket, swap in sorted(taken.items()):
        meanwhile[swap].append(bucket)
    buckets, trained = [], set(taken)
    for s, state in enumerate(states):
        before = [b for b in _buckets_of(sorted(state)) if b not in trained]
        trained.update(before)
        buckets.append((*before, *(meanwhile[s] if s < len(meanwhile) else ())))
    return Order(
        name, partitions, buffer, tuple(map(tuple, states)), tuple(buckets), tuple(map(tuple, meanwhile))
    )


def _take(swap: int, stays: Sequence[Sequence[int]], taken: dict[Bucket, int], full: set[int]) -> bool:
    """Gives ``swap`` one more bucket, the others none less; False if there is no way to, then and ever after."""
    seen: set[Bucket] = set()
    reached: dict[int, tuple[Bucket, int]] = {}  # swap -> its bucket that is asked for, and by whom
    queue = deque([swap])
    while queue:
        taker = queue.popleft()
        for bucket in _buckets_of(stays[taker]):
            if bucket in seen:
                continue
            seen.add(bucket)
            owner = taken.get(bucket)
            if owner is None:  # hand over along the path
                taken[bucket] = taker
                while taker != swap:
                    bucket, taker = reached[taker]
                    taken[bucket] = taker
                return True
            if owner not in reached and owner != swap and owner not in full:
                reached[owner] = (bucket, taker)
                queue.append(owner)
    full.update(reached, (swap,))
    return False
