"""How much work batches make, where nothing is there to be measured.

Operations and bytes of a training step by the shapes of its layers, which a GPU's rates turn into time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from outcrop.config import HEADS, MODELS, ModelConfig, hidden_width
from outcrop.nn.schema import GraphSchema, schema_of
from outcrop.runtime.hardware import Gpu
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph

_VALUE_BYTES = 4
# A step stays below so many times what its work takes at NumPy's rates, more where attention is computed, and so many
# seconds more. Of sage, gcn and gat of 16 to 256 columns, in batches of 64 to 1024 seeds, none took more than half.
_LONGEST_TIMES, _LONGEST_LEAST_S = {"sage": 4, "gat": 8}, 0.003


@dataclass(frozen=True)
class Shape:
    """Describes one batch: ``nodes`` new in each hop, seeds first; ``edges`` drawn for each hop but the seeds."""

    nodes: tuple[float, ...]
    edges: tuple[float, ...]

    @property
    def num_nodes(self) -> float:
        return sum(self.nodes)


@dataclass(frozen=True)
class TypedShape:
    """Describes one batch of a graph with types: ``nodes`` of each node type, new in each hop, and ``edges`` of each
    edge type, drawn for each hop but the seeds.
    """

    nodes: tuple[tuple[float, ...], ...]
    edges: tuple[tuple[float, ...], ...]

    @property
    def num_nodes(self) -> float:
        return sum(map(sum, self.nodes))

    @property
    def hops(self) -> int:
        return len(self.nodes[0]) - 1


BatchShape = Shape | TypedShape


@dataclass(frozen=True)
class Network:
    """Describes a model.

    Attributes:
        in_dim: Width of the features, of a graph without types.
        hidden: Width between layers, of all heads together.
        schema: What the model knows of a graph with types; None: it has none.
    """

    model: str
    in_dim: int
    hidden: int
    classes: int
    heads: int = HEADS
    schema: GraphSchema | None = None

    @property
    def inputs(self) -> int | GraphSchema:
        """Returns what the model is built for."""
        return self.in_dim if self.schema is None else self.schema


def network_of(graph: Graph, model: ModelConfig) -> Network:
    """Describes ``model`` as training builds it for ``graph``.

    Raises:
        ArgumentError: The model is for other graphs, or nothing says what nodes of a type without features have.
    """
    schema = schema_of(graph, model, 0)
    width = hidden_width(model.name, model.hidden, model.heads)
    return Network(model.name, graph.feature_dim, width, graph.num_classes, model.heads, schema)


def shape_of(graph: Graph, batches: Sequence[BatchGraph]) -> BatchShape:
    """Returns the mean shape of ``batches`` of ``graph``."""
    if not graph.is_typed:
        nodes = np.mean([b.nodes_per_hop for b in batches], axis=0)
        edges = np.mean([b.edges_per_hop for b in batches], axis=0)
        return Shape(tuple(nodes), tuple(edges))
    per_hop = (
        [[of.per_hop for of in b.nodes] for b in batches],
        [[of.per_hop for of in b.edges] for b in batches],
    )
    return typed_shape(*map(np.array, per_hop))


def typed_shape(nodes: np.ndarray, edges: np.ndarray) -> TypedShape:
    """Returns the mean shape of batches with these new nodes [B, node types, hops + 1] and edges [B, edge types, hops]
    per hop.
    """
    means = (nodes.mean(axis=0), edges.mean(axis=0))
    return TypedShape(*(tuple(tuple(map(float, row)) for row in table) for table in means))


def step_work(network: Network, shape: BatchShape) -> tuple[float, float]:
    """Returns (operations of dense products, bytes moved by sparse ones) of a training step: forward, weights, inputs.

    A layer's dense products run over its targets (sage, gcn, which aggregate first where that is no wider) or its
    sources (gat); its sparse product reads a row per edge. Backward does both again, and once more for the gradient of
    the inputs in every layer but the first. Models of graphs with types do the like for each edge type.
    """
    if isinstance(shape, TypedShape):
        return _typed_step_work(network, shape)
    hops, model = len(shape.edges), timed_model(network.model)
    widths = [network.in_dim] + [network.hidden] * (hops - 1) + [network.classes]
    operations = moved = 0.0
    for layer, (width, out) in enumerate(pairwise(widths)):
        targets = sum(shape.nodes[: hops - layer])
        sources = sum(shape.nodes[: hops - layer + 1])
        edges = sum(shape.edges[: hops - layer])
        passes = 2 if layer == 0 else 3
        rows, products = {"gat": (sources, 1), "sage": (targets, 2)}.get(model, (targets, 1))
        carried = out if model == "gat" else width
        operations += passes * products * 2 * rows * width * out
        # gat forms a weight per edge from both ends, and its gradient from the rows again
        moved += (5 if model == "gat" else passes - 1) * edges * carried * _VALUE_BYTES
        moved += passes * (sources * width + targets * out) * _VALUE_BYTES
    return operations, moved


def _typed_step_work(network: Network, shape: TypedShape) -> tuple[float, float]:
    """Returns (operations of dense products, bytes moved by sparse ones) of a training step: forward, weights, inputs.

    Counted as :func:`step_work` does, over the edge types that a layer computes. ``hgt`` maps
    rows to the width between layers first, and scores at last.
    """
    from outcrop.nn.typed import needed_types  # brings torch

    schema = network.schema
    assert schema is not None
    hops, hgt = shape.hops, network.model == "hgt"
    needed = needed_types(schema, hops)
    operations = moved = 0.0
    widths = [network.hidden if hgt else node.width for node in schema.node_types]
    if hgt:
        entered = [(sum(shape.nodes[t]), schema.node_types[t].width) for t in needed[0]]
        operations += 2 * 2 * sum(rows * width * network.hidden for rows, width in entered)
        operations += 3 * 2 * shape.nodes[schema.seed_number][0] * network.hidden * network.classes
    for layer in range(hops):
        last = layer == hops - 1
        out = network.classes if last and not hgt else network.hidden
        passes = 2 if layer == 0 and not hgt else 3
        targets = [sum(per_hop[: hops - layer]) for per_hop in shape.nodes]
        sources = [sum(per_hop[: hops - layer + 1]) for per_hop in shape.nodes]
        edges = [sum(per_hop[: hops - layer]) for per_hop in shape.edges]
        attends = network.model in ("rgat", "hgt")
        for number, (source, target) in enumerate(schema.ends):
            if target in needed[layer + 1]:
                carried = out if attends else widths[source]
                moved += (5 if attends else passes - 1) * edges[number] * carried * _VALUE_BYTES
        for of in needed[layer]:
            moved += passes * sources[of] * widths[of] * _VALUE_BYTES
        for of in needed[layer + 1]:
            moved += passes * targets[of] * out * _VALUE_BYTES
        products = _hgt_products if hgt else _products
        rows = products(network, schema, needed[layer + 1], sources, targets, (widths, out))
        operations += passes * 2 * rows
        widths = [out] * len(widths)
    return operations, moved


def _products(
    network: Network,
    schema: GraphSchema,
    computed: tuple[int, ...],
    sources: list[float],
    targets: list[float],
    widths: tuple[list[int], int],
) -> float:
    """Counts rows times columns in and out of the products of a layer: of what comes along each edge type, and of the
    nodes themselves, once for each type, or for each edge type where edges are attended to.
    """
    of, out = widths
    total = 0.0
    for source, target in schema.ends:
        if target not in computed:
            continue
        if network.model == "rgat":
            total += (sources[source] * of[source] + targets[target] * of[target]) * out
        else:
            total += targets[target] * of[source] * out
    if network.model != "rgat":
        total += sum(targets[target] * of[target] * out for target in computed)
    return total


def _hgt_products(
    network: Network,
    schema: GraphSchema,
    computed: tuple[int, ...],
    sources: list[float],
    targets: list[float],
    widths: tuple[list[int], int],
) -> float:
    """Counts the same of ``hgt``: keys and values of the sources, again for each edge type and head; queries and what
    comes out of the targets.
    """
    _, out = widths
    leading = [(source, target) for source, target in schema.ends if target in computed]
    total = sum(2.0 * sources[source] * out * out for source in {source for source, _ in leading})
    total += sum(2.0 * sources[source] * out * out / network.heads for source, _ in leading)
    return total + sum(2.0 * targets[target] * out * out for target in computed)


REFERENCE = Shape((1024, 10_233, 55_830), (10_240, 102_330))
"""Of ``steps.synthetic_batch``, in expectation: the profile's steps are on it, with 128 features and 47 classes."""


def reference_network(model: str) -> Network:
    """Describes what the profile times ``model`` with: its default width, features and classes as of ``REFERENCE``."""
    return Network(model, 128, hidden_width(model), 47)


def timed_model(model: str) -> str:
    """Returns the model whose step the profile of a machine has in place of ``model``, which does the like: ``gat``
    where edges are attended to, else ``sage``.
    """
    return model if model in MODELS else "gat" if model in ("rgat", "hgt", "transformer") else "sage"


def scaled_step(reference_s: float, network: Network, shape: BatchShape) -> float:
    """Returns about what a step takes where one of :func:`timed_model` on the reference batch takes ``reference_s``.

    Half of that is taken to go with the products and half with what is moved: good enough to choose by.
    """
    known = step_work(reference_network(timed_model(network.model)), REFERENCE)
    asked = step_work(network, shape)
    return reference_s * sum(a / k for a, k in zip(asked, known, strict=True)) / 2


def step_seconds(gpu: Gpu, network: Network, shape: BatchShape) -> float:
    """Returns the seconds of a training step: products at the rate of products, then moves at the rate of moves."""
    operations, moved = step_work(network, shape)
    return operations / gpu.flops_per_s + moved / gpu.bytes_per_s


def longest_step(network: Network, shape: BatchShape, rates: tuple[float, float]) -> float:
    """Returns seconds that a training step stays below.

    Args:
        rates: Operations of products per second, and bytes that are copied per second
            (:func:`outcrop.advisor.machine.numpy_rates`).
    """
    work = sum(of / rate for of, rate in zip(step_work(network, shape), rates, strict=True))
    return _LONGEST_LEAST_S + _LONGEST_TIMES.get(timed_model(network.model), 4) * work
