"""The tests of tests/device, in one process of their own: a fake GPU that is made of torch's spare device type stays.

Its work runs as late as it can, and in the orders of seeds; ``make soak`` runs many more seeds. On a machine that has
one they run on a real GPU, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import REPOSITORY

FOLDER = REPOSITORY / "tests" / "device"
MODULES = sorted(FOLDER.glob("test_*.py"))
# A second or a few for each seed; the others take ten and more.
RACING = [
    FOLDER / f"test_{name}.py"
    for name in ("asynchrony", "everyday", "gather", "orders", "programs", "rings", "sampling", "transfer")
]
SLOWER = [FOLDER / f"test_{name}.py" for name in ("embedding", "memory", "tensor", "training")]


def run(device: str, *modules: Path, schedule: str = "latest") -> None:
    paths = [str(FOLDER), *(p for p in sys.path if p)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env |= {
        "OUTCROP_GPU_TESTS": device,
        "PYTHONPATH": os.pathsep.join(paths),
        "OUTCROP_GPU_SCHEDULE": schedule,
    }
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:logging", "-o", "timeout=120"]
    command = [sys.executable, "-m", "pytest", *options, *modules]
    ended = subprocess.run(command, env=env, cwd=REPOSITORY, capture_output=True, text=True)
    replay = f"replay with OUTCROP_GPU_SCHEDULE={schedule}\n"
    assert ended.returncode == 0, replay + ended.stdout[-6000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout


@pytest.mark.timeout(900)
def test_on_a_fake_gpu():
    run("fake", *MODULES)


@pytest.mark.timeout(600)
def test_on_a_fake_gpu_in_the_order_of_a_seed():
    run("fake", *RACING, schedule="seed:0")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("module", "seeds"),
    [*((module, "1-24") for module in RACING), *((module, "1-2") for module in SLOWER)],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_on_a_fake_gpu_in_the_orders_of_seeds(module, seeds):
    run("fake", module, schedule=f"seed:{seeds}")


def test_no_module_is_left_out():
    # Of two only the latest order is tried.
    there = {
        *RACING,
        *SLOWER,
        FOLDER / "test_bench.py",
        FOLDER / "test_script.py",
    }
    assert there == set(MODULES)


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "module", MODULES, ids=lambda path: path.stem
)  # each by name in what gpu-check.sh records
def test_on_cuda(module):
    run("cuda", module)
