"""The history of a run: ``<run>/history/prepare.json`` and ``train-<n>.json``, what happened, for people and reports.

It is no artifact: nothing is computed from it, no manifest knows of it, it holds times and commands, it does not count
towards the run's disk space, and it may be deleted at any time. Bounded: one record of preparing, the last
:data:`KEEP` trainings, each at most some hundred kilobytes. Every file is replaced as a whole.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from outcrop.errors import FormatError
from outcrop.parsing import parse_json
from outcrop.store import manifest as manifests

FOLDER = "history"
FORMAT, VERSION = "outcrop.history", 1
KEEP = 8
_TRAINING = re.compile(r"train-(\d+)\.json")


def write_preparing(run: Path, content: dict[str, Any]) -> Path:
    return _write(run / FOLDER / "prepare.json", {"kind": "prepare", **content})


def write_training(run: Path, content: dict[str, Any]) -> Path:
    """Adds a training and removes those before the last :data:`KEEP`."""
    before = trainings(run)
    number = 1 + max((_number(path) for path in before), default=0)
    path = _write(run / FOLDER / f"train-{number}.json", {"kind": "train", "number": number, **content})
    for old in before[: max(len(before) + 1 - KEEP, 0)]:
        old.unlink(missing_ok=True)
    return path


def trainings(run: Path) -> list[Path]:
    """The recorded trainings, the oldest first."""
    folder = run / FOLDER
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _TRAINING.fullmatch(p.name)), key=_number)


def read_preparing(run: Path) -> dict[str, Any] | None:
    path = run / FOLDER / "prepare.json"
    return read(path) if path.is_file() else None


def read(path: Path) -> dict[str, Any]:
    """A record as it was written.

    Raises:
        FormatError: No record, torn, or of another version.
    """
    try:
        raw = parse_json(path.read_bytes())
    except (ValueError, OSError) as error:
        raise FormatError(f"{path} cannot be read as a record of history ({error}): delete it") from None
    found = (raw.get("format"), raw.get("version")) if isinstance(raw, dict) else (None, None)
    if found != (FORMAT, VERSION):
        raise FormatError(
            f"{path} is {found[0]!r} version {found[1]!r}, not {FORMAT} {VERSION}: delete it, nothing depends on it"
        )
    return raw


def disk_bytes(run: Path) -> int:
    """Bytes of all files of the run; its history is not counted."""
    history = run / FOLDER
    return sum(f.stat().st_size for f in run.rglob("*") if f.is_file() and history not in f.parents)


def _number(path: Path) -> int:
    match = _TRAINING.fullmatch(path.name)
    return int(match[1]) if match else 0


def _write(path: Path, content: dict[str, Any]) -> Path:
    with manifests.naming_files(path):
        path.parent.mkdir(exist_ok=True)
    text = json.dumps({"format": FORMAT, "version": VERSION, **content}, separators=(",", ":"))
    manifests.write_atomic(path, text.encode() + b"\n")
    return path
