"""Files of data sets of the Open Graph Benchmark, whether these have types or not: rows, labels and pairs of ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from outcrop.errors import FormatError
from outcrop.importing.sources.base import EdgeBlock, FeatureSource, LabelSource, block_bytes, check_ids
from outcrop.importing.sources.features import check_features, table_features
from outcrop.importing.sources.gzip_tables import GzipTable, open_gzip
from outcrop.importing.sources.labels import check_labels, table_labels
from outcrop.importing.sources.npz_members import NpzMember
from outcrop.runtime.runtime import Runtime

_PACKAGE_FOLDER = Path("dataset")  # root of the package's data sets, where it is told of no other


def places_of(folder: Path) -> tuple[Path, ...]:
    """Returns where a data set is looked for: ``folder``, and of a name without a path, such as ``ogbn-mag``, where the
    package puts the data set of that name, ``dataset/ogbn_mag``.
    """
    named = len(folder.parts) == 1 and folder.name not in ("", "..")
    return (folder, _PACKAGE_FOLDER / folder.name.replace("-", "_")) if named else (folder,)


def folder_of(folder: Path) -> Path:
    """Returns the first of :func:`places_of` where there is a folder; ``folder`` where there is none."""
    return next((place for place in places_of(folder) if place.is_dir()), folder)


def notes_of_left(what: str, where: Path, left: Iterable[str]) -> tuple[str, ...]:
    """Says what is not imported: years, and the others.

    Args:
        what: What they are, such as ``files``.
        where: File or folder that has them.
        left: Their names.
    """
    names = sorted(left)
    years = [name for name in names if "year" in name]
    others = [name for name in names if name not in years]
    notes = (
        [f"years of {where} are not imported, graphs have no times yet: {', '.join(years)}"] if years else []
    )
    if others:
        notes.append(f"{what} of {where} that are not imported: {', '.join(others)}")
    return tuple(notes)


def text_features(path: Path, num_rows: int, runtime: Runtime) -> FeatureSource | None:
    """Returns rows of features in text; None where there is no such file."""
    return table_features(runtime, open_gzip(path, None, num_rows), None)[0] if path.exists() else None


def text_labels(path: Path, num_nodes: int, runtime: Runtime) -> LabelSource | None:
    """Returns labels in text; None where there is no such file."""
    if not path.exists():
        return None
    table = open_gzip(path, None, num_nodes)
    if not table.columns:
        raise FormatError(f"{path} is empty; labels need a row for each of {num_nodes} nodes")
    return table_labels(runtime, table, list(table.columns), pa.float64())


def counted(blocks: Iterator[EdgeBlock], table: GzipTable) -> Iterator[EdgeBlock]:
    """Passes edges on. Raises FormatError where they are not as many as the data set says."""
    row = 0
    for block in blocks:
        row += len(block[0])
        yield block
    if row != table.num_rows:
        raise FormatError(
            f"{table.name} has {row} rows, and num-edge-list.csv.gz beside it says {table.num_rows}: one of them is "
            "torn or of another data set"
        )


def pairs_of(member: NpzMember, runtime: Runtime) -> Iterator[EdgeBlock]:
    """Yields edges of ``[2, E]``, whose sources come first in the file: the member is read at two places at a time."""
    count, edges = max(1024, block_bytes(runtime) // 64), member.shape[1]
    if member.fortran:
        halves = ((block[0::2], block[1::2]) for block in member.flat(runtime, 2 * count, 0, 2 * edges))
    else:
        starts = (0, edges)
        halves = zip(*(member.flat(runtime, count, at, at + edges) for at in starts), strict=True)
    row = 0
    for source, target in halves:
        yield check_ids(member.name, source, row), check_ids(member.name, target, row)
        row += len(source)


def array_features_of(member: NpzMember, runtime: Runtime) -> FeatureSource:
    """Returns rows of features in a member of a ``.npz`` file."""
    check_features(member.name, member.shape, member.dtype)
    return FeatureSource(
        member.name, member.dtype, len(member), member.shape[1], lambda count: member.rows(runtime, count)
    )


def array_labels_of(path: Path, runtime: Runtime, name: str = "node_label") -> LabelSource | None:
    """Returns labels in the member ``name`` of a ``.npz`` file; None where there is no such file."""
    if not path.exists():
        return None
    member = NpzMember(path, name)
    columns = check_labels(member.name, member.shape)
    if member.dtype.kind not in "fiub":
        raise FormatError(f"{member.name} holds {member.dtype}; labels are numbers")
    count = max(1, block_bytes(runtime) // (16 * columns))
    return LabelSource(member.name, len(member), lambda num_nodes: member.rows(runtime, count))
