"""How batches lie on disk."""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.config.declared import check_types
from outcrop.errors import ArgumentError

MOST_PARTS = 1024


@dataclass(frozen=True)
class PackConfig:
    """Says how the rows of batches are packed on disk.

    Attributes:
        layout: What batches share on disk where packing all exceeds the disk space: ``cost`` (least predicted time),
            ``heuristic`` (DiskGNN section 5.1, smallest segments), ``packed`` (nothing), or ``S,M``: segments of S
            batches, in which rows wanted more than M times are shared.
        rates: What the disk reads, which layout ``cost`` prices by: bytes per second in order, and random reads of
            4 KiB per second. The same rates give the same files. None: those that the run has, else measured.
        parts: Files that the batches lie in, so that several machines train with a part each: of K parts, part k has
            batches k, K + k, 2 K + k, ... of each epoch. Best as many as batches a step takes
            (:class:`outcrop.TrainConfig`, ``accumulate``).
    """

    layout: str = "cost"
    rates: tuple[float, float] | None = None
    parts: int = 1

    def __post_init__(self) -> None:
        check_types(self)
        if not 1 <= self.parts <= MOST_PARTS:
            raise ArgumentError(f"{self.parts} parts: between 1 and {MOST_PARTS} are possible")
