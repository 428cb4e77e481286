"""Machines that tests play on this one: network namespaces that a wire joins, and the processes that run in them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import namespaces
from namespaces import PORT, Machine, Process, descendants, ip, is_alive, kill

QUICK_SECONDS = 200.0
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "2",  # so that ranks and one process take as many, on any machine
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


def rank_of(process: Process) -> int:
    """Rank of a process that torchrun has started."""
    for entry in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
        if entry.startswith(b"RANK="):
            return int(entry[5:])
    raise AssertionError(f"process {process.pid} is no rank")


def eventually(holds: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


class Jobs:
    """Starts processes that write what they say to files, and ends them with all that they started."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self._below: set[Process] = set()

    def start(self, name: str, command: list[str], **variables: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=ENVIRONMENT | {"TMPDIR": str(self._folder)} | variables,  # torchrun leaves folders there
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return process

    def below(self, process: subprocess.Popen[bytes]) -> list[Process]:
        found = descendants(process.pid)
        self._below.update(found)
        return found

    def said(self) -> str:
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-6000:]}" for log in logs)

    def wait(self, process: subprocess.Popen[bytes], seconds: float = QUICK_SECONDS) -> None:
        try:
            code = process.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            pytest.fail(f"nothing ended in time\n{self.said()}")
        assert code == 0, self.said()

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                self.below(process)
                process.kill()
            process.wait()
        for below in self._below:
            kill(below)


@contextmanager
def ending_all(folder: Path) -> Iterator[Jobs]:
    made = Jobs(folder)
    try:
        yield made
    finally:
        made.end()


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two machines that a wire of 50 Mbit/s joins; skips where they cannot be made."""
    with ExitStack() as closing:
        try:
            made = closing.enter_context(namespaces.two_machines("50mbit"))
        except namespaces.NoNamespaces as why:
            pytest.skip(str(why))
        yield made


__all__ = [
    "ENVIRONMENT",
    "PORT",
    "Jobs",
    "Machine",
    "ending_all",
    "eventually",
    "ip",
    "is_alive",
    "kill",
    "rank_of",
]
