"""Rows of a table: the op against indexing, the CPU kernel against NumPy, requests against the paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gather_requests import flat_requests, row_requests, shifted_requests
from outcrop import _core
from outcrop.errors import ArgumentError
from outcrop.unified.gather import gather, word_bytes

pytestmark = pytest.mark.leaks(
    "env", reason="torch sets TORCHINDUCTOR_CACHE_DIR when a custom op is first called"
)


def cpu_kernel(table: np.ndarray, index: np.ndarray, out: np.ndarray, warps: int = 2) -> int:
    """By the widest word that suits."""
    where = (x for a in (table, out) for x in (a.ctypes.data, a.strides[0]))
    return _core.cpu_gather(table, index, out, word_bytes(*where, table.shape[1]), warps)


def at_offset(count: int, width: int, offset: int, gap: int = 0) -> np.ndarray:
    """uint8 [count, width] that begins ``offset`` bytes after a line, rows ``width + gap`` apart."""
    memory = np.zeros(count * (width + gap) + 128 + offset, np.uint8)
    begin = -memory.ctypes.data % 128 + offset
    return memory[begin : begin + count * (width + gap)].reshape(count, width + gap)[:, :width]


def test_every_width_at_any_offset():
    random = np.random.default_rng(0)
    for width in range(1, 2101):
        table = at_offset(9, width, int(random.integers(0, 130)), gap=int(random.integers(0, 3)))
        table[:] = random.integers(0, 256, table.shape)
        index = random.integers(0, 9, 5).astype(np.int32 if width % 2 else np.int64)
        out = at_offset(5, width, int(random.integers(0, 17)), gap=1)
        assert cpu_kernel(table, index, out) == -1
        np.testing.assert_array_equal(out, table[index])


@given(
    width=st.integers(1, 700),
    offset=st.integers(0, 127),
    count=st.integers(0, 40),
    warps=st.integers(1, 7),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=200, deadline=None)
def test_words_of_every_size(width, offset, count, warps, seed):
    random = np.random.default_rng(seed)
    for word in (1, 2, 4, 8, 16):
        table = at_offset(11, width * word, offset * word)
        table[:] = random.integers(0, 256, table.shape)
        index, out = random.integers(0, 11, count), at_offset(count, width * word, 0)
        assert _core.cpu_gather(table, index, out, word, warps) == -1
        np.testing.assert_array_equal(out, table[index])


@pytest.mark.parametrize("wrong", [-1, 9, 2**40, -(2**62)])
def test_an_id_that_is_no_row_is_found_and_nothing_is_read(wrong):
    table, out = at_offset(9, 12, 4), np.full((4, 12), 7, np.uint8)
    assert cpu_kernel(table, np.array([3, 0, wrong, 5]), out) == 2
    assert (out[2] == 7).all()
    assert (out[[0, 1, 3]] == 0).all()


def test_the_figures_of_the_paper():
    """Figures 4 and 5: lines of 4 words, warps of 4 threads, nodes of 11 features; threads 11 to 21 read node 2."""
    small = {"warp": 4, "line": 4}
    assert flat_requests(22, 11, 11, **small) == 7
    assert shifted_requests(22, 11, 11, **small) == 5
    assert row_requests(22, 11, **small) == 4  # words 22 to 32 lie in so many lines


def test_requests_of_a_row_are_the_lines_that_it_lies_in():
    random = np.random.default_rng(1)
    for size in (1, 7, 16, 127, 128, 129, 512, 513, 2052, 8400):
        for start in random.integers(0, 4096, 100):
            lines = int(start + size - 1) // 128 - int(start) // 128 + 1
            assert _core.cpu_gather_requests(int(start), size) == lines
            assert start % 4 or size % 4 or row_requests(int(start) // 4, size // 4) == lines


def test_misaligned_rows_cost_fewer_requests():
    """Rows of 2052 bytes, where the paper has 1.17x without and 1.95x with alignment."""
    starts = np.arange(1000) * 513
    flat = sum(flat_requests(int(s), 513, 513 * i) for i, s in enumerate(np.roll(starts, 7)))
    ours = sum(row_requests(int(s), 513) for s in starts)
    assert flat > 1.8 * ours


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int8,
        torch.uint8,
        torch.int64,
        torch.bool,
    ],
)
@pytest.mark.parametrize("shape", [(0,), (5,), (2, 3), (1,)])
def test_equals_indexing(dtype, shape):
    random = np.random.default_rng(2)
    table = torch.from_numpy(random.integers(0, 2, (20, 3, 5))).to(dtype)
    index = torch.from_numpy(random.integers(0, 20, shape))
    for some in (table, table[:, 1], table[::2, :, ::2][:20], table.transpose(1, 2)):
        inside = index % len(some)
        for ids in (inside, inside.int()):
            found = gather(some, ids)
            assert found.is_contiguous()
            assert torch.equal(found, some[ids.long()])


def test_what_is_wrong_is_named():
    table = torch.zeros(4, 3)
    with pytest.raises(IndexError, match="rows 0 to 4 asked for, the table has 4"):
        gather(table, torch.tensor([0, 4]))
    with pytest.raises(IndexError, match="rows -1 to -1"):
        gather(table, torch.tensor([-1]))
    with pytest.raises(ArgumentError, match=r"int64 or int32, not torch\.float32"):
        gather(table, torch.tensor([1.0]))
    with pytest.raises(ArgumentError, match="without dimensions"):
        gather(torch.tensor(1.0), torch.tensor([0]))


def test_gradients():
    table = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[1, 1, 6], [0, 1, 2]])
    assert torch.autograd.gradcheck(lambda t: gather(t, index), (table,))


def test_torch_knows_the_op():
    table = torch.randn(20, 4, requires_grad=True)
    for index in (
        torch.tensor([3, 3, 0]),
        torch.tensor([[1], [2]], dtype=torch.int32),
        torch.zeros(0, dtype=torch.int64),
    ):
        torch.library.opcheck(torch.ops.outcrop.gather.default, (table, index))
    compiled = torch.compile(lambda t, i: gather(t, i).relu().sum(), fullgraph=True, backend="eager")
    index = torch.tensor([5, 5, 1])
    assert torch.equal(compiled(table, index), table[index].relu().sum())


@pytest.mark.parametrize(
    ("numbers", "widest"), [((0, 64, 32), 16), ((4, 2052), 4), ((128, 6), 2), ((7,), 1), ((24, 8), 8)]
)
def test_widest_word(numbers, widest):
    assert word_bytes(*numbers) == widest
