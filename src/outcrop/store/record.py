"""The bytes of one mini-batch on disk: header, graph, labels and address table ("meta"), then the packed rows.

Layout, little-endian: a header of 64 int64 words, then the sections it points at, each aligned to 8 bytes. The
sample stage writes records without an address table, the pack stage adds it and the rows:

    [meta, zero-padded to 4096][shift bytes][packed rows][zeros up to 4096]

The degrees are there where they were asked for (``--degrees``), edges to be predicted (int32 [2, L], then float32
[L]) where the task is link prediction. The address table lists, by ascending local position, which rows lie in the host
and in the device cache, and by ascending row which lie in the disk cache; all other rows are packed, in batch order.
``shift_bytes`` puts the first packed row at the same place within a page as the row's final place in the batch
(:func:`outcrop.rows.assemble`), so that rows are read straight to where they expand.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import outcrop._core as _core
from outcrop.errors import ChecksumError, FormatError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.store import record_contents
from outcrop.store.address_table import AddressTable
from outcrop.store.batches import BatchGraph
from outcrop.store.levels import Level

HEADER_WORDS = 64
HEADER_BYTES = HEADER_WORDS * 8
MAX_HOPS = 15
_MAGIC = int.from_bytes(b"OUTCROPB", "little")
_VERSION = 1

# Header words.
(
    _W_MAGIC,
    _W_VERSION,
    _W_HOPS,
    _W_ID_BYTES,
    _W_NODES,
    _W_EDGES,
    _W_ROWS,
    _W_HOST,
    _W_DEVICE,
    _W_META_BYTES,
    _W_CRC,
    _W_DEGREES,
    _W_DISK,
) = range(13)
_W_UNTRIMMED, _W_LABEL_EDGES = 16, 17
_W_NODES_PER_HOP, _W_EDGES_PER_HOP = 24, 40


def align_page(count: int) -> int:
    return -(-count // PAGE_BYTES) * PAGE_BYTES


def id_bytes_for(num_nodes: int) -> int:
    return 4 if num_nodes <= 1 << 31 else 8


def meta_bytes(
    nodes: int,
    rows: int,
    edges: int,
    labels: int,
    cached: int,
    id_bytes: int,
    degrees: bool = False,
    label_edges: int = 0,
) -> int:
    """Counts the bytes of the meta part with these counts, not padded to a page."""
    sections = [
        nodes * id_bytes,
        (rows + 1) * 4,
        edges * 4,
        labels * 8,
        cached * 8,
        nodes * 4 if degrees else 0,
        label_edges * 8,
        label_edges * 4,
    ]
    return HEADER_BYTES + sum(-(-s // 8) * 8 for s in sections)


def bytes_of(graph: BatchGraph) -> int:
    """Counts the bytes of the meta part of ``graph`` with ids of 4 bytes, without an address table."""
    counts = graph.num_nodes, len(graph.rowptr) - 1, graph.num_edges, graph.num_seeds
    return meta_bytes(*counts, 0, 4, graph.degree is not None, graph.num_label_edges)


def shift_bytes(num_nodes: int, num_packed: int, row_bytes: int) -> int:
    """Counts the bytes before the first packed row within its page."""
    return (num_nodes - num_packed) * row_bytes % PAGE_BYTES


def rows_span_bytes(num_nodes: int, num_packed: int, row_bytes: int) -> int:
    """Counts the bytes of the packed-rows part on disk, shift and page padding included."""
    if num_packed == 0 or row_bytes == 0:
        return 0
    return align_page(shift_bytes(num_nodes, num_packed, row_bytes) + num_packed * row_bytes)


def encode(graph: BatchGraph, table: AddressTable, id_bytes: int) -> np.ndarray:
    """Encodes the meta part as uint8, zero-padded to a page."""
    cached = np.concatenate(
        [
            table.host_positions,
            table.host_rows,
            table.device_positions,
            table.device_rows,
            table.disk_positions,
            table.disk_rows,
        ]
    )
    size = meta_bytes(
        graph.num_nodes,
        len(graph.rowptr) - 1,
        graph.num_edges,
        graph.num_seeds,
        table.num_cached,
        id_bytes,
        graph.degree is not None,
        graph.num_label_edges,
    )
    out = np.zeros(align_page(size), np.uint8)
    header = out[:HEADER_BYTES].view("<i8")
    header[
        [
            _W_MAGIC,
            _W_VERSION,
            _W_HOPS,
            _W_ID_BYTES,
            _W_NODES,
            _W_EDGES,
            _W_ROWS,
            _W_HOST,
            _W_DEVICE,
            _W_META_BYTES,
        ]
    ] = [
        _MAGIC,
        _VERSION,
        graph.hops,
        id_bytes,
        graph.num_nodes,
        graph.num_edges,
        len(graph.rowptr) - 1,
        len(table.host_positions),
        len(table.device_positions),
        size,
    ]
    header[_W_DEGREES] = graph.degree is not None
    header[_W_DISK] = len(table.disk_positions)
    header[_W_UNTRIMMED], header[_W_LABEL_EDGES] = graph.untrimmed, graph.num_label_edges
    header[_W_NODES_PER_HOP : _W_NODES_PER_HOP + graph.hops + 1] = graph.nodes_per_hop
    header[_W_EDGES_PER_HOP : _W_EDGES_PER_HOP + graph.hops] = graph.edges_per_hop
    at = HEADER_BYTES
    for values, dtype in (
        (graph.n_id, f"<i{id_bytes}"),
        (graph.rowptr, "<i4"),
        (graph.col, "<i4"),
        (graph.labels, "<i8"),
        (cached, "<i4"),
        ([] if graph.degree is None else graph.degree, "<i4"),
        ([] if graph.edge_label_index is None else graph.edge_label_index, "<i4"),
        ([] if graph.edge_label is None else graph.edge_label, "<f4"),
    ):
        data = np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8)
        out[at : at + len(data)] = data
        at += -(-len(data) // 8) * 8
    header[_W_CRC] = _core.crc32c(out)
    return out


def node_ids_range(meta_offset: int, nodes: int, id_bytes: int) -> tuple[int, int]:
    """Returns where the n_id section of a record at ``meta_offset`` lies in its file: (offset, bytes)."""
    return meta_offset + HEADER_BYTES, nodes * id_bytes


def decode(
    meta: np.ndarray,
    where: str,
    *,
    num_nodes: int | None = None,
    num_classes: int | None = None,
    cache_rows: Mapping[Level, int] | None = None,
) -> tuple[BatchGraph, AddressTable]:
    """Undoes :func:`encode`; the arrays are copies.

    Args:
        meta: uint8, the meta part; more may follow it.
        where: What errors name.
        num_nodes, num_classes, cache_rows: What ids, labels and rows of each cache must be below, where it is known.

    Raises:
        FormatError: Foreign bytes, an impossible header, or arrays that contradict each other.
        ChecksumError: Changed bytes.
    """
    if len(meta) < HEADER_BYTES or len(meta) % 8:
        raise FormatError(f"{where}: {len(meta)} bytes are no mini-batch record")
    header = meta[:HEADER_BYTES].view("<i8").copy()
    if header[_W_MAGIC] != _MAGIC or header[_W_VERSION] != _VERSION:
        raise FormatError(
            f"{where}: no mini-batch record of version {_VERSION} is there; remove its folder and prepare the run again"
        )
    hops, id_bytes, nodes, edges, rows, host, device, size = (
        int(n) for n in header[_W_HOPS : _W_META_BYTES + 1]
    )
    seeds, degrees, disk = int(header[_W_NODES_PER_HOP]), bool(header[_W_DEGREES]), int(header[_W_DISK])
    untrimmed, label_edges = int(header[_W_UNTRIMMED]), int(header[_W_LABEL_EDGES])
    counts = (nodes, edges, rows, host, device, disk, seeds, label_edges)
    sane = 1 <= hops <= MAX_HOPS and id_bytes in (4, 8) and min(counts) >= 0
    if (
        not sane
        or size > len(meta)
        or size != meta_bytes(nodes, rows, edges, seeds, host + device + disk, id_bytes, degrees, label_edges)
    ):
        raise FormatError(
            f"{where}: the header of the mini-batch record is damaged; remove its folder and prepare the run again"
        )
    _check_crc(meta, header, where)
    at = HEADER_BYTES
    sections = []
    for count, dtype in (
        (nodes, f"<i{id_bytes}"),
        (rows + 1, "<i4"),
        (edges, "<i4"),
        (seeds, "<i8"),
        (2 * (host + device + disk), "<i4"),
        (nodes if degrees else 0, "<i4"),
        (2 * label_edges, "<i4"),
        (label_edges, "<f4"),
    ):
        width = np.dtype(dtype).itemsize
        sections.append(meta[at : at + count * width].view(dtype))
        at += -(-count * width // 8) * 8
    n_id, rowptr, col, labels, cached, degree, edge_label_index, edge_label = sections
    graph = BatchGraph.of_one_type(
        n_id=n_id.astype(np.int64),
        rowptr=rowptr.copy(),
        col=col.copy(),
        labels=labels.copy(),
        degree=degree.copy() if degrees else None,
        nodes_per_hop=tuple(header[_W_NODES_PER_HOP : _W_NODES_PER_HOP + hops + 1].tolist()),
        edges_per_hop=tuple(header[_W_EDGES_PER_HOP : _W_EDGES_PER_HOP + hops].tolist()),
        untrimmed=bool(untrimmed),
        edge_label_index=edge_label_index.reshape(2, -1).copy() if label_edges else None,
        edge_label=edge_label.copy() if label_edges else None,
    )
    cuts = np.cumsum([host, host, device, device, disk])
    table = AddressTable(*(part.copy() for part in np.split(cached, cuts)))
    record_contents.check(graph, table, where, num_nodes, num_classes, cache_rows)
    return graph, table


def _check_crc(meta: np.ndarray, header: np.ndarray, where: str) -> None:
    stored = int(header[_W_CRC])
    header[_W_CRC] = 0
    crc = _core.crc32c(meta[HEADER_BYTES:], _core.crc32c(header.view(np.uint8)))
    if crc != stored:
        raise ChecksumError(
            f"{where}: the mini-batch record was damaged after it was written (checksum {crc:08x}, "
            f"expected {stored:08x}); remove its folder and prepare the run again"
        )
