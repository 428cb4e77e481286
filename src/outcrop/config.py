"""Options as frozen dataclasses with units and defaults, and the sizes people type."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from outcrop.errors import ArgumentError

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}iB"] = 1024**_power
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[_letter] = 1024**_power

Size = int | str


def parse_size(size: Size, *, feature_bytes: int | None = None) -> int:
    """Bytes meant by ``size``: an int, ``"512MiB"``, ``"4GiB"``, or ``"3x"`` = 3 times ``feature_bytes``."""
    if isinstance(size, int):
        if size < 0:
            raise ArgumentError(f"size {size} is negative")
        return size
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", size)
    if match:
        number, unit = float(match[1]), match[2]
        if unit == "x" and feature_bytes is not None:
            return int(number * feature_bytes)
        if unit in _UNITS:
            return int(number * _UNITS[unit])
    raise ArgumentError(f"size {size!r} is not understood; write for example 512MiB, 4GiB, or 3x for disk space")


def format_bytes(count: float) -> str:
    """``count`` bytes for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@dataclass(frozen=True)
class IoConfig:
    """Block I/O engine. ``backend``: automatic tries io_uring first. ``depth``: requests in flight."""

    backend: Literal["automatic", "uring", "pread"] = "automatic"
    depth: int = 128
    max_request_bytes: int = 1 << 20
    direct: bool = True
    threads: int = 4


@dataclass(frozen=True)
class SampleConfig:
    """What is sampled. ``fanouts``: neighbours per hop, -1 = all. ``epochs``: pool of epochs sampled ahead."""

    fanouts: tuple[int, ...] = (10, 10)
    batch_size: int = 1024
    epochs: int = 1
    replace: bool = False
    seed: int = 0
    sampler: Literal["neighbor"] = "neighbor"
    splits: tuple[str, ...] = field(default=("train", "valid", "test"))

    def __post_init__(self) -> None:
        problems = []
        if not 1 <= len(self.fanouts) <= 15:
            problems.append(f"{len(self.fanouts)} fanouts given, 1 to 15 are possible")
        problems += [f"fanout {f} is neither positive nor -1" for f in self.fanouts if f < 1 and f != -1]
        if self.replace and -1 in self.fanouts:
            problems.append("fanout -1 (all neighbours) cannot be drawn with replacement")
        if self.batch_size < 1:
            problems.append(f"batch size {self.batch_size} is below 1")
        if self.epochs < 1:
            problems.append(f"epochs {self.epochs} is below 1")
        if self.sampler != "neighbor":
            problems.append(f"sampler {self.sampler!r} is unknown; known: neighbor")
        if problems:
            raise ArgumentError("; ".join(problems))


@dataclass(frozen=True)
class PlanConfig:
    """Limits in bytes. ``memory``: host memory of loading; ``gpu_memory``: device cache and batches on the device;
    ``disk_space``: all files of the run. None = no limit (memory: everything is cached)."""

    memory: int | None = None
    gpu_memory: int = 0
    disk_space: int | None = None
    packed_splits: tuple[str, ...] = ("train", "valid")
    slots: int | None = None
