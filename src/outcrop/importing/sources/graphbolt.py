"""``graphbolt:DIR``: a data set of DGL's GraphBolt.

``metadata.yaml`` says where everything is: ``graph`` (how many nodes; edges as csv without a header or ``.npy``
``[2, E]``), ``feature_data``, and ``tasks`` with seeds of the train, validation and test set and their labels. Seeds
``[n]`` are nodes, which make splits and labels; seeds ``[n, 2]`` are edges to be predicted, of which those with label 0
are negatives. Names of the first versions (``seed_nodes``, ``node_pairs``) mean the same. Where there are several types
of nodes or edges, :mod:`outcrop.importing.sources.graphbolt_typed` reads them.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from outcrop.config import ImportConfig
from outcrop.errors import ArgumentError
from outcrop.importing.sources.base import FeatureSource, GraphSource, TypedSource
from outcrop.importing.sources.features import array_features
from outcrop.importing.sources.graphbolt_files import chosen_features, edges_of, rows_of
from outcrop.importing.sources.graphbolt_metadata import METADATA, Metadata, TypedMetadata, read_metadata
from outcrop.importing.sources.graphbolt_tasks import DataFiles, LinkTask, NodeTask, SeedTask
from outcrop.importing.sources.graphbolt_typed import open_types
from outcrop.importing.sources.ids import PlainIds
from outcrop.runtime.runtime import Runtime


def open_graphbolt(
    folder: Path, runtime: Runtime, held: ExitStack, config: ImportConfig
) -> GraphSource | TypedSource:
    """Opens ``graphbolt:DIR``; reads ``metadata.yaml`` and headers.

    Raises:
        ArgumentError: A file is missing, PyYAML is, or the data set has no such task.
        FormatError: A file is torn or not what ``metadata.yaml`` says.
    """
    metadata, files = read_metadata(folder, runtime), DataFiles(runtime, held)
    if isinstance(metadata, TypedMetadata):
        return open_types(folder, metadata, files, runtime, config)
    ids = PlainIds(metadata.num_nodes, METADATA)
    edges, num_edges, edge_at = edges_of(metadata.edges, ids, files, runtime)
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


def _features(
    folder: Path, metadata: Metadata, files: DataFiles, runtime: Runtime
) -> tuple[FeatureSource | None, list[str]]:
    """Opens the features of nodes, and says what else there is."""
    chosen, others = chosen_features(str(folder), "nodes", metadata.node_features)
    left = [*metadata.left, *(f"node {name}" for name in others)]
    notes = [f"features of {folder} that are not imported: {', '.join(left)}"] if left else []
    if chosen is None:
        return None, notes
    return array_features(runtime, str(chosen.path), rows_of(chosen, files)), notes


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
