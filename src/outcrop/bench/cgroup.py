"""Runs a command under a real memory limit: a control group that counts page cache too, version 1 or 2.

The limit is the kernel's, so it also covers what no budget of ours counts. Needs root and a writable memory
controller; LimitUnavailable says why it cannot be set. Swap is switched off inside the group,
but for 4 MiB in version 1.
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
    cwd: Path | None = None,
    timeout_seconds: float | None = 100,
    capture: bool = True,
) -> LimitedRun:
    """Runs ``command`` with at most ``limit_bytes`` of memory, its page cache included.

    Args:
        capture: Collect standard output and error; otherwise what it prints is lost, and its errors and progress go to
            this process's standard error.

    Raises:
        subprocess.TimeoutExpired: the command and its children were killed.
        LimitUnavailable: the limit cannot be set here.
    """
    controller = _find_controller()
    with _group(controller, limit_bytes) as group:
        # The shell enters the group and becomes the command: no moment of it runs outside the limit.
        enter = 'echo $$ > "$0" && exec "$@"'
        process = subprocess.Popen(
            ["sh", "-c", enter, str(group / "cgroup.procs"), *map(str, command)],
            stdout=subprocess.PIPE if capture else subprocess.DEVNULL,
            stderr=subprocess.PIPE if capture else None,
            text=True,
            env=env,
            cwd=cwd,
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
def _group(controller: _Controller, limit_bytes: int) -> Iterator[Path]:
    group = controller.parent / f"outcrop-{os.getpid()}-{next(_numbers)}"
    try:
        group.mkdir()
    except OSError as error:
        raise LimitUnavailable(f"control groups cannot be made here: {error}") from None
    try:
        (group / controller.limit).write_text(str(limit_bytes))
        swap = group / controller.swap
        if swap.exists():  # absent where the kernel does not count swap
            swap.write_text(str(limit_bytes + _SWAP_MARGIN_BYTES) if controller.version == 1 else "0")
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
