"""How many commands keep disks busy, and how many threads of a GPU put them to rings.

Source: Hyperion, section II, Equation 2, and section III-A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

COMMAND_SECONDS = 6.5e-6  # a warp writes 32 commands of 64 bytes to memory of an A100 (Hyperion, section II)


@dataclass(frozen=True)
class Disks:
    """Alike, read at the same time.

    Attributes:
        count: Disks.
        ops_per_second: Reads of ``op_bytes`` that one of them does at the most.
        op_bytes: Bytes of a read.
        latency_s: From a command to its completion with nothing else under way.
    """

    count: int
    ops_per_second: float
    op_bytes: int
    latency_s: float = 0.0

    def rate(self, bus_bytes_per_second: float) -> float:
        """Reads per second of all of them that the bus lets through."""
        return min(self.count * self.ops_per_second, bus_bytes_per_second / self.op_bytes)


def submitting_threads(
    disks: Disks, bus_bytes_per_second: float = math.inf, command_seconds: float = COMMAND_SECONDS
) -> int:
    """Threads that saturate ``disks``: ``ceil(min(Q * M, B / K) * T)``, Equation 2 of Hyperion.

    Args:
        command_seconds: Seconds in which a thread writes a command, all lanes of its warp beside it.
    """
    return max(math.ceil(round(disks.rate(bus_bytes_per_second) * command_seconds, 9)), 1)


def commands_under_way(disks: Disks, bus_bytes_per_second: float = math.inf) -> int:
    """Commands that are to be under way: what arrives within the latency of one (Little's law)."""
    return max(math.ceil(round(disks.rate(bus_bytes_per_second) * disks.latency_s, 9)), 1)
