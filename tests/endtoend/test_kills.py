"""A few of the kills of ``make soak`` (scripts/kills.py): of ranks, workers, owners, raylets and commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "kills.py"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_is_killed_and_run_again_is_as_if_undisturbed() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "6", "1"], capture_output=True, text=True, timeout=1100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n6 kills, 0 failed: " in done.stdout
