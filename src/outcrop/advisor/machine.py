"""The machine profile: what is there, and how fast the disk under a folder reads."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

import outcrop
from outcrop import _core
from outcrop.config import IoConfig
from outcrop.errors import OutcropError
from outcrop.runtime import Runtime
from outcrop.store.graph import Graph

_SEQUENTIAL_BYTES = 1 << 20
_RANDOM_BYTES = 4096
_RANDOM_SPAN_BYTES = 1 << 30  # of a file that was there: a list of all pages of a large one would take memory


def describe(*, probe: bool = True) -> dict[str, Any]:
    """Processor, memory, kernel, versions, devices; measures nothing.

    Args:
        probe: Look for devices (which loads torch) and for the I/O engine too.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions: dict[str, str | None] = {"outcrop": outcrop.__version__}
    for package in ("torch", "torch-geometric", "numpy", "pyarrow"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    about = {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
    }
    return about | ({"io_backend": _backend(), "gpus": _gpus()} if probe else {})


def measure_disk(folder: Path, *, size_bytes: int = 1 << 30, seconds: float = 2.0) -> dict[str, Any]:
    """Sequential and random read rates of the disk under ``folder``, through the engine, page cache bypassed.

    Writes a temporary file of ``size_bytes`` there and removes it.

    Returns:
        ``sequential_bytes_per_s`` (1 MiB requests), ``random_ops_per_s`` (4 KiB), ``direct``: whether O_DIRECT works.
    """
    path = folder / f".outcrop-measure-{os.getpid()}"
    try:
        with Runtime(io=IoConfig()) as runtime:
            _write(runtime, path, size_bytes)
            file = runtime.io.open(str(path), _core.OpenMode.read)
            try:
                sequential = _rate(runtime, file, size_bytes, _SEQUENTIAL_BYTES, 64, seconds, shuffle=False)
                random = _rate(runtime, file, size_bytes, _RANDOM_BYTES, 4096, seconds, shuffle=True)
            finally:
                runtime.io.close(file)
            return {
                "sequential_bytes_per_s": sequential * _SEQUENTIAL_BYTES,
                "random_ops_per_s": random,
                "backend": runtime.io.backend_name,
                "direct": _direct_works(path),
            }
    finally:
        path.unlink(missing_ok=True)


def read_rates(path: Path, *, seconds: float = 0.3) -> dict[str, float] | None:
    """What the disk under ``path`` delivers, measured on that file for twice ``seconds``; None for files below 1 MiB.

    Returns:
        ``sequential_bytes_per_s`` (1 MiB requests), ``random_ops_per_s`` (4 KiB requests).
    """
    sequential = sequential_rate(path, seconds=seconds)
    if not sequential:
        return None
    with Runtime() as runtime:
        file = runtime.io.open(str(path), _core.OpenMode.read)
        try:
            size = min(runtime.io.size_bytes(file), _RANDOM_SPAN_BYTES)
            random = _rate(runtime, file, size, _RANDOM_BYTES, 256, seconds, shuffle=True)
        finally:
            runtime.io.close(file)
    return {"sequential_bytes_per_s": sequential, "random_ops_per_s": random}


def largest_file(run: Path, graph: Graph) -> Path:
    """What the disk under a run is measured by: reading what is there needs no room of its own."""
    found = [*(run / "pack").glob("*.bin"), graph.path / graph.spec("features").file]
    return max((path for path in found if path.is_file()), key=lambda path: path.stat().st_size)


def sequential_rate(path: Path, *, seconds: float = 0.3, io: IoConfig | None = None) -> float:
    """Bytes per second at which ``path`` is read in 1 MiB requests; 0 for files below 1 MiB. Reads for ``seconds``."""
    with Runtime(io=io) as runtime:
        file = runtime.io.open(str(path), _core.OpenMode.read)
        try:
            size = runtime.io.size_bytes(file)
            if size < _SEQUENTIAL_BYTES:
                return 0.0
            per_job = min(16, size // _SEQUENTIAL_BYTES)
            return _SEQUENTIAL_BYTES * _rate(
                runtime, file, size, _SEQUENTIAL_BYTES, per_job, seconds, shuffle=False
            )
        finally:
            runtime.io.close(file)


def _write(runtime: Runtime, path: Path, size_bytes: int) -> None:
    block = np.random.default_rng(0).integers(0, 256, 4 << 20, np.uint8)
    file = runtime.io.open(str(path), _core.OpenMode.create)
    try:
        for offset in range(0, size_bytes, len(block)):
            runtime.io.write(file, offset, block[: size_bytes - offset])
        runtime.io.drop_cache(file)
    finally:
        runtime.io.close(file)


def _rate(
    runtime: Runtime, file: int, size_bytes: int, request: int, per_job: int, seconds: float, *, shuffle: bool
) -> float:
    """Requests per second with two jobs under way at any time."""
    starts = np.arange(size_bytes // request, dtype=np.int64) * request
    if shuffle:
        np.random.default_rng(1).shuffle(starts)
    buffers = [runtime.budget.empty("measure", per_job * request) for _ in range(2)]
    lengths, positions = np.full(per_job, request, np.int64), np.arange(per_job, dtype=np.int64) * request
    jobs: list[Any] = [None, None]
    done, begun, turn = 0, time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        if jobs[turn % 2] is not None:
            jobs[turn % 2].wait()
            done += per_job
        offsets = np.ascontiguousarray(
            np.take(starts, np.arange(turn * per_job, (turn + 1) * per_job), mode="wrap")
        )
        jobs[turn % 2] = runtime.io.submit_reads(file, offsets, lengths, buffers[turn % 2], positions)
        turn += 1
    for job in jobs:
        if job is not None:
            job.wait()
            done += per_job
    return done / (time.monotonic() - begun)


def _direct_works(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def _backend() -> str:
    try:
        with Runtime() as runtime:
            return runtime.io.backend_name
    except OutcropError as error:
        return f"none ({error})"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
