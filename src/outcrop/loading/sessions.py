"""Sessions of loading that the loaders of a run share: opening one reads caches, so it is kept from pass to pass.

A session makes one pass at a time. Passes one after another use the same one, so that they keep within one memory
budget; a pass that begins while another is under way gets a session of its own, with a budget of its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from outcrop.loading.session import LoadSession
from outcrop.runtime.runtime import Runtime

Open = Callable[[], tuple[Runtime, LoadSession]]


@dataclass
class OpenSession:
    """Holds a session with the runtime that it has its memory from; ``key`` says of what kind it is."""

    key: Hashable
    runtime: Runtime
    session: LoadSession

    def close(self) -> None:
        self.session.close()
        self.runtime.close()


class Sessions:
    """Keeps the session of the last pass for the next one. Closes it when nobody refers to this object any more."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._idle: list[OpenSession] = []
        # Finalizers give sessions back, wherever the garbage collector runs: hence re-entrant.
        self._lock = threading.RLock()
        self._process = os.getpid()
        weakref.finalize(self, _close, self._idle, self._process)

    def take(self, key: Hashable, open_session: Open) -> OpenSession:
        """Returns the session that was kept, if it is of this kind; else a new one, and the kept one is closed
        before.
        """
        if (
            self._process != os.getpid()
        ):  # its threads and its I/O engine stayed in the process that opened it
            self._begin()
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        if kept is not None:
            if kept.key == key:
                return kept
            kept.close()
        return OpenSession(key, *open_session())

    def give_back(self, used: OpenSession) -> None:
        """Takes a session back after its pass. One is kept, the last."""
        if self._process != os.getpid():
            return
        with self._lock:
            before, self._idle[:] = list(self._idle), [used]
        for session in before:
            session.close()

    def close(self) -> None:
        """Closes what no pass is using."""
        with self._lock:
            before, self._idle[:] = list(self._idle), []
        if self._process == os.getpid():
            for session in before:
                session.close()


def _close(idle: list[OpenSession], process: int) -> None:
    if process == os.getpid():
        while idle:
            idle.pop().close()
