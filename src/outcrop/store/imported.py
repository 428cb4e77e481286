"""``imported.json`` of a graph: which files it was imported from, so that the same import finds it done.

The file lies beside the manifest and is no part of it: it holds paths and times, which say nothing about the content,
so the same data give the same digest wherever they came from. Without the file (objects in memory have none, and graphs
of earlier releases) nothing is known, and importing again has to be asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outcrop.runtime.parsing import parse_json
from outcrop.store import manifest as manifests

FILE = "imported.json"


def record(kind: str, where: Path, files: Sequence[Path], options: dict[str, Any]) -> dict[str, Any]:
    """Describes an import before anything is read.

    Args:
        kind: Kind of the source, such as ``arrays``.
        where: Its file or folder.
        files: All files that are read, in any order.
        options: What else decides what becomes of them.

    Returns:
        ``source``, ``options``, and ``files``: name, as seen from the folder that is the source -> size in bytes, time
        of the last change of the content and of the file's entry, both in nanoseconds.
    """
    found = {_name(path, where): path.stat() for path in sorted(files)}
    return {
        "source": f"{kind}:{where.absolute()}",
        "options": manifests.plain(options),
        "files": {name: [s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in found.items()},
    }


def _name(path: Path, where: Path) -> str:
    return path.relative_to(where).as_posix() if where in path.parents else path.name


def write(folder: Path, made_from: dict[str, Any]) -> None:
    """Keeps ``made_from``, a :func:`record`, in the artifact ``folder``."""
    manifests.write_atomic(folder / FILE, json.dumps(made_from, indent=1).encode() + b"\n")


def read(folder: Path) -> dict[str, Any] | None:
    """Returns the record in ``folder``; None where there is none that can be read."""
    try:
        found = parse_json((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    known = isinstance(found, dict) and all(
        isinstance(found.get(part), dict) for part in ("options", "files")
    )
    return found if known else None


def differences(there: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names what differs between two records: the source, else options and files; empty where nothing does."""
    if there.get("source") != now["source"]:
        return [f"the source (there {there.get('source')}, now {now['source']})"]
    found = []
    for name in sorted(there["options"].keys() | now["options"].keys()):
        was, is_now = there["options"].get(name), now["options"].get(name)
        if was != is_now:
            found.append(f"{name} (there {was}, now {is_now})")
    for name in sorted(there["files"].keys() | now["files"].keys()):
        if name not in now["files"]:
            found.append(f"{name} (which is gone)")
        elif there["files"].get(name) != now["files"][name]:
            found.append(f"{name} (which {'changed' if name in there['files'] else 'is new'})")
    return found
