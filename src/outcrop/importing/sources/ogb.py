"""``ogb:DIR``: a data set of the Open Graph Benchmark, in the folder where the ``ogb`` package puts it.

Of graphs with one type of nodes and of edges, as compressed text without headers: ``raw/edge.csv.gz``,
``raw/num-node-list.csv.gz`` and ``raw/num-edge-list.csv.gz``, which list one number, and where they are there
``raw/node-feat.csv.gz``, ``raw/node-label.csv.gz``, ``raw/edge_weight.csv.gz``. The package adds the reverse of each
edge to some data sets, which it knows by name; so does this.

Or as arrays, which are streamed: ``raw/data.npz`` with ``edge_index`` ``[2, E]``, ``num_nodes_list``,
``num_edges_list`` and perhaps ``node_feat`` ``[N, D]``; ``raw/node-label.npz`` with ``node_label``, NaN = none.

Nodes of the splits are in ``split/NAME/train.csv.gz``, ``valid.csv.gz``, ``test.csv.gz``, edges to be predicted in
``train.pt``, ``valid.pt``, ``test.pt``; ``split_dict.pt`` may have either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from outcrop.config import ImportConfig
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import (
    EdgeBlock,
    FeatureSource,
    GraphSource,
    LabelSource,
    block_bytes,
    check_ids,
)
from outcrop.importing.sources.edge_list import edge_of, table_edges
from outcrop.importing.sources.features import check_features, table_features
from outcrop.importing.sources.gzip_tables import GzipTable, open_gzip, read_counts
from outcrop.importing.sources.ids import PlainIds
from outcrop.importing.sources.labels import check_labels, table_labels
from outcrop.importing.sources.npz_members import NpzMember, member_names, read_integers
from outcrop.importing.sources.ogb_splits import OgbSplits, open_splits
from outcrop.importing.sources.tables import Place, to_numpy
from outcrop.importing.sources.typed import refuse_typed
from outcrop.runtime.runtime import Runtime

# Data sets to which the package adds the reverse of each edge.
REVERSED = {"ogbn_products", "ogbn_proteins", "ogbl_ppa", "ogbl_collab", "ogbl_ddi"}
# Files that only data sets with several types of nodes or edges have.
_TYPED = (
    "triplet-type-list.csv.gz", "num-node-dict.csv.gz", "edge_reltype.csv.gz",
    "edge_index_dict.npz", "num_nodes_dict.npz",
)  # fmt: skip
_READ = ("edge", "num-node-list", "num-edge-list", "node-feat", "node-label", "edge_weight")


def open_ogb(folder: Path, runtime: Runtime, held: ExitStack, config: ImportConfig) -> GraphSource:
    """Opens ``ogb:DIR``; reads how many nodes and edges there are, and first lines.

    Raises:
        ArgumentError: A file is missing, the data set has several types or many graphs, or has no such split.
        FormatError: A file is torn or not what its name says.
    """
    raw = folder / "raw"
    if not raw.is_dir():
        raise ArgumentError(
            f"{raw} is no folder: ogb:DIR is the folder that the ogb package makes of a data set, such as "
            "dataset/ogbn_arxiv, with raw and split in it"
        )
    typed = next((name for name in _TYPED if (raw / name).exists()), None)
    if typed is not None:
        refuse_typed(str(folder), f"{typed} is there")
    if (raw / "data.npz").exists():
        return _open_arrays(folder, runtime, open_splits(folder, runtime, held, config))
    return _open_text(folder, runtime, open_splits(folder, runtime, held, config))


def is_reversed(folder: Path) -> bool:
    """Tells whether the package adds the reverse of each edge to the data set, which it knows by its folder."""
    names = (folder.absolute().name, folder.resolve().name)
    return any(name.replace("-", "_") in REVERSED for name in names)


def require_one_graph(name: str, counts: np.ndarray) -> int:
    """Returns the number of nodes or edges of the only graph. Raises ArgumentError where there are other than one."""
    if len(counts) != 1:
        raise ArgumentError(f"{name} lists {len(counts)} graphs; a data set of one graph is needed")
    return int(counts[0])


def _open_text(folder: Path, runtime: Runtime, splits: OgbSplits) -> GraphSource:
    raw = folder / "raw"
    files = {name: raw / f"{name}.csv.gz" for name in _READ}
    num_nodes, num_edges = (
        require_one_graph(str(files[name]), read_counts(runtime, files[name]))
        for name in ("num-node-list", "num-edge-list")
    )
    ids = PlainIds(num_nodes, str(files["num-node-list"]))
    table = open_gzip(files["edge"], ("source", "target"), num_edges)
    weights = (
        open_gzip(files["edge_weight"], ("weight",), num_edges) if files["edge_weight"].exists() else None
    )
    edges = table_edges(runtime, table, ids)
    features = None
    if files["node-feat"].exists():
        features, _ = table_features(runtime, open_gzip(files["node-feat"], None, num_nodes), None)
    return GraphSource(
        str(folder),
        lambda: _counted(edges() if weights is None else _weighted(edges(), weights, runtime), table),
        num_nodes,
        num_edges,
        features,
        _labels(files["node-label"], num_nodes, runtime),
        splits.nodes,
        reverse=is_reversed(folder),
        weighted=weights is not None,
        notes=(*_notes(raw), *splits.notes),
        split_rows=splits.rows,
        edge_splits=splits.edges,
        edge_split_at=splits.edge_at,
        edge_at=Place(table).at,
        weight_at=None if weights is None else Place(weights).at,
    )


def _labels(path: Path, num_nodes: int, runtime: Runtime) -> LabelSource | None:
    if not path.exists():
        return None
    table = open_gzip(path, None, num_nodes)
    if not table.columns:
        raise FormatError(f"{path} is empty; labels need a row for each of {num_nodes} nodes")
    return table_labels(runtime, table, list(table.columns), pa.float64())


def _counted(blocks: Iterator[EdgeBlock], table: GzipTable) -> Iterator[EdgeBlock]:
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


def _weighted(edges: Iterator[EdgeBlock], table: GzipTable, runtime: Runtime) -> Iterator[EdgeBlock]:
    """Yields edges with their weights, which are in a table of their own, a row for each."""
    place, row = Place(table), 0
    blocks: Iterator[list[pa.Array]] = table.blocks(runtime, list(table.columns), dtype=pa.float64())
    waiting = np.zeros(0, np.float32)
    with runtime.budget.reserve("import", 4 * block_bytes(runtime)):
        for source, target, *_ in edges:
            parts, count = [waiting], len(waiting)
            while count < len(source):
                block = next(blocks, None)
                if block is None:
                    raise FormatError(f"{table.name} has {row} rows; every edge needs a weight")
                parts.append(to_numpy(place, block[0], row).astype(np.float32))
                row += len(block[0])
                count += len(block[0])
            joined = np.concatenate(parts)
            yield source, target, joined[: len(source)]
            waiting = joined[len(source) :]
        if len(waiting) or next(blocks, None) is not None:
            raise FormatError(f"{table.name} has more rows than there are edges")


def _notes(raw: Path) -> tuple[str, ...]:
    """Names what the data set has beside what is imported."""
    read = {f"{name}.csv.gz" for name in _READ}
    left = sorted(path.name for path in raw.glob("*.csv.gz") if path.name not in read)
    return (f"files of {raw} that are not imported: {', '.join(left)}",) if left else ()


def _open_arrays(folder: Path, runtime: Runtime, splits: OgbSplits) -> GraphSource:
    path, listed = folder / "raw" / "data.npz", "num_nodes_list"
    num_nodes, num_edges = (
        require_one_graph(member.name, read_integers(runtime, member))
        for member in (NpzMember(path, listed), NpzMember(path, "num_edges_list"))
    )
    pairs = NpzMember(path, "edge_index")
    if pairs.shape != (2, num_edges):
        raise FormatError(f"{pairs.name} has shape {pairs.shape}; num_edges_list says [2, {num_edges}]")
    check_ids(pairs.name, np.zeros(0, pairs.dtype))
    names = member_names(path)
    left = sorted(names - {"edge_index", listed, "num_edges_list", "node_feat"})
    notes = (f"members of {path} that are not imported: {', '.join(left)}",) if left else ()
    return GraphSource(
        str(folder),
        lambda: _pairs(pairs, runtime),
        num_nodes,
        num_edges,
        _array_features(NpzMember(path, "node_feat"), runtime) if "node_feat" in names else None,
        _array_labels(folder / "raw" / "node-label.npz", runtime),
        splits.nodes,
        reverse=is_reversed(folder),
        notes=(*notes, *splits.notes),
        split_rows=splits.rows,
        edge_splits=splits.edges,
        edge_split_at=splits.edge_at,
        edge_at=edge_of(pairs.name),
    )


def _pairs(member: NpzMember, runtime: Runtime) -> Iterator[EdgeBlock]:
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


def _array_features(member: NpzMember, runtime: Runtime) -> FeatureSource:
    check_features(member.name, member.shape, member.dtype)
    return FeatureSource(
        member.name, member.dtype, len(member), member.shape[1], lambda count: member.rows(runtime, count)
    )


def _array_labels(path: Path, runtime: Runtime) -> LabelSource | None:
    if not path.exists():
        return None
    member = NpzMember(path, "node_label")
    columns = check_labels(member.name, member.shape)
    if member.dtype.kind not in "fiub":
        raise FormatError(f"{member.name} holds {member.dtype}; labels are numbers")
    count = max(1, block_bytes(runtime) // (16 * columns))
    return LabelSource(member.name, len(member), lambda num_nodes: member.rows(runtime, count))
