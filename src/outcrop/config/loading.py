"""Where batches go, and the modes that Outcrop is compared with."""

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


@dataclass(frozen=True)
class BaselineConfig:
    """Options of the modes that Outcrop is compared with.

    Attributes:
        cache_policy: Of ``dynamic``: sieve, lru or s3fifo.
        cache_rows: Rows that the cache of ``dynamic`` and ``belady`` holds; None = as many as the budget allows.
        partitions, resident: Of ``partition``: partitions of the nodes (fewer where there are fewer nodes; None = 16,
            or more until four of them fit), and how many are in memory at a time (None = as many as the budget allows).
        passes: What one epoch goes over; ``belady`` plans for it.
    """

    cache_policy: str = "sieve"
    cache_rows: int | None = None
    partitions: int | None = None
    resident: int | None = None
    passes: tuple[str, ...] = ("train",)

    def __post_init__(self) -> None:
        problems = []
        if self.cache_policy not in CACHE_POLICIES:
            problems.append(
                f"cache policy {self.cache_policy!r} is unknown; known: {', '.join(CACHE_POLICIES)}"
            )
        if self.cache_rows is not None and self.cache_rows < 0:
            problems.append(f"{self.cache_rows} cache rows is negative")
        if self.partitions is not None and self.partitions < 1:
            problems.append(f"partitions {self.partitions} is below 1")
        if self.resident is not None and not 1 <= self.resident <= (self.partitions or self.resident):
            problems.append(f"{self.resident} resident partitions are not 1 to {self.partitions or 'all'}")
        if problems:
            raise ArgumentError("; ".join(problems))
