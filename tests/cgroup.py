"""``memory_limited`` for tests: skips where a memory limit cannot be set."""

from __future__ import annotations

from typing import Any

import pytest

from outcrop.bench import cgroup
from outcrop.bench.cgroup import LimitedRun
from support import HANGS_SECONDS

__all__ = ["LimitedRun", "memory_limited"]


def memory_limited(*args: Any, **kwargs: Any) -> LimitedRun:
    """:func:`outcrop.bench.cgroup.memory_limited`, or a skipped test."""
    try:
        return cgroup.memory_limited(*args, **{"timeout_seconds": HANGS_SECONDS, **kwargs})
    except cgroup.LimitUnavailable as why:
        pytest.skip(str(why))
