"""The parts of unified memory by themselves: pinned ranges, the arena, and who waits for whom, on a GPU of queues."""

from __future__ import annotations

import mmap
import random
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outcrop.device.gpu import Cuda
from outcrop.errors import DeviceError
from outcrop.unified.arena import Arena, Segment
from outcrop.unified.pinned import PinnedRanges
from outcrop.unified.uses import Uses

PAGE = mmap.PAGESIZE
MIB = 1 << 20


class RangeGpu:
    """Refuses, as CUDA does, bytes that are registered, and an address that is none of a registration."""

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        self.refused_after = 10**9

    def register(self, address: int, num_bytes: int) -> None:
        if self.refused_after == 0:
            raise DeviceError("no memory can be pinned")
        self.refused_after -= 1
        assert not self.bytes() & set(range(address, address + num_bytes)), "error 712"
        self.registered[address] = num_bytes

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def bytes(self) -> set[int]:
        return {b for at, size in self.registered.items() for b in range(at, at + size)}


RANGES = st.tuples(st.integers(1, 120), st.integers(1, 40))


@given(st.lists(st.one_of(RANGES, st.integers(0, 30)), max_size=40), st.integers(0, 30))
def test_ranges_against_a_model(steps: list[Any], refused_after: int):
    """Ranges that overlap come and go: each byte is registered once, while a range has it or what was registered with
    it, and no byte that none ever had; what is registered stays mapped."""
    gpu: Any = RangeGpu()
    gpu.refused_after = refused_after
    pinned, held = PinnedRanges(gpu), []
    for step in steps:
        if isinstance(step, int):
            if held:
                pinned.drop(held.pop(step % len(held))[1])
        else:
            address, size = step
            before = dict(gpu.registered)
            try:
                held.append((step, pinned.hold(address, size, step)))
            except DeviceError:
                assert gpu.registered == before
        wanted = {b for (at, n), _ in held for b in range(at, at + n)}
        assert wanted <= gpu.bytes()
        for at, size in gpu.registered.items():
            assert wanted & set(range(at, at + size))
    for _, registrations in held:
        pinned.drop(registrations)
    assert not gpu.registered


def test_what_overlaps_with_nothing_is_registered_as_it_is():
    """Not a byte of what lies beside it: copies of that would fail."""
    gpu: Any = RangeGpu()
    pinned = PinnedRanges(gpu)
    pinned.hold(PAGE + 100, 300, None)
    pinned.hold(PAGE + 400, 5, None)
    assert gpu.registered == {PAGE + 100: 300, PAGE + 400: 5}


def arena_of(kept_bytes: int, kept_share: float = 0.0) -> tuple[Arena, Counter]:
    counts: Counter = Counter()

    def pin(segment: Segment) -> None:
        counts["pinned"] += 1

    def unpin(segment: Segment) -> None:
        counts["unpinned"] += 1

    return Arena(pin, unpin, kept_bytes, kept_share), counts


@given(
    st.lists(st.one_of(st.integers(1, 30 * MIB).map(lambda n: ("take", n)), st.integers(0, 99)), max_size=60)
)
def test_blocks_of_an_arena_are_apart(steps: list[Any]):
    arena, counts = arena_of(8 * MIB)
    held: dict[int, int] = {}
    for step in steps:
        if isinstance(step, tuple):
            address, size = arena.take(step[1])
            assert address % PAGE == size % PAGE == 0
            assert step[1] <= size < step[1] + PAGE
            assert all(address + size <= at or at + n <= address for at, n in held.items())
            held[address] = size
        elif held:
            address = sorted(held)[step % len(held)]
            del held[address]
            arena.give_back(address)
        assert arena.used_bytes == sum(held.values()) <= arena.mapped_bytes
    for address in held:
        arena.give_back(address)
    assert arena.mapped_bytes <= 8 * MIB  # all are unused, joined again
    arena.trim()
    assert arena.mapped_bytes == 0
    assert counts["pinned"] == counts["unpinned"]


def test_a_thousand_blocks_of_one_size_are_one_registration():
    for size in (100, MIB, 3 * MIB, 64 * MIB):
        arena, counts = arena_of(64 * MIB)
        for _ in range(1000):
            arena.give_back(arena.take(size)[0])
        assert counts == {"pinned": 1}


def test_a_thousand_blocks_of_mixed_sizes_are_few_registrations():
    """Eight at a time, of up to 8 MiB: never more than what all eight need if each has a segment of its own."""
    arena, counts = arena_of(256 * MIB)
    chance, held = random.Random(0), []
    for _ in range(1000):
        held.append(arena.take(chance.choice([1, PAGE + 1, 300_000, MIB + 1, 5 * MIB, 8 * MIB]))[0])
        if len(held) == 8:
            arena.give_back(held.pop(chance.randrange(8)))
    assert counts["pinned"] <= 8
    assert counts["unpinned"] == 0
    assert arena.mapped_bytes <= 8 * 20 * MIB


def test_unused_memory_is_bounded():
    arena, counts = arena_of(8 * MIB, kept_share=1.0)
    table = arena.take(64 * MIB)[0]
    for _ in range(10):
        arena.give_back(arena.take(60 * MIB)[0])
    assert counts == {"pinned": 2}  # as much is in use
    arena.give_back(table)
    assert arena.mapped_bytes == 0


def test_what_cannot_be_pinned_is_not_kept():
    def refuse(segment: Segment) -> None:
        raise DeviceError("no memory can be pinned")

    arena = Arena(refuse, lambda segment: None, 0, 0.0)
    with pytest.raises(DeviceError, match="pinned"):
        arena.take(1)
    assert arena.mapped_bytes == arena.used_bytes == 0


class QueueFence:
    def __init__(self, gpu: QueueGpu, stream: str, upto: int):
        self._gpu, self._stream, self.upto = gpu, stream, upto

    def query(self) -> bool:
        return self._gpu.done[self._stream] >= self.upto

    def synchronize(self) -> None:
        while not self.query():
            self._gpu.step(self._stream)


class QueueGpu:
    """Streams whose work runs only when somebody waits for it."""

    def __init__(self) -> None:
        self.queues: dict[str, list[Any]] = {"a": [], "b": []}
        self.done = {"a": 0, "b": 0}
        self.fences = self.waits = 0

    def give(self, stream: str, work: Any) -> None:
        self.queues[stream].append(work)

    def step(self, stream: str) -> None:
        self.queues[stream][self.done[stream]]()
        self.done[stream] += 1

    def fence(self, stream: str) -> QueueFence:
        self.fences += 1
        return QueueFence(self, stream, len(self.queues[stream]))

    def wait(self, stream: str, fence: QueueFence) -> None:
        self.waits += 1
        self.give(stream, fence.synchronize)


@given(st.data())
def test_orders_of_reads_and_writes(data):
    """A cell that two streams and the CPU read and write: everyone sees what the program says, however late streams
    run. Oracle: the same program, step by step."""
    gpu: Any = QueueGpu()
    uses, kept = Uses(), {}
    cell, expected, seen, wanted = [0], 0, [], []
    for number in range(1, data.draw(st.integers(1, 14)) + 1):
        who = data.draw(st.sampled_from(["a", "b", "cpu", "run"]))
        writes = data.draw(st.booleans())
        if who == "run":
            stream = data.draw(st.sampled_from(["a", "b"]))
            if gpu.done[stream] < len(gpu.queues[stream]):
                gpu.step(stream)
            continue

        def work(number: int = number, writes: bool = writes, at: int = len(wanted)) -> None:
            seen.append((at, cell[0]))
            if writes:
                cell[0] = number

        if who == "cpu":
            uses.wait(gpu, to_write=writes)
            work()
        else:
            use = uses.begin(gpu, who, writes=writes)
            gpu.give(who, work)
            if writes:
                uses.wrote(gpu, who)
            if data.draw(st.booleans()):
                kept[who] = use  # as a graph of autograd does
        wanted.append(expected)
        expected = number if writes else expected
    for fence in uses.fences(gpu):
        fence.synchronize()
    assert sorted(seen) == list(enumerate(wanted))


def test_reads_cost_no_fence():
    gpu: Any = QueueGpu()
    uses = Uses()
    for _ in range(1000):
        uses.begin(gpu, "a", writes=False)
        gpu.give("a", lambda: None)
        uses.wait(gpu, to_write=False)
    assert (gpu.fences, gpu.waits, gpu.done["a"]) == (0, 0, 0)
    uses.wait(gpu, to_write=True)
    assert (gpu.fences, gpu.done["a"]) == (1, 1000)
    uses.wait(gpu, to_write=True)
    assert gpu.fences == 1  # what is done is forgotten


def test_work_that_may_come_later_is_remembered():
    """Backward launches after the CPU has waited once: what frees the memory, or writes to it, waits for that too."""
    gpu: Any = QueueGpu()
    uses = Uses()
    use = uses.begin(gpu, "a", writes=False)
    uses.wait(gpu, to_write=True)
    ran = []
    gpu.give("a", lambda: ran.append(1))
    del use
    uses.wait(gpu, to_write=True)
    assert ran == [1]


def test_uses_of_memory_that_turns_out_to_be_one():
    gpu: Any = QueueGpu()
    first, second, ran = Uses(), Uses(), []
    alive = first.begin(gpu, "a", writes=True)
    for uses, stream in ((first, "a"), (second, "a"), (second, "b")):
        uses.begin(gpu, stream, writes=True)
        gpu.give(stream, lambda name=stream: ran.append(name))
        uses.wrote(gpu, stream)
    first.take_over(gpu, second)
    first.wait(gpu, to_write=False)
    assert sorted(ran) == ["a", "a", "b"]
    gpu.give("a", lambda: ran.append("later"))
    first.wait(gpu, to_write=True)
    assert ran[-1] == "later"
    assert alive is not None


class Runtime:
    """torch's CUDA runtime: an error is kept until a kernel is launched, which fails with it."""

    def __init__(self, error: int):
        self.error, self.last = error, 0
        self.flags: list[int] = []

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        self.flags.append(flags)
        self.last = self.error
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        self.last = self.error
        return self.error

    def empty(self, *size: int, device: str) -> Runtime:
        return self

    def fill_(self, value: float) -> None:
        error, self.last = self.last, 0
        if error:
            raise RuntimeError(f"CUDA error {error}")


@pytest.mark.parametrize("error", [0, 1, 712])
def test_errors_of_pinning_are_raised_once(monkeypatch, error):
    """And not again by what is launched next, which may be anybody's."""
    runtime = Runtime(error)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch, "empty", runtime.empty)
    with pytest.raises(DeviceError, match=f"CUDA error {error}") if error else nullcontext():
        Cuda().register(PAGE, PAGE)
    assert runtime.flags == [3]  # for every context, and mapped
    assert runtime.last == 0
    Cuda().unregister(PAGE)
    assert runtime.last == 0
