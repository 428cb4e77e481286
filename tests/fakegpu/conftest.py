"""Tests in a process of their own, whose GPU is fake_gpu.py: tests/unit/test_fake_gpu.py runs them."""

from __future__ import annotations

import fake_gpu
import pytest
import torch._dynamo  # noqa: F401 (sets a variable of the environment)

from outcrop.device import gpu as gpus

fake_gpu.install()
gpus.KINDS[fake_gpu.NAME] = lambda: fake_gpu.gpu


@pytest.fixture
def gpu():
    yield fake_gpu.gpu
    fake_gpu.gpu.busy = fake_gpu.gpu.refuse = False
