#!/usr/bin/env python3
"""Runs random sequences of commands on shared folders, disturbed, and compares each with the same command alone.

    python -m tests.soak [--hours H | --sequences N] [--share K/N] [--seed S] [--length L] [--out FILE]
    python -m tests.soak --replay FILE

A sequence imports, prepares, trains, goes on training in other modes, infers, trains embeddings and verifies, in one
folder. Commands are killed, ended, stopped for a while, have calls fail, run two at a time, and their files are damaged
or removed. Each must end within a minute, by making what the same command makes undisturbed, or with one error that
says what is in its way; in the end everything is built in the same folder, and nothing may be left beside it.

What was found is shrunk and written to ``failures`` as JSON, for ``--replay``, and as lines of a shell. The same seed
draws the same sequences; which call a thread makes first, only time decides.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS)]

from support import script  # noqa: E402
from tiers import share_of  # noqa: E402

from .operations import Operation, draw  # noqa: E402
from .shrink import shrunk  # noqa: E402
from .world import Oracle, Runner, World, fail_calls  # noqa: E402

RunList = script("add_run").RunList


class Soak:
    """Runs sequences, and counts.

    Attributes:
        failed: What was not as it must be, by sequence.
    """

    def __init__(self, shared: Any, folder: Path, failures: Path):
        self._folder, self._failures = folder, failures
        self._runner = Runner(shared)
        self._oracle = Oracle(folder / "known", folder / "made", self._runner)
        self.failed: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.sequences = 0

    def wrong_of(self, operations: Sequence[Operation], count: bool = False) -> str:
        """Does a sequence in a folder of its own; returns what is wrong first, or nothing."""
        folder = self._folder / "world"
        world = World(folder, self._folder / "made", self._runner, self._oracle, self._wrong_said)
        try:
            for operation in operations:
                if wrong := world.do(operation):
                    return wrong
            wrong = world.settle()
            return wrong or "; ".join(self._oracle.wrong)
        finally:
            self._oracle.wrong.clear()
            if count:
                self.counts.update(world.counts)
            shutil.rmtree(folder)

    def _wrong_said(self, status: int | None, said: str, command: Any) -> str:
        job = fail_calls.Job("", lambda path: None, command.arguments, lambda path: {})
        return fail_calls.wrong_of(fail_calls.Ended(status, said, 0, 0, ""), False, job)

    def run(self, name: str, operations: Sequence[Operation]) -> str:
        """Does a sequence; one that fails is written down, shrunk where it fails again."""
        self.sequences += 1
        wrong = self.wrong_of(operations, count=True)
        if wrong:
            print(f"FAILED {name}: {wrong}", flush=True)  # at once: what time decides may not come again
            kind = wrong.rpartition(": ")[0][-60:]

            def fails(some: Sequence[Operation]) -> bool:
                return self.wrong_of(some).rpartition(": ")[0][-60:] == kind

            short = shrunk(operations, fails) if fails(operations) else list(operations)
            self.failed[name] = wrong
            self._write(name, short, self.wrong_of(short) or wrong)
        return wrong

    def _write(self, name: str, operations: Sequence[Operation], wrong: str) -> None:
        self._failures.mkdir(parents=True, exist_ok=True)
        told = {"wrong": wrong, "operations": [one.as_dict() for one in operations]}
        (self._failures / f"{name}.json").write_text(json.dumps(told, indent=1))
        lines = [*map(str, operations), *(f"# {line}" for line in wrong.splitlines())]
        (self._failures / f"{name}.sh").write_text("\n".join(lines) + "\n")
        print("\n".join([f"SHORT {name}: {wrong}", *(f"   {line}" for line in lines)]), flush=True)


def rows_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Adds up what runs did: a table of how often what was done."""
    counts = sum((Counter(run["counts"]) for run in runs), Counter[str]())
    return {
        "hours": sum(run["seconds"] for run in runs) / 3600,
        "sequences": sum(run["sequences"] for run in runs),
        "failed": sum(len(run["failed"]) for run in runs),
        "columns": ["what", "times"],
        "rows": [[kind, f"{times:,}"] for kind, times in sorted(counts.items())],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--sequences", type=int, help="ends after so many")
    parser.add_argument("--share", default="1/1", help="K/N: of all sequences each N-th, from the K-th on")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--length", type=int, default=25, help="operations of a sequence")
    parser.add_argument("--out", type=Path, help="adds what was done to the runs that this JSON file lists")
    parser.add_argument("--failures", type=Path, default=Path("build/soak"))
    parser.add_argument("--replay", type=Path, help="does the sequence of this file alone")
    asked = parser.parse_args()
    if asked.replay is not None and not asked.replay.is_file():
        parser.error(f"{asked.replay} is no file: name one that a failure left in --failures")
    try:
        first, every = share_of(asked.share)
    except pytest.UsageError as error:
        parser.error(str(error))
    library = fail_calls.started_with_library(["-m", "tests.soak", *sys.argv[1:]])
    from artifact_support import memory_folder

    fail_calls.import_all()
    began, noted = time.monotonic(), RunList(asked.out, "stress", rows_of)
    with memory_folder() as folder:
        fail_calls.make_inputs(folder / "made")
        soak = Soak(fail_calls.Shared(library), folder, asked.failures)
        if asked.replay is not None:
            told = json.loads(asked.replay.read_text())["operations"]
            soak.run(asked.replay.stem, [Operation.from_dict(one) for one in told])
        while asked.replay is None and time.monotonic() - began < 3600 * asked.hours:
            number = first - 1 + every * soak.sequences
            if asked.sequences is not None and number >= asked.sequences:
                break
            name = f"{asked.seed}-{number}"
            soak.run(name, draw(name, asked.length))
            done = {
                "seed": asked.seed, "length": asked.length, "seconds": time.monotonic() - began,
                "sequences": soak.sequences, "failed": soak.failed, "counts": dict(sorted(soak.counts.items())),
            }  # fmt: skip
            noted.add(done, again=soak.sequences > 1)
            print(
                f"{soak.sequences} sequences, {soak.counts['operations']} operations, {len(soak.failed)} failed, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    print(
        f"{soak.sequences} sequences, {len(soak.failed)} failed: {json.dumps(dict(sorted(soak.counts.items())))}"
    )
    return len(soak.failed) > 0


if __name__ == "__main__":
    sys.exit(main())
