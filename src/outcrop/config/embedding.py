"""How graph embeddings are prepared and trained."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from outcrop.config.declared import check_types
from outcrop.config.loading import check_row_reads
from outcrop.config.places import is_uri
from outcrop.config.sizes import out_of_range
from outcrop.errors import ArgumentError


@dataclass(frozen=True)
class BucketConfig:
    """Says how edges are sorted into buckets.

    Attributes:
        partitions: Parts that the nodes are divided into, of which a few are in memory at a time. None: as few as let
            vectors be trained in the memory that is named; one where none is.
        numbering: How nodes are dealt out to partitions: ``random``, ``id``, or ``degree`` (about as many edges in
            each).
        valid_fraction: Share of the edges that is held out for validation, where the source has no such splits.
        test_fraction: Share of the edges that is held out for tests, likewise.
        seed: Number that decides the numbering and what is held out.
        slices: Parts of each partition, dealt out anew for every sweep; None: 8, of few nodes or many partitions fewer.
    """

    partitions: int | None = None
    numbering: Literal["random", "id", "degree"] = "random"
    valid_fraction: float = 0.0
    test_fraction: float = 0.0
    seed: int = 0
    slices: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        problems = []
        if not 1 <= self.count <= 1 << 16:
            problems.append(f"{self.count} partitions: 1 to {1 << 16} are possible")
        elif self.slices is not None and not 1 <= self.slices <= (1 << 16) // self.count:
            most = (1 << 16) // self.count
            problems.append(f"{self.slices} slices of {self.count} partitions: 1 to {most} are possible")
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

    @property
    def count(self) -> int:
        """Returns the number of partitions; one where it is left open."""
        return 1 if self.partitions is None else self.partitions


@dataclass(frozen=True)
class EmbedConfig:
    """Says how embeddings are trained.

    Attributes:
        model: Score function: ``dot``, ``distmult``, ``complex``, ``transe-l1``, ``transe-l2`` or ``rotate``.
        dim: Floats of a vector; of complex ones half are imaginary parts.
        epochs: Epochs in all, those before the checkpoint included.
        negatives: Nodes that stand in for an end of an edge, shared by a chunk; all that are resident where those are
            no more.
        by_degree: Share of the negatives that are drawn in proportion to degree, the rest uniformly.
        chunk: Edges that share negatives.
        batch: Edges of one step of the optimizer.
        loss: ``softmax``, ``logistic`` or ``margin``.
        margin: Distance that loss ``margin`` asks for.
        optimizer: ``adagrad``, ``sgd`` or ``adam`` (row-wise).
        learning_rate: Step size of the optimizer.
        relation_learning_rate: Step size of relation vectors; None: the same.
        decay: Share of the training, at its end, over which both step sizes fall linearly to 0; 0: they stay the same.
        start: Standard deviation of the first vectors; None: 1e-3, and 1 / sqrt(dim) where scores are distances.
        reciprocal: Relations have other vectors when the source is looked for (Lacroix et al. 2018).
        n3: Weight of the regulariser for each edge: of the sum of cubes of moduli (nuclear 3-norm).
        l2: Weight of the regulariser for each edge: of the sum of squares.
        buffer: Partitions that are in memory at a time, where not all are.
        sweeps: Times that an epoch goes over the order, each time with another part of every bucket: the more, the less
            it matters that not all partitions are resident, and the more is read and written.
        order: Sequence of partitions: ``best``, ``legend``, ``beta`` or ``cover``; or ``slices``: parts of partitions
            are exchanged one at a time, which comes closer to what is learned with all in memory, for more bytes (1.2
            to 1.3 times with 3 of 8 or 12 partitions); of one group.
        seed: Number that decides first vectors, negatives and the sequence of edges.
        groups: Groups of partitions that are trained independently of each other between two exchanges, each by one
            process where there are several: what is learned depends on them, not on the processes. None: one for each
            process, or as the checkpoint has it.
        checkpoint_copy: URI (s3://BUCKET/FOLDER, gs://, abfs://, hdfs://, file:///FOLDER), or a folder that all
            machines see, to which every checkpoint is copied with the vectors that changed; training goes on from there
            where those of a machine are lost. None: checkpoints are on the disks of the machines alone.
        evaluate_every: Epochs between rankings of the validation edges, filtered; the last epoch always has one. None:
            never, or with ``patience`` after every epoch. What is learned is the same with and without it.
        patience: Training ends when they were ranked so many times without a better mean reciprocal rank; None: never.
        candidates: Nodes that each end is ranked among, drawn uniformly with replacement, the same in every epoch.
            None: all nodes, which with many of them takes longer than an epoch.
        keep_best: Whether the vectors of the epoch that ranked best are kept beside those that training goes on from.
            That takes half of what the file of the table does, and as much again while better ones are written.
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
    learning_rate: float = 0.1
    relation_learning_rate: float | None = None
    decay: float = 0.0
    start: float | None = None
    reciprocal: bool = False
    n3: float = 0.0
    l2: float = 0.0
    buffer: int = 3
    sweeps: int = 1
    order: str = "best"
    seed: int = 0
    groups: int | None = None
    checkpoint_copy: str | Path | None = field(default=None, repr=False)
    evaluate_every: int | None = None
    patience: int | None = None
    candidates: int | None = None
    keep_best: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        is_uri(self.checkpoint_copy or "")  # raises where it has lost a slash
        counts = (
            "dim",
            "epochs",
            "negatives",
            "chunk",
            "batch",
            "buffer",
            "sweeps",
            "groups",
            *_VALIDATION[:3],
        )
        problems = out_of_range(**{name: getattr(self, name) for name in counts})
        if self.ranked_every is None and (self.candidates is not None or not self.keep_best):
            problems.append(
                "candidates (--candidates) and keep_best (--no-keep-best) are about evaluate_every or patience "
                "(--evaluate-every, --patience): give one of these, too"
            )
        if self.optimizer not in ("adagrad", "sgd", "adam"):
            problems.append(f"optimizer {self.optimizer!r} is unknown; known: adagrad, sgd, adam")
        problems += _no_shares(by_degree=self.by_degree, decay=self.decay)
        rates = {
            "learning rate": self.learning_rate,
            "relation learning rate": self.relation_learning_rate,
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

    @property
    def ranked_every(self) -> int | None:
        """Returns the epochs between rankings of the validation edges; None: they are not ranked."""
        return self.evaluate_every or (None if self.patience is None else 1)

    def as_stored(self) -> dict[str, Any]:
        """Returns the fields that decide what is learned, by the names that they have in checkpoints; one group is what
        those without any have.
        """
        fields = {_STORED.get(name, name): value for name, value in asdict(self).items()}
        for name in ("checkpoint_copy", *_VALIDATION):
            del fields[name]
        if self.groups in (None, 1):
            del fields["groups"]
        if not self.decay:  # as it was before there was any
            del fields["decay"]
        return fields

    def rate_share(self, progress: float) -> float:
        """Returns what the learning rates are times, where ``progress`` in [0, 1) of the training lies behind."""
        return min((1.0 - progress) / self.decay, 1.0) if self.decay else 1.0

    @classmethod
    def from_stored(cls, fields: dict[str, Any]) -> EmbedConfig:
        """Makes the options that a checkpoint was written with, from :meth:`as_stored`."""
        names = {stored: name for name, stored in _STORED.items()}
        return cls(**{names.get(name, name): value for name, value in fields.items()})


@dataclass(frozen=True)
class SwapConfig:
    """Says how partitions are swapped between where they are trained and the disk.

    Attributes:
        prefetch: Whether they are swapped while training goes on; else after it, for comparison.
        io: Who moves those of a GPU: ``engine``, by slabs in host memory; ``gpu``, by commands that kernels put to
            rings (:mod:`outcrop.rows.rings`).
    """

    prefetch: bool = True
    io: str = "engine"

    def __post_init__(self) -> None:
        check_row_reads(self.io)


def _no_shares(**given: float) -> list[str]:
    return [f"{name} {value} is not in [0, 1]" for name, value in given.items() if not 0.0 <= value <= 1.0]


_VALIDATION = ("evaluate_every", "patience", "candidates", "keep_best")
_STORED = {"learning_rate": "rate", "relation_learning_rate": "relation_rate"}  # their names in checkpoints
