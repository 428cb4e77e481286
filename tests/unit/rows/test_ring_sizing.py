"""Equation 2 of Hyperion with the numbers of the paper."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from outcrop.cli.doctor import _rings
from outcrop.rows.rings.sizing import (
    Disks,
    block_threads,
    commands_under_way,
    disks_of,
    submitting_block_threads,
    submitting_threads,
)
from outcrop.runtime import machine
from outcrop.runtime.hardware import HostCosts
from outcrop.store import profile

P5510 = {"count": 12, "ops_per_second": 7.5e5}
PCIE4 = 24e9


def test_threads_are_those_of_the_paper():
    """Section II: 59 threads for 512 bytes. For 4096, where the bus is the limit, B / K * T is 38.1; the paper says 32,
    which is one warp, and what its own equation has for 20 GB/s."""
    assert submitting_threads(Disks(op_bytes=512, **P5510), PCIE4) == 59
    assert submitting_threads(Disks(op_bytes=4096, **P5510), PCIE4) == 39
    assert submitting_threads(Disks(op_bytes=4096, **P5510), 20e9) == 32
    assert submitting_threads(Disks(1, 10_000, 4096)) == 1
    assert submitting_threads(Disks(1, 1e6, 512), command_seconds=1e-6) == 1


def test_commands_under_way_are_those_of_a_latency():
    assert commands_under_way(Disks(1, 750_000, 512, 1e-4)) == 75
    assert commands_under_way(Disks(12, 750_000, 4096, 1e-4), PCIE4) == 586
    assert commands_under_way(Disks(1, 10_000, 4096)) == 1


def test_blocks_are_whole_warps_of_the_threads_of_a_disk():
    """12 disks of the paper take 59 threads in all: 5 each, a warp. A disk of 2e7 reads/s takes 130, five warps."""
    assert block_threads(Disks(op_bytes=512, **P5510), PCIE4) == 32
    assert block_threads(Disks(1, 2e7, 512)) == 160
    assert block_threads(Disks(2, 2e7, 512)) == 160
    assert block_threads(Disks(4, 2e7, 512), bus_bytes_per_second=2e7 * 512) == 64
    assert block_threads(Disks(1, 1e9, 512)) == 1024


def a_profile(key: dict, **changes) -> profile.Profile:
    reads = ((4096, 200_000.0), (1 << 20, 3000.0))
    host = HostCosts()
    whole = profile.Profile(key, 2, 1 << 30, reads, 9e-5, 1e9, 1e9, 1e9, host, {}, measured_at=time.time())
    return replace(whole, **changes)


def test_doctor_says_them_of_the_smallest_reads():
    said = _rings(a_profile({}))
    assert said.startswith("18 commands of 4096 bytes under way, put there by 2 threads")
    assert said.endswith("launched: 32)")


def test_disks_are_those_of_the_profile():
    """Between sizes seconds are linear: a read of 526336 bytes takes the mean of those of 4 KiB and 1 MiB."""
    disks, bus = disks_of(a_profile({}), (4096 + (1 << 20)) // 2, count=3)
    assert disks == Disks(3, pytest.approx(2 / (1 / 200_000 + 1 / 3000)), 526336, 9e-5)
    assert bus == math.inf
    smallest = Disks(1, pytest.approx(200_000.0), 4096, 9e-5)
    assert disks_of(a_profile({}, bus_bytes_per_s=2e9), 100) == (smallest, 2e9)


def test_threads_come_from_a_profile_that_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTCROP_CACHE", str(tmp_path / "cache"))
    assert submitting_block_threads(tmp_path, 512) == 256
    assert not (tmp_path / "cache").exists()  # nothing was measured
    key = profile.key_of(tmp_path, machine.describe(probe=False))
    fast = a_profile(key, reads=((4096, 2e7),))
    profile.write(profile.default_path(key), fast)
    assert submitting_block_threads(tmp_path, 512) == 160
    assert submitting_block_threads(tmp_path, 40960) == 32
    profile.write(profile.default_path(key), replace(fast, measured_at=time.time() - 40 * 86400))
    assert submitting_block_threads(tmp_path, 512) == 256
