#!/usr/bin/env python3
"""Sends a signal at lines of Python that a command runs, one in each run, and looks at what the command makes of it.

    scripts/signal_lines.py [JOB ...] [--lines N] [--signals INT,TERM+TERM,...] [--at K] [--seed S] [--json FILE]

An undisturbed run of each job of scripts/fail_calls.py counts the lines of Outcrop's own code that its main thread
runs. Then a signal comes at one of them, N of them at random for each signal, INT+INT and TERM+TERM being two in a
row. The command must end within a minute (what the slowest took is said), by the status of the signal and without a
traceback, or with what the undisturbed run made; the same command, run again, must make what the undisturbed run made.
Ends with status 1 where something was otherwise.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import fail_calls
from fail_calls import BESIDE, Ended, Job, differences

SIGNALS: dict[str, tuple[signal.Signals, ...]] = {
    "INT": (signal.SIGINT,),
    "TERM": (signal.SIGTERM,),
    "HUP": (signal.SIGHUP,),
    "PIPE": (signal.SIGPIPE,),
    "INT+INT": (signal.SIGINT, signal.SIGINT),
    "TERM+TERM": (signal.SIGTERM, signal.SIGTERM),
}
STATUSES = {
    signal.SIGINT: (130,),
    signal.SIGTERM: (143,),
    signal.SIGHUP: (-signal.SIGHUP, 129),
    signal.SIGPIPE: (),  # says only that nobody reads what is said
}
OWN = f"{os.sep}outcrop{os.sep}"


class Lines:
    """Counts lines of Outcrop in the main thread, and sends ``which`` when the ``at``-th of them is to run."""

    def __init__(self, at: int, which: tuple[signal.Signals, ...]):
        self._left, self._which, self.count, self.where, self.sent = at, which, 0, "", 0.0

    def begin(self) -> None:
        sys.settrace(self._call)

    def _call(self, frame: FrameType, event: str, given: Any) -> Callable[..., Any] | None:
        return self._line if OWN in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, given: Any) -> Callable[..., Any]:
        if event == "line":
            self.count += 1
            if self.count == self._left:
                self.where, self.sent = f"{frame.f_code.co_filename}:{frame.f_lineno}", time.monotonic()
                for one in self._which:
                    os.kill(os.getpid(), one)
        return self._line


def run(job: Job, folder: Path, at: int, which: tuple[signal.Signals, ...]) -> tuple[Ended, float]:
    """Runs the job in a fork; returns how it ended, and seconds from the signal on."""
    told, telling = os.pipe()
    log = folder.with_suffix(".said")
    child = os.fork()
    if child == 0:
        os.close(told)
        lines = Lines(at, which)
        fail_calls.be_the_command(folder, log, job.command, lines.begin, lambda: _tell(telling, lines))
    os.close(telling)
    ended = fail_calls.wait(child, log)
    now = time.monotonic()
    with os.fdopen(told) as file:
        said = file.read().split("\t")
    count, where, sent = (int(said[0]), said[1], float(said[2])) if len(said) == 3 else (0, "", 0.0)
    return Ended(ended.status, ended.said, count, int(sent > 0), where), now - sent if sent else 0.0


def _tell(telling: int, lines: Lines) -> None:
    sys.settrace(None)
    os.write(telling, f"{lines.count}\t{lines.where}\t{lines.sent}".encode())


def wrong_of(ended: Ended, which: tuple[signal.Signals, ...], *, made: bool) -> str:
    """Says what is not as it must be after a signal; empty: nothing."""
    if ended.status is None:
        return "it did not end"
    if "Traceback" in ended.said or "Exception ignored" in ended.said:
        return "a traceback"
    if ended.status == 0:
        return "" if made else "status 0, and something else was made"
    return "" if ended.status in STATUSES[which[0]] else f"status {ended.status}"


def main() -> int:
    parser = fail_calls.parser_of(__doc__)
    parser.add_argument("--lines", type=int, default=100, help="for each signal")
    parser.add_argument("--signals", default=",".join(SIGNALS))
    parser.add_argument("--at", type=int, help="takes this line alone")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # or forks would lack the threads that this process started
    import torch_geometric  # noqa: F401  what runs would import, once

    import outcrop.cli.main  # noqa: F401

    noted = fail_calls.list_of_jobs(asked, "signal-lines", "ended by it")
    wrong, tried, ended_early, slowest = list[str](), 0, 0, 0.0
    folder = Path(tempfile.mkdtemp(prefix="outcrop-signals-"))
    try:
        case = folder / "case"
        for job in fail_calls.chosen_jobs(folder / "made", asked.jobs):
            job.begin(case)
            undisturbed, _ = run(job, case, 0, ())
            if undisturbed.status != 0:
                raise SystemExit(f"{job.name}, undisturbed: {undisturbed}")
            job.want = job.found(case)
            shutil.rmtree(case)
            print(f"{job.name}: {undisturbed.counted} lines", flush=True)
            before = len(wrong), tried, ended_early
            for name in asked.signals.split(","):
                chance = random.Random(f"{asked.seed} {job.name} {name}")
                for _ in range(1 if asked.at else asked.lines):
                    at = asked.at or chance.randint(1, undisturbed.counted)
                    job.begin(case)
                    ended, seconds = run(job, case, at, SIGNALS[name])
                    made = ended.status == 0 and differences(job.found(case), job.want) in ([], [BESIDE])
                    problem = wrong_of(ended, SIGNALS[name], made=made)
                    again, _ = run(job, case, 0, ())
                    if again.status != 0:
                        problem += f"; then the same command ends with {again.status}: {again.said[-500:]}"
                    elif other := differences(job.found(case), job.want):
                        problem += f"; then the same command makes other {other}"
                    shutil.rmtree(case)
                    tried, slowest = tried + 1, max(slowest, seconds)
                    ended_early += ended.status != 0
                    if problem:
                        wrong.append(f"{job.name}: {name} at line {at}, {ended.first}: {problem.strip('; ')}")
                        print(f"WRONG {wrong[-1]}\n   said: {ended.said[-700:]}", flush=True)
            print(f"{job.name}: {tried} signals, {len(wrong)} wrong so far", flush=True)
            done = {"tried": tried - before[1], "named": ended_early - before[2], "wrong": wrong[before[0] :]}
            more = {"calls": undisturbed.counted, "seed": asked.seed, "slowest_seconds": slowest}
            noted.add({"job": job.name, "of": asked.signals, **more, **done})
    finally:
        shutil.rmtree(folder)
    print(f"{tried} signals, {len(wrong)} wrong, the slowest end {slowest:.1f} s after its signal")
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
