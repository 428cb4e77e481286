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
from outcrop.config import ImportConfig
from outcrop.errors import ArgumentError
from outcrop.importing.edge_rows import NUMBERS_FILE, EdgeNumbers, check_rows, write_edge_rows, write_origins
from outcrop.importing.lists import sort_bytes, topology_specs
from outcrop.importing.nodes import NodeImport
from outcrop.importing.sources.base import GraphSource, TypedSource, block_bytes
from outcrop.importing.sources.checks import (
    LargestId,
    NumbersAmongNames,
    check_weights,
    notes_of_classes,
    notes_of_missing,
    one_way_note,
)
from outcrop.importing.sources.files import place_of, source_files
from outcrop.importing.sources.hetero import is_hetero, open_hetero
from outcrop.importing.sources.kinds import CHOOSE_LABELS, LEAVE_OUT, open_source
from outcrop.importing.sources.npy import array_blocks
from outcrop.importing.sources.objects import open_object
from outcrop.importing.typed_graph import TypedImport
from outcrop.runtime.runtime import Runtime
from outcrop.store import imported
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import FORMAT, Graph, open_graph, version_for
from outcrop.store.graph_types import ORIGINAL
from outcrop.store.manifest import ArraySpec, Manifest
from outcrop.store.names import write_names


def import_graph(
    source: Any,
    out: Path | str,
    runtime: Runtime,
    config: ImportConfig | None = None,
    *,
    made_from: dict[str, Any] | None = None,
    **options: Any,
) -> Graph:
    """Imports ``source`` as a graph artifact at ``out``, replacing an artifact that is there.

    Args:
        source: Text such as ``arrays:DIR`` (docs/sources.md lists all), an object that holds a graph, or a mapping of
            its parts (:mod:`outcrop.importing.sources.objects`).
        config: How; ``options`` are fields of :class:`ImportConfig` and may be given instead.
        made_from: What is kept of the import (:mod:`outcrop.store.imported`); None: it follows from ``source``.

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
    made_from = made_from or import_record(source, config)
    with ExitStack() as held:
        importing = _import_of(_opened(source, runtime, held, config), config, runtime)
        with manifests.publishing(out) as work, runtime.trace.span("import", source=_kind(source)):
            if made_from is not None:
                imported.write(work, made_from)
            importing.write(work)
            importing.write_manifest(work, config.stored() | {"source": _kind(source)})
    graph = open_graph(out)
    graph.notes = (
        *importing.source.notes,
        *importing.notes,
        *one_way_note(graph, runtime, config.reverse),
        *notes_of_missing(graph),
        *notes_of_classes(graph, runtime),
    )
    return graph


def import_record(source: Any, config: ImportConfig) -> dict[str, Any] | None:
    """Returns what :mod:`outcrop.store.imported` keeps of an import; None for objects, whose content it cannot name."""
    if not isinstance(source, str):
        return None
    kind, _, named = source.partition(":")
    where, options = place_of(kind, named), options_kept(config)
    return imported.record(kind, where, source_files(kind, where, all_types=config.types == "all"), options)


def options_kept(config: ImportConfig) -> dict[str, Any]:
    """Returns what is kept of the options of an import."""
    options = config.stored()
    if config.keep_duplicates is False:  # which the manifest does not tell from what is usual
        options["drop_duplicates"] = True
    return options


def measure_import(source: Any, runtime: Runtime, config: ImportConfig) -> None:
    """Takes of the budget of ``runtime``, which measures, what importing ``source`` takes; writes nothing.

    Reads what decides that: the edges where they say how many nodes there are or what these are called, ids, labels
    and splits, of features the first rows.

    Raises:
        ArgumentError, FormatError: As :func:`import_graph`, as far as that is seen.
        BudgetError: More is needed than may be measured.
    """
    with ExitStack() as held, TemporaryDirectory() as work:
        _import_of(_opened(source, runtime, held, config), config, runtime).write(Path(work))


def _import_of(
    source: GraphSource | TypedSource, config: ImportConfig, runtime: Runtime
) -> _Import | TypedImport:
    if isinstance(source, TypedSource):
        return TypedImport(source, config, runtime)
    return _Import(source, config, runtime)


def _kind(source: Any) -> str:
    return source.partition(":")[0] if isinstance(source, str) else "objects"


def _opened(
    source: Any, runtime: Runtime, held: ExitStack, config: ImportConfig
) -> GraphSource | TypedSource:
    if config.num_classes is not None and _kind(source) not in CHOOSE_LABELS:
        raise ArgumentError(
            f"a number of classes ({config.num_classes}) chooses among labels of {', '.join(CHOOSE_LABELS)}; this "
            "source has one kind of labels"
        )
    if config.types is not None and _kind(source) not in LEAVE_OUT:
        raise ArgumentError(
            f"types={config.types!r} (--types) is for {', '.join(LEAVE_OUT)}; of this source all types are imported"
        )
    opened = (
        open_source(source, runtime, held, config)
        if isinstance(source, str)
        else open_hetero(source, runtime, config.split_index)
        if is_hetero(source)
        else open_object(source, runtime, held, config.split_index)
    )
    return opened if isinstance(opened, TypedSource) else _with_num_nodes(opened, config.num_nodes)


def _with_num_nodes(source: GraphSource, num_nodes: int | None) -> GraphSource:
    if num_nodes is None:
        return source
    if source.num_nodes not in (None, num_nodes):
        raise ArgumentError(
            f"{source.name} has {source.num_nodes} nodes; {num_nodes} were given as their number"
        )
    return replace(source, num_nodes=num_nodes)


class _Import:
    """Runs one import: writes arrays into a folder and collects what the manifest says."""

    def __init__(self, source: GraphSource, config: ImportConfig, runtime: Runtime):
        self.source, self.config, self.runtime = source, config, runtime
        self._nodes = NodeImport(source.nodes, config, runtime)
        self.work = Path()
        self.arrays: dict[str, ArraySpec] = {}
        self.attributes: dict[str, Any] = {}
        self.notes: list[str] = []

    def write(self, work: Path) -> None:
        """Writes the arrays into ``work``; where the runtime only measures, they stay empty."""
        self.work = work
        if self.source.num_nodes == 0:
            raise ArgumentError(f"{self.source.name} has zero nodes: nothing to import")
        num_nodes = self._edges()
        self.attributes["num_nodes"] = num_nodes
        self._nodes.write(work, num_nodes)
        self.arrays |= self._nodes.arrays
        self.attributes |= self._nodes.attributes
        self.notes += self._nodes.notes
        self._edge_splits(num_nodes)
        if self.source.names is not None:
            self._names(self.source.names(), num_nodes)

    def write_manifest(self, work: Path, config: dict[str, Any]) -> None:
        manifests.write(
            work, Manifest(FORMAT, version_for(self.attributes), self.arrays, self.attributes, config)
        )

    def _edges(self) -> int:
        source, runtime = self.source, self.runtime
        # A builder that measures is told of no nodes, so that it writes none.
        num_nodes = -1 if source.num_nodes is None or runtime.measures else source.num_nodes
        reverse = source.reverse if self.config.reverse is None else self.config.reverse
        loops = source.keep_self_loops if self.config.keep_self_loops is None else self.config.keep_self_loops
        rows, before = source.edge_features, runtime.budget.now_bytes
        numbered = rows is not None or self.config.edge_origins
        if rows is not None:
            check_rows(rows, source.num_edges, source.name)
        sorting = sort_bytes(runtime, source.num_edges, reverse=reverse, numbered=numbered)
        builder = _core.CscBuilder(
            runtime.io,
            runtime.budget,
            runtime.workers,
            str(self.work),
            num_nodes,
            sorting,
            bool(self.config.keep_duplicates),
            loops,
            reverse,
            weighted=source.weighted,
            numbered=[numbered],
            keep_numbered_duplicates=self.config.keep_duplicates is not False,
        )
        # What the builder needs to write in the end: names of nodes must not take it meanwhile.
        writing = runtime.budget.reserve("sort", sorting - (runtime.budget.now_bytes - before))
        largest = self._add_edges(builder, loops)
        writing.release()
        listed = builder.edges_added
        largest.check()
        with runtime.task("sort", listed, "edges"), runtime.trace.span("sort", edges=listed):
            indptr, indices, weights = (
                str(self.work / f"{name}.bin") for name in ("indptr", "indices", "edge_weight")
            )
            numbers = self.work / NUMBERS_FILE
            result = builder.finish(indptr, indices, weights_path=weights, numbers_path=str(numbers))
            runtime.progress.advance("sort", listed)
        places = EdgeNumbers(numbers, 0, result.num_edges, listed, 2 if reverse else 1)
        if rows is not None:
            if not runtime.measures:
                check_rows(rows, listed, source.name)
            nonfinite = self.config.allow_nonfinite
            self.arrays |= write_edge_rows(rows, places, runtime, self.work, "e0.features", nonfinite)
        if self.config.edge_origins:
            self.arrays |= write_origins(places, runtime, self.work, f"e0.{ORIGINAL}")
        if numbered:
            numbers.unlink()
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
        if result.duplicates_dropped and self.config.keep_duplicates is None and not reverse:
            self.notes.append(
                f"{result.duplicates_dropped:,} of {listed:,} edges join nodes that another one joins, and were dropped"
                f"{', with their weights' if source.weighted else ''}; --keep-duplicates (keep_duplicates=True) keeps "
                "them"
            )
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
        if count != num_nodes:
            raise ArgumentError(
                f"{self.source.name} (names) has {count} rows, the graph has {num_nodes} nodes"
            )
        self.arrays |= specs
        if self.source.integer_names:
            self.attributes["integer_names"] = True
