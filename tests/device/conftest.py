"""Tests in a process of their own, whose GPU is device_under_test.py's: tests/unit/test_fake_gpu.py runs them.

OUTCROP_GPU_SCHEDULE says when the work of the fake GPU runs: ``latest``, ``eager``, ``seed:7``, or ``seed:0-99``, where
each test runs once under each.
"""

from __future__ import annotations

import device_under_test
import pytest
import torch_geometric  # noqa: F401 (first: it replaces a function of torch, and sets a variable of the environment)

_device = device_under_test.begin()


def pytest_generate_tests(metafunc):
    names = device_under_test.schedules()
    if len(names) > 1:
        metafunc.parametrize("schedule_name", names, indirect=True)


@pytest.fixture
def schedule_name(request):
    return getattr(request, "param", device_under_test.schedules()[0])


@pytest.fixture(autouse=True)
def gpu(request, schedule_name):
    # The same order of work for a test, whether it runs alone or under several schedules.
    test = request.node.nodeid.replace(f"-{schedule_name}]", "]").replace(f"[{schedule_name}]", "")
    test = test.replace(f"[{schedule_name}-", "[")
    if device_under_test.FAKE:
        _device.streams.schedule = device_under_test.schedule(schedule_name, test)
    yield _device
    _device.busy = _device.refuse = False
    _device.total_bytes = 0
    failed = _device.settle()
    assert failed is None, failed
