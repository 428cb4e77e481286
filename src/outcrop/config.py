"""Options as frozen dataclasses with units and defaults, and the sizes people type."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from outcrop.errors import ArgumentError

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}iB"] = 1024**_power
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[_letter] = 1024**_power

Size = int | str

TOPOLOGIES = ("automatic", "memory", "paged", "map")
INITIATORS = ("engine", "gpu")
PRECISIONS = ("float32", "bfloat16")
SCHEDULES = ("constant", "cosine", "step")
SAMPLERS = ("neighbor", "labor", "shadow", "weighted", "foreign")

ALLOWANCE_BYTES = 384 << 20
"""Memory that a training process takes on top of its budget, whatever the size of the graph.

Covers the interpreter, torch (a CPU build) and its allocator, the model with its optimizer, and activations and
gradients of hidden size 256 with batches of 1024 seeds and fanouts 10,10. Measured under a kernel limit that
counts everything: 252 MiB for sage and 265 MiB for gat with batches of 200 seeds, 288 MiB and 326 MiB with
1024. Preparing does not load torch and takes 64 MiB. Wider models and larger batches add activations: hidden
size x 4 bytes x nodes per batch, a few times.
"""


LARGEST_COUNT = 2**31 - 1
"""Of what options count: batches, epochs, widths. More is a slip of the keys, and would overflow on the way."""


def out_of_range(**counts: int | None) -> list[str]:
    """A sentence for each of ``counts`` that is not within 1 and ``LARGEST_COUNT``; None is left out."""
    given = {name: count for name, count in counts.items() if count is not None}
    low = [f"{name} {count} is below 1" for name, count in given.items() if count < 1]
    return low + [
        f"{name} {count} is above {LARGEST_COUNT}" for name, count in given.items() if count > LARGEST_COUNT
    ]


def parse_size(size: Size, *, feature_bytes: int | None = None) -> int:
    """Bytes meant by ``size``: an int, ``"512MiB"``, ``"4GiB"``, or ``"3x"`` = 3 times ``feature_bytes``.

    Raises:
        ArgumentError: Not understood, negative, or 2^63 bytes and more.
    """
    if isinstance(size, int):
        if size < 0:
            raise ArgumentError(f"size {size} is negative")
        return _checked_size(size, size)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", size, re.ASCII)
    if match:
        number, unit = float(match[1]), match[2]
        if unit == "x" and feature_bytes is not None:
            return _checked_size(size, number * feature_bytes)
        if unit in _UNITS:
            return _checked_size(size, number * _UNITS[unit])
    raise ArgumentError(
        f"size {size!r} is not understood; write for example 512MiB, 4GiB, or 3x for disk space"
    )


def _checked_size(size: Size, count: float) -> int:
    if count >= 2**63:
        raise ArgumentError(f"size {size!r} is 2^63 bytes or more, which no machine has")
    return int(count)


def format_bytes(count: float) -> str:
    """``count`` bytes for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def as_fanouts(fanouts: Iterable[int]) -> tuple[int, ...]:
    """Returns ``fanouts`` as a tuple of int.

    Raises:
        ArgumentError: They are no integers, one for each hop.
    """
    try:
        return tuple(operator.index(f) for f in fanouts)
    except TypeError:
        raise ArgumentError(
            f"fanouts {fanouts!r} are not understood; give one integer for each hop, for example [10, 10]"
        ) from None


def exact_bytes(count: int) -> str:
    """``count`` bytes for people who go on with the number: ``1572864 bytes (1.5 MiB)``; below 10000 ``512 bytes``."""
    return f"{count} bytes" + (f" ({format_bytes(count)})" if count >= 10_000 else "")


@dataclass(frozen=True)
class IoConfig:
    """Block I/O engine. ``backend``: automatic tries io_uring first. ``depth``: requests in flight.

    ``topology``: where sampling reads neighbour lists: ``memory``; ``paged``, from disk through the engine, with a
    cache of the pages that are wanted most; ``map``, through the system's page cache; ``automatic``: memory where it
    fits its share of the budget, else map where the system has twice the room for it, else paged. Batches are the same.
    ``rate_bytes_per_second``: limit of reads and writes together, on average; 0 = none. ``initiator``: who asks for the
    rows that mode ``online`` reads, and moves slabs of embeddings on a GPU: ``engine``, or ``gpu``, by kernels through
    queue pairs (outcrop.gpuio).
    """

    backend: Literal["automatic", "uring", "pread"] = "automatic"
    depth: int = 128
    max_request_bytes: int = 1 << 20
    direct: bool = True
    threads: int = 4
    rate_bytes_per_second: int = 0
    topology: Literal["automatic", "memory", "paged", "map"] = "automatic"
    initiator: Literal["engine", "gpu"] = "engine"

    def __post_init__(self) -> None:
        if self.initiator not in INITIATORS:
            raise ArgumentError(f"io {self.initiator!r} is unknown; known: {', '.join(INITIATORS)}")
        if self.topology not in TOPOLOGIES:
            raise ArgumentError(f"topology {self.topology!r} is unknown; known: {', '.join(TOPOLOGIES)}")


@dataclass(frozen=True)
class SampleConfig:
    """What is sampled.

    Attributes:
        fanouts: Neighbours per hop, -1 = all.
        batch_size: Seed nodes per batch; positive edges where the task is ``link``.
        epochs: Pool of epochs sampled ahead.
        first_epoch: Training epoch number of the first epoch of the pool; epochs are drawn by their number.
        sampler: ``neighbor``: uniform. ``labor``: LABOR-0 (Balin and Catalyurek 2023, section 3): one random number
            r_t per node t, batch and hop, the edge (t, s) is kept iff ``r_t <= fanout / degree(s)``; as many edges are
            expected as ``neighbor`` draws, over fewer nodes. ``weighted``: without replacement in proportion to the
            graph's ``edge_weight`` (Efraimidis and Spirakis 2006), edges of weight 0 never. ``shadow``: the nodes that
            ``neighbor`` reaches from the seeds of a batch together, and every edge of the graph among them
            (Zeng et al. 2021, ShaDow); a model of any number of layers runs on the whole of it. ``foreign``: batches
            came from elsewhere.
        dependency: Of ``labor``: how many batches in a row a node keeps its random number for (dependent mini-batches:
            Balin, LaSalle and Catalyurek, Cooperative minibatching). Each batch is drawn as before, but shares most
            of its nodes with the one before it, which caches and page reads gain from. 1: independent.
        degrees: Record each node's in-degree in the whole graph too, for GCN's normalisation.
        task: ``node``: seeds are the nodes of a split. ``link``: seeds are the ends of positive edges (the graph's
            ``<split>_edges``; without them all edges train) and of drawn negative ones.
        negatives: Negative edges per positive one.
        filter_negatives: Draw again what is an edge of the graph.
    """

    fanouts: tuple[int, ...] = (10, 10)
    batch_size: int = 1024
    epochs: int = 1
    replace: bool = False
    seed: int = 0
    sampler: Literal["neighbor", "labor", "shadow", "weighted", "foreign"] = "neighbor"
    splits: tuple[str, ...] = field(default=("train", "valid", "test"))
    degrees: bool = False
    task: Literal["node", "link"] = "node"
    negatives: float = 1.0
    filter_negatives: bool = False
    first_epoch: int = 0
    dependency: int = 1

    def __post_init__(self) -> None:
        if problems := [*self._problems_of_batches(), *self._problems_of_samplers()]:
            raise ArgumentError("; ".join(problems))

    def _problems_of_batches(self) -> list[str]:
        problems = []
        if not 1 <= len(self.fanouts) <= 15:
            problems.append(f"{len(self.fanouts)} fanouts given, 1 to 15 are possible")
        problems += [
            f"fanout {f} is neither -1 nor 1 to {LARGEST_COUNT}"
            for f in self.fanouts
            if not (f == -1 or 1 <= f <= LARGEST_COUNT)
        ]
        if self.replace and -1 in self.fanouts:
            problems.append("fanout -1 (all neighbours) cannot be drawn with replacement")
        problems += out_of_range(**{"batch size": self.batch_size, "epochs": self.epochs})
        if not 0 <= self.seed < 2**64:
            problems.append(f"seed {self.seed} is negative or does not fit 64 bits")
        if self.first_epoch < 0:
            problems.append(f"first epoch {self.first_epoch} is negative")
        return problems

    def _problems_of_samplers(self) -> list[str]:
        problems = []
        if self.sampler not in SAMPLERS:
            problems.append(f"sampler {self.sampler!r} is unknown; known: {', '.join(SAMPLERS[:-1])}")
        if self.dependency < 1 or (self.dependency > 1 and self.sampler != "labor"):
            problems.append(f"batch dependency {self.dependency} is not 1 or, with sampler labor, more")
        if self.replace and self.sampler in ("labor", "weighted"):
            problems.append(f"sampler {self.sampler} draws without replacement only")
        if self.task not in ("node", "link"):
            problems.append(f"task {self.task!r} is unknown; known: node, link")
        if not 0 <= self.negatives < math.inf:
            problems.append(f"{self.negatives} negatives per edge are not possible")
        return problems

    def epoch_number(self, split: str, epoch: int) -> int:
        """By what number the ``epoch`` is drawn: the pool of training is replayed, evaluation has one epoch."""
        pooled = split in ("train", "infer")  # infer: nodes that a caller chose
        return self.first_epoch + (epoch - self.first_epoch) % self.epochs if pooled else 0


@dataclass(frozen=True)
class PlanConfig:
    """Limits in bytes. ``memory``: host memory of loading; ``gpu_memory``: device cache and batches on the device (0:
    no cache); ``disk_space``: all files of the run. None = no limit (memory: everything is cached).

    Attributes:
        layout: What is shared on disk where packing everything exceeds ``disk_space``: ``cost`` (least predicted
            time), ``heuristic`` (DiskGNN section 5.1), ``packed`` (nothing), or ``S,M``: segments of S batches, rows
            wanted more than M times.
        sequential_rate, random_rate: What the disk reads, bytes per second and 4 KiB pages per second: prices.
    """

    memory: int | None = None
    gpu_memory: int = 0
    disk_space: int | None = None
    packed_splits: tuple[str, ...] = ("train", "valid")
    slots: int | None = None
    layout: str = "cost"
    sequential_rate: float = 1e9
    random_rate: float = 5e4

    def __post_init__(self) -> None:
        rates = (self.sequential_rate, self.random_rate)
        if not all(0 < rate < math.inf for rate in rates):
            raise ArgumentError(f"disk rates {rates} are not two positive numbers")
        named = self.layout in ("cost", "heuristic", "packed")
        if not named and not re.fullmatch(r"[1-9][0-9]*,[0-9]+", self.layout):
            raise ArgumentError(
                f"layout {self.layout!r} is unknown; known: cost, heuristic, packed, or S,M: segments of S batches "
                "in which rows wanted more than M times are shared"
            )


CACHE_STRATEGIES = ("auto", "GTCF", "GFCT", "CTGF", "CFGT", "hybrid")


@dataclass(frozen=True)
class DeviceConfig:
    """Where batches go.

    Attributes:
        memory_bytes: Of a GPU, for cached rows and lists, batches and sampling; 0: nothing is cached there, the rest
            takes what is free.
        draws: The GPU draws the batches too that are drawn on the fly.
        cache_strategy: Of mode ``online``: what the GPU's and the host's memory are filled with (:mod:`outcrop.tiers`):
            ``auto``, what saves the most transactions; ``GTCF``, ``GFCT``, ``CTGF``, ``CFGT``, ``hybrid``: the fixed
            strategies of Hyperion, section III-B2, to compare with.
    """

    name: str = "cpu"
    memory_bytes: int = 0
    draws: bool = False
    cache_strategy: str = "auto"

    def __post_init__(self) -> None:
        if self.cache_strategy not in CACHE_STRATEGIES:
            known = ", ".join(CACHE_STRATEGIES)
            raise ArgumentError(f"cache strategy {self.cache_strategy!r} is unknown; known: {known}")


CPU = DeviceConfig()
CACHE_POLICIES = ("sieve", "lru", "s3fifo")


@dataclass(frozen=True)
class BaselineConfig:
    """Options of the modes that Outcrop is compared with.

    Attributes:
        cache_policy: Of ``dynamic``: sieve, lru or s3fifo.
        cache_rows: Rows that the cache of ``dynamic`` and ``belady`` holds; None = as many as the budget allows.
        partitions, resident: Of ``partition``: partitions of the nodes (fewer where there are fewer nodes; None = 16,
            or more until four of them fit), and how many are in memory at a time (None = as many as the budget allows).
        passes: What one epoch goes over; ``belady`` plans for it.
    """

    cache_policy: str = "sieve"
    cache_rows: int | None = None
    partitions: int | None = None
    resident: int | None = None
    passes: tuple[str, ...] = ("train",)

    def __post_init__(self) -> None:
        problems = []
        if self.cache_policy not in CACHE_POLICIES:
            problems.append(
                f"cache policy {self.cache_policy!r} is unknown; known: {', '.join(CACHE_POLICIES)}"
            )
        if self.cache_rows is not None and self.cache_rows < 0:
            problems.append(f"{self.cache_rows} cache rows is negative")
        if self.partitions is not None and self.partitions < 1:
            problems.append(f"partitions {self.partitions} is below 1")
        if self.resident is not None and not 1 <= self.resident <= (self.partitions or self.resident):
            problems.append(f"{self.resident} resident partitions are not 1 to {self.partitions or 'all'}")
        if problems:
            raise ArgumentError("; ".join(problems))


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained.

    Attributes:
        hidden: Width between layers, for gat all heads together; None = 256, for gat 32 per head.
        layers: As many as the batches have hops.
        dropout: Share of hidden values zeroed between layers.
        device: cpu, cuda or cuda:N.
        trace_losses: Whether the result lists the loss of every batch.
        checkpoint_every: Epochs between checkpoints; the last epoch always has one.
        evaluate_every: Epochs between scores of the validation nodes; the last epoch always has one.
        patience: Training ends when the validation nodes were scored so many times without a better score; None: never.
        schedule: Learning rate from epoch to epoch: ``constant``; ``cosine``, to 0 after the last; ``step``: times
            ``step_factor`` after every ``step_epochs`` (:mod:`outcrop.training.rates`).
        warmup_steps: Updates at the beginning over which the rate rises linearly to where it should be.
        class_weights: What the loss of a seed counts, by its label: one number per class, or ``balanced``.
        precision: Of dense products in training: ``float32``, or ``bfloat16`` as under ``torch.autocast``. Parameters,
            sums over neighbours and scores of validation are float32 in both.
        loss, metric: What is learned, and what the best epoch is chosen by; None: as goes with the labels
            (:mod:`outcrop.training.objectives`).
        checkpoint_minutes: Time between checkpoints within an epoch; None: only between epochs; 0: after every batch.
    """

    model: str = "sage"
    hidden: int | None = None
    layers: int = 2
    heads: int = 4
    dropout: float = 0.0
    epochs: int = 10
    learning_rate: float = 3e-3
    weight_decay: float = 0.0
    seed: int = 0
    device: str = "cpu"
    trace_losses: bool = False
    checkpoint_every: int = 1
    evaluate_every: int = 1
    patience: int | None = None
    schedule: Literal["constant", "cosine", "step"] = "constant"
    warmup_steps: int = 0
    step_epochs: int = 10
    step_factor: float = 0.1
    class_weights: str | tuple[float, ...] | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    loss: str | None = None
    metric: str | None = None
    checkpoint_minutes: float | None = None

    def __post_init__(self) -> None:
        found = (self._problems_of_the_model, self._problems_of_learning, self._problems_of_weights)
        if problems := [problem for of in found for problem in of()]:
            raise ArgumentError("; ".join(problems))

    def _problems_of_the_model(self) -> list[str]:
        problems = []
        if self.model not in ("sage", "gat", "gcn"):
            problems.append(f"model {self.model!r} is unknown; known: sage, gat, gcn")
        names = (
            "hidden", "layers", "heads", "epochs", "checkpoint_every", "evaluate_every", "patience", "step_epochs",
        )  # fmt: skip
        problems += out_of_range(**{name: getattr(self, name) for name in names})
        if self.model == "gat" and self.hidden is not None and self.heads >= 1 and self.hidden % self.heads:
            problems.append(f"hidden {self.hidden} is no multiple of heads {self.heads}")
        if not 0.0 <= self.dropout < 1.0:
            problems.append(f"dropout {self.dropout} is not in [0, 1)")
        return problems

    def _problems_of_learning(self) -> list[str]:
        problems = []
        if not 0.0 < self.learning_rate < math.inf:
            problems.append(f"learning rate {self.learning_rate} is not a positive number")
        if not 0.0 <= self.weight_decay < math.inf:
            problems.append(f"weight decay {self.weight_decay} is negative or not a number")
        if not -(2**63) <= self.seed < 2**64:
            problems.append(f"seed {self.seed} does not fit 64 bits")
        for name, known in (("schedule", SCHEDULES), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                problems.append(f"{name} {getattr(self, name)!r} is unknown; known: {', '.join(known)}")
        if self.warmup_steps < 0:
            problems.append(f"warmup steps {self.warmup_steps} is negative")
        if not 0.0 < self.step_factor <= 1.0:
            problems.append(f"step factor {self.step_factor} is not in (0, 1]")
        if self.checkpoint_minutes is not None and not 0.0 <= self.checkpoint_minutes < math.inf:
            problems.append(f"{self.checkpoint_minutes} minutes between checkpoints are not possible")
        return problems

    def _problems_of_weights(self) -> list[str]:
        problems = []
        weights = self.class_weights
        if isinstance(weights, str) and weights != "balanced":
            problems.append(f"class weights {weights!r} are not 'balanced'; else give one number per class")
        if isinstance(weights, tuple) and not all(0.0 <= weight < math.inf for weight in weights):
            problems.append(f"class weights {weights} are not all finite and at least 0")
        return problems


@dataclass(frozen=True)
class BucketConfig:
    """How edges are sorted into buckets.

    Attributes:
        partitions: Of the nodes, as orders know them.
        slices: Of each partition; which slices make up a partition changes from sweep to sweep. None: 8, of fewer
            nodes or more than 8 partitions fewer.
        numbering: How nodes are dealt out to them: random (keyed), id, or degree (about as many edges in each).
        valid_fraction, test_fraction: Of the edges, held out by a keyed hash, where the source has no such splits.
    """

    partitions: int = 1
    numbering: Literal["random", "id", "degree"] = "random"
    valid_fraction: float = 0.0
    test_fraction: float = 0.0
    seed: int = 0
    slices: int | None = None

    def __post_init__(self) -> None:
        problems = []
        if not 1 <= self.partitions <= 1 << 16:
            problems.append(f"{self.partitions} partitions: 1 to {1 << 16} are possible")
        elif self.slices is not None and not 1 <= self.slices <= (1 << 16) // self.partitions:
            most = (1 << 16) // self.partitions
            problems.append(f"{self.slices} slices of {self.partitions} partitions: 1 to {most} are possible")
        if self.numbering not in ("random", "id", "degree"):
            problems.append(f"numbering {self.numbering!r} is unknown; known: random, id, degree")
        fractions = (self.valid_fraction, self.test_fraction)
        if not all(0.0 <= f < 1.0 for f in fractions) or sum(fractions) >= 1.0:
            problems.append(
                f"fractions {fractions[0]} and {fractions[1]} are not in [0, 1), or leave no edges"
            )
        if not 0 <= self.seed < 2**63:
            problems.append(f"seed {self.seed} is not in [0, 2^63)")
        if problems:
            raise ArgumentError("; ".join(problems))


@dataclass(frozen=True)
class EmbedConfig:
    """How embeddings are trained.

    Attributes:
        model: Score function: dot, distmult, complex, transe-l1, transe-l2 or rotate.
        dim: Floats of a vector; of complex ones half are imaginary parts.
        negatives: Nodes that stand in for an end of an edge, shared by a chunk; all that are resident where those are
            no more.
        by_degree: Share of the negatives drawn in proportion to degree, the rest uniformly.
        chunk: Edges that share negatives.
        batch: Edges of one step of the optimizer.
        margin: Of loss margin.
        rate, relation_rate: Learning rates; None: the same as ``rate``.
        start: Standard deviation of the first vectors; None: 1e-3, and 1 / sqrt(dim) where scores are distances.
        reciprocal: Relations have other vectors when the source is looked for (Lacroix et al. 2018).
        n3, l2: Weights of the regularisers, for each edge: of the sum of cubes of moduli, and of squares.
        buffer: Partitions that are resident at a time.
        sweeps: Times that an epoch goes over the order, each time with another part of every bucket: the more, the less
            it matters that not all partitions are resident, and the more is read and written.
        order: best, legend, beta or cover.
    """

    model: str = "complex"
    dim: int = 100
    epochs: int = 10
    negatives: int = 1000
    by_degree: float = 0.0
    chunk: int = 1000
    batch: int = 5000
    loss: str = "softmax"
    margin: float = 1.0
    optimizer: Literal["adagrad", "sgd", "adam"] = "adagrad"
    rate: float = 0.1
    relation_rate: float | None = None
    start: float | None = None
    reciprocal: bool = False
    n3: float = 0.0
    l2: float = 0.0
    buffer: int = 3
    sweeps: int = 1
    order: str = "best"
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("dim", "epochs", "negatives", "chunk", "batch", "buffer", "sweeps")
        problems = out_of_range(**{name: getattr(self, name) for name in counts})
        if self.optimizer not in ("adagrad", "sgd", "adam"):
            problems.append(f"optimizer {self.optimizer!r} is unknown; known: adagrad, sgd, adam")
        if not 0.0 <= self.by_degree <= 1.0:
            problems.append(f"by_degree {self.by_degree} is not in [0, 1]")
        rates = {
            "learning rate": self.rate,
            "relation learning rate": self.relation_rate,
            "start": self.start,
            "margin": self.margin,
        }
        for name, value in rates.items():
            if value is not None and not 0.0 < value < math.inf:
                problems.append(f"{name} {value} is not a positive number")
        for name in ("n3", "l2"):
            if not 0.0 <= getattr(self, name) < math.inf:
                problems.append(f"{name} {getattr(self, name)} is negative or not a number")
        if not 0 <= self.seed < 2**63:
            problems.append(f"seed {self.seed} is not in [0, 2^63)")
        if problems:
            raise ArgumentError("; ".join(problems))
