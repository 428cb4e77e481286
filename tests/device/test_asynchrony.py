"""The fake GPU is late where CUDA may be: naive code gets wrong values or fails, right code gets right ones."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from device_under_test import FAKE
from device_under_test import NAME as GPU

from outcrop.device.gpu import seen_by
from outcrop.errors import DeviceError

pytestmark = pytest.mark.skipif(not FAKE, reason="a real GPU is late when it likes")
PAGE = 4096


@pytest.fixture(autouse=True)
def late(gpu):
    """Nothing runs until the host waits for it."""
    from fake.streams import schedule

    gpu.settle()
    gpu.streams.schedule = schedule("latest")
    gpu.streams.waits.clear()
    return gpu


@pytest.fixture
def page(gpu):
    """A registered page of the host: uint8, and the same memory as the GPU sees it."""
    memory = np.zeros(2 * PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    host = torch.from_numpy(memory[start : start + PAGE])
    gpu.register(host.data_ptr(), PAGE)
    yield host, seen_by(gpu, host, 0)
    if host.data_ptr() in gpu.registered:
        gpu.settle()
        gpu.unregister(host.data_ptr())


def full(value: float, count: int = 1000) -> torch.Tensor:
    return torch.full((count,), value, device=GPU)


# Streams and fences


def test_work_is_late_and_in_order(gpu, page):
    host, there = page
    there.fill_(1)
    there.mul_(3)
    fence = gpu.fence(gpu.stream(0))
    there.fill_(9)
    assert host[0] == 0
    assert not fence.query()
    fence.synchronize()
    assert host[0] == 3
    assert fence.query()
    gpu.fence(gpu.stream(0)).synchronize()
    assert host[0] == 9
    assert gpu.syncs == 2


def test_polling_ends(gpu, page):
    host, there = page
    for _ in range(5):
        there.add_(1)
    fence = gpu.fence(gpu.stream(0))
    looks = 0
    while not fence.query():
        looks += 1
    assert looks == 5
    assert host[0] == 5


def test_streams_have_no_order_but_that_of_fences(gpu, page):
    host, there = page
    other = gpu.new_stream(0)
    there.fill_(1)
    with gpu.on_stream(other):
        assert gpu.stream(0) is other
        there.add_(10)
    gpu.fence(other).synchronize()
    assert host[0] == 10  # the default stream has not begun
    gpu.fence(gpu.stream(0)).synchronize()
    assert host[0] == 1
    with gpu.on_stream(other):
        there.add_(10)
    gpu.wait(gpu.stream(0), gpu.fence(other))
    there.mul_(2)
    gpu.fence(gpu.stream(0)).synchronize()
    assert host[0] == 22


def test_a_fence_is_of_the_stream_that_it_was_recorded_on(gpu, page):
    """Race 3: what another stream was given is not waited for."""
    host, there = page
    other = gpu.new_stream(0)
    with gpu.on_stream(other):
        there.fill_(5)
    gpu.fence(gpu.stream(0)).synchronize()
    assert host[0] == 0
    gpu.fence(other).synchronize()
    assert host[0] == 5


# What the host sees of the device, and the device of the host


def test_the_cpu_reads_after_the_gpu_writes(gpu, page):
    """Race 1, one way."""
    host, there = page
    there.add_(7)
    assert host.tolist() == [0] * PAGE
    gpu.fence(gpu.stream(0)).synchronize()
    assert host.tolist() == [7] * PAGE


def test_the_cpu_writes_while_the_gpu_still_reads(gpu, page):
    """Race 1, the other way."""
    host, there = page
    total = there.sum()
    host.fill_(1)
    assert total.item() == PAGE  # of what was written later
    total = there.sum()
    gpu.fence(gpu.stream(0)).synchronize()
    host.fill_(2)
    assert total.item() == PAGE


def test_copies_read_pageable_memory_at_once_and_pinned_memory_late(gpu, page):
    host, _ = page
    pageable = torch.zeros(PAGE, dtype=torch.uint8)
    assert host.is_pinned()
    assert not pageable.is_pinned()
    copies = [x.to(GPU, non_blocking=True) for x in (pageable, host)]
    assert gpu.syncs == 0
    for x in (pageable, host):
        x.fill_(1)
    assert [int(x[0]) for x in copies] == [0, 1]
    gpu.streams.waits.clear()
    there = host.to(GPU)
    host.fill_(2)
    assert gpu.syncs == 1
    assert int(there[0]) == 1


def test_copies_to_pageable_memory_wait_and_those_to_pinned_memory_do_not(gpu, page):
    host, _ = page
    there = torch.full((PAGE,), 3, dtype=torch.uint8, device=GPU)
    pageable = torch.zeros(PAGE, dtype=torch.uint8)
    host.copy_(there, non_blocking=True)
    assert host[0] == 0
    assert gpu.syncs == 0
    pageable.copy_(there, non_blocking=True)
    assert gpu.syncs == 1
    assert pageable[0] == host[0] == 3


def test_what_the_host_must_know_it_waits_for(gpu):
    x = torch.tensor([0.0, 1.0, 2.0]).to(GPU)
    gpu.streams.waits.clear()
    y = (x * 2).reshape(3, 1) + 1
    assert gpu.syncs == 0
    for ask, expected in (
        (lambda: float(y.sum()), 9.0),
        (lambda: x.nonzero().shape[0], 2),
        (lambda: x[x > 0].shape[0], 2),
        (lambda: len(x.unique()), 3),
        (lambda: torch.equal(x, x), True),
        (lambda: y.tolist(), [[1.0], [3.0], [5.0]]),
    ):
        gpu.streams.waits.clear()
        assert ask() == expected
        assert gpu.syncs >= 1


def test_random_numbers_are_those_of_the_call(gpu):
    torch.manual_seed(0)
    there = torch.zeros(4, device=GPU).uniform_()
    here = torch.rand(4)
    torch.manual_seed(0)
    assert torch.equal(there.cpu(), torch.rand(4))
    assert torch.equal(here, torch.rand(4))


# Memory


def test_a_freed_block_is_handed_out_again_at_once_where_that_is_safe(gpu):
    x = full(1.0)
    address = x.data_ptr()
    total = x.sum()
    del x
    y = full(2.0)
    assert y.data_ptr() == address
    assert total.item() == 1000  # before its memory was another's
    with gpu.on_stream(gpu.new_stream(0)):
        del y
        assert full(3.0).data_ptr() != address


def test_a_block_freed_while_another_stream_uses_it(gpu):
    """Race 2: what was read there is another tensor's, unless the block was recorded."""
    other, results = gpu.new_stream(0), {}
    for recorded in (True, False):
        x = full(1.0, 5000)
        gpu.fence(gpu.stream(0)).synchronize()
        with gpu.on_stream(other):
            total = x.sum()
        if recorded:
            gpu.record(x, other)
        address = x.data_ptr()
        del x
        y = full(2.0, 5000)
        assert (y.data_ptr() == address) != recorded
        gpu.fence(gpu.stream(0)).synchronize()
        with gpu.on_stream(other):
            results[recorded] = total.item()
        del y, total
    assert results == {True: 5000.0, False: 10_000.0}


def test_a_recorded_block_comes_back(gpu):
    other = gpu.new_stream(0)
    x = full(1.0, 9000)
    gpu.wait(other, gpu.fence(gpu.stream(0)))
    with gpu.on_stream(other):
        total = x.sum()
    gpu.record(x, other)
    address = x.data_ptr()
    del x
    assert full(0.0, 9000).data_ptr() != address
    gpu.fence(other).synchronize()
    assert full(0.0, 9000).data_ptr() == address
    del total


def test_memory_that_was_freed_is_not_used(gpu):
    x = full(1.0, 3000)
    alias = seen_by(gpu, x, 0, keeping=())
    del x
    alias.sum()
    with pytest.raises(RuntimeError, match="freed"):
        gpu.fence(gpu.stream(0)).synchronize()
    with pytest.raises(RuntimeError, match="freed"):  # sticky
        full(1.0)
    assert "freed" in gpu.settle()


def test_recording_an_alias_does_nothing(gpu):
    """As torch, which knows the storage, not the address."""
    x = full(1.0, 3000)
    gpu.record(seen_by(gpu, x, 0), gpu.new_stream(0))
    address = x.data_ptr()
    del x
    gc.collect()
    assert full(1.0, 3000).data_ptr() == address


def test_new_memory_is_junk(gpu):
    assert torch.empty(100, device=GPU).isnan().all().item()
    x = full(1.0)
    del x
    assert torch.empty(1000, device=GPU).isnan().all().item()


def test_peaks_are_of_what_the_host_holds(gpu):
    gc.collect()
    before = gpu.memory(0)[0]
    x = full(1.0, 1000)
    assert before - gpu.memory(0)[0] == 4000
    assert gpu.peak_bytes(0) >= 4000
    del x
    assert gpu.memory(0)[0] == before


# Host memory


def test_memory_is_registered_once(gpu, page):
    """Race 8: the error stays for the next operator, unless somebody asks before."""
    host, _ = page
    gpu.settle()
    for _ in range(2):
        with pytest.raises(DeviceError, match="712"):
            gpu.ranges.register(host.data_ptr() + 100, 10)
        with pytest.raises(RuntimeError, match="CUDA error: 712, of an earlier call"):
            full(1.0)
        assert full(1.0).sum().item() == 1000
    assert gpu.ranges.unregister(host.data_ptr() + 100) == 713
    with pytest.raises(RuntimeError, match="713"):
        full(1.0)


def test_a_copy_that_goes_past_the_end_of_a_range_fails(gpu):
    """As on an H200: where it begins in one; into the next one, too. From before it, and beside it, it works."""
    memory = torch.zeros(4 * PAGE, dtype=torch.uint8)
    there = torch.empty(PAGE, dtype=torch.uint8, device=GPU)
    at = memory.data_ptr()
    gpu.register(at + 100, 200)
    gpu.register(at + 300, 50)
    for begin, end, works in (
        (100, 300, True), (120, 130, True), (0, 100, True), (0, 400, True), (350, 900, True), (300, 350, True),
        (120, 301, False), (100, 350, False), (349, 351, False), (300, 900, False),
    ):  # fmt: skip
        for copy in (lambda x: x.to(GPU), lambda x: x.copy_(there[: len(x)])):
            if works:
                copy(memory[begin:end])
            else:
                with pytest.raises(RuntimeError, match="invalid argument"):
                    copy(memory[begin:end])
    gpu.settle()
    for address in (at + 100, at + 300):
        gpu.unregister(address)


def test_memory_that_queued_work_reads_stays_registered(gpu, page):
    host, there = page
    there.sum()
    with pytest.raises(RuntimeError, match=r"sum.* is to touch host memory that is registered no more"):
        gpu.unregister(host.data_ptr())
    assert gpu.settle()


def test_memory_that_is_not_registered_is_not_touched(gpu, page):
    host, there = page
    gpu.unregister(host.data_ptr())
    there.sum()
    with pytest.raises(RuntimeError, match="illegal memory access: 4096 bytes"):
        gpu.fence(gpu.stream(0)).synchronize()
    assert gpu.settle()
    gpu.register(host.data_ptr(), PAGE)


def test_ends_of_what_a_kernel_touches_are_checked(gpu, page):
    """A gather whose table ends beyond what is registered."""
    host, _ = page
    index, out = torch.zeros(1, dtype=torch.int64, device=GPU), torch.empty(16, dtype=torch.uint8, device=GPU)
    wrong = torch.zeros(1, dtype=torch.int64, device=GPU)
    ends = [index.data_ptr(), 1, out.data_ptr(), 16, 1, wrong.data_ptr()]
    gpu.launch("gather", "gather_16_64", out.device, 1, [host.data_ptr(), 16, PAGE // 16, *ends])
    assert out.cpu().tolist() == [0] * 16
    gpu.launch("gather", "gather_16_64", out.device, 1, [host.data_ptr(), 16, PAGE // 16 + 1, *ends])
    with pytest.raises(RuntimeError, match="illegal memory access"):
        out.cpu()
    assert gpu.settle()


# Schedules


@pytest.mark.parametrize("name", ["eager", "seed:1", "seed:2"])
def test_a_schedule_replays_exactly(gpu, page, name):
    from fake.streams import schedule

    host, there = page
    others = [gpu.new_stream(0) for _ in range(3)]

    def run() -> list[int]:
        gpu.settle()
        host.zero_()
        gpu.streams.schedule = schedule(name, "here")
        seen = []
        for i in range(40):
            with gpu.on_stream(others[i % 3]):
                there.mul_(2)
                there.add_(i)
            seen.append(int(host[0]))
        gpu.settle()
        return [*seen, int(host[0])]

    expected = [0]
    for i in range(40):
        expected.append((2 * expected[-1] + i) % 256)
    first = run()
    assert first == run()
    assert (first[:-1] == expected[1:]) == (name == "eager")


def test_when_memory_is_freed_does_not_change_the_order(gpu, page):
    """Garbage of other tests, and whether memory was used before, leave the order of a seed as it is."""
    from fake.streams import schedule

    host, there = page
    others = [gpu.new_stream(0) for _ in range(3)]

    def run(garbage: list[torch.Tensor]) -> list[int]:
        gpu.settle()
        host.zero_()
        gpu.streams.schedule = schedule("seed:1", "here")
        seen = []
        for i in range(40):
            with gpu.on_stream(others[i % 3]):
                there.mul_(2)
                there.add_(i)
            seen.append(int(host[0]))
            if i % 2 and garbage:
                garbage.pop()  # while work is pending on other streams, and on its own
        gpu.settle()
        return [*seen, int(host[0])]

    gc.collect()
    expected = run([])
    for stream in (gpu.stream(0), others[1]):
        with gpu.on_stream(stream):
            assert run([full(1.0, 7 + i) for i in range(20)]) == expected
