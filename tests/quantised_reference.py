"""Features in few bits, worked out with NumPy: scales, codes, rows as they lie on disk, and values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from artifact_support import manifest_at
from outcrop import _core
from outcrop.runtime.runtime import Runtime
from outcrop.store.manifest import PAGE_SUMS
from outcrop.store.verify import add_page_sums

CODES = {"int8": 255, "uint4": 15}  # the largest


def scale_and_offset(least: np.ndarray, most: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales of ranges, float32 each; of the float32 ``least`` and ``most``."""
    offset = least + np.float32(0)
    wanted = (most.astype(np.float64) - least.astype(np.float64)) / largest
    scale = wanted.astype(np.float32)
    above = np.nextafter(scale, np.float32(np.inf))
    small = (wanted > 0) & (wanted < np.finfo(np.float32).tiny) & (scale < wanted)
    scale = np.where(small, above, scale)
    with np.errstate(over="ignore"):
        top = (largest * scale.astype(np.float64) + offset.astype(np.float64)).astype(np.float32)
    return np.where(np.isfinite(top), scale, np.nextafter(scale, np.float32(0))), offset


def quantised(x: np.ndarray, dtype: str, by: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes uint8 [n, D], and scale and offset of each column [1, D] or row [n, 1], float32."""
    values, axis, largest = x.astype(np.float32), 0 if by == "column" else 1, CODES[dtype]
    least, most = values.min(axis, keepdims=True), values.max(axis, keepdims=True)
    scale, offset = scale_and_offset(least, most, largest)
    steps = (values.astype(np.float64) - offset) / np.where(scale == 0, 1, scale).astype(np.float64)
    codes = np.clip(np.rint(np.where(scale == 0, 0, steps)), 0, largest).astype(np.uint8)
    return codes, scale, offset


def dequantised(x: np.ndarray, dtype: str, by: str) -> np.ndarray:
    """The values, float32 [n, D], that loaders deliver of the features ``x``."""
    codes, scale, offset = quantised(x, dtype, by)
    return (codes * scale.astype(np.float64) + offset.astype(np.float64)).astype(np.float32)


def stored_rows(x: np.ndarray, dtype: str, by: str) -> np.ndarray:
    """Rows as they lie on disk, uint8 [n, bytes of a row]."""
    codes, scale, offset = quantised(x, dtype, by)
    if dtype == "uint4":
        padded = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
        codes = padded[:, 0::2] | padded[:, 1::2] << 4
    if by == "column":
        return codes
    head = np.concatenate([scale, offset], 1).astype("<f4").view(np.uint8)
    return np.concatenate([head, codes], 1)


def any_features(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """float32 of which some columns and rows are constant, some huge, some subnormal."""
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    x *= (10.0 ** rng.integers(-44, 37, columns)).astype(np.float32)
    x[:, rng.random(columns) < 0.2] = rng.standard_normal()
    x[rng.random(rows) < 0.2] = rng.standard_normal()
    return x


FEW_BITS: list[Any] = [("int8", "column"), ("int8", "row"), ("uint4", "column"), ("uint4", "row")]

WRONG_HEADS: list[tuple[float, float]] = [(np.nan, 0.0), (1.0, np.inf), (np.float32(3e38), 3e38)]


def change_row(graph: Path, row: int, head: tuple[float, float]) -> None:
    """Gives a row another scale and offset, with checksums that fit."""
    path = graph / "manifest.json"
    raw = manifest_at(path)
    spec = raw["arrays"]["features"]
    data = np.fromfile(graph / spec["file"], np.uint8)
    used = data[: spec["shape"][0] * spec["stride_bytes"]]
    used.reshape(spec["shape"][0], -1)[row, :8] = np.array(head, "<f4").view(np.uint8)
    data.tofile(graph / spec["file"])
    spec["crc32c"] = _core.crc32c(used)
    del raw["arrays"]["features" + PAGE_SUMS]
    path.write_text(json.dumps(raw))
    with Runtime() as runtime:
        assert add_page_sums(graph, runtime) == ["features"]
