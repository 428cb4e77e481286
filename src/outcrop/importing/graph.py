"""Import: from foreign files to a graph artifact, block by block within the memory budget.

The edges are sorted externally into columns, then features, labels and splits are streamed. The artifact appears by
rename when everything is written; an error or a kill leaves none, and importing again starts afresh.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.config import ImportConfig, LabelKind
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import FeatureSource, GraphSource, LabelSource, block_bytes
from outcrop.importing.sources.checks import (
    LargestId,
    NumbersAmongNames,
    check_weights,
    notes_of_missing,
    one_way_note,
)
from outcrop.importing.sources.files import source_files
from outcrop.importing.sources.kinds import CHOOSE_LABELS, open_source
from outcrop.importing.sources.labels import labelled, write_labels
from outcrop.importing.sources.npy import array_blocks
from outcrop.importing.sources.objects import open_object
from outcrop.importing.sources.reorder import in_node_order
from outcrop.importing.sources.split import Splitter, check_splits, per_class_splits
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import UNLIMITED, Runtime
from outcrop.store import imported
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter, DiskArray, storage_dtype
from outcrop.store.graph import FORMAT, VERSION, Graph, open_graph
from outcrop.store.manifest import PAGE_SUMS, ArraySpec, Manifest
from outcrop.store.names import write_names

_SMALL_GRAPH_SORT_BYTES = 4 << 20


def import_graph(
    source: Any, out: Path | str, runtime: Runtime, config: ImportConfig | None = None, **options: Any
) -> Graph:
    """Imports ``source`` as a graph artifact at ``out``, replacing an artifact that is there.

    Args:
        source: Text such as ``arrays:DIR`` (docs/sources.md lists all), an object that holds a graph, or a mapping of
            its parts (:mod:`outcrop.importing.sources.objects`).
        config: How; ``options`` are fields of :class:`ImportConfig` and may be given instead.

    Returns:
        The graph; its ``notes`` say what was not imported, and what else the user should know.

    Raises:
        ArgumentError: The parts of the source contradict each other or the options.
        FormatError: A file is torn or not what it should be.
        BudgetError: The memory budget is too small.
        IoError: The operating system refused to write, for example because the disk is full.
    """
    if config is not None and options:
        raise ArgumentError("give either config or single options")
    config = config or ImportConfig(**options)
    out = Path(out)
    manifests.check_destination(out)
    made_from = import_record(source, config)
    with ExitStack() as held:
        importing = _Import(_opened(source, runtime, held, config), config, runtime)
        with manifests.publishing(out) as work, runtime.trace.span("import", source=_kind(source)):
            if made_from is not None:
                imported.write(work, made_from)
            importing.write(work)
            importing.write_manifest(work, _kind(source))
    graph = open_graph(out)
    graph.notes = (
        *importing.source.notes,
        *importing.notes,
        *one_way_note(graph, runtime, config.reverse),
        *notes_of_missing(graph),
    )
    return graph


def import_record(source: Any, config: ImportConfig) -> dict[str, Any] | None:
    """Returns what :mod:`outcrop.store.imported` keeps of an import; None for objects, whose content it cannot name."""
    if not isinstance(source, str):
        return None
    kind, _, where = source.partition(":")
    return imported.record(kind, Path(where), source_files(kind, Path(where)), config.stored())


def measure_import(source: Any, runtime: Runtime, config: ImportConfig) -> None:
    """Takes of the budget of ``runtime``, which measures, what importing ``source`` takes; writes nothing.

    Reads what decides that: the edges where they say how many nodes there are or what these are called, ids, labels
    and splits, of features the first rows.

    Raises:
        ArgumentError, FormatError: As :func:`import_graph`, as far as that is seen.
        BudgetError: More is needed than may be measured.
    """
    with ExitStack() as held, TemporaryDirectory() as work:
        _Import(_opened(source, runtime, held, config), config, runtime).write(Path(work))


def _kind(source: Any) -> str:
    return source.partition(":")[0] if isinstance(source, str) else "objects"


def _opened(source: Any, runtime: Runtime, held: ExitStack, config: ImportConfig) -> GraphSource:
    if config.num_classes is not None and _kind(source) not in CHOOSE_LABELS:
        raise ArgumentError(
            f"a number of classes ({config.num_classes}) chooses among labels of {', '.join(CHOOSE_LABELS)}; this "
            "source has one kind of labels"
        )
    opened = (
        open_source(source, runtime, held, config)
        if isinstance(source, str)
        else open_object(source, runtime, held, config.split_index)
    )
    return _with_num_nodes(opened, config.num_nodes)


def _with_num_nodes(source: GraphSource, num_nodes: int | None) -> GraphSource:
    if num_nodes is None:
        return source
    if source.num_nodes not in (None, num_nodes):
        raise ArgumentError(
            f"{source.name} has {source.num_nodes} nodes; {num_nodes} were given as their number"
        )
    return replace(source, num_nodes=num_nodes)


def _feature_dtype(features: FeatureSource | None, config: ImportConfig) -> str | None:
    """Returns the name of the stored dtype."""
    if features is None:
        if config.feature_dtype or config.bfloat16_bits:
            raise ArgumentError("a feature dtype is asked for, but the source has no features")
        return None
    dtype = features.dtype.newbyteorder("=")
    if config.bfloat16_bits:
        if dtype != np.uint16 or config.feature_dtype not in (None, "bfloat16"):
            raise ArgumentError(
                f"{features.name} holds {dtype}; raw bfloat16 bits are uint16 and stay bfloat16"
            )
        return "bfloat16"
    if config.feature_dtype and dtype.kind not in "fiub":
        raise ArgumentError(f"{features.name} holds {dtype}, which cannot become {config.feature_dtype}")
    name = config.feature_dtype or ("uint8" if dtype == np.bool_ else dtype.name)
    storage_dtype(name)  # refuses what cannot be stored
    return name


class _Import:
    """Runs one import: writes arrays into a folder and collects what the manifest says."""

    def __init__(self, source: GraphSource, config: ImportConfig, runtime: Runtime):
        self.source, self.config, self.runtime = source, config, runtime
        self.dtype = _feature_dtype(source.features, config)
        self.work = Path()
        self.arrays: dict[str, ArraySpec] = {}
        self.attributes: dict[str, Any] = {"num_classes": 0, "feature_dim": 0}
        self.notes: list[str] = []

    def write(self, work: Path) -> None:
        """Writes the arrays into ``work``; where the runtime only measures, they stay empty."""
        self.work = work
        if self.source.num_nodes == 0:
            raise ArgumentError(f"{self.source.name} has zero nodes: nothing to import")
        num_nodes = self._edges()
        self.attributes["num_nodes"] = num_nodes
        for name, rows in (("features", self.source.features), ("labels", self.source.labels)):
            if rows is not None and rows.num_rows not in (None, num_nodes):
                raise ArgumentError(
                    f"{rows.name} has {rows.num_rows} rows of {name}, the graph has {num_nodes} nodes"
                )
        if self.source.features is not None and self.dtype is not None:
            self._features(self.source.features, self.dtype)
        if self.source.labels is not None:
            self._labels(self.source.labels, num_nodes)
        self._splits(num_nodes)
        self._edge_splits(num_nodes)
        if self.source.names is not None:
            self._names(self.source.names(), num_nodes)

    def write_manifest(self, work: Path, kind: str) -> None:
        config = self.config.stored() | {"source": kind}
        manifests.write(work, Manifest(FORMAT, VERSION, self.arrays, self.attributes, config))

    def _edges(self) -> int:
        source, runtime = self.source, self.runtime
        # A builder that measures is told of no nodes, so that it writes none.
        num_nodes = -1 if source.num_nodes is None or runtime.measures else source.num_nodes
        reverse = source.reverse if self.config.reverse is None else self.config.reverse
        loops = source.keep_self_loops if self.config.keep_self_loops is None else self.config.keep_self_loops
        sort_bytes, before = _sort_bytes(runtime, source.num_edges, reverse), runtime.budget.now_bytes
        builder = _core.CscBuilder(
            runtime.io,
            runtime.budget,
            runtime.workers,
            str(self.work),
            num_nodes,
            sort_bytes,
            self.config.keep_duplicates,
            loops,
            reverse,
            weighted=source.weighted,
        )
        # What the builder needs to write in the end: names of nodes must not take it meanwhile.
        writing = runtime.budget.reserve("sort", sort_bytes - (runtime.budget.now_bytes - before))
        largest = self._add_edges(builder, loops)
        writing.release()
        listed = builder.edges_added
        largest.check()
        with runtime.task("sort", listed, "edges"), runtime.trace.span("sort", edges=listed):
            indptr, indices, weights = (
                str(self.work / f"{name}.bin") for name in ("indptr", "indices", "edge_weight")
            )
            result = builder.finish(indptr, indices, weights_path=weights)
            runtime.progress.advance("sort", listed)
        if runtime.measures:
            return largest.num_nodes if source.num_nodes is None else source.num_nodes
        if result.num_nodes == 0:
            raise ArgumentError(f"{source.name} has zero nodes: nothing to import")
        self.arrays |= topology_specs(result, weighted=source.weighted)
        self.attributes |= {
            "num_edges": result.num_edges,
            "undirected": reverse,
            "max_in_degree": result.max_in_degree,
            "nodes_without_in_edges": result.nodes_without_in_edges,
            "edges_listed": listed,
            "duplicates_dropped": result.duplicates_dropped,
            "self_loops_dropped": result.self_loops_dropped,
        }
        return result.num_nodes

    def _add_edges(self, builder: _core.CscBuilder, keep_self_loops: bool) -> LargestId:
        """Hands the edges to ``builder``; to measure they are only looked at, as far as it needs them."""
        source, runtime = self.source, self.runtime
        largest = LargestId(source)
        with runtime.task("edges", source.num_edges or 0, "edges"):
            for block in source.edges():
                largest.add(*block[:2])
                runtime.progress.advance("edges", len(block[0]))
                if runtime.measures:
                    if source.num_nodes is not None:
                        break
                    continue
                check_weights(source, block, builder.edges_added, keep_self_loops)
                try:
                    builder.add(*block)
                except ArgumentError as error:  # of what was not seen above, which names the edge
                    raise ArgumentError(f"{source.name}: {error}") from None
        return largest

    def _features(self, features: FeatureSource, dtype: str) -> None:
        self.attributes["feature_dim"] = features.dim
        writer = ArrayWriter(self.runtime, self.work, "features", dtype, (features.dim,), page_sums=True)
        row_bytes = features.dim * max(features.dtype.itemsize, 4)
        rows = min(max(1, block_bytes(self.runtime) // row_bytes), features.num_rows)
        row = 0
        with (
            self.runtime.task("features", features.num_rows, "rows"),
            self.runtime.budget.reserve("import", 2 * rows * features.dim * features.dtype.itemsize),
        ):
            for block in in_node_order(features, self.runtime, self.work, rows):
                if self.runtime.measures:
                    return
                converted = convert(block, dtype, self.config.bfloat16_bits)
                if not self.config.allow_nonfinite:
                    _check_finite(features, converted, dtype, row)
                writer.append(converted)
                row += len(block)
                self.runtime.progress.advance("features", len(block))
        self._check_rows(features.name, row, features.num_rows)
        writer.finish_into(self.arrays)

    def _labels(self, labels: LabelSource, num_nodes: int) -> None:
        with self.runtime.task("labels", num_nodes, "rows"):
            stored = write_labels(
                labels, num_nodes, self.runtime, self.work, self.config.label_kind, self.source.class_names
            )
            self.runtime.progress.advance("labels", stored.spec.shape[0])
        self._check_rows(labels.name, stored.spec.shape[0], num_nodes)
        self.arrays["labels"] = stored.spec
        self.attributes |= stored.attributes
        self.notes += stored.notes

    def _label_kind(self) -> LabelKind:
        return self.attributes.get("label_kind", "class")

    def _check_rows(self, name: str, found: int, wanted: int) -> None:
        if found != wanted:
            raise ArgumentError(f"{name} has {found} rows, the graph has {wanted} nodes")

    def _splits(self, num_nodes: int) -> None:
        given = (
            None
            if self.config.fractions_given or self.config.split_protocol
            else self.source.splits(num_nodes)
        )
        if given is not None:
            self._write_splits(check_splits(self.source, given, self.runtime, num_nodes))
            return
        fallback = "fractions" if self.config.fractions_given else self.source.split_protocol
        protocol = self.config.split_protocol or fallback
        if protocol == "fractions":
            self._fraction_splits(num_nodes)
        elif protocol in ("per-class", "planetoid"):
            if "labels" not in self.arrays:
                raise ArgumentError(
                    f"{self.source.name} has no labels, which split protocol {protocol!r} needs"
                )
            if self._label_kind() != "class":
                raise ArgumentError(
                    f"{self.source.name} has labels of kind {self._label_kind()}; split protocol {protocol!r} "
                    "needs classes"
                )
            labels = DiskArray(self.runtime, self.work, self.arrays["labels"]).read("split-labels")
            self._write_splits(
                per_class_splits(labels, self.config.split_seed, protocol == "planetoid", self.runtime)
            )

    def _fraction_splits(self, num_nodes: int) -> None:
        rows = max(1024, block_bytes(self.runtime) // 64)
        starts = range(0, num_nodes, rows)
        labels = (
            DiskArray(self.runtime, self.work, self.arrays["labels"]) if "labels" in self.arrays else None
        )

        kind = self._label_kind()

        def blocks() -> Iterator[np.ndarray]:
            """Yields ids of the nodes that take part."""
            for start in starts:
                stop = min(start + rows, num_nodes)
                ids = np.arange(start, stop)
                yield ids if labels is None else ids[labelled(labels.read("import", start, stop), kind)]

        count = sum(len(ids) for ids in blocks())
        splitter = Splitter(self.config.split_seed, count, self.config.fractions())
        self.arrays |= splitter.write(blocks(), self.runtime, self.work)

    def _write_splits(self, splits: dict[str, np.ndarray]) -> None:
        for name in SPLITS:
            if name in splits:
                writer = ArrayWriter(self.runtime, self.work, name, "int64")
                writer.append(splits[name])
                self.arrays[name] = writer.finish()

    def _edge_splits(self, num_nodes: int) -> None:
        rows = max(1024, block_bytes(self.runtime) // 64)
        for split, edges in self.source.edge_splits().items():
            name, first = f"{split}_edges", 0
            writer = ArrayWriter(self.runtime, self.work, name, "int64", (2,))
            for block in array_blocks(self.runtime, edges, rows):
                bad = (block < 0) | (block >= num_nodes)
                if bad.any():
                    row = int(np.argmax(bad.any(axis=1)))
                    raise ArgumentError(
                        f"{self.source.place_of_target(split, first + row)} is {block[row].tolist()}, there are "
                        f"{num_nodes} nodes"
                    )
                writer.append(np.ascontiguousarray(block, np.int64))
                first += len(block)
            self.arrays[name] = writer.finish()

    def _names(self, names: Iterator[str], num_nodes: int) -> None:
        counted = NumbersAmongNames(names)
        specs, count = write_names(self.runtime, self.work, counted, "names", "name_offsets")
        self.notes += counted.notes(self.source.name)
        self._check_rows(f"{self.source.name} (names)", count, num_nodes)
        self.arrays |= specs
        if self.source.integer_names:
            self.attributes["integer_names"] = True


def topology_specs(result: _core.CscResult, weighted: bool = False) -> dict[str, ArraySpec]:
    """Returns specs of the files that a CscBuilder wrote, and of the checksums of their pages."""
    files = [("indptr", "int64", result.num_nodes + 1, result.indptr)]
    files += [("indices", "int64" if result.wide else "uint32", result.num_edges, result.indices)]
    if weighted:
        files += [("edge_weight", "float32", result.num_edges, result.weights)]
    specs = {}
    for name, dtype, rows, file in files:
        width, pages = np.dtype(dtype).itemsize, file.file_bytes // PAGE_BYTES
        specs[name] = ArraySpec(f"{name}.bin", dtype, (rows,), width, file.crc32c, file.file_bytes)
        sums = name + PAGE_SUMS
        table_bytes = -(-4 * pages // PAGE_BYTES) * PAGE_BYTES
        specs[sums] = ArraySpec(f"{sums}.bin", "uint32", (pages,), 4, file.page_crc, table_bytes)
    return specs


def _sort_bytes(runtime: Runtime, num_edges: int | None, reverse: bool) -> int:
    """Returns the memory for sorting: what avoids spilling, at most half of what is free.

    Raises:
        BudgetError: Less is free than sorting needs, and what is read meanwhile.
    """
    need = UNLIMITED if num_edges is None else _SMALL_GRAPH_SORT_BYTES + num_edges * (64 if reverse else 32)
    least, reserve = _core.CscBuilder.MIN_MEMORY_BYTES, memory_tables.SORT_RESERVE.least
    with runtime.budget.reserve("sort", reserve + 2 * least):  # refuses where so much is not free
        pass
    return min(need, memory_tables.EDGE_SORT.bytes_of(runtime.budget.free_bytes - reserve, least))


def convert(block: np.ndarray, dtype: str, bfloat16_bits: bool = False) -> np.ndarray:
    """Returns ``block`` in the storage of ``dtype``; bfloat16 rounds to nearest, ties to even, as
    ``torch.Tensor.bfloat16``.
    """
    if dtype == "bfloat16" and not bfloat16_bits:
        bits = np.ascontiguousarray(block, np.float32).view(np.uint32)
        rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
        return np.where(
            (bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FC0), rounded
        )  # NaN must not round to infinity
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(block, storage_dtype(dtype))


def _check_finite(features: FeatureSource, block: np.ndarray, dtype: str, first_row: int) -> None:
    if dtype == "bfloat16":
        good = (block & 0x7F80) != 0x7F80
    elif block.dtype.kind == "f":
        good = np.isfinite(block)
    else:
        return
    if not good.all():
        row = int(np.argmin(good.all(axis=1)))
        column = int(np.argmin(good[row]))
        raise FormatError(
            f"{features.at(first_row + row, column)} is not finite as {dtype}: clean the features, or "
            "allow NaN and infinity (--allow-nonfinite, ImportConfig(allow_nonfinite=True))"
        )
