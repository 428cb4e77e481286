"""Machines that train together, as they are asked about."""

from __future__ import annotations

import re
from dataclasses import dataclass

from outcrop.config.declared import check_types
from outcrop.config.sizes import parse_size
from outcrop.errors import ArgumentError


@dataclass(frozen=True)
class ClusterConfig:
    """Describes machines of one kind that train together.

    Attributes:
        most_machines: Machines, at the most: fewer are predicted, too.
        network: What each machine sends at a time, such as ``25Gbit/s`` or ``3GB/s``.
        processes: Processes of a machine that train.
        accumulate: Batches of a step of all processes (:class:`outcrop.TrainConfig`). None: one for each process.
        latency: Seconds from sending to receiving.
        shared_rate: What a file system that all machines share reads or writes for all of them together, such as
            ``10GB/s``; None: as much as is asked of it.
    """

    most_machines: int = 1
    network: str = "25Gbit/s"
    processes: int = 1
    accumulate: int | None = None
    latency: float = 50e-6
    shared_rate: str | None = None

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("most_machines", "processes", "accumulate"):
            count = getattr(self, name)
            if count is not None and not 1 <= count <= 1 << 16:
                raise ArgumentError(f"{name} {count} is not possible: give a number from 1 to {1 << 16}")
        if not 0 <= self.latency < 10:
            raise ArgumentError(f"latency {self.latency} is no number of seconds below 10")
        parse_rate(self.network)
        if self.shared_rate is not None:
            parse_rate(self.shared_rate)


def parse_rate(text: str) -> float:
    """Returns the bytes per second meant by ``25Gbit/s``, ``3GB/s`` or ``500MiB/s``.

    Raises:
        ArgumentError: Not understood, or nothing.
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)bit/s\s*", text, re.ASCII | re.IGNORECASE)
    rate = 0.0
    if found:
        rate = float(found[1]) * 1000.0 ** " kmgt".index(found[2].lower() or " ") / 8
    elif text.strip().lower().endswith("b/s"):
        rate = float(parse_size(text.strip()[:-2]))
    if not rate > 0:
        raise ArgumentError(f"rate {text!r} is not understood; write for example 25Gbit/s or 3GB/s")
    return rate
