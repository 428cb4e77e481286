"""Locks on folders: two processes that write to one would undo each other's work.

A lock is ``flock`` on the folder itself: nothing is left behind, and the kernel gives it back however its owner ends.
Some network file systems have no such locks; there nothing is refused, and nothing is protected.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from outcrop.errors import IoError, naming_files

PATIENCE_S = (
    5.0  # long enough for a process that is just ending, as one does that a killed training has started
)
_STEP_S = 0.05
_TRIES = 20


@contextmanager
def only_process_in(folder: Path) -> Iterator[None]:
    """Makes ``folder`` where it is missing, and locks it for the block; without effect where ``folder`` is a file.

    Whoever had it before may have removed it: then it is made and locked anew. Where the block ends by an error, the
    folders that were made for it are removed again, those above ``folder`` too, as far as they are empty: a command
    that is refused leaves nothing behind.

    Raises:
        IoError: Another process has it locked, and still had after a few seconds; names the folder.
    """
    if _is_no_folder(folder):  # whoever wants to write there says so
        yield
        return
    until = time.monotonic() + PATIENCE_S
    made: list[Path] = []
    while True:
        with ExitStack() as closing:
            with naming_files(folder):
                handle = _make_and_open(folder, made)
            closing.callback(os.close, handle)
            locked = _lock(handle, folder, until)
            if not is_of(handle, folder):
                continue
            try:
                yield
            except BaseException:
                if locked:
                    _remove_empty(
                        made if is_of(handle, folder) else [p for p in made if not _is_at(p, folder)]
                    )
                raise
            return


def _is_no_folder(path: Path) -> bool:
    """Tells whether something else is there; asked once, because a folder may go between two questions."""
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _make_and_open(folder: Path, made: list[Path]) -> int:
    """Returns a descriptor of ``folder``, made as :func:`make_folders` does."""
    for left in reversed(range(_TRIES)):
        try:
            make_folders(folder, made)
            return os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # a process that had made one of them was refused, and has removed it
            if not left:
                raise
    raise AssertionError


def make_folders(folder: Path, made: list[Path] | None = None) -> None:
    """Makes ``folder`` and those above it, where links lead; adds what was not there to ``made``, inner folders first.

    Each is there once, however often it was removed and made again: who removes it twice may remove another's.
    """
    for path in (*reversed(folder.parents), folder):
        if (new := _make(path)) is not None and made is not None and new not in made:
            made.append(new)
            made.sort(key=lambda made_path: -len(made_path.parts))


def _make(folder: Path) -> Path | None:
    """Makes one folder, of a link to nothing the one that it leads to, and returns it.

    Returns None where it is there, also where another process was faster.
    """
    if folder.is_dir():
        return None
    place = Path(os.path.realpath(folder)) if folder.is_symlink() else folder
    try:
        place.mkdir()
    except FileExistsError:
        if place.is_symlink() or place.is_file():
            raise
        return None  # or it was, and is gone again
    return place


def _remove_empty(made: list[Path]) -> None:
    """Removes folders, the inner ones first, until one holds something."""
    for path in made:
        try:
            path.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return


def _lock(handle: int, folder: Path, until: float) -> bool:
    """Locks ``folder``; False where it cannot be locked at all."""
    while (locked := try_lock(handle, wait=False)) is False:
        if time.monotonic() > until:
            raise IoError(
                errno.EWOULDBLOCK,
                f"{folder} is in use: another process writes there; wait until it has ended, or choose another place",
            )
        time.sleep(_STEP_S)
    return bool(locked)


def is_of(handle: int, folder: Path) -> bool:
    """Tells whether ``handle`` is of what is at ``folder`` now."""
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False


def _is_at(made: Path, folder: Path) -> bool:
    """Tells whether ``folder`` is, or leads to, the path that was made."""
    return os.path.realpath(made) == os.path.realpath(folder)


def in_use(folder: Path) -> bool:
    """Tells whether another process, or another part of this one, has ``folder`` locked."""
    with opened(folder) as handle:
        return try_lock(handle, wait=False) is False


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """Opens a descriptor of ``folder``, to lock it by; closing it gives the lock back."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def try_lock(handle: int, *, wait: bool = True) -> bool | None:
    """Locks what ``handle`` is of: True; False: somebody else has it locked; None: it cannot be locked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
