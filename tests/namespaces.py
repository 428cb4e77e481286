"""Two machines that are network namespaces of this one, joined by a wire of so many bits a second; and processes by
names that stay theirs. Only root makes namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PORT = 29400
NETWORK = "10.77.0.0/24"


class NoNamespaces(Exception):
    """Says why none can be made here."""


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


def kill(process: Process, sent: signal.Signals = signal.SIGKILL) -> None:
    if is_alive(process):
        os.kill(process.pid, sent)


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
def two_machines(rate: str = "50mbit") -> Iterator[tuple[Machine, Machine]]:
    """Yields two machines that a wire of ``rate`` joins, in each direction; ends what runs on them and takes them away.

    Raises:
        NoNamespaces: They cannot be made.
    """
    if shutil.which("ip") is None or shutil.which("tc") is None:
        raise NoNamespaces("no ip and tc: install iproute2")
    one = Machine(f"oc{os.getpid()}a", f"oc{os.getpid()}va", "10.77.0.1")
    two = Machine(f"oc{os.getpid()}b", f"oc{os.getpid()}vb", "10.77.0.2")
    try:
        _join(one, two, rate)
        yield one, two
    finally:
        for machine in (one, two):
            _remove(machine)


def _join(one: Machine, two: Machine, rate: str) -> None:
    try:
        for machine in (one, two):
            ip("netns", "add", machine.name)
        pair = ("type", "veth", "peer", "name", two.device, "netns", two.name)
        ip("-n", one.name, "link", "add", one.device, *pair)
        for machine in (one, two):
            ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", machine.device)
            for device in ("lo", machine.device):
                ip("-n", machine.name, "link", "set", device, "up")
            # As most kernels have it. With bbr, the default of some, two directions at once get less than the rate.
            route = ("route", "change", NETWORK, "dev", machine.device, "src", machine.address)
            ip("-n", machine.name, *route, "congctl", "cubic")
            slow = ("tbf", "rate", rate, "burst", "32kbit", "latency", "400ms")
            subprocess.run(
                ["tc", "-n", machine.name, "qdisc", "add", "dev", machine.device, "root", *slow],
                check=True,
                capture_output=True,
            )
        one.sent_bytes()  # which needs a /sys of its own
    except (OSError, subprocess.CalledProcessError) as why:
        raise NoNamespaces(f"no network namespaces here: {why}") from why


def _remove(machine: Machine) -> None:
    """Ends what runs on the machine, then takes it away."""
    listed = subprocess.run(["ip", "netns", "pids", machine.name], capture_output=True, text=True)
    for pid in listed.stdout.split():
        if fields := status(int(pid)):
            kill(Process(int(pid), int(fields[19])))
    subprocess.run(["ip", "netns", "del", machine.name], capture_output=True)
