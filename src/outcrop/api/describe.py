"""describe: what training a graph would take that is known by its published sizes alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from outcrop.advisor import choose, machine
from outcrop.advisor import hardware as machines
from outcrop.advisor.auto import is_auto
from outcrop.advisor.describe import Place, estimate
from outcrop.advisor.described import Description, read_description
from outcrop.config import Limits, ModelConfig, parse_size
from outcrop.config.models import TYPED_MODELS
from outcrop.errors import ArgumentError
from outcrop.importing.described import generate_described
from outcrop.runtime import system
from outcrop.runtime.hardware import Hardware

_DISK_SHARE = 0.9  # of a disk that files may take


def describe(
    description: Description | str | Path,
    *,
    model: str | ModelConfig = "rsage",
    limits: Limits | None = None,
    hardware: Hardware | str | Path | None = None,
    scale: float = 0.01,
    folder: str | Path = ".",
) -> dict[str, Any]:
    """Estimates what training a graph takes of which only the sizes are known, for each way to do it.

    A smaller graph of that shape is generated, and batches of it are counted (:mod:`outcrop.advisor.describe`).

    Args:
        description: TOML file of the sizes, or the name of one that ships (``mag240m``, ``igbh-full``).
        model: ``rgcn``, ``rsage``, ``rgat`` or ``hgt``, or :class:`outcrop.ModelConfig` with its size.
        limits: Memory that a training may hold, and disk that all files may take; by default what the machine has.
        hardware: Machine, as a TOML file or the name of a built-in one; None: this one.
        scale: Share of the graph that is generated: the smaller, the sooner done and the less exact.
        folder: Where that lies meanwhile, and whose disk is measured for this machine.

    Returns:
        ``graph`` (sizes), ``batch`` (rows of each type, bytes), ``batches`` of an epoch, ``ways`` (for each mode
        whether it fits, memory, bytes on disk, bytes read and seconds of an epoch, seconds of preparing),
        ``assumptions``.

    Raises:
        ArgumentError: A file is not what it should be, or an option is not possible.
        BudgetError: The memory does not hold two batches.
    """
    described = description if isinstance(description, Description) else read_description(description)
    model = ModelConfig(model) if isinstance(model, str) else model
    if model.name not in TYPED_MODELS:
        raise ArgumentError(
            f"model {model.name!r} is for graphs without types: choose {', '.join(TYPED_MODELS)}"
        )
    if not 0 < scale <= 1:
        raise ArgumentError(f"scale {scale} is not above 0 and at most 1")
    folder = Path(folder)
    if not folder.is_dir():
        raise ArgumentError(f"{folder} is no folder: name one with room for the smaller graph (--folder)")
    limits = limits or Limits()
    place = _here(folder) if hardware is None else _described(hardware)
    memory, disk = limits.memory, limits.disk_space
    features = described.graph.feature_bytes
    if memory is not None and not is_auto(memory):
        place = replace(place, memory=parse_size(memory, feature_bytes=features))
    if disk is not None:
        place = replace(place, disk_bytes=parse_size(disk, feature_bytes=features))
    return estimate(described, place, model, generate_described, scale=scale, folder=folder)


def _here(folder: Path) -> Place:
    profile = machine.profile_of(folder.resolve())
    disk = os.statvfs(folder)
    return Place(
        profile.hardware(),
        choose.memory_within(system.available_memory()),
        int(disk.f_bavail * disk.f_frsize * _DISK_SHARE),
        profile.write_bytes_per_s,
        profile=profile,
    )


def _described(hardware: Hardware | str | Path) -> Place:
    there = hardware if isinstance(hardware, Hardware) else machines.read_machine(hardware)
    disk = there.disk
    size = None if disk.size_bytes is None else int(disk.size_bytes * there.disks * _DISK_SHARE)
    memory = choose.memory_within(there.memory_bytes)
    return Place(there, memory, size, disk.write_bytes_per_s or disk.bytes_per_s)
