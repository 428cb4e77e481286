"""No test of tests/device passes on a GPU whose kernels compute nothing.

A file of its own, so that it runs beside the schedules of test_fake_gpu.py.
"""

from __future__ import annotations

import pytest

from device_runs import MODULES, pytest_of

# Those of a few seconds; ``make soak`` takes the others.
QUICK = {"test_asynchrony", "test_gather", "test_orders", "test_programs", "test_rings", "test_script"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "module",
    [path if path.stem in QUICK else pytest.param(path, marks=pytest.mark.soak) for path in MODULES],
    ids=lambda path: path.stem,
)
def test_no_test_passes_on_a_gpu_that_computes_nothing(module):
    """But those that launch nothing, or have an excuse: see tests/device/idle_kernels.py."""
    ended = pytest_of("fake", "-p", "idle_kernels", module)
    assert ended.returncode == 0, ended.stdout[-12000:] + ended.stderr[-2000:]
