"""The I/O engine from Python: rows against NumPy indexing, and exact byte counts against NumPy page counts."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outcrop import _core
from outcrop.bench import io as io_bench
from outcrop.errors import ArgumentError, BudgetError, IoError

WIDTHS = [1, 7, 100, 128, 343, 602, 768, 1024, 1433]
Engine = Callable[..., _core.BlockIo]


@pytest.fixture
def budget():
    budget = _core.Budget.create(1 << 28)
    yield budget
    gc.collect()
    assert {tag: use.now_bytes for tag, use in budget.by_tag.items() if use.now_bytes} == {}


@pytest.fixture(params=["uring", "pread"])
def engine(request: pytest.FixtureRequest, budget: _core.Budget) -> Engine:
    def make(**fields: object) -> _core.BlockIo:
        options = _core.IoOptions()
        options.backend = getattr(_core.Backend, request.param)
        for name, value in fields.items():
            setattr(options, name, value)
        return _core.BlockIo.create(options, budget)

    try:
        make()
    except IoError as error:
        pytest.skip(str(error))
    return make


def pages_of(ids: np.ndarray, base: int, stride: int, row_bytes: int) -> np.ndarray:
    """Every page that every row touches, in order, repeats included."""
    first = (base + ids * stride) // 4096
    last = (base + ids * stride + row_bytes - 1) // 4096
    return np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])


def padded(data: np.ndarray) -> np.ndarray:
    return np.concatenate([data, np.zeros(-len(data) % 4096, np.uint8)])


@pytest.mark.parametrize(
    ("width", "dtype", "merge"),
    list(itertools.product(WIDTHS, ["uint8", "float16", "float32"], [True, False])),
)
def test_rows_equal_numpy_and_read_exactly_the_pages(
    tmp_path: Path, engine: Engine, budget: _core.Budget, width: int, dtype: str, merge: bool
):
    rng = np.random.default_rng(width)
    num_rows = 997
    row_bytes = width * np.dtype(dtype).itemsize
    table = rng.integers(0, 256, (num_rows, row_bytes), np.uint8)
    padded(table.reshape(-1)).tofile(tmp_path / "x")
    io = engine()
    file = io.open(str(tmp_path / "x"), _core.OpenMode.read)
    reader = _core.RowReader(io, budget, file, 0, row_bytes, row_bytes, num_rows, 1 << 20, merge)
    ids = np.concatenate([rng.integers(0, num_rows, 700), [0, num_rows - 1, 0]])
    out = np.zeros((len(ids), width), dtype)
    reader.read_rows(ids, out.view(np.uint8))
    np.testing.assert_array_equal(out.view(np.uint8), table[ids])
    pages = pages_of(ids, 0, row_bytes, row_bytes)
    expected = 4096 * (len(np.unique(pages)) if merge else len(pages))
    assert io.counters.read_bytes == expected
    assert reader.count_read_bytes(ids) == expected
    assert _core.count_read_bytes(ids, 0, row_bytes, row_bytes, merge) == expected


@pytest.mark.parametrize("merge", [True, False])
def test_rows_with_base_stride_and_small_scratch(
    tmp_path: Path, engine: Engine, budget: _core.Budget, merge: bool
):
    rng = np.random.default_rng(1)
    base, stride, row_bytes, num_rows = 5000, 1500, 1433, 3000
    data = rng.integers(0, 256, base + num_rows * stride, np.uint8)
    padded(data).tofile(tmp_path / "x")
    rows = np.lib.stride_tricks.as_strided(data[base:], (num_rows, row_bytes), (stride, 1))
    io = engine(max_request_bytes=8192, depth=4)
    file = io.open(str(tmp_path / "x"), _core.OpenMode.read)
    ids = rng.integers(0, num_rows, 5000)
    least = _core.RowReader.min_scratch_bytes(row_bytes)
    for scratch in (least, 100_000, 1 << 20):
        reader = _core.RowReader(io, budget, file, base, stride, row_bytes, num_rows, scratch, merge)
        assert budget.by_tag["row-scratch"].now_bytes <= scratch
        wide = np.zeros((len(ids), row_bytes + 5), np.uint8)
        before = io.counters.read_bytes
        reader.read_rows(ids, wide[:, :row_bytes])
        np.testing.assert_array_equal(wide[:, :row_bytes], rows[ids])
        assert not wide[:, row_bytes:].any()
        groups = [ids[i : i + reader.group_rows] for i in range(0, len(ids), reader.group_rows)]
        pages = [pages_of(group, base, stride, row_bytes) for group in groups]
        expected = 4096 * sum(len(np.unique(p)) if merge else len(p) for p in pages)
        assert io.counters.read_bytes - before == expected == reader.count_read_bytes(ids)
        del reader
    with pytest.raises(ArgumentError, match=f"at least {least}"):
        _core.RowReader(io, budget, file, base, stride, row_bytes, num_rows, least - 1, merge)
    with pytest.raises(IoError, match="holds 3000 rows, not 3010: the file is truncated"):
        _core.RowReader(io, budget, file, base, stride, row_bytes, num_rows + 10, 1 << 20, merge)
    with pytest.raises(BudgetError):
        _core.RowReader(io, budget, file, base, stride, row_bytes, num_rows, 1 << 40, merge)


def test_rows_in_two_steps_and_id_checks(tmp_path: Path, engine: Engine, budget: _core.Budget):
    table = np.random.default_rng(2).integers(0, 256, (1000, 512), np.uint8)
    table.tofile(tmp_path / "x")
    io = engine()
    file = io.open(str(tmp_path / "x"), _core.OpenMode.read)
    reader = _core.RowReader(io, budget, file, 0, 512, 512, 1000, 4 << 20)
    ids = np.array([5, 999, 5, 0])
    out = np.zeros((4, 512), np.uint8)
    stream = _core.RowStream(io, budget, file, 0, 512, 512, 1000, 1 << 20)
    order = np.argsort(ids, kind="stable").astype(np.int32)
    job = stream.submit(ids[order], order, out)
    job.wait()
    assert job.ready
    np.testing.assert_array_equal(out, table[ids])
    stream.submit(ids[order], order, np.zeros((4, 512), np.uint8))  # dropped at once, with its arrays
    for bad in (1000, -1, 2**62):
        with pytest.raises(
            ArgumentError, match=f"row id {bad} at position 1 is outside the table of 1000 rows"
        ):
            reader.read_rows(np.array([0, bad]), out[:2])
    with pytest.raises(ArgumentError, match="output of 4 rows of 512 bytes given for 3 rows"):
        reader.read_rows(ids[:3], out)


def test_jobs_keep_their_memory_and_may_be_dropped(tmp_path: Path, engine: Engine):
    data = np.random.default_rng(3).integers(0, 256, 1 << 22, np.uint8)
    data.tofile(tmp_path / "x")
    io = engine()
    file = io.open(str(tmp_path / "x"), _core.OpenMode.read)
    offsets = np.arange(0, len(data), 4096)
    lengths = np.full(len(offsets), 4096)
    for _ in range(10):
        job = io.submit_reads(file, offsets, lengths, np.zeros(len(data), np.uint8), offsets)
        del job
    out = np.zeros(len(data), np.uint8)
    view = out[:]
    job = io.submit_reads(file, offsets, lengths, view, offsets)
    del view, io  # the engine finishes what was submitted
    gc.collect()
    job.wait()
    job.wait()
    assert job.done
    np.testing.assert_array_equal(out, data)


def test_writes_of_many_parts(tmp_path: Path, engine: Engine):
    data = np.random.default_rng(4).integers(0, 256, 1_000_003, np.uint8)
    io = engine(max_request_bytes=65536)
    file = io.open(str(tmp_path / "y"), _core.OpenMode.create)
    cuts = np.sort(np.random.default_rng(5).integers(0, len(data), 50))
    starts = np.concatenate([[0], cuts])
    lengths = np.diff(np.concatenate([starts, [len(data)]]))
    io.submit_writes(file, starts, lengths, data, starts).wait()
    io.close(file)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y", np.uint8), data)
    assert io.counters.write_bytes == len(data)
    assert io.counters.write_ops == np.sum(-(-lengths // 65536))


def unwritten_bytes(path: Path) -> int:
    """Bytes of a file in the page cache that its disk has not got, by the kernel's ``cachestat`` (Linux 6.5)."""
    whole, stat = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    fd = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None).syscall(451, fd, whole, stat, 0) != 0:
            pytest.skip("this kernel does not tell")
    finally:
        os.close(fd)
    return (stat[1] + stat[2]) * os.sysconf("SC_PAGE_SIZE")  # dirty, and being written


def test_unwritten_bytes_are_bounded(tmp_path: Path, engine: Engine):
    """A job may be on its way while the windows before it and the one that it fills are not on the disk yet."""
    part, window = 1 << 18, 1 << 20
    data = np.zeros(part, np.uint8)
    io = engine(unwritten_bytes=window)
    file = io.open(str(tmp_path / "x"), _core.OpenMode.create)
    most = 0
    for at in range(64):
        io.submit_writes(file, np.array([at * part]), np.array([part]), data, np.array([0])).wait()
        most = max(most, unwritten_bytes(tmp_path / "x"))
    io.sync(file)
    if unwritten_bytes(tmp_path / "x"):
        pytest.skip("a file system without a disk")
    assert 0 < most <= 2 * window + part


def test_requests_that_do_not_fit_are_refused(tmp_path: Path, engine: Engine):
    (tmp_path / "x").write_bytes(bytes(4096))
    io = engine()
    file = io.open(str(tmp_path / "x"), _core.OpenMode.read)
    out = np.zeros(100, np.uint8)
    one = np.array([1])
    for offset, length, position in [(0, 101, 0), (0, 10, 91), (-1, 1, 0), (0, -1, 0), (0, 1, -1)]:
        with pytest.raises(ArgumentError, match="request 0"):
            io.submit_reads(file, one * offset, one * length, out, one * position)
    with pytest.raises(ArgumentError, match="equally many"):
        io.submit_reads(file, one, np.array([1, 2]), out, one)
    with pytest.raises(IoError, match=r"cannot open .*missing.* for reading"):
        io.open(str(tmp_path / "missing"), _core.OpenMode.read)
    assert io.counters.read_ops == 0


@pytest.mark.parametrize("width", [*WIDTHS, 4, 64, 256, 400, 512])
@pytest.mark.parametrize("threads", [1, 3])
def test_gather_rows_equals_indexing(width: int, threads: int):
    rng = np.random.default_rng(width)
    wide = rng.integers(0, 256, (500, width + 9), np.uint8)
    ids = rng.integers(0, 500, 3000)
    workers = _core.WorkerPool(threads)
    for table in (np.ascontiguousarray(wide[:, :width]), wide[:, :width], wide[::2, :width]):
        chosen = ids % len(table)
        out = np.zeros((len(ids), width), np.uint8)
        _core.gather_rows(workers, table, chosen, out)
        np.testing.assert_array_equal(out, table[chosen])
    for bad in (500, -1):
        with pytest.raises(ArgumentError, match=f"row id {bad} at position 0"):
            _core.gather_rows(workers, wide, np.array([bad]), np.zeros((1, width + 9), np.uint8))
    with pytest.raises(ArgumentError, match="contiguous"):
        _core.gather_rows(workers, wide[::-1], ids, np.zeros((len(ids), width + 9), np.uint8))


def test_bench_runs_without_fio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(io_bench, "_ROUNDS", 2)
    result = io_bench.run(tmp_path, size_bytes=24 << 20, seconds=0.02)
    for case, other in (("random_4k", "fio"), ("sequential_1m", "fio"), ("rings_4k", "engine")):
        assert result[case]["ours"] > 0
        assert (result[case][other] is None) == (other == "fio")
        assert 0 < result[case]["cores"] < 64
    assert not list(tmp_path.iterdir())
    with pytest.raises(ArgumentError):
        io_bench.run(tmp_path, size_bytes=1000, seconds=1)
