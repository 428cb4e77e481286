"""Mode ``online``: what is wanted often is cached, the rest is read while batches are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from outcrop import device as devices
from outcrop.config import DeviceConfig, check_row_reads
from outcrop.errors import ArgumentError
from outcrop.loading.modes.base import Mode, SessionRequest
from outcrop.loading.online.session import open_online
from outcrop.loading.session import LoadSession
from outcrop.store.graph import Graph
from outcrop.store.stripes import open_stripes


@final
@dataclass(frozen=True)
class Online(Mode):
    """Draws batches as they are wanted, with a run as the run was sampled; nothing is prepared.

    Attributes:
        row_reads: Who asks for rows on disk: ``engine``, or ``gpu``: kernels, through queue pairs
            (:mod:`outcrop.rows.rings`).
        stripes: Folders made by :func:`outcrop.stripe_features`, all of them: ``row_reads`` ``gpu`` reads the
            graph's disk and theirs at the same time.
        sample_on: ``cpu``, or ``gpu``: the device draws the batches, the same as the CPU draws. The topology stays in
            host memory and is read in place, but for the hottest lists where device memory is given.
        cache_strategy: What the memory of a GPU and of the host are filled with: ``auto``, what saves the most
            transactions; to compare with, ``GTCF`` (GPU: topology first, CPU: features), ``GFCT``, ``CTGF``, ``CFGT``,
            ``hybrid``: the fixed strategies of Hyperion, section III-B2.
    """

    row_reads: Literal["engine", "gpu"] = "engine"
    stripes: tuple[str | Path, ...] = ()
    sample_on: Literal["cpu", "gpu"] = "cpu"
    cache_strategy: str = "auto"

    name = "online"
    note = "nothing prepared"
    redraws = True
    loads_types = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_row_reads(self.row_reads, self.stripes)
        if self.sample_on not in ("cpu", "gpu"):
            raise ArgumentError(f"--sample-on {self.sample_on!r} is unknown; write cpu or gpu")
        DeviceConfig(cache_strategy=self.cache_strategy)  # which knows the names

    @property
    def spools(self) -> bool:
        drawn_here = self.row_reads == "engine" and self.sample_on == "cpu"
        return drawn_here and self.cache_strategy == "auto"

    def device(self, name: str, memory_bytes: int) -> DeviceConfig:
        return DeviceConfig(name, memory_bytes, self.sample_on == "gpu", self.cache_strategy)

    def check(self, graph: Graph, device: str) -> None:
        if self.sample_on == "gpu" and devices.gpu_named(device) is None:
            raise ArgumentError(f"--sample-on gpu needs a GPU as --device, not {device}")
        open_stripes(graph, self.stripes)  # raises where they are not those of this graph

    def open(self, request: SessionRequest) -> LoadSession:
        return open_online(
            request, topology=self.topology, by_rings=self.row_reads == "gpu", stripes=self.stripes
        )
