"""How batches lie on disk."""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.config.declared import check_types


@dataclass(frozen=True)
class PackConfig:
    """Says how the rows of batches are packed on disk.

    Attributes:
        layout: What batches share on disk where packing all exceeds the disk space: ``cost`` (least predicted time),
            ``heuristic`` (DiskGNN section 5.1, smallest segments), ``packed`` (nothing), or ``S,M``: segments of S
            batches, in which rows wanted more than M times are shared.
        rates: What the disk reads, which layout ``cost`` prices by: bytes per second in order, and random reads of
            4 KiB per second. The same rates give the same files. None: those that the run has, else measured.
    """

    layout: str = "cost"
    rates: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_types(self)
