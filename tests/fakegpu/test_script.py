"""The two-line change of docs/unified.md, on this GPU: the losses of the CPU."""

from __future__ import annotations

import importlib.util

from support import REPOSITORY

_spec = importlib.util.spec_from_file_location(
    "docs_unified", REPOSITORY / "tests" / "docs" / "test_unified.py"
)
docs_unified = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(docs_unified)


def test_two_lines(gpu):
    before, after = docs_unified.scripts()
    gpu.launched.clear()
    assert docs_unified.losses(after, "fakecuda") == docs_unified.losses(before, "cpu")
    assert len(gpu.launched) == 20
