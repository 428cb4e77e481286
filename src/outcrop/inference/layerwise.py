"""Infer: the output of a model for all nodes, layer by layer, out of core; or of sampled batches.

Layer-wise: each layer reads its input rows (the features, or the output of the layer before) and writes its output as
an artifact, one row per node, ascending. The targets are taken in consecutive spans. The accumulators of a span are in
memory (inference/layer_sums.py); its sources, each once and in ascending order, stream past in parts that fit a
buffer, read page by page and merged. So a span may be as long as its accumulators allow, however many neighbours it
has, and every page of the input is read about once per span; a hub with more edges than memory holds only makes more
parts. What the budget has left keeps the rows that most edges lead from. Three threads overlap: finding the sources
of the next parts, reading them, computing.

The order of additions follows from graph, model and budget alone: the same call gives the same bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outcrop.inference import layer_sums
from outcrop.inference.activations import write_rows
from outcrop.inference.division import divide, memory_of
from outcrop.inference.edge_counts import Counts
from outcrop.loading.buffers import HostBuffer, Lease, host_pool
from outcrop.nn.models import Model
from outcrop.nn.sparse import as_input, blocks_of
from outcrop.rows import DiskRows, RowSource, TieredRows
from outcrop.runtime import memory_tables
from outcrop.runtime.pipeline import Pipeline, Stage
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray
from outcrop.store.edges import Span, spans
from outcrop.store.graph import Graph
from outcrop.store.manifest import Manifest
from outcrop.store.minibatch import MiniBatch, as_tensor


@dataclass
class LayerStats:
    """Says what one layer did. ``rows_by_level``: where input rows came from."""

    layer: int
    rows: int = 0
    spans: int = 0
    parts: int = 0
    edges: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    rows_by_level: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Work:
    """Holds one item on its way: rows to read, and what they are.

    ``span`` is the number of the span, ``targets`` how many it has. With ``part`` the rows are sources; else they are
    those of ``count`` targets from ``first`` on, to begin or (``finish``) to end with. Where they came first, the end
    reads no rows.
    """

    span: int
    targets: int
    ids: np.ndarray
    first: int = 0
    count: int = 0
    finish: bool = False
    part: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    x: np.ndarray | None = None
    scale: np.ndarray | None = None
    lease: Lease[HostBuffer] | None = None


class Layer:
    """Computes one layer over all nodes, or over ``wanted`` of them.

    Args:
        source: The rows of all nodes, open: features, or the output of the layer before.
        counts: None where no row is wanted twice and the layer is not GCN.
        wanted: int64, ascending, distinct; None = all.
    """

    def __init__(
        self,
        graph: Graph,
        source: DiskArray,
        model: Model,
        index: int,
        counts: Counts | None,
        runtime: Runtime,
        wanted: np.ndarray | None = None,
    ):
        self.graph, self._model, self._index, self._runtime = graph, model, index, runtime
        self._conv, self._wanted = model.convs[index], wanted
        self._dtype = getattr(torch, source.spec.dtype)
        self._device = next(model.parameters()).device
        self.division = divide(
            graph,
            self._conv,
            source.row_bytes,
            self._dtype != torch.float32,
            graph.num_nodes if wanted is None else len(wanted),
            memory_of(runtime),
        )
        self._drops_loops, self._targets_first = layer_sums.needs(self._conv)
        scratch = memory_tables.READ_SCRATCH.bytes_of(memory_of(runtime))
        self._scale_file = None
        self._scales: RowSource | None = None
        if model.uses_degrees:
            assert counts is not None
            self._scale_file = counts.array(runtime, "degree")
            self._scales = DiskRows(self._scale_file, runtime, scratch_bytes=scratch)
        self._rows: RowSource = DiskRows(source, runtime, scratch_bytes=scratch)
        if counts is not None and not self.division.whole:
            self._rows = _with_cache(self._rows, counts, self.division.cache_bytes, runtime)
        self._row_bytes = source.row_bytes
        self._pool = host_pool(
            runtime, memory_tables.BATCH_BUFFERS, (self.division.rows * self._row_bytes,), 0
        )
        # The topology is read into memory of its own, while one range is in use at most two.
        read = 2 * (
            8 * (self.division.targets + 1) + graph.spec("indices").stride_bytes * self.division.edges
        )
        self._held = [
            runtime.budget.reserve("infer-span", max(self.division.span_bytes - read, 0)),
            runtime.budget.reserve("infer-part", self.division.part_bytes),
        ]
        self.stats = LayerStats(index)

    @property
    def out_dim(self) -> int:
        return layer_sums.widths(self._conv)[1]

    def close(self) -> None:
        self._rows.close()
        if self._scales is not None:
            self._scales.close()
        if self._scale_file is not None:
            self._scale_file.close()
        self._pool.close()
        for held in self._held:
            held.release()

    def outputs(self) -> Iterator[np.ndarray]:
        """Yields float32 [n, out_dim], n nodes at a time, in order."""
        stopped = threading.Event()

        def stop() -> None:
            stopped.set()
            self._pool.wake()

        pipeline: Pipeline[_Work] = Pipeline(
            self._plan(),
            [
                Stage("find", lambda work: work, depth=1),
                Stage("read", lambda work: self._read(work, stopped), depth=1),
            ],
            name="infer",
            while_waiting=self._pool.check_not_starved,
            on_cancel=stop,
        )
        with closing(pipeline):
            sums: layer_sums.LayerSums | None = None
            while (work := next(pipeline, None)) is not None:
                if work.span == self.stats.spans:
                    sums = None  # the accumulators of the span before go first
                    sums = layer_sums.layer_sums(self._conv, work.targets, self.division.rows)
                    self.stats.spans += 1
                assert sums is not None
                out = self._compute(sums, work)
                del work
                if out is not None:
                    self.stats.rows += len(out)
                    yield out

    def _plan(self) -> Iterator[_Work]:
        division = self.division
        found = spans(self.graph, self._runtime, division.targets, division.edges, self._wanted)
        for number, span in enumerate(found):
            targets = len(span.ids)
            starts = range(0, targets, division.rows)
            for start in starts if self._targets_first else ():
                yield _Work(number, targets, span.ids[start : start + division.rows], start)
            for begin, end in span.ranges():
                for sources, part in _parts(span, begin, end, self._drops_loops, division.rows):
                    yield _Work(number, targets, sources, part=part)
            for start in starts:
                ids = span.ids[start : start + division.rows]
                read = ids[:0] if self._targets_first else ids
                yield _Work(number, targets, read, start, len(ids), finish=True)

    def _read(self, work: _Work, stopped: threading.Event) -> _Work:
        if not len(work.ids):
            return work
        work.lease = self._pool.lease(stopped)
        out = work.lease.buffer.x[: len(work.ids) * self._row_bytes]
        for level, rows in self._rows.read_rows(work.ids, out).items():
            self.stats.rows_by_level[level] = self.stats.rows_by_level.get(level, 0) + rows
        work.x = out
        if self._scales is not None:
            degree = np.empty(len(work.ids), np.int32)
            self._scales.read_rows(work.ids, degree.view(np.uint8))
            work.scale = 1 / np.sqrt(degree.astype(np.float32) + 1)
        return work

    def _compute(self, sums: layer_sums.LayerSums, work: _Work) -> np.ndarray | None:
        x = self._tensor(work)
        scale = None if work.scale is None else torch.from_numpy(work.scale).to(self._device)
        if work.finish:
            out = sums.finish(work.first, work.count, x, scale)
            return self._model.activate(self._index, out).cpu().numpy()
        assert x is not None
        if work.part is None:
            sums.begin(work.first, x)
        else:
            targets, rowptr, col = (as_tensor(array, self._device) for array in work.part)
            sums.add(layer_sums.Part(targets, rowptr, col), x, scale)
            self.stats.parts += 1
            self.stats.edges += len(col)
        return None

    def _tensor(self, work: _Work) -> torch.Tensor | None:
        """Returns the rows of ``work``, float32, on the device; they keep the buffer while they live."""
        rows = work.x
        if rows is None:
            return None
        assert work.lease is not None
        work.lease.hand_over(rows)
        work.lease.mark_taken()
        x = torch.from_numpy(rows).view(self._dtype).reshape(len(work.ids), -1)
        return as_input(x.to(self._device))


def _parts(
    span: Span, begin: int, end: int, drop_loops: bool, most_rows: int
) -> Iterator[tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Yields edges ``begin:end`` of ``span``, cut into parts of at most ``most_rows`` different sources, by source: the
    sources, and targets, rowptr and col as in :class:`layer_sums.Part`. Lets go of what it needs no more, early.
    """
    edges = span.read(begin, end)
    row, col = edges.row, edges.col
    del edges
    if drop_loops:
        keep = col != span.ids[row]
        row, col = row[keep], col[keep]
        del keep
    sources = np.unique(col)
    column = np.searchsorted(sources, col).astype(np.int32)
    del col
    count = -(-len(sources) // most_rows)
    if count > 1:
        number = column // np.int32(most_rows)
        if count <= 1 << 16:
            number = number.astype(np.uint16)  # which NumPy sorts by radix
        order = np.argsort(number, kind="stable")  # edges stay sorted by target
        column, row = column[order], row[order]
        bounds = np.cumsum(np.bincount(number, minlength=count))
        del number, order
    else:
        bounds = np.array([len(column)])
    for part_number in range(count):
        mine = slice(int(bounds[part_number - 1]) if part_number else 0, int(bounds[part_number]))
        rows = row[mine]
        starts = np.flatnonzero(np.diff(rows, prepend=np.int32(-1)))
        part = (
            rows[starts].astype(np.int64),
            np.append(starts, len(rows)).astype(np.int32),
            column[mine] - np.int32(part_number * most_rows),
        )
        yield sources[part_number * most_rows : (part_number + 1) * most_rows].astype(np.int64), part


def _with_cache(rows: RowSource, counts: Counts, cache_bytes: int, runtime: Runtime) -> RowSource:
    """Returns the rows that most edges lead from, in memory over ``rows``; ties: lower id.

    Only rows that are wanted twice.
    """
    nodes, fit = rows.num_rows, min(cache_bytes // (rows.row_bytes + 16), rows.num_rows)
    room = min(runtime.budget.free_bytes, memory_tables.HOT_USES.bytes_of(memory_of(runtime)))
    if fit == 0 or 12 * nodes > room:
        return rows
    with runtime.budget.reserve("infer-counts", 8 * nodes):
        array = counts.array(runtime, "uses")
        uses = array.read("infer-counts")
        array.close()
        least = max(int(np.partition(uses, nodes - fit)[nodes - fit]), 1)
        above = np.flatnonzero(uses > least)
        ties = np.flatnonzero(uses == least)[: fit - len(above)] if least > 1 else above[:0]
        hot = np.sort(np.concatenate([above, ties])).astype(np.int64)
        del uses, above, ties
    if not len(hot):
        return rows
    held = runtime.budget.empty("infer-cache", len(hot) * rows.row_bytes)
    rows.read_rows(hot, held)
    return TieredRows(hot, held, rows, runtime)


def run_layer(
    layer: Layer, out: Path, config: dict[str, Any], inputs: dict[str, str], runtime: Runtime
) -> Manifest:
    """Writes the output of ``layer`` to ``out``: array ``rows``, float32 [targets, out_dim]."""
    return write_rows(layer.graph, layer.outputs(), layer.out_dim, out, config, inputs, runtime)


def first_layers(model: Model, depth: int, batch: MiniBatch) -> torch.Tensor:
    """Returns the output of the first ``depth`` layers for the seeds of a batch of ``depth`` hops, [num_seeds,
    out_dim].
    """
    hidden = as_input(batch.x, next(model.parameters()).dtype)
    for index, block in enumerate(blocks_of(batch)[:depth]):
        hidden = model.layer(index, hidden, block, batch.degree)
    return hidden


def scores_of(
    compute: Callable[[MiniBatch], torch.Tensor], batches: Iterable[MiniBatch]
) -> Iterator[np.ndarray]:
    """Yields what ``compute`` gives for the seeds of each batch, float32 [num_seeds, out_dim]."""
    iterator = iter(batches)
    try:
        while (batch := next(iterator, None)) is not None:
            found = compute(batch)
            del batch
            yield found.cpu().numpy()
    finally:
        if (close := getattr(iterator, "close", None)) is not None:
            close()
