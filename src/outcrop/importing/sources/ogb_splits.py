"""Splits of a data set of the Open Graph Benchmark: ``split/NAME/`` of ``ogb:DIR``, whichever way its graph is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outcrop.config import ImportConfig
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError
from outcrop.importing.sources.base import SplitRow
from outcrop.importing.sources.gzip_tables import GzipTable, open_gzip, read_ids
from outcrop.importing.sources.ids import PlainIds
from outcrop.importing.sources.tables import Place
from outcrop.runtime.runtime import Runtime


@dataclass(frozen=True)
class OgbSplits:
    """Has what a :class:`GraphSource` says of splits.

    Attributes:
        nodes: Given the number of nodes, the splits; None = there are none.
        rows: Every row that puts a node into a split.
        notes: What the user should know.
    """

    nodes: Callable[[int], dict[str, np.ndarray] | None] = lambda num_nodes: None
    rows: Callable[[int], list[SplitRow]] | None = None
    notes: tuple[str, ...] = ()


def open_splits(folder: Path, runtime: Runtime, config: ImportConfig, ids: PlainIds) -> OgbSplits:
    """Opens the splits of the data set in ``folder``.

    Raises:
        ArgumentError: There is no split of the number that was asked for, or a file is missing or cannot be read.
    """
    chosen, notes = _chosen(folder / "split", config.split_index)
    if chosen is None or config.fractions_given or config.split_protocol:
        return OgbSplits()
    texts = {split: chosen / f"{split}.csv.gz" for split in SPLITS}
    if any(path.exists() for path in texts.values()):
        return _of_nodes(
            {split: open_gzip(path, ("node",)) for split, path in texts.items()}, runtime, ids, notes
        )
    torch_files = sorted(path.name for path in chosen.glob("*.pt"))
    if torch_files:
        raise ArgumentError(
            f"{chosen} holds {', '.join(torch_files)}, which are not read yet: --split none "
            "(ImportConfig(split_protocol='none')) imports the graph without them"
        )
    return OgbSplits(notes=(f"{chosen} holds no splits: train.csv.gz, valid.csv.gz, test.csv.gz",))


def _chosen(folder: Path, index: int) -> tuple[Path | None, tuple[str, ...]]:
    """Returns the folder of the split of a number, by name, and a note where there are others."""
    found = sorted(path for path in folder.glob("*") if path.is_dir())
    if not found and index == 0:
        return None, ()
    if index >= len(found):
        raise ArgumentError(
            f"{folder} has {len(found)} splits ({', '.join(path.name for path in found) or 'none'}), number {index} "
            "was asked for"
        )
    others = ", ".join(path.name for path in found if path != found[index])
    note = f"split {found[index].name!r} is imported, of {folder}; --split-index chooses another: {others}"
    return found[index], (note,) if others else ()


def _of_nodes(
    tables: dict[str, GzipTable], runtime: Runtime, ids: PlainIds, notes: tuple[str, ...]
) -> OgbSplits:
    def rows(node: int) -> list[SplitRow]:
        return [
            SplitRow(split, str(node), Place(table).at(row))
            for split, table in tables.items()
            for row in np.flatnonzero(read_ids(runtime, table, PlainIds()) == node).tolist()
        ]

    return OgbSplits(
        lambda num_nodes: {split: read_ids(runtime, table, ids) for split, table in tables.items()},
        rows,
        notes,
    )
