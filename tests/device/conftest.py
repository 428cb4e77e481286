"""Tests in a process of their own, whose GPU is device_under_test.py's: tests/unit/test_fake_gpu.py runs them."""

from __future__ import annotations

import device_under_test
import pytest
import torch_geometric  # noqa: F401 (first: it replaces a function of torch, and sets a variable of the environment)

_device = device_under_test.begin()


@pytest.fixture(autouse=True)
def gpu(request):
    if device_under_test.FAKE:
        _device.streams.schedule = device_under_test.schedule(request.node.nodeid)
    yield _device
    _device.busy = _device.refuse = False
    _device.total_bytes = 0
    failed = _device.settle()
    assert failed is None, failed
