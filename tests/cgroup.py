"""``memory_limited`` for tests: skips where a memory limit cannot be set."""

from __future__ import annotations

from typing import Any

import pytest

from outcrop.bench import cgroup
from outcrop.bench.cgroup import LimitedRun

__all__ = ["LimitedRun", "memory_limited"]


def memory_limited(*args: Any, **kwargs: Any) -> LimitedRun:
    """:func:`outcrop.bench.cgroup.memory_limited`, or a skipped test."""
    try:
        return cgroup.memory_limited(*args, **kwargs)
    except cgroup.LimitUnavailable as why:
        pytest.skip(str(why))
