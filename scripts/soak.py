#!/usr/bin/env python3
"""Runs the tests of tests/device under many seeded schedules of the fake GPU: ``make soak``.

Goes on where it was stopped: what has passed is kept in build/soak.json, for the revision that it passed at. A seed
that fails is printed with the command that replays it, and the search goes on.

    scripts/soak.py [SEEDS [MODULE ...]]       1000 seeds, all modules
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
FOLDER = REPOSITORY / "tests" / "device"
KEPT = REPOSITORY / "build" / "soak.json"
AT_ONCE = 25  # seeds that share a process


def revision() -> str:
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.strip()


def passed_before(at: str) -> set[str]:
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return set(kept.get("passed", [])) if kept.get("revision") == at else set()


def keep(at: str, passed: set[str]) -> None:
    KEPT.parent.mkdir(exist_ok=True)
    made = KEPT.with_suffix(".new")
    made.write_text(json.dumps({"revision": at, "passed": sorted(passed)}))
    made.replace(KEPT)


def run(module: Path, seeds: str) -> str:
    """What pytest says; empty: all passed."""
    env = os.environ | {
        "OUTCROP_GPU_TESTS": "fake",
        "OUTCROP_GPU_SCHEDULE": f"seed:{seeds}",
        "PYTHONPATH": f"{FOLDER}{os.pathsep}{REPOSITORY / 'tests'}",
    }
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "timeout=600"]
    command = [sys.executable, "-m", "pytest", *options, str(module)]
    ended = subprocess.run(command, env=env, cwd=REPOSITORY, capture_output=True, text=True)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def replay(module: Path, said: str, seeds: str) -> str:
    """The commands that fail again, one for each test and seed."""
    found = sorted(set(re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)\S*\bseed:(\d+)", said, re.MULTILINE)))
    start = "OUTCROP_GPU_TESTS=fake PYTHONPATH=tests/device:tests"
    path = module.relative_to(REPOSITORY)
    return "\n".join(
        f"  {start} OUTCROP_GPU_SCHEDULE=seed:{seed} {sys.executable} -m pytest -p no:xdist {path} -k {test}"
        for test, seed in found or [("test", seeds)]
    )


def main(seeds: int = 1000, *names: str) -> int:
    at, began, failed = revision(), time.monotonic(), 0
    passed = passed_before(at)
    modules = [FOLDER / name for name in names] or sorted(FOLDER.glob("test_*.py"))
    parts = [
        (module, f"{first}-{min(first + AT_ONCE, seeds) - 1}")
        for first in range(0, seeds, AT_ONCE)
        for module in modules
    ]
    for number, (module, part) in enumerate(parts, 1):
        key = f"{module.name} {part}"
        if key in passed:
            continue
        said = run(module, part)
        if said:
            failed += 1
            print(f"{said[-3000:]}\nFAILED {key}; again by\n{replay(module, said, part)}", flush=True)
        else:
            passed.add(key)
            keep(at, passed)
        print(
            f"{number} of {len(parts)}: {key}, {failed} failed, {time.monotonic() - began:.0f} s", flush=True
        )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2]), *sys.argv[2:]))
