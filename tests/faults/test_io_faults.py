"""Faults of the disk seen from Python: the right error, no wrong rows, and no hang."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outcrop import _core
from outcrop.errors import IoError

Engine = Callable[..., _core.BlockIo]


@pytest.fixture(params=["uring", "pread"])
def engine(request: pytest.FixtureRequest) -> Engine:
    def make(**faults: object) -> _core.BlockIo:
        options = _core.IoOptions()
        options.backend = getattr(_core.Backend, request.param)
        plan = _core.FaultPlan()
        for name, value in faults.items():
            setattr(plan, name, value)
        options.faults = plan
        return _core.BlockIo.create(options, _core.Budget.create(1 << 26))

    try:
        make()
    except IoError as error:
        pytest.skip(str(error))
    return make


@pytest.fixture
def table(tmp_path: Path) -> np.ndarray:
    rows = np.random.default_rng(0).integers(0, 256, (4096, 343), np.uint8)
    rows.tofile(tmp_path / "x")  # 343 pages
    return rows


def reader_of(io: _core.BlockIo, path: Path, merge: bool = True) -> _core.RowReader:
    file = io.open(str(path), _core.OpenMode.read)
    return _core.RowReader(io, _core.Budget.create(1 << 26), file, 0, 343, 343, 4096, 200_000, merge)


def test_rows_are_exact_under_short_reads_and_interruptions(
    tmp_path: Path, table: np.ndarray, engine: Engine
):
    ids = np.random.default_rng(1).integers(0, 4096, 3000)
    clean = engine()
    out = np.zeros((len(ids), 343), np.uint8)
    reader_of(clean, tmp_path / "x").read_rows(ids, out)
    for seed in range(5):
        io = engine(short_probability=0.5, eagain_probability=0.5, seed=seed)
        out[:] = 0
        reader_of(io, tmp_path / "x").read_rows(ids, out)
        np.testing.assert_array_equal(out, table[ids])
        assert io.counters.read_bytes == clean.counters.read_bytes
        assert io.counters.read_ops == clean.counters.read_ops
        assert io.counters.short_reads > 0
        assert io.counters.retries > 0


def test_a_failed_read_is_an_error_that_names_it(tmp_path: Path, table: np.ndarray, engine: Engine):
    io = engine(fail_at_op=2)
    reader = reader_of(io, tmp_path / "x", merge=False)
    out = np.zeros((10, 343), np.uint8)
    with pytest.raises(
        IoError, match=r"cannot read 4096 bytes at offset 4096 of .*x: Input/output error"
    ) as caught:
        reader.read_rows(np.arange(13, 23), out)
    assert caught.value.errno == errno.EIO
    assert isinstance(caught.value, OSError)
    reader.read_rows(np.arange(13, 23), out)  # the fault is over
    np.testing.assert_array_equal(out, table[13:23])


def test_a_file_cut_while_open_is_found(tmp_path: Path, table: np.ndarray, engine: Engine):
    io = engine()
    reader = reader_of(io, tmp_path / "x")
    with (tmp_path / "x").open("r+b") as file:
        file.truncate(500_000)
    out = np.zeros((1, 343), np.uint8)
    reader.read_rows(np.array([5]), out)
    np.testing.assert_array_equal(out[0], table[5])
    with pytest.raises(IoError, match=r"ends at byte 500000, .*: the file is truncated"):
        reader.read_rows(np.array([4000]), out)


def test_full_disk(tmp_path: Path, engine: Engine):
    io = engine(disk_full_after_bytes=10_000)
    file = io.open(str(tmp_path / "y"), _core.OpenMode.create)
    io.write(file, 0, np.ones(9_000, np.uint8))
    with pytest.raises(IoError, match="y: No space left on device") as caught:
        io.write(file, 9_000, np.ones(9_000, np.uint8))
    assert caught.value.errno == errno.ENOSPC


def test_jobs_in_trouble_end(tmp_path: Path, table: np.ndarray, engine: Engine):
    io = engine(error_probability=0.3, delay_us=100)
    file = io.open(str(tmp_path / "x"), _core.OpenMode.read)
    at = np.arange(0, 343 * 4096, 4096)
    jobs = [
        io.submit_reads(file, at, np.full(343, 4096), np.zeros(343 * 4096, np.uint8), at) for _ in range(20)
    ]
    for job in jobs:
        with pytest.raises(IoError):
            job.wait()
        assert job.done
    assert io.counters.read_ops < 20 * 343
