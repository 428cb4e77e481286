"""Tests in a process of their own, whose GPU is device_under_test.py's: tests/unit/test_fake_gpu.py runs them.

OUTCROP_GPU_SCHEDULE says when the work of the fake GPU runs: ``latest``, ``eager``, ``seed:7``, or ``seed:0-99``, where
each test runs once under each.

A test is marked ``one_stream`` where all its work goes to one stream, which is checked. Then each access of the host
comes before or after each item of work, and nothing else varies: ``latest`` has every access as early as it can be,
``eager`` as late, so that no seed has an order of two that neither of them has. It runs under the first seed alone.

A long test is marked ``no_kernels`` where it launches none of Outcrop's, which is checked: idle_kernels.py leaves it
out.
"""

from __future__ import annotations

import gc
import sys

import device_under_test
import pytest
import torch_geometric  # noqa: F401 (first: it replaces a function of torch, and sets a variable of the environment)

_device = device_under_test.begin()


def pytest_configure(config):
    config.addinivalue_line("markers", "one_stream: its work goes to one stream: further seeds show nothing")
    config.addinivalue_line("markers", "no_kernels: it launches none: what they do changes nothing for it")


def pytest_generate_tests(metafunc):
    names = device_under_test.schedules()
    if metafunc.definition.get_closest_marker("one_stream"):
        names = names[:1]
    if len(names) > 1:
        metafunc.parametrize("schedule_name", names, indirect=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call):
    """Mends the fake GPU before a failure is put into words.

    What the test left for the garbage collector calls the GPU when it goes. Where work had failed it would raise, at
    any time while the report is made; Python 3.11 cannot go on then if it was parsing the test.
    """
    if call.excinfo is not None and device_under_test.FAKE:
        _device.busy = _device.refuse = False
        _device.settle()
        gc.collect()
    return (yield)


def _forget_failure():
    """Frees what only the traceback of a failure keeps, so that the next test finds no memory of this one."""
    kept = [name for name in ("last_exc", "last_type", "last_value", "last_traceback") if hasattr(sys, name)]
    for name in kept:
        delattr(sys, name)
    if kept:
        gc.collect()


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
        _device.streams.used.clear()
    launches = _device.launches
    yield _device
    _device.busy = _device.refuse = False
    _device.total_bytes = 0
    failed = _device.settle()
    _forget_failure()
    assert failed is None, failed
    if device_under_test.FAKE and request.node.get_closest_marker("one_stream"):
        assert len(_device.streams.used) <= 1, f"marked one_stream, uses {_device.streams.used}"
    if request.node.get_closest_marker("no_kernels"):
        assert _device.launches == launches, "marked no_kernels, launches some"
