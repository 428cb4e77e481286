"""Rows that kernels read from a file by commands in rings: rates, and beside gradients.

Hyperion, Figure 12: rates by the width of rows, against the same engine asked by the CPU, whose rows are then copied.
Legend, Table 9: slabs read and written, and what the bus carries; Figure 9: reading and gradients, alone and together.
"""

from __future__ import annotations

import filecmp
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch

import outcrop._core as _core
from outcrop import unified
from outcrop.bench.gpu_figures.gradients import inputs, plain
from outcrop.bench.gpu_figures.measure import CallTimes, Case, Setup, Ways, in_turns
from outcrop.bench.gpu_figures.result import Bar, Benchmark, Cases
from outcrop.config import IoConfig
from outcrop.embed import fused
from outcrop.errors import DeviceError
from outcrop.rows.rings import GpuDiskRows, RingFile, SlabRings
from outcrop.rows.rings.submitter import COMPLETING_BLOCKS
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray
from outcrop.store.manifest import ArraySpec

_WIDTHS = (512, 1024, 2048, 4096)  # 128 to 1024 floats
_BLOCK = 1 << 20
_ROWS_AT_A_TIME = 32 << 10
_STAGING_BYTES = 32 << 20
_DEPTH = 256
_MOST_BATCHES = 100  # of gradients (Legend, section 7.5)


class File:
    """Holds a file of counting int32, its rows through rings and by the engine.

    Attributes:
        row_bytes: Bytes of a row; the file is as large whatever they are.
        count: Rows of it that are read at a time.
    """

    def __init__(self, setup: Setup, runtime: Runtime, row_bytes: int):
        self._setup, self._runtime, self.row_bytes = setup, runtime, row_bytes
        size = max(setup.sizes.disk_rows * PAGE_BYTES // _BLOCK, 1) * _BLOCK
        self.path, self.num_rows = _made(setup, runtime, size), size // row_bytes
        self.count = min(_ROWS_AT_A_TIME, self.num_rows)
        spec = ArraySpec(self.path.name, "uint8", (self.num_rows, row_bytes), row_bytes, 0, size)
        array = DiskArray(runtime, self.path.parent, spec)
        self.rings = GpuDiskRows(array, runtime, staging_bytes=_STAGING_BYTES, device=str(setup.device))
        self._file = runtime.io.open(str(self.path), _core.OpenMode.read)
        self.out = torch.zeros(self.count * row_bytes, dtype=torch.uint8, device=setup.device)
        self.pinned = unified.empty(self.count * row_bytes, dtype=torch.uint8).as_subclass(torch.Tensor)
        self._random = np.random.default_rng(row_bytes)

    def ids(self) -> np.ndarray:
        return self._random.integers(0, self.num_rows, self.count, np.int64)

    def consecutive(self) -> np.ndarray:
        first = int(self._random.integers(0, self.num_rows - self.count + 1))
        return np.arange(first, first + self.count)

    def by_rings(self, ids: np.ndarray) -> torch.Tensor:
        self.rings.submit(ids, self.out).wait()
        return self.out

    def by_engine(self, ids: np.ndarray, *, copied: bool = True) -> torch.Tensor:
        """Reads with the CPU to pinned memory, a request for each row, and copies to the device."""
        self._setup.wait()  # the copy before has left ``pinned``
        lengths = np.full(len(ids), self.row_bytes, np.int64)
        at = np.arange(len(ids)) * self.row_bytes
        self._runtime.io.submit_reads(
            self._file, ids * self.row_bytes, lengths, self.pinned.numpy(), at
        ).wait()
        return self.out.copy_(self.pinned, non_blocking=True) if copied else self.pinned

    def check(self) -> None:
        """Raises DeviceError where either reads other rows than were asked for."""
        ids = self.ids()
        words = self.row_bytes // 4
        expected = (ids[:, None] * words + np.arange(words)).astype(np.int32).view(np.uint8).reshape(-1)
        for way in (self.by_rings, self.by_engine):
            self.out.zero_()
            if not np.array_equal(way(ids).cpu().numpy(), expected):
                raise DeviceError(
                    f"{way.__name__} read other rows of {self.row_bytes} bytes than were asked for"
                )

    def close(self) -> None:
        self._setup.wait()
        self.rings.close()


def _made(setup: Setup, runtime: Runtime, size: int) -> Path:
    path = setup.folder / f"rows-{size}.bin"
    if path.is_file() and path.stat().st_size == size:
        return path
    setup.log(f"writing {size:,} bytes to read")
    unfinished = path.with_suffix(".making")
    file = runtime.io.open(str(unfinished), _core.OpenMode.create)
    runtime.io.resize(file, size)
    for begin in range(0, size, 64 * _BLOCK):
        end = min(begin + 64 * _BLOCK, size)
        runtime.io.write(file, begin, np.arange(begin // 4, end // 4).astype(np.int32).view(np.uint8))
    runtime.io.drop_cache(file)
    runtime.io.close(file)
    return unfinished.replace(path)


@contextmanager
def _opened(setup: Setup, row_bytes: int) -> Iterator[File]:
    setup.folder.mkdir(parents=True, exist_ok=True)
    with Runtime(io=IoConfig(depth=_DEPTH)) as runtime:
        file = File(setup, runtime, row_bytes)
        try:
            yield file
        finally:
            file.close()
            del file


def _width(setup: Setup, row_bytes: int) -> Case:
    with _opened(setup, row_bytes) as file:
        file.check()
        ways = {
            "rings": lambda: file.by_rings(file.ids()),
            "engine": lambda: file.by_engine(file.ids()),
            "file": lambda: file.by_engine(file.ids(), copied=False),
        }
        timed = in_turns(setup, ways)
        size = file.count * row_bytes
    return Case(
        {
            "row_bytes": row_bytes,
            "rows": size // row_bytes,
            "submitting_blocks": 1,
            "most_completing_blocks": COMPLETING_BLOCKS,
        },
        timed.seconds,
        timed.samples,
        {
            **{f"{way}_gigabytes_per_s": size / s / 1e9 for way, s in timed.seconds.items()},
            **{f"{way}_cores": busy for way, busy in timed.cores.items()},
            "of_engine": timed.seconds["engine"] / timed.seconds["rings"],
            "of_file": timed.seconds["file"] / timed.seconds["rings"],
        },
    )


def _widths(setup: Setup) -> Cases:
    for row_bytes in _WIDTHS:
        yield f"{row_bytes // 4} floats", partial(_width, setup, row_bytes)


def _saturates(cases: dict[str, Case]) -> list[Bar]:
    widest = max(cases.values(), key=lambda case: case.parameters["row_bytes"])
    what = "one submitting block against what the file gives the engine"
    return [Bar(what, widest.figures["of_file"], least=0.95)]


def _bandwidth(setup: Setup, access: str) -> Case:
    with _opened(setup, PAGE_BYTES) as file:
        file.check()
        timed = (_reading if access == "read" else _writing)(setup, file)
        size = file.out.numel()
    figures: dict[str, float | None] = {
        f"{way}_gigabytes_per_s": size / s / 1e9 for way, s in timed.seconds.items()
    }
    return Case({"access": access, "bytes": size}, timed.seconds, timed.samples, figures)


@contextmanager
def _slabs(setup: Setup, path: Path, size: int, slab: int) -> Iterator[SlabRings]:
    """Returns the slabs of the file at ``path``, of ``size`` bytes in all."""
    with Runtime(io=IoConfig(depth=_DEPTH)) as runtime:
        number = runtime.io.open(str(path), _core.OpenMode.pages)
        runtime.io.resize(number, size)
        rings = SlabRings(
            RingFile(path, number, size // slab, slab, slab), runtime, str(setup.device), _STAGING_BYTES
        )
        try:
            yield rings
        finally:
            rings.close()
            runtime.io.close(number)


def _reading(setup: Setup, file: File) -> CallTimes:
    slab = file.out.numel()
    with _slabs(setup, file.path, file.num_rows * PAGE_BYTES, slab) as rings:
        file.out.zero_()
        rings.swap([file.out], [None], [0]).wait()
        if not torch.equal(file.out.cpu(), file.by_engine(np.arange(file.count)).cpu()):
            raise DeviceError("rings read another slab than the engine")
        return in_turns(
            setup,
            {
                "rings": lambda: rings.swap([file.out], [None], [0]).wait(),
                "rows by rings": lambda: file.by_rings(file.consecutive()),
                "by the host": lambda: file.by_engine(file.consecutive()),
                "bus": lambda: file.out.copy_(file.pinned, non_blocking=True),
            },
        )


def _writing(setup: Setup, file: File) -> CallTimes:
    """Writes to files of their own."""
    slab, here, there = file.out.numel(), setup.folder / "by-host.bin", setup.folder / "by-rings.bin"
    with Runtime(io=IoConfig(depth=_DEPTH)) as runtime, _slabs(setup, there, slab, slab) as rings:
        number = runtime.io.open(str(here), _core.OpenMode.create)
        runtime.io.resize(number, slab)

        def store() -> None:
            file.pinned.copy_(file.out, non_blocking=True)
            setup.wait()
            runtime.io.write(number, 0, file.pinned.numpy())

        ways: Ways = {
            "rings": lambda: rings.swap([file.out], [0], [None]).wait(),
            "by the host": store,
            "bus": lambda: file.pinned.copy_(file.out, non_blocking=True),
        }
        try:
            timed = in_turns(setup, ways)
        finally:
            runtime.io.close(number)
    same = filecmp.cmp(here, there, shallow=False)
    here.unlink()
    there.unlink()
    if not same:
        raise DeviceError("rings wrote another slab than the host")
    return timed


def _accesses(setup: Setup) -> Cases:
    for access in ("read", "write"):
        yield access, partial(_bandwidth, setup, access)


def _together(setup: Setup) -> Case:
    given = inputs(setup, setup.sizes.queries)
    gradients = partial(fused.softmax if fused.usable(setup.device) else plain, *given)
    with _opened(setup, PAGE_BYTES) as file:
        file.check()
        # On the stream of the gradients, rows would be read after them: what they are read to waits for its stream.
        stream = setup.gpu.new_stream(setup.index)

        def read() -> None:
            with setup.gpu.on_stream(stream):
                file.by_rings(file.ids())
            setup.gpu.fence(stream).synchronize()

        def compute(batches: int) -> None:
            for _ in range(batches):
                gradients()

        def both() -> None:
            reading = threading.Thread(target=read)
            reading.start()
            compute(batches)
            reading.join()

        alone = in_turns(setup, {"reading": read, "gradients": gradients}).seconds
        batches = min(max(round(alone["reading"] / alone["gradients"]), 1), _MOST_BATCHES)
        timed = in_turns(setup, {"reading": read, "gradients": partial(compute, batches), "both": both})
    a, b, together = (timed.seconds[way] for way in ("reading", "gradients", "both"))
    return Case(
        {"batches": batches, "queries": setup.sizes.queries},
        timed.seconds,
        timed.samples,
        {"overlap": (a + b - together) / min(a, b), "against_longer": together / max(a, b)},
    )


def _timeline(setup: Setup) -> Cases:
    yield "reading and gradients", partial(_together, setup)


def _overlap(cases: dict[str, Case]) -> list[Bar]:
    (case,) = cases.values()
    return [Bar("share of the shorter that the longer hides", case.figures["overlap"], least=0.9)]


BENCHMARKS = {
    "hyperion-figure-12": Benchmark("Hyperion, Figure 12", _widths, _saturates),
    "legend-table-9": Benchmark("Legend, Table 9", _accesses),
    "legend-figure-9": Benchmark("Legend, Figure 9", _timeline, _overlap),
}
