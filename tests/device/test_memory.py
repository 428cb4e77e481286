"""Unified memory lives as long as something reads it, no longer, and is pinned exactly then."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from device_under_test import NAME as GPU

from outcrop import unified
from outcrop.unified import UnifiedDevice, in_place, to_unified
from outcrop.unified.bad_ids import bad_ids
from outcrop.unified.memory import host_memory

pytestmark = pytest.mark.one_stream
LARGE = 3 << 20  # bytes: NumPy and torch have them in pages of their own


@pytest.fixture(autouse=True)
def pinned(gpu):
    """Gives the addresses that are registered when the GPU, unless it is busy, is done."""
    gc.collect()
    words = bad_ids(gpu).address  # of gathers, for good
    assert host_memory().blocks() == 0
    unified.empty_cache()
    assert list(gpu.registered) == [words]

    def addresses() -> list[int]:
        host_memory().collect(wait=not gpu.busy)
        return [address for address in gpu.registered if address != words]

    return addresses


def is_pinned(gpu, address: int) -> bool:
    return any(at <= address < at + size for at, size in gpu.registered.items())


def test_memory_in_place_is_neither_copied_nor_moved(gpu):
    source = torch.arange(24.0).view(4, 6)
    part = source[1:, 1::2]
    u = in_place(part)
    assert u.data_ptr() == part.data_ptr()
    assert u.stride() == part.stride()
    assert is_pinned(gpu, source.data_ptr())
    assert is_pinned(gpu, source.data_ptr() + source.untyped_storage().nbytes() - 1)
    u.fill_(7)
    assert torch.equal(source[1:, 1::2], torch.full((3, 3), 7.0))
    source[2, 1] = -1
    assert u[torch.tensor([1]).to(GPU)].cpu()[0, 0] == -1


@pytest.mark.parametrize("first", ["source", "unified", "view"])
def test_memory_in_place_lives_while_anything_does(gpu, first):
    array = np.arange(LARGE, dtype=np.uint8)
    address = array.ctypes.data
    held = {"source": array, "unified": in_place(array)}
    held["view"] = held["unified"][5:]
    del array
    del held[first]
    gc.collect()
    assert is_pinned(gpu, address)
    for key, kept in held.items():
        assert int(kept[0]) == (5 if key == "view" else 0)
    del kept
    held.pop("source", None)
    while held:
        assert is_pinned(gpu, address)
        held.popitem()
    assert not is_pinned(gpu, address)


def test_adopted_twice_is_registered_once(pinned):
    source = torch.zeros(LARGE, dtype=torch.uint8)
    a, b = in_place(source), in_place(source[100:])
    assert pinned() == [source.data_ptr()]
    del a
    assert pinned() == [source.data_ptr()]
    assert b[torch.tensor([3]).to(GPU)].cpu().item() == 0
    del b
    assert pinned() == []
    c = in_place(source)
    assert pinned() == [source.data_ptr()]
    del c


def test_what_the_gpu_still_reads_is_kept(gpu):
    """Registered until the fence of the stream that was given work is passed; then free, at the next occasion."""
    u = in_place(torch.ones(LARGE, dtype=torch.uint8))
    address = u.data_ptr()
    gpu.busy = True
    rows = u[torch.tensor([1, 2]).to(GPU)]
    del u
    host_memory().collect()
    assert is_pinned(gpu, address)
    gpu.busy = False
    host_memory().collect(wait=True)
    assert not is_pinned(gpu, address)
    assert rows.cpu().tolist() == [1, 1]


def test_what_the_gpu_still_reads_is_not_reused(gpu):
    small = to_unified(torch.ones(10))
    address = small.data_ptr()
    gpu.busy = True
    small.set_propagatedToCUDA(True)
    out = small + 1
    del small
    other = to_unified(torch.zeros(10))
    assert other.data_ptr() != address
    gpu.busy = False
    del other, out
    host_memory().collect(wait=True)
    assert host_memory().blocks() == 0
    again = {to_unified(torch.zeros(10)).data_ptr() for _ in range(5)}
    assert len(again) == 1  # of the pool


def test_adopted_again_while_the_gpu_reads(gpu, pinned):
    """Neither registered twice, nor unregistered with the first; and nobody waits."""
    source = torch.ones(LARGE, dtype=torch.uint8)
    u = in_place(source)
    rows = u[torch.tensor([1]).to(GPU)]
    gpu.busy = True
    del u
    u = in_place(source)
    assert gpu.busy
    assert len(pinned()) == 1
    gpu.busy = False
    host_memory().collect(wait=True)
    assert is_pinned(gpu, source.data_ptr())
    assert rows.cpu().tolist() == [1]
    del u
    assert pinned() == []


def test_a_refused_registration_leaves_nothing(gpu):
    source = torch.ones(LARGE, dtype=torch.uint8)
    gpu.refuse = True
    for make in (lambda: in_place(source), lambda: to_unified(source)):
        with pytest.raises(RuntimeError, match="pinned"):
            make()
        assert host_memory().blocks() == 0
    gpu.refuse = False
    assert in_place(source).data_ptr() == source.data_ptr()


@pytest.mark.no_kernels
def test_ten_thousand_lives_leave_nothing(pinned):
    source = torch.ones(1000)

    def live(n: int) -> None:
        for _ in range(n):
            to_unified(source)[1:].fill_(2)
            in_place(source).sum()

    def learn(n: int) -> None:
        for _ in range(n):
            u = to_unified(source, UnifiedDevice(True)).requires_grad_()
            ((u[1:] * 2).sum() + in_place(source).sum()).backward()

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    live(500)
    learn(100)
    before = resident()
    live(10_000)
    learn(500)
    assert resident() - before < 20 << 20
    assert host_memory().blocks() == 0
    assert len(pinned()) <= 1  # segment of the arena


def test_large_memory_is_mapped_and_pinned_once(pinned, monkeypatch, gpu):
    registered = []
    register = type(gpu).register
    monkeypatch.setattr(type(gpu), "register", lambda *args: (registered.append(args[1:]), register(*args)))
    size = 64 << 20
    for _ in range(25):
        unified.empty(size, dtype=torch.uint8)[::4096].fill_(1)
    assert [num_bytes for _, num_bytes in registered] == [size]
    assert host_memory().mapped_bytes() == size
    unified.empty_cache()
    assert pinned() == []
    assert host_memory().mapped_bytes() == 0


def test_tensors_that_share_a_page(gpu, pinned):
    """Released in either order, the other is read as before: of memory that is one array, and that is not."""
    memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    for pool, ranges in ((np.zeros(3 * mmap.PAGESIZE, np.uint8), 1), (np.frombuffer(memory, np.uint8), 2)):
        start = -pool.ctypes.data % mmap.PAGESIZE
        for order in ((0, 1), (1, 0)):
            held = {i: in_place(pool[start + 100 * i : start + 100 * i + 50]) for i in range(2)}
            assert len(pinned()) == ranges
            for i in order:
                assert held[i][torch.tensor([0]).to(GPU)].cpu().item() == 0
                del held[i]
            assert pinned() == []


def test_what_lies_beside_pinned_memory_is_copied_as_ever(gpu):
    """Small tensors of torch's allocator, several to a page: CUDA refuses copies over the end of a range."""
    tensors = [torch.full((1000,), float(i)) for i in range(40)]
    kept = [in_place(x) for x in tensors[::3]]
    for i, x in enumerate(tensors):
        assert x.to(GPU).cpu().eq(i).all()
    for u in kept:
        assert u[torch.tensor([3, 999]).to(GPU)].cpu().tolist() == [u[0].item()] * 2


def test_a_part_is_adopted_before_the_whole(gpu):
    array = np.arange(1000.0)
    part = in_place(array[:10])
    whole = in_place(array)
    assert whole.sum().item() == array.sum()
    assert torch.equal(whole.to(GPU).cpu(), torch.from_numpy(array))  # by one copy
    assert in_place(array[5:].view(np.int64))[0].item() == array.view(np.int64)[5]
    part += 1
    assert whole[torch.tensor([9, 10]).to(GPU)].cpu().tolist() == [10, 10]
    del part
    assert whole[torch.tensor([9, 10]).to(GPU)].cpu().tolist() == [10, 10]


def test_threads(gpu):
    """Created, used, passed on and dropped by many threads at once."""
    index = torch.tensor([5, 1]).to(GPU)
    shared = to_unified(torch.arange(1000.0))

    def work(seed: int) -> None:
        for i in range(100):
            u = to_unified(torch.full((100 + seed,), float(i)))
            assert u[index].cpu().tolist() == [i, i]
            assert shared[index].cpu().tolist() == [5, 1]
            assert (u + i).sum().item() == 2 * i * (100 + seed)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert threading.active_count() < 20


def test_empty_tensors(gpu):
    for size in ((0,), (3, 0), (0, 5)):
        assert to_unified(torch.empty(size)).shape == size
        assert in_place(torch.empty(size)).shape == size
        assert unified.empty(*size).is_unified
    assert to_unified(torch.tensor(3.0)).item() == 3.0


def test_a_forked_child_leaves_its_parents_memory_alone(gpu):
    u = to_unified(torch.ones(LARGE, dtype=torch.uint8))
    child = os.fork()
    if child == 0:
        before = len(gpu.registered)
        del u
        gc.collect()
        os._exit(0 if len(gpu.registered) == before > 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert is_pinned(gpu, u.data_ptr())


LEAVING = """
import sys
sys.path.insert(0, sys.argv[1])
import device_under_test, torch
device = device_under_test.begin()
from outcrop import unified
table = unified.to_unified(torch.ones(1000, 1000))
kept = [table[torch.tensor([1]).to(device_under_test.NAME)], unified.in_place(torch.ones(5)), table[3:]]
device.busy = True
"""


@pytest.mark.no_kernels
def test_leaving_the_interpreter_with_tensors_alive():
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-c", LEAVING, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "Exception" not in run.stderr, run.stderr
