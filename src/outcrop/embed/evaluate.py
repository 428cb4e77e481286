"""Link prediction: the rank of the true end of each held-out edge among candidates, both ends in turn.

Ranks are the mean of the best and the worst rank among equal scores (PyKEEN's "realistic" rank). Filtered ranks leave
out candidates that make another known edge, of any split (Bordes et al. 2013). Everything is computed in float64, so
that the result does not depend on how the table is divided; scores that differ by less than a few roundings are equal.
The table is read once for a block of edges, a slice at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from outcrop.embed.buckets import Buckets
from outcrop.embed.matches import matches
from outcrop.embed.model import EmbeddingModel
from outcrop.embed.prepare import HELD_OUT
from outcrop.embed.scores import SIDES
from outcrop.errors import ArgumentError, NumericError
from outcrop.runtime import memory_tables
from outcrop.runtime.keyed_random import key_of
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import split_name

KS = (1, 3, 10)
_TIE = 1e-12  # relative
_EDGES, _CANDIDATES = 256, 4096  # scored at a time
_TAG = "evaluate"
_SCAN_EDGES = 1 << 18
_MOST_EDGES = 1 << 16  # of a block: candidates that are left out take memory for each of them


@dataclass
class Ranks:
    """Counts against the true end of each edge of a side: candidates that score higher, or the same."""

    higher: np.ndarray
    equal: np.ndarray

    @classmethod
    def none(cls, count: int) -> Ranks:
        return cls(np.zeros(count, np.int64), np.zeros(count, np.int64))

    @property
    def rank(self) -> np.ndarray:
        """Returns the rank of each edge, float64, from 1."""
        return 1 + self.higher + self.equal / 2

    def add(self, edges: slice | np.ndarray, scores: torch.Tensor, true: torch.Tensor) -> None:
        """Counts ``scores`` [n, k] of ``edges`` against their ``true`` scores [n]."""
        slack = _TIE * true.abs().clamp_min(1)
        higher = (scores > (true + slack)[:, None]).sum(1)
        not_lower = (scores >= (true - slack)[:, None]).sum(1)
        self.higher[edges] += higher.numpy()
        self.equal[edges] += (not_lower - higher).numpy()

    def take_out(self, edges: np.ndarray, scores: np.ndarray, true: np.ndarray) -> None:
        """Does the opposite for single pairs: a candidate with ``scores[i]`` of edge ``edges[i]``."""
        slack = _TIE * np.maximum(np.abs(true[edges]), 1)
        higher = scores > true[edges] + slack
        equal = ~higher & (scores >= true[edges] - slack)
        np.subtract.at(self.higher, edges[higher], 1)
        np.subtract.at(self.equal, edges[equal], 1)


@dataclass
class Metrics:
    """Holds the metrics of both sides together; ``sides`` has each alone.

    Attributes:
        protocol: What the ranks are among.
        epoch: The last one, from 0, that the vectors were trained in; None: of a side.
        within_epoch: Whether that epoch was not at its end.
    """

    protocol: str
    edges: int
    mrr: float
    mean_rank: float
    hits: dict[int, float]
    sides: dict[str, Metrics] = field(default_factory=dict)
    epoch: int | None = None
    within_epoch: bool = False

    @classmethod
    def of(cls, protocol: str, ranks: np.ndarray) -> Metrics:
        if not len(ranks):
            return cls(protocol, 0, float("nan"), float("nan"), dict.fromkeys(KS, float("nan")))
        hits = {k: float((ranks <= k).mean()) for k in KS}
        return cls(protocol, len(ranks), float((1 / ranks).mean()), float(ranks.mean()), hits)


def evaluate(
    model: EmbeddingModel,
    split: str,
    *,
    filtered: bool = True,
    candidates: int | None = None,
    by_degree: bool = False,
    seed: int = 0,
) -> Metrics:
    """Ranks the edges of ``split``.

    Args:
        model: With the processes each of which ranks a part of the edges, and has the result.
        candidates: Rank among so many nodes, drawn with replacement, the same for all edges; None: among all nodes.
        by_degree: Draw them in proportion to degree instead of uniformly.

    Raises:
        ArgumentError: There are no edges in ``split``.
        BudgetError: One slice does not fit.
        NumericError: A vector is infinite or not a number.
    """
    buckets, runtime = model.buckets, model.runtime
    split = held_out(buckets, split)
    group = runtime.group
    protocol = protocol_of(filtered, candidates, by_degree)
    ranks: dict[str, list[np.ndarray]] = {side: [] for side in SIDES}
    with group.together("ranking", patient=True):
        edges = np.array_split(buckets.array(runtime, split).read(_TAG), group.world)[group.rank]
        drawn = None if candidates is None else _draw(model, candidates, by_degree, seed)
        room = memory_tables.RANK_SCORES.bytes_of(runtime.budget.free_bytes)
        block = max(min(len(edges), _MOST_EDGES, room // (model.config.dim * 64)), 1)
        with runtime.task("evaluate", len(edges), "edges"):
            for start in range(0, len(edges), block):
                part = edges[start : start + block]
                for side, found in _Block(model, part).ranks(filtered, drawn).items():
                    ranks[side].append(found.rank)
                runtime.progress.advance("evaluate", len(part))
    of_all = group.gather({side: np.concatenate([*found, np.zeros(0)]) for side, found in ranks.items()})
    of_side = {side: np.concatenate([found[side] for found in of_all]) for side in SIDES}
    whole = Metrics.of(protocol, np.concatenate(list(of_side.values())))
    whole.sides = {side: Metrics.of(protocol, found) for side, found in of_side.items()}
    whole.within_epoch = model.at.is_within_epoch
    whole.epoch = model.epochs - (0 if whole.within_epoch else 1)
    return whole


def reserve(
    buckets: Buckets, split: str, filtered: bool, by_degree: bool, slab_bytes: int, runtime: Runtime
) -> None:
    """Reserves what :func:`evaluate` does, in the same order, of a budget whose memory is never touched.

    Args:
        by_degree: Whether candidates are drawn in proportion to degree.
        slab_bytes: Bytes of a slice of the table.

    Raises:
        BudgetError: It has no room.
    """
    budget = runtime.budget
    numbering = buckets.reserve_numbering(runtime)  # of the table
    edges = buckets.array(runtime, split).read(_TAG)
    if by_degree:
        drawing = buckets.reserve_numbering(runtime)
        with budget.reserve(_TAG, 32 * buckets.num_nodes):
            buckets.array(runtime, "degrees").read(_TAG)
        del drawing
    budget.reserve("partitions", slab_bytes).release()
    if filtered:
        known = None
        for name in HELD_OUT:
            if buckets.count(name):
                known = buckets.array(runtime, name).read(_TAG)
        starts = buckets.array(runtime, "starts").read("bucket-starts")
        buckets.array(runtime, "edges").read(_TAG, 0, min(_SCAN_EDGES, buckets.num_edges))
        del known, starts
    del numbering, edges


def held_out(buckets: Buckets, split: str) -> str:
    """Returns the name that ``split`` has in the files; ArgumentError where there are no such edges."""
    split = split_name(split)
    if split not in HELD_OUT:
        raise ArgumentError(f"split {split!r} cannot be evaluated: pass valid or test")
    if not buckets.count(split):
        raise ArgumentError(
            f"{buckets.path} holds no {split} edges: import a knowledge graph that has them, or prepare with "
            f"--{split}-fraction"
        )
    return split


def protocol_of(filtered: bool, candidates: int | None, by_degree: bool) -> str:
    """Says what ranks are among."""
    drawn = f"{candidates} nodes drawn {'by degree' if by_degree else 'uniformly'}"
    return f"{'filtered' if filtered else 'raw'}, among {drawn if candidates else 'all nodes'}"


def _draw(model: EmbeddingModel, count: int, by_degree: bool, seed: int) -> np.ndarray:
    """Returns rows of the candidates: nodes drawn by their ids, so that they are the same for every division."""
    buckets, runtime = model.buckets, model.runtime
    random = np.random.Generator(np.random.Philox(key=np.concatenate([key_of(seed, 7), key_of(seed, 8)])))
    numbering = buckets.numbering(runtime)
    if not by_degree:
        return numbering.rows(random.integers(0, buckets.num_nodes, count))
    with runtime.budget.reserve(_TAG, 32 * buckets.num_nodes):
        degrees = buckets.array(runtime, "degrees").read(_TAG)
        ends = np.cumsum(
            degrees[numbering.rows(np.arange(buckets.num_nodes, dtype=np.int64))], dtype=np.int64
        )
        return numbering.rows(np.searchsorted(ends, random.integers(0, ends[-1], count), side="right"))


class _Block:
    """Holds held-out edges that are ranked in one pass over the table."""

    def __init__(self, model: EmbeddingModel, edges: np.ndarray):
        self.model, self.edges = model, edges
        ends = np.concatenate([edges[:, 0], edges[:, -1]])
        found = model.vectors(ends)
        for begin in range(0, len(found), _CANDIDATES):
            self._require_finite(found[begin : begin + _CANDIDATES])
        if model.relations is not None:
            self._require_finite(model.relations)
        vectors = torch.from_numpy(found).double()
        self.known: dict[str, torch.Tensor] = dict(
            zip(SIDES, vectors.chunk(2), strict=True)
        )  # what the end is looked for with
        self.truth = {"target": edges[:, -1], "source": edges[:, 0]}
        self.queries = {side: self._queries(side) for side in SIDES}
        pairs = model.score.compare.pairs
        others = {"target": self.known["source"], "source": self.known["target"]}
        self.true = {side: pairs(self.queries[side], others[side]) for side in SIDES}

    def _queries(self, side: str) -> torch.Tensor:
        model = self.model
        if model.relations is None:
            return self.known[side]
        width = self.edges.shape[1]
        ids = self.edges[:, 1] if width == 3 else np.zeros(len(self.edges), np.int64)
        if side == "source" and model.config.reciprocal:
            ids, side = ids + len(model.relations) // 2, "target"
            known = self.known["source"]
        else:
            known = self.known[side]
        return model.score.query(known, torch.from_numpy(model.relations[ids]).double(), side)

    def ranks(self, filtered: bool, drawn: np.ndarray | None) -> dict[str, Ranks]:
        ranks = {side: Ranks.none(len(self.edges)) for side in SIDES}
        known = {side: self._known_pairs(side) if filtered else self._own_pairs(side) for side in SIDES}
        if drawn is not None:
            vectors = self.model.vectors(drawn)
            for side, (edge, row) in known.items():
                at, column = matches(drawn, row)
                self._count(ranks[side], side, vectors, edge[at], column)
            return ranks
        for side, (edge, row) in known.items():
            by_row = np.argsort(row, kind="stable")
            known[side] = edge[by_row], row[by_row]
        for first, vectors in self.model.slices():
            for side, (edge, row) in known.items():
                here = slice(*np.searchsorted(row, [first, first + len(vectors)]))
                self._count(ranks[side], side, vectors, edge[here], row[here] - first)
        return ranks

    def _count(
        self, ranks: Ranks, side: str, vectors: np.ndarray, edge: np.ndarray, column: np.ndarray
    ) -> None:
        """Counts candidates ``vectors``; the pairs of ``edge[i]`` and candidate ``column[i]`` do not count."""
        queries, true = self.queries[side], self.true[side]
        for begin in range(0, len(vectors), _CANDIDATES):
            self._require_finite(vectors[begin : begin + _CANDIDATES])
            candidates = torch.from_numpy(np.ascontiguousarray(vectors[begin : begin + _CANDIDATES])).double()
            for start in range(0, len(queries), _EDGES):
                part = slice(start, min(start + _EDGES, len(queries)))
                scores = torch.empty(part.stop - start, len(candidates), dtype=torch.float64)
                self.model.score.compare.scores(queries[part], candidates, scores)
                ranks.add(part, scores, true[part])
                inside = (
                    (edge >= start)
                    & (edge < part.stop)
                    & (column >= begin)
                    & (column < begin + len(candidates))
                )
                if inside.any():
                    picked = scores.numpy()[edge[inside] - start, column[inside] - begin]
                    ranks.take_out(edge[inside], picked, true.numpy())

    def _require_finite(self, vectors: np.ndarray) -> None:
        """Raises NumericError where one is not: it would compare as the best of all."""
        if not np.isfinite(vectors).all():
            raise NumericError(
                f"{self.model.table.folder} has vectors that are infinite or not a number: the training diverged; "
                f"train again with --fresh and a lower learning rate ({self.model.config.learning_rate})"
            )

    def _own_pairs(self, side: str) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(len(self.edges)), self.truth[side]

    def _known_pairs(self, side: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns (edge, row): for every edge, all ends that make a known one, its own among them; each once."""
        near, far = (0, -1) if side == "target" else (-1, 0)
        mine = _keys(self.edges, near, self.model.buckets.num_relations)
        keys, of_edge = np.unique(mine, return_inverse=True)
        found_key, found_row = [], []
        for block in self._all_edges():
            key = _keys(block, near, self.model.buckets.num_relations)
            positions = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            match = keys[positions] == key
            found_key.append(positions[match])
            found_row.append(block[match, far])
        pairs = np.unique(np.stack([np.concatenate(found_key), np.concatenate(found_row)], axis=1), axis=0)
        edge, positions = matches(pairs[:, 0], of_edge)
        return edge, pairs[positions, 1]

    def _all_edges(self) -> Iterator[np.ndarray]:
        """Yields blocks of all known edges, int64, ends as rows."""
        buckets, runtime = self.model.buckets, self.model.runtime
        for split in HELD_OUT:
            if buckets.count(split):
                yield buckets.array(runtime, split).read(_TAG)
        starts, offsets = buckets.starts(runtime), buckets.division.starts
        array, slices = buckets.array(runtime, "edges"), buckets.division.parts
        for at in range(0, buckets.num_edges, _SCAN_EDGES):
            numbers = np.arange(at, min(at + _SCAN_EDGES, buckets.num_edges))
            block = array.read(_TAG, at, int(numbers[-1]) + 1).astype(np.int64)
            bucket = np.searchsorted(starts, numbers, side="right") - 1
            block[:, 0] += offsets[bucket // slices]
            block[:, -1] += offsets[bucket % slices]
            yield block


def _keys(edges: np.ndarray, near: int, relations: int) -> np.ndarray:
    """Returns int64: the end that is known and the relation as one number."""
    ends = edges[:, near].astype(np.int64)
    return ends if edges.shape[1] == 2 else ends * max(relations, 1) + edges[:, 1]
