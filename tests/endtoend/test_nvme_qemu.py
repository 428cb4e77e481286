"""The user-space NVMe driver in a virtual machine (docs/nvme.md); only where OUTCROP_QEMU is set, and QEMU there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from support import REPOSITORY

MISSING = 77  # the script's exit status


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_case_passes_in_qemu() -> None:
    if not os.environ.get("OUTCROP_QEMU"):
        pytest.skip("OUTCROP_QEMU is not set: most of a minute in a virtual machine")
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86_64 is missing")
    script = REPOSITORY / "scripts" / "nvme-qemu.sh"
    done = subprocess.run([str(script)], capture_output=True, text=True, timeout=850, check=False)
    if done.returncode == MISSING:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r" (\d+) of \1 cases passed", done.stdout)
