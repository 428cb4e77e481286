"""Measures the machine: the disk under a folder, memory, training steps."""

from __future__ import annotations

import errno
import os
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.advisor import shapes
from outcrop.config import MODELS, IoConfig
from outcrop.errors import IoError
from outcrop.runtime.hardware import Disk, Hardware, HostCosts
from outcrop.runtime.machine import (
    RANDOM_BYTES,
    SEQUENTIAL_BYTES,
    ReadProbe,
    describe,
    gpu_names,
    read_rates,
)
from outcrop.runtime.pipeline import Pipeline, Stage
from outcrop.runtime.runtime import Runtime
from outcrop.store import record
from outcrop.store.address_table import AddressTable
from outcrop.store.profile import HERE, Profile, key_of, load_or_measure

_PROFILE_SIZES = {
    1 << 20: 16,
    1 << 17: 64,
    1 << 14: 512,
    RANDOM_BYTES: 2048,
}  # of requests: how many in a job
_PROFILE_FILE_BYTES = 512 << 20
_MEMORY_BYTES = 256 << 20  # several times what caches hold: what was read lies in none of them
_CACHED_EVERY = 4  # rows of a batch: what is moved in a piece is short
_LATENCY_READS = 100
_MOMENT_S, _MOMENTS = 0.05, 2  # of each kind of reading, where a training waits for a choice
_JOBS_PER_BATCH = 2  # a record is two parts


def measure_profile(
    folder: Path, *, budget_s: float = 12.0, say: Callable[[str], None] = lambda text: None
) -> Profile:
    """Measures the machine and the disk under ``folder`` in about ``budget_s`` seconds, most of it reading.

    Nothing else should be busy meanwhile: what is measured is what a training would find. ``say`` is told what comes.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        raise IoError(
            errno.EACCES,
            f"{folder} is not writable, so the disk under it cannot be measured: name another folder of that disk once "
            "(outcrop doctor --folder FOLDER), and what is measured there is kept; or name memory and mode, not auto",
        )
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
    """Returns the profile of this machine with the disk under ``folder``: kept, or read from ``path``, or measured now.

    Raises:
        FormatError: ``path`` is no profile, or of another machine or disk.
    """
    return load_or_measure(key_of(folder, describe(probe=False)), lambda: measure_profile(folder), path=path)


def _profile_disk(runtime: Runtime, path: Path, seconds: float) -> dict[str, Any]:
    begin = time.monotonic()
    _write(runtime, path, _PROFILE_FILE_BYTES)
    written = time.monotonic() - begin
    file = runtime.io.open(str(path), _core.OpenMode.read)
    probe = ReadProbe(runtime, file, _PROFILE_FILE_BYTES)
    try:
        rates = {}
        for size, per_job in _PROFILE_SIZES.items():
            whole = size == SEQUENTIAL_BYTES
            rates[size] = probe.measure(size, per_job, seconds * (2 if whole else 1), shuffle=not whole)
        latency, job_s = _latency(runtime, file)
    finally:
        runtime.io.close(file)
    return {
        "reads": tuple((size, rates[size][0]) for size in sorted(rates)),
        "latency_s": latency,
        "job_s": job_s,
        "write_bytes_per_s": _PROFILE_FILE_BYTES / written,
        "read_byte_s": rates[SEQUENTIAL_BYTES][1] / SEQUENTIAL_BYTES,
        "request_s": rates[RANDOM_BYTES][1],
    }


def _latency(runtime: Runtime, file: int) -> tuple[float, float]:
    """Times one 4 KiB read with nothing else in flight: median seconds, and CPU seconds of submitting and waiting."""
    buffer, zero = runtime.budget.empty("measure", RANDOM_BYTES), np.zeros(1, np.int64)
    length = np.full(1, RANDOM_BYTES, np.int64)
    times, cpu = [], time.process_time()
    for page in np.random.default_rng(2).integers(0, _PROFILE_FILE_BYTES // RANDOM_BYTES, _LATENCY_READS):
        begin = time.perf_counter()
        runtime.io.submit_reads(file, np.full(1, page * RANDOM_BYTES), length, buffer, zero).wait()
        times.append(time.perf_counter() - begin)
    return float(np.median(times)), (time.process_time() - cpu) / _LATENCY_READS


def _profile_memory(runtime: Runtime, row_bytes: int = 512, rounds: int = 5) -> dict[str, Any]:
    """Gives rates of moving rows in order, as assembling does, and of picking them anywhere, as caches are."""
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
    """Returns CPU seconds that an item takes to pass the stages of loading, doing nothing in them."""
    stages = [Stage(name, lambda item: item) for name in ("submit", "read", "assemble", "share", "transfer")]
    cpu = time.process_time()
    for _ in Pipeline(range(items), stages):
        pass
    return (time.process_time() - cpu) / items


def _structure_seconds(rounds: int = 9) -> float:
    """Returns CPU seconds of a byte of a batch's graph and address table, from the record to what is computed with."""
    from outcrop.advisor import steps

    graph = steps.synthetic_batch(dim=1).graph
    cached = np.arange(0, graph.num_nodes, _CACHED_EVERY, dtype=np.int32)
    encoded = record.encode(graph, (AddressTable(cached, cached),), record.id_bytes_for(1))
    times = []
    for _ in range(rounds):
        cpu = time.thread_time()
        record.decode(encoded, "a measurement")[1][0].cached_positions()
        times.append(time.thread_time() - cpu)
    return float(np.median(times)) / len(encoded)


def _profile_computing(runtime: Runtime, seconds: float) -> dict[str, Any]:
    from outcrop.advisor import steps

    batch = steps.synthetic_batch()
    fields: dict[str, Any] = {
        "steps": {
            model: steps.step_seconds([batch], shapes.reference_network(model), seconds=seconds / 2)[0]
            for model in MODELS
        },
        **steps.measure_concurrent(
            steps.training_step(batch, shapes.reference_network(MODELS[0])), runtime, seconds
        ),
    }
    if gpu_names():
        fields |= {
            "gpu_steps": {
                model: steps.step_seconds(
                    [batch], shapes.reference_network(model), seconds=seconds / 4, device="cuda"
                )[0]
                for model in MODELS
            },
            "bus_bytes_per_s": steps.bus_rate(),
            "gpu_memory_bytes": steps.gpu_memory(),
        }
    return fields


def measure_disk(folder: Path, *, size_bytes: int = 1 << 30, seconds: float = 2.0) -> dict[str, Any]:
    """Measures sequential and random read rates of the disk under ``folder``, through the engine, page cache bypassed.

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
                probe = ReadProbe(runtime, file, size_bytes)
                sequential, _ = probe.measure(SEQUENTIAL_BYTES, 64, seconds, shuffle=False)
                random, _ = probe.measure(RANDOM_BYTES, 4096, seconds, shuffle=True)
            finally:
                runtime.io.close(file)
            return {
                "sequential_bytes_per_s": sequential * SEQUENTIAL_BYTES,
                "random_ops_per_s": random,
                "backend": runtime.io.backend_name,
                "direct": _direct_works(path),
            }
    finally:
        path.unlink(missing_ok=True)


def rough_hardware(path: Path) -> Hardware | None:
    """Returns this machine with the disk as :func:`read_rates` finds it on ``path``, in a moment; None for small files.

    For choices between ways that differ by much: what the CPU takes to load is not in it.
    """
    looks = [rates for _ in range(_MOMENTS) if (rates := read_rates(path, seconds=_MOMENT_S)) is not None]
    if not looks:
        return None
    # The best of a few short looks: a disk that others use, too, may stand still for one of them.
    random, sequential = (
        max(rates[of] for rates in looks) for of in ("random_ops_per_s", "sequential_bytes_per_s")
    )
    reads = ((RANDOM_BYTES, random), (SEQUENTIAL_BYTES, sequential / SEQUENTIAL_BYTES))
    return Hardware(HERE, Disk(HERE, reads), cores=len(os.sched_getaffinity(0)))


def numpy_rates() -> tuple[float, float]:
    """Returns the operations per second of a product, and the bytes per second of a copy, that NumPy reaches here, in
    some milliseconds: of what a CPU can do an idea that does not need torch.

    Products are so small that one thread makes them, and counted for up to four cores: threads that wait for each other
    take a hundred times as long where other work has the cores.
    """
    left, values = np.ones((64, 64), np.float32), np.ones(1 << 20, np.float32)
    product, copied = np.empty_like(left), np.empty_like(values)
    products = min(timeit.repeat(lambda: np.matmul(left, left, out=product), number=16, repeat=20)) / 16
    copies = min(timeit.repeat(lambda: np.copyto(copied, values), number=1, repeat=6))
    return min(len(os.sched_getaffinity(0)), 4) * 2 * len(left) ** 3 / products, values.nbytes / copies


def _write(runtime: Runtime, path: Path, size_bytes: int) -> None:
    block = np.random.default_rng(0).integers(0, 256, 4 << 20, np.uint8)
    file = runtime.io.open(str(path), _core.OpenMode.create)
    try:
        for offset in range(0, size_bytes, len(block)):
            runtime.io.write(file, offset, block[: size_bytes - offset])
        runtime.io.drop_cache(file)
    finally:
        runtime.io.close(file)


def direct_works(folder: Path) -> bool:
    """Tells whether the file system of ``folder`` opens files past the page cache."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".outcrop-measure-") as file:
        return _direct_works(Path(file.name))


def _direct_works(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True
