"""Signals at lines of Python that commands run (scripts/signal_lines.py): some here, many in ``make soak``."""

from __future__ import annotations

import pytest

from artifact_support import script_output


@pytest.mark.slow
def test_every_command_ends_by_its_signal_and_goes_on() -> None:
    assert script_output("signal_lines", "--lines", "1")[-1].startswith(
        "108 signals, 0 wrong"
    )  # 18 commands, 6 kinds
