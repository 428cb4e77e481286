"""Derive: rows for the nodes of a type that has none, means of the rows of their neighbors, stored for good.

The means are added up as a layer of a model is (inference/layerwise.py), in float32: out of core, whatever a span of
targets reads. Rows are written beside the arrays of the graph, in the hidden folder ``.derive``; then they are moved
in, and the manifest that names them replaces the one before. A kill leaves the graph as it was, or with its new rows.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from outcrop.config import format_bytes
from outcrop.errors import ArgumentError, BudgetError, IoError
from outcrop.inference.division import divide, memory_of
from outcrop.inference.inputs import StoredRows, shape_of
from outcrop.inference.layer_sums import AccumulatorBytes, LayerSums, Part
from outcrop.inference.layerwise import Layer
from outcrop.inference.steps import Step
from outcrop.inference.target_layer import TargetLayer
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.progress import Progress
from outcrop.runtime.runtime import Runtime
from outcrop.runtime.smallest_budget import naming_smallest
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter, storage_dtype
from outcrop.store.graph import Graph, open_graph
from outcrop.store.graph_types import EdgeType, ListsTo, NodeType, RowFile
from outcrop.store.lock import only_process_in
from outcrop.store.manifest import ArraySpec
from outcrop.store.record import align_page

DTYPES = ("float32", "float16", "bfloat16")  # that rows can be stored in
DERIVED = "derived"  # what the manifest says of a node type whose rows were derived
_FOLDER = ".derive"
_TASK = "derive"


@dataclass(frozen=True)
class DeriveReport:
    """Tells what :func:`derive` did.

    Attributes:
        array: What the rows are called in the manifest of the graph.
        rows, columns, dtype: Their number, width and type.
        made: Whether they were made now; else they were there, and nothing was read.
        spans: Runs of consecutive nodes that were added up at a time.
        predicted_bytes_written: What was to be written, exactly.
    """

    array: str
    rows: int
    columns: int
    dtype: str
    made: bool = True
    spans: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    predicted_bytes_written: int = 0
    peak_host_bytes: int = 0


@dataclass(frozen=True)
class Derivation:
    """Says which rows are derived, checked.

    Attributes:
        edges: The edge type whose sources are averaged for each target.
        source: Rows of the sources.
        dtype: What the means are stored in.
    """

    graph: Graph
    edges: EdgeType
    source: RowFile
    dtype: str

    @property
    def target(self) -> NodeType:
        """Returns the type of the nodes that get rows."""
        return self.edges.target

    @property
    def width(self) -> int:
        """Returns the values of a row."""
        return self.source.width

    @property
    def stored(self) -> dict[str, str]:
        """Returns what the manifest says of it."""
        return {"mean": self.edges.source.name, "by": self.edges.relation, "dtype": self.dtype}

    @property
    def is_there(self) -> bool:
        """Tells whether the graph has these rows, derived so."""
        listed = self.graph.manifest.attributes["node_types"]
        return listed[self.target.number].get(DERIVED) == self.stored

    @property
    def step(self) -> Step:
        """Returns the derivation as a step of inference."""
        inputs = {self.edges.source.number: shape_of(self.source)}
        return Step(self.graph, 0, ListsTo(self.target, (self.edges,)), _Means(self.width), inputs)

    @property
    def output_bytes(self) -> int:
        """Counts the bytes that are written: rows, and checksums of their pages."""
        data = self.target.num_nodes * self.width * storage_dtype(self.dtype).itemsize
        return align_page(data) + align_page(4 * -(-data // PAGE_BYTES))


def checked_derivation(graph: Graph, node_type: str, mean: str, by: str, dtype: str | None) -> Derivation:
    """Checks what is asked for, before any work starts.

    Args:
        node_type: Name of the type whose nodes get rows.
        mean: Name of the type whose rows are averaged.
        by: Relation of the edges that lead from these to those.
        dtype: One of :data:`DTYPES`; None: that of the rows that are averaged where it is one, else ``float32``.

    Raises:
        ArgumentError: The graph has no such types, nothing to average, or rows there already.
    """
    if not graph.is_typed:
        raise ArgumentError(
            f"{graph.path} has no types of nodes: rows are derived from those of another type"
        )
    edges = graph.edge_type((mean, by, node_type))
    source = [one for one in graph.row_files if one.owner == edges.source]
    if not source:
        raise ArgumentError(f"node type {mean!r} of {graph.path} has no rows to average: name one that has")
    if dtype is not None and dtype not in DTYPES:
        raise ArgumentError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
    own = source[0].dtype
    found = Derivation(graph, edges, source[0], dtype or (own if own in DTYPES else "float32"))
    has_rows = any(one.owner == edges.target for one in graph.row_files)
    if has_rows and not found.is_there:
        raise ArgumentError(
            f"node type {node_type!r} of {graph.path} has rows already: derive those of a type that has none, or "
            "import the graph again without them"
        )
    return found


def derive(asked: Derivation, limit: int, progress: Progress | bool | None = None) -> DeriveReport:
    """Stores the rows in the graph, within ``limit`` bytes of memory; where they are there it does nothing.

    Raises:
        BudgetError: The budget cannot hold one part; names the smallest that can.
        IoError: The disk is full or refuses, or another process derives rows of this graph.
        FormatError: The graph was replaced meanwhile.
        ArgumentError: A mean is too large for the dtype.
    """
    array, rows, path = asked.target.array("features"), asked.target.num_nodes, asked.graph.path
    if asked.is_there:
        return DeriveReport(array, rows, asked.width, asked.dtype, made=False)

    def fits(memory: int) -> bool:
        try:
            with Runtime(memory) as runtime:
                divide(asked.step, memory_of(runtime))
        except BudgetError:
            return False
        return True

    with (
        naming_smallest(limit, lambda: fits, "add up one part of the rows", ""),
        only_process_in(path / _FOLDER),
        Runtime(limit, progress=progress) as runtime,
        manifests.naming_files(path),
    ):
        work = path / _FOLDER
        try:
            for left in work.iterdir():
                left.unlink()
            _check_space(path, asked.output_bytes)
            specs, spans = _write(asked, work, runtime)
            asked.graph.require_unchanged()
            _publish(asked, work, specs)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        counters = runtime.io.counters
        return DeriveReport(
            array,
            rows,
            asked.width,
            asked.dtype,
            spans=spans,
            bytes_read=counters.read_bytes,
            bytes_written=counters.write_bytes,
            predicted_bytes_written=asked.output_bytes,
            peak_host_bytes=runtime.budget.peak_bytes,
        )


def _check_space(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path).free
    if needed > free:
        raise IoError(
            errno.ENOSPC,
            f"{path} has {format_bytes(free)} free, the derived rows need {format_bytes(needed)}: free some space",
        )


@torch.no_grad()
def _write(asked: Derivation, work: Path, runtime: Runtime) -> tuple[Mapping[str, ArraySpec], int]:
    """Writes the rows; returns the arrays, and the spans that they took."""
    rows = StoredRows(asked.graph.open_rows(runtime, asked.source), asked.source)
    arrays: dict[str, ArraySpec] = {}
    runtime.progress.start(_TASK, asked.target.num_nodes, "nodes")
    try:
        layer = Layer(asked.step, {asked.edges.source.number: rows}, None, torch.device("cpu"), runtime)
        try:
            name = asked.target.array("features")
            writer = ArrayWriter(runtime, work, name, asked.dtype, (asked.width,), page_sums=True)
            done = 0
            for block in layer.outputs():
                stored = _narrowed(block, asked.dtype)
                _check_finite(asked, stored, done)
                writer.append(stored)
                done += len(block)
                runtime.progress.advance(_TASK, len(block))
            writer.finish_into(arrays)
        finally:
            layer.close()
    finally:
        rows.close()
    runtime.progress.finish(_TASK)
    return arrays, layer.stats.spans


def _narrowed(block: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return torch.from_numpy(block).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    with np.errstate(over="ignore"):
        return block.astype(storage_dtype(dtype), copy=False)


def _check_finite(asked: Derivation, stored: np.ndarray, first: int) -> None:
    """Raises ArgumentError for means that their dtype cannot hold, unless features may be NaN and infinity.

    Args:
        stored: Rows as they are stored, bfloat16 as uint16.
        first: Number of the first of them.
    """
    if asked.graph.manifest.config.get("allow_nonfinite"):
        return
    good = (stored & 0x7F80) != 0x7F80 if stored.dtype == np.uint16 else np.isfinite(stored)
    if good.all():
        return
    row = int(np.argmin(good.all(axis=1)))
    column = int(np.argmin(good[row]))
    wide = "" if asked.dtype == "float32" else "choose --dtype float32 (dtype='float32'), or "
    raise ArgumentError(
        f"{asked.graph.path}: column {column} of the mean of node {first + row} of type {asked.target.name!r} is not "
        f"finite as {asked.dtype}: {wide}import smaller values of {asked.edges.source.name!r}"
    )


def _publish(asked: Derivation, work: Path, specs: Mapping[str, ArraySpec]) -> None:
    """Moves the arrays into the graph, then replaces its manifest."""
    path, manifest = asked.graph.path, asked.graph.manifest
    manifests.sync_folder(work)
    for spec in specs.values():
        (work / spec.file).replace(path / spec.file)
    manifests.sync_folder(path)
    attributes: dict[str, Any] = manifests.plain(manifest.attributes)
    attributes["node_types"][asked.target.number][DERIVED] = asked.stored
    arrays = {**manifest.arrays, **specs}
    manifests.write(path, replace(manifest, arrays=arrays, attributes=attributes))
    manifests.sync_folder(path)
    open_graph(path)


@final
class _Means(TargetLayer):
    """Gives each target the mean over the rows of its sources; zeros where it has none."""

    targets_last = False

    def __init__(self, width: int):
        self.out_dim = width
        self.cost = AccumulatorBytes(4 * (width + 1), 4 * 3 * width, 0)

    def sums(self, targets: int, step: int) -> LayerSums:
        return _MeanSums(self.out_dim, targets, step)


@final
class _MeanSums(LayerSums):
    drops_loops = targets_last = False

    def __init__(self, width: int, targets: int, step: int):
        super().__init__(torch.zeros(targets, width), step)
        self._count = torch.zeros(targets)

    def add(self, part: Part, x: Tensor, scale: Tensor | None) -> None:
        self._add_sums(part, x)
        self._count[part.targets] += part.rowptr.diff()

    def finish(self, first: int, count: int, x: Tensor | None, scale: Tensor | None) -> Tensor:
        own = slice(first, first + count)
        return self._total[own].div_(self._count[own].clamp_(min=1).unsqueeze(1))
