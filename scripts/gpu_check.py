"""Runs the phases of gpu-check.sh, part by part, each with a limit of its own, and keeps a record of each.

Standard library only, on Python 3.10 and newer: what needs torch runs in the interpreter that has it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gpu_record
from gpu_units import PHASES, Unit, units

ROOT = Path(__file__).resolve().parent.parent
_SITE = ROOT / "build" / "gpu" / "site"
_TIME_IS_UP = 75
_GRACE_SECONDS = 10.0  # between asking a process to end and ending it
_OUTPUT_CHARACTERS = 6000


class Cannot(Exception):
    """It cannot run here; the message says why, and what to do."""


class Check:
    """One call: where records go, until when it may run, which Python has torch."""

    def __init__(self, out: Path, seconds: float = 480, again: bool = False):
        self.out, self.again, self.until = out, again, time.monotonic() + seconds
        self.device = os.environ.get("OUTCROP_GPU_TESTS") or "cuda"
        self.kept = Path(os.environ.get("OUTCROP_GPU_RECORDS") or ROOT / "build" / "gpu" / "records")
        self.folders = [self.kept, out]
        self.sources = gpu_record.digest(ROOT)
        self._python: list[str] = []
        self._known: dict[str, Any] = {}

    @property
    def python(self) -> str:
        if not self._python:
            self._python.append(find_python())
        return self._python[0]

    @property
    def known(self) -> dict[str, Any]:
        """What gpu_machine.py says."""
        if not self._known:
            command = [self.python, "scripts/gpu_machine.py"]
            ended = subprocess.run(
                command, env=self.environment({}), capture_output=True, text=True, check=False
            )
            if ended.returncode:
                raise Cannot(f"{self.python} cannot describe this machine: {ended.stderr.strip()[-500:]}")
            self._known = json.loads(ended.stdout.splitlines()[-1])
        return self._known

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        made = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "OUTCROP_GPU_TESTS"))}
        paths = [*more.get("PYTHONPATH", "").split(":"), "src", str(_SITE), os.environ.get("PYTHONPATH", "")]
        absolute = [str(Path(path).absolute()) for path in ":".join(paths).split(":") if path]
        made |= {**more, "PYTHONPATH": ":".join(absolute), "PYTHONUNBUFFERED": "1", "PYTHON": self.python}
        made["PATH"] = f"{_SITE}/bin:{made.get('PATH', '')}"
        return made

    def why_not(self, unit: Unit) -> str:
        """Why ``unit`` cannot run here; empty: it can."""
        if unit.unavailable:
            return unit.unavailable
        if self.device == "fake" and unit.phase in ("sanitizer", "bench"):
            return f"{unit.phase} is for a real GPU: leave OUTCROP_GPU_TESTS out"
        if not self.known["python_suits"]:
            return f"Python {self.known['machine']['python']} is too old, Outcrop needs 3.11: name another, PYTHON=..."
        if not unit.needs_gpu or self.device == "fake":
            return ""
        machine, wheels = self.known["machine"], os.environ.get("OUTCROP_WHEELS", ".whl")
        if not machine["devices"]:
            return (
                f"no CUDA device: torch {machine['torch']}, built for CUDA {machine['cuda']}, sees none (driver: "
                f"{machine['driver'] or 'none'}); run this where there is an NVIDIA GPU, its driver and such a torch"
            )
        if not self.known["core"]:
            return f"the C++ core is not built for {self.python}: scripts/gpu-check.sh build"
        if self.known["missing"]:
            wanted = " ".join(f"'{requirement}'" for requirement in self.known["missing"])
            download = f"pip download --no-deps --only-binary=:all: -d {wheels} {wanted}"
            return f"missing: {wanted}; where there is a network: {download}; then scripts/gpu-check.sh --again build"
        return self.known["problem"]

    def done(self, unit: Unit) -> dict[str, Any] | None:
        """The record of ``unit`` where it ended with these sources."""
        record = gpu_record.read(unit.phase, unit.name, self.folders)
        if record is None or record["outcome"] not in gpu_record.ENDED:
            return None
        if (unit.phase, unit.name) == ("build", "core") and self._known and not self._known["core"]:
            return None  # it was built on another machine
        if record["outcome"] == "timed out" and unit.phase in ("build", "bench"):
            return None  # the next call compiles, or measures, what is missing
        return record if (record["sources"], record["device"]) == (self.sources, self.device) else None

    def run(self, unit: Unit) -> str:
        """Runs it and keeps its record; the outcome."""
        limit = min(unit.limit_seconds, max(self.until - time.monotonic(), 1.0))
        report, log = self.kept / f"{unit.phase}-{unit.name}.xml", self.kept / f"{unit.phase}-{unit.name}.log"
        self.kept.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
        self._bring_back(unit)
        fill = {"python": self.python, "report": str(report), "jsons": str(self.kept)}
        command = [word.format(**fill) if "{" in word else word for word in unit.command]
        record = self._begun(unit, command, limit)
        why = self.why_not(unit)
        if why:
            self._keep(record | {"outcome": "unavailable", "reason": why})
            return "unavailable"
        self._keep(record)
        begin = time.monotonic()
        with log.open("wb") as output:
            status, ended = run_limited(command, self.environment(unit.environment), output, limit)
        reason = f"ended after {limit:.0f} s" if ended == "timed out" else ""
        if ended == "timed out" and limit < unit.limit_seconds:
            ended, reason = "interrupted", "the time of the call was up"
        said = log.read_text(errors="replace")
        counts, tests = gpu_record.tests_of(report, said)
        if unit.phase == "sanitizer" and ended == "passed" and not (counts and counts["passed"]):
            ended, reason = "failed", "no test ran: no kernel was looked at"
        record |= {
            "outcome": ended,
            "reason": reason,
            "status": status,
            "seconds": round(time.monotonic() - begin, 3),
            "counts": counts,
            "tests": tests,
            "output": said[-_OUTPUT_CHARACTERS:],
        }
        self._keep(record)
        if unit.phase == "build":
            self._known = {}  # wheels were installed
        return ended

    def _begun(self, unit: Unit, command: list[str], limit: float) -> dict[str, Any]:
        return {
            "schema": gpu_record.SCHEMA,
            "phase": unit.phase,
            "name": unit.name,
            "outcome": "running",
            "reason": "",
            "status": None,
            "seconds": 0.0,
            "limit_seconds": limit,
            "begun": _now(),
            "command": command,
            "device": self.device,
            "sources": self.sources,
            "machine": self.known["machine"],
            "counts": None,
            "tests": [],
            "output": "",
        }

    def _bring_back(self, unit: Unit) -> None:
        """A benchmark goes on with the cases that another machine has left in the folder of results."""
        name = f"gpu-{unit.name}.json"
        if unit.phase == "bench" and (self.out / name).is_file() and not (self.kept / name).exists():
            shutil.copy2(self.out / name, self.kept / name)

    def _keep(self, record: dict[str, Any]) -> None:
        gpu_record.write(record, self.folders)
        for made in self.kept.glob("gpu-*.json"):  # of benchmarks
            shutil.copy2(made, self.out / made.name)


def run_limited(
    command: list[str], environment: dict[str, str], output: Any, limit: float
) -> tuple[int | None, str]:
    """Status and outcome of ``command``, with all it starts ended after ``limit`` seconds: asked first, so that pytest
    still reports. Where this process is told to end, so is that."""
    try:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        output.write(str(error).encode())
        return None, "failed"
    ended = "timed out"
    try:
        status = process.wait(limit)
        return status, "passed" if status == 0 else "failed"
    except subprocess.TimeoutExpired:
        pass
    except KeyboardInterrupt:
        ended = "interrupted"
    for number, grace in ((signal.SIGINT, _GRACE_SECONDS), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(grace)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    until = time.monotonic() + _GRACE_SECONDS  # what it started may still hold memory of the GPU
    while _lives(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    return process.poll(), ended


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def find_python() -> str:
    """An interpreter that can import torch.

    Raises:
        Cannot: None was found.
    """
    named = os.environ.get("PYTHON")
    candidates = [named] if named else ["python3", ".venv/bin/python"]
    for candidate in candidates:
        path = shutil.which(candidate)
        if (
            path
            and not subprocess.run([path, "-c", "import torch"], capture_output=True, check=False).returncode
        ):
            return str(Path(path).absolute())
    raise Cannot(
        f"no torch in {' or '.join(candidates)}: name a Python that has it, built for CUDA, PYTHON=/path/to/python"
    )


def listing(check: Check) -> str:
    """A line for each part: how it ended, or that it remains."""
    lines: list[str] = []
    remaining: list[str] = []
    for phase in PHASES:
        for unit in units(phase, [], check.device):
            record = gpu_record.read(phase, unit.name, check.folders)
            state = _state(record, check)
            if check.done(unit) is None:
                remaining.append(phase)
            lines.append(f"  {phase:<10} {unit.name:<28} {state}")
    todo = [phase for phase in PHASES if phase in remaining]
    text = f"next: scripts/gpu-check.sh {todo[0]}" if todo else "nothing remains"
    return "\n".join([f"sources {check.sources}, records in {check.kept} and {check.out}", *lines, text])


def _state(record: dict[str, Any] | None, check: Check) -> str:
    if record is None:
        return "-"
    said = {"running": "interrupted", "unavailable": f"unavailable: {record['reason']}"}
    state = said.get(record["outcome"], record["outcome"])
    if record["counts"]:
        state += (
            " (" + ", ".join(f"{number} {end}" for end, number in record["counts"].items() if number) + ")"
        )
    if record["sources"] != check.sources:
        state += ", of other sources"
    return f"{state}, {record['seconds']:.0f} s"


def run_phase(check: Check, phase: str, names: list[str]) -> int:
    """The status of the call."""
    chosen = units(phase, names, check.device)
    # What is known of this machine decides what counts as done, too.
    if check.known["machine"]["devices"] and phase != "build" and check.device == "cuda":
        chosen = [*units("build", ["core"], check.device), *chosen]
    outcomes: list[str] = []
    for unit in chosen:
        record = None if check.again and unit.phase == phase else check.done(unit)
        if record is not None:
            outcomes.append(record["outcome"])
            print(
                f"== {unit.phase} {unit.name}: {record['outcome']} already, with the same sources", flush=True
            )
            continue
        if check.until - time.monotonic() < unit.least_seconds:
            return _out_of_time(phase)
        print(f"== {unit.phase} {unit.name}", flush=True)
        outcomes.append(check.run(unit))
        _say_how(check, unit)
        if outcomes[-1] == "interrupted":
            return _out_of_time(phase) if check.until - time.monotonic() < unit.least_seconds else 130
        if unit.phase == "build" and outcomes[-1] != "passed":
            break
    if all(ended == "unavailable" for ended in outcomes):
        return 2
    return 0 if all(ended == "passed" for ended in outcomes) else 1


def _out_of_time(phase: str) -> int:
    print(f"== time is up: the same call once more does what remains of {phase}", flush=True)
    return _TIME_IS_UP


def _say_how(check: Check, unit: Unit) -> None:
    record = gpu_record.read(unit.phase, unit.name, check.folders)
    assert record is not None
    print(f"   {_state(record, check)}", flush=True)
    if record["outcome"] in ("failed", "timed out"):
        print("\n".join(f"   | {line}" for line in record["output"].splitlines()[-15:]), flush=True)


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")  # noqa: UP017 (3.10)


def _end(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-check.sh", description="See the head of scripts/gpu-check.sh."
    )
    parser.add_argument("phase", nargs="?", default="list", choices=("list", *PHASES))
    parser.add_argument("names", nargs="*", help="parts of the phase")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/gpu"), help="folder for the records"
    )
    parser.add_argument("--again", action="store_true", help="also what ended with the same sources")
    parser.add_argument("--seconds", type=float, default=480, help="that the call may take")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    check = Check(options.out.absolute(), options.seconds, options.again)
    os.chdir(ROOT)
    try:
        if options.phase == "list":
            print(listing(check))
            return 0
        return run_phase(check, options.phase, options.names)
    except (Cannot, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
