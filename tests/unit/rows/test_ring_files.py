"""Rows through rings from several files and queue pairs (outcrop.rows.rings.files), by the CPU kernels.

The oracle is the feature array itself: stripe k of n holds rows k, k + n, ... as it was cut here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outcrop import _core
from outcrop.errors import ArgumentError, IoError
from outcrop.rows.rings import GpuDiskRows, RingFile, RowFiles
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import ArrayWriter, DiskArray

NODES, WIDTH = 331, 37
TABLE = np.random.default_rng(4).standard_normal((NODES, WIDTH)).astype(np.float32)
BYTES = TABLE.view(np.uint8)
ROW = WIDTH * 4


def written(folder: Path, runtime: Runtime, name: str, rows: np.ndarray) -> DiskArray:
    folder.mkdir(exist_ok=True)
    writer = ArrayWriter(runtime, folder, name, "float32", rows.shape[1:])
    writer.append(rows)
    return DiskArray(runtime, folder, writer.finish())


def arrays(folder: Path, runtime: Runtime, count: int) -> list[DiskArray]:
    """All rows, then stripes 1 to count - 1. In the first, rows that belong to stripes are wrong: nobody reads them."""
    whole = TABLE.copy()
    whole[np.arange(NODES) % count > 0] = 7
    stripes = [written(folder, runtime, f"stripe-{k}", TABLE[k::count]) for k in range(1, count)]
    return [written(folder, runtime, "whole", whole), *stripes]


def rings(files: list[DiskArray], runtime: Runtime, num_queues: int | None, **faults: float) -> GpuDiskRows:
    wrong = _core.RingFaults()
    for name, value in faults.items():
        setattr(wrong, name, value)
    return GpuDiskRows(
        files[0], runtime, staging_bytes=96 << 10, faults=wrong, stripes=files[1:], num_queues=num_queues
    )


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 6),
    num_queues=st.integers(1, 6),
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_rows_and_commands_are_those_of_their_files(tmp_path_factory, count, num_queues, sizes, seed):
    """Several reads under way, more than rings hold, waited for in any order; each queue has its files' commands."""
    random = np.random.default_rng(seed)
    with Runtime(threads=1) as runtime:
        files = arrays(tmp_path_factory.mktemp("files"), runtime, count)
        source = rings(files, runtime, num_queues, shuffle=True, seed=seed)
        wanted = [random.integers(0, NODES, size) for size in sizes]
        outs = [np.zeros(size * ROW, np.uint8) for size in sizes]
        reads = [source.submit(ids, out) for ids, out in zip(wanted, outs, strict=True)]
        for i in random.permutation(len(sizes)):
            reads[i].wait()
            assert np.array_equal(outs[i].reshape(-1, ROW), BYTES[wanted[i]])
        ids = np.concatenate(wanted)
        queues = min(count, num_queues)
        expected = [int((ids % count % num_queues == queue).sum()) for queue in range(queues)]
        assert source.commands_by_queue == [(n, n) for n in expected]
        assert source.commands == (len(ids), len(ids))
        # To single places, the rest as it was.
        places = random.permutation(NODES)[:100].astype(np.int32)
        out, ids = np.full(NODES * ROW, 9, np.uint8), random.integers(0, NODES, 100)
        source.submit_to(ids, places, out).wait()
        kept = np.full_like(BYTES, 9)
        kept[places] = BYTES[ids]
        assert np.array_equal(out.reshape(-1, ROW), kept)
        source.close()
        assert runtime.budget.by_tag["ring-staging"].now_bytes == 0


def test_a_wait_is_for_its_own_rows_though_another_disk_is_silent(tmp_path, make_runtime):
    """Rows of which a part is never answered; others, in all queues, are all there when they were waited for."""
    runtime, half = make_runtime(threads=1), NODES // 2
    files = arrays(tmp_path, runtime, 3)
    # Blocks of the whole file from its half on: those of the stripes end before.
    source = rings(files, runtime, 3, silent_from=half * ROW // 512, shuffle=True)
    silent = 3 * np.arange(half // 3 + 5, half // 3 + 10)
    out = np.zeros(len(silent) * ROW, np.uint8)
    never = source.submit(silent, out)
    for turn in range(5):
        ids = np.random.default_rng(turn).integers(0, half - 3, 500)
        out = np.zeros(500 * ROW, np.uint8)
        source.read_rows(ids, out)
        assert np.array_equal(out.reshape(-1, ROW), BYTES[ids])
    assert not never.done
    submitted, completed = zip(*source.commands_by_queue, strict=True)
    assert completed[1:] == submitted[1:]
    assert submitted[0] - completed[0] == len(silent)
    source.close()
    with pytest.raises(
        IoError, match=r"whole\.bin, .*stripe-1\.bin, .*stripe-2\.bin: these rows were closed"
    ):
        never.wait()


def test_files_of_other_rows_are_refused_and_disks_have_queues(tmp_path, make_runtime):
    runtime = make_runtime(threads=1)
    arrays(tmp_path, runtime, 2)
    specs = [(tmp_path / name, rows) for name, rows in (("whole.bin", NODES), ("stripe-1.bin", NODES // 2))]
    files = [
        RingFile(path, runtime.io.open(str(path), _core.OpenMode.read), rows, ROW, ROW)
        for path, rows in specs
    ]
    assert RowFiles(files).num_queues == 1  # one disk
    found = RowFiles(files, 2)
    assert [[file.path.name for file in queue] for queue in found.of_queue] == [
        ["whole.bin"],
        ["stripe-1.bin"],
    ]
    with pytest.raises(
        ArgumentError,
        match=r"stripe-1\.bin: stride, bytes and number of rows are \(148, 148, 165\), not \(148, 148, 110\), as of "
        r"stripe 1 of 3 of .*whole\.bin: make the stripes again",
    ):
        RowFiles([*files, files[1]])
    for file in files:
        runtime.io.close(file.file)


def test_a_disk_that_is_gone_ends_waits_with_its_files(tmp_path, make_runtime):
    runtime = make_runtime(threads=1)
    source = rings(arrays(tmp_path, runtime, 2), runtime, 2, fail_at=20)
    ids = np.arange(200, dtype=np.int64)
    with pytest.raises(IoError, match=r"whole\.bin, .*stripe-1\.bin: .*made to fail.*open the rows again"):
        source.read_rows(ids, np.zeros(200 * ROW, np.uint8))
    source.close()
