"""The helper that runs commands under a real memory limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cgroup import memory_limited
from outcrop.bench import process
from outcrop.bench.cgroup import LimitedRun, LimitUnavailable, SlowDisk, kernel_slows

MIB = 1 << 20
ALLOCATE = "import sys; data = bytearray(int(sys.argv[1])); data[::4096] = data[::4096]; print(len(data))"


def test_a_command_within_its_limit_reports_its_peak():
    run = memory_limited([sys.executable, "-c", ALLOCATE, str(60 * MIB)], 200 * MIB)
    assert (run.returncode, run.stdout, run.oom_killed) == (0, f"{60 * MIB}\n", False)
    assert run.limit_hits == 0
    assert run.peak_bytes is None or 60 * MIB <= run.peak_bytes <= 200 * MIB


def test_a_command_beyond_its_limit_is_killed():
    run = memory_limited([sys.executable, "-c", ALLOCATE, str(300 * MIB)], 100 * MIB)
    assert run.returncode != 0
    assert run.oom_killed


def test_the_page_cache_counts_against_the_limit_and_does_not_kill(tmp_path: Path):
    """Files far larger than the limit can be read: their pages are dropped, and the peak stays below the limit."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(bytes(100 * MIB))
        os.fsync(file.fileno())
        # Pages that are cached count for the group that wrote them, not for that which reads them.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    read = "import sys\nwith open(sys.argv[1], 'rb') as f:\n while f.read(1 << 20): pass"
    run = memory_limited([sys.executable, "-c", read, path], 50 * MIB)
    assert (run.returncode, run.oom_killed) == (0, False)
    assert run.limit_hits > 0
    assert run.peak_bytes is None or 40 * MIB <= run.peak_bytes <= 50 * MIB


def test_a_command_that_hangs_is_killed_with_its_children():
    script = "sleep 60 & echo $!; wait"
    for seconds in (0.5, 5, 50):  # the shell has to begin in this time, which on a busy machine takes a while
        with pytest.raises(subprocess.TimeoutExpired) as error:
            memory_limited(["sh", "-c", script], 50 * MIB, timeout_seconds=seconds)
        child = int((error.value.stdout or b"0").decode())
        if child:
            break
    assert child > 0
    status = Path(f"/proc/{child}/stat")
    assert not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z"


@pytest.mark.parametrize(
    ("way", "slow", "least_seconds"),
    [
        ("read", {"bytes_per_second": 2 * MIB}, 1.5),
        ("write", {"bytes_per_second": 2 * MIB}, 1.5),
        ("read", {"requests_per_second": 32}, 1.5),  # 64 requests of 64 KiB
        ("read", {"bytes_per_second": 1 << 40}, 0.0),
    ],
)
def test_a_disk_is_as_slow_as_it_is_to_be(
    tmp_path: Path, way: str, slow: dict[str, int], least_seconds: float
):
    """Four MiB past the page cache, in pieces of 64 KiB; no upper bound, as other work may be in the way."""
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * MIB))
    os.sync()
    direct = ["dd", "bs=64k", "count=64", "conv=notrunc"]
    direct += (
        [f"if={path}", "of=/dev/null", "iflag=direct"]
        if way == "read"
        else ["if=/dev/zero", f"of={path}", "oflag=direct"]
    )
    began = time.monotonic()
    run = memory_limited(direct, 50 * MIB, disk=SlowDisk(path, **slow))
    if "Invalid argument" in run.stderr:
        pytest.skip("files here cannot be read past the page cache")
    assert run.returncode == 0, run.stderr
    assert time.monotonic() - began >= least_seconds


def test_what_slows_a_disk_down_in_either_version(tmp_path: Path):
    disk = SlowDisk(tmp_path, 1000, 7)
    try:
        device = disk.device
    except LimitUnavailable as why:
        assert not kernel_slows(disk)
        pytest.skip(str(why))
    assert disk.limits(2) == {"io.max": f"{device} rbps=1000 riops=7 wbps=1000 wiops=7"}
    assert disk.limits(1) == {
        "blkio.throttle.read_bps_device": f"{device} 1000",
        "blkio.throttle.read_iops_device": f"{device} 7",
        "blkio.throttle.write_bps_device": f"{device} 1000",
        "blkio.throttle.write_iops_device": f"{device} 7",
    }
    assert SlowDisk(tmp_path, None, 7).as_variables() == {"OUTCROP_IO_REQUESTS": "7"}


def test_a_disk_that_the_kernel_cannot_slow_down_is_waited_for_by_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The memory limit stays: a file of /proc lies on no disk."""
    disk = SlowDisk(Path("/proc/self/stat"), 1000, 7)
    assert not kernel_slows(disk)
    given = {}

    def limited(command: list[str], limit_bytes: int, **more: Any) -> LimitedRun:
        given.update(more, limit_bytes=limit_bytes)
        Path(command[command.index("--json") + 1]).write_text("{}")
        return LimitedRun(0, "", "", 5, False)

    monkeypatch.setattr(process, "memory_limited", limited)
    assert process.outcrop(["info", tmp_path], limit_bytes=1 << 30, disk=disk).limit_bytes == 1 << 30
    assert (given["disk"], given["limit_bytes"]) == (None, 1 << 30)
    assert (given["env"]["OUTCROP_IO_RATE"], given["env"]["OUTCROP_IO_REQUESTS"]) == ("1000", "7")


def test_exit_status_and_errors_come_back():
    run = memory_limited(["sh", "-c", "echo out; echo err >&2; exit 3"], 50 * MIB)
    assert (run.returncode, run.stdout, run.stderr) == (3, "out\n", "err\n")
