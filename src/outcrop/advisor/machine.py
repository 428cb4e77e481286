"""The machine profile: what is there, and how fast the disk under a folder reads."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import outcrop
from outcrop import _core
from outcrop.advisor.cost import Disk, Hardware, HostCosts
from outcrop.advisor.profile import HERE, Profile, key_of, settle
from outcrop.config import IoConfig
from outcrop.errors import OutcropError
from outcrop.flow import Pipeline, Stage
from outcrop.runtime import Runtime
from outcrop.store import record
from outcrop.store.graph import Graph

_SEQUENTIAL_BYTES = 1 << 20
_RANDOM_BYTES = 4096
_PROFILE_SIZES = {
    1 << 20: 16,
    1 << 17: 64,
    1 << 14: 512,
    _RANDOM_BYTES: 2048,
}  # of requests: how many in a job
_PROFILE_FILE_BYTES = 512 << 20
_MEMORY_BYTES = 256 << 20  # several times what caches hold: what was read lies in none of them
_CACHED_EVERY = 4  # rows of a batch: what is moved in a piece is short
_LATENCY_READS = 100
_JOBS_PER_BATCH = 2  # a record is two parts
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


def measure_profile(
    folder: Path, *, budget_s: float = 12.0, say: Callable[[str], None] = lambda text: None
) -> Profile:
    """Measures the machine and the disk under ``folder`` in about ``budget_s`` seconds, most of it reading.

    Nothing else should be busy meanwhile: what is measured is what a training would find. ``say`` is told what comes.
    """
    begun, about = time.monotonic(), describe()
    path = folder / f".outcrop-measure-{os.getpid()}"
    try:
        with Runtime() as runtime:
            say(f"measuring the disk under {folder.resolve()}")
            disk = _profile_disk(runtime, path, budget_s / 16)
            say("measuring memory")
            memory = _profile_memory(runtime)
            say("measuring training steps")
            computing = _profile_computing(runtime, budget_s / 12)
    finally:
        path.unlink(missing_ok=True)
    host = HostCosts(
        read_byte_s=disk.pop("read_byte_s"),
        request_s=disk.pop("request_s"),
        copy_byte_s=memory.pop("copy_byte_s"),
        gather_byte_s=memory.pop("gather_byte_s"),
        structure_byte_s=_structure_seconds(),
        batch_s=_pipeline_seconds() + _JOBS_PER_BATCH * disk.pop("job_s"),
        stall=computing.pop("stall"),
        stretch=computing.pop("stretch"),
    )
    return Profile(
        key=key_of(folder, about),
        cores=about["cores"],
        memory_bytes=about["memory_bytes"],
        host=host,
        measured_at=time.time(),
        seconds=time.monotonic() - begun,
        **disk,
        **memory,
        **computing,
    )


def profile_of(folder: Path, path: Path | None = None) -> Profile:
    """The profile of this machine with the disk under ``folder``: kept, or read from ``path``, or measured now.

    Raises:
        FormatError: ``path`` is no profile, or of another machine or disk.
    """
    return settle(key_of(folder, describe(probe=False)), lambda: measure_profile(folder), path=path)


def _profile_disk(runtime: Runtime, path: Path, seconds: float) -> dict[str, Any]:
    begin = time.monotonic()
    _write(runtime, path, _PROFILE_FILE_BYTES)
    written = time.monotonic() - begin
    file = runtime.io.open(str(path), _core.OpenMode.read)
    try:
        found = {}
        for size, per_job in _PROFILE_SIZES.items():
            whole = size == _SEQUENTIAL_BYTES
            found[size] = _reads(
                runtime, file, _PROFILE_FILE_BYTES, size, per_job if not whole else 16, seconds * (2 if whole else 1),
                shuffle=not whole,
            )  # fmt: skip
        latency, job_s = _latency(runtime, file)
    finally:
        runtime.io.close(file)
    return {
        "reads": tuple((size, found[size][0]) for size in sorted(found)),
        "latency_s": latency,
        "job_s": job_s,
        "write_bytes_per_s": _PROFILE_FILE_BYTES / written,
        "read_byte_s": found[_SEQUENTIAL_BYTES][1] / _SEQUENTIAL_BYTES,
        "request_s": found[_RANDOM_BYTES][1],
    }


def _latency(runtime: Runtime, file: int) -> tuple[float, float]:
    """Of one 4 KiB read with nothing else in flight: median seconds, and CPU seconds of submitting and waiting."""
    buffer, zero = runtime.budget.empty("measure", _RANDOM_BYTES), np.zeros(1, np.int64)
    length = np.full(1, _RANDOM_BYTES, np.int64)
    times, cpu = [], time.process_time()
    for page in np.random.default_rng(2).integers(0, _PROFILE_FILE_BYTES // _RANDOM_BYTES, _LATENCY_READS):
        begin = time.perf_counter()
        runtime.io.submit_reads(file, np.full(1, page * _RANDOM_BYTES), length, buffer, zero).wait()
        times.append(time.perf_counter() - begin)
    return float(np.median(times)), (time.process_time() - cpu) / _LATENCY_READS


def _profile_memory(runtime: Runtime, row_bytes: int = 512, rounds: int = 5) -> dict[str, Any]:
    """Rates of moving rows in order, as assembling does, and of picking them from anywhere, as caches are read."""
    rows = _MEMORY_BYTES // row_bytes
    table = runtime.budget.empty("measure", _MEMORY_BYTES)
    out = runtime.budget.empty("measure", _MEMORY_BYTES)
    table[:], out[:] = 1, 1
    ids = np.random.default_rng(3).integers(0, rows, rows)
    cached = np.arange(0, rows, _CACHED_EVERY, dtype=np.int64)
    # A cache fills the gaps of a batch: in the order of the batch, from anywhere in the cache, in one thread.
    gaps = np.arange(rows // 2, dtype=np.int32) * 2
    held = np.random.default_rng(4).integers(0, rows, len(gaps)).astype(np.int32)

    def fill() -> None:
        _core.fill_rows(out, rows, row_bytes, gaps, held, table, row_bytes)

    costs: dict[str, Any] = {}
    for name, move in (
        ("copy", lambda: _core.expand_rows(runtime.workers, out, rows, row_bytes, cached)),
        (
            "gather",
            lambda: _core.gather_rows(
                runtime.workers, table.reshape(rows, row_bytes), ids, out.reshape(rows, row_bytes)
            ),
        ),
    ):
        walls, cpus = [], []
        for _ in range(rounds):
            begin, cpu = time.perf_counter(), time.process_time()
            move()
            walls.append(time.perf_counter() - begin)
            cpus.append(time.process_time() - cpu)
        costs[f"{name}_bytes_per_s"] = _MEMORY_BYTES / float(np.median(walls))
        costs[f"{name}_byte_s"] = float(np.median(cpus)) / _MEMORY_BYTES
    cpus = []
    for _ in range(rounds):
        cpu = time.process_time()
        fill()
        cpus.append(time.process_time() - cpu)
    costs["gather_byte_s"] = float(np.median(cpus)) / (len(gaps) * row_bytes)
    return costs


def _pipeline_seconds(items: int = 200) -> float:
    """CPU seconds that an item takes to pass the stages of loading, doing nothing in them."""
    stages = [Stage(name, lambda item: item) for name in ("submit", "read", "assemble", "share", "transfer")]
    cpu = time.process_time()
    for _ in Pipeline(range(items), stages):
        pass
    return (time.process_time() - cpu) / items


def _structure_seconds(rounds: int = 9) -> float:
    """CPU seconds of a byte of a batch's graph and address table, from the record to what is computed with."""
    from outcrop.advisor import steps

    graph = steps.synthetic_batch(dim=1).graph
    cached = np.arange(0, graph.num_nodes, _CACHED_EVERY, dtype=np.int32)
    encoded = record.encode(graph, record.AddressTable(cached, cached), record.id_bytes_for(1))
    times = []
    for _ in range(rounds):
        cpu = time.thread_time()
        record.decode(encoded, "a measurement")[1].cached_positions()
        times.append(time.thread_time() - cpu)
    return float(np.median(times)) / len(encoded)


def _profile_computing(runtime: Runtime, seconds: float) -> dict[str, Any]:
    from outcrop.advisor import steps

    batch = steps.synthetic_batch()
    found: dict[str, Any] = {
        "steps": {
            model: steps.step_seconds([batch], model, None, steps.CLASSES, seconds=seconds / 2)[0]
            for model in ("sage", "gcn", "gat")
        },
        **steps.beside(steps.training_step(batch), runtime, seconds),
    }
    if _gpus():
        found |= {
            "gpu_steps": {
                model: steps.step_seconds(
                    [batch], model, None, steps.CLASSES, seconds=seconds / 4, device="cuda"
                )[0]
                for model in ("sage", "gcn", "gat")
            },
            "bus_bytes_per_s": steps.bus_rate(),
            "gpu_memory_bytes": steps.gpu_memory(),
        }
    return found


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


def rough_hardware(path: Path) -> Hardware | None:
    """This machine with the disk as :func:`read_rates` finds it on ``path``, in half a second; None for small files.

    For choices between ways that differ by much: what the CPU takes to load is not in it.
    """
    rates = read_rates(path)
    if rates is None:
        return None
    reads = (
        (_RANDOM_BYTES, rates["random_ops_per_s"]),
        (_SEQUENTIAL_BYTES, rates["sequential_bytes_per_s"] / _SEQUENTIAL_BYTES),
    )
    return Hardware(HERE, Disk(HERE, reads), cores=len(os.sched_getaffinity(0)))


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
    return _reads(runtime, file, size_bytes, request, per_job, seconds, shuffle=shuffle)[0]


def _reads(
    runtime: Runtime, file: int, size_bytes: int, request: int, per_job: int, seconds: float, *, shuffle: bool
) -> tuple[float, float]:
    """Requests per second, and CPU seconds of the process for each."""
    cpu = time.process_time()
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
    return done / (time.monotonic() - begun), (time.process_time() - cpu) / done


def direct_works(folder: Path) -> bool:
    """Whether the file system of ``folder`` opens files past the page cache."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".outcrop-measure-") as file:
        return _direct_works(Path(file.name))


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
