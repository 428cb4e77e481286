"""How the GPU benchmarks measure: sizes, ways in turns, the load of the CPU, utilization and power of the GPU.

Ways are compared by the host's clock, because the CPU takes part in some of them. What is timed is a number of calls
in a row, long enough that the two waits for the GPU, at its ends, do not count; in between nothing waits that the way
itself does not.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from outcrop.bench.epoch import Log
from outcrop.bench.graphs import GraphShape
from outcrop.device.gpu import Gpu

_MOST_CALLS = 1000
_SAMPLE_MS = 100
Ways = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Sizes:
    """Says what is measured; the defaults are made for one H200 and 128 GiB of host memory.

    Attributes:
        graph: Generated, for epochs.
        table_bytes: Bytes of host memory that rows are gathered from.
        counts: Rows gathered at a time (PyTorch-Direct, Figure 6).
        row_bytes: Bytes of a row of these.
        embed_nodes, embed_edges: Size of the graph that is embedded.
        queries, negatives, dim: Sizes of a batch of embeddings (Legend, section 7.1).
        disk_rows: Rows of the file that is read through rings.
        epochs: Epochs of a training; the first is not counted.
        call_seconds: Least time of what is timed.
    """

    graph: GraphShape = field(default_factory=GraphShape)
    table_bytes: int = 16 << 30
    counts: tuple[int, ...] = (8 << 10, 32 << 10, 128 << 10, 256 << 10)
    row_bytes: tuple[int, ...] = (256, 1024, 4096, 16384)
    embed_nodes: int = 2_000_000
    embed_edges: int = 10_000_000
    queries: int = 100_000
    negatives: int = 1000
    dim: int = 100
    disk_rows: int = 500_000
    epochs: int = 4
    call_seconds: float = 0.05


@dataclass(frozen=True)
class Setup:
    """Says where, how often and what is measured. ``device`` has a number."""

    gpu: Gpu
    device: torch.device
    folder: Path
    rounds: int
    log: Log
    sizes: Sizes = field(default_factory=Sizes)

    @property
    def index(self) -> int:
        return self.device.index or 0

    def wait(self) -> None:
        """Waits until the device has done what it was given."""
        self.gpu.fence(self.gpu.stream(self.index)).synchronize()


@dataclass
class Case:
    """Says what one row of a figure came to.

    Attributes:
        parameters: What it is about.
        seconds: Median of each way.
        samples: Seconds of each round.
        figures: What follows; None: could not be measured here.
        series: Numbers along a curve.
    """

    parameters: dict[str, Any]
    seconds: dict[str, float]
    samples: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[str, float | None] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class CallTimes:
    """Holds the seconds of a call (median and all rounds) and busy cores, by way."""

    seconds: dict[str, float]
    samples: dict[str, list[float]]
    cores: dict[str, float]


def in_turns(setup: Setup, ways: Ways) -> CallTimes:
    """Times each way in each round, every second round backwards; a call to warm up and one to see how many fit.

    A way may be called again before the GPU has done what it gave it.
    """
    calls: dict[str, int] = {}
    for name, way in ways.items():
        _time(setup, way, 1)
        seconds, _ = _time(setup, way, 1)
        calls[name] = min(max(round(setup.sizes.call_seconds / max(seconds, 1e-9)), 1), _MOST_CALLS)
    samples: dict[str, list[float]] = {name: [] for name in ways}
    cores: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(setup.rounds):
        for name in ways if turn % 2 == 0 else reversed(ways):
            seconds, busy = _time(setup, ways[name], calls[name])
            samples[name].append(seconds / calls[name])
            cores[name].append(busy / seconds)
    medians = [{name: statistics.median(of) for name, of in every.items()} for every in (samples, cores)]
    return CallTimes(medians[0], samples, medians[1])


def _time(setup: Setup, way: Callable[[], Any], calls: int) -> tuple[float, float]:
    """Returns seconds of the clock, and of all cores."""
    setup.wait()
    begin, busy = time.perf_counter(), time.process_time()
    for _ in range(calls):
        way()
    setup.wait()
    return time.perf_counter() - begin, time.process_time() - busy


class Watch:
    """Samples the utilization (percent) and the power (watts) of a GPU by nvidia-smi; without it there are none."""

    def __init__(self, device: torch.device):
        self._device, self._lines = device, list[str]()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Watch:
        program = shutil.which("nvidia-smi") if self._device.type == "cuda" else None
        if program:
            query = "--query-gpu=utilization.gpu,power.draw"
            number = _nvidia_smi_number(self._device.index or 0)
            command = [program, query, "--format=csv,noheader,nounits", "-i", number, "-lms", str(_SAMPLE_MS)]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._lines = self._process.communicate()[0].splitlines()

    def samples(self) -> tuple[list[float], list[float]]:
        """Measures utilization and power, ten times a second."""
        pairs = [line.split(",") for line in self._lines if line.count(",") == 1]
        numbers = [(u.strip(), p.strip()) for u, p in pairs]
        known = [(float(u), float(p)) for u, p in numbers if _is_number(u) and _is_number(p)]
        return [u for u, _ in known], [p for _, p in known]


def mean(numbers: list[float]) -> float | None:
    return statistics.fmean(numbers) if numbers else None


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _nvidia_smi_number(index: int) -> str:
    """nvidia-smi counts all devices of the machine, torch those that this process sees."""
    visible = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    return visible[index] if index < len(visible) else str(index)
