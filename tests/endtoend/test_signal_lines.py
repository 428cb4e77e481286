"""Signals at lines of Python that commands run (scripts/signal_lines.py): some here, many in ``make soak``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from artifact_support import child_environment
from support import REPOSITORY


@pytest.mark.slow
def test_every_command_ends_by_its_signal_and_goes_on() -> None:
    ended = subprocess.run(
        [sys.executable, REPOSITORY / "scripts" / "signal_lines.py", "--lines", "1"],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    assert ended.stdout.splitlines()[-1].startswith("40 signals, 0 wrong")
