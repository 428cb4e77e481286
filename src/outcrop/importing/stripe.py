"""Stripe: copies shares of the feature rows of a graph to other disks, one artifact for each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.errors import ArgumentError
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter, DiskArray
from outcrop.store.graph import Graph
from outcrop.store.manifest import Manifest
from outcrop.store.stripes import FORMAT, VERSION, Stripe, open_stripes


def stripe_features(
    graph: Graph, folders: Sequence[Path | str], runtime: Runtime, *, overwrite: bool = False
) -> list[Stripe]:
    """Writes stripe k of n to ``folders[k - 1]``, where n is one more than there are folders.

    The features are read once, and compared with their checksum. Each stripe appears by a rename when all are written:
    a killed call leaves none that is half full.

    Raises:
        ArgumentError: A folder is in the way or named twice, or the graph has no features.
        ChecksumError: The features were damaged.
        IoError: The system refused; names the file.
    """
    paths = [Path(folder) for folder in folders]
    count = len(paths) + 1
    if not graph.row_files:
        raise ArgumentError(f"{graph.path} has no features that stripes could hold")
    if not paths or len({path.resolve() for path in paths}) < len(paths):
        raise ArgumentError(f"stripes need a folder each, not {', '.join(map(str, paths)) or 'none'}")
    for path in paths:
        manifests.check_destination(path)
        if manifests.exists(path):
            manifests.require_overwrite(path, "an artifact", None, overwrite)
            if manifests.kind(path) != FORMAT:
                raise ArgumentError(f"{path} is no stripe, and stays: choose another place")
    features, spec = graph.open_rows(runtime, graph.row_file), graph.row_file.spec
    if spec.stride_bytes != features.row_bytes:
        raise ArgumentError(f"{features.path}: rows with gaps between them cannot be copied to stripes")
    try:
        with ExitStack() as publishing:
            works = [publishing.enter_context(manifests.publishing(path)) for path in paths]
            writers = [ArrayWriter(runtime, work, "features", spec.dtype, spec.shape[1:]) for work in works]
            _copy(features, writers, runtime)
            for number, (work, writer) in enumerate(zip(works, writers, strict=True), 1):
                about = {"stripe": number, "stripes": count}
                arrays, inputs = {"features": writer.finish()}, {"graph": graph.digest()}
                manifests.write(work, Manifest(FORMAT, VERSION, arrays, about, {}, inputs))
            graph.require_unchanged()
    finally:
        features.close()
    return open_stripes(graph, paths)


def _copy(features: DiskArray, writers: Sequence[ArrayWriter], runtime: Runtime) -> None:
    count, row, num_rows, crc = len(writers) + 1, features.row_bytes, features.num_rows, 0
    room = memory_tables.STRIPE_CHUNK.bytes_of(runtime.budget.free_bytes)
    # Whole rounds, so that each chunk begins with a row of the graph's own share.
    step = max(room // max(row * count, 1), 1) * count
    runtime.progress.start("stripe", num_rows * row, "bytes")
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        buffer = runtime.budget.empty("stripe", max((stop - start) * row, 1))[: (stop - start) * row]
        runtime.io.read(features.file, start * row, buffer)
        crc = _core.crc32c(buffer, crc)
        rows = buffer.view(features.dtype).reshape(stop - start, *features.spec.shape[1:])
        for number, writer in enumerate(writers, 1):
            writer.append(np.ascontiguousarray(rows[number::count]))
        runtime.progress.advance("stripe", len(buffer))
    features.check(crc)
    runtime.progress.finish("stripe")
