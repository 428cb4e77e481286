#!/usr/bin/env python3
"""Tests Outcrop with the oldest and the newest versions of its dependencies that pyproject.toml admits.

    scripts/bounds.py [oldest|newest ...] [--keep] [-- PYTEST ARGUMENTS...]

For each end an environment of its own is made in ``build/bounds``, with this interpreter: every direct dependency, and
what the tests ask for, at the version of its lower bound, or at the newest that there is within both bounds; what these
ask for in turn is pip's choice. A wheel of Outcrop is installed in it, so that nothing is imported from ``src``, and
TESTS are run: the quick tests that use what others wrote. ``--keep`` adds to the environment that is there, and leaves
it. Needs a network, and some GB where torch comes with the libraries of CUDA (OUTCROP_PIP_ARGS names another index, as
in scripts/setup.sh); what it finds depends on what the index has that day, so it is no part of CI.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

import lock
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "bounds"
ENDS = ("oldest", "newest")
# One folder or file for each place where code of others is called: torch, torch_geometric, NumPy, Arrow, safetensors,
# typer and rich; and frames and loaders that Outcrop takes or is handed to.
TESTS = (
    "tests/conformance", "tests/golden", "tests/unit/cli", "tests/unit/importing", "tests/unit/nn", "tests/unit/store",
    "tests/unit/training", "tests/unit/unified", "tests/endtoend/test_frameworks.py", "tests/endtoend/test_equality.py",
)  # fmt: skip
MARKS = "not slow and not soak and not torture and not gpu"


def requirements() -> list[Requirement]:
    """Returns what Outcrop and its tests ask for on this machine, by pyproject.toml."""
    listed = map(Requirement, lock.wanted("test")[0])
    return [one for one in listed if one.marker is None or one.marker.evaluate()]


def every_requirement() -> list[Requirement]:
    """Returns the direct dependencies with those of all extras, other extras of Outcrop left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    return [one for one in map(Requirement, listed) if one.name != project["name"]]


def lower_bound(requirement: Requirement) -> Version | None:
    """Returns the oldest version that a requirement admits; None: it has no lower bound."""
    found = [Version(one.version) for one in requirement.specifier if one.operator in (">=", "==")]
    return max(found, default=None)


def upper_bound(requirement: Requirement) -> Version | None:
    """Returns the version that a requirement stays below, or is; None: it has no upper bound."""
    found = [Version(one.version) for one in requirement.specifier if one.operator in ("<", "==")]
    return min(found, default=None)


def pins(end: str) -> list[str]:
    """Returns what pip is asked for: at the lower bounds, or as pyproject.toml has it."""
    if end == "newest":
        return [str(one) for one in requirements()]
    found = []
    for one in requirements():
        extras = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
        found.append(f"{one.name}{extras}=={lower_bound(one)}")
    return found


def run(*command: str | Path) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, check=True, cwd=ROOT)


def pip(python: Path, *arguments: str | Path) -> None:
    run(
        python,
        "-m",
        "pip",
        *arguments[:1],
        "--quiet",
        *os.environ.get("OUTCROP_PIP_ARGS", "").split(),
        *arguments[1:],
    )


def wheel() -> Path:
    """Builds the wheel of Outcrop, with the tools of this environment, and returns it."""
    folder = FOLDER / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    pip(Path(sys.executable), "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ".")
    return next(folder.glob("outcrop-*.whl"))


def environment(end: str, built: Path, keep: bool) -> Path:
    """Makes the environment of one end, and returns its interpreter."""
    folder = FOLDER / end
    python = folder / "bin" / "python"
    if not (keep and python.exists()):
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
    pip(python, "install", *pins(end))
    pip(python, "install", "--no-deps", "--force-reinstall", built)
    return python


def check(end: str, built: Path, keep: bool, more: Sequence[str]) -> bool:
    """Makes one environment and runs the tests in it; returns whether all passed."""
    python = environment(end, built, keep)
    run(python, "-m", "pip", "list", "--format", "freeze")
    report = FOLDER / f"{end}.xml"
    chosen = list(more) or [*TESTS, "-n", "2", "--dist", "loadfile"]
    # Old versions use what newer ones of others call deprecated; of the newest, warnings stay errors.
    lenient = ["-W", "ignore::DeprecationWarning"] if end == "oldest" else []
    command = [python, "-m", "pytest", "-q", "-m", MARKS, "--junitxml", report, *lenient, *chosen]
    # The core of an editable install lies in src, which no test may put before the wheel.
    alone = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OUTCROP_VENV")}
    passed = subprocess.run(command, cwd=ROOT, env=alone | {"OMP_NUM_THREADS": "1"}).returncode == 0
    if not keep:
        shutil.rmtree(FOLDER / end)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description="See the head of scripts/bounds.py.")
    parser.add_argument("ends", nargs="*", choices=[*ENDS, []], default=[])
    parser.add_argument(
        "--keep", action="store_true", help="adds to the environments that are there, and leaves them"
    )
    given = sys.argv[1:]
    at = given.index("--") if "--" in given else len(given)
    asked = parser.parse_args(given[:at])
    FOLDER.mkdir(parents=True, exist_ok=True)
    built = wheel()
    passed = {end: check(end, built, asked.keep, given[at + 1 :]) for end in asked.ends or ENDS}
    for end, good in passed.items():
        print(f"== {end} versions: {'all tests passed' if good else 'tests FAILED'}")
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
