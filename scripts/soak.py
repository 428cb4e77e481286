#!/usr/bin/env python3
"""Runs the tests of tests/device on a fake GPU: under many seeded schedules, and with idle kernels: ``make soak``.

Idle kernels come first: no test may pass that they make no difference to (tests/device/idle_kernels.py).
Goes on where it was stopped: what has passed is kept in build/soak.json, for the revision that it passed at. A seed
that fails is printed with the command that replays it, and the search goes on. As many processes as there are
processors run at a time.

    scripts/soak.py [SEEDS [MODULE ...]]       SEEDS: how many, or which, such as 25-99; 1000, all modules
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
FOLDER = REPOSITORY / "tests" / "device"
KEPT = REPOSITORY / "build" / "soak.json"
AT_ONCE = 25  # seeds that share a process
NO_TESTS = 5  # pytest's: all of them are of one stream
IDLE = "idle"  # in the place of seeds


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
    """What pytest says; empty: all passed. Tests of one stream run under seed 0 alone (tests/device/conftest.py)."""
    env = os.environ | {
        "OUTCROP_GPU_TESTS": "fake",
        "OUTCROP_GPU_SCHEDULE": "latest" if seeds == IDLE else f"seed:{seeds}",
        "PYTHONPATH": f"{FOLDER}{os.pathsep}{REPOSITORY / 'tests'}",
        "OMP_NUM_THREADS": "1",  # each processor has a part of its own
    }
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "timeout=600"]
    if seeds == IDLE:
        options += ["-p", "idle_kernels"]
    elif not seeds.startswith("0-"):
        options += ["-m", "not one_stream"]
    command = [sys.executable, "-m", "pytest", *options, str(module)]
    ended = subprocess.run(command, env=env, cwd=REPOSITORY, capture_output=True, text=True)
    if ended.returncode in (0, NO_TESTS):
        return ""
    return f"{ended.stdout}{ended.stderr}\npytest ended with {ended.returncode}"  # one that is killed says nothing


def replay(module: Path, said: str, seeds: str) -> str:
    """The commands that fail again, one for each test and seed."""
    start = "OUTCROP_GPU_TESTS=fake PYTHONPATH=tests/device:tests"
    path = module.relative_to(REPOSITORY)
    if seeds == IDLE:
        return f"  {start} {sys.executable} -m pytest -p no:xdist -p idle_kernels {path}"
    found = sorted(set(re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)\S*\bseed:(\d+)", said, re.MULTILINE)))
    return "\n".join(
        f"  {start} OUTCROP_GPU_SCHEDULE=seed:{seed} {sys.executable} -m pytest -p no:xdist {path} -k {test}"
        for test, seed in found or [("test", seeds)]
    )


def parts_of(seeds: str) -> list[str]:
    """``0-24``, ``25-49``, ...: what shares a process, of ``60`` (seeds) or ``25-99`` (from, to)."""
    first, _, last = seeds.rpartition("-")
    begin, stop = int(first or 0), int(last) + bool(first)
    return [f"{at}-{min(at + AT_ONCE, stop) - 1}" for at in range(begin, stop, AT_ONCE)]


def main(seeds: str = "1000", *names: str) -> int:
    at, began, failed = revision(), time.monotonic(), 0
    passed = passed_before(at)
    modules = [FOLDER / name for name in names] or sorted(FOLDER.glob("test_*.py"))
    parts = [(module, part) for part in (IDLE, *parts_of(seeds)) for module in modules]
    left = [(module, part) for module, part in parts if f"{module.name} {part}" not in passed]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        ended = [pool.submit(lambda job: (*job, run(*job)), job) for job in left]
        for number, done in enumerate(as_completed(ended), 1 + len(parts) - len(left)):
            module, part, said = done.result()
            key = f"{module.name} {part}"
            if said:
                failed += 1
                print(f"{said[-3000:]}\nFAILED {key}; again by\n{replay(module, said, part)}", flush=True)
            else:
                passed.add(key)
                keep(at, passed)
            took = time.monotonic() - began
            print(f"{number} of {len(parts)}: {key}, {failed} failed, {took:.0f} s", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
