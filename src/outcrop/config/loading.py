"""Where batches go, and what caches are filled with."""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.errors import ArgumentError

CACHE_STRATEGIES = ("auto", "GTCF", "GFCT", "CTGF", "CFGT", "hybrid")


@dataclass(frozen=True)
class DeviceConfig:
    """Where batches go.

    Attributes:
        memory_bytes: Of a GPU, for cached rows and lists, batches and sampling; 0: nothing is cached there, the rest
            takes what is free.
        draws: The GPU draws the batches too that are drawn on the fly.
        cache_strategy: Of mode ``online``: what the GPU's and the host's memory are filled with
            (:mod:`outcrop.loading.online.tiers`): ``auto``, what saves the most transactions; ``GTCF``, ``GFCT``,
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


CPU = DeviceConfig()
CACHE_POLICIES = ("sieve", "lru", "s3fifo")
