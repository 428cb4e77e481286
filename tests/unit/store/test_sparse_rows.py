"""Sparse rows: what is stored and what comes back is NumPy's, bit for bit; rows and manifests that lie are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import outcrop as oc
from artifact_support import manifest_at
from outcrop import _core
from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import decode as decoding
from outcrop.store.graph import open_graph
from outcrop.store.sparse_rows import SparseDecoder, SparseLayout
from outcrop.store.verify import describe, verify_artifact
from sparse_reference import (
    bag_of_words,
    bits_of,
    change_head,
    layout_of,
    mostly_zeros,
    same_bits,
    sparse_rows,
)

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64")


def counted(x: np.ndarray, block: int = 1000) -> tuple[int, int, int]:
    found = [
        _core.count_stored(x[at : at + block].view(np.uint8), x.itemsize) for at in range(0, len(x), block)
    ]
    most, least, largest = zip(*found, strict=True) if found else ((0,), (1,), (0,))
    return max(most), min(least), max(largest)


def packed(x: np.ndarray, layout: SparseLayout) -> np.ndarray:
    rows = np.full((len(x), layout.row_bytes), 0xEE, np.uint8)
    wrong = _core.pack_sparse_rows(x.view(np.uint8), x.itemsize, layout.stored, layout.common, rows)
    assert wrong == len(x)
    return rows


def decoder_for(layout: SparseLayout, folder: Path = Path("nowhere")) -> SparseDecoder:
    return SparseDecoder(layout, folder, "features.bin")


def check(x: np.ndarray, threads: int = 1) -> None:
    """Counts, rows and values of the core and of torch against NumPy."""
    said = layout_of(x)
    layout, stored = SparseLayout(**said), bits_of(x)[bits_of(x) != 0]
    most, least, largest = counted(x, block=3)
    assert most == (bits_of(x) != 0).sum(1).max(initial=0)
    assert (least, largest) == (stored.min(), stored.max()) if len(stored) else least > largest
    rows = packed(x, layout)
    assert np.array_equal(rows, sparse_rows(x, said))
    decoder = decoder_for(layout)
    assert rows.shape[1] == decoder.row_bytes
    assert same_bits(decoder.values(rows, _core.WorkerPool(threads)), x)
    assert decoder.first_wrong(rows) == len(rows)
    for decode in (decoding.decode, decoding._on_device):
        assert same_bits(decode(decoder, torch.from_numpy(rows)), x)


def arrays_of_zeros(dtype: str) -> st.SearchStrategy[np.ndarray]:
    """Any bits, most of them none."""
    bits = st.one_of(
        st.just(0), st.just(0), st.just(0), st.integers(0, 2 ** (8 * np.dtype(dtype).itemsize) - 1)
    )
    shapes = st.tuples(st.integers(0, 7), st.integers(1, 9))
    unsigned = f"u{np.dtype(dtype).itemsize}"
    return shapes.flatmap(lambda shape: arrays(unsigned, shape, elements=bits)).map(lambda x: x.view(dtype))


@settings(max_examples=150, deadline=None)
@example(x=np.zeros((3, 4), np.float32))
@example(x=np.zeros((0, 1), np.float16))
@example(x=np.array([[-0.0, 0.0], [0.0, 0.0]], np.float32))
@example(x=np.array([[np.nan, 0.0], [0.0, -np.nan]], np.float64))
@example(x=np.array([[255]], np.uint8))
@example(x=np.full((2, 3), np.iinfo(np.uint64).max))
@given(x=st.sampled_from(DTYPES).flatmap(arrays_of_zeros))
def test_rows_and_values_are_those_of_numpy(x: np.ndarray) -> None:
    check(x)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8"])
@pytest.mark.parametrize("columns", [1, 3, 255, 256, 257, 1433, 65535, 65536])
def test_every_width_of_column_numbers(dtype: str, columns: int) -> None:
    """Where 255 and 65535 are counts, and where they are columns; with several threads; also full rows."""
    rng = np.random.default_rng(columns)
    x = mostly_zeros(rng, 40, columns, min(columns, 20), dtype)
    x[7], x[8, -1] = 0, 5
    check(x, threads=3)
    if columns <= 257:
        check(rng.integers(1, 100, (5, columns)).astype(dtype))


def test_a_row_of_equal_values_has_columns_alone() -> None:
    x = bag_of_words(np.random.default_rng(0), 50, 300, 9)
    layout = SparseLayout(**layout_of(x))
    assert layout.row_bytes == 2 * (1 + layout.stored)
    assert layout.common == np.float32(1).view(np.uint32)
    check(x)
    x[3, 4] = 2
    layout = SparseLayout(**layout_of(x))
    assert layout.row_bytes == 2 * (1 + layout.stored) + 4 * layout.stored


def test_bfloat16_comes_back_as_such() -> None:
    x = mostly_zeros(np.random.default_rng(3), 30, 40, 5)
    bits = torch.from_numpy(x).bfloat16().view(torch.uint16).numpy()
    layout = SparseLayout(**layout_of(bits, "bfloat16"))
    decoder = decoder_for(layout)
    for decode in (decoding.decode, decoding._on_device):
        found = decode(decoder, torch.from_numpy(packed(bits, layout)))
        assert found.dtype == torch.bfloat16
        assert same_bits(found.view(torch.uint16), bits)


def test_torch_decodes_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x = mostly_zeros(np.random.default_rng(5), 50, 13, 4)
    layout = SparseLayout(**layout_of(x))
    monkeypatch.setattr(decoding, "_CHUNK_VALUES", 3 * layout.stored)
    rows = torch.from_numpy(packed(x, layout))
    assert same_bits(decoding._on_device(decoder_for(layout), rows), x)
    assert decoding.decode(decoder_for(layout), rows).data_ptr() % 64 == 0


def test_rows_without_room_are_told() -> None:
    x = np.array([[1, 0, 0], [1, 2, 0]], np.float32)
    out = np.zeros((2, 1 + 1 + 4), np.uint8)
    assert _core.pack_sparse_rows(x.view(np.uint8), 4, 1, None, out) == 1
    one = int(np.float32(1).view(np.uint32))
    assert _core.pack_sparse_rows(x.view(np.uint8), 4, 2, one, np.zeros((2, 3), np.uint8)) == 1
    assert _core.pack_sparse_rows(x[:1].view(np.uint8), 4, 2, one, np.zeros((1, 3), np.uint8)) == 1


def test_impossible_calls_are_refused() -> None:
    rows, out, pool = np.zeros((2, 6), np.uint8), np.zeros((2, 12), np.uint8), _core.WorkerPool(1)
    with pytest.raises(ArgumentError, match="a row has 6 elements, 11"):
        _core.unpack_sparse_rows(pool, rows, 4, 2, None, out)
    with pytest.raises(ArgumentError, match="out has 1 elements, 2"):
        _core.unpack_sparse_rows(pool, rows, 4, 1, None, out[:1])
    with pytest.raises(ArgumentError, match="rows of 3 columns cannot store 4 values"):
        _core.unpack_sparse_rows(pool, np.zeros((2, 21), np.uint8), 4, 4, None, out)
    with pytest.raises(ArgumentError, match="cannot store 0 values"):
        _core.unpack_sparse_rows(pool, np.zeros((2, 1), np.uint8), 4, 0, None, out)
    with pytest.raises(ArgumentError, match="values of 3 bytes are none of 1, 2, 4, 8"):
        _core.count_stored(out, 3)
    with pytest.raises(ArgumentError, match="rows of 12 bytes are none of values of 8"):
        _core.count_stored(out, 8)


# How a row of 4 stored values in 300 columns is spoiled, and what is said of it.
WRONG_ROWS: list[Any] = [
    ([5, 0, 1, 2, 3], "has 5 stored values, and at most 4 have room"),
    ([65535, 0, 1, 2, 3], "has 65535 stored values"),
    ([4, 0, 1, 2, 300], "has a value in column 300, and there are 300 columns"),
    ([1, 65535, 0, 0, 0], "has a value in column 65535"),
    ([3, 7, 9, 9, 0], "has column 9 behind column 9, and columns rise"),
    ([2, 7, 6, 0, 0], "has column 6 behind column 7, and columns rise"),
]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    x = mostly_zeros(np.random.default_rng(0), 40, 300, 4)
    x[5] = 0
    x[5, [0, 3, 9, 299]] = 1, 2, 3, 4
    x[~np.isfinite(x)] = 1
    edges = np.stack([np.arange(40), np.roll(np.arange(40), 1)])
    return oc.import_graph(edges, tmp_path / "g.oc", features=x, progress=False).path


@pytest.mark.parametrize(("head", "said"), WRONG_ROWS)
def test_a_row_that_no_import_writes_is_refused(graph: Path, head: list[int], said: str) -> None:
    change_head(graph, 7, head)
    decoder = open_graph(graph).row_file.decoder
    assert isinstance(decoder, SparseDecoder)
    with Runtime() as runtime:
        rows = np.array(open_graph(graph).array(runtime, "features").memmap())
        message = rf"g\.oc/features\.bin: row 7 {said}.*import the graph again"
        with pytest.raises(FormatError, match=message):
            verify_artifact(graph, runtime)
    assert decoder.first_wrong(rows) == 7
    assert decoder.first_wrong(rows[:7]) == 7
    with pytest.raises(FormatError, match=message):
        decoder.values(rows, _core.WorkerPool(1))
    # On a GPU nobody waits to look: it becomes NaN, and its neighbours stay what they are.
    found = decoding._on_device(decoder, torch.from_numpy(rows))
    assert found[7].isnan().all()
    good = [row for row in range(40) if row != 7]
    assert same_bits(found[good], decoder.values(rows[good], _core.WorkerPool(1)))


def test_a_device_refuses_a_wrong_row_of_a_type_without_nan() -> None:
    layout = SparseLayout("int32", 300, 1, None)
    rows = np.zeros((3, layout.row_bytes), np.uint8)
    rows[1, :4] = np.array([1, 300], "<u2").view(np.uint8)
    with pytest.raises(FormatError, match="has a value in column 300, and there are 300 columns"):
        decoding._on_device(decoder_for(layout), torch.from_numpy(rows))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "complex64"}, "dtype 'complex64', which is unknown"),
        ({"dtype": ["float32"]}, "which is unknown"),
        ({"dtype": "float16"}, "uint8 with rows of 18 bytes was expected for 4 of 300 values of float16"),
        ({"columns": 0}, "has 0 columns"),
        ({"columns": True}, "has True columns"),
        ({"columns": 1 << 32}, "a whole number from 1 to 4294967295"),
        ({"columns": 301}, "feature_dim is 300, and its features in few bits or sparse have 301 columns"),
        ({"stored": 0}, "stores 0 values of a row, a whole number from 1 to 300"),
        ({"stored": 301}, "stores 301 values"),
        ({"stored": 5}, "rows of 32 bytes was expected"),
        ({"common": 1}, "rows of 10 bytes was expected"),
        ({"common": 1 << 32}, "4294967296 as the bits of all values, which are 4 bytes"),
        ({"common": -1}, "as the bits of all values"),
        ({"more": 1}, "dtype, columns, stored and common were expected"),
    ],
)
def test_manifests_that_lie_are_refused(graph: Path, change: dict[str, Any], said: str) -> None:
    path = graph / "manifest.json"
    raw = manifest_at(path)
    raw["attributes"]["sparse"] |= change
    path.write_text(json.dumps(raw))
    with pytest.raises(FormatError, match=said):
        open_graph(graph)


def test_a_graph_is_not_both_sparse_and_in_few_bits(graph: Path) -> None:
    path = graph / "manifest.json"
    raw = manifest_at(path)
    raw["attributes"]["quantised"] = {"dtype": "int8", "scale": "row", "columns": 300}
    path.write_text(json.dumps(raw))
    with pytest.raises(FormatError, match="is said to be in few bits and to be sparse"):
        open_graph(graph)


def test_what_the_graph_says_of_itself(graph: Path) -> None:
    opened, about = open_graph(graph), describe(graph)
    assert opened.manifest.version == 3
    assert (opened.feature_dim, opened.row_file.dtype) == (300, "float32")
    assert opened.feature_bytes == 40 * 26
    of = about["graph"]
    assert (of["feature_dim"], of["feature_dtype"], of["stored_values"]) == (300, "float32", 4)
    assert of["feature_bytes"] == 40 * 26
    assert "features=40x300 float32, sparse: up to 4 values in a row" in repr(opened)
