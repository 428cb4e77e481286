"""Rows that store only what is not zero, worked out with NumPy: their width, how they lie on disk, and features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from artifact_support import manifest_at
from outcrop import _core
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import storage_dtype
from outcrop.store.graph import Graph
from outcrop.store.manifest import PAGE_SUMS
from outcrop.store.verify import add_page_sums


def bits_of(x: np.ndarray) -> np.ndarray:
    """The bits of values, unsigned numbers of the same shape."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def layout_of(x: np.ndarray, dtype: str | None = None) -> dict[str, Any]:
    """What the manifest has to say of the features ``x``: the narrowest rows that hold them."""
    bits = bits_of(x)
    stored = bits[bits != 0]
    common = None
    if (stored == stored[:1]).all():
        common = int(stored[0]) if len(stored) else 0
    most = max(int((bits != 0).sum(1).max(initial=0)), 1)
    return {"dtype": dtype or x.dtype.name, "columns": x.shape[1], "stored": most, "common": common}


def sparse_rows(x: np.ndarray, layout: dict[str, Any] | None = None) -> np.ndarray:
    """Rows as they lie on disk, uint8 [n, bytes of a row]."""
    layout = layout or layout_of(x)
    columns, most = layout["columns"], layout["stored"]
    number = "<u1" if columns < 256 else "<u2" if columns < 65536 else "<u4"
    heads, values = np.zeros((len(x), 1 + most), number), np.zeros((len(x), most), x.dtype)
    for i, row in enumerate(x):
        (at,) = np.nonzero(bits_of(row))
        heads[i, 0], heads[i, 1 : 1 + len(at)], values[i, : len(at)] = len(at), at, row[at]
    parts = [heads.view(np.uint8)] + ([values.view(np.uint8)] if layout["common"] is None else [])
    return np.concatenate(parts, 1)


def mostly_zeros(
    rng: np.random.Generator, rows: int, columns: int, most: int, dtype: str = "float32"
) -> np.ndarray:
    """Features of which each row has 0 to ``most`` values; some are -0.0, NaN or infinite where the type has them."""
    x = np.zeros((rows, columns), dtype)
    for row in x:
        count = int(rng.integers(0, most + 1))
        values = (rng.standard_normal(count) * 50).astype(dtype)
        if x.dtype.kind == "f" and count:
            values[rng.random(count) < 0.1] = [-0.0, np.nan, np.inf, np.finfo(dtype).tiny][rng.integers(4)]
        row[rng.choice(columns, count, replace=False)] = values
    return x


def bag_of_words(rng: np.random.Generator, rows: int, columns: int, most: int) -> np.ndarray:
    """float32 of 0 and 1."""
    return (mostly_zeros(rng, rows, columns, most, "int64") != 0).astype(np.float32)


def same_bits(found: Any, wanted: np.ndarray) -> bool:
    """Whether an array, or a tensor on the CPU, has the dtype, the shape and the bits of ``wanted``."""
    found = found if isinstance(found, np.ndarray) else found.numpy()
    same_type = found.dtype == wanted.dtype and found.shape == wanted.shape
    return bool(same_type and np.array_equal(bits_of(found), bits_of(wanted)))


def change_head(graph: Path, row: int, head: list[int]) -> None:
    """Gives a row another count and other columns, with checksums that fit."""
    path = graph / "manifest.json"
    raw = manifest_at(path)
    spec = raw["arrays"]["features"]
    data = np.fromfile(graph / spec["file"], np.uint8)
    used = data[: spec["shape"][0] * spec["stride_bytes"]]
    used.reshape(spec["shape"][0], -1)[row, : 2 * len(head)] = np.array(head, "<u2").view(np.uint8)
    data.tofile(graph / spec["file"])
    spec["crc32c"] = _core.crc32c(used)
    del raw["arrays"]["features" + PAGE_SUMS]
    path.write_text(json.dumps(raw))
    with Runtime() as runtime:
        assert add_page_sums(graph, runtime) == ["features"]


def dense_rows(rows: np.ndarray, layout: dict[str, Any]) -> np.ndarray:
    """The values of rows as they lie on disk, [n, columns]: the inverse of :func:`sparse_rows`."""
    columns, most, dtype = layout["columns"], layout["stored"], storage_dtype(layout["dtype"])
    number = np.dtype("<u1" if columns < 256 else "<u2" if columns < 65536 else "<u4")
    x, head_bytes = np.zeros((len(rows), columns), dtype), (1 + most) * number.itemsize
    for row, out in zip(rows, x, strict=True):
        count, *at = np.frombuffer(row[:head_bytes].tobytes(), number).tolist()
        if layout["common"] is None:
            out[at[:count]] = np.frombuffer(row[head_bytes:].tobytes(), dtype)[:count]
        else:
            bits_of(out)[at[:count]] = layout["common"]
    return x


def features_of(graph: Graph, name: str = "features") -> np.ndarray:
    """The features that an import stored, as they were before: dense where they are stored sparse."""
    with Runtime() as runtime:
        rows = graph.array(runtime, name).read("test")
    number = name.removesuffix("features")
    of = (
        graph.manifest.attributes
        if not number
        else graph.manifest.attributes["node_types"][int(number[1:-1])]
    )
    return dense_rows(rows, of["sparse"]) if "sparse" in of else rows
