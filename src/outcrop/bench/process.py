"""Runs ``outcrop`` commands as processes of their own, under a memory limit where the system allows it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from outcrop.bench.cgroup import LimitUnavailable, SlowDisk, kernel_slows, memory_limited
from outcrop.errors import OutcropError
from outcrop.runtime.system import outcrop_command


@dataclass(frozen=True)
class CommandResult:
    """Says how a command ended.

    ``result``: what ``--json`` wrote. ``limit_bytes``: of the whole process with its page cache; None = no limit.
    """

    result: dict[str, Any]
    limit_bytes: int | None
    peak_group_bytes: int | None


def outcrop(
    arguments: Sequence[str | Path],
    *,
    limit_bytes: int | None = None,
    quiet: bool = True,
    disk: SlowDisk | None = None,
    timeout_seconds: float | None = None,
) -> CommandResult:
    """Runs ``outcrop ARGUMENTS --json ...`` and returns its result.

    Args:
        limit_bytes: Limit by control group; without root the command runs unlimited, and the result says so.
        quiet: Without progress bars.
        disk: A disk that is to be slower; where the kernel cannot do it, the engine waits by itself.
        timeout_seconds: What it may take; None: as long as it does.

    Raises:
        subprocess.TimeoutExpired: It took longer, and was killed.
        OutcropError: The command failed; its error is in the message.
    """
    with TemporaryDirectory(prefix="outcrop-") as folder:
        out = Path(folder) / "result.json"
        command = outcrop_command(*map(str, arguments), "--json", str(out))
        command += ["--quiet"] if quiet else []
        limit, peak = limit_bytes, None
        variables = dict(os.environ)
        if disk is not None and not kernel_slows(disk):
            variables, disk = variables | disk.as_variables(), None
        try:
            if limit_bytes is None:
                raise LimitUnavailable("none asked for")
            run = memory_limited(
                command, limit_bytes, env=variables, timeout_seconds=timeout_seconds, capture=quiet, disk=disk
            )
            code, error, peak = run.returncode, run.stderr, run.peak_bytes
            if run.oom_killed:
                raise OutcropError(
                    f"outcrop {arguments[0]} was killed: it needed more than {limit_bytes} bytes"
                )
        except LimitUnavailable:
            limit = None
            pipe = subprocess.PIPE if quiet else None
            plain = subprocess.run(
                command,
                stdout=subprocess.DEVNULL,
                stderr=pipe,
                text=True,
                check=False,
                env=variables,
                timeout=timeout_seconds,
            )
            code, error = plain.returncode, plain.stderr or ""
        if code != 0:
            raise OutcropError(f"outcrop {' '.join(map(str, arguments))} failed: {error.strip()}")
        return CommandResult(json.loads(out.read_text()), limit, peak)
