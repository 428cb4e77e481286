"""A profile of no machine, and data sets that are only described (Hyperion, Table II): batches, work and hits."""

from __future__ import annotations

import math
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outcrop.advisor.cost import Workload
from outcrop.advisor.shapes import Network, Shape, step_seconds
from outcrop.config import parse_size
from outcrop.runtime.hardware import Hardware, HostCosts
from outcrop.store.profile import Profile

_VALUE_BYTES = 4
_TRAIN_SHARE = 0.01  # of the nodes, as the paper has it


@dataclass(frozen=True)
class DataSet:
    """``hotness``: the hottest fraction f of the nodes gets f ** hotness of all accesses; 1 = all are alike."""

    name: str
    nodes: int
    edges: int
    topology_bytes: int
    features: int
    classes: int
    hotness: float = 1.0

    @property
    def row_bytes(self) -> int:
        return self.features * _VALUE_BYTES

    @property
    def feature_bytes(self) -> int:
        return self.nodes * self.row_bytes

    def share_of(self, cache_bytes: float) -> float:
        """Share of the accesses that a cache of the hottest rows serves."""
        return min(max(cache_bytes, 0) / self.feature_bytes, 1.0) ** self.hotness


def drawn_shape(data: DataSet, fanouts: Sequence[int], batch_size: int) -> Shape:
    """Expected distinct nodes where each hop draws uniformly: ``n * (1 - exp(-draws / n))``."""
    nodes, edges, frontier = [float(batch_size)], [], float(batch_size)
    for fanout in fanouts:
        draws = frontier * min(fanout if fanout >= 0 else math.inf, data.edges / data.nodes)
        edges.append(draws)
        known = sum(nodes)
        frontier = max(data.nodes * -math.expm1(-(known + draws) / data.nodes) - known, 0.0)
        nodes.append(frontier)
    return Shape(tuple(nodes), tuple(edges))


def read_data_sets() -> dict[str, DataSet]:
    """Those of ``advisor_datasets.toml``, by name."""
    entries = tomllib.loads(Path(__file__).with_name("advisor_datasets.toml").read_text())
    return {
        key: DataSet(
            key,
            nodes=int(entry["nodes"]),
            edges=int(entry["edges"]),
            topology_bytes=parse_size(entry["topology"]),
            features=entry["features"],
            classes=entry["classes"],
            hotness=entry["hotness"],
        )
        for key, entry in entries.items()
    }


def described_work(
    data: DataSet,
    network: Network,
    hardware: Hardware,
    *,
    fanouts: Sequence[int],
    batch_size: int,
    gpu_cache_bytes: float = 0.0,
    host_cache_bytes: float = 0.0,
    access_bytes: int = 4096,
) -> Workload:
    """An epoch of online training on a described machine, with its topology in memory.

    Args:
        gpu_cache_bytes, host_cache_bytes: Of the hottest rows on the GPU, and of those after them in host memory.
        access_bytes: Of the least that a disk reads: rows are read in whole multiples.

    Raises:
        AssertionError: The machine has no GPU.
    """
    assert hardware.gpu is not None
    shape = drawn_shape(data, fanouts, batch_size)
    samples = max(int(data.nodes * _TRAIN_SHARE), 1)
    batches = -(-samples // batch_size)
    near = data.share_of(gpu_cache_bytes)
    held = data.share_of(gpu_cache_bytes + host_cache_bytes)
    rows = shape.num_nodes * samples / batch_size
    read = -(-data.row_bytes // access_bytes) * access_bytes
    missed = rows * (1 - held)
    return Workload(
        "online",
        batches,
        samples,
        reads=((missed * read, missed),) if hardware.disks else (),
        compute_s=step_seconds(hardware.gpu, network, shape) * samples / batch_size,
        memory_bytes=rows * (held - near) * data.row_bytes,
        exact=False,
    )


def a_profile(key: dict[str, Any], **changes: Any) -> Profile:
    """A machine with two cores and a disk of 50,000 reads and 1 GB a second; ``changes`` are fields."""
    values = {
        "key": key, "cores": 2, "memory_bytes": 8 << 30, "reads": ((4096, 5e4), (1 << 20, 1000.0)), "latency_s": 1e-4,
        "write_bytes_per_s": 5e8, "copy_bytes_per_s": 1e10, "gather_bytes_per_s": 5e9, "host": HostCosts(stall=0.5),
        "steps": {"sage": 0.02}, "measured_at": time.time(),
    }  # fmt: skip
    return Profile(**{**values, **changes})
