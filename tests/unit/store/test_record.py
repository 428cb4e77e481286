"""Mini-batch records: what goes in comes out, every damaged byte is noticed, sizes are what the layout says."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_reference import made_of, parts_of
from outcrop import _core
from outcrop.errors import ChecksumError, FormatError
from outcrop.store import record
from outcrop.store.address_table import AddressTable
from outcrop.store.batches import BatchGraph
from outcrop.store.record import RecordSizes
from outcrop.store.record_contents import Bounds
from run_support import PAGE, meta_size, round_up


def int32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


@st.composite
def records(make) -> tuple[BatchGraph, AddressTable, int]:
    hops = make(st.integers(1, 15))
    nodes_per_hop = tuple(make(st.lists(st.integers(0, 5), min_size=hops + 1, max_size=hops + 1)))
    nodes, rows, id_bytes = sum(nodes_per_hop), sum(nodes_per_hop[:-1]), make(st.sampled_from([4, 8]))
    limit = 2**31 - 1 if id_bytes == 4 else 2**63 - 1
    degrees = make(st.lists(st.integers(0, 4), min_size=rows, max_size=rows)) if nodes else [0] * rows
    ends = np.cumsum(nodes_per_hop)
    edges_per_hop = tuple(int(sum(degrees[(ends[h - 1] if h else 0) : ends[h]])) for h in range(hops))
    graph = BatchGraph.of_one_type(
        np.array(make(st.lists(st.integers(0, limit), min_size=nodes, max_size=nodes)), np.int64),
        np.cumsum([0, *degrees]).astype(np.int32),
        int32(
            [
                make(st.integers(0, int(ends[hop + 1]) - 1))  # a node that is met by then
                for hop in range(hops)
                for _ in range(edges_per_hop[hop])
            ]
        ),
        nodes_per_hop,
        edges_per_hop,
        np.array(
            make(st.lists(st.integers(-1, 2**63 - 1), min_size=nodes_per_hop[0], max_size=nodes_per_hop[0])),
            np.int64,
        ),
    )
    level = make(st.lists(st.integers(0, 2), min_size=nodes, max_size=nodes))
    host, device = (int32([i for i, where in enumerate(level) if where == k]) for k in (1, 2))
    slot = st.integers(0, 2**31 - 1)
    table = AddressTable(
        host,
        int32(make(st.lists(slot, min_size=len(host), max_size=len(host)))),
        device,
        int32(make(st.lists(slot, min_size=len(device), max_size=len(device)))),
    )
    return graph, table, id_bytes


def equal(a: object, b: object, names: tuple[str, ...]) -> bool:
    return all(
        np.array_equal(getattr(a, n), getattr(b, n)) and getattr(a, n).dtype == getattr(b, n).dtype
        for n in names
    )


def encode(graph: BatchGraph, table: AddressTable, id_bytes: int) -> np.ndarray:
    """The record of a graph with one row file."""
    return record.encode(graph, (table,), id_bytes)


def decode(meta: np.ndarray, where: str, **bounds: Any) -> tuple[BatchGraph, AddressTable]:
    """The batch and the address table of the only row file."""
    graph, (table,) = record.decode(meta, where, Bounds(**bounds))
    return graph, table


def meta_bytes(graph: BatchGraph, cached: int, id_bytes: int = 4, **changes: Any) -> int:
    """What the counts of a batch of one type say of its record, as the sample set keeps them."""
    sizes = dataclasses.replace(RecordSizes.of(graph), cached=[cached])
    return int(dataclasses.replace(sizes, **changes).meta_bytes(id_bytes))


def with_parts(graph: BatchGraph, **changes: Any) -> BatchGraph:
    return made_of(parts_of(graph) | changes)


@given(records())
@settings(max_examples=150)
def test_round_trip(made):
    graph, table, id_bytes = made
    blob = encode(graph, table, id_bytes)
    size = meta_size(graph, table.num_cached, id_bytes)
    assert blob.dtype == np.uint8
    assert len(blob) == round_up(size)
    assert size == meta_bytes(graph, table.num_cached, id_bytes)
    assert not blob[size:].any()
    back, addresses = decode(blob, "here")
    assert equal(back, graph, ("n_id", "rowptr", "col", "labels"))
    assert (back.nodes_per_hop, back.edges_per_hop) == (graph.nodes_per_hop, graph.edges_per_hop)
    assert equal(addresses, table, ("host_positions", "host_rows", "device_positions", "device_rows"))
    assert addresses.cached_positions().tolist() == sorted([*table.host_positions, *table.device_positions])
    count = graph.num_nodes * id_bytes
    assert blob[512 : 512 + count].view(f"<i{id_bytes}").tolist() == graph.n_id.tolist()
    blob[:] = 255  # what came out are copies
    assert equal(back, graph, ("n_id", "rowptr", "col", "labels"))


def sample_record(id_bytes: int = 4) -> tuple[BatchGraph, AddressTable, np.ndarray]:
    graph = BatchGraph.of_one_type(
        np.array([9, 3, 4, 7, 12], np.int64),
        int32([0, 2, 3, 5]),
        int32([2, 1, 2, 4, 0]),
        (2, 1, 2),
        (3, 2),
        np.array([1, -1], np.int64),
    )
    table = AddressTable(int32([1, 4]), int32([0, 9]), int32([2]), int32([5]))
    return graph, table, encode(graph, table, id_bytes)


def test_every_changed_byte_is_noticed():
    _, _, blob = sample_record()
    assert len(blob) == PAGE
    for at in range(len(blob)):  # padding included
        for change in (1, 128, 255):
            blob[at] ^= change
            with pytest.raises(FormatError, match="here"):
                decode(blob, "here")
            blob[at] ^= change
    decode(blob, "here")


@pytest.mark.parametrize("id_bytes", [4, 8])
def test_payload_and_unused_header_words_are_covered_by_the_checksum(id_bytes):
    _, _, blob = sample_record(id_bytes)
    for at in [*range(15 * 8, 16 * 8), *range(18 * 8, 24 * 8), *range(56 * 8, len(blob))]:
        blob[at] ^= 64
        with pytest.raises(ChecksumError, match="damaged after it was written"):
            decode(blob, "here")
        blob[at] ^= 64


def test_truncated_and_lengthened_records_are_noticed():
    graph, table, blob = sample_record()
    size = meta_size(graph, table.num_cached)
    for length in [*range(0, 700), *range(700, PAGE, 97)]:
        with pytest.raises(ChecksumError if length % 8 == 0 and length >= size else FormatError):
            decode(blob[:length], "here")
    with pytest.raises(ChecksumError):
        decode(np.concatenate([blob, np.zeros(PAGE, np.uint8)]), "here")


def with_header(blob: np.ndarray, word: int, value: int) -> np.ndarray:
    """The record with one header word replaced and a checksum that fits again."""
    out = blob.copy()
    header = out[:512].view("<i8")
    header[word], header[10] = value, 0
    header[10] = _core.crc32c(out)
    return out


def test_foreign_and_impossible_records_are_refused():
    _, _, blob = sample_record()
    for foreign in (
        np.zeros(PAGE, np.uint8),
        np.full(PAGE, 255, np.uint8),
        np.random.default_rng(0).integers(0, 256, PAGE, np.uint8),
    ):
        with pytest.raises(FormatError, match="no mini-batch record of version 1, 2 or 3 is there"):
            decode(foreign, "here")
    with pytest.raises(FormatError, match="version"):
        decode(with_header(blob, 1, 4), "here")
    for word, values in {
        2: (0, 16, -1),
        3: (0, 5, 16),
        4: (-1, 4, 1000, 2**62),
        5: (-1, 9, 2**62),
        6: (-5, 9, 900),
        7: (-1, 400),
        8: (-1, 400),
        9: (0, 512, PAGE + 8),
        17: (-1, 400, 2**62),
        24: (-2, 5),
    }.items():
        for value in values:
            with pytest.raises(FormatError, match="header of the mini-batch record is damaged"):
                decode(with_header(blob, word, value), "here")


@given(st.integers(1, 3000), st.data(), st.integers(1, 6000))
def test_packed_rows_are_read_to_where_they_expand(nodes, data, row_bytes):
    """The first packed row keeps its place within a page; the span is whole pages and no more than needed."""
    packed = data.draw(st.integers(0, nodes))
    shift, span = (
        record.shift_bytes(nodes, packed, row_bytes),
        record.rows_span_bytes(nodes, packed, row_bytes),
    )
    first = (nodes - packed) * row_bytes  # where the first packed row begins in the batch, before expanding
    assert 0 <= shift < PAGE
    assert (first - shift) % PAGE == 0
    if packed == 0:
        assert span == 0
    else:
        assert span % PAGE == 0
        assert 0 <= span - (shift + packed * row_bytes) < PAGE
        assert first - shift + span == round_up(nodes * row_bytes)  # ends where the batch's rows end


def test_small_arithmetic():
    assert record.rows_span_bytes(5, 3, 0) == 0
    assert [record.align_page(n) for n in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
    assert [record.id_bytes_for(n) for n in (0, 2**31, 2**31 + 1)] == [4, 4, 8]
    assert AddressTable().num_cached == 0
    assert AddressTable().cached_positions().dtype == np.int64


def test_degrees_round_trip():
    graph, table, plain = sample_record()
    degree = np.arange(graph.num_nodes, dtype=np.int32)[::-1].copy()
    blob = encode(dataclasses.replace(graph, degree=degree), table, 4)
    assert np.array_equal(decode(blob, "here")[0].degree, degree)
    assert decode(plain, "here")[0].degree is None
    size = meta_bytes(graph, table.num_cached, degrees=True)
    assert blob[:512].view("<i8")[9] == size
    assert size - meta_bytes(graph, table.num_cached) == -(-4 * graph.num_nodes // 8) * 8


def test_untrimmed_batches_and_edges_to_predict_round_trip():
    graph, table, plain = sample_record()
    assert not decode(plain, "here")[0].untrimmed
    for count in (1, 4):
        index = np.arange(2 * count, dtype=np.int32).reshape(2, count) % 2
        label = np.linspace(0, 1, count).astype(np.float32)
        changed = with_parts(
            graph, rowptr=int32([0, 2, 3, 5, 5, 5]), untrimmed=True, edge_label_index=index, edge_label=label
        )
        blob = encode(changed, table, 4)
        back, addresses = decode(blob, "here")
        assert back.untrimmed
        assert equal(back, changed, ("n_id", "rowptr", "col", "labels", "edge_label_index", "edge_label"))
        assert equal(addresses, table, ("host_positions", "host_rows", "device_positions", "device_rows"))
        extra = round_up(8 * count, 8) + round_up(4 * count, 8)
        size = meta_bytes(changed, table.num_cached)
        assert size == meta_bytes(changed, table.num_cached, label_edges=0) + extra
        assert blob[:512].view("<i8")[9] == size


def is_sound(graph: BatchGraph, table: AddressTable, num_nodes: int, classes: int) -> bool:
    """What store/batches.py says of a batch, edge by edge."""
    ends = np.cumsum(graph.nodes_per_hop).tolist()
    rows = graph.num_nodes if graph.untrimmed else ends[-2]
    if min(graph.nodes_per_hop) < 0 or ends[-1] != graph.num_nodes or len(graph.rowptr) - 1 != rows:
        return False
    at = 0
    if graph.rowptr[0] != 0:
        return False
    per_hop = [0] * graph.hops
    for row in range(rows):
        begin, end = int(graph.rowptr[row]), int(graph.rowptr[row + 1])
        if not at == begin <= end <= graph.num_edges:
            return False
        hop = next(h for h in range(graph.hops + 1) if row < ends[h])
        limit = graph.num_nodes if graph.untrimmed else ends[hop + 1]
        if any(not 0 <= source < limit for source in graph.col[begin:end]):
            return False
        per_hop[0 if graph.untrimmed else hop] += end - begin
        at = end
    labels_fit = all(-1 <= label < classes for label in graph.labels)
    ids_fit = all(0 <= node < num_nodes for node in graph.n_id)
    slots = [*table.host_rows, *table.device_rows, *table.disk_rows]
    places = [*table.host_positions, *table.device_positions, *table.disk_positions]
    fits = all(slot >= 0 for slot in slots) and all(0 <= place < graph.num_nodes for place in places)
    return at == graph.num_edges and tuple(per_hop) == graph.edges_per_hop and labels_fit and ids_fit and fits


NUMBERS = st.one_of(st.integers(-3, 14), st.sampled_from([-(2**31), 2**31 - 1]))


@given(
    st.sampled_from(["n_id", "rowptr", "col", "labels", "host_positions", "host_rows", "disk_positions"]),
    st.integers(0, 7),
    NUMBERS,
    st.booleans(),
)
@settings(max_examples=300)
def test_a_record_whose_checksum_is_right_is_taken_only_where_all_of_it_holds(column, at, value, untrimmed):
    """One number is changed and the checksum made to fit again, as anyone who writes a run could."""
    graph, table, _ = sample_record()
    table = dataclasses.replace(table, disk_positions=int32([3]), disk_rows=int32([0]))
    if untrimmed:
        graph = with_parts(graph, rowptr=int32([0, 2, 3, 5, 5, 5]), edges_per_hop=(5, 0), untrimmed=True)
    part = graph if hasattr(graph, column) else table
    changed = getattr(part, column).copy()
    changed[at % len(changed)] = value
    if part is graph:
        graph = with_parts(graph, **{column: changed})
    else:
        table = dataclasses.replace(table, **{column: changed})
    blob = encode(graph, table, 4)
    if is_sound(graph, table, 13, 2):
        back, addresses = decode(blob, "here", num_nodes=(13,), num_classes=2)
        assert equal(back, graph, ("n_id", "rowptr", "col", "labels"))
        assert equal(addresses, table, ("host_positions", "host_rows", "disk_positions", "disk_rows"))
    else:
        with pytest.raises(FormatError, match=r"here: .* checksum is right"):
            decode(blob, "here", num_nodes=(13,), num_classes=2)


@given(
    st.lists(st.integers(-1, 4), min_size=3, max_size=3), st.lists(st.integers(-1, 6), min_size=2, max_size=2)
)
def test_hops_that_do_not_add_up_are_refused(nodes, edges):
    graph, _, blob = sample_record()
    out = blob.copy()
    header = out[:512].view("<i8")
    header[24:27], header[40:42], header[10] = nodes, edges, 0
    header[10] = _core.crc32c(out)
    if (tuple(nodes), tuple(edges)) == (graph.nodes_per_hop, graph.edges_per_hop):
        decode(out, "here")
    else:
        with pytest.raises(FormatError, match="here"):
            decode(out, "here")
