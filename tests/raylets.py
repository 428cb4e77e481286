"""A Ray cluster of several raylets of this machine, which tests prepare on."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from artifact_support import child_environment

BESIDE = Path(sys.prefix) / "beside-ray"  # where scripts/setup.sh installs it


@functools.cache
def home() -> tempfile.TemporaryDirectory[str]:
    """Where Ray keeps the token that machines show each other, and its sessions; gone with this process."""
    return tempfile.TemporaryDirectory(prefix="oc-ray-", dir="/tmp", ignore_cleanup_errors=True)


def environment() -> dict[str, str]:
    """With Ray on the path, a home of its own, and without what tells a child that tests run it."""
    if not BESIDE.is_dir():
        pytest.skip("no Ray: scripts/setup.sh test installs it")
    variables = child_environment(RAY_USAGE_STATS_ENABLED="0", HOME=home().name, RAY_TMPDIR=home().name)
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], str(BESIDE)])
    return variables


class Cluster:
    """Several raylets, in a process of their own."""

    def __init__(self, nodes: int):
        script = Path(__file__).with_name("ray_cluster.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(nodes)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        if ":" not in self.address:
            pytest.skip(f"Ray starts no cluster here (it ended with {self.process.wait(60)})")

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == "done"

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
