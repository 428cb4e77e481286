"""The order of Legend (section 4, algorithm 1), and how its listing is read here.

Column after column: partition ``column`` stays until it has met all others, the others pass by. The paper's listing
leaves open where a search begins and what happens to columns that have nothing left. This reading gives all six
values of its table 8 (6, 8, 10, 12, 14, 16 partitions: 8, 16, 24, 36, 50, 66 states):

- a column with nothing left is passed over, without a swap;
- on entering a column the largest resident id leaves if an id above it is still to be met, else the smallest; the
  search for what to load begins above the other one of these two, and wraps round;
- later in the column the smallest leaves that is neither the column's nor the one loaded last; the search begins
  above the largest resident id;
- what was just loaded never leaves at once, the other candidate (or the smallest) does instead;
- of several partitions that bring equally many new pairs the first in the search wins.

For buffers other than 3, of which the paper does not speak, the same rules are applied.
"""

from __future__ import annotations

import numpy as np

from outcrop.embed.orders.order import State


def legend_states(partitions: int, buffer: int) -> list[State]:
    """Returns the states of Legend's order.

    Returns:
        Tuples of ``min(buffer, partitions)`` ids.
    """
    p, c = partitions, min(buffer, partitions)
    state = list(range(c))
    fresh = ~np.eye(p, dtype=bool)  # pairs that have not met
    states: list[State] = []

    def enter() -> None:
        fresh[np.ix_(state, state)] = False
        states.append(tuple(state))

    enter()
    for partition in range(c, p):  # column 0: the one that has been there longest leaves
        state[state.index(partition - c + 1)] = partition
        enter()
    column, last = 0, p - 1
    while fresh.any():
        if fresh[column].any():
            evicted = min((i for i in state if i not in (column, last)), default=last)
            begin = max(state)
        else:
            following = next(i for i in range(column + 1, p) if fresh[i].any())
            if following not in state:
                leaves = column if column != last else min((i for i in state if i != last), default=column)
                state[state.index(leaves)] = last = following
                enter()
            column = following
            if not fresh[column].any():
                continue
            others = [i for i in state if i != column]
            low, high = min(others), max(others)
            evicted, begin = (high, low) if fresh[column, high + 1 :].any() else (low, high)
            if evicted == last:
                evicted, begin = begin, evicted
        stay = [i for i in state if i != evicted]
        wanted = np.roll(fresh[stay].sum(0), -(begin + 1))
        wanted[[(i - begin - 1) % p for i in state]] = 0
        last = (int(wanted.argmax()) + begin + 1) % p
        state[state.index(evicted)] = last
        enter()
    return states
