"""Tests in a process of their own, whose GPU is device_under_test.py's: tests/unit/test_fake_gpu.py runs them."""

from __future__ import annotations

import device_under_test
import pytest
import torch_geometric  # noqa: F401 (first: it replaces a function of torch, and sets a variable of the environment)

_device = device_under_test.begin()


@pytest.fixture
def gpu():
    yield _device
    _device.busy = _device.refuse = False
    _device.total_bytes = 0
