"""Large packages, imported in a thread beside what can be done without them.

Loading a library and starting its modules takes a second or more, of which little needs the interpreter: work in C++,
and reading and writing, go on meanwhile.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module

from outcrop.runtime import threads


class ImportAhead:
    """Imports modules in a thread from now on, until :meth:`join` waits for them.

    The thread is not waited for where the caller ends by an error, such as an interruption; the process does not end
    before it, because a library that is half loaded cannot be ended in good order.

    Args:
        modules: Their names; they are imported in this order.

    Raises:
        IoError: The system refused the thread.
    """

    def __init__(self, *modules: str):
        self._modules = modules
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if any(name not in sys.modules for name in modules):
            self._thread = threading.Thread(target=self._import, name="outcrop-import-ahead", daemon=False)
            threads.start([self._thread])

    def _import(self) -> None:
        try:
            for name in self._modules:
                import_module(name)
        except BaseException as error:  # whatever it is, it is raised where the modules are needed
            self._error = error

    @property
    def running(self) -> bool:
        """Tells whether modules are still being imported."""
        return self._thread is not None and self._thread.is_alive()

    def join(self) -> None:
        """Waits until all are imported.

        Raises:
            Exception: What importing one of them has raised.
        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
