"""The bytes of one mini-batch on disk: header, graph, labels and address tables ("meta"), then the packed rows.

Layout, little-endian: a header of 64 int64 words, which counts the nodes of the first node type, the edges of the first
edge type, and the rows of the first row file that lie in caches; version 2, of batches with more of these, has the same
counts of the others behind the header. Then arrays, each aligned to 8 bytes: the ids of each node type, the positions
of each edge type (version 3: of each edge once, rising within a hop, and then for each edge type int32 [E], which of
them each edge is), ``rowptr`` and ``col`` of each edge type, labels, the address table of each row file, degrees, edges
to be predicted, weights of edges, what these come to for each node. The sample stage writes records without address
tables, the pack stage adds them and, for each row file, the rows:

    [meta, zero-padded to 4096] and for each row file [shift bytes][packed rows][zeros up to 4096]

The degrees are there where they were asked for (``--degrees``), positions where edges have rows, edges to be predicted
(int32 [2, L], then float32 [L]) where the task is link prediction, weights (float32 [E], then float64 [N, 2] unless
the batch is a graph of its own) where they were asked for (``--edge-weights``), of one edge type. An address table
lists, by ascending position in the section, which rows lie in the host and in the device cache, and by ascending row
which lie in the disk cache; all other rows are packed, in batch order. ``shift_bytes`` puts the first packed row at the
same place within a page as the row's final place in the batch (:func:`outcrop.rows.assemble`), so that rows are read
straight to where they expand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.errors import ChecksumError, FormatError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.store import record_contents
from outcrop.store.address_table import AddressTable
from outcrop.store.batches import BatchGraph, DistinctEdges, Edges, Nodes
from outcrop.store.record_contents import ANY, Bounds

HEADER_WORDS = 64
HEADER_BYTES = HEADER_WORDS * 8
MAX_HOPS = 15
MAX_TYPES = 1 << 16
POSITION_BYTES = 8
_MAGIC = int.from_bytes(b"OUTCROPB", "little")
_VERSIONS = (1, 2, 3)

# Header words. Those from the further types on are 0 in version 1.
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
    _W_WEIGHTS,
    _W_WEIGHT_SUMS,
) = range(15)
_W_UNTRIMMED, _W_LABEL_EDGES = 16, 17
_W_MORE_NODE_TYPES, _W_MORE_EDGE_TYPES, _W_MORE_ROW_FILES, _W_SEED_TYPE, _W_POSITIONS = range(18, 23)
_W_NODES_PER_HOP, _W_EDGES_PER_HOP = 24, 40


def align_page(count: int) -> int:
    return -(-count // PAGE_BYTES) * PAGE_BYTES


def id_bytes_for(num_nodes: int) -> int:
    return 4 if num_nodes <= 1 << 31 else 8


@dataclass(frozen=True)
class RecordSizes:
    """Counts what a record holds; or what many records do, each count being int64 [n] then.

    Attributes:
        hops: Hops of the batch.
        nodes: Nodes of each node type.
        edges: Edges of each edge type.
        rows: Rows of each edge type's CSR.
        positions: Positions of edges of each edge type that are recorded; with ``distinct`` each once.
        seeds: Seeds.
        cached: Rows that lie in caches, of each row file.
        label_edges: Edges to be predicted.
        degrees: Whether degrees of nodes are there.
        weights: Whether weights of edges are there, and
        weight_sums: what they come to for each node.
        distinct: Whether an index says which of the positions each edge has.
    """

    hops: int
    nodes: Sequence[Any]
    edges: Sequence[Any]
    rows: Sequence[Any]
    positions: Sequence[Any]
    seeds: Any
    cached: Sequence[Any]
    label_edges: Any
    degrees: bool = False
    weights: bool = False
    weight_sums: bool = False
    distinct: bool = False

    @classmethod
    def of(cls, graph: BatchGraph, tables: Sequence[AddressTable] = ()) -> RecordSizes:
        """Counts what the record of ``graph`` holds."""
        edges = graph.edges
        return cls(
            graph.hops,
            [len(nodes.ids) for nodes in graph.nodes],
            [len(one.col) for one in edges],
            [one.num_rows for one in edges],
            [0 if (there := _recorded_positions(one)) is None else len(there) for one in edges],
            graph.num_seeds,
            [table.num_cached for table in tables],
            graph.num_label_edges,
            graph.degree is not None,
            _weights_of(graph) is not None,
            graph.weight_sums is not None,
            any(one.distinct is not None for one in edges),
        )

    @property
    def indexed(self) -> list[Any]:
        """Counts the edges of each edge type that an index says the positions of."""
        return (
            [n * (there > 0) for n, there in zip(self.edges, self.positions, strict=True)]
            if self.distinct
            else []
        )

    @property
    def counts_bytes(self) -> int:
        """Counts the bytes of the counts behind the header: of further types and row files."""
        types, relations, files = (len(a) - 1 for a in (self.nodes, self.edges, self.cached))
        return 8 * (types * (self.hops + 1) + relations * (self.hops + 2) + 3 * max(files, 0))

    def ids_bytes(self, id_bytes: int) -> list[Any]:
        """Counts the bytes of the ids of each node type, then of the positions of each edge type, as they lie."""
        return [_aligned(n * id_bytes) for n in self.nodes] + [
            _aligned(n * POSITION_BYTES) for n in self.positions
        ]

    def meta_bytes(self, id_bytes: int) -> Any:
        """Counts the bytes of the meta part, not padded to a page."""
        count = HEADER_BYTES + self.counts_bytes + sum(self.ids_bytes(id_bytes))
        count = count + sum(_aligned(n * 4) for n in self.indexed)
        for rows, edges in zip(self.rows, self.edges, strict=True):
            count = count + _aligned((rows + 1) * 4) + _aligned(edges * 4)
        count = count + self.seeds * 8 + sum(self.cached) * 8
        if self.degrees:
            count = count + _aligned(sum(self.nodes) * 4)
        if self.weights:
            count = count + _aligned(sum(self.edges) * 4)
        if self.weight_sums:
            count = count + sum(self.nodes) * 16
        return count + self.label_edges * 8 + _aligned(self.label_edges * 4)


def _recorded_positions(edges: Edges) -> np.ndarray | None:
    return edges.positions if edges.distinct is None else edges.distinct.ids


def _weights_of(graph: BatchGraph) -> np.ndarray | None:
    """Returns the weights that are recorded: of batches of one edge type, where they have some."""
    return graph.edges[0].weight if len(graph.edges) == 1 else None


def _aligned(count: Any) -> Any:
    return (count + 7) // 8 * 8


def bytes_of(graph: BatchGraph) -> int:
    """Counts the bytes of the meta part of ``graph`` with ids of 4 bytes, without an address table."""
    return int(RecordSizes.of(graph).meta_bytes(4))


def shift_bytes(num_rows: int, num_packed: int, row_bytes: int) -> int:
    """Counts the bytes before the first packed row of a section within its page."""
    return (num_rows - num_packed) * row_bytes % PAGE_BYTES


def rows_span_bytes(num_rows: int, num_packed: int, row_bytes: int) -> int:
    """Counts the bytes of the packed rows of a section on disk, shift and page padding included."""
    if num_packed == 0 or row_bytes == 0:
        return 0
    return align_page(shift_bytes(num_rows, num_packed, row_bytes) + num_packed * row_bytes)


def rows_spans(num_rows: np.ndarray, num_packed: np.ndarray, row_bytes: int) -> np.ndarray:
    """Counts :func:`rows_span_bytes` of many sections, int64 [n]."""
    shifts = (num_rows - num_packed) * row_bytes % PAGE_BYTES
    spans = -(-(shifts + num_packed * row_bytes) // PAGE_BYTES) * PAGE_BYTES
    return np.where((num_packed == 0) | (row_bytes == 0), 0, spans)


def encode(
    graph: BatchGraph, tables: Sequence[AddressTable], id_bytes: int, position_bytes: int = 8
) -> np.ndarray:
    """Encodes the meta part as uint8, zero-padded to a page.

    Args:
        tables: One for each row file; none in records of the sample stage.
    """
    sizes = RecordSizes.of(graph, tables)
    size = int(sizes.meta_bytes(id_bytes))
    out = np.zeros(align_page(size), np.uint8)
    header = out[:HEADER_BYTES].view("<i8")
    counts = [
        [list(nodes.per_hop) for nodes in graph.nodes],
        [
            [*edges.per_hop, edges.num_rows, there]
            for edges, there in zip(graph.edges, sizes.positions, strict=True)
        ],
        [
            [len(table.host_positions), len(table.device_positions), len(table.disk_positions)]
            for table in tables or (AddressTable(),)
        ],
    ]
    (nodes, *_), (edges, *_), (cached, *_) = counts
    more = [len(every) - 1 for every in counts]
    typed = any(more) or any(sizes.positions) or graph.seed_type
    header[: _W_DISK + 1] = [
        _MAGIC,
        3 if sizes.distinct else 2 if typed else 1,
        graph.hops,
        id_bytes,
        sum(nodes),
        sum(edges[: graph.hops]),
        edges[graph.hops],
        *cached[:2],
        size,
        0,
        graph.degree is not None,
        cached[2],
    ]
    header[_W_WEIGHTS], header[_W_WEIGHT_SUMS] = sizes.weights, sizes.weight_sums
    header[_W_UNTRIMMED], header[_W_LABEL_EDGES] = graph.untrimmed, graph.num_label_edges
    if typed:
        header[_W_MORE_NODE_TYPES : _W_POSITIONS + 1] = [*more, graph.seed_type, edges[-1]]
    header[_W_NODES_PER_HOP : _W_NODES_PER_HOP + graph.hops + 1] = nodes
    header[_W_EDGES_PER_HOP : _W_EDGES_PER_HOP + graph.hops] = edges[: graph.hops]
    further = [count for every in counts for one in every[1:] for count in one]
    arrays: list[tuple[np.ndarray | Sequence[float] | None, str]] = [(further, "<i8")]
    arrays += [(one.ids, f"<i{id_bytes}") for one in graph.nodes]
    arrays += [(_recorded_positions(one), f"<i{POSITION_BYTES}") for one in graph.edges]
    arrays += [(one.distinct.index, "<i4") for one in graph.edges if one.distinct is not None]
    for csr in graph.edges:
        arrays += [(csr.rowptr, "<i4"), (csr.col, "<i4")]
    arrays.append((graph.labels, "<i8"))
    arrays += [(np.concatenate(table.columns()), "<i4") for table in tables]
    arrays += [(graph.degree, "<i4"), (graph.edge_label_index, "<i4"), (graph.edge_label, "<f4")]
    arrays += [(_weights_of(graph), "<f4"), (graph.weight_sums, "<f8")]
    at = HEADER_BYTES
    for values, dtype in arrays:
        data = np.ascontiguousarray(() if values is None else values, dtype).reshape(-1).view(np.uint8)
        out[at : at + len(data)] = data
        at += -(-len(data) // 8) * 8
    header[_W_CRC] = _core.crc32c(out)
    return out


def decode(meta: np.ndarray, where: str, bounds: Bounds = ANY) -> tuple[BatchGraph, tuple[AddressTable, ...]]:
    """Undoes :func:`encode`; the arrays are copies.

    Args:
        meta: uint8, the meta part; more may follow it.
        where: What errors name.
        bounds: What ids, labels and rows of caches must be below.

    Raises:
        FormatError: Foreign bytes, an impossible header, or arrays that contradict each other.
        ChecksumError: Changed bytes.
    """
    if len(meta) < HEADER_BYTES or len(meta) % 8:
        raise FormatError(f"{where}: {len(meta)} bytes are no mini-batch record")
    header = meta[:HEADER_BYTES].view("<i8").copy()
    if header[_W_MAGIC] != _MAGIC or header[_W_VERSION] not in _VERSIONS:
        raise FormatError(
            f"{where}: no mini-batch record of version 1, 2 or 3 is there; remove its folder and prepare the run again"
        )
    reader = _Reader(meta, header)
    sizes = reader.sizes()
    if sizes is None:
        raise FormatError(
            f"{where}: the header of the mini-batch record is damaged; remove its folder and prepare the run again"
        )
    _check_crc(meta, header, where)
    graph, tables = reader.arrays(sizes, where)
    record_contents.check(graph, tables, where, bounds)
    return graph, tables


class _Reader:
    """Takes the meta part of a record to pieces."""

    def __init__(self, meta: np.ndarray, header: np.ndarray):
        self._meta, self._words = meta, header.tolist()
        self._hops, self._id_bytes, self._size = (
            self._words[word] for word in (_W_HOPS, _W_ID_BYTES, _W_META_BYTES)
        )
        version = self._words[_W_VERSION]
        self._distinct = version == 3
        more = [0] * 5 if version == 1 else self._words[_W_MORE_NODE_TYPES : _W_POSITIONS + 1]
        self._more, self._seed_type, self._positions = more[:3], more[3], more[4]
        self._degrees, self._untrimmed = bool(self._words[_W_DEGREES]), bool(self._words[_W_UNTRIMMED])
        self._label_edges = self._words[_W_LABEL_EDGES]
        self._weights, self._sums = bool(self._words[_W_WEIGHTS]), bool(self._words[_W_WEIGHT_SUMS])
        self._at = HEADER_BYTES

    def sizes(self) -> RecordSizes | None:
        """Reads the counts; None where they cannot be those of a record of as many bytes."""
        hops, words, most = self._hops, self._words, len(self._meta)
        sane = (
            1 <= hops <= MAX_HOPS
            and self._id_bytes in (4, 8)
            and all(0 <= further < MAX_TYPES for further in self._more)
            and 0 <= self._seed_type <= self._more[0]
            and 0 <= self._label_edges <= most
            and not (self._more[1] and (self._weights or self._sums))
        )
        if not sane:
            return None
        widths = hops + 1, hops + 2, 3
        count = sum(further * width for further, width in zip(self._more, widths, strict=True))
        if HEADER_BYTES + 8 * count > min(most, self._size):
            return None
        first = (
            words[_W_NODES_PER_HOP : _W_NODES_PER_HOP + hops + 1],
            [*words[_W_EDGES_PER_HOP : _W_EDGES_PER_HOP + hops], words[_W_ROWS], self._positions],
            [words[_W_HOST], words[_W_DEVICE], words[_W_DISK]],
        )
        further = iter(self._take(count, "<i8").tolist())
        self._nodes, self._edges, self._cached = (
            [one, *(list(islice(further, width)) for _ in range(others))]
            for one, others, width in zip(first, self._more, widths, strict=True)
        )
        every = [number for one in (*self._nodes, *self._edges, *self._cached) for number in one]
        if min(every) < 0 or max(every) > most:
            return None
        sizes = RecordSizes(
            hops,
            [sum(per_hop) for per_hop in self._nodes],
            [sum(counts[:hops]) for counts in self._edges],
            [counts[hops] for counts in self._edges],
            [counts[hops + 1] for counts in self._edges],
            self._nodes[self._seed_type][0],
            [sum(counts) for counts in self._cached],
            self._label_edges,
            self._degrees,
            self._weights,
            self._sums,
            self._distinct,
        )
        told = words[_W_NODES], words[_W_EDGES]
        right = told == (sizes.nodes[0], sizes.edges[0]) and self._size == sizes.meta_bytes(self._id_bytes)
        return sizes if right and self._size <= most else None

    def arrays(self, sizes: RecordSizes, where: str) -> tuple[BatchGraph, tuple[AddressTable, ...]]:
        """Reads what follows the counts."""
        ids = [self._take(n, f"<i{self._id_bytes}").astype(np.int64) for n in sizes.nodes]
        positions = [self._take(n, f"<i{POSITION_BYTES}").astype(np.int64) for n in sizes.positions]
        of_edges = [self._take(n, "<i4").copy() for n in sizes.indexed]
        csr = [
            (self._take(rows + 1, "<i4").copy(), self._take(count, "<i4").copy())
            for rows, count in zip(sizes.rows, sizes.edges, strict=True)
        ]
        labels = self._take(sizes.seeds, "<i8").copy()
        tables = tuple(self._table(*counts) for counts in self._cached)
        degree = self._take(sum(map(len, ids)) if self._degrees else 0, "<i4").copy()
        index = self._take(2 * self._label_edges, "<i4").reshape(2, -1).copy()
        label = self._take(self._label_edges, "<f4").copy()
        weight = self._take(len(csr[0][1]), "<f4").copy() if self._weights else None
        sums = self._take(2 * len(ids[0]), "<f8").reshape(-1, 2).copy() if self._sums else None
        graph = BatchGraph(
            nodes=tuple(Nodes(i, tuple(h)) for i, h in zip(ids, self._nodes, strict=True)),
            edges=tuple(self._edges_of(sizes, csr, positions, of_edges, weight, where)),
            labels=labels,
            seed_type=self._seed_type,
            degree=degree if self._degrees else None,
            untrimmed=self._untrimmed,
            edge_label_index=index if self._label_edges else None,
            edge_label=label if self._label_edges else None,
            weight_sums=sums,
        )
        return graph, tables

    def _edges_of(
        self,
        sizes: RecordSizes,
        csr: Sequence[tuple[np.ndarray, np.ndarray]],
        positions: Sequence[np.ndarray],
        indexes: Sequence[np.ndarray],
        weight: np.ndarray | None,
        where: str,
    ) -> Iterator[Edges]:
        recorded = any(sizes.positions)
        for number, ((rowptr, col), ids) in enumerate(zip(csr, positions, strict=True)):
            per_hop = tuple(self._edges[number][: self._hops])
            if not len(ids) and (len(col) or not recorded):
                yield Edges(rowptr, col, per_hop, None, weight)
            elif not indexes:
                yield Edges(rowptr, col, per_hop, ids, weight)
            else:
                distinct = DistinctEdges.recorded(ids, indexes[number], per_hop)
                if distinct is None:
                    record_contents.refuse(where, "its edges are not those of its positions")
                yield Edges(rowptr, col, per_hop, ids[distinct.index], weight, distinct)

    def _table(self, host: int, device: int, disk: int) -> AddressTable:
        cached, at, parts = self._take(2 * (host + device + disk), "<i4"), 0, []
        for count in (host, host, device, device, disk, disk):
            parts.append(cached[at : at + count].copy())
            at += count
        return AddressTable(*parts)

    def _take(self, count: int, dtype: str) -> np.ndarray:
        width = np.dtype(dtype).itemsize
        found = self._meta[self._at : self._at + count * width].view(dtype)
        self._at += -(-count * width // 8) * 8
        return found


def _check_crc(meta: np.ndarray, header: np.ndarray, where: str) -> None:
    stored = int(header[_W_CRC])
    header[_W_CRC] = 0
    crc = _core.crc32c(meta[HEADER_BYTES:], _core.crc32c(header.view(np.uint8)))
    if crc != stored:
        raise ChecksumError(
            f"{where}: the mini-batch record was damaged after it was written (checksum {crc:08x}, "
            f"expected {stored:08x}); remove its folder and prepare the run again"
        )
