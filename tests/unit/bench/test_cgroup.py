"""The helper that runs commands under a real memory limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cgroup import memory_limited

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


def test_exit_status_and_errors_come_back():
    run = memory_limited(["sh", "-c", "echo out; echo err >&2; exit 3"], 50 * MIB)
    assert (run.returncode, run.stdout, run.stderr) == (3, "out\n", "err\n")
