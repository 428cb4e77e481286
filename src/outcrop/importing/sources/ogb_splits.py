"""Splits of a data set of the Open Graph Benchmark: ``split/NAME/`` of ``ogb:DIR``, whichever way its graph is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import ImportConfig
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import SplitRow, check_ids
from outcrop.importing.sources.gzip_tables import id_blocks, open_gzip, read_ids
from outcrop.importing.sources.npy import forget_pages
from outcrop.importing.sources.ogb_files import notes_of_left
from outcrop.importing.sources.split_rows import rows_of_lists
from outcrop.importing.sources.tables import Place
from outcrop.importing.sources.torch_file import TorchFile
from outcrop.importing.sources.typed import refuse_typed
from outcrop.runtime.runtime import Runtime

SPLIT_DICT = "split_dict.pt"  # which the package prefers to other files
_ENDS = ("source_node", "target_node")  # parts of a split of ogbl-citation2


@dataclass(frozen=True)
class OgbSplits:
    """Has what a :class:`GraphSource` says of splits.

    Attributes:
        nodes: Given the number of nodes, the splits; None = there are none.
        rows: The first and the last row that put a node into a split.
        edges: Edges to be predicted by split, int64 ``[M, 2]`` each.
        edge_at: Where such an edge is, by split and row.
        notes: What the user should know.
    """

    nodes: Callable[[int], dict[str, np.ndarray] | None] = lambda num_nodes: None
    rows: Callable[[int], list[SplitRow]] | None = None
    edges: Callable[[], dict[str, np.ndarray]] = dict
    edge_at: Callable[[str, int], str] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeList:
    """Lists the nodes of a split.

    Attributes:
        place: Where its rows are, for messages.
        read: Reads its ids, int64 [n].
        blocks: Yields them in blocks, of which none need be kept.
    """

    place: Place
    read: Callable[[], np.ndarray]
    blocks: Callable[[], Iterable[np.ndarray]]


def text_list(path: Path, num_nodes: int, runtime: Runtime, held: ExitStack) -> NodeList:
    """Opens nodes that a ``.csv.gz`` lists; of more than ``num_nodes`` no more is read than shows it.

    Raises:
        ArgumentError, FormatError: The file is missing or torn, or has several columns.
    """
    table = open_gzip(path, ("node",))
    return NodeList(
        Place(table),
        lambda: read_ids(runtime, table, num_nodes, held),
        lambda: id_blocks(runtime, table, num_nodes),
    )


def array_list(name: str, read: Callable[[], np.ndarray]) -> NodeList:
    """Opens nodes that are an array in a file."""
    return NodeList(Place(name), read, lambda: [read()])


def rows_of(node: int, lists: dict[str, NodeList]) -> list[SplitRow]:
    """Returns the first and the last row that put ``node`` into one of the splits."""
    return rows_of_lists(node, ((split, one.place, one.blocks()) for split, one in lists.items()))


def open_splits(
    folder: Path, num_nodes: int, runtime: Runtime, held: ExitStack, config: ImportConfig
) -> OgbSplits:
    """Opens the splits of the data set in ``folder``, whose graph has ``num_nodes`` nodes.

    Raises:
        ArgumentError: There is no split of the number that was asked for, or a file is missing.
        FormatError: A file is torn or not what its name says.
    """
    chosen, notes = chosen_split(folder / "split", config.split_index)
    if chosen is None or config.split_protocol == "none":
        return OgbSplits()
    texts = {split: chosen / f"{split}.csv.gz" for split in SPLITS}
    if not (chosen / SPLIT_DICT).exists() and any(path.exists() for path in texts.values()):
        lists = {split: text_list(path, num_nodes, runtime, held) for split, path in texts.items()}
        return _of_nodes(lists, notes)
    values = _torch_values(chosen, runtime, held)
    if not values:
        return OgbSplits(notes=(f"{chosen} holds no splits that are read: .csv.gz or .pt",))
    if any(isinstance(value.raw, dict) for value in values.values()):
        return _of_edges(chosen, values, runtime, held, notes)
    return _of_nodes({split: array_list(value.name, value.nodes) for split, value in values.items()}, notes)


def chosen_split(folder: Path, index: int) -> tuple[Path | None, tuple[str, ...]]:
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


def _of_nodes(lists: dict[str, NodeList], notes: tuple[str, ...]) -> OgbSplits:
    return OgbSplits(
        lambda num_nodes: {split: one.read() for split, one in lists.items()},
        lambda node: rows_of(node, lists),
        notes=notes,
    )


@dataclass(frozen=True)
class _TorchValue:
    """Is what a torch file says of a split: an array of nodes, or a dict of arrays.

    Attributes:
        file: The file.
        raw: What its pickle holds for the split.
        name: What messages call it.
    """

    file: TorchFile
    raw: Any
    name: str

    def array(self, part: str, axes: int) -> np.ndarray:
        """Returns an array of integers ``[n]`` or ``[n, 2]``; ``part`` empty: the value itself."""
        name = f"{self.name} {part}".rstrip()
        found = self.file.value(self.raw[part] if part else self.raw, name)
        good = isinstance(found, np.ndarray) and found.ndim == axes and found.shape[1:] in ((), (2,))
        if not good:
            shape = f"shape {found.shape}" if isinstance(found, np.ndarray) else "no array"
            raise FormatError(f"{name} has {shape}; {'[edges, 2]' if axes == 2 else 'a list'} is needed")
        check_ids(name, found[:0])
        return found

    def nodes(self) -> np.ndarray:
        return check_ids(self.name, self.array("", 1))


def _torch_values(folder: Path, runtime: Runtime, held: ExitStack) -> dict[str, _TorchValue]:
    """Opens ``split_dict.pt``, or the file of each split."""

    def opened(path: Path) -> TorchFile:
        return TorchFile(path, frozenset(), "download the data set again", runtime, held)

    whole = folder / SPLIT_DICT
    if whole.exists():
        file = opened(whole)
        if not isinstance(file.root, dict) or not set(SPLITS) <= set(file.root):
            raise FormatError(f"{whole} has not the splits train, valid and test")
        return {split: _TorchValue(file, file.root[split], f"{whole} {split}") for split in SPLITS}
    paths = {split: folder / f"{split}.pt" for split in SPLITS}
    files = {split: opened(path) for split, path in paths.items() if path.exists()}
    return {split: _TorchValue(file, file.root, str(file.path)) for split, file in files.items()}


def _of_edges(
    folder: Path, values: dict[str, _TorchValue], runtime: Runtime, held: ExitStack, notes: tuple[str, ...]
) -> OgbSplits:
    """Makes edges to be predicted of dicts with ``edge``, or with ``source_node`` and ``target_node``."""
    left: set[str] = set()
    for value in values.values():
        parts = set(value.raw) if isinstance(value.raw, dict) else set()
        if "relation" in parts:
            refuse_typed(str(folder), f"{value.name} has relations")
        used = {"edge"} if "edge" in parts else set(_ENDS)
        if not used <= parts:
            raise FormatError(
                f"{value.name} has {', '.join(sorted(map(str, parts))) or 'no parts'}; edge, or {' and '.join(_ENDS)} "
                "are needed"
            )
        left |= {str(part) for part in parts - used}

    def edges(value: _TorchValue) -> np.ndarray:
        if "edge" in value.raw:
            return value.array("edge", 2)
        ends = [value.array(part, 1) for part in _ENDS]
        if len(ends[0]) != len(ends[1]):
            raise FormatError(f"{value.name} has {len(ends[0])} sources and {len(ends[1])} targets")
        held.enter_context(runtime.budget.reserve("splits", 16 * len(ends[0])))
        pairs = np.empty((len(ends[0]), 2), np.int64)
        for side, nodes in enumerate(ends):
            pairs[:, side] = nodes
            forget_pages(nodes)
        return pairs

    return OgbSplits(
        edges=lambda: {split: edges(value) for split, value in values.items()},
        edge_at=lambda split, row: f"{values[split].name}, edge {row} (the first is 0)",
        notes=(*notes, *_notes_of_edges(folder, values, left)),
    )


def _notes_of_edges(folder: Path, values: dict[str, _TorchValue], left: set[str]) -> list[str]:
    """Says which splits are not there, and what of them is not imported."""
    notes = [f"{folder} holds no edges of split {split}" for split in SPLITS if split not in values]
    negatives = sorted(part for part in left if part.endswith("_neg"))
    if negatives:
        notes.append(
            f"negatives of {folder} cannot be stored yet and are not imported: {', '.join(negatives)}"
        )
    return [*notes, *notes_of_left("parts", folder, left - set(negatives))]
