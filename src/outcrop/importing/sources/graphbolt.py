"""``graphbolt:DIR``: a data set of DGL's GraphBolt with one type of nodes and of edges.

``metadata.yaml`` says where everything is: ``graph`` (how many nodes; edges as csv without a header or ``.npy``
``[2, E]``), ``feature_data``, and ``tasks`` with seeds of the train, validation and test set and their labels. Seeds
``[n]`` are nodes, which make splits and labels; seeds ``[n, 2]`` are edges to be predicted, of which those with label 0
are negatives. Names of the first versions (``seed_nodes``, ``node_pairs``) mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from outcrop.config import ImportConfig
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import EdgeBlock, FeatureSource, GraphSource
from outcrop.importing.sources.edge_list import array_edges, edge_of, table_edges
from outcrop.importing.sources.features import array_features
from outcrop.importing.sources.graphbolt_metadata import METADATA, DataFile, Metadata, read_metadata
from outcrop.importing.sources.graphbolt_tasks import DataFiles, LinkTask, NodeTask, SeedTask
from outcrop.importing.sources.ids import PlainIds
from outcrop.importing.sources.table_files import FileTable
from outcrop.importing.sources.tables import Place
from outcrop.runtime.runtime import Runtime

FEATURES = ("feat", "features", "x")  # what the features of nodes are called, where there are several

Edges = tuple[Callable[[], Iterator[EdgeBlock]], int | None, Callable[[int], str]]


def open_graphbolt(folder: Path, runtime: Runtime, held: ExitStack, config: ImportConfig) -> GraphSource:
    """Opens ``graphbolt:DIR``; reads ``metadata.yaml`` and headers.

    Raises:
        ArgumentError: A file is missing, PyYAML is, or the data set has several types or no such task.
        FormatError: A file is torn or not what ``metadata.yaml`` says.
    """
    metadata, files = read_metadata(folder, runtime), DataFiles(runtime, held)
    edges, num_edges, edge_at = _edges(metadata, files, runtime)
    features, notes = _features(folder, metadata, files, runtime)
    node_tasks, link_tasks = _opened_tasks(metadata, files)
    index = config.split_index
    if index and index >= len(node_tasks):
        raise ArgumentError(f"{folder} has {len(node_tasks)} tasks of nodes, number {index} was asked for")
    nodes = NodeTask(node_tasks[index], runtime) if node_tasks else None
    links = None
    if link_tasks and config.split_protocol != "none":
        links = LinkTask(link_tasks[0], runtime, held)
    used = [*node_tasks[index : index + 1], *(link_tasks[:1] if links else ())]
    notes += _notes(folder, used, [*node_tasks, *link_tasks])
    if links and links.has_negatives:
        notes.append(f"negatives of task {link_tasks[0].name!r} cannot be stored yet and are not imported")
    return GraphSource(
        str(folder),
        edges,
        metadata.num_nodes,
        num_edges,
        features,
        nodes.labels(metadata.num_nodes) if nodes else None,
        lambda num_nodes: nodes.ids() if nodes else None,
        class_names=nodes.class_names if nodes else (),
        edge_splits=links.edges if links else dict,
        edge_split_at=links.place if links else None,
        notes=tuple(notes),
        split_rows=nodes.rows if nodes else None,
        edge_at=edge_at,
    )


def _edges(metadata: Metadata, files: DataFiles, runtime: Runtime) -> Edges:
    file, name = metadata.edges, str(metadata.edges.path)
    if file.format == "csv":
        if not file.path.is_file():
            raise ArgumentError(f"{file.path} is missing, which {METADATA} names for edges")
        table = FileTable(file.path, ("source", "target"), None)
        ids = PlainIds(metadata.num_nodes, METADATA)
        return table_edges(runtime, table, ids), None, Place(table).at
    pairs = files.array(file)
    if pairs.ndim != 2 or pairs.shape[0] != 2:
        raise FormatError(f"{name} has shape {pairs.shape}; GraphBolt has edges as [2, edges]")
    edges, num_edges = array_edges(runtime, name, pairs.T, PlainIds())
    return edges, num_edges, edge_of(name)


def _features(
    folder: Path, metadata: Metadata, files: DataFiles, runtime: Runtime
) -> tuple[FeatureSource | None, list[str]]:
    """Opens the features of nodes, and says what else there is."""
    given: dict[str, DataFile] = {file.name: file for file in metadata.node_features}
    chosen = next((name for name in FEATURES if name in given), None)
    if chosen is None and len(given) > 1:
        raise ArgumentError(
            f"{folder} has several features of nodes ({', '.join(given)}) and none called {' or '.join(FEATURES)}: "
            f"rename one in {METADATA}"
        )
    chosen = chosen or next(iter(given), None)
    left = [*metadata.left, *(f"node {name}" for name in given if name != chosen)]
    notes = [f"features of {folder} that are not imported: {', '.join(left)}"] if left else []
    if chosen is None:
        return None, notes
    array = files.array(given[chosen])
    if array.ndim == 1:  # which GraphBolt takes for one column
        array = array[:, None]
    return array_features(runtime, str(given[chosen].path), array), notes


def _opened_tasks(metadata: Metadata, files: DataFiles) -> tuple[list[SeedTask], list[SeedTask]]:
    """Opens the tasks: those of nodes, and those of edges."""
    tasks = [SeedTask(task, files) for task in metadata.tasks if task.sets]
    return [task for task in tasks if task.axes() == 1], [task for task in tasks if task.axes() == 2]


def _notes(folder: Path, used: list[SeedTask], tasks: list[SeedTask]) -> list[str]:
    notes = [
        f"data of task {task.name!r} that are not imported: {', '.join(sorted(task.left))}"
        for task in used
        if task.left
    ]
    others = [task.name for task in tasks if task not in used]
    if others:
        notes.append(f"tasks of {folder} that are not imported: {', '.join(others)}")
    return notes
