"""How many commands keep disks busy, and how many threads of a GPU put them to rings.

Source: Hyperion, section II, Equation 2, and section III-A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from outcrop.device.launch import BLOCK_THREADS, WARP
from outcrop.runtime.hardware import Disk
from outcrop.runtime.machine import describe
from outcrop.store import profile as profiles
from outcrop.store.profile import Profile

_MOST_BLOCK_THREADS = 1024
COMMAND_SECONDS = 6.5e-6  # a warp writes 32 commands of 64 bytes to memory of an A100 (Hyperion, section II)


@dataclass(frozen=True)
class Disks:
    """Describes disks that are alike and read at the same time.

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
    """Counts the threads that saturate ``disks``: ``ceil(min(Q * M, B / K) * T)``, Equation 2 of Hyperion.

    Args:
        command_seconds: Seconds in which a thread writes a command, all lanes of its warp beside it.
    """
    return max(math.ceil(round(disks.rate(bus_bytes_per_second) * command_seconds, 9)), 1)


def block_threads(disks: Disks, bus_bytes_per_second: float = math.inf) -> int:
    """Counts the threads of each submitting block, one for a disk: :func:`submitting_threads` shared out, rounded up to
    warps.

    A block has 1024 threads at the most.
    """
    share = math.ceil(submitting_threads(disks, bus_bytes_per_second) / disks.count)
    return min(math.ceil(share / WARP) * WARP, _MOST_BLOCK_THREADS)


def commands_under_way(disks: Disks, bus_bytes_per_second: float = math.inf) -> int:
    """Commands that are to be under way: what arrives within the latency of one (Little's law)."""
    return max(math.ceil(round(disks.rate(bus_bytes_per_second) * disks.latency_s, 9)), 1)


def disks_of(profile: Profile, op_bytes: int = 1, count: int = 1) -> tuple[Disks, float]:
    """Returns ``count`` disks such as that of ``profile``, and bytes per second of the bus to the GPU.

    Args:
        op_bytes: Bytes of a read; no less than the smallest that was measured are taken.
    """
    op_bytes = max(op_bytes, profile.reads[0][0])
    rate = 1 / Disk("disk", profile.reads).request_seconds(op_bytes)
    bus = profile.bus_bytes_per_s or math.inf
    return Disks(count, rate, op_bytes, profile.latency_s), bus


def submitting_block_threads(folder: Path, row_bytes: int, count: int = 1) -> int:
    """Returns the threads of each submitting block for ``count`` disks such as that of ``folder``, a block a disk.

    They follow from Equation 2 of Hyperion where the profile that Outcrop keeps of this machine and disk is valid;
    nothing is measured. Without one they are ``BLOCK_THREADS``.
    """
    profile = profiles.kept(profiles.key_of(folder, describe(probe=False)))
    return BLOCK_THREADS if profile is None else block_threads(*disks_of(profile, row_bytes, count))
