"""Rows in few bits: codes and values are those of NumPy, for any width and values; manifests that lie are refused."""

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
from outcrop.errors import ArgumentError, ChecksumError, FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import decode as decoding
from outcrop.store.graph import open_graph
from outcrop.store.manifest import ArraySpec, Manifest
from outcrop.store.quantised import Quantisation, QuantisedDecoder
from outcrop.store.verify import describe, verify_artifact
from quantised_reference import FEW_BITS, any_features, dequantised, quantised, stored_rows

TINY, LARGEST = np.float32(1e-45), np.finfo(np.float32).max
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def by_core(x: np.ndarray, dtype: Any, by: Any, block: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Rows as the core writes them, ``block`` at a time, and the scales of the columns."""
    how = Quantisation(dtype, by, x.shape[1])
    scales = np.zeros((0, x.shape[1]), np.float32)
    if by == "column":
        scales = np.full((2, x.shape[1]), np.inf, np.float32)
        scales[1] *= -1
        for first in range(0, len(x), block):
            _core.widen_ranges(x[first : first + block], scales)
        _core.scales_of_ranges(scales, how.bits)
    rows = np.full((len(x), how.row_bytes), 0xEE, np.uint8)
    _core.quantise_rows(x, how.bits, scales, rows)
    return rows, scales


def values_by_core(rows: np.ndarray, bits: int, scales: np.ndarray, threads: int = 1) -> np.ndarray:
    out = np.full((len(rows), scales.shape[1]), np.nan, np.float32)
    _core.dequantise_rows(_core.WorkerPool(threads), rows, bits, scales, out)
    return out


def check(x: np.ndarray, dtype: str, by: str) -> None:
    rows, scales = by_core(x, dtype, by)
    _, scale, offset = quantised(x, dtype, by)
    if by == "column":
        assert np.array_equal(scales, np.concatenate([scale, offset]))
    assert np.array_equal(rows, stored_rows(x, dtype, by))
    values, wanted = values_by_core(rows, 8 if dtype == "int8" else 4, scales), dequantised(x, dtype, by)
    assert np.isfinite(wanted).all()
    assert np.array_equal(values.view(np.uint32), wanted.view(np.uint32))
    # As near as codes allow: half a step, and the rounding of a scale to float.
    steps, exact = np.broadcast_to(scale.astype(np.float64), x.shape), x.astype(np.float64)
    error = np.abs(wanted - exact)
    assert (error <= 0.5 * steps * (1 + 1e-4) + np.abs(exact).max() * 2.0**-23 + 2 * TINY).all()
    constant = x.min(0 if by == "column" else 1, keepdims=True) == x.max(
        0 if by == "column" else 1, keepdims=True
    )
    assert np.array_equal(wanted[np.broadcast_to(constant, x.shape)], x[np.broadcast_to(constant, x.shape)])


@pytest.mark.parametrize(("dtype", "by"), FEW_BITS)
@settings(max_examples=60, deadline=None)
@example(x=np.array([[LARGEST], [-LARGEST]], np.float32))
@example(x=np.array([[LARGEST, 0.0, TINY], [0.0, -0.0, 0.0]], np.float32))
@example(x=np.array([[200 * TINY, -TINY], [0.0, TINY], [99 * TINY, 0.0]], np.float32))
@example(x=np.array([[0.5, 1.5, 2.5, 15.0, 0.0]], np.float32))  # ties
@given(
    x=st.tuples(st.integers(1, 6), st.integers(1, 9)).flatmap(
        lambda shape: arrays(np.float32, shape, elements=FINITE)
    )
)
def test_codes_and_values_are_those_of_numpy(x: np.ndarray, dtype: str, by: str) -> None:
    check(x, dtype, by)


@pytest.mark.parametrize(("dtype", "by"), FEW_BITS)
@pytest.mark.parametrize("columns", [1, 2, 7, 31, 128, 511, 512, 513, 1433])
def test_every_width(dtype: str, by: str, columns: int) -> None:
    """Beyond a tile of codes, and beyond what one thread takes."""
    x = any_features(np.random.default_rng(columns), 300, columns)
    check(x, dtype, by)
    rows, scales = by_core(x, dtype, by, block=7)
    bits = 8 if dtype == "int8" else 4
    assert np.array_equal(rows, by_core(x, dtype, by)[0])
    assert np.array_equal(values_by_core(rows, bits, scales, 3), values_by_core(rows, bits, scales))


@pytest.mark.parametrize(("dtype", "by"), FEW_BITS)
def test_torch_decodes_the_same_bits(dtype: Any, by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU runs, on the CPU: a part at a time."""
    x = any_features(np.random.default_rng(5), 50, 13)
    rows, scales = by_core(x, dtype, by)
    decoder = QuantisedDecoder(Quantisation(dtype, by, 13), Path("nowhere"), None, "features.bin")
    vars(decoder)["scales"] = scales
    monkeypatch.setattr(decoding, "_CHUNK_VALUES", 3 * 13)
    wanted = dequantised(x, dtype, by)
    for found in (decoding._on_device, decoding.decode):
        values = found(decoder, torch.from_numpy(rows)).numpy()
        assert np.array_equal(values.view(np.uint32), wanted.view(np.uint32))
    assert decoding.decode(decoder, torch.from_numpy(rows)).data_ptr() % 64 == 0
    assert decoding.decode(decoder, torch.from_numpy(rows[:0])).shape == (0, 13)


def test_impossible_calls_are_refused() -> None:
    x, none = np.zeros((2, 3), np.float32), np.zeros((0, 3), np.float32)
    with pytest.raises(ArgumentError, match="a row of out has 2 elements, 11"):
        _core.quantise_rows(x, 8, none, np.zeros((2, 2), np.uint8))
    with pytest.raises(ArgumentError, match="5 bits"):
        _core.dequantise_rows(_core.WorkerPool(1), np.zeros((2, 10), np.uint8), 5, none, x)
    with pytest.raises(ArgumentError, match="scales has 1 elements, 2"):
        _core.quantise_rows(x, 8, np.zeros((1, 3), np.float32), np.zeros((2, 3), np.uint8))


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    x = any_features(np.random.default_rng(0), 40, 5)
    edges = np.stack([np.arange(40), np.roll(np.arange(40), 1)])
    config = oc.ImportConfig(feature_dtype="uint4", scale="column")
    return oc.import_graph(edges, tmp_path / "g.oc", features=x, config=config, progress=False).path


def changed(graph: Path, change: dict[str, Any], name: str = "quantised") -> None:
    path = graph / "manifest.json"
    content = manifest_at(path)
    content["attributes"][name] = change
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"dtype": "int8", "scale": "column", "columns": 5},
            "rows of 5 bytes was expected for 5 columns of int8",
        ),
        ({"dtype": "uint4", "scale": "row", "columns": 5}, "rows of 11 bytes"),
        ({"dtype": "uint4", "scale": "column", "columns": 6}, "float32 \\[2, 6\\] was expected"),
        ({"dtype": "uint2", "scale": "column", "columns": 5}, "unknown: it was made by a newer Outcrop"),
        ({"dtype": "uint4", "scale": "tile", "columns": 5}, "unknown: it was made by a newer Outcrop"),
        ({"dtype": "uint4", "scale": "column", "columns": 0}, "a whole number of 1 or more"),
        ({"dtype": "uint4", "scale": "column", "columns": True}, "a whole number of 1 or more"),
        ({"dtype": "uint4"}, "dtype, scale and columns were expected"),
        (7, "dtype, scale and columns were expected"),
        (None, "'features_scale' is there"),
    ],
)
def test_a_manifest_that_lies_is_refused(graph: Path, change: Any, message: str) -> None:
    changed(graph, change)
    with pytest.raises(FormatError, match=message):
        open_graph(graph)
    describe(graph)  # says what there is, all the same


def test_the_width_is_one(graph: Path) -> None:
    changed(graph, 6, "feature_dim")  # type: ignore[arg-type]
    with pytest.raises(
        FormatError, match="feature_dim is 6, and its features in few bits or sparse have 5 columns"
    ):
        open_graph(graph)


def test_damaged_scales_are_found(graph: Path) -> None:
    with (graph / "features_scale.bin").open("r+b") as file:
        file.seek(3)
        file.write(b"\x7f")
    decoder = open_graph(graph).row_file.decoder
    assert decoder is not None
    with pytest.raises(ChecksumError, match=r"features_scale\.bin: checksum"):
        _ = decoder.scales
    with Runtime() as runtime, pytest.raises(ChecksumError):
        verify_artifact(graph, runtime)


@pytest.mark.parametrize(("scale", "message"), [(np.inf, "not finite"), (3e38, "gives values that are not")])
def test_scales_without_finite_values_are_refused(graph: Path, scale: float, message: str) -> None:
    scales = np.full(10, scale, np.float32)
    path = graph / "manifest.json"
    content = manifest_at(path)
    content["arrays"]["features_scale"]["crc32c"] = _core.crc32c(scales.view(np.uint8))
    path.write_text(json.dumps(content))
    with (graph / "features_scale.bin").open("r+b") as file:
        file.write(scales.tobytes())
    with Runtime() as runtime, pytest.raises(FormatError, match=message):
        verify_artifact(graph, runtime)


@pytest.mark.parametrize("version", [1, 3])
def test_the_version_says_whether_there_are_few_bits(tmp_path: Path, graph: Path, version: int) -> None:
    if version == 3:  # of a graph without any
        edges = np.stack([np.arange(9), np.roll(np.arange(9), 1)])
        x = np.ones((9, 2), np.float32)
        graph = oc.import_graph(edges, tmp_path / "plain.oc", features=x, progress=False).path
    path = graph / "manifest.json"
    path.write_text(json.dumps(manifest_at(path) | {"version": version}))
    with pytest.raises(
        FormatError, match=rf"is of version {version}, and its features are .*import the graph again"
    ):
        open_graph(graph)


def test_a_type_without_nodes_has_scales() -> None:
    """Of no value at all: least and most are infinite, as they were before the first."""
    ranges = np.stack([np.full(3, np.inf, np.float32), np.full(3, -np.inf, np.float32)])
    _core.scales_of_ranges(ranges, 8)
    assert ranges.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_the_default_scale_is_the_same_when_it_is_named() -> None:
    for dtype in ("int8", "uint4"):
        assert oc.ImportConfig(feature_dtype=dtype) == oc.ImportConfig(feature_dtype=dtype, scale="column")
    assert oc.GenerateConfig(dtype="uint4") == oc.GenerateConfig(dtype="uint4", scale="column")
    assert oc.GenerateConfig(dtype="int8") != oc.GenerateConfig(dtype="int8", scale="column")


def test_what_knows_no_few_bits_refuses_the_version(graph: Path) -> None:
    """Earlier releases read versions 1 and 2 of graphs, by this check."""
    from outcrop.store import manifest as manifests

    with pytest.raises(FormatError, match="version 3, this Outcrop reads version 1 and 2"):
        manifests.read(graph, "outcrop.graph", (1, 2))
    assert isinstance(manifests.read(graph, "outcrop.graph", 3), Manifest)


def test_the_format_stays_what_it_is(graph: Path) -> None:
    """Golden: what the manifest says, and the bytes of the first row."""
    content = manifest_at(graph / "manifest.json")
    assert content["version"] == 3
    assert content["attributes"]["quantised"] == {"dtype": "uint4", "scale": "column", "columns": 5}
    assert content["attributes"]["feature_dim"] == 5
    assert content["config"]["feature_dtype"] == "uint4"
    assert content["config"]["scale"] == "column"
    spec, scales = (ArraySpec(**content["arrays"][name]) for name in ("features", "features_scale"))
    assert (spec.dtype, spec.shape, spec.stride_bytes) == ("uint8", [40, 3], 3)
    assert (scales.dtype, scales.shape) == ("float32", [2, 5])
    x = any_features(np.random.default_rng(0), 40, 5)
    assert (graph / "features.bin").read_bytes()[:120] == stored_rows(x, "uint4", "column").tobytes()
    _, scale, offset = quantised(x, "uint4", "column")
    stored = np.fromfile(graph / "features_scale.bin", "<f4", 10)
    assert np.array_equal(stored, np.concatenate([scale[0], offset[0]]))
    about = describe(graph)["graph"]
    assert (about["feature_dim"], about["feature_dtype"], about["scale"]) == (5, "uint4", "column")
    assert about["feature_bytes"] == 120
    assert "features=40x5 uint4, a scale for each column" in repr(open_graph(graph))
