"""Infer: the output of a model for all nodes, layer by layer, out of core; or of sampled batches.

Layer-wise: each layer reads its input rows (the features, or the output of the layer before) and writes its output as
an artifact, one row per node, ascending; in a graph with types one for each node type that later layers need. The
targets are taken in consecutive spans, and of each span one edge type after the other. The accumulators of a span are
in memory (inference/layer_sums.py); its sources, each once and in ascending order, stream past in parts that fit a
buffer, read page by page and merged. So a span may be as long as its accumulators allow, however many neighbours it
has, and every page of the input is read about once per span; a hub with more edges than memory holds only makes more
parts. What the budget has left keeps the rows that most edges lead from. Three threads overlap: finding the sources
of the next parts, reading them, computing.

The order of additions follows from graph, model and budget alone: the same call gives the same bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from outcrop.inference import layer_sums
from outcrop.inference.activations import write_rows
from outcrop.inference.division import divide, memory_of, scratch_bytes
from outcrop.inference.edge_counts import Counts
from outcrop.inference.inputs import InputRows
from outcrop.inference.steps import Step
from outcrop.inference.target_layer import TargetLayer
from outcrop.loading.buffers import HostBuffer, Lease, host_pool
from outcrop.nn.models import Model
from outcrop.nn.sparse import as_input, blocks_of
from outcrop.rows import DiskRows, RowSource, TieredRows
from outcrop.runtime import memory_tables
from outcrop.runtime.pipeline import Pipeline, Stage
from outcrop.runtime.runtime import Runtime
from outcrop.store.edges import Span, SpanLists, spans
from outcrop.store.graph import Graph
from outcrop.store.graph_types import NodeType
from outcrop.store.manifest import Manifest
from outcrop.store.minibatch import MiniBatch, as_tensor


@dataclass
class LayerStats:
    """Says what one layer did, in a graph with types for the nodes of ``node_type``.

    ``passes``: how often the neighbor lists were read, where the layer was computed by columns; 0: it was computed by
    spans of targets. ``edges``: that were read, with those from a node to itself; by spans without those, where the
    layer makes its own. ``output_bytes``: of the rows that it gave. ``rows_by_level``: where input rows came from.
    """

    layer: int
    node_type: str = ""
    rows: int = 0
    spans: int = 0
    parts: int = 0
    passes: int = 0
    edges: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    output_bytes: int = 0
    seconds: float = 0.0
    rows_by_level: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        if not self.node_type:
            del fields["node_type"]
        return fields


@dataclass
class _Work:
    """Holds one item on its way: rows of a node type to read, and what they are.

    ``span`` is the number of the span, ``targets`` how many it has. With ``part`` the rows are sources; else they are
    those of ``count`` targets from ``first`` on, to begin or (``finish``) to end with. Where the end does not need
    them, it reads none.
    """

    span: int
    targets: int
    node_type: int
    ids: np.ndarray
    first: int = 0
    count: int = 0
    finish: bool = False
    part: _PartArrays | None = None
    x: np.ndarray | None = None
    scale: np.ndarray | None = None
    lease: Lease[HostBuffer] | None = None


@dataclass(frozen=True)
class _PartArrays:
    """Holds the arrays of a :class:`layer_sums.Part`."""

    targets: np.ndarray
    rowptr: np.ndarray
    col: np.ndarray
    edge_type: int
    inverse: np.ndarray | None


class Layer:
    """Computes the layer of a step, over all nodes of its type, or over those that are wanted.

    Args:
        rows: The rows of each node type that the step reads, by its number; they are closed by who opened them.
        counts: None where no row is wanted twice and the layer does not scale by degrees.
        device: Where it is computed.
        held_bytes: Bytes of the budget that are taken already.
    """

    def __init__(
        self,
        step: Step,
        rows: Mapping[int, InputRows],
        counts: Counts | None,
        device: torch.device,
        runtime: Runtime,
        held_bytes: int = 0,
    ):
        self.graph, self._step, self._runtime = step.graph, step, runtime
        self._inputs, self._device = rows, device
        memory = memory_of(runtime)
        self.division = divide(step, memory, held_bytes)
        self._scale_file = None
        self._scales: RowSource | None = None
        if step.layer.uses_degrees:
            assert counts is not None
            self._scale_file = counts.array(runtime, "degree")
            scratch = memory_tables.READ_SCRATCH.bytes_of(memory)
            self._scales = DiskRows(self._scale_file, runtime, scratch_bytes=scratch)
        scratch = scratch_bytes(memory, step)
        self._rows = {number: of.open(runtime, scratch) for number, of in rows.items()}
        row_bytes = max(source.row_bytes for source in self._rows.values())
        if counts is not None and not self.division.whole:
            for number, share in _cache_shares(step, self.division.cache_bytes).items():
                nodes = self.graph.node_types[number]
                self._rows[number] = _with_cache(self._rows[number], counts, nodes, share, runtime)
        self._pool = host_pool(runtime, memory_tables.BATCH_BUFFERS, (self.division.rows * row_bytes,), 0)
        # The topology is read into memory of its own, while one range is in use at most two.
        pointers = 8 * (self.division.targets + 1) * max(len(step.num_edges), 1)
        read = 2 * (pointers + self.graph.spec("indices").stride_bytes * self.division.edges)
        self._held = [
            runtime.budget.reserve("infer-span", max(self.division.span_bytes - read, 0)),
            runtime.budget.reserve("infer-part", self.division.part_bytes),
        ]
        self.stats = LayerStats(step.index, step.to.target.name)

    @property
    def out_dim(self) -> int:
        return self._step.layer.out_dim

    def close(self) -> None:
        for source in self._rows.values():
            source.close()
        if self._scales is not None:
            self._scales.close()
        if self._scale_file is not None:
            self._scale_file.close()
        self._pool.close()
        for held in self._held:
            held.release()

    def outputs(self) -> Generator[np.ndarray, None, None]:
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
                    sums = self._step.layer.sums(work.targets, self.division.rows)
                    self.stats.spans += 1
                assert sums is not None
                out = self._compute(sums, work)
                del work
                if out is not None:
                    self.stats.rows += len(out)
                    yield out

    def _plan(self) -> Iterator[_Work]:
        division, step, layer = self.division, self._step, self._step.layer
        own = step.to.target.number
        found = spans(self.graph, self._runtime, division.targets, division.edges, step.wanted, step.to)
        for number, span in enumerate(found):
            targets = len(span.ids)
            starts = range(0, targets, division.rows)
            for start in starts if layer.targets_first else ():
                yield _Work(number, targets, own, span.ids[start : start + division.rows], start)
            for lists in span.lists:
                source = lists.edge_type.source.number
                for begin, end in lists.ranges():
                    for sources, part in _parts(span, lists, begin, end, layer, division.rows):
                        yield _Work(number, targets, source, sources, part=part)
            for start in starts:
                ids = span.ids[start : start + division.rows]
                read = ids if layer.targets_last else ids[:0]
                yield _Work(number, targets, own, read, start, len(ids), finish=True)

    def _read(self, work: _Work, stopped: threading.Event) -> _Work:
        if not len(work.ids):
            return work
        work.lease = self._pool.lease(stopped)
        rows = self._rows[work.node_type]
        out = work.lease.buffer.x[: len(work.ids) * rows.row_bytes]
        for level, count in rows.read_rows(work.ids, out).items():
            self.stats.rows_by_level[level] = self.stats.rows_by_level.get(level, 0) + count
        self._inputs[work.node_type].compare(work.ids, out)
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
            return self._step.layer.activate(out).cpu().numpy()
        assert x is not None
        if work.part is None:
            sums.begin(work.first, x)
        else:
            sums.add(self._part(work.part), x, scale)
            self.stats.parts += 1
            self.stats.edges += len(work.part.col)
        return None

    def _part(self, arrays: _PartArrays) -> layer_sums.Part:
        targets, rowptr, col = (
            as_tensor(array, self._device) for array in (arrays.targets, arrays.rowptr, arrays.col)
        )
        inverse = None if arrays.inverse is None else as_tensor(arrays.inverse, self._device)
        return layer_sums.Part(targets, rowptr, col, arrays.edge_type, inverse)

    def _tensor(self, work: _Work) -> torch.Tensor | None:
        """Returns the rows of ``work``, float32, on the device; they keep the buffer while they live."""
        rows = work.x
        if rows is None:
            return None
        assert work.lease is not None
        work.lease.hand_over(rows)
        work.lease.mark_taken()
        x = as_input(self._inputs[work.node_type].values(rows, self._device))
        return self._step.layer.enter(work.node_type, x)


def _parts(
    span: Span, lists: SpanLists, begin: int, end: int, layer: TargetLayer, most_rows: int
) -> Iterator[tuple[np.ndarray, _PartArrays]]:
    """Yields edges ``begin:end`` of ``lists``, cut into parts of at most ``most_rows`` different sources, by source:
    the sources, and the part. Lets go of what it needs no more, early.
    """
    edges = lists.read(begin, end)
    row, col = edges.row, edges.col
    del edges
    if layer.drops_loops:
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
    inverse = 1 / np.maximum(lists.counts, 1).astype(np.float32) if layer.uses_counts else None
    for part_number in range(count):
        mine = slice(int(bounds[part_number - 1]) if part_number else 0, int(bounds[part_number]))
        rows = row[mine]
        starts = np.flatnonzero(np.diff(rows, prepend=np.int32(-1)))
        part = _PartArrays(
            rows[starts].astype(np.int64),
            np.append(starts, len(rows)).astype(np.int32),
            column[mine] - np.int32(part_number * most_rows),
            lists.number,
            None if inverse is None else inverse[rows[starts]],
        )
        yield sources[part_number * most_rows : (part_number + 1) * most_rows].astype(np.int64), part


def _cache_shares(step: Step, cache_bytes: int) -> dict[int, int]:
    """Divides ``cache_bytes`` among the node types whose rows lie on disk, by the bytes that edges want of each."""
    wanted: dict[int, int] = {}
    for one in step.to.edge_types:
        if (shape := step.inputs[one.source.number]).stored:
            number = one.source.number
            wanted[number] = wanted.get(number, 0) + one.num_edges * shape.row_bytes
    total = sum(wanted.values())
    return {number: cache_bytes * count // total for number, count in wanted.items() if total}


def _with_cache(
    rows: RowSource, counts: Counts, of: NodeType, cache_bytes: int, runtime: Runtime
) -> RowSource:
    """Returns the rows that most edges lead from, in memory over ``rows``; ties: lower id.

    Only rows that are wanted twice.
    """
    nodes, fit = rows.num_rows, min(cache_bytes // (rows.row_bytes + 16), rows.num_rows)
    room = min(runtime.budget.free_bytes, memory_tables.HOT_USES.bytes_of(memory_of(runtime)))
    if fit == 0 or 12 * nodes > room:
        return rows
    with runtime.budget.reserve("infer-counts", 8 * nodes):
        array = counts.array(runtime, "uses")
        uses = array.read("infer-counts", of.first, of.first + nodes)
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


class ComputedLayer(Protocol):
    """Gives the output of a layer."""

    graph: Graph
    stats: LayerStats

    @property
    def out_dim(self) -> int: ...
    def outputs(self) -> Generator[np.ndarray, None, None]: ...
    def close(self) -> None: ...


def run_layer(
    layer: ComputedLayer,
    out: Path,
    config: dict[str, Any],
    inputs: dict[str, str],
    runtime: Runtime,
    classes: bool = False,
) -> Manifest:
    """Writes the output of ``layer`` to ``out``: array ``rows``, float32 [targets, out_dim], or its classes."""
    with closing(layer.outputs()) as blocks:  # its threads end before its memory goes
        width = None if classes else layer.out_dim
        return write_rows(layer.graph, blocks, width, out, config, inputs, runtime)


def first_layers(model: Model, depth: int, batch: MiniBatch) -> torch.Tensor:
    """Returns the output of the first ``depth`` layers for the seeds of a batch of ``depth`` hops, [num_seeds,
    out_dim].
    """
    hidden = as_input(batch.x, next(model.parameters()).dtype)
    for index, block in enumerate(blocks_of(batch, weighted=model.edge_weights)[:depth]):
        hidden = model.layer(index, hidden, block, batch.degree, batch.weight_sums)
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
