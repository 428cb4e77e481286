"""A machine in numbers: its disks, its GPU, its bus, and what loading takes of its CPU. Nothing is measured here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from outcrop.errors import ArgumentError


@dataclass(frozen=True)
class Disk:
    """Describes one disk.

    Attributes:
        reads: (bytes of a request, requests per second with many in flight), ascending by bytes.
        latency_s: From a request to its answer with nothing else in flight: alpha of the paper's T_ssd.
        write_bytes_per_s: Rate at which it writes in large requests; None: nobody knows.
        size_bytes: Bytes that it holds, likewise.
    """

    name: str
    reads: tuple[tuple[int, float], ...]
    latency_s: float = 0.0
    write_bytes_per_s: float | None = None
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.reads]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1 or any(not r > 0 for _, r in self.reads):
            raise ArgumentError(
                f"disk {self.name!r}: reads {self.reads} are not (bytes, requests per second) by rising size, "
                "all positive: measure again, or mend the file"
            )

    def request_seconds(self, size: float) -> float:
        """Returns the seconds that one request of ``size`` bytes takes of the disk: linear between the sizes that were
        measured.
        """
        first, last = self.reads[0], self.reads[-1]
        if size <= first[0]:
            return 1 / first[1]
        if size >= last[0]:
            return size / last[0] / last[1]
        for (low, slow), (high, fast) in pairwise(self.reads):
            if size <= high:
                share = (size - low) / (high - low)
                return (1 - share) / slow + share / fast
        raise AssertionError(size)

    @property
    def bytes_per_s(self) -> float:
        """Returns the bytes per second in the largest requests that were measured."""
        return self.reads[-1][0] * self.reads[-1][1]


@dataclass(frozen=True)
class HostCosts:
    """Says what loading takes of the CPU: seconds of one core per unit. None of it where loading has cores of its own.

    Attributes:
        read_byte_s: Per byte read in large requests; request_s: per small request.
        copy_byte_s: Per byte moved in order; gather_byte_s: per byte of rows picked from anywhere in memory.
        structure_byte_s: Per byte of a prepared batch's graph and address table: checked, copied, sorted.
        batch_s: Per batch, whatever its size.
        stall: Seconds by which computing gets longer for each CPU second of a single thread beside it: all threads of a
            product wait for the one that was interrupted. What all cores do together costs each of them its part.
        stretch: How many times as long a batch's loading takes beside computing, for want of a core.
    """

    read_byte_s: float = 0.0
    request_s: float = 0.0
    copy_byte_s: float = 0.0
    gather_byte_s: float = 0.0
    batch_s: float = 0.0
    stall: float = 0.0
    stretch: float = 1.0
    structure_byte_s: float = 0.0


@dataclass(frozen=True)
class Gpu:
    """Describes a GPU. ``flops_per_s`` and ``bytes_per_s``: what products and moves of a training step reach, not the
    data sheet's.
    """

    name: str
    flops_per_s: float
    bytes_per_s: float
    memory_bytes: int = 0


@dataclass(frozen=True)
class Hardware:
    """Describes a machine, or ``machines`` of them.

    Attributes:
        bus_bytes_per_s: From disks and host memory to the GPU; infinite where the CPU computes.
        cores: Cores that sample and load.
        most_disks: Disks that have a place.
        disk_limit_bytes_per_s: Limit of all disks together, as a controller or a cloud's quota sets it.
    """

    name: str
    disk: Disk
    disks: int = 1
    bus_bytes_per_s: float = math.inf
    memory_bytes: int = 0
    gpu: Gpu | None = None
    cores: int = 1
    host: HostCosts = HostCosts()
    most_disks: int = 16
    machines: int = 1
    disk_limit_bytes_per_s: float = math.inf
