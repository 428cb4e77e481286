"""How large batches are and how much work they make, where nothing is there to be measured.

Data sets that are only described: nodes of a batch from draws, hits of a cache from how uneven accesses are. Models:
operations and bytes of a training step by the shapes of its layers, which a GPU's rates turn into time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from outcrop.advisor.cost import Gpu, Hardware, Workload

_VALUE_BYTES = 4
_TRAIN_SHARE = 0.01  # of the nodes, as the paper has it


@dataclass(frozen=True)
class Shape:
    """Of one batch: ``nodes`` new in each hop, seeds first; ``edges`` drawn for each hop but the seeds."""

    nodes: tuple[float, ...]
    edges: tuple[float, ...]

    @property
    def num_nodes(self) -> float:
        return sum(self.nodes)


@dataclass(frozen=True)
class Network:
    """A model: ``hidden`` is its width between layers, of ``gat`` all heads together."""

    model: str
    in_dim: int
    hidden: int
    classes: int


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


def step_work(network: Network, shape: Shape) -> tuple[float, float]:
    """(operations of dense products, bytes moved by sparse ones) of a training step: forward, weights, inputs.

    A layer's dense products run over its targets (sage, gcn, which aggregate first where that is no wider) or its
    sources (gat); its sparse product reads a row per edge. Backward does both again, and once more for the gradient of
    the inputs in every layer but the first.
    """
    hops = len(shape.edges)
    widths = [network.in_dim] + [network.hidden] * (hops - 1) + [network.classes]
    operations = moved = 0.0
    for layer, (width, out) in enumerate(pairwise(widths)):
        targets = sum(shape.nodes[: hops - layer])
        sources = sum(shape.nodes[: hops - layer + 1])
        edges = sum(shape.edges[: hops - layer])
        passes = 2 if layer == 0 else 3
        rows, products = {"gat": (sources, 1), "sage": (targets, 2)}.get(network.model, (targets, 1))
        carried = out if network.model == "gat" else width
        operations += passes * products * 2 * rows * width * out
        # gat forms a weight per edge from both ends, and its gradient from the rows again
        moved += (5 if network.model == "gat" else passes - 1) * edges * carried * _VALUE_BYTES
        moved += passes * (sources * width + targets * out) * _VALUE_BYTES
    return operations, moved


REFERENCE = Shape((1024, 10_233, 55_830), (10_240, 102_330))
"""Of ``steps.synthetic_batch``, in expectation: the profile's steps are on it, with 128 features and 47 classes."""


def scaled_step(reference_s: float, network: Network, shape: Shape) -> float:
    """About what a step takes where one of the same model on the reference batch takes ``reference_s``.

    Half of that is taken to go with the products and half with what is moved: good enough to choose by.
    """
    width = {"gat": 128}.get(network.model, 256)
    known = step_work(Network(network.model, 128, width, 47), REFERENCE)
    asked = step_work(network, shape)
    return reference_s * sum(a / k for a, k in zip(asked, known, strict=True)) / 2


def step_seconds(gpu: Gpu, network: Network, shape: Shape) -> float:
    """A training step: products at the rate of products, then moves at the rate of moves."""
    operations, moved = step_work(network, shape)
    return operations / gpu.flops_per_s + moved / gpu.bytes_per_s


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
