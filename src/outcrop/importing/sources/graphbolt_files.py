"""Files of ``graphbolt:DIR``, whether it has types or not: edges, and which features are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import EdgeBlock
from outcrop.importing.sources.edge_list import array_edges, edge_of, table_edges
from outcrop.importing.sources.graphbolt_metadata import METADATA, DataFile
from outcrop.importing.sources.graphbolt_tasks import DataFiles
from outcrop.importing.sources.ids import PlainIds
from outcrop.importing.sources.table_files import FileTable
from outcrop.importing.sources.tables import Place
from outcrop.runtime.runtime import Runtime

FEATURES = ("feat", "features", "x")  # what the features are called, where there are several

Edges = tuple[Callable[[], Iterator[EdgeBlock]], int | None, Callable[[int], str]]


def edges_of(file: DataFile, ids: PlainIds, files: DataFiles, runtime: Runtime) -> Edges:
    """Opens edges: what yields them, how many there are where that is known, and where each is.

    Raises:
        ArgumentError: There is no such file.
        FormatError: It has another shape.
    """
    name = str(file.path)
    if file.format == "csv":
        if not file.path.is_file():
            raise ArgumentError(f"{file.path} is missing, which {METADATA} names for edges")
        table = FileTable(file.path, ("source", "target"), None)
        return table_edges(runtime, table, ids), None, Place(table).at
    pairs = files.array(file)
    if pairs.ndim != 2 or pairs.shape[0] != 2:
        raise FormatError(f"{name} has shape {pairs.shape}; GraphBolt has edges as [2, edges]")
    edges, num_edges = array_edges(runtime, name, pairs.T, PlainIds())
    return edges, num_edges, edge_of(name)


def chosen_features(where: str, what: str, given: Sequence[DataFile]) -> tuple[DataFile | None, list[str]]:
    """Returns the features that are taken, and the names of the others.

    Args:
        where: What messages call the data set.
        what: Whose features they are, for messages.
        given: Files of features.

    Raises:
        ArgumentError: There are several, and none has a usual name.
    """
    by_name = {file.name: file for file in given}
    chosen = next((name for name in FEATURES if name in by_name), None)
    if chosen is None and len(by_name) > 1:
        raise ArgumentError(
            f"{where} has several features of {what} ({', '.join(by_name)}) and none called {' or '.join(FEATURES)}: "
            f"rename one in {METADATA}"
        )
    chosen = chosen or next(iter(by_name), None)
    return None if chosen is None else by_name[chosen], [name for name in by_name if name != chosen]


def rows_of(file: DataFile, files: DataFiles) -> np.ndarray:
    """Opens rows of features."""
    array = files.array(file)
    return array[:, None] if array.ndim == 1 else array  # which GraphBolt takes for one column
