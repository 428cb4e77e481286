"""The order of two blocks of partitions of which one is passed on: it trains the buckets between them.

Partitions ``0 .. k - 1`` stay with whoever trains them, ``k .. 2 k - 1`` go to somebody else afterwards. Those that go
pass by those that stay, as many of which are held as leave two places free. In the last pass each is done with after
the next has come, so that it can be on its way while others are trained.
"""

from __future__ import annotations

from outcrop.embed.orders.order import Bucket, Order, State, eager


def between(size: int, buffer: int) -> Order:
    """Returns the order of two blocks of ``size`` partitions each, with ``buffer`` resident at the most; verified."""
    stays = range(size)
    wanted = frozenset(pair for a in stays for b in range(size, 2 * size) for pair in ((a, b), (b, a)))
    order = eager("between", 2 * size, buffer, _states(size, buffer), wanted)
    order.verify()
    return order


def last_states(order: Order) -> dict[int, int]:
    """Returns the number of the last state that holds each partition."""
    return {partition: s for s, state in enumerate(order.states) for partition in state}


def _states(size: int, buffer: int) -> list[State]:
    held = min(size, max(buffer - 2, 1))  # of those that stay
    window = max(min(buffer - held, size), 1)
    states: list[State] = []
    passing = list(range(size, 2 * size))
    before: list[int] = []
    stay: State = ()
    for first in range(0, size, held):
        stay = tuple(range(first, min(first + held, size)))
        here = before or passing[:1]
        states.append((*stay, *here))
        for partition in (p for p in passing if p not in here):
            before = here = [*here, partition][-window:]
            states.append((*stay, *here))
        before = here[-window:]
        passing.reverse()
    if len(before) > 1:  # all but the one that came last may go while that is trained
        states.append((*stay, before[-1]))
    return states


__all__ = ["Bucket", "between", "last_states"]
