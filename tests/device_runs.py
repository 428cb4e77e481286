"""Runs the tests of tests/device in a process of their own, on the fake GPU or a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import REPOSITORY

FOLDER = REPOSITORY / "tests" / "device"
MODULES = sorted(FOLDER.glob("test_*.py"))


def pytest_of(
    device: str, *arguments: str | Path, schedule: str = "latest", **variables: str
) -> subprocess.CompletedProcess[str]:
    """What pytest says in a process of its own, whose GPU is ``device``: ``fake`` or ``cuda``."""
    paths = [str(FOLDER), *(p for p in sys.path if p)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env |= {
        "OUTCROP_GPU_TESTS": device,
        "PYTHONPATH": os.pathsep.join(paths),
        "OUTCROP_GPU_SCHEDULE": schedule,
    }
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:logging", "-o", "timeout=120"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    return subprocess.run(command, env=env | variables, cwd=REPOSITORY, capture_output=True, text=True)
