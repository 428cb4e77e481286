"""Keeps what a long benchmark has measured so far, so that the same command goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outcrop.store.manifest import write_atomic


class Kept:
    """Holds measurements by name, in a JSON file that is replaced after each.

    Args:
        path: The file; what it has of another ``setting`` is not used, and goes when the first measurement is there.
        setting: What the measurements are of.
    """

    def __init__(self, path: Path, setting: dict[str, Any]):
        self._path = path
        known: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        setting = json.loads(json.dumps(setting))  # as it is read again
        self._content = known if known.get("setting") == setting else {"setting": setting, "measured": {}}

    def measured(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns what ``measure`` has given under ``name``, before or now."""
        found: dict[str, dict[str, Any]] = self._content["measured"]
        if name not in found:
            found[name] = measure()
            write_atomic(self._path, json.dumps(self._content, indent=1).encode())
        return found[name]
