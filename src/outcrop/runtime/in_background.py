"""Runs one function at a time in a thread of its own, while whoever asked for it goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from outcrop.errors import IoError
from outcrop.runtime import threads


class InBackground:
    """Runs functions one after the other in the background; use it as a context, which waits for the last.

    Args:
        name: Of the threads.
    """

    def __init__(self, name: str):
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()

    def begin(self, work: Callable[[], None]) -> None:
        """Begins ``work``; waits for the function before it.

        Where the system refuses another thread, it is done when this returns.

        Raises:
            BaseException: What the function before it raised.
        """
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,), name=self._name)
        try:
            threads.start([self._thread])
        except IoError:
            self._thread = None
            try:
                work()
            except Exception as error:
                self._error = error  # as if it came from a thread; an interrupt ends this one

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error  # for the thread that waits

    def wait(self) -> None:
        """Waits for the function that runs.

        Raises:
            BaseException: What it raised.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
