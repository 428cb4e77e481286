"""``ogb:DIR``: a data set of the Open Graph Benchmark, in the folder where the ``ogb`` package puts it.

Of graphs with one type of nodes and of edges, as compressed text without headers: ``raw/edge.csv.gz``,
``raw/num-node-list.csv.gz`` and ``raw/num-edge-list.csv.gz``, which list one number, and where they are there
``raw/node-feat.csv.gz``, ``raw/node-label.csv.gz``, ``raw/edge_weight.csv.gz``, ``raw/edge-feat.csv.gz``. The package
adds the reverse of each edge to some data sets, which it knows by name; so does this.

Or as arrays, which are streamed: ``raw/data.npz`` with ``edge_index`` ``[2, E]``, ``num_nodes_list``,
``num_edges_list`` and perhaps ``node_feat`` ``[N, D]`` and ``edge_feat`` ``[E, D]``; ``raw/node-label.npz`` with
``node_label``, NaN = none.

Nodes of the splits are in ``split/NAME/train.csv.gz``, ``valid.csv.gz``, ``test.csv.gz``, edges to be predicted in
``train.pt``, ``valid.pt``, ``test.pt``; ``split_dict.pt`` may have either. Data sets with types of nodes and edges are
read by :mod:`outcrop.importing.sources.ogb_typed`.
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
    GraphSource,
    TypedSource,
    block_bytes,
    check_ids,
)
from outcrop.importing.sources.edge_list import edge_of, table_edges
from outcrop.importing.sources.gzip_tables import GzipTable, open_gzip, read_count
from outcrop.importing.sources.ids import PlainIds
from outcrop.importing.sources.npz_members import NpzMember, member_names, read_integer
from outcrop.importing.sources.ogb_files import (
    array_features_of,
    array_labels_of,
    counted,
    folder_of,
    notes_of_left,
    pairs_of,
    places_of,
    text_features,
    text_labels,
)
from outcrop.importing.sources.ogb_splits import open_splits
from outcrop.importing.sources.ogb_typed import open_ogb_typed
from outcrop.importing.sources.tables import Place, to_numpy
from outcrop.importing.sources.typed import refuse_typed
from outcrop.runtime.runtime import Runtime

# Data sets to which the package adds the reverse of each edge.
REVERSED = {"ogbn_products", "ogbn_proteins", "ogbl_ppa", "ogbl_collab", "ogbl_ddi"}
# Files that only data sets with several types of nodes or edges have.
_TYPED = ("triplet-type-list.csv.gz", "num-node-dict.csv.gz", "edge_index_dict.npz", "num_nodes_dict.npz")
_RELATIONS = "edge_reltype.csv.gz"  # the type of each edge, of nodes of one type: a knowledge graph
_READ = ("edge", "num-node-list", "num-edge-list", "node-feat", "node-label", "edge_weight", "edge-feat")


def open_ogb(
    folder: Path, runtime: Runtime, held: ExitStack, config: ImportConfig
) -> GraphSource | TypedSource:
    """Opens ``ogb:DIR`` or ``ogb:NAME``; reads how many nodes and edges there are, and first lines.

    Raises:
        ArgumentError: A file is missing, the data set has relations or many graphs, or has no such split.
        FormatError: A file is torn or not what its name says.
    """
    places, folder = places_of(folder), folder_of(folder)
    raw = folder / "raw"
    if not raw.is_dir():
        looked = " and ".join(str(place / "raw") for place in places)
        raise ArgumentError(
            f"{looked} {'is no folder' if len(places) == 1 else 'are no folders'}: ogb:DIR is the folder that the ogb "
            "package makes of a data set, such as dataset/ogbn_arxiv, with raw and split in it, or the name of the "
            "data set, such as ogbn-arxiv, where that folder is in the current one"
        )
    if any((raw / name).exists() for name in _TYPED):
        return open_ogb_typed(folder, runtime, held, config)
    if (raw / _RELATIONS).exists():
        refuse_typed(str(folder), f"{_RELATIONS} is there", "import it from triples (triples:DIR)")
    if (raw / "data.npz").exists():
        return _open_arrays(folder, runtime, held, config)
    return _open_text(folder, runtime, held, config)


def is_reversed(folder: Path) -> bool:
    """Tells whether the package adds the reverse of each edge to the data set, which it knows by its folder."""
    names = (folder.absolute().name, folder.resolve().name)
    return any(name.replace("-", "_") in REVERSED for name in names)


def _open_text(folder: Path, runtime: Runtime, held: ExitStack, config: ImportConfig) -> GraphSource:
    raw = folder / "raw"
    files = {name: raw / f"{name}.csv.gz" for name in _READ}
    num_nodes, num_edges = (read_count(files[name]) for name in ("num-node-list", "num-edge-list"))
    splits = open_splits(folder, num_nodes, runtime, held, config)
    ids = PlainIds(num_nodes, str(files["num-node-list"]))
    table = open_gzip(files["edge"], ("source", "target"), num_edges)
    weights = (
        open_gzip(files["edge_weight"], ("weight",), num_edges) if files["edge_weight"].exists() else None
    )
    edges = table_edges(runtime, table, ids)
    features = text_features(files["node-feat"], num_nodes, runtime)
    return GraphSource(
        str(folder),
        lambda: counted(edges() if weights is None else _weighted(edges(), weights, runtime), table),
        num_nodes,
        num_edges,
        features,
        text_labels(files["node-label"], num_nodes, runtime),
        splits.nodes,
        reverse=is_reversed(folder),
        weighted=weights is not None,
        notes=(*_notes(raw), *splits.notes),
        split_rows=splits.rows,
        edge_splits=splits.edges,
        edge_split_at=splits.edge_at,
        edge_at=Place(table).at,
        weight_at=None if weights is None else Place(weights).at,
        edge_features=text_features(files["edge-feat"], num_edges, runtime),
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
    return notes_of_left("files", raw, (path.name for path in raw.glob("*.csv.gz") if path.name not in read))


def _open_arrays(folder: Path, runtime: Runtime, held: ExitStack, config: ImportConfig) -> GraphSource:
    path, listed = folder / "raw" / "data.npz", "num_nodes_list"
    num_nodes, num_edges = (
        read_integer(runtime, NpzMember(path, name)) for name in (listed, "num_edges_list")
    )
    splits = open_splits(folder, num_nodes, runtime, held, config)
    pairs = NpzMember(path, "edge_index")
    if pairs.shape != (2, num_edges):
        raise FormatError(f"{pairs.name} has shape {pairs.shape}; num_edges_list says [2, {num_edges}]")
    check_ids(pairs.name, np.zeros(0, pairs.dtype))
    names = member_names(path)
    read = {"edge_index", listed, "num_edges_list", "node_feat", "edge_feat"}
    return GraphSource(
        str(folder),
        lambda: pairs_of(pairs, runtime),
        num_nodes,
        num_edges,
        array_features_of(NpzMember(path, "node_feat"), runtime) if "node_feat" in names else None,
        array_labels_of(folder / "raw" / "node-label.npz", runtime),
        splits.nodes,
        reverse=is_reversed(folder),
        notes=(*notes_of_left("members", path, names - read), *splits.notes),
        split_rows=splits.rows,
        edge_splits=splits.edges,
        edge_split_at=splits.edge_at,
        edge_at=edge_of(pairs.name),
        edge_features=array_features_of(NpzMember(path, "edge_feat"), runtime)
        if "edge_feat" in names
        else None,
    )
