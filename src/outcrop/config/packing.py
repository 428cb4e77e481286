"""How batches lie on disk."""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.config.declared import check_types
from outcrop.errors import ArgumentError

MOST_PARTS = 256  # each is a file that is open, of batches and of their rows


@dataclass(frozen=True)
class PackConfig:
    """Says how the rows of batches are packed on disk, and who writes them.

    Attributes:
        layout: What batches share on disk where packing all exceeds the disk space: ``cost`` (least predicted time),
            ``heuristic`` (DiskGNN section 5.1, smallest segments), ``packed`` (nothing), or ``S,M``: segments of S
            batches, in which rows wanted more than M times are shared.
        rates: What the disk reads, which layout ``cost`` prices by: bytes per second in order, and random reads of
            4 KiB per second. The same rates give the same files. None: those that the run has, else measured.
        parts: Files that the batches lie in, so that several machines train with a part each: of K parts, part k has
            batches k, K + k, 2 K + k, ... of each epoch. Best as many as batches a step takes
            (:class:`outcrop.TrainConfig`, ``accumulate``).
        workers: Processes of this machine that pack, within the same memory; the files are the same. They are new
            Pythons, which import the main module: a script that asks for them keeps its work under
            ``if __name__ == "__main__"``.
        ray: Address of a Ray cluster whose machines pack (``auto``: the one that this machine is part of), and see run
            and graph under the same paths; the files are the same. None: this machine.
        own_disks: The machines of the cluster see no folder together: each has a copy of the graph at the same path,
            and keeps the parts that it is to train with on its own disk, in a folder of the run's path.
    """

    layout: str = "cost"
    rates: tuple[float, float] | None = None
    parts: int = 1
    workers: int = 1
    ray: str | None = None
    own_disks: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        if not 1 <= self.parts <= MOST_PARTS:
            raise ArgumentError(f"{self.parts} parts: between 1 and {MOST_PARTS} are possible")
        if self.workers < 1:
            raise ArgumentError(f"{self.workers} workers cannot pack: one is the least")
        if self.workers > 1 and self.ray is not None:
            raise ArgumentError(
                "workers are processes of this machine, ray is a cluster that has its own: keep one of them"
            )
        if self.own_disks and (self.ray is None or self.parts == 1):
            missing = (
                "ray: the address of their cluster" if self.ray is None else "parts: at least two of them"
            )
            raise ArgumentError(f"own_disks leaves parts of the run on several machines, and lacks {missing}")
