"""Import of a graph with types: one external sort of the edges of all types, then what the nodes of each type have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import outcrop._core as _core
from outcrop.config import ImportConfig
from outcrop.errors import ArgumentError
from outcrop.importing.edge_rows import NUMBERS_FILE, EdgeNumbers, check_rows, write_edge_rows, write_origins
from outcrop.importing.lists import sort_bytes, topology_specs
from outcrop.importing.nodes import NodeImport
from outcrop.importing.sources.base import REVERSE, EdgeSource, NodeSource, TypedSource
from outcrop.importing.sources.checks import check_ends, check_weights
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.graph import FORMAT, version_for
from outcrop.store.graph_manifest import MOST_NODES
from outcrop.store.graph_types import ORIGINAL
from outcrop.store.manifest import ArraySpec, Manifest
from outcrop.store.names import NAME_ARRAYS, write_names

_SHOWN_TYPES = 3  # of edges, of many


class TypedImport:
    """Runs one import: writes arrays into a folder and collects what the manifest says.

    Attributes:
        source: The graph to import.
        notes: What the user should know, a sentence each.
    """

    def __init__(self, source: TypedSource, config: ImportConfig, runtime: Runtime):
        if config.num_nodes is not None:
            raise ArgumentError(
                f"{source.name} has several node types, so {config.num_nodes} as the number of nodes says too little: "
                "say num_nodes of each type in graph.toml"
            )
        self.source, self.config, self.runtime = source, config, runtime
        self.notes: list[str] = []
        self._nodes = [NodeImport(one, _config_of(one, source, config), runtime) for one in source.nodes]
        self._sizes = {one.type_name: one.num_nodes or 0 for one in source.nodes}
        self._edges = _with_reverses(source, config.reverse)
        for edges in source.edges:
            if edges.features is not None:
                check_rows(edges.features, edges.num_edges, edges.name)
        self._arrays: dict[str, ArraySpec] = {}
        self._attributes: dict[str, Any] = {}
        lists = sum(self._sizes[edges.key[2]] for edges, _ in self._edges)
        if max(lists, sum(self._sizes.values())) > MOST_NODES:
            raise ArgumentError(
                f"{source.name} has more than {MOST_NODES} nodes: correct num_nodes in graph.toml"
            )

    def write(self, work: Path) -> None:
        """Writes the arrays into ``work``; where the runtime only measures, they stay empty.

        Raises:
            ArgumentError, FormatError, BudgetError: As :func:`outcrop.importing.graph.import_graph`.
        """
        if not any(self._sizes.values()):
            raise ArgumentError(f"{self.source.name} has zero nodes: nothing to import")
        edge_types = self._lists(work)
        node_types = [self._write_nodes(number, work) for number in range(len(self._nodes))]
        self._attributes = {
            "num_nodes": sum(self._sizes.values()),
            "num_edges": sum(one["num_edges"] for one in edge_types),
            "node_types": node_types,
            "edge_types": edge_types,
        }
        self._note_unreached()

    def add_array(self, name: str, spec: ArraySpec) -> None:
        """Lists an array in the manifest that something else has written."""
        self._arrays[name] = spec

    def write_manifest(self, work: Path, config: dict[str, Any]) -> None:
        """Writes the manifest of what was written; ``config`` is what the user asked for."""
        manifests.write(
            work, Manifest(FORMAT, version_for(self._attributes), self._arrays, self._attributes, config)
        )

    def _lists(self, work: Path) -> list[dict[str, Any]]:
        """Writes the neighbor lists of all edge types; returns what the manifest says of these."""
        runtime, config = self.runtime, self.config
        counts = [edges.num_edges for edges, _ in self._edges]
        known = None if None in counts else sum(count or 0 for count in counts)
        origins, before = config.edge_origins, runtime.budget.now_bytes
        numbered = [origins or edges.features is not None for edges, _ in self._edges]
        sorting = sort_bytes(runtime, known, reverse=False, numbered=any(numbered))
        builder = _core.CscBuilder(
            runtime.io,
            runtime.budget,
            runtime.workers,
            str(work),
            memory_bytes=sorting,
            keep_duplicates=bool(config.keep_duplicates),
            keep_self_loops=config.keep_self_loops is not False,
            numbered=numbered,
            keep_numbered_duplicates=config.keep_duplicates is not False,
            relations=self._relations(),
        )
        # What the builder needs to write in the end: what is read meanwhile must not take it.
        writing = runtime.budget.reserve("sort", sorting - (runtime.budget.now_bytes - before))
        listed = self._add_edges(builder)
        writing.release()
        with (
            runtime.task("sort", builder.edges_added, "edges"),
            runtime.trace.span("sort", edges=sum(listed)),
        ):
            paths = [str(work / f"{name}.bin") for name in ("indptr", "indices", "edge_weight")]
            numbers = work / NUMBERS_FILE
            result = builder.finish(paths[0], paths[1], weights_path=paths[2], numbers_path=str(numbers))
            runtime.progress.advance("sort", builder.edges_added)
        if any(numbered):
            self._write_numbered(work, numbers, [found.num_edges for found in result.relations], listed)
        weighted = any(edges.weighted for edges, _ in self._edges)
        if not runtime.measures:
            self._arrays |= topology_specs(result, weighted=weighted)
            self._note_dropped(result.relations, listed)
        return [
            {
                **dict(zip(("source", "relation", "target"), edges.key, strict=True)),
                "num_edges": found.num_edges,
                "order": "source",
                "weighted": edges.weighted,
                "max_in_degree": found.max_in_degree,
                "edges_listed": count,
                "duplicates_dropped": found.duplicates_dropped,
                "self_loops_dropped": found.self_loops_dropped,
            }
            for (edges, _), found, count in zip(self._edges, result.relations, listed, strict=True)
        ]

    def _write_numbered(
        self, work: Path, numbers: Path, stored: Sequence[int], listed: Sequence[int]
    ) -> None:
        """Writes the rows of the edges and where they come from, edge type by edge type."""
        first, origins, nonfinite = 0, self.config.edge_origins, self.config.allow_nonfinite
        for number, (edges, _) in enumerate(self._edges):
            if edges.features is None and not origins:
                continue
            places = EdgeNumbers(numbers, first, stored[number], listed[number])
            if edges.features is not None:
                if not self.runtime.measures:
                    check_rows(edges.features, listed[number], edges.name)
                self._arrays |= write_edge_rows(
                    edges.features, places, self.runtime, work, f"e{number}.features", nonfinite
                )
            if origins:
                self._arrays |= write_origins(places, self.runtime, work, f"e{number}.{ORIGINAL}")
            first += stored[number]
        numbers.unlink()

    def _relations(self) -> _core.Relations:
        # A builder that measures is told of no nodes, so that it writes no lists.
        sizes = [0 if self.runtime.measures else size for size in self._sizes.values()]
        numbers = {name: number for number, name in enumerate(self._sizes)}
        ends = [(numbers[edges.key[0]], numbers[edges.key[2]], 0, edges.weighted) for edges, _ in self._edges]
        return _core.Relations([0, *accumulate(sizes)], ends)

    def _add_edges(self, builder: _core.CscBuilder) -> list[int]:
        """Hands the edges to ``builder``; to measure, the first block of each type is looked at. Returns how many edges
        each type was given.
        """
        listed = [0] * len(self._edges)
        total = sum(edges.num_edges or 0 for edges in self.source.edges)
        reverses = {of: number for number, (_, of) in enumerate(self._edges) if of is not None}
        with self.runtime.task("edges", total, "edges"):
            for number, edges in enumerate(self.source.edges):
                listed[number] = self._add_type(builder, edges, number, reverses.get(number))
                if number in reverses:
                    listed[reverses[number]] = listed[number]
        return listed

    def _add_type(self, builder: _core.CscBuilder, edges: EdgeSource, number: int, back: int | None) -> int:
        sizes, listed = (self._sizes[edges.key[0]], self._sizes[edges.key[2]]), 0
        # Only edges within a type can lead from a node to itself.
        loops = self.config.keep_self_loops is not False or edges.key[0] != edges.key[2]
        for block in edges.edges():
            check_ends(edges, block, listed, sizes)
            if self.runtime.measures:
                break
            check_weights(edges, block, listed, loops)
            sources, targets, *weights = block
            try:
                builder.add(sources, targets, *weights, edge_type=number)
                if back is not None:
                    builder.add(targets, sources, *weights, edge_type=back)
            except ArgumentError as error:  # of what was not seen above, which names the edge
                raise ArgumentError(f"{edges.name}: {error}") from None
            listed += len(sources)
            self.runtime.progress.advance("edges", len(sources))
        return listed

    def _write_nodes(self, number: int, work: Path) -> dict[str, Any]:
        """Writes what the nodes of a type have, and returns what the manifest says of the type."""
        nodes, prefix = self._nodes[number], f"n{number}."
        name, folder = nodes.source.type_name, work / f"n{number}"
        folder.mkdir()
        nodes.write(folder, self._sizes[name])
        said = {key: value for key, value in nodes.attributes.items() if key != "feature_dim"}
        if nodes.source.names is not None:
            nodes.arrays |= self._write_names(nodes.source, nodes.source.names(), folder)
            said |= {"integer_names": True} if nodes.source.integer_names else {}
        for array, spec in nodes.arrays.items():
            (folder / spec.file).rename(work / (prefix + spec.file))
            self._arrays[prefix + array] = replace(spec, file=prefix + spec.file)
        if not self.runtime.measures:
            folder.rmdir()
        self.notes += [f"nodes {name!r}: {note}" for note in nodes.notes]
        return {"name": name, "num_nodes": self._sizes[name], **said}

    def _write_names(self, source: NodeSource, names: Iterator[str], folder: Path) -> dict[str, ArraySpec]:
        specs, count = write_names(self.runtime, folder, names, *NAME_ARRAYS)
        if count != self._sizes[source.type_name]:
            raise ArgumentError(
                f"{source.name} (names) has {count} rows, {source.whose} {self._sizes[source.type_name]} nodes"
            )
        return specs

    def _note_dropped(self, found: Sequence[_core.CscRelation], listed: Sequence[int]) -> None:
        """Notes how many edges were dropped as duplicates, and of which types most; of reverses it is the same."""
        dropped = [
            (one.duplicates_dropped, count, " ".join(edges.key))
            for (edges, reversed_one), one, count in zip(self._edges, found, listed, strict=True)
            if one.duplicates_dropped and reversed_one is None
        ]
        if not dropped:
            return
        most = [
            f"{some:,} of {count:,} {key!r}"
            for some, count, key in sorted(dropped, reverse=True)[:_SHOWN_TYPES]
        ]
        others = f", and of {len(dropped) - len(most)} more types" if dropped[len(most) :] else ""
        self.notes.append(
            f"edges that join nodes which another one of their type joins were dropped: {', '.join(most)}{others}; "
            "--keep-duplicates (keep_duplicates=True) keeps them"
        )

    def _note_unreached(self) -> None:
        """Notes it where no edge leads to the nodes of a type, and the user has not said what of the reverses."""
        reached = {edges.key[2] for edges, _ in self._edges}
        alone = [name for name in self._sizes if name not in reached]
        if alone and self.config.reverse is None:
            self.notes.append(
                f"no edge type leads to nodes {', '.join(map(repr, alone))}, so no messages reach them: --reverse "
                "(ImportConfig(reverse=True)) adds an edge type that leads back for each; --no-reverse says that "
                "none is meant"
            )


def _config_of(nodes: NodeSource, source: TypedSource, config: ImportConfig) -> ImportConfig:
    """Returns the options of a node type: those for features or labels are for types that have some, if any has."""
    if nodes.features is None and any(one.features is not None for one in source.nodes):
        config = replace(config, feature_dtype=None, scale=None, bfloat16_bits=False, feature_storage=None)
    divided = config.fractions_given or config.split_protocol is not None
    if divided and nodes.labels is None:
        if not any(one.labels is not None for one in source.nodes):
            raise ArgumentError(
                f"{source.name} has no labels: nodes of a type with labels are divided into splits"
            )
        fractions = dict.fromkeys(("train_fraction", "valid_fraction", "test_fraction"))
        config = replace(config, split_protocol="none", **fractions)
    return config


def _with_reverses(source: TypedSource, reverse: bool | None) -> Sequence[tuple[EdgeSource, int | None]]:
    """Returns the edge types, those of the reverses behind the others, each with the number of what it reverses.

    Raises:
        ArgumentError: The name of a reverse is taken.
    """
    edges: list[tuple[EdgeSource, int | None]] = [(one, None) for one in source.edges]
    keys = {one.key for one in source.edges}
    for number, one in enumerate(source.edges):
        relation = (
            one.reverse if reverse is None else (one.reverse or REVERSE + one.key[1]) if reverse else None
        )
        if relation is None:
            continue
        key = (one.key[2], relation, one.key[0])
        if key in keys:
            raise ArgumentError(
                f"{source.name} has an edge type {' '.join(key)!r}, which is what the reverse of {' '.join(one.key)!r} "
                'would be called: give the reverse another name in graph.toml (reverse = "NAME"), or leave it out '
                "(--no-reverse)"
            )
        keys.add(key)
        edges.append((replace(one, key=key), number))
    return edges
