"""How blocks are read and written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from outcrop.errors import ArgumentError


@dataclass(frozen=True)
class IoConfig:
    """Says how the engine reads and writes blocks.

    Attributes:
        backend: What does it; ``automatic`` tries io_uring first.
        depth: Requests in flight.
        max_request_bytes: Bytes of a request at the most.
        direct: Whether the system's page cache is passed by.
        threads: Threads of backend ``pread``.
        rate_bytes_per_second: Limit of reads and writes together, on average; 0 = none.
        requests_per_second: The same of requests.
        ring_deadline_seconds: Seconds in which some row must come through queue pairs (:mod:`outcrop.rows.rings`);
            a wait without any ends with an error.
    """

    backend: Literal["automatic", "uring", "pread"] = "automatic"
    depth: int = 128
    max_request_bytes: int = 1 << 20
    direct: bool = True
    threads: int = 4
    rate_bytes_per_second: int = 0
    requests_per_second: int = 0
    ring_deadline_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.ring_deadline_seconds < math.inf:
            raise ArgumentError(
                f"ring_deadline_seconds={self.ring_deadline_seconds} is no time to wait for a disk; "
                "give seconds above 0, such as 60"
            )
