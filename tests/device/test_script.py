"""The two-line change of docs/unified.md, on this GPU: the losses of the CPU."""

from __future__ import annotations

import importlib.util

import pytest
from device_under_test import FAKE
from device_under_test import NAME as GPU

from support import REPOSITORY

_spec = importlib.util.spec_from_file_location(
    "docs_unified", REPOSITORY / "tests" / "docs" / "test_unified.py"
)
docs_unified = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(docs_unified)


def test_two_lines(gpu):
    before, after = docs_unified.scripts()
    gpu.launched.clear()
    expected = docs_unified.losses(before, "cpu")
    assert docs_unified.losses(after, GPU) == (expected if FAKE else pytest.approx(expected, rel=1e-3))
    assert len(gpu.launched) == 20
