"""Slabs written and read by commands in rings (outcrop.rows.rings.SlabRings), by the CPU kernels."""

from __future__ import annotations

import numpy as np
import pytest

from outcrop import _core
from outcrop.errors import IoError
from outcrop.rows.rings import RingFile, SlabRings

PAGE, SLABS = 4096, 8


def a_table(path, runtime, pages: int) -> tuple[RingFile, np.ndarray]:
    """A file of SLABS slabs, and what is in it, uint8 [SLABS, slab bytes]."""
    table = np.random.default_rng(pages).integers(0, 256, (SLABS, pages * PAGE), np.uint8)
    path.write_bytes(table.tobytes())
    file = runtime.io.open(str(path), _core.OpenMode.pages)
    return RingFile(path, file, SLABS, pages * PAGE, pages * PAGE), table


@pytest.mark.parametrize(("pages", "memory"), [(1, 1), (3, 40 << 10), (7, 200 << 10)])
def test_a_swap_is_that_of_the_engine(tmp_path, make_runtime, pages, memory):
    runtime = make_runtime(threads=1)
    file, table = a_table(tmp_path / "rings", runtime, pages)
    other, _ = a_table(tmp_path / "engine", runtime, pages)
    rings = SlabRings(file, runtime, "cpu", memory, faults=shuffled())
    slabs = np.random.default_rng(1).integers(0, 256, (4, pages * PAGE), np.uint8)
    size = file.row_bytes
    write_at, read_at = [5 * size, None, 0, 2 * size], [size, 7 * size, None, 5 * size]
    theirs = runtime.budget.empty("test", slabs.nbytes).reshape(slabs.shape)
    theirs[:] = slabs
    swap = _core.SlabSwap(runtime.io, other.file, list(theirs), write_at, read_at)
    swap.wait()
    moves = rings.swap(list(slabs), write_at, read_at)
    moves.wait()
    assert moves.done
    assert np.array_equal(slabs, theirs)
    assert np.array_equal(slabs[1], table[7])
    assert moves.crcs == [tuple(pair) for pair in swap.crcs]
    assert (tmp_path / "rings").read_bytes() == (tmp_path / "engine").read_bytes()
    pieces = -(-size // 8192)
    assert rings.commands == (6 * pieces, 6 * pieces)
    rings.close()


def shuffled() -> _core.RingFaults:
    faults = _core.RingFaults()
    faults.shuffle = True
    return faults


def test_what_cannot_be_written_stays_where_it_is(tmp_path, make_runtime):
    faults = _core.FaultPlan()
    faults.error_probability = 1
    runtime = make_runtime(threads=1, faults=faults)
    file, table = a_table(tmp_path / "table", runtime, 3)
    rings = SlabRings(file, runtime, "cpu", 100 << 10)
    slab = np.full(file.row_bytes, 9, np.uint8)
    moves = rings.swap([slab], [0], [file.row_bytes])
    with pytest.raises(
        IoError, match=r"table: of 2 writes .* failed 2 with status 0x280 .*cannot write .*table"
    ):
        moves.wait()
    assert (slab == 9).all()  # nothing was read over it
    assert (tmp_path / "table").read_bytes() == table.tobytes()
    rings.close()
    assert runtime.budget.by_tag["ring-staging"].now_bytes == 0


def test_a_disk_that_hangs_ends_a_swap_with_an_error(tmp_path, make_runtime):
    runtime = make_runtime(threads=1)
    file, _ = a_table(tmp_path / "table", runtime, 3)
    faults = _core.RingFaults()
    faults.die_at = 1
    rings = SlabRings(file, runtime, "cpu", 100 << 10, deadline_seconds=0.05, faults=faults)
    slab = np.full(file.row_bytes, 9, np.uint8)
    moves = rings.swap([slab], [0], [file.row_bytes])
    with pytest.raises(
        IoError, match=r"table: [12] of 2 reads and writes .* had no answer .* train again, or with io engine"
    ):
        moves.wait()
    assert (slab == 9).all()
    rings.close()
