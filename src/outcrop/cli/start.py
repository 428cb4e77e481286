"""Where ``outcrop`` and ``python -m outcrop`` begin: from here on Ctrl-C ends the command with one line.

This module and what it imports load in a moment; the commands take some tenths of a second, and more from a busy disk.
"""

from __future__ import annotations

import os

from outcrop.cli import interruptions


def run() -> None:
    """Imports the commands and runs the one that ``sys.argv`` names."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from outcrop.runtime import parent

        parent.end_with_launcher()
    interruptions.end_with_a_line()
    from outcrop.cli.main import run as run_command

    run_command()
