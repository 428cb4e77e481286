"""Starts threads, with an error that says what limits their number where the system refuses one."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from outcrop.errors import IoError


def start(threads: Iterable[threading.Thread]) -> None:
    """Starts threads, one after the other.

    Raises:
        IoError: The system refused one; those before it run.
    """
    try:
        for thread in threads:
            thread.start()
    except RuntimeError as refused:
        raise IoError(
            "another thread cannot be started; what limits them is ulimit -u, or pids.max of the container: "
            f"{refused}"
        ) from None


def require_one() -> None:
    """Raises IoError where the system refuses another thread: for libraries that would wait for theirs for ever."""
    thread = threading.Thread(target=int)
    start([thread])
    thread.join()
