"""How blocks are read and written, and who asks for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from outcrop.errors import ArgumentError

TOPOLOGIES = ("automatic", "memory", "paged", "map")
INITIATORS = ("engine", "gpu")


@dataclass(frozen=True)
class IoConfig:
    """Block I/O engine. ``backend``: automatic tries io_uring first. ``depth``: requests in flight.

    ``topology``: where sampling reads neighbour lists: ``memory``; ``paged``, from disk through the engine, with a
    cache of the pages that are wanted most; ``map``, through the system's page cache; ``automatic``: memory where it
    fits its share of the budget, else map where the system has twice the room for it, else paged. Batches are the same.
    ``rate_bytes_per_second``: limit of reads and writes together, on average; 0 = none. ``initiator``: who asks for the
    rows that mode ``online`` reads, and moves slabs of embeddings on a GPU: ``engine``, or ``gpu``, by kernels through
    queue pairs (outcrop.rows.rings). ``stripes``: folders, made by ``outcrop stripe``, of copies of feature rows on
    other disks, where initiator ``gpu`` reads them. ``ring_deadline_seconds``: a wait for rows through queue pairs
    ends with an error when so long none of them came.
    """

    backend: Literal["automatic", "uring", "pread"] = "automatic"
    depth: int = 128
    max_request_bytes: int = 1 << 20
    direct: bool = True
    threads: int = 4
    rate_bytes_per_second: int = 0
    topology: Literal["automatic", "memory", "paged", "map"] = "automatic"
    initiator: Literal["engine", "gpu"] = "engine"
    stripes: tuple[str, ...] = ()
    ring_deadline_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.ring_deadline_seconds < math.inf:
            raise ArgumentError(
                f"ring_deadline_seconds={self.ring_deadline_seconds} is no time to wait for a disk; "
                "give seconds above 0, such as 60"
            )
        if self.initiator not in INITIATORS:
            raise ArgumentError(f"io {self.initiator!r} is unknown; known: {', '.join(INITIATORS)}")
        if self.stripes and self.initiator != "gpu":
            raise ArgumentError(
                f"stripes ({', '.join(self.stripes)}) are read by io gpu alone, not {self.initiator}: add --io gpu, "
                "or leave them out"
            )
        if self.topology not in TOPOLOGIES:
            raise ArgumentError(f"topology {self.topology!r} is unknown; known: {', '.join(TOPOLOGIES)}")
