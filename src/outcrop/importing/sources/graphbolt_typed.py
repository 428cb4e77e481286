"""``graphbolt:DIR`` with types: ``metadata.yaml`` names a ``type`` beside nodes, edges, features and sets of seeds, of
edges as ``source:relation:target``.
"""

from __future__ import annotations

from pathlib import Path

from outcrop.config import ImportConfig
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import EdgeSource, NodeSource, TypedSource
from outcrop.importing.sources.checks import check_told_types
from outcrop.importing.sources.features import array_features, edge_array_features
from outcrop.importing.sources.graphbolt_files import chosen_features, edges_of, rows_of
from outcrop.importing.sources.graphbolt_metadata import METADATA, TypedMetadata
from outcrop.importing.sources.graphbolt_tasks import DataFiles, NodeTask, SeedTask
from outcrop.importing.sources.ids import PlainIds
from outcrop.importing.sources.typed import EdgeTypeName
from outcrop.runtime.runtime import Runtime


def open_types(
    folder: Path, metadata: TypedMetadata, files: DataFiles, runtime: Runtime, config: ImportConfig
) -> TypedSource:
    """Opens a data set with types; reads headers.

    Raises:
        ArgumentError: A file is missing, or the data set has no such task.
        FormatError: A file is torn or not what ``metadata.yaml`` says.
    """
    opener = _Opener(folder, metadata, files, runtime)
    tasks = opener.tasks(config.split_index)
    unknown = next((name for name in tasks if name not in metadata.sizes), None)
    if unknown is not None:
        raise FormatError(f"{folder / METADATA}: a task has seeds of {unknown!r}, which is no node type")
    nodes = tuple(opener.nodes(name, tasks.get(name)) for name in metadata.sizes)
    edges = tuple(opener.edges(key) for key in metadata.edges)
    source = TypedSource(str(folder), nodes, edges, tuple(opener.notes()))
    check_told_types(source, 0)
    return source


class _Opener:
    def __init__(self, folder: Path, metadata: TypedMetadata, files: DataFiles, runtime: Runtime):
        self._folder, self._metadata, self._files, self._runtime = folder, metadata, files, runtime
        self._left = list(metadata.left)
        self._notes: list[str] = []

    def notes(self) -> list[str]:
        """Says what is not imported."""
        left = (
            [f"features of {self._folder} that are not imported: {', '.join(self._left)}"]
            if self._left
            else []
        )
        return [*left, *self._notes]

    def tasks(self, index: int) -> dict[str, SeedTask]:
        """Opens the task of nodes of a number, by type of its seeds."""
        opened = [
            {of: SeedTask(one, self._files) for of, one in task.by_type.items()}
            for task in self._metadata.tasks
            if task.by_type
        ]
        of_nodes = [task for task in opened if all(one.axes() == 1 for one in task.values())]
        if index and index >= len(of_nodes):
            raise ArgumentError(
                f"{self._folder} has {len(of_nodes)} tasks of nodes, number {index} was asked for"
            )
        chosen = of_nodes[index] if of_nodes else {}
        others = [next(iter(task.values())).name for task in opened if task is not chosen]
        if others:
            self._notes.append(f"tasks of {self._folder} that are not imported: {', '.join(others)}")
        for of, task in chosen.items():
            if task.left:
                listed = ", ".join(sorted(task.left))
                self._notes.append(f"data of task {task.name!r} of {of!r} that are not imported: {listed}")
        return chosen

    def nodes(self, name: str, task: SeedTask | None) -> NodeSource:
        count, features = self._metadata.sizes[name], None
        chosen, others = chosen_features(str(self._folder), repr(name), self._metadata.features.get(name, []))
        self._left += [f"node {name} {other}" for other in others]
        if chosen is not None:
            features = array_features(self._runtime, str(chosen.path), rows_of(chosen, self._files))
        nodes = None if task is None else NodeTask(task, self._runtime)
        return NodeSource(
            f"{self._folder}: {name}",
            count,
            features,
            nodes.labels(count) if nodes else None,
            lambda num_nodes: nodes.ids() if nodes else None,
            nodes.class_names if nodes else (),
            split_rows=nodes.rows if nodes else None,
            type_name=name,
            whose=f"node type {name!r} has",
        )

    def edges(self, key: EdgeTypeName) -> EdgeSource:
        file, of = self._metadata.edges[key], ":".join(key)
        blocks, count, at = edges_of(file, PlainIds(), self._files, self._runtime)
        chosen, others = chosen_features(str(self._folder), repr(of), self._metadata.features.get(of, []))
        self._left += [f"edge {of} {other}" for other in others]
        features = None
        if chosen is not None:
            features = edge_array_features(self._runtime, str(chosen.path), rows_of(chosen, self._files))
        return EdgeSource(str(file.path), key, blocks, count, edge_at=at, features=features)
