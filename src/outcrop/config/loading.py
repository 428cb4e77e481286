"""Where neighbour lists and rows are read from, where batches go, and what caches are filled with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from outcrop.errors import ArgumentError

TopologyChoice = Literal["automatic", "memory", "paged", "map"]
TOPOLOGIES: tuple[TopologyChoice, ...] = get_args(TopologyChoice)
ROW_READS = ("engine", "gpu")
CACHE_STRATEGIES = ("auto", "GTCF", "GFCT", "CTGF", "CFGT", "hybrid")


@dataclass(frozen=True)
class DeviceConfig:
    """Says where batches go.

    Attributes:
        memory_bytes: Of a GPU, for cached rows and lists, batches and sampling; 0: nothing is cached there, the rest
            takes what is free.
        draws: The GPU draws the batches too that are drawn on the fly.
        cache_strategy: Of mode ``online``: what the GPU's and the host's memory are filled with
            (:mod:`outcrop.loading.online.cache_plan`): ``auto``, what saves the most transactions; ``GTCF``, ``GFCT``,
            ``CTGF``, ``CFGT``, ``hybrid``: the fixed strategies of Hyperion, section III-B2, to compare with.
    """

    name: str = "cpu"
    memory_bytes: int = 0
    draws: bool = False
    cache_strategy: str = "auto"

    def __post_init__(self) -> None:
        if self.cache_strategy not in CACHE_STRATEGIES:
            known = ", ".join(CACHE_STRATEGIES)
            raise ArgumentError(f"cache strategy {self.cache_strategy!r} is unknown; known: {known}")


def check_topology(topology: str) -> None:
    """Raises ArgumentError where ``topology`` is no place that neighbour lists are read from."""
    if topology not in TOPOLOGIES:
        raise ArgumentError(f"topology {topology!r} is unknown; known: {', '.join(TOPOLOGIES)}")


def check_row_reads(row_reads: str, stripes: Sequence[str | Path] = ()) -> None:
    """Raises ArgumentError where nobody is called ``row_reads``, or who is does not read ``stripes``."""
    if row_reads not in ROW_READS:
        raise ArgumentError(f"io {row_reads!r} is unknown; known: {', '.join(ROW_READS)}")
    if stripes and row_reads != "gpu":
        raise ArgumentError(
            f"stripes ({', '.join(map(str, stripes))}) are read by io gpu alone, not {row_reads}: add --io gpu, "
            "or leave them out"
        )


CPU = DeviceConfig()
CACHE_POLICIES = ("sieve", "lru", "s3fifo")
