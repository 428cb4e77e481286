"""How much work batches make, where nothing is there to be measured.

Operations and bytes of a training step by the shapes of its layers, which a GPU's rates turn into time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from outcrop.config import HEADS, hidden_width
from outcrop.runtime.hardware import Gpu
from outcrop.store.graph import Graph

_VALUE_BYTES = 4


@dataclass(frozen=True)
class Shape:
    """Describes one batch: ``nodes`` new in each hop, seeds first; ``edges`` drawn for each hop but the seeds."""

    nodes: tuple[float, ...]
    edges: tuple[float, ...]

    @property
    def num_nodes(self) -> float:
        return sum(self.nodes)


@dataclass(frozen=True)
class Network:
    """Describes a model: ``hidden`` is its width between layers, of ``gat`` all ``heads`` together."""

    model: str
    in_dim: int
    hidden: int
    classes: int
    heads: int = HEADS


def network_of(graph: Graph, model: str, hidden: int | None, heads: int = HEADS) -> Network:
    """Describes ``model`` as training builds it for ``graph``; ``hidden`` None: as wide as it is by default."""
    return Network(model, graph.feature_dim, hidden_width(model, hidden, heads), graph.num_classes, heads)


def step_work(network: Network, shape: Shape) -> tuple[float, float]:
    """Returns (operations of dense products, bytes moved by sparse ones) of a training step: forward, weights, inputs.

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


def reference_network(model: str) -> Network:
    """Describes what the profile times ``model`` with: its default width, features and classes as of ``REFERENCE``."""
    return Network(model, 128, hidden_width(model), 47)


def scaled_step(reference_s: float, network: Network, shape: Shape) -> float:
    """Returns about what a step takes where one of the same model on the reference batch takes ``reference_s``.

    Half of that is taken to go with the products and half with what is moved: good enough to choose by.
    """
    known = step_work(reference_network(network.model), REFERENCE)
    asked = step_work(network, shape)
    return reference_s * sum(a / k for a, k in zip(asked, known, strict=True)) / 2


def step_seconds(gpu: Gpu, network: Network, shape: Shape) -> float:
    """Returns the seconds of a training step: products at the rate of products, then moves at the rate of moves."""
    operations, moved = step_work(network, shape)
    return operations / gpu.flops_per_s + moved / gpu.bytes_per_s
