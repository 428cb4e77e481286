"""A disk made slower than it is, by variables of the environment: for benchmarks."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import outcrop._core as _core
from outcrop.config import IoConfig
from outcrop.errors import ArgumentError
from outcrop.runtime.runtime import Runtime


def seconds_of(path: Path, requests: int, io: IoConfig | None = None) -> float:
    with Runtime(io=io) as runtime:
        file = runtime.io.open(str(path), _core.OpenMode.read)
        places = np.arange(requests, dtype=np.int64) * 4096
        out = np.zeros(requests * 4096, np.uint8)
        started = time.monotonic()
        runtime.io.submit_reads(file, places, np.full(requests, 4096, np.int64), out, places).wait()
        took = time.monotonic() - started
        runtime.io.close(file)
    return took


@pytest.mark.parametrize(("name", "value"), [("OUTCROP_IO_REQUESTS", "100"), ("OUTCROP_IO_RATE", "400KiB")])
def test_jobs_take_no_less_than_the_rates_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(50 * 4096))
    monkeypatch.setenv(name, value)
    assert seconds_of(path, 50) >= 0.5
    monkeypatch.delenv(name)
    assert seconds_of(path, 50, IoConfig(requests_per_second=250)) >= 0.2


def test_a_rate_that_is_none_is_refused_by_the_name_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTCROP_IO_RATE", "fast")
    with pytest.raises(
        ArgumentError, match="variable OUTCROP_IO_RATE of the environment: size 'fast' is not"
    ):
        Runtime()
