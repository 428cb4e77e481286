#!/usr/bin/env python3
"""Cuts the power of a machine while commands run, at moments of what they write, and looks at what is left.

    scripts/power_cuts.py [JOB ...] [--systems ext4,ext4-loose,xfs] [--every N] [--parts N] [--seed S] [--json FILE]

Each job of scripts/fail_calls.py runs once on a file system whose disk keeps a log of writes and flushes
(tests/logged_disk.py). The disk is then put together as it may be after the power went: at each flush, with all that
came after it lost, and ``--parts`` times between this flush and the next, with blocks that were written since then kept
or lost at random. The file system is mounted, which repairs what its journal can, and the same command run: it must end
well, and all that it makes must equal what the undisturbed run made. Where the power goes right after the command has
ended, that must be there already.

ext4-loose is ext4 with ``data=writeback,noauto_da_alloc,commit=300``: what was not synced by name is not there.
``--every N`` takes each N-th flush alone, another share for each job. Needs root, FUSE, loop devices, mkfs.ext4,
mkfs.xfs. Ends with status 1 where something was otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import fail_calls
from fail_calls import BESIDE, Job, differences, run_undisturbed

from logged_disk import (
    XFS_OPTIONS,
    Entry,
    logged,
    loop,
    make_image,
    mounted,
    read_log,
    why_not,
    write_crashed,
)

MIB = 1 << 20


@dataclass(frozen=True)
class System:
    """Is a kind of file system, its bytes, and the options that it is mounted with."""

    kind: str
    size: int
    options: str


SYSTEMS = {
    "ext4": System("ext4", 64 * MIB, ""),
    "ext4-loose": System("ext4", 64 * MIB, "data=writeback,noauto_da_alloc,commit=300"),
    "xfs": System("xfs", 320 * MIB, XFS_OPTIONS),
}


@dataclass
class Trial:
    """Says what one job came to on one file system."""

    job: str
    system: str
    writes: int = 0
    flushes: int = 0
    cuts: int = 0
    unequal: int = 0  # where the same command had something to do again


class Machine:
    """Has a disk on which commands run, and others that are what was left of it.

    Attributes:
        folder: Where the disk is mounted, whichever it is: runs keep paths of graphs.
    """

    def __init__(self, folder: Path, system: System):
        self._system, self._work = system, folder
        self.folder = folder / "machine"
        self.folder.mkdir(exist_ok=True)
        self._before, self._after, self._log = (
            folder / name for name in ("before.img", "after.img", "writes.log")
        )

    def begin(self, job: Job) -> None:
        """Makes a disk with what the job begins with."""
        make_image(self._before, self._system.size, self._system.kind)
        with loop(self._before) as device, mounted(device, self.folder, ""):
            job.begin(self.folder / "case")

    @contextmanager
    def undisturbed(self) -> Iterator[Path]:
        """Gives the folder of the job on a copy of that disk, which keeps a log."""
        self._copy()
        self._log.unlink(missing_ok=True)
        disk = logged(self._after, self._log, self._work / "fuse")
        with disk as device, mounted(device, self.folder, self._system.options):
            yield self.folder / "case"

    def written(self) -> int:
        """Returns the bytes of the log."""
        return self._log.stat().st_size

    def log(self, up_to: int) -> list[Entry]:
        return read_log(self._log, up_to)

    @contextmanager
    def cut(self, entries: list[Entry], lost: random.Random | None) -> Iterator[Path]:
        """Gives the folder of the job on what the disk may be where the power went after ``entries``."""
        self._copy()
        write_crashed(self._after, entries, lost)
        with loop(self._after) as device, mounted(device, self.folder, self._system.options):
            yield self.folder / "case"

    def _copy(self) -> None:
        subprocess.run(["cp", "--sparse=always", self._before, self._after], check=True)


class Search:
    """Cuts the power of jobs.

    Attributes:
        trials: What each came to.
        wrong: What was otherwise, with the cut that shows it.
    """

    def __init__(self, folder: Path, parts: int, every: int, seed: int):
        self._folder, self._parts, self._every, self._seed = folder, parts, every, seed
        self.trials, self.wrong = list[Trial](), list[str]()

    def look(self, job: Job, name: str) -> None:
        """Runs a job undisturbed, and then with the power going at its flushes and between them."""
        machine, trial = Machine(self._folder, SYSTEMS[name]), Trial(job.name, name)
        self.trials.append(trial)
        machine.begin(job)
        with machine.undisturbed() as case:
            ended = run_undisturbed(case, self._folder / "said", job.command)
            end = machine.written()
            if ended.status != 0:
                raise SystemExit(f"{job.name} on {name}, undisturbed: {ended}")
            want = job.found(case)
        entries = machine.log(end)
        flushes = [k for k, entry in enumerate(entries) if entry.data is None]
        trial.writes, trial.flushes = len(entries) - len(flushes), len(flushes)
        chance = random.Random(f"{self._seed} {job.name} {name}")
        last = len(flushes) - 1
        for number in range(chance.randrange(self._every), len(flushes), self._every):
            self._cut(machine, job, trial, entries[: flushes[number] + 1], None, want, f"flush {number}")
            until = flushes[number + 1] if number < last else len(entries)
            if until - flushes[number] > 1:
                for part in range(self._parts):
                    at = chance.randrange(flushes[number] + 2, until + 1)
                    lost = random.Random(chance.random())
                    self._cut(machine, job, trial, entries[:at], lost, want, f"flush {number}, part {part}")
        again = self._cut(machine, job, trial, entries, None, want, "the end")
        if again not in ([], [BESIDE]):  # what was removed last; the next command removes it again
            self.wrong.append(
                f"{job.name} on {name}: the command had ended, and then other was there: {again}"
            )
            print(f"WRONG {self.wrong[-1]}", flush=True)

    def _cut(
        self, machine: Machine, job: Job, trial: Trial, entries: list[Entry], lost: random.Random | None,
        want: dict[str, object], where: str,
    ) -> list[str]:  # fmt: skip
        """Returns what was other before the command ran again."""
        trial.cuts += 1
        with machine.cut(entries, lost) as case:
            there = differences(job.found(case), want)
            trial.unequal += len(there) > 0
            ended = run_undisturbed(case, self._folder / "said", job.command)
            other = differences(job.found(case), want)
        if ended.status != 0 or other:
            made = f"made other {other}" if ended.status == 0 else f"ended with {ended.status}"
            self.wrong.append(f"{trial.job} on {trial.system}: {where}: the same command {made}")
            print(f"WRONG {self.wrong[-1]}\n   said: {' '.join(ended.said.split())[-600:]}", flush=True)
        return there


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", help="by name; all unless given")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--every", type=int, default=1, help="takes each N-th flush alone")
    parser.add_argument("--parts", type=int, default=2, help="cuts between two flushes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="writes what was tried")
    asked = parser.parse_args()
    systems = list[str]()
    for name in asked.systems.split(","):
        if reason := why_not(SYSTEMS[name].kind):
            print(f"{name} is left out: {reason}", flush=True)
        else:
            systems.append(name)
    if not systems:
        raise SystemExit("power cannot be cut here")
    os.environ["OMP_NUM_THREADS"] = "1"  # or forks would lack the threads that this process started
    import torch_geometric  # noqa: F401  what runs would import, once

    import outcrop.cli.main  # noqa: F401
    from artifact_support import memory_folder
    from outcrop.bench.origin import origin

    began = time.monotonic()
    with memory_folder() as folder:
        search = Search(folder, asked.parts, asked.every, asked.seed)
        fail_calls.make_inputs(folder / "made")
        for name in systems:
            for job in fail_calls.jobs(folder / "made"):
                if not asked.jobs or job.name in asked.jobs:
                    search.look(job, name)
                    print(f"{search.trials[-1]}, {len(search.wrong)} wrong so far, "
                          f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    cuts = Counter[str]()
    for trial in search.trials:
        cuts[trial.system] += trial.cuts
    print(f"{cuts.total()} cuts, {len(search.wrong)} wrong")
    if asked.json is not None:
        result = {
            **origin("power-cuts"), "every": asked.every, "parts": asked.parts, "seed": asked.seed,
            "seconds": time.monotonic() - began, "cuts": cuts, "wrong": search.wrong,
            "columns": ["command", "file system", "writes", "flushes", "cuts", "cuts after which something was to do"],
            "rows": [[str(cell) for cell in (trial.job, trial.system, trial.writes, trial.flushes, trial.cuts,
                     trial.unequal)] for trial in search.trials],
        }  # fmt: skip
        asked.json.write_text(json.dumps(result, indent=1))
    return len(search.wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
