"""The order of Marius (BETA): near the fewest swaps, but most of them cannot be hidden."""

from __future__ import annotations

from outcrop.embed.orders.order import State


def beta_states(partitions: int, buffer: int) -> list[State]:
    """All but one of the resident partitions stay until the others have passed by; then they are replaced one by one.

    States for 6, 8, 10, 12, 14, 16 partitions, 3 resident: 8, 15, 24, 35, 48, 63. Legend's table 8 has 34 for 12,
    which is the number of swaps (Marius' formula gives 34 for it); its other values are states.

    Returns:
        Tuples of ``min(buffer, partitions)`` ids.
    """
    c = min(buffer, partitions)
    state, waiting = list(range(c)), list(range(c, partitions))
    states: list[State] = [tuple(state)]
    while waiting:
        for at, loaded in enumerate(waiting):
            waiting[at], state[-1] = state[-1], loaded
            states.append(tuple(state))
        replaced = min(c - 1, len(waiting))
        for at in range(replaced):
            state[at] = waiting[at]
            states.append(tuple(state))
        del waiting[:replaced]
    return states
