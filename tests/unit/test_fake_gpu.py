"""The tests of tests/fakegpu, in a process of their own: the GPU that they make of torch's spare device type stays."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support import REPOSITORY

FOLDER = REPOSITORY / "tests" / "fakegpu"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("module", sorted(path.stem for path in FOLDER.glob("test_*.py")))
def test_on_a_fake_gpu(module):
    paths = [str(FOLDER), *(p for p in sys.path if p)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env |= {"OUTCROP_FAKE_GPU": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        FOLDER / f"{module}.py",
    ]
    run = subprocess.run(command, env=env, cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
