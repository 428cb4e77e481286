"""What a process does first that works in the background of another: it yields to it, and dies with it."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys

_PR_SET_PDEATHSIG = 1
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_LOWEST_BEST_EFFORT = 2 << 13 | 7


def serve(parent: int) -> None:
    """Takes the lowest CPU priority and the lowest I/O priority of its class, and SIGKILL when the parent's thread
    ends.

    Call it before threads are started: they inherit the priorities.

    Args:
        parent: Process id of the process to die with; where it is gone already, this process ends at once.
    """
    end_with_parent(parent)
    os.nice(19)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:  # without it the disk is shared evenly, which is a matter of speed alone
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _LOWEST_BEST_EFFORT)


def end_with_launcher() -> None:
    """Has this process end with the ``torchrun`` that started it, if one did: that does not end its processes where it
    is itself killed.

    Called as early as can be: a process whose parent is gone has another, and cannot tell which it had. One that is no
    Python, or another user's, was not it.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    parent = os.getppid()
    try:
        program = os.path.basename(os.readlink(f"/proc/{parent}/exe"))
    except OSError:
        program = ""
    if not program.startswith("python"):
        sys.exit("error: the torchrun that started this process is gone")
    end_with_parent(parent)


def end_with_parent(parent: int) -> None:
    """Has SIGKILL end this process when the thread ends that started it.

    Args:
        parent: Process id of the parent; where it is gone already, this process ends at once.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the process cannot be tied to its parent (prctl)")
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)
