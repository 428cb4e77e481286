"""Benchmark ``gpu``: figures of PyTorch-Direct, Legend, Hyperion and DiskGNN on a GPU (docs/gpu-benchmarks.md).

Each has a name (names.py) and a JSON of the same schema (result.py); measure.py has what they share. Where there is no
GPU they are refused.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from outcrop.bench.epoch import Log
from outcrop.bench.gpu_figures.measure import Setup, Sizes
from outcrop.bench.gpu_figures.names import NAMES
from outcrop.bench.gpu_figures.result import Benchmark, run_cases, validate
from outcrop.device import resolve
from outcrop.device.gpu import gpu_of
from outcrop.errors import ArgumentError, DeviceError

__all__ = ["NAMES", "Benchmark", "Sizes", "benchmark", "run", "validate"]


def benchmark(name: str | None) -> Benchmark:
    """Returns the benchmark of this name.

    Raises:
        ArgumentError: There is none.
    """
    if name not in NAMES:
        what = "bench gpu needs --name" if name is None else f"GPU benchmark {name!r} is unknown"
        raise ArgumentError(f"{what}; known: {', '.join(NAMES)}")
    return importlib.import_module(f"{__name__}.{NAMES[name]}").BENCHMARKS[name]


def run(
    name: str | None,
    folder: Path,
    rounds: int,
    log: Log,
    *,
    sizes: Sizes | None = None,
    device_name: str = "cuda",
    path: Path | None = None,
) -> dict[str, Any]:
    """Measures the benchmark ``name``.

    Args:
        folder: Where graphs and runs are kept.
        rounds: Times that each way is measured.
        path: JSON that holds the cases of an interrupted run, which is gone on with, and is written after each case.

    Raises:
        ArgumentError: No such name.
        DeviceError: No GPU.
    """
    chosen = benchmark(name)
    device = resolve(device_name)
    gpu = gpu_of(device)
    if gpu is None:
        raise DeviceError("bench gpu measures a GPU: --device cuda")
    device = torch.device(device.type, gpu.current() if device.index is None else device.index)
    return run_cases(str(name), chosen, Setup(gpu, device, folder, rounds, log, sizes or Sizes()), path)
