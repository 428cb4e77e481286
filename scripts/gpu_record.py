"""Records of gpu-check.sh: one JSON file for each part of a phase, with the machine it ran on.

Standard library only: it runs before anything is installed, on Python 3.10 and newer.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from sum_results import count, outcome

SCHEMA = 1
# "running" is what a call leaves behind that was killed itself.
OUTCOMES = ("passed", "failed", "timed out", "interrupted", "unavailable", "running")
ENDED = ("passed", "failed", "timed out")
_SOURCES = ("src", "tests", "scripts", "examples", "docs", "CMakeLists.txt", "pyproject.toml")
_SUFFIXES = (".py", ".cu", ".h", ".cpp", ".sh", ".txt", ".toml", ".md")
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "schema": int,
    "phase": str,
    "name": str,
    "outcome": str,
    "reason": str,  # why it is not "passed"; empty: see the output
    "status": (int, type(None)),  # of the process
    "seconds": (int, float),
    "limit_seconds": (int, float),
    "begun": str,  # ISO 8601
    "command": list,
    "device": str,  # cuda or fake
    "sources": str,  # digest()
    "machine": dict,
    "counts": (dict, type(None)),  # of tests: passed, failed, skipped
    "tests": list,  # name, outcome, seconds
    "output": str,  # its end
}
_MACHINE = (
    "python",
    "kernel",
    "torch",
    "cuda",
    "triton",
    "cuda_core",
    "driver",
    "revision",
    "dirty",
    "devices",
)


def validate(record: dict[str, Any]) -> None:
    """Raises ValueError, naming the field, where ``record`` is none of this schema."""
    if set(record) != set(_FIELDS):
        raise ValueError(f"fields {sorted(set(record) ^ set(_FIELDS))} are missing, or too many")
    for field, kind in _FIELDS.items():
        if not isinstance(record[field], kind) or isinstance(record[field], bool):
            raise ValueError(f"{field} is {record[field]!r}")
    if record["schema"] != SCHEMA or record["outcome"] not in OUTCOMES:
        raise ValueError(f"schema {record['schema']}, outcome {record['outcome']!r}")
    absent = [field for field in _MACHINE if field not in record["machine"]]
    if absent:
        raise ValueError(f"machine lacks {absent}")
    if record["counts"] is not None and set(record["counts"]) != {"passed", "failed", "skipped"}:
        raise ValueError(f"counts are {record['counts']}")
    if any(set(test) != {"name", "outcome", "seconds"} for test in record["tests"]):
        raise ValueError("a test is not name, outcome, seconds")


def write(record: dict[str, Any], folders: list[Path]) -> None:
    """Replaces ``PHASE-NAME.json`` in each folder."""
    validate(record)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{record['phase']}-{record['name']}.json"
        made = path.with_suffix(f".{os.getpid()}")
        made.write_text(json.dumps(record, indent=2) + "\n")
        made.replace(path)


def read(phase: str, name: str, folders: list[Path]) -> dict[str, Any] | None:
    """The latest record of this part in any of ``folders``; what is none is left alone."""
    found = []
    for folder in folders:
        try:
            record = json.loads((folder / f"{phase}-{name}.json").read_text())
            validate(record)
            found.append(record)
        except (OSError, ValueError):
            continue
    return max(found, key=lambda record: record["begun"], default=None)


def digest(root: Path) -> str:
    """Of everything that decides how a part ends, by what files say: a checkout may come without its history."""
    made = hashlib.sha256()
    files = [root / name for name in _SOURCES if (root / name).is_file()]
    for folder in (root / name for name in _SOURCES):
        files += [p for p in folder.rglob("*") if p.suffix in _SUFFIXES and p.is_file()]
    for path in sorted(files):
        made.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return made.hexdigest()[:16]


def tests_of(report: Path, output: str) -> tuple[dict[str, int] | None, list[dict[str, Any]]]:
    """Counts, and how each test ended: by the report, or, where pytest died before it, by what ``pytest -v`` said."""
    try:
        counts = count(report)
        cases = [
            {
                "name": f"{case.get('classname')}::{case.get('name')}",
                "outcome": outcome(case),
                "seconds": float(case.get("time", 0)),
            }
            for case in ET.parse(report).getroot().iter("testcase")
        ]
        return {"passed": counts.passed, "failed": counts.failed, "skipped": counts.skipped}, cases
    except (OSError, ET.ParseError):
        return _said(output)


def _said(output: str) -> tuple[dict[str, int] | None, list[dict[str, Any]]]:
    """A test without an outcome hangs, or took the process with it: it failed."""
    kinds = {"PASSED": "passed", "SKIPPED": "skipped", "XFAIL": "skipped"}
    line = re.compile(r"(tests/\S+?::\w+(?:\[.*?\])?)(?: (PASSED|FAILED|ERROR|SKIPPED|XFAIL))?(?: |$)")
    found = [match for match in map(line.match, output.splitlines()) if match]
    cases = [{"name": f[1], "outcome": kinds.get(f[2] or "", "failed"), "seconds": 0.0} for f in found]
    if not cases:
        return None, []
    ends = [case["outcome"] for case in cases]
    return {end: ends.count(end) for end in ("passed", "failed", "skipped")}, cases


def revision() -> dict[str, Any]:
    """Revision of the checkout, and whether it was changed; None where there is no history."""
    head = output_of("git", "rev-parse", "HEAD")
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no")
    return {"revision": head or None, "dirty": bool(changed) if head else None}


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
