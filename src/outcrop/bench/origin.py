"""Says where a measurement comes from, at the head of every JSON file of results."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from outcrop.runtime import machine

_PLACES = ("--json", "--folder", "--plot", "--work")  # options that say where files go, not what is measured


def origin(experiment: str) -> dict[str, Any]:
    """Describes this run: ``experiment``, the machine, the git revision of the source and the command as typed."""
    return {
        "experiment": experiment,
        "machine": machine.describe(),
        "revision": source_revision(),
        "command": command_line(sys.argv),
    }


def command_line(arguments: list[str]) -> str:
    """Joins what was typed (``sys.argv``), without where files go and without ``--quiet``."""
    program, words = Path(arguments[0]).name, iter(arguments[1:])
    kept = []
    for word in words:
        if word.split("=")[0] in _PLACES:
            if "=" not in word:
                next(words, None)
        elif word != "--quiet":
            kept.append(word)
    script = program.endswith(".py") and program != "__main__.py"
    return shlex.join([*(("python", arguments[0]) if script else ("outcrop",)), *kept])


def source_revision() -> str | None:
    """Returns the git revision of the source tree, where this runs from one."""
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None
