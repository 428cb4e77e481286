"""Groups of partitions that can be trained at the same time: which partitions a group has in which round.

Source: PyTorch-BigGraph (Lerer et al. 2019), which trains buckets of disjoint partitions on several machines; here the
schedule is known ahead, and nobody has to ask for a lock. The partitions lie in ``2 g`` blocks, which meet as the teams
of a tournament do (circle method): in each of ``2 g - 1`` rounds every one of ``g`` groups has two blocks and trains
the buckets between them, in the last round also those within them. From round to round a group keeps one of its blocks
and passes the other on to the next group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outcrop.embed.orders import Order, make_order
from outcrop.embed.orders.between import between
from outcrop.errors import ArgumentError

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Rounds:
    """Says who trains what.

    Attributes:
        orders: Of each round: the order of the partitions of a group, numbered as in ``members``.
        members: int64 [rounds, groups, 2 k]: the partitions of a group in a round; in all rounds but the last, those of
            the block that it passes on come last.
    """

    orders: tuple[Order, ...]
    members: np.ndarray

    @property
    def groups(self) -> int:
        return self.members.shape[1]

    @property
    def count(self) -> int:
        """Counts the rounds in which every two partitions meet."""
        return len(self.orders)

    @property
    def partitions(self) -> int:
        return self.members[0].size

    @property
    def most_resident(self) -> int:
        """Counts the partitions that a group holds at the most."""
        return max(len(state) for order in self.orders for state in order.states)


def make_rounds(name: str, partitions: int, buffer: int, groups: int = 1) -> Rounds:
    """Returns the rounds of ``groups`` groups; of one: a single round with all partitions, in the order ``name``.

    Raises:
        ArgumentError: The partitions cannot be dealt to twice as many blocks as groups, or there is no such order.
    """
    if groups == 1:
        order = make_order(name, partitions, min(buffer, partitions))
        return Rounds((order,), np.arange(partitions)[None, None])
    if partitions % (2 * groups):
        more = 2 * groups * -(-partitions // (2 * groups))
        raise ArgumentError(
            f"{groups} groups train two blocks of partitions each, and {partitions} partitions cannot be dealt to "
            f"{2 * groups} blocks: prepare with --partitions {more}, or another multiple of {2 * groups}"
        )
    size = partitions // (2 * groups)
    last = make_order(name, 2 * size, min(buffer, 2 * size))
    passing = between(size, buffer)
    blocks = np.array(tournament(groups))
    members = (blocks[..., None] * size + np.arange(size)).reshape(len(blocks), groups, 2 * size)
    return Rounds((*[passing] * (len(blocks) - 1), last), members)


def tournament(groups: int) -> list[list[Pair]]:
    """Returns for each round the two blocks of each group, (block that it keeps, block that it passes on).

    Of ``2 g`` blocks every two meet once; the block that a group keeps is one of its two in the next round.
    """
    others = 2 * groups - 1
    matches = [
        [(others, turn), *(((turn + i) % others, (turn - i) % others) for i in range(1, groups))]
        for turn in range(others)
    ]
    rounds: list[list[Pair]] = []
    here = matches[0]
    for after in matches[1:]:
        kept, there = _hand_over(here, after)
        rounds.append([(keeps, sum(pair) - keeps) for keeps, pair in zip(kept, here, strict=True)])
        here = there
    return [*rounds, here]


def _hand_over(here: list[Pair], after: list[Pair]) -> tuple[list[int], list[Pair]]:
    """Returns the block that each group keeps of its pair ``here``, and its pair of the matches ``after``.

    The pairs of two rounds form rings, in which every group hands one block to its neighbor.
    """
    group_of = {block: group for group, pair in enumerate(here) for block in pair}
    match_of = {block: match for match in after for block in match}
    kept, there = [-1] * len(here), [(-1, -1)] * len(here)
    for group, pair in enumerate(here):
        block = pair[0]
        while kept[group] < 0:
            kept[group], there[group] = block, match_of[block]
            guest = sum(match_of[block]) - block  # which its group passes on: that keeps its other block
            group = group_of[guest]
            block = sum(here[group]) - guest
    return kept, there
