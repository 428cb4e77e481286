"""The machine: what is there, and how fast the disk under a file reads."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import outcrop
import outcrop._core as _core
from outcrop.config import IoConfig
from outcrop.errors import OutcropError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime

SEQUENTIAL_BYTES, RANDOM_BYTES = 1 << 20, PAGE_BYTES  # of a request
_RANDOM_SPAN_BYTES = 1 << 30  # of a file that was there: a list of all pages of a large one would take memory


def describe(*, probe: bool = True) -> dict[str, Any]:
    """Describes processor, memory, kernel, versions, devices; measures nothing.

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
    return about | ({"io_backend": _backend(), "gpus": gpu_names()} if probe else {})


def read_rates(path: Path, *, seconds: float = 0.3) -> dict[str, float] | None:
    """Measures what the disk under ``path`` delivers on that file, for twice ``seconds``; None for files below 1 MiB.

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
            random, _ = ReadProbe(runtime, file, size).measure(RANDOM_BYTES, 256, seconds, shuffle=True)
        finally:
            runtime.io.close(file)
    return {"sequential_bytes_per_s": sequential, "random_ops_per_s": random}


def sequential_rate(path: Path, *, seconds: float = 0.3, io: IoConfig | None = None) -> float:
    """Measures the bytes per second at which ``path`` is read in 1 MiB requests, for ``seconds``; 0 for files below 1
    MiB.
    """
    with Runtime(io=io) as runtime:
        file = runtime.io.open(str(path), _core.OpenMode.read)
        try:
            size = runtime.io.size_bytes(file)
            if size < SEQUENTIAL_BYTES:
                return 0.0
            per_job = min(16, size // SEQUENTIAL_BYTES)
            probe = ReadProbe(runtime, file, size)
            return SEQUENTIAL_BYTES * probe.measure(SEQUENTIAL_BYTES, per_job, seconds, shuffle=False)[0]
        finally:
            runtime.io.close(file)


@dataclass(frozen=True)
class ReadProbe:
    """Reads the first ``size_bytes`` of ``file``, which is open in ``runtime``, to measure the disk that it lies on."""

    runtime: Runtime
    file: int
    size_bytes: int

    def measure(self, request: int, per_job: int, seconds: float, *, shuffle: bool) -> tuple[float, float]:
        """Reads for ``seconds``, with two jobs under way at any time.

        Args:
            request: Bytes of a request.
            per_job: Requests of a job.
            shuffle: Whether requests come in any order, not one after the other.

        Returns:
            Requests per second, and CPU seconds of the process for each.
        """
        cpu = time.process_time()
        starts = np.arange(self.size_bytes // request, dtype=np.int64) * request
        if shuffle:
            np.random.default_rng(1).shuffle(starts)
        buffers = [self.runtime.budget.empty("measure", per_job * request) for _ in range(2)]
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
            jobs[turn % 2] = self.runtime.io.submit_reads(
                self.file, offsets, lengths, buffers[turn % 2], positions
            )
            turn += 1
        for job in jobs:
            if job is not None:
                job.wait()
                done += per_job
        return done / (time.monotonic() - begun), (time.process_time() - cpu) / done


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


def gpu_names() -> list[str]:
    """Names of the GPUs that torch sees."""
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
