"""How much memory and disk space a run may take, and what it takes beside them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from outcrop.config.declared import check_types, stored_fields
from outcrop.config.packing import PackConfig
from outcrop.config.sizes import Size, parse_size
from outcrop.errors import ArgumentError

ALLOWANCE_BYTES = 384 << 20
"""Memory that a training process takes on top of its budget, whatever the size of the graph.

Covers the interpreter, torch (a CPU build) and its allocator, the model with its optimizer, and activations and
gradients of hidden size 256 with batches of 1024 seeds and fanouts 10,10. Measured under a kernel limit that
counts everything: 252 MiB for sage and 265 MiB for gat with batches of 200 seeds, 288 MiB and 326 MiB with
1024. Preparing does not load torch and takes 64 MiB. Wider models and larger batches add activations: hidden
size x 4 bytes x nodes per batch, a few times.
"""


@dataclass(frozen=True)
class Limits:
    """Says how much of the machine may be taken, as users write it: bytes, or text such as ``"4GiB"``.

    Attributes:
        memory: Everything that Outcrop holds in host memory; the interpreter, torch and the model come on top. None: no
            limit, or what the run was planned for. ``"auto"``: what the machine has left.
        gpu_memory: Device memory for cached rows and lists, batches and sampling. 0: what the run was planned for, else
            nothing is cached there, and batches and sampling take what they need of what is free.
        disk_space: All files that are made; ``"3x"`` is three times the size of the features. None: no limit. Mode
            ``online`` writes rows in the order of their use where that is predicted to be sooner done, within this
            limit, or nine tenths of what is free; 0: never.
        processes: Processes of one machine that are to train together on what is prepared (torchrun's
            ``--nproc-per-node``). The limits are for all of them; the cache in memory lies there once. None: one.
    """

    memory: Size | None = None
    gpu_memory: Size = 0
    disk_space: Size | None = None
    processes: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.processes is not None and self.processes < 1:
            raise ArgumentError(f"{self.processes} processes are none that could train")

    def in_bytes(self, feature_bytes: int, packing: PackConfig | None = None) -> PlanConfig:
        """Returns the limits in bytes, of a graph with so many bytes of features, and how batches lie on disk.

        Raises:
            ArgumentError: A size is not understood.
        """
        space, packing = self.disk_space, packing or PackConfig()
        return PlanConfig(
            memory=None if self.memory is None else parse_size(self.memory),
            gpu_memory=parse_size(self.gpu_memory),
            disk_space=None if space is None else parse_size(space, feature_bytes=feature_bytes),
            layout=packing.layout,
            parts=None if packing.parts == 1 else packing.parts,
            processes=None if self.processes == 1 else self.processes,
        )


def with_memory(limits: Limits | None, memory: Size | None) -> Limits:
    """Returns ``limits`` with ``memory``, the short way to say it.

    Raises:
        ArgumentError: Both name a memory budget.
    """
    limits = limits or Limits()
    if memory is None:
        return limits
    if limits.memory is not None:
        raise ArgumentError(
            f"memory={memory!r} and limits=Limits(memory={limits.memory!r}): keep one of them"
        )
    return replace(limits, memory=memory)


@dataclass(frozen=True)
class PlanConfig:
    """Limits in bytes. ``memory``: host memory of loading; ``gpu_memory``: device cache and batches on the device (0:
    no cache); ``disk_space``: all files of the run. None = no limit (memory: everything is cached).

    Attributes:
        layout: What is shared on disk where packing everything exceeds ``disk_space``: ``cost`` (least predicted
            time), ``heuristic`` (DiskGNN section 5.1), ``packed`` (nothing), or ``S,M``: segments of S batches, rows
            wanted more than M times.
        sequential_rate, random_rate: What the disk reads, bytes per second and 4 KiB pages per second: prices.
        processes: Processes of a machine that load the run together: ``memory`` is for all of them, batch buffers are
            for each, the cache in memory they share. None: one.
        parts: Files that the records of batches lie in (:class:`outcrop.PackConfig`). None: one.
    """

    memory: int | None = None
    gpu_memory: int = 0
    disk_space: int | None = None
    packed_splits: tuple[str, ...] = ("train", "valid")
    slots: int | None = None
    layout: str = "cost"
    sequential_rate: float = 1e9
    random_rate: float = 5e4
    processes: int | None = None
    parts: int | None = None

    def __post_init__(self) -> None:
        rates = (self.sequential_rate, self.random_rate)
        if not all(0 < rate < math.inf for rate in rates):
            raise ArgumentError(f"disk rates {rates} are not two positive numbers")
        if self.processes is not None and self.processes < 1:
            raise ArgumentError(f"{self.processes} processes are none that could load a run")
        if self.parts is not None and self.parts < 1:
            raise ArgumentError(f"records cannot lie in {self.parts} parts: one is the least")
        named = self.layout in ("cost", "heuristic", "packed")
        if not named and not re.fullmatch(r"[1-9][0-9]*,[0-9]+", self.layout):
            raise ArgumentError(
                f"layout {self.layout!r} is unknown; known: cost, heuristic, packed, or S,M: segments of S batches "
                "in which rows wanted more than M times are shared"
            )

    def as_stored(self) -> dict[str, Any]:
        """Returns the fields as manifests have them."""
        return stored_fields(self, ("processes", "parts"))
