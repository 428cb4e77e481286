"""Machines that tests play on this one: network namespaces that a wire joins, and the processes that run in them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

QUICK_SECONDS = 200.0
PORT = 29400
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "2",  # so that ranks and one process take as many, on any machine
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


class Process(NamedTuple):
    """Names a process for good: its id is used again, with another time of its start."""

    pid: int
    started: int


def status(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; none where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_alive(process: Process) -> bool:
    """Tells whether it may still do something: one that nobody has waited for is dead."""
    fields = status(process.pid)
    return bool(fields) and fields[0] not in "ZX" and int(fields[19]) == process.started


def descendants(pid: int) -> list[Process]:
    children: dict[int, list[Process]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (fields := status(int(path.name))):
            children.setdefault(int(fields[1]), []).append(Process(int(path.name), int(fields[19])))
    found, asked = list[Process](), [pid]
    while asked:
        below = children.get(asked.pop(), [])
        found += below
        asked += [process.pid for process in below]
    return found


def rank_of(process: Process) -> int:
    """Rank of a process that torchrun has started."""
    for entry in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
        if entry.startswith(b"RANK="):
            return int(entry[5:])
    raise AssertionError(f"process {process.pid} is no rank")


def kill(process: Process, sent: signal.Signals = signal.SIGKILL) -> None:
    if is_alive(process):
        os.kill(process.pid, sent)


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


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


class Machine(NamedTuple):
    """A network namespace with one device, which leads to the other machine."""

    name: str
    device: str
    address: str

    def command(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]

    def sent_bytes(self) -> int:
        path = f"/sys/class/net/{self.device}/statistics/tx_bytes"
        return int(subprocess.check_output(self.command("cat", path)))

    def torchrun(self, arguments: list[str], meeting: Machine, nodes: str, *more: str) -> list[str]:
        """Returns the command of this machine's torchrun, with one rank, for ``nodes`` that meet at ``meeting``."""
        conf = f"is_host={int(self == meeting)},join_timeout=100,last_call_timeout=5"
        return self.command(
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1"),
            *("--rdzv-backend=c10d", "--rdzv-id=test", f"--rdzv-endpoint={meeting.address}:{PORT}"),
            *(f"--rdzv-conf={conf}", f"--local-addr={self.address}", *more, *arguments),
        )


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two machines that a wire of 50 Mbit/s joins; skips where they cannot be made."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("no ip and tc: install iproute2")
    one = Machine(f"oc{os.getpid()}a", f"oc{os.getpid()}va", "10.77.0.1")
    two = Machine(f"oc{os.getpid()}b", f"oc{os.getpid()}vb", "10.77.0.2")
    try:
        _join(one, two)
        yield one, two
    finally:
        for machine in (one, two):
            _remove(machine)


def _join(one: Machine, two: Machine) -> None:
    try:
        for machine in (one, two):
            ip("netns", "add", machine.name)
        pair = ("type", "veth", "peer", "name", two.device, "netns", two.name)
        ip("-n", one.name, "link", "add", one.device, *pair)
        for machine in (one, two):
            ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", machine.device)
            for device in ("lo", machine.device):
                ip("-n", machine.name, "link", "set", device, "up")
            slow = ("tbf", "rate", "50mbit", "burst", "32kbit", "latency", "400ms")
            subprocess.run(
                ["tc", "-n", machine.name, "qdisc", "add", "dev", machine.device, "root", *slow],
                check=True,
                capture_output=True,
            )
        one.sent_bytes()  # which needs a /sys of its own
    except (OSError, subprocess.CalledProcessError) as why:
        pytest.skip(f"no network namespaces here: {why}")


def _remove(machine: Machine) -> None:
    """Ends what runs on the machine, then takes it away."""
    listed = subprocess.run(["ip", "netns", "pids", machine.name], capture_output=True, text=True)
    for pid in listed.stdout.split():
        if fields := status(int(pid)):
            kill(Process(int(pid), int(fields[19])))
    subprocess.run(["ip", "netns", "del", machine.name], capture_output=True)
