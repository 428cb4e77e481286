"""Runs a command under a real memory limit, and with a slower disk: control groups, version 1 or 2.

The limits are the kernel's, so that of memory also covers what no budget of ours counts, page cache too, and that of a
disk what is read through the page cache. Needs root and writable controllers; LimitUnavailable says why they cannot be
set. Swap is switched off inside the group, but for 4 MiB in version 1.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from outcrop.errors import OutcropError

_numbers = itertools.count()
# Version 1 limits memory and swap together, and looks at that first. Where it is as low as the limit of memory, Linux
# counts no hits (6.18). More than one charge, which is a huge page at the most.
_SWAP_MARGIN_BYTES = 4 << 20


class LimitUnavailable(OutcropError, RuntimeError):
    """Says that a memory limit cannot be set on this machine or by this user."""


@dataclass(frozen=True)
class LimitedRun:
    """Says how a limited command ended.

    Attributes:
        peak_bytes: All memory of the group, page cache included; None if unknown.
        major_faults: Pages that had to be read from disk when they were used, such as libraries that were dropped.
        limit_hits: How often memory was asked for where the limit left none, so that pages were dropped first.
    """

    returncode: int
    stdout: str
    stderr: str
    peak_bytes: int | None
    oom_killed: bool
    major_faults: int = 0
    limit_hits: int = 0


@dataclass(frozen=True)
class SlowDisk:
    """Says what the kernel lets through to the disk under a file, reads and writes each.

    What version 1 writes out of the page cache by itself is not held back.

    Attributes:
        path: The file, or a folder.
        bytes_per_second, requests_per_second: None: as many as there are.
    """

    path: Path
    bytes_per_second: int | None = None
    requests_per_second: int | None = None

    @property
    def device(self) -> str:
        """Returns the numbers of the disk, of which the file system may lie on a part: ``254:0``."""
        device = self.path.stat().st_dev
        entry = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
        if not entry.exists():
            raise LimitUnavailable(f"{self.path} lies on no block device, which could be slowed down")
        disk = entry.resolve().parent if (entry / "partition").exists() else entry
        return (disk / "dev").read_text().strip()

    def as_variables(self) -> dict[str, str]:
        """Returns the variables of the environment by which Outcrop itself keeps to these rates."""
        rates = {"OUTCROP_IO_RATE": self.bytes_per_second, "OUTCROP_IO_REQUESTS": self.requests_per_second}
        return {name: str(rate) for name, rate in rates.items() if rate is not None}

    def limits(self, version: int) -> dict[str, str]:
        """Returns what has to be written to which file of a group."""
        device, rates = self.device, {"bps": self.bytes_per_second, "iops": self.requests_per_second}
        if version == 2:
            given = [f"{way}{key}={rate}" for way in "rw" for key, rate in rates.items() if rate is not None]
            return {"io.max": " ".join([device, *given])}
        return {
            f"blkio.throttle.{way}_{key}_device": f"{device} {rate}"
            for way in ("read", "write")
            for key, rate in rates.items()
            if rate is not None
        }


@dataclass(frozen=True)
class _Controller:
    """Names the files of one version of the memory controller, and the folder in which groups may be made."""

    parent: Path
    limit: str
    swap: str  # v1: memory and swap together; v2: swap alone
    peak: str
    events: str
    version: int

    def oom_kills(self, group: Path) -> int:
        return _counter(group / self.events, "oom_kill")

    def limit_hits(self, group: Path) -> int:
        if self.version == 2:
            return _counter(group / self.events, "max")
        return int((group / "memory.failcnt").read_text())


def _counter(file: Path, wanted: str) -> int:
    """Returns the value of the line ``wanted VALUE``; 0 where there is none."""
    for line in file.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == wanted:
            return int(value)
    return 0


def memory_limited(
    command: Sequence[str | Path],
    limit_bytes: int,
    *,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float | None = 100,
    capture: bool = True,
    disk: SlowDisk | None = None,
) -> LimitedRun:
    """Runs ``command`` with at most ``limit_bytes`` of memory, its page cache included.

    Args:
        disk: A disk that is to be slower.
        capture: Collect standard output and error; otherwise what it prints is lost, and its errors and progress go to
            this process's standard error.

    Raises:
        subprocess.TimeoutExpired: the command and its children were killed.
        LimitUnavailable: the limit cannot be set here.
    """
    controller = _find_controller()
    with _memory_group(controller, limit_bytes) as group, _slowed(disk, controller, group) as slowed:
        # The shell enters the groups and becomes the command: no moment of it runs outside the limits.
        enter = 'echo $$ > "$0" && echo $$ > "$1" && shift && exec "$@"'
        groups = [str(one / "cgroup.procs") for one in (group, slowed)]
        process = subprocess.Popen(
            ["sh", "-c", enter, *groups, *map(str, command)],
            stdout=subprocess.PIPE if capture else subprocess.DEVNULL,
            stderr=subprocess.PIPE if capture else None,
            text=True,
            env=env,
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout_seconds)
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()
        peak = group / controller.peak
        return LimitedRun(
            process.returncode,
            stdout or "",
            stderr or "",
            int(peak.read_text()) if peak.exists() else None,
            controller.oom_kills(group) > 0,
            _counter(group / "memory.stat", "pgmajfault"),
            controller.limit_hits(group),
        )


def _find_controller() -> _Controller:
    if os.geteuid() != 0:
        raise LimitUnavailable("a memory limit through control groups needs root")
    for parent in _own_groups("memory", Path("/sys/fs/cgroup/memory")):
        if (parent / "memory.limit_in_bytes").exists() and os.access(parent, os.W_OK):
            return _Controller(
                parent,
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                "memory.max_usage_in_bytes",
                "memory.oom_control",
                1,
            )
    root = Path("/sys/fs/cgroup")
    control = root / "cgroup.subtree_control"
    if control.exists() and "memory" in control.read_text().split() and os.access(root, os.W_OK):
        return _Controller(root, "memory.max", "memory.swap.max", "memory.peak", "memory.events", 2)
    raise LimitUnavailable("no memory controller of control groups is available here")


def _own_groups(controller: str, mount: Path) -> Iterator[Path]:
    """Tells where this process is in a version 1 hierarchy; inside a container that path may be the mount itself."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            yield mount / path.lstrip("/")
    yield mount


@contextmanager
def _memory_group(controller: _Controller, limit_bytes: int) -> Iterator[Path]:
    with _group(controller.parent) as group:
        (group / controller.limit).write_text(str(limit_bytes))
        swap = group / controller.swap
        if swap.exists():  # absent where the kernel does not count swap
            swap.write_text(str(limit_bytes + _SWAP_MARGIN_BYTES) if controller.version == 1 else "0")
        yield group


@contextmanager
def _slowed(disk: SlowDisk | None, memory: _Controller, group: Path) -> Iterator[Path]:
    """Yields the group in which ``disk`` is slower: that of memory in version 2, where version 1 has both in one
    hierarchy, and where there is no such disk.
    """
    if disk is None:
        yield group
        return
    limits = disk.limits(memory.version)
    if memory.version == 2 or all((group / name).exists() for name in limits):
        _write_limits(group, limits)
        yield group
        return
    wanted = next(iter(limits), "blkio.throttle.read_bps_device")
    parents = _own_groups("blkio", Path("/sys/fs/cgroup/blkio"))
    parent = next((one for one in parents if (one / wanted).exists() and os.access(one, os.W_OK)), None)
    if parent is None:
        raise LimitUnavailable("no controller of disks among control groups is available here")
    with _group(parent) as own:
        _write_limits(own, limits)
        yield own


def kernel_slows(disk: SlowDisk) -> bool:
    """Tells whether the kernel can make ``disk`` slower for a command of this user."""
    with suppress(LimitUnavailable):
        controller = _find_controller()
        with _group(controller.parent) as group, _slowed(disk, controller, group):
            return True
    return False


def _write_limits(group: Path, limits: Mapping[str, str]) -> None:
    try:
        for name, text in limits.items():
            (group / name).write_text(text)
    except OSError as error:
        raise LimitUnavailable(f"the disk cannot be slowed down here: {error}") from None


@contextmanager
def _group(parent: Path) -> Iterator[Path]:
    group = parent / f"outcrop-{os.getpid()}-{next(_numbers)}"
    try:
        group.mkdir()
    except OSError as error:
        raise LimitUnavailable(f"control groups cannot be made here: {error}") from None
    try:
        yield group
    finally:
        _kill_all(group)
        _remove(group)


def _kill_all(group: Path, patience_seconds: float = 5) -> None:
    deadline = time.monotonic() + patience_seconds
    while pids := (group / "cgroup.procs").read_text().split():
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)


def _remove(group: Path, patience_seconds: float = 5) -> None:
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            group.rmdir()
            return
        except OSError:  # the kernel is still taking the last process apart
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def drop_page_cache() -> None:
    """Writes out what is to be written, and empties the system's page cache, where this user may: what one command has
    read costs the next one as much.
    """
    os.sync()
    with suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3")
