"""Adds up searches that take longer than anyone waits for at once: each run is added to those that a file lists."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Run = dict[str, Any]


class RunList:
    """Holds runs of a search in a JSON file, which several processes may add to; nothing of it is lost by a kill.

    Args:
        path: The file, made where it is not there; None: nothing is kept.
        experiment: What is measured; the revision and the machine are noted as they are now.
        rows_of: Gives ``columns`` and ``rows`` of all runs together, and whatever else the file is to hold.
    """

    def __init__(self, path: Path | None, experiment: str, rows_of: Callable[[Sequence[Run]], Run]):
        from outcrop.bench.origin import origin

        self._path, self._rows_of = path, rows_of
        self._here = origin(experiment) if path is not None else {}
        self._id = ""

    def add(self, run: Run, *, again: bool = False) -> None:
        """Adds ``run``; with ``again`` in the place of the one that was added last, which has done more since."""
        if self._path is None:
            return
        from outcrop.store.manifest import write_atomic

        self._id = self._id if again else uuid.uuid4().hex
        done = {
            "run": self._id,
            "revision": self._here["revision"],
            "cpu": self._here["machine"]["cpu"],
            **run,
        }
        folder = os.open(self._path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            runs = json.loads(self._path.read_text())["runs"] if self._path.exists() else []
            runs = [*(one for one in runs if one["run"] != self._id), done]
            told = {**self._here, "runs": runs, **self._rows_of(runs)}
            write_atomic(self._path, json.dumps(told, indent=1).encode())
        finally:
            os.close(folder)
