"""A few of the kills of ``make soak`` (scripts/kills.py): one of each kind of process of each command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raylets import BESIDE

SCRIPT = Path(__file__).parents[2] / "scripts" / "kills.py"
KINDS = {
    "embed train": ("rank", "torchrun"),
    "prepare --ray": ("command", "owner", "raylet", "task"),
    "prepare --workers": ("command", "worker"),
    "train": ("rank", "torchrun"),
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_is_killed_and_run_again_is_as_if_undisturbed() -> None:
    """Where a command was over before a process was killed, the next turn kills it, and others again."""
    kinds = {
        f"{name}: {kind}"
        for name, of in KINDS.items()
        if name != "prepare --ray" or BESIDE.is_dir()
        for kind in of
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(len(kinds)), "1"], capture_output=True, text=True, timeout=1100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^(\d+) kills, 0 failed: ({.*})$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    killed = json.loads(found[2])
    assert killed.keys() == kinds
    assert min(killed.values()) >= 1
    assert sum(killed.values()) == int(found[1]) >= len(kinds)
