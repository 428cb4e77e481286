#!/usr/bin/env python3
"""Writes requirements/*.lock: the exact versions that set-up installs, with the checksums of their files.

    scripts/lock.py [SET ...] [--check]

Each set is resolved anew by pip, for the interpreter that runs this, from pyproject.toml and from BESIDE below; torch
is left out, which constraints.txt fixes, since machines install different builds of it. Listed are the files that the
index has of a version for Linux (x86-64 and 64-bit ARM, glibc) and Python 3.11 or newer, and the sources. The locks of
extras have what comes to that of ``run``. --check resolves nothing: it says what in the locks does not fit
pyproject.toml, and ends with status 1 where something does not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "requirements"
INDEX = os.environ.get("OUTCROP_INDEX", "https://pypi.org/simple")
EXTRAS = {"run": (), "test": ("test",), "lint": ("lint",), "bench": ("bench",), "wheels": ("wheels",)}
# What lies beside the environment (scripts/setup.sh); with what it asks for, or alone.
BESIDE = {
    "ogb": (("ogb==1.3.6", "six>=1.12"), False),
    "triton": (("triton>=3.5",), False),
    "moto": (("moto[s3]==5.2.5", "flask>=3", "flask-cors>=4"), True),
    "ray": (("ray==2.60.0",), True),
    "kubernetes": (("kubeflow-trainer-api==2.3.0",), True),
    "faketime": (("libfaketime==3.0.1",), False),
    "atheris": (("atheris>=3",), False),
}
_LEFT_OUT = re.compile(r"torch|nvidia-(?!cuda-nvrtc).*|cuda-toolkit")


def wanted(name: str) -> tuple[list[str], bool]:
    """Returns the requirements of a set, and whether what these ask for belongs to it, too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if name == "build":
        return [*project["build-system"]["requires"], "cmake", "ninja"], True
    if name in BESIDE:
        requirements, deep = BESIDE[name]
        return list(requirements), deep
    listed, own = list(project["project"]["dependencies"]), project["project"]["name"]
    waiting = list(EXTRAS[name])
    while waiting:
        for requirement in project["project"]["optional-dependencies"][waiting.pop()]:
            one = Requirement(requirement)
            if one.name == own:
                waiting += sorted(one.extras)
            else:
                listed.append(requirement)
    return listed, True


def resolved(name: str) -> dict[str, str]:
    """Asks pip for versions, by canonical name; of an extra for those that it adds."""
    requirements, deep = wanted(name)
    base = read("run") if EXTRAS.get(name) else {}
    requirements = [*requirements, *(f"{package}=={version}" for package, (version, _) in base.items())]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--report",
        "-",
    ]
    command += ["-c", str(ROOT / "constraints.txt"), *([] if deep else ["--no-deps"]), *requirements]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = {
        canonicalize_name(one["metadata"]["name"]): one["metadata"]["version"] for one in report["install"]
    }
    left_out = base.keys() | {name for name in found if _LEFT_OUT.fullmatch(name)}
    return {name: version for name, version in sorted(found.items()) if name not in left_out}


def checksums(name: str, version: str) -> list[str]:
    """Returns the SHA-256 of each file that the index has of a version."""
    request = urllib.request.Request(
        f"{INDEX}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    return sorted(one["hashes"]["sha256"] for one in files if is_of(one["filename"], version))


def is_of(filename: str, version: str) -> bool:
    """Tells whether a file is one of a version that may be installed where Outcrop runs."""
    try:
        if not filename.endswith(".whl"):
            return str(parse_sdist_filename(filename)[1]) == version
        _, found, _, tags = parse_wheel_filename(filename)
    except ValueError:
        return False
    return str(found) == version and any(
        (tag.platform == "any" or re.fullmatch(r"(many)?linux.*_(x86_64|aarch64)", tag.platform))
        and (tag.abi in ("none", "abi3") or re.fullmatch(r"cp3(1[1-9])", tag.interpreter))
        for tag in tags
    )


def read(name: str) -> dict[str, tuple[str, list[str]]]:
    """Returns version and checksums of each package of a lock."""
    found: dict[str, tuple[str, list[str]]] = {}
    text = (LOCKS / f"{name}.lock").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pinned, *hashes = line.split()
            package, _, version = pinned.partition("==")
            found[package] = version, [one.removeprefix("--hash=sha256:") for one in hashes]
    return found


def write(name: str) -> None:
    lines = [f"# Written by scripts/lock.py {name}; installed with --require-hashes --no-deps."]
    for package, version in resolved(name).items():
        sums = checksums(package, version)
        if not sums:
            raise SystemExit(f"error: {INDEX} has no checksums of {package} {version}")
        lines.append(" \\\n".join([f"{package}=={version}", *(f"    --hash=sha256:{one}" for one in sums)]))
    LOCKS.mkdir(exist_ok=True)
    (LOCKS / f"{name}.lock").write_text("\n".join(lines) + "\n")


def problems() -> list[str]:
    """Says which requirement has no version in the lock of its set, or one that it does not admit, and which
    package has two."""
    found, versions, base = [], dict[str, dict[str, str]](), read("run")
    for name in ("build", *EXTRAS, *BESIDE):
        lock = read(name)
        if EXTRAS.get(name):
            found += [f"{package} is in requirements/run.lock, too" for package in lock.keys() & base.keys()]
            lock |= base
        for requirement in map(Requirement, wanted(name)[0]):
            package = canonicalize_name(requirement.name)
            if _LEFT_OUT.fullmatch(package) or (requirement.marker and not requirement.marker.evaluate()):
                continue
            version, _ = lock.get(package, (None, []))
            if version is None or not requirement.specifier.contains(version, prereleases=True):
                found.append(f"requirements/{name}.lock has {package} {version}, wanted: {requirement}")
        if name not in BESIDE:
            for package, (version, _) in lock.items():
                versions.setdefault(package, {})[version] = name
    found += [f"{package} is locked at {of}" for package, of in versions.items() if len(of) > 1]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="See the head of scripts/lock.py.")
    parser.add_argument("sets", nargs="*", choices=("build", *EXTRAS, *BESIDE, []), default=[])
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    if asked.check:
        print("\n".join(found := problems()))
        return 1 if found else 0
    for name in asked.sets or ("build", *EXTRAS, *BESIDE):
        print(f"resolving {name}", flush=True)
        write(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
