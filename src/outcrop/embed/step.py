"""One batch of training: vectors taken out, scores, gradients, one step of the optimizer for each node and relation.

Both ends of every edge are replaced by the same negatives of its chunk; the queries of both sides are one matrix, so
that the scores of a chunk are one product of 2 x chunk by negatives, and so is each of their gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

import outcrop._core as _core
from outcrop.config import EmbedConfig
from outcrop.embed.losses import loss_function
from outcrop.embed.scores import Score, score_function
from outcrop.embed.similarity import Dot
from outcrop.errors import BudgetError
from outcrop.runtime.runtime import Runtime

Tensor = torch.Tensor
Ends = tuple[Tensor, Tensor, Tensor]  # sources, targets, negatives
Queries = tuple[Tensor, Tensor, Callable[[Tensor, Tensor], None]]
TAG = "embed-batch"
_ID_BYTES = 96  # of a touched row: ids, and what the step sorts
_TILE_FLOATS = (
    1 << 20
)  # of scores that are made, turned into gradients and used up while they are in the cache
_LEAST_TILE = 64  # queries
_SLOTS = (
    4  # tasks of core/embed/compare.h that memory is counted for, on every machine; more where some is free
)


@dataclass(frozen=True)
class Batch:
    """Holds the row numbers of a batch, int64, where it is computed: arrays, or tensors on a GPU.

    Attributes:
        ids: [n], of sources, targets, and the negatives of every chunk.
        wanted: [2 b], what the queries look for, as they are computed together: targets, then sources.
        relation_ids: [b] or [2 b], rows of the relations.
    """

    ids: Any
    wanted: Any
    relation_ids: Any = None


@dataclass
class Relations:
    """Holds vectors and state of all relations; those of reciprocal ones follow the others.

    ``rows``: float32 [n, stride].
    """

    rows: np.ndarray
    count: int
    reciprocal: bool

    def ids(self, relation: np.ndarray) -> np.ndarray:
        """Returns int64: rows for looking for the target, then, where they are others, for the source."""
        relation = relation.astype(np.int64)
        return np.concatenate([relation, relation + self.count]) if self.reciprocal else relation


def step_kind(name: str) -> _core.StepKind:
    return getattr(_core.StepKind, name)


def stride(config: EmbedConfig, width: int) -> int:
    """Returns floats of a row: the vector, then the optimizer's state."""
    return width + _core.state_width(step_kind(config.optimizer), width)


def tile_queries(config: EmbedConfig) -> int:
    """Returns queries whose scores are made at a time."""
    queries = 2 * config.chunk
    tiles = min(-(-queries * config.negatives // _TILE_FLOATS), queries // _LEAST_TILE)
    return -(-queries // max(tiles, 1))


def most_rows(config: EmbedConfig) -> int:
    return 2 * config.batch + -(-config.batch // config.chunk) * config.negatives


def batch_bytes(config: EmbedConfig) -> int:
    """Returns what a batch needs at most: vectors and gradients, queries, a tile of scores, and what the step sorts."""
    rows, compare = most_rows(config), score_function(config.model, config.dim).compare
    held = 4 * (2 * rows + 4 * config.batch) * config.dim + _ID_BYTES * (rows + 2 * config.batch)
    if in_one_pass(config):
        return held + 4 * 4 * config.batch * config.dim + one_pass_bytes(config, _SLOTS)
    scores = tile_queries(config) * config.negatives * (2 if compare.needs_scores else 1)
    return held + 4 * (16 * config.chunk * config.dim + scores)


def in_one_pass(config: EmbedConfig) -> bool:
    """Tells whether the CPU makes scores, loss and gradients of a batch in one pass (core/embed/compare.h)."""
    return config.loss == "softmax" and isinstance(score_function(config.model, config.dim).compare, Dot)


def one_pass_bytes(config: EmbedConfig, slots: int) -> int:
    """Returns what that holds where ``slots`` tasks run at a time."""
    return _core.SoftmaxCompare.bytes(config.batch, config.chunk, config.negatives, config.dim, slots)


class Stepper:
    """Trains batches on a table of rows. Holds the buffers that a batch needs under the tag ``embed-batch``.

    Attributes:
        rate_share: What the learning rates of the batches to come are times.
    """

    device = torch.device("cpu")
    ahead = 0  # batches that are begun before the loss of one is asked for

    def __init__(self, config: EmbedConfig, relations: Relations | None, runtime: Runtime):
        self.config, self.relations, self.rate_share = config, relations, 1.0
        self.score: Score = score_function(config.model, config.dim)
        self._workers = runtime.workers
        # Not a method of the stepper: it would hold itself, and its memory, until garbage is collected.
        own = partial(_softmax, runtime.workers) if config.loss == "softmax" else None
        self._loss = own or loss_function(config.loss, config.margin)
        rows, self._tile, self._span = most_rows(config), tile_queries(config), config.chunk
        try:
            self._held = self._reserve(runtime, batch_bytes(config))
        except BudgetError as error:
            raise BudgetError(f"{error}, or lower --batch, --chunk, --negatives or --dim") from None
        self._one_pass = self._open_one_pass(runtime)
        # torch aligns its memory, NumPy does not, and on that the last bits of a matrix product may depend.
        self._vectors = torch.empty(rows, config.dim, device=self.device)
        self._gradients = torch.empty(rows, config.dim, device=self.device)
        self._scores = torch.empty(0 if self._one_pass else self._tile * config.negatives, device=self.device)
        self._spaces: dict[str, Tensor] = {}
        self._relation_rows: Any = None if relations is None else relations.rows
        self._rates = (config.learning_rate, config.relation_learning_rate or config.learning_rate)
        self._nodes, self._edges = map(self._options, self._rates)

    def _open_one_pass(self, runtime: Runtime) -> _core.SoftmaxCompare | None:
        """Opens what makes scores, loss and gradients in one pass; None where that is done in another way."""
        config, slots = self.config, _SLOTS
        if not in_one_pass(config):
            return None
        if (threads := runtime.workers.threads) > slots:
            more = one_pass_bytes(config, threads) - one_pass_bytes(config, slots)
            with suppress(BudgetError):  # then some threads have nothing to do
                self._more_held, slots = self._reserve(runtime, more), threads
        self._span = -(-config.batch // config.chunk) * config.chunk
        return _core.SoftmaxCompare(
            runtime.workers, config.batch, config.chunk, config.negatives, config.dim, min(slots, threads)
        )

    def _options(self, rate: float) -> _core.StepOptions:
        options = _core.StepOptions()
        options.kind, options.rate = step_kind(self.config.optimizer), rate
        return options

    def start(
        self,
        rows: Any,
        source: np.ndarray,
        relation: np.ndarray | None,
        target: np.ndarray,
        negatives: list[np.ndarray],
        step: int,
    ) -> Callable[[], float]:
        """Begins one batch.

        Args:
            rows: float32 [n, stride], changed in place.
            source, target: int64 [b]: rows of the ends of the edges.
            relation: [b], or None.
            negatives: Rows for each chunk of edges.
            step: Number of the step in the whole training, from 1.

        Returns:
            What waits for the batch and tells the sum of the losses of all edges, both sides; to be called before
            ``ahead`` + 1 more batches have begun.
        """
        relation_ids = None
        if self.relations is not None:
            assert relation is not None
            relation_ids = self.relations.ids(relation)
        sizes = [len(others) for others in negatives]
        span = self._span if len(set(sizes)) == 1 else self.config.chunk
        wanted = self._wanted(source, target, span if self._one_pass else self.config.chunk)
        batch = self._sent(np.concatenate([source, target, *negatives]), wanted, relation_ids)
        x, gx = self._vectors[: len(batch.ids)], self._gradients[: len(batch.ids)]
        self._take(rows, batch.ids, x)
        self._clear(gx[2 * len(source) :])  # those of ends are written, those of candidates added to
        r = gr = None
        if batch.relation_ids is not None:
            shape = len(batch.relation_ids), self.score.relation_width(self.config.dim)
            r, gr = self._space("relations", *shape), self._space("to relations", *shape)
            self._take(self._relation_rows, batch.relation_ids, r)
        loss = self._losses((x, gx), (r, gr), batch, len(source), sizes, span)
        for options, rate in zip((self._nodes, self._edges), self._rates, strict=True):
            options.step, options.rate = step, rate * self.rate_share
        self._step(rows, batch.ids, gx, self._nodes)
        if gr is not None:
            self._step(self._relation_rows, batch.relation_ids, gr, self._edges)
        return self._told(loss)

    def run(self, *batch: Any) -> float:
        """Does :meth:`start` and returns what it tells."""
        return self.start(*batch)()

    def _losses(
        self,
        vectors: tuple[Tensor, Tensor],
        relations: tuple[Tensor | None, Tensor | None],
        batch: Batch,
        count: int,
        sizes: list[int],
        span: int,
    ) -> Any:
        """Returns the loss of ``count`` edges; gradients go to the second of either pair, which is 0 for candidates.

        Args:
            sizes: Negatives of each chunk.
            span: Edges that are computed together: a chunk, or several with as many negatives each.
        """
        (x, gx), (r, gr), chunk = vectors, relations, self.config.chunk
        ends = 2 * count + np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        loss = 0.0
        for begin in range(0, count, span):
            part = slice(begin, min(begin + span, count))
            of_targets = slice(count + part.start, count + part.stop)
            candidates = slice(int(ends[begin // chunk]), int(ends[-(-part.stop // chunk)]))
            loss += self._chunks(
                (x[part], x[of_targets], x[candidates]),
                (gx[part], gx[of_targets], gx[candidates]),
                self._of_relations(r, part, count),
                self._of_relations(gr, part, count),
                (batch.ids[candidates], batch.wanted[2 * part.start : 2 * part.stop]),
            )
        return loss

    def _wanted(self, source: np.ndarray, target: np.ndarray, together: int) -> np.ndarray:
        """Returns what the queries look for, of ``together`` edges after the other: targets, then sources."""
        parts = [slice(at, at + together) for at in range(0, len(source), together)]
        return np.concatenate([end[part] for part in parts for end in (target, source)])

    def _sent(self, ids: np.ndarray, wanted: np.ndarray, relation_ids: np.ndarray | None) -> Batch:
        """Returns the row numbers where the batch is computed."""
        return Batch(ids, wanted, relation_ids)

    def _told(self, loss: Any) -> Callable[[], float]:
        """Returns what tells a loss, which may not be made yet."""
        value = float(loss)
        return lambda: value

    def _reserve(self, runtime: Runtime, num_bytes: int) -> Any:
        return runtime.budget.reserve(TAG, num_bytes)

    def _space(self, name: str, rows: int, width: int) -> Tensor:
        """Returns memory of ``name`` with anything in it, until the next batch asks for it: memory that is asked of the
        system for each batch would be cleared, page by page.
        """
        kept = self._spaces.get(name)
        if kept is None or len(kept) < rows:
            kept = self._spaces[name] = torch.empty(rows, width)
        return kept[:rows]

    def _clear(self, out: Tensor) -> None:
        out.numpy().fill(0)  # torch would wake threads for it, which then wait busily for more

    def _take(self, rows: Any, ids: Any, out: Tensor) -> None:
        """Fills ``out[:] = rows[ids, : out.shape[1]]``."""
        _core.take_rows(rows, out.shape[1], ids, out.numpy(), self._workers)

    def _step(self, rows: Any, ids: Any, gradients: Tensor, options: _core.StepOptions) -> None:
        """Makes one step of each different row of ``ids`` by the sum of its gradients."""
        _core.step_rows(rows, gradients.shape[1], ids, gradients.numpy(), options, self._workers)

    def _leave_out(self, scores: Tensor, negatives: Any, wanted: Any) -> None:
        """Writes -inf where a negative is what the query looks for."""
        _core.leave_out(scores.numpy(), negatives, wanted, self._workers)

    def _add_size_gradients(self, x: Tensor, out: Tensor) -> None:
        """Adds the gradient of ``n3 * sum |x|^3 + l2 * sum x^2``, moduli being those of complex numbers where x has
        some.
        """
        config = self.config
        if config.n3 or config.l2:
            _core.add_size_gradients(
                x.numpy(), self.score.complex_numbers, config.n3, config.l2, out.numpy(), self._workers
            )

    def begin(self) -> None:
        """Takes ``relations.rows`` as they are now, where they are trained elsewhere."""

    def sync_relations(self) -> None:
        """Brings ``relations.rows`` up to date, where they are trained elsewhere."""

    def close(self) -> None:
        """Waits for what has been begun and nobody asked for, as after an error."""

    def _of_relations(self, r: Tensor | None, part: slice, count: int) -> list[Tensor]:
        if r is None:
            return []
        if len(r) == count:
            return [r[part]]
        return [r[part], r[count + part.start : count + part.stop]]

    def _chunks(
        self,
        ends: Ends,
        to_ends: Ends,
        relations: list[Tensor],
        to_relations: list[Tensor],
        rows: tuple[Any, Any],
    ) -> Any:
        """Returns the loss of a chunk of edges, or of several with as many negatives each, and its gradients.

        Args:
            to_ends: Gradients: those of both ends are written, those of candidates added to.
            to_relations: Gradients, written.
            rows: Rows of the negatives, and of what each query looks for: an edge is no negative of itself.
        """
        queries, positive, back = self._queries(ends, to_ends, relations, to_relations)
        to_queries, to_positive = self._space("to queries", *queries.shape), torch.empty_like(positive)
        loss = self._compare(queries, positive, ends[2], rows, (to_queries, to_positive, to_ends[2]))
        back(to_queries, to_positive)
        for out, x in zip((*to_ends[:2], *to_relations), (*ends[:2], *relations), strict=True):
            if x.shape[1] == self.config.dim:  # angles have no size
                self._add_size_gradients(x, out)
        return loss

    def _compare(
        self,
        queries: Tensor,
        positive: Tensor,
        candidates: Tensor,
        rows: tuple[Any, Any],
        to: tuple[Tensor, Tensor, Tensor],
    ) -> Any:
        """Returns the loss of queries against candidates: a number, or float64 [].

        Args:
            to: Gradients: those of queries and positive are written, those of candidates added to.
        """
        compare, loss = self.score.compare, 0.0
        (negatives, wanted), (to_queries, to_positive, to_candidates) = rows, to
        if self._one_pass is not None:
            return self._one_pass.run(
                queries.numpy(), positive.numpy(), candidates.numpy(), negatives, wanted,
                to_queries.numpy(), to_positive.numpy(), to_candidates.numpy(),
            )  # fmt: skip
        for begin in range(0, len(queries), self._tile):
            tile = slice(begin, begin + self._tile)
            some = queries[tile]
            scores = self._scores[: len(some) * len(candidates)].view(len(some), -1)
            compare.scores(some, candidates, scores)
            kept = scores.clone() if compare.needs_scores else scores
            self._leave_out(scores, negatives, wanted[tile])
            loss += self._loss(positive[tile], scores, to_positive[tile])
            compare.gradients(some, candidates, kept, scores, to_queries[tile], to_candidates)
        return loss

    def _queries(
        self, ends: Ends, to_ends: Ends, relations: list[Tensor], to_relations: list[Tensor]
    ) -> Queries:
        make = self._by_autograd if self.score.product is None else self._product
        return make(ends, to_ends, relations, to_relations)

    def _product(
        self, ends: Ends, to_ends: Ends, relations: list[Tensor], to_relations: list[Tensor]
    ) -> Queries:
        """Computes what :meth:`_by_autograd` does, for scores that are products, in two calls."""
        kind, n = self.score.product, len(ends[0])
        assert kind is not None
        queries, positive = self._space("queries", 2 * n, self.config.dim), torch.empty(2 * n)
        relation, inverse = _two(relations)
        to_relation, to_inverse = _two(to_relations)
        source, target = ends[0].numpy(), ends[1].numpy()
        _core.make_queries(
            kind, source, target, relation, inverse, queries.numpy(), positive.numpy(), self._workers
        )

        def back(to_queries: Tensor, to_positive: Tensor) -> None:
            _core.query_gradients(
                kind, source, target, relation, inverse, to_queries.numpy(), to_positive.numpy(),
                to_ends[0].numpy(), to_ends[1].numpy(), to_relation, to_inverse, self._workers,
            )  # fmt: skip

        return queries, positive, back

    def _by_autograd(
        self, ends: Ends, to_ends: Ends, relations: list[Tensor], to_relations: list[Tensor]
    ) -> Queries:
        """Makes queries for both ends and scores of the edges, and what takes gradients by both to the vectors."""
        leaves = [t.detach().requires_grad_() for t in (*ends[:2], *relations)]
        source, target, *rs = leaves
        with torch.enable_grad():
            to_target = self.score.query(source, rs[0] if rs else None, "target")
            if len(rs) == 2:  # another relation, looking for its target
                to_source = self.score.query(target, rs[1], "target")
            else:
                to_source = self.score.query(target, rs[0] if rs else None, "source")
            queries = _in_chunks(to_target, to_source, self.config.chunk)
            positive = self.score.compare.pairs(queries, _in_chunks(target, source, self.config.chunk))

        def back(to_queries: Tensor, to_positive: Tensor) -> None:
            found = torch.autograd.grad([queries, positive], leaves, [to_queries, to_positive])
            for out, gradient in zip((*to_ends[:2], *to_relations), found, strict=True):
                out.copy_(gradient)

        return queries.detach(), positive.detach(), back


def _in_chunks(first: Tensor, second: Tensor, chunk: int) -> Tensor:
    """Returns rows of the first chunk of ``first``, then of ``second``, then of the next chunk of either, and so on."""
    return torch.cat([x for both in zip(first.split(chunk), second.split(chunk), strict=True) for x in both])


def _two(tensors: list[Tensor]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns the first two as arrays, None where there are fewer."""
    first, second, *_ = [*(t.numpy() for t in tensors), None, None]
    return first, second


def _softmax(workers: _core.WorkerPool, positive: Tensor, negative: Tensor, to_positive: Tensor) -> float:
    """Computes :func:`outcrop.embed.losses.softmax`, in one pass."""
    return _core.softmax(negative.numpy(), positive.numpy(), to_positive.numpy(), workers)
