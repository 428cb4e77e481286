"""What must hold in the manifest of a graph, so that what reads its arrays can rely on their shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from outcrop.config.sampling import SPLITS
from outcrop.store.manifest import ArraySpec

EDGE_SPLITS = tuple(f"{split}_edges" for split in SPLITS)
MOST_CLASSES = 1 << 24  # more columns than any output layer has; a lie would be an allocation
_COUNTS = ("num_nodes", "num_edges", "num_classes", "feature_dim")
_DTYPES = {
    "indptr": ("int64",),
    "indices": ("uint32", "int64"),
    "edge_weight": ("float32",),
    **dict.fromkeys((*SPLITS, *EDGE_SPLITS), ("int64",)),
}


def problem(attributes: Mapping[str, Any], arrays: Mapping[str, ArraySpec]) -> str | None:
    """Says what is wrong with the numbers and shapes of a graph; None where nothing is.

    Args:
        attributes: Has all of num_nodes, num_edges, num_classes and feature_dim.
    """
    for name in _COUNTS:
        count = attributes[name]
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            return f"its {name} is {count!r}, a whole number of 0 or more is needed"
    if attributes["num_classes"] > MOST_CLASSES:
        return f"it says that it has {attributes['num_classes']} classes, more than {MOST_CLASSES}"
    for name in ("indptr", "indices"):
        if name not in arrays:
            return f"array {name!r} is missing"
    for name, columns in _columns(attributes).items():
        if name in arrays and (wrong := _problem_of_array(name, arrays[name], columns)):
            return wrong
    return None


def _columns(attributes: Mapping[str, Any]) -> dict[str, tuple[int | None, tuple[int, ...]]]:
    """Returns for each array how many rows it has (None: any number), and the shape of one."""
    nodes, edges = attributes["num_nodes"], attributes["num_edges"]
    splits = dict.fromkeys(SPLITS, (None, ()))
    pairs = dict.fromkeys(("train_edges", "valid_edges", "test_edges"), (None, (2,)))
    return {
        "indptr": (nodes + 1, ()),
        "indices": (edges, ()),
        "edge_weight": (edges, ()),
        "features": (nodes, (attributes["feature_dim"],)),
        **splits,
        **pairs,
    }


def _problem_of_array(name: str, spec: ArraySpec, wanted: tuple[int | None, tuple[int, ...]]) -> str | None:
    rows, columns = wanted
    if rows is not None and spec.shape[0] != rows:
        return f"array {name!r} has {spec.shape[0]} rows, {rows} were expected"
    if spec.shape[1:] != columns:
        return f"array {name!r} has rows of shape {list(spec.shape[1:])}, {list(columns)} was expected"
    if spec.dtype not in _DTYPES.get(name, (spec.dtype,)):
        return f"array {name!r} is {spec.dtype}, {' or '.join(_DTYPES[name])} was expected"
    # Rows of features may lie apart from each other; whole arrays are read without gaps.
    if name != "features" and spec.stride_bytes != np.dtype(spec.dtype).itemsize * math.prod(columns):
        return f"array {name!r} of {spec.dtype} has a row every {spec.stride_bytes} bytes"
    return None
