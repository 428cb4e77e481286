"""The artifact of a layer's output, of scores or of classes: one row for each node, or cut into columns for the next
layer; written, opened and removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter, DiskArray
from outcrop.store.graph import Graph
from outcrop.store.manifest import Manifest

FORMAT, VERSION = "outcrop.activations", 1
ROWS = "rows"
COLUMNS = "columns"


def expected(
    graph: Graph, model_digest: str, what: str | dict[str, Any], targets: str
) -> tuple[dict, dict[str, str]]:
    """Returns config and input digests of the output of ``what`` ("layer 0", a sampling) for ``targets``: all, or a
    digest.
    """
    return {"what": what, "targets": targets}, {"graph": graph.digest(), "model": model_digest}


def write_rows(
    graph: Graph,
    blocks: Iterable[np.ndarray],
    width: int | None,
    out: Path,
    config: dict[str, Any],
    inputs: dict[str, str],
    runtime: Runtime,
) -> Manifest:
    """Writes ``blocks``, float32 [n, width] each, as one artifact; without a width int64 [n, 1]: of each row the column
    with the highest score, the first of equals.

    Raises:
        FormatError: ``graph``, of which they are made, was replaced meanwhile.
    """
    with manifests.publishing(out) as folder, torch.no_grad():
        dtype, columns = ("int64", 1) if width is None else ("float32", width)
        writer = ArrayWriter(runtime, folder, ROWS, dtype, (columns,))
        for block in blocks:
            writer.append(block.argmax(1)[:, None] if width is None else block)
            runtime.progress.advance("infer", len(block))
        manifest = Manifest(FORMAT, VERSION, {ROWS: writer.finish()}, {}, config, inputs)
        graph.require_unchanged()
        manifests.write(folder, manifest)
    return manifest


def write_columns(
    graph: Graph,
    blocks: Iterable[tuple[int, Sequence[np.ndarray]]],
    out: Path,
    config: dict[str, Any],
    inputs: dict[str, str],
    runtime: Runtime,
) -> Manifest:
    """Writes, as one artifact, an output that was cut for the next layer (:mod:`outcrop.inference.input_cut`).

    Args:
        blocks: Of each block how many nodes it has, and its parts, float32.

    Raises:
        FormatError: ``graph``, of which they are made, was replaced meanwhile.
    """
    with manifests.publishing(out) as folder, torch.no_grad():
        writer = ArrayWriter(runtime, folder, COLUMNS, "float32")
        for count, parts in blocks:
            for part in parts:
                writer.append(part.reshape(-1))
            runtime.progress.advance("infer", count)
        manifest = Manifest(FORMAT, VERSION, {COLUMNS: writer.finish()}, {}, config, inputs)
        graph.require_unchanged()
        manifests.write(folder, manifest)
    return manifest


def open_rows(folder: Path, runtime: Runtime) -> DiskArray:
    """Returns the array that :func:`write_rows` wrote to ``folder``."""
    return DiskArray(runtime, folder, manifests.read(folder, FORMAT, VERSION).arrays[ROWS])


def remove(folder: Path) -> None:
    """Removes the artifact ``folder`` if it is there: what it held is needed no more."""
    shutil.rmtree(folder, ignore_errors=True)
