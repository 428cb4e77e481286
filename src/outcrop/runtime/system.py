"""What the operating system says: memory there is, where files of this machine are kept, what starts Outcrop."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def cache_folder() -> Path:
    """Names the folder for what was worked out on this machine: ``$OUTCROP_CACHE``, or ``outcrop`` in the user's cache
    folder.
    """
    named = os.environ.get("OUTCROP_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outcrop"


def outcrop_command(*arguments: str) -> list[str]:
    """Returns the command ``outcrop ARGUMENTS``, run by this Python: nothing is imported from the working folder
    (``-P``).
    """
    return [sys.executable, "-P", "-m", "outcrop", *arguments]


def bytes_of_files(folder: Path, but: Path | None = None) -> int:
    """Counts the bytes of all files within ``folder`` while others may write there: a file that is gone before it is
    looked at counts nothing.

    Args:
        folder: Links to folders are not followed; a folder that is not there holds nothing.
        but: A folder within it that is left out.
    """
    total = 0
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(place, name) != but]
        for name in files:
            with suppress(FileNotFoundError):
                total += Path(place, name).stat().st_size
    return total


def available_memory() -> int:
    """Counts the bytes that this process could still use, cached files that would be dropped for it included.

    The least of what the machine has available and of what the control groups of the process (v1 or v2) leave.
    """
    rooms = [_machine_available()]
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            rooms += _room(_CGROUPS, path, "memory.max", "memory.current", "file ")
        elif "memory" in controllers.split(","):
            root = _CGROUPS / "memory"
            rooms += _room(root, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache ")
    return max(min(rooms), 0)


def return_freed_memory() -> None:
    """Gives what was freed in this process back to the system; does nothing where the C library cannot.

    glibc keeps up to 64 MiB on top of each of its heaps, and what is free between blocks in use. What was kept for
    the large arrays of one stage would stay on top of the budget of the next, for as long as the process lives.
    """
    with suppress(OSError, AttributeError):  # musl, macOS
        ctypes.CDLL(None).malloc_trim(0)


def _machine_available() -> int:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _room(root: Path, path: str, limit: str, usage: str, cached: str) -> list[int]:
    """Returns what each group from ``path`` up to ``root`` leaves; nothing for groups without a limit."""
    rooms, folder = [], root / path.lstrip("/")
    while folder == root or root in folder.parents:
        most, used = _read(folder / limit).strip(), _read(folder / usage).strip()
        if most.isdecimal() and used.isdecimal():
            stat = _read(folder / "memory.stat").splitlines()
            droppable = sum(int(line.split()[1]) for line in stat if line.startswith(cached))
            rooms.append(int(most) - int(used) + droppable)
        folder = folder.parent
    return rooms


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
