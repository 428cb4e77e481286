"""Runs whose records lie, with checksums that are right: an error that names the file, never a crash of the process.

A run can be downloaded, so it is an input as any other. Each training is in a child: what this is about killed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from artifact_support import memory_folder, prepare, small_graph
from forked import python

# Writes a value into an array of the first training record, mends its checksum, trains, and says how that went.
CHILD = """
import sys
from pathlib import Path
import numpy as np
import outcrop
from outcrop import _core
from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import record
from outcrop.store.graph import open_graph
from outcrop.store.samples import open_samples
from outcrop.store.placement import open_placement

folder, mode, model, column, at, value = Path(sys.argv[1]), *sys.argv[2:5], *map(int, sys.argv[5:])
with Runtime("8MiB") as runtime:
    samples = open_samples(runtime, folder / "run/sample")
    offset = int(samples.offsets[0])
    path = folder / "run/sample/batches.bin"
    if mode == "packed":
        offset, path = int(open_placement(runtime, folder / "run/plan").offsets[0]), folder / "run/pack/records.bin"
    file = np.memmap(path, np.uint8, "r+")
    header = file[offset:][:512].view("<i8")
    size = -(-int(header[9]) // 4096) * 4096
    meta = file[offset : offset + size]
    graph, (table,) = record.decode(meta.copy(), "before")
    part = graph if hasattr(graph, column) else table
    getattr(part, column)[at] = value
    meta[:] = record.encode(graph, (table,), samples.id_bytes)
    file.flush()
try:
    outcrop.train(str(folder / "graph"), run=str(folder / "run"), mode=mode, model=model, hidden=4, heads=2, epochs=1,
                  memory="8MiB")
    print("trained")
except FormatError as error:
    print("refused", error)
"""


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    with memory_folder() as folder:
        prepare(small_graph(folder / "graph"), folder / "run", gpu_memory=0)
        yield folder


CASES = [
    *(
        (mode, model, "rowptr", 9, v)
        for mode, model, v in [
            ("packed", "sage", -(2**31)),
            ("ondisk", "gat", -(2**31)),
            ("ondisk", "gat", 2**31 - 1),
            ("packed", "gcn", 2**31 - 1),
        ]
    ),
    ("packed", "gat", "col", 2, 2**31 - 1),
    ("ondisk", "sage", "col", 2, -7),
    ("packed", "sage", "n_id", 3, 2**31 - 2),
    ("ondisk", "sage", "n_id", 3, 2**31 - 2),
    ("packed", "sage", "labels", 0, 77),
    ("packed", "sage", "host_rows", 0, 2**31 - 1),
    ("packed", "sage", "host_positions", 0, 2**31 - 1),
    ("packed", "sage", "disk_rows", 0, 2**31 - 1),
]


@pytest.mark.parametrize(("mode", "model", "column", "at", "value"), CASES)
def test_training_refuses_a_record_that_lies(
    made: Path, mode: str, model: str, column: str, at: int, value: int
) -> None:
    file = made / ("run/pack/records.bin" if mode == "packed" else "run/sample/batches.bin")
    before = file.read_bytes()
    try:
        done = python(CHILD, made, mode, model, column, at, value)
    finally:
        file.write_bytes(before)
    assert done.returncode == 0, (done.returncode, done.stderr[-800:])
    assert done.stdout.startswith(f"refused {file.parent}"), done.stdout
