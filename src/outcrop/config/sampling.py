"""What is sampled: seeds, fanouts, samplers."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from outcrop.config.declared import check_types, stored_fields
from outcrop.config.renamed import renamed_fields
from outcrop.config.sizes import LARGEST_COUNT, out_of_range
from outcrop.errors import ArgumentError

SPLITS = ("train", "valid", "test")  # of a graph's nodes, edges or triples, in the order of passes
# Batches that another program drew, as runs on disk call them.
EXTERNAL: Final = "foreign"
SAMPLERS = ("neighbor", "labor", "shadow", "weighted", EXTERNAL)


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


def as_fanouts_by_type(given: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Returns the fanouts of edge types as pairs of a name and fanouts, sorted by name.

    Args:
        given: A mapping from an edge type, "source relation target" or a tuple of the three, to fanouts; or pairs.

    Raises:
        ArgumentError: It is none of these.
    """
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        named = {key if isinstance(key, str) else " ".join(key): as_fanouts(counts) for key, counts in pairs}
    except (TypeError, ValueError):
        raise ArgumentError(
            f"fanouts_by_type {given!r} are not understood; give fanouts for edge types, for example "
            '{"author writes paper": [5, 5]}'
        ) from None
    return tuple(sorted(named.items()))


@renamed_fields(dependency="batch_dependency")
@dataclass(frozen=True)
class SampleConfig:
    """Says how mini-batches are drawn.

    Samplers: ``neighbor`` draws uniformly. ``labor`` is LABOR-0 (Balin and Catalyurek 2023, section 3): one random
    number r_t per node t, batch, hop and edge type, the edge (t, s) is kept iff ``r_t <= fanout / degree(s)``; as many
    edges are expected as ``neighbor`` draws, over fewer nodes. ``weighted`` draws without replacement in proportion to
    the graph's ``edge_weight`` (Efraimidis and Spirakis 2006), edges of weight 0 never. ``shadow`` takes the nodes that
    ``neighbor`` reaches from the seeds of a batch together, and every edge of the graph among them (Zeng et al. 2021,
    ShaDow); a model of any number of layers runs on the whole of it. ``foreign``: batches came from elsewhere.

    Dependent mini-batches (Balin, LaSalle and Catalyurek, Cooperative minibatching): each batch is drawn as before, but
    shares most of its nodes with the one before it, which caches and page reads gain from.

    Attributes:
        fanouts: Neighbours per hop, -1 = all.
        batch_size: Seed nodes per batch; positive edges where the task is ``link``.
        epochs: Epochs sampled ahead; front doors set it from what they are asked for.
        first_epoch: Training epoch number of the first epoch of the pool; epochs are drawn by their number.
        replace: Draw neighbours with replacement.
        seed: The same seed gives the same batches.
        sampler: ``neighbor`` (uniform), ``labor`` (as many edges over fewer nodes), ``weighted`` (by edge weight) or
            ``shadow`` (all edges among the nodes that are reached).
        batch_dependency: Batches in a row for which a node keeps its random number in sampler ``labor``; 1: batches are
            independent.
        splits: Splits that are drawn.
        degrees: Record each node's in-degree in the whole graph too, for GCN's normalisation.
        task: ``node``: seeds are the nodes of a split. ``link``: seeds are the ends of positive edges (the graph's
            ``<split>_edges``; without them all edges train) and of drawn negative ones.
        negatives: Negative edges per positive one.
        negative_mode: ``binary``: both ends of a negative edge are drawn. ``triplet``: it begins where a positive one
            does, and its other end is drawn; edges i * K to i * K + K - 1 of the negative ones are those of positive
            edge i, for K ``negatives``, a whole number.
        filter_negatives: Draw again what is an edge of the graph.
        fanouts_by_type: Fanouts of edge types of a graph with types, ``{"author writes paper": [5, 5]}`` or with
            tuples as keys; edge types that are not named have ``fanouts``.
        node_type: Type of the nodes that batches begin with, of a graph with types; None: the only one with labels or
            splits.
        edge_rows: Batches get the features of their edges, where the graph has some. Edges drawn for a node then stand
            in the order of their features on disk.
        edge_weights: Record the weights of edges too, and what those of each node come to in the whole graph, for
            GCN with weights (``edge_weights`` of :class:`ModelConfig`). Of graphs without types; edges drawn for a node
            then stand in the order that they have on disk.
        edge_ids: Record where the edges of batches stand in ``graph.edge_index()``, so that loaders know it, and with
            it the weights, of edges that a graph has more than once, too. It takes 8 bytes an edge; edges drawn for a
            node then stand in the order that they have on disk.
        first_batch: Number, within its epoch, of the first training batch that is sampled, counted from 0; other
            values than the default are for sample pools that hold a part of an epoch.
        batches: Training batches of each epoch that are sampled, from ``first_batch`` on; None: all that follow.
    """

    fanouts: tuple[int, ...] = (10, 10)
    batch_size: int = 1024
    epochs: int = 1
    replace: bool = False
    seed: int = 0
    sampler: Literal["neighbor", "labor", "shadow", "weighted", "foreign"] = "neighbor"
    splits: tuple[str, ...] = SPLITS
    degrees: bool = False
    task: Literal["node", "link"] = "node"
    negatives: float = 1.0
    filter_negatives: bool = False
    first_epoch: int = 0
    batch_dependency: int = 1
    fanouts_by_type: tuple[tuple[str, tuple[int, ...]], ...] = ()
    node_type: str | None = None
    edge_rows: bool = False
    edge_weights: bool = False
    edge_ids: bool = False
    first_batch: int = 0
    batches: int | None = None
    negative_mode: Literal["binary", "triplet"] = "binary"

    def __post_init__(self) -> None:
        object.__setattr__(self, "fanouts", as_fanouts(self.fanouts))
        object.__setattr__(self, "fanouts_by_type", as_fanouts_by_type(self.fanouts_by_type))
        check_types(self)
        if problems := [
            *self._problems_of_batches(),
            *self._problems_of_samplers(),
            *self._problems_of_parts(),
        ]:
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
        for name, fanouts in self.fanouts_by_type:
            if len(fanouts) != len(self.fanouts):
                problems.append(
                    f"{len(fanouts)} fanouts are given for edge type {name!r}, one for each of {len(self.fanouts)} "
                    "hops is needed"
                )
            problems += [
                f"fanout {f} of edge type {name!r} is neither -1 nor 0 to {LARGEST_COUNT}"
                for f in fanouts
                if not -1 <= f <= LARGEST_COUNT
            ]
        if self.replace and any(-1 in each for each in (self.fanouts, *(f for _, f in self.fanouts_by_type))):
            problems.append("fanout -1 (all neighbours) cannot be drawn with replacement")
        problems += out_of_range(**{"batch size": self.batch_size, "epochs": self.epochs})
        if not 0 <= self.seed < 2**64:
            problems.append(f"seed {self.seed} is negative or does not fit 64 bits")
        if self.first_epoch < 0:
            problems.append(f"first epoch {self.first_epoch} is negative")
        return problems

    def _problems_of_parts(self) -> list[str]:
        problems = []
        if self.first_batch < 0:
            problems.append(f"first batch {self.first_batch} is negative: batches of an epoch count from 0")
        if self.batches is not None:
            problems += out_of_range(batches=self.batches)
        if self.is_part and "train" not in self.splits:
            problems.append(
                f"a part of an epoch is one of its training batches, and the splits are {', '.join(self.splits)}: "
                "leave first_batch and batches out"
            )
        if self.is_part and self.sampler == EXTERNAL:
            problems.append("batches from elsewhere have whole epochs: leave first_batch and batches out")
        return problems

    def _problems_of_samplers(self) -> list[str]:
        problems = []
        if self.sampler not in SAMPLERS:
            problems.append(f"sampler {self.sampler!r} is unknown; known: {', '.join(SAMPLERS[:-1])}")
        if self.batch_dependency < 1 or (self.batch_dependency > 1 and self.sampler != "labor"):
            problems.append(f"batch dependency {self.batch_dependency} is not 1 or, with sampler labor, more")
        if self.replace and self.sampler in ("labor", "weighted"):
            problems.append(f"sampler {self.sampler} draws without replacement only")
        if self.task not in ("node", "link"):
            problems.append(f"task {self.task!r} is unknown; known: node, link")
        if not 0 <= self.negatives < math.inf:
            problems.append(f"{self.negatives} negatives per edge are not possible")
        elif self.task == "link" and 2 * self.batch_size * (1 + self.negatives) > LARGEST_COUNT:
            problems.append(
                f"batch size {self.batch_size} with {self.negatives} negatives per edge makes batches of more than "
                f"{LARGEST_COUNT} ends: lower one of them"
            )
        if self.negative_mode not in ("binary", "triplet"):
            problems.append(f"negative mode {self.negative_mode!r} is unknown; known: binary, triplet")
        elif self.negative_mode == "triplet" and self.task == "node":
            problems.append("negative mode triplet is for task link")
        elif self.negative_mode == "triplet" and (self.negatives < 1 or self.negatives % 1):
            problems.append(
                f"{self.negatives} negatives per edge are not possible with negative mode triplet: give a whole number "
                "from 1"
            )
        return problems

    def as_stored(self) -> dict[str, Any]:
        """Returns the fields by the names that they have in manifests, runs, checkpoints and histories."""
        fields = stored_fields(self, LATER)
        return {_STORED.get(name, name): value for name, value in fields.items()}

    @classmethod
    def from_stored(cls, fields: Mapping[str, Any]) -> SampleConfig:
        """Makes the options that were stored as ``fields``, from :meth:`as_stored`."""
        names = {stored: name for name, stored in _STORED.items()}
        return cls(**{names.get(name, name): value for name, value in fields.items()})

    @property
    def is_part(self) -> bool:
        """Tells whether a part of each epoch is sampled, and not all of it."""
        return self.first_batch > 0 or self.batches is not None

    def batches_of(self, split: str, count: int) -> range:
        """Returns the numbers of the batches that are sampled of an epoch of ``split`` that has ``count`` of them.

        Raises:
            ArgumentError: The epoch does not have them all.
        """
        if split != "train" or not self.is_part:
            return range(count)
        stop = count if self.batches is None else self.first_batch + self.batches
        if not self.first_batch < stop <= count:
            raise ArgumentError(
                f"batches {self.first_batch} to {stop - 1} of an epoch were asked for, it has {count}, 0 to "
                f"{count - 1}: change first_batch or batches"
            )
        return range(self.first_batch, stop)

    def epoch_number(self, split: str, epoch: int) -> int:
        """Returns the number that the ``epoch`` is drawn by: the pool of training is replayed, evaluation has one
        epoch.
        """
        pooled = split in ("train", "infer")  # infer: nodes that a caller chose
        return self.first_epoch + (epoch - self.first_epoch) % self.epochs if pooled else 0


_STORED = {"batch_dependency": "dependency"}  # what fields are called on disk
LATER = (  # stored where they say something, and decide batches
    "fanouts_by_type", "node_type", "edge_rows", "edge_weights", "edge_ids", "first_batch", "batches",
    "negative_mode",
)  # fmt: skip


@dataclass(frozen=True)
class InferSampling:
    """Says how batches are drawn where nodes are scored in sampled batches, and whether what is computed with is right.

    Attributes:
        fanouts: Neighbours per hop, -1 = all; None: those of the training.
        batch_size: Nodes scored per batch.
        seed: The same seed gives the same batches.
        paranoid: Whether every row of the graph is compared with its checksum before it is computed with, behind all
            caches and buffers, also layer by layer. The checksums, 4 bytes a row, are kept beside the graph, and made
            when they are first asked for. What a layer gives to the next has none.
    """

    fanouts: tuple[int, ...] | None = None
    batch_size: int = 1024
    seed: int = 0
    paranoid: bool = False

    def __post_init__(self) -> None:
        if self.fanouts is not None:
            object.__setattr__(self, "fanouts", as_fanouts(self.fanouts))
        check_types(self)


def check_epochs_unset(sampling: SampleConfig, instead: str) -> None:
    """Raises ArgumentError where ``sampling`` says how many epochs are drawn, or which part of them, which front doors
    decide.
    """
    if sampling.is_part:
        raise ArgumentError(
            f"sampling has first_batch={sampling.first_batch} and batches={sampling.batches}: leave both out, whole "
            "epochs are asked for"
        )
    if (sampling.epochs, sampling.first_epoch) != (1, 0):
        raise ArgumentError(f"sampling has epochs={sampling.epochs}: leave that out, and write {instead}")
