"""``mag240m:DIR``: papers, authors and institutions of MAG240M, as ``MAG240MDataset`` of the package ``ogb`` has it.

``meta.pt`` says how many nodes of each type there are, ``split_dict.pt`` which papers are in which split;
``processed/paper/node_feat.npy`` [N, 768] and ``node_label.npy`` [N] (NaN = none) belong to papers, and
``processed/SOURCE___RELATION___TARGET/edge_index.npy`` [2, E] are edges. Authors and institutions have no rows.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import ImportConfig
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import EdgeSource, NodeSource, TypedSource
from outcrop.importing.sources.checks import check_told_types
from outcrop.importing.sources.edge_list import array_edges, edge_of
from outcrop.importing.sources.features import array_features
from outcrop.importing.sources.file_map import is_size
from outcrop.importing.sources.ids import PlainIds
from outcrop.importing.sources.labels import array_labels
from outcrop.importing.sources.npy import forget_pages, open_npy
from outcrop.importing.sources.ogb_files import notes_of_left
from outcrop.importing.sources.parts import Part, SplitParts
from outcrop.importing.sources.torch_file import TorchFile
from outcrop.runtime.runtime import Runtime

META, SPLIT_DICT = "meta.pt", "split_dict.pt"
TYPES = ("paper", "author", "institution")
EDGE_TYPES = (
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("author", "affiliated_with", "institution"),
)
_MOST_CLASSES = 1 << 16
# Papers for tests: those of the first leaderboard, those of the challenge, and both.
_DEV, _TESTS = "test-dev", ("test-dev", "test-challenge", "test-whole")
_REMEDY = "download the data set again"


def open_mag240m(folder: Path, runtime: Runtime, held: ExitStack, config: ImportConfig) -> TypedSource:
    """Opens the folder; reads ``meta.pt``, ``split_dict.pt`` and headers.

    Raises:
        ArgumentError: A file is missing, or numbers contradict each other.
        FormatError: A file is torn or not what its name says.
    """
    if not folder.is_dir():
        raise ArgumentError(f"{folder} is no folder: mag240m:DIR is the one with {META} and processed in it")
    counts = _counts(folder, runtime, held)
    nodes = tuple(
        _papers(folder, counts, runtime, held)
        if name == "paper"
        else NodeSource(f"{folder}: {name}", counts[name], type_name=name, whose=f"node type {name!r} has")
        for name in TYPES
    )
    edges = tuple(_edges(folder, key, runtime) for key in EDGE_TYPES)
    papers = folder / "processed" / "paper"
    notes = notes_of_left("files", papers, (path.name for path in papers.glob("node_year.npy")))
    source = TypedSource(str(folder), nodes, edges, notes)
    check_told_types(source, 0)
    return source


def _counts(folder: Path, runtime: Runtime, held: ExitStack) -> dict[str, int]:
    path = _require(folder / META)
    root = TorchFile(path, frozenset(), _REMEDY, runtime, held).root
    wanted = (*TYPES, "num_classes")
    if not isinstance(root, dict) or not all(
        type(root.get(key)) is int and is_size(root[key]) for key in wanted
    ):
        raise FormatError(f"{path} has no numbers of {', '.join(wanted)}: {_REMEDY}")
    if root["num_classes"] > _MOST_CLASSES:
        raise FormatError(f"{path} tells of {root['num_classes']} classes: {_REMEDY}")
    return {key: root[key] for key in wanted}


def _papers(folder: Path, counts: dict[str, int], runtime: Runtime, held: ExitStack) -> NodeSource:
    papers, count = folder / "processed" / "paper", counts["paper"]
    rows, labels = (_require(papers / f"node_{what}.npy") for what in ("feat", "label"))
    splits = SplitParts(_splits(folder, runtime, held), count)
    return NodeSource(
        f"{folder}: paper",
        count,
        array_features(runtime, str(rows), open_npy(rows)),
        array_labels(runtime, str(labels), open_npy(labels)),
        splits.ids,
        tuple(map(str, range(counts["num_classes"]))),
        split_rows=splits.rows,
        type_name="paper",
        whose="node type 'paper' has",
    )


def _splits(folder: Path, runtime: Runtime, held: ExitStack) -> dict[str, Part]:
    path = _require(folder / SPLIT_DICT)
    file = TorchFile(path, frozenset(), _REMEDY, runtime, held)
    root: dict[str, Any] = file.root if isinstance(file.root, dict) else {}

    def papers(name: str) -> np.ndarray:
        value = file.value(root[name], name) if name in root else None
        if not isinstance(value, np.ndarray):
            raise FormatError(f"{path} has no papers of split {name}: {_REMEDY}")
        return value

    parts = {split: Part(f"{path} {split}", papers(split)) for split in ("train", "valid")}
    if "test" in root:
        parts["test"] = Part(f"{path} test[index % 5 < 3]", _dev_of(papers("test"), runtime, held))
    elif missing := [name for name in _TESTS if name not in root]:
        raise FormatError(f"{path} has neither papers of split test nor of {', '.join(missing)}: {_REMEDY}")
    else:
        parts["test"] = Part(f"{path} {_DEV}", papers(_DEV))
    return parts


def _dev_of(test: np.ndarray, runtime: Runtime, held: ExitStack) -> np.ndarray:
    """Returns the papers of ``test`` that the package calls ``test-dev``: ``test[numpy.arange(len(test)) % 5 < 3]``."""
    if test.ndim != 1:
        return test
    count = len(test) // 5 * 3 + min(len(test) % 5, 3)
    held.enter_context(runtime.budget.reserve("splits", count * test.dtype.itemsize))
    dev = np.empty(count, test.dtype)
    for first in range(3):
        dev[first::3] = test[first::5]
    forget_pages(test)
    return dev


def _edges(folder: Path, key: tuple[str, str, str], runtime: Runtime) -> EdgeSource:
    path = _require(folder / "processed" / "___".join(key) / "edge_index.npy")
    pairs, name = open_npy(path), str(path)
    if pairs.ndim != 2 or pairs.shape[0] != 2:
        raise FormatError(f"{name} has shape {pairs.shape}; [2, edges] is needed")
    edges, count = array_edges(runtime, name, pairs.T, PlainIds())
    return EdgeSource(name, key, edges, count, edge_at=edge_of(name))


def _require(path: Path) -> Path:
    if not path.is_file():
        raise ArgumentError(f"{path} is missing: {_REMEDY}")
    return path
