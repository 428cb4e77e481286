"""The I/O engine against fio on one file: 4 KiB random reads and 1 MiB sequential reads, past the page cache.

Both sides use io_uring with O_DIRECT, registered files and the same depth, on the same file, and take turns; what
is reported is the median of the rounds. fio is optional: without it only the engine is measured. The same random
reads through queue pairs (outcrop.rows.rings) are compared with the engine asked directly.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.config import IoConfig
from outcrop.errors import ArgumentError
from outcrop.rows.rings import GpuDiskRows
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import UNLIMITED, Runtime
from outcrop.store.arrays import DiskArray
from outcrop.store.manifest import ArraySpec

BLOCK_BYTES = 1 << 20
RANDOM_DEPTH = 128
SEQUENTIAL_DEPTH = 16
_ROUNDS = 5
_JOB_READS = 8192  # random reads per job
_JOB_BLOCKS = 8  # blocks per sequential job
_JOBS = 3  # jobs under way at a time
_STAGING_BYTES = 8 << 20


def run(folder: Path, *, size_bytes: int, seconds: float) -> dict[str, Any]:
    """Measures the engine and, where it is installed, fio, on a file made for it in ``folder``.

    Args:
        folder: Folder on the disk to measure; the file is removed afterwards.
        size_bytes: Size of the file, a multiple of 1 MiB; well above the disk's own cache.
        seconds: Length of one measurement; there are 5 rounds of up to 6 measurements.

    Returns:
        ``{"backend", "size_bytes", "random_4k": case, "sequential_1m": case, "rings_4k": case}`` where a case is
        ``{"ours", "fio", "ratio", "cores", "rounds"}``: median reads/s (random) or bytes/s (sequential); ``fio`` and
        ``ratio`` are None without fio; ``cores`` is how many ours keeps busy; ``rounds`` are the pairs as measured.
        ``rings_4k`` has the rings, without a GPU, as ``ours``, and ``engine`` for ``fio``.

    Raises:
        ArgumentError: If ``size_bytes`` or ``seconds`` cannot be used.
        IoError: If the disk fails.
    """
    if size_bytes < _JOBS * _JOB_BLOCKS * BLOCK_BYTES or size_bytes % BLOCK_BYTES:
        raise ArgumentError(f"file size {size_bytes} is not a multiple of 1 MiB of at least 24 MiB")
    if seconds <= 0:
        raise ArgumentError(f"measuring for {seconds} seconds measures nothing")
    path = folder / "outcrop-io-bench.bin"
    try:
        _make_file(path, size_bytes)
        result: dict[str, Any] = {"backend": _engine(1).backend_name, "size_bytes": size_bytes}
        result["random_4k"] = _case(
            lambda: _ours_random(path, size_bytes, seconds),
            lambda: _fio(path, size_bytes, seconds, "randread", PAGE_BYTES, RANDOM_DEPTH, "iops"),
        )
        result["sequential_1m"] = _case(
            lambda: _ours_sequential(path, size_bytes, seconds),
            lambda: _fio(path, size_bytes, seconds, "read", BLOCK_BYTES, SEQUENTIAL_DEPTH, "bw_bytes"),
        )
        result["rings_4k"] = _case(
            lambda: _rings_random(path, size_bytes, seconds),
            lambda: _ours_random(path, size_bytes, seconds),
            "engine",
        )
    finally:
        path.unlink(missing_ok=True)
    return result


def _case(ours: Callable[[], float], other: Callable[[], float | None], name: str = "fio") -> dict[str, Any]:
    rounds, cores = [], []
    for _ in range(_ROUNDS):
        begin, cpu = time.perf_counter(), time.process_time()
        rate = ours()
        cores.append((time.process_time() - cpu) / (time.perf_counter() - begin))
        rounds.append((rate, other()))
    median_ours = statistics.median(a for a, _ in rounds)
    others = [b for _, b in rounds if b is not None]
    median_other = statistics.median(others) if others else None
    ratio = median_ours / median_other if median_other else None
    found = {"ours": median_ours, name: median_other, "ratio": ratio}
    return found | {"cores": statistics.median(cores), "rounds": rounds}


def _engine(depth: int) -> _core.BlockIo:
    options = _core.IoOptions()
    options.depth = depth
    options.max_request_bytes = BLOCK_BYTES
    return _core.BlockIo.create(options, _core.Budget.create(UNLIMITED))


def _make_file(path: Path, size_bytes: int) -> None:
    """Writes random bytes, so that nothing below can store or read them faster than any other data."""
    io = _engine(SEQUENTIAL_DEPTH)
    block = np.random.default_rng(0).integers(0, 256, 8 * BLOCK_BYTES, np.uint8)
    file = io.open(str(path), _core.OpenMode.create)
    io.resize(file, size_bytes)
    for offset in range(0, size_bytes, len(block)):
        io.write(file, offset, block[: size_bytes - offset])
    io.drop_cache(file)
    io.close(file)


def _keep_busy(
    io: _core.BlockIo,
    file: int,
    seconds: float,
    job_bytes: int,
    jobs: Iterator[tuple[np.ndarray, np.ndarray]],
) -> tuple[int, float]:
    """Keeps several jobs of (offsets, lengths) under way for ``seconds``; bytes read and seconds taken."""
    memory = _core.Budget.create(UNLIMITED).empty("bench", _JOBS * job_bytes)
    memory[:] = 0  # its pages are there before the clock runs
    free = deque(memory[i * job_bytes : (i + 1) * job_bytes] for i in range(_JOBS))
    running: deque[tuple[_core.IoJob, np.ndarray]] = deque()
    before = io.counters.read_bytes
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        if not free:
            job, part = running.popleft()
            job.wait()
            free.append(part)
        part = free.popleft()
        offsets, lengths = next(jobs)
        positions = np.cumsum(lengths) - lengths
        running.append((io.submit_reads(file, offsets, lengths, part, positions), part))
    for job, _ in running:
        job.wait()
    return io.counters.read_bytes - before, time.perf_counter() - start


def _ours_random(path: Path, size_bytes: int, seconds: float) -> float:
    io = _engine(RANDOM_DEPTH)
    file = io.open(str(path), _core.OpenMode.read)
    rng = np.random.default_rng(time.time_ns())
    lengths = np.full(_JOB_READS, PAGE_BYTES, np.int64)

    def jobs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        while True:
            yield rng.integers(0, size_bytes // PAGE_BYTES, _JOB_READS, np.int64) * PAGE_BYTES, lengths

    count, taken = _keep_busy(io, file, seconds, _JOB_READS * PAGE_BYTES, jobs())
    return count / PAGE_BYTES / taken


def _rings_random(path: Path, size_bytes: int, seconds: float) -> float:
    pages = size_bytes // PAGE_BYTES
    spec = ArraySpec(path.name, "uint8", (pages, PAGE_BYTES), PAGE_BYTES, 0, size_bytes)
    rng, out = np.random.default_rng(time.time_ns()), np.zeros(_JOB_READS * PAGE_BYTES, np.uint8)
    with Runtime(io=IoConfig(depth=RANDOM_DEPTH)) as runtime:
        rows = GpuDiskRows(DiskArray(runtime, path.parent, spec), runtime, staging_bytes=_STAGING_BYTES)
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            rows.read_rows(rng.integers(0, pages, _JOB_READS, np.int64), out)
            count += _JOB_READS
        taken = time.perf_counter() - start
        rows.close()
    return count / taken


def _ours_sequential(path: Path, size_bytes: int, seconds: float) -> float:
    io = _engine(SEQUENTIAL_DEPTH)
    file = io.open(str(path), _core.OpenMode.read)
    lengths = np.full(_JOB_BLOCKS, BLOCK_BYTES, np.int64)

    def jobs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        at = 0
        while True:
            yield (at + np.arange(_JOB_BLOCKS)) * BLOCK_BYTES % size_bytes, lengths
            at += _JOB_BLOCKS

    count, taken = _keep_busy(io, file, seconds, _JOB_BLOCKS * BLOCK_BYTES, jobs())
    return count / taken


def _fio(
    path: Path, size_bytes: int, seconds: float, pattern: str, block: int, depth: int, key: str
) -> float | None:
    fio = shutil.which("fio")
    if fio is None:
        return None
    command = [
        fio,
        "--name=outcrop",
        f"--filename={path}",
        "--ioengine=io_uring",
        "--direct=1",
        "--registerfiles=1",
        f"--rw={pattern}",
        f"--bs={block}",
        f"--iodepth={depth}",
        f"--size={size_bytes}",
        "--time_based",
        f"--runtime={round(seconds * 1000)}ms",
        "--norandommap",
        "--randrepeat=0",
        "--output-format=json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60)
    return float(json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"][key])
