#!/usr/bin/env python3
"""Fails what goes through the io_uring of a command, one request in each run, and looks at what comes of it.

    scripts/fail_rings.py [JOB ...] [--every N] [--faults EIO,...] [--at K] [--json FILE]

What a ring submits and completes lies in memory that it shares with the kernel, where scripts/fail_calls.py sees
nothing. So the engine itself takes what FAULTS says for the kernel's answer (core/io/faults.h): for every k, in each
engine of a job of scripts/fail_calls.py, to the k-th request, or when the ring is entered for the k-th time. What the
kernel says in passing must not be noticed: the command makes what an undisturbed run makes. Else it does so, or ends
with status 1 and one error that names a file, or io_uring and what to do. The same command, run again, must make what
the undisturbed run made. ``--every N`` takes each N-th request alone, another share for each fault. Ends with status 1
where something was otherwise, and with a remark where there is no io_uring.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fail_calls
from fail_calls import BESIDE, Ended, Job, differences

AGAIN = 3  # times in a row


@dataclass(frozen=True)
class Fault:
    """Says what the kernel answers.

    Attributes:
        error: An errno; 0: it moves a part of each request.
        entering: Whether it fails to take requests, and not one request.
        times: How often, 0: each time from then on.
    """

    error: int
    entering: bool = False
    times: int = 0

    @property
    def passes(self) -> bool:
        """Tells whether the command must not notice."""
        return self.times > 0 or self.error == 0

    def plan(self, at: int) -> dict[str, Any]:
        """Returns the fields of a FaultPlan by which it comes at request or entry ``at``, the first being 0."""
        if not self.error:
            return {"short_probability": 0.9, "seed": at}
        times = {"fail_enters" if self.entering else "fail_attempts": self.times} if self.times else {}
        return {"fail_enter_at" if self.entering else "fail_at_op": at, "error_number": self.error, **times}


FAULTS = {
    "EIO": Fault(errno.EIO),
    "EAGAIN": Fault(errno.EAGAIN, times=AGAIN),
    "EINTR": Fault(errno.EINTR, times=AGAIN),
    "short": Fault(0),
    "enter-EAGAIN": Fault(errno.EAGAIN, entering=True, times=AGAIN),
    "enter-EBUSY": Fault(errno.EBUSY, entering=True, times=AGAIN),
    "enter-ENOMEM": Fault(errno.ENOMEM, entering=True, times=AGAIN),
    "enter-EINTR": Fault(errno.EINTR, entering=True, times=AGAIN),
    "enter-EPERM": Fault(errno.EPERM, entering=True),
}


class Engines:
    """Has the engines of this process, a fork, fail, and counts the requests of each."""

    def __init__(self, plan: dict[str, Any]):
        self._plan, self.most = plan, 0

    def begin(self) -> None:
        from outcrop import _core
        from outcrop.runtime import runtime

        options_of, close = runtime._io_options, runtime.Runtime.close

        def failing(*given: Any) -> _core.IoOptions:
            options = options_of(*given)
            options.backend, plan = _core.Backend.automatic, _core.FaultPlan()
            for name, value in self._plan.items():
                setattr(plan, name, value)
            options.faults = plan
            return options

        def counting(one: runtime.Runtime) -> None:
            close(one)
            counted = one.io.counters
            self.most = max(self.most, counted.read_ops + counted.write_ops)

        runtime._io_options, runtime.Runtime.close = failing, counting  # type: ignore[method-assign]


def run(job: Job, folder: Path, plan: dict[str, Any]) -> Ended:
    """Runs the job in a fork; ``counted`` of what it returns are the requests of the engine that had most."""
    told, telling = os.pipe()
    log = folder.with_suffix(".said")
    child = os.fork()
    if child == 0:
        os.close(told)
        engines = Engines(plan)
        tell = lambda: os.write(telling, str(engines.most).encode())  # noqa: E731
        fail_calls.be_the_command(folder, log, job.command, engines.begin, tell)
    os.close(telling)
    ended = fail_calls.wait(child, log)
    with os.fdopen(told) as file:
        return Ended(ended.status, ended.said, int(file.read() or 0), 0, "")


def wrong_of(ended: Ended, fault: Fault, job: Job, *, made: bool) -> str:
    """Says what is not as it must be after a fault; empty: nothing."""
    if fault.passes and ended.status == 1:
        return "it was noticed"
    if fault.entering and ended.status == 1 and "error:" in ended.said and "io_uring" in ended.said:
        return (
            "" if "Traceback" not in ended.said and "OUTCROP_IO_BACKEND=pread" in ended.said else "no remedy"
        )
    return fail_calls.wrong_of(ended, made, job)


def rings_work() -> bool:
    """Tells whether this system has io_uring, by a fork: the thread of a ring would be missing in later ones."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            from outcrop import _core

            options = _core.IoOptions()
            options.backend = _core.Backend.uring
            _core.BlockIo.create(options, _core.Budget.create(1 << 26))
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def tried(job: Job, case: Path, at: int, fault: Fault) -> tuple[bool, str]:
    """Has one fault come, and the command run again; returns whether there was an error, and what is wrong."""
    job.begin(case)
    try:
        ended = run(job, case, fault.plan(at))
        made = ended.status == 0 and differences(job.found(case), job.want) in ([], [BESIDE])
        problem = wrong_of(ended, fault, job, made=made)
        again = run(job, case, {})
        if again.status != 0:
            problem += f"; then the same command ends with {again.status}: {again.said[-500:]}"
        elif other := differences(job.found(case), job.want):
            problem += f"; then the same command makes other {other}"
        wrong = f"{problem.strip('; ')}\n   said: {ended.said[-700:]}" if problem else ""
        return ended.status == 1, wrong
    finally:
        shutil.rmtree(case)


def learn(job: Job, case: Path) -> int:
    """Runs the job undisturbed; returns how many requests the engine made that made most."""
    job.begin(case)
    undisturbed = run(job, case, {})
    if undisturbed.status != 0:
        raise SystemExit(f"{job.name}, undisturbed: {undisturbed}")
    job.want = job.found(case)
    shutil.rmtree(case)
    return undisturbed.counted


def main() -> int:
    parser = fail_calls.parser_of(__doc__)
    parser.add_argument("--every", type=int, default=1, help="takes each N-th request alone")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--at", type=int, help="takes this request alone")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # or forks would lack the threads that this process started
    os.environ.pop("OUTCROP_IO_BACKEND", None)
    fail_calls.import_all()
    if not rings_work():
        print("0 faults, 0 named, 0 wrong: there is no io_uring here")
        return 0
    noted = fail_calls.list_of_jobs(asked, "fail-rings")
    wrong, count, named = list[str](), 0, 0
    folder = Path(tempfile.mkdtemp(prefix="outcrop-rings-"))
    try:
        for job in fail_calls.chosen_jobs(folder / "made", asked.jobs):
            requests = learn(job, folder / "case")
            before = len(wrong), count, named
            for number, name in enumerate(asked.faults.split(",")):
                first = 7 * number % min(asked.every, requests)
                for at in [asked.at] if asked.at is not None else range(first, requests, asked.every):
                    count += 1
                    was_named, problem = tried(job, folder / "case", at, FAULTS[name])
                    named += was_named
                    if problem:
                        wrong.append(f"{job.name}: {name} at {at}: {problem}")
                        print(f"WRONG {wrong[-1]}", flush=True)
            print(f"{job.name}: {requests} requests, {count} faults, {len(wrong)} wrong so far", flush=True)
            done = {"tried": count - before[1], "named": named - before[2], "wrong": wrong[before[0] :]}
            noted.add({"job": job.name, "of": asked.faults, "every": asked.every, "calls": requests, **done})
    finally:
        shutil.rmtree(folder)
    print(f"{count} faults, {named} named, {len(wrong)} wrong")
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
