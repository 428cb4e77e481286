"""Our order: every swap hidden, near the fewest states, for any number of partitions and any buffer.

Of these candidates the one with the fewest states that leaves no swap exposed; the search ends at the lower bound.

1. Exact orders (core/embed/order_exact.h): every pair meets once, no load brings fewer than ``c - 1`` new pairs
   together. A depth-first search finds them for up to 14 partitions. For more it looks for a short block of swaps that,
   repeated under a rotation of the partitions, makes the whole order. With 3 resident partitions it finds one for
   every ``p`` of the form 4 k + 1 up to 61, and for 12, 16, 20 and 28.
2. Other numbers of partitions have the largest such order below, and the rest as guests: a guest comes for a moment
   where ``c - 1`` partitions stay that it lacks.
3. A beam search (core/embed/order_beam.h), up to 64 partitions.
4. Of ``p = k c + 1 + r`` partitions, ``2 k + 1`` are *points*, the others *columns*. The complete graph on the points
   falls into ``k`` Hamiltonian cycles (Walecki). ``c - 2`` columns stay while the points pass by along one cycle, the
   next along the next; a swap keeps the columns and the point before, so a new point meets all of them. The columns
   among themselves are done greedily, or as Marius does (BETA).
5. BETA itself: in large buffers what stays has enough buckets to hide its swaps.

Buckets are kept back for the swaps that need them (:func:`~outcrop.embed.orders.order.deferred`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import outcrop._core as _core
from outcrop.embed.orders.beta import beta_states
from outcrop.embed.orders.construct import columns_then_greed, columns_then_sweeps, with_guests
from outcrop.embed.orders.order import Order, State, deferred, least_states

# How much the searches try; they give the same for the same numbers, in about a second at the most.
_NODES, _TRIES, _FEWER_TRIES, _FEW_PARTITIONS = 20_000, 60, 16, 32  # of exact orders: steps of a try
_LINEAR_PARTITIONS, _LINEAR_NODES, _LINEAR_TRIES = 14, 3000, 100
_BEAM_WORK, _BEAM_RUNS = 1_000_000, 4  # orders kept, times states, partitions and slots squared
_SEED = 4


def best_order(partitions: int, buffer: int) -> Order:
    """Returns the order with the fewest swaps that is found, each with one load; buckets are kept back for them."""
    p, c = partitions, min(buffer, partitions)
    best: Order | None = None
    for states in _candidates(p, c) if p > c else [[tuple(range(p))]]:
        if best and not best.exposed_swaps and len(states) >= len(best.states):
            continue
        order = deferred("best", p, c, states)
        if not best or _badness(order) < _badness(best):
            best = order
        if _badness(best) == (0, least_states(p, c)):
            break
    assert best
    return best


def _badness(order: Order) -> tuple[int, int]:
    return len(order.exposed_swaps), len(order.states)


def _candidates(p: int, c: int) -> Iterator[list[State]]:
    least = least_states(p, c)
    if p <= _LINEAR_PARTITIONS:
        for swaps in (least - 1, least):
            if found := _core.exact_order(c, 1, p, False, swaps, _LINEAR_NODES, _LINEAR_TRIES, _SEED):
                yield _states(found, c)
                break
    symmetric = (s for n in range(p, max(c, p - 2 * c), -1) if (s := _symmetric(n, c)))
    if states := next(symmetric, None):
        yield with_guests(states, p, c)
    if p <= _core.MAX_BEAM_PARTITIONS and c <= _core.MAX_BEAM_SLOTS:
        width = max(_BEAM_WORK // (least * p * c * c), 4)
        runs = _BEAM_RUNS if width > 4 else 1
        yield _states(_core.search_order(p, c, width, runs, least - 1, _SEED), c)
    yield columns_then_greed(p, c)
    yield columns_then_sweeps(p, c)
    yield beta_states(p, c)


def _symmetric(n: int, c: int) -> list[State]:
    """Returns states in which each pair meets once, the same again under rotations; as many of them as possible.

    Empty where none is found.
    """
    pairs = n * (n - 1) // 2
    divided = [(turns, n // turns, False) for turns in _odd_divisors(n)]
    divided += [
        (turns, (n - 1) // turns, True) for turns in _odd_divisors(n - 1) if (n - 1) // turns >= c - 1
    ]
    for turns, orbits, fixed in sorted(divided, reverse=True):
        if pairs % (turns * (c - 1)) == 0:
            easy = orbits == 1 or (c == 3 and n <= _FEW_PARTITIONS)
            nodes, tries = _NODES * 9 // c**2, _TRIES if easy else _FEWER_TRIES
            if swaps := _core.exact_order(c, turns, orbits, fixed, 0, nodes, tries, _SEED):
                return _states(swaps, c)
    return []


def _odd_divisors(n: int) -> list[int]:
    return [d for d in range(3, n + 1, 2) if n % d == 0]


def _states(swaps: Sequence[tuple[int, int]], c: int) -> list[State]:
    held = list(range(c))
    states = [tuple(held)]
    for slot, loaded in swaps:
        held[slot] = loaded
        states.append(tuple(held))
    return states
