"""Which batches of an epoch belong to which process.

A *step* is ``accumulate`` consecutive batches of an epoch. Batch n is number ``j = n % accumulate`` of its step and
belongs to rank ``j % world``: so whichever processes there are, a step consists of the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outcrop.errors import ArgumentError

UNEVEN = ("wrap", "drop", "short")


@dataclass(frozen=True)
class Ranks:
    """Describes one process of several.

    Attributes:
        rank, world: Number of this process, and how many there are.
        accumulate: Batches of a step, all processes together.
        uneven: Where batches do not divide evenly: ``wrap`` gives a rank its first batches of the epoch once more, much
            as torch's DistributedSampler does (so a machine needs no others, unless it has none); ``drop`` leaves the
            last ones out; ``short`` lets ranks differ.
    """

    rank: int = 0
    world: int = 1
    accumulate: int = 1
    uneven: str = "wrap"

    def __post_init__(self) -> None:
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise ArgumentError(f"rank {self.rank} of {self.world} processes is none: ranks count from 0")
        if self.uneven not in UNEVEN:
            raise ArgumentError(f"uneven {self.uneven!r} is unknown; known: {', '.join(UNEVEN)}")
        if self.accumulate < self.world:
            raise ArgumentError(
                f"a step of {self.accumulate} batches leaves some of {self.world} processes without work: "
                "raise accumulate, or start fewer"
            )
        if self.accumulate % self.world and self.uneven != "short":
            raise ArgumentError(
                f"a step of {self.accumulate} batches is not the same number for each of {self.world} processes: "
                "change accumulate, or pass uneven='short' where your loop can do with unequal numbers"
            )

    @property
    def alone(self) -> bool:
        return self.world == 1

    def batches(self, count: int) -> Sequence[int]:
        """Returns the batches of this rank of an epoch of ``count``, in the order in which they are used."""
        if self.alone:
            return range(count)
        owners = [n % self.accumulate % self.world for n in range(count)]
        own = [n for n, owner in enumerate(owners) if owner == self.rank]
        if self.uneven == "short" or not count:
            return own
        sizes = [owners.count(rank) for rank in range(self.world)]
        if self.uneven == "drop":
            return own[: min(sizes)]
        again = own or range(count)
        return own + [again[place % len(again)] for place in range(max(sizes) - len(own))]


def process_ranks(rank: int | None, world: int | None, accumulate: int | None, uneven: str) -> Ranks:
    """Ranks as asked for; None: of the process group of torch.distributed where there is one, else of one process."""
    if rank is None or world is None:
        from torch import distributed

        group = distributed.is_available() and distributed.is_initialized()
        if (rank is None) != (world is None):
            raise ArgumentError("rank and world belong together: give both or none")
        rank, world = (distributed.get_rank(), distributed.get_world_size()) if group else (0, 1)
    return Ranks(rank, world, world if accumulate is None else accumulate, uneven)
