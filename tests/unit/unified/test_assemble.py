"""The CPU kernel of assemble against NumPy: rows from three tables, of any width, at any address."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outcrop import _core
from outcrop.unified.assemble import row_addresses
from outcrop.unified.gather import word_bytes


@given(
    width=st.integers(1, 300),
    counts=st.tuples(*[st.integers(0, 9)] * 3),
    gaps=st.tuples(*[st.integers(0, 40)] * 3),
    offsets=st.tuples(*[st.integers(0, 20)] * 4),
    size=st.integers(0, 30),
    warps=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_assemble_equals_numpy(width, counts, gaps, offsets, size, warps, seed):
    random = np.random.default_rng(seed)
    tables = []
    for count, gap, offset in zip(counts, gaps, offsets, strict=False):
        memory = random.integers(0, 256, offset + max(count, 1) * (width + gap), dtype=np.uint8)
        tables.append(np.lib.stride_tricks.as_strided(memory[offset:], (count, width), (width + gap, 1)))
    known = [i for i, count in enumerate(counts) if count]
    chosen = random.choice(known, size) if known else np.zeros(0, int)
    rows = np.array([random.integers(0, counts[i]) for i in chosen], np.int64)
    place = np.array([row_addresses(int(i), row)[()] for i, row in zip(chosen, rows, strict=True)], np.uint64)
    memory = np.zeros(offsets[3] + len(place) * width + 1, np.uint8)
    out = memory[offsets[3] : offsets[3] + len(place) * width].reshape(-1, width)
    word = word_bytes(width, out.ctypes.data, *(x for t in tables for x in (t.ctypes.data, t.strides[0])))
    assert _core.cpu_assemble(tables, place, out, word, warps) == -1
    expected = [tables[i][row] for i, row in zip(chosen, rows, strict=True)]
    assert np.array_equal(out, np.array(expected, np.uint8).reshape(-1, width))
    assert memory[-1] == 0
    assert not memory[: offsets[3]].any()


def test_a_place_that_is_none_is_named():
    tables = [np.zeros((3, 4), np.uint8)] * 3
    out = np.ones((4, 4), np.uint8)
    for bad in (row_addresses(1, np.array([3]))[0], row_addresses(3, np.array([0]))[0], np.uint64(2**64 - 1)):
        place = np.array([0, row_addresses(2, np.array([2]))[0], bad, 1], np.uint64)
        assert _core.cpu_assemble(tables, place, out, 4) == 2
        assert out[2].tolist() == [1] * 4
