"""Random programs of who uses batches, and of training with swaps, on a GPU that is late. Oracles: the CPU, NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from device_under_test import FAKE
from device_under_test import NAME as GPU
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensor_bits import all_bits

from outcrop.config import DeviceConfig
from outcrop.device.budget import DeviceBudget
from outcrop.embed.gpu import GpuBuffer
from outcrop.embed.numbering import ById, Division
from outcrop.embed.tables import FILE, RowShape, Start, Table
from outcrop.loading.open import open_session
from outcrop.runtime.memory_tables import DEVICE_BATCHES
from outcrop.runtime.runtime import Runtime
from run_support import a_run_of_all_levels

if FAKE:
    from fake.streams import schedule as schedule_of

SEEDS = st.integers(0, 1 << 20)
DRAWN = settings(
    max_examples=40 if FAKE else 10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def draw_schedule(gpu: Any, name: str, seed: int) -> None:
    """As late as possible, or in an order of the seed: another one under each schedule of the module."""
    if FAKE:
        gpu.settle()
        gpu.streams.schedule = schedule_of(f"seed:{seed}" if seed % 3 else "latest", name)


def actions_of(program: type) -> list[str]:
    return [name for name in vars(program) if not name.startswith(("_", "check", "run"))]


def steps_of(program: type, most: int) -> Any:
    step = st.tuples(st.sampled_from(actions_of(program)), st.integers(0, 9), st.booleans())
    return st.lists(step, min_size=1, max_size=most)


# Batches


def parts_of(batch: Any) -> list[torch.Tensor]:
    return [batch.x, batch.y, batch.rowptr, batch.col]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A graph, a run of it, and the batches of its epochs on the CPU."""
    folder = tmp_path_factory.mktemp("made")
    graph, run = a_run_of_all_levels(folder, width=33, train=100, gpu_memory="100KiB")
    with Runtime() as runtime, open_session(graph, runtime, "packed", run_folder=run) as session:
        batches = [
            [[part.clone() for part in parts_of(batch)] for batch in session.batches("train", epoch)]
            for epoch in range(2)
        ]
    return graph, run, batches


class Held:
    """A batch that the program has. All work on it is ordered before what ``last`` is given next."""

    def __init__(self, batch: Any, expected: list[torch.Tensor], last: Any):
        self.batch, self.expected, self.last = batch, list(expected), last


class Consumer:
    """What a loop may do to batches, with the waits and records that torch asks for of tensors on several streams."""

    def __init__(self, gpu: Any, session: Any, epochs: list[list[list[torch.Tensor]]]):
        self._gpu, self._session, self._epochs = gpu, session, epochs
        self._streams = [gpu.stream(0), gpu.new_stream(0)]
        self._held: list[Held] = []
        self._found: list[tuple[torch.Tensor, torch.Tensor, Any]] = []  # on the GPU, expected, stream
        self.begin_again(0, False)

    def run(self, name: str, which: int, second: bool) -> None:
        with self._gpu.on_stream(self._streams[second]):
            getattr(self, name)(which, second)

    def begin_again(self, which: int, second: bool) -> None:
        """Wherever the pass before is."""
        epoch = which % 2
        self._batches = self._session.batches("train", epoch, overlapped=False)  # one thread: seeds replay
        self._coming = list(self._epochs[epoch])

    def take(self, which: int, second: bool) -> None:
        if len(self._held) == DEVICE_BATCHES:
            self.drop(which, second)
        if not self._coming:
            assert next(self._batches, None) is None
            self.begin_again(which, second)
        self._held.append(Held(next(self._batches), self._coming.pop(0), self._streams[second]))

    take_more = take  # drawn more often

    def go_on(self, which: int, second: bool) -> None:
        """As most loops do: one batch after the other, and nobody waits."""
        for _ in range(1 + which % 3):
            self.take(which, second)
            self.compute(len(self._held) - 1, second)
            self._held.pop()

    def drop(self, which: int, second: bool) -> None:
        if self._held:
            del self._held[which % len(self._held)]

    def _use(self, which: int, second: bool) -> Held | None:
        """A batch whose tensors the current stream may use: it is recorded for it."""
        if not self._held:
            return None
        held, stream = self._held[which % len(self._held)], self._streams[second]
        if held.last is not stream:
            self._gpu.wait(stream, self._gpu.fence(held.last))
            held.batch.record_stream(stream)
            held.last = stream
        return held

    def read(self, which: int, second: bool) -> None:
        if held := self._use(which, second):
            for part, expected in zip(parts_of(held.batch), held.expected, strict=True):
                assert torch.equal(part.cpu(), expected)

    def compute(self, which: int, second: bool) -> None:
        if held := self._use(which, second):
            found, stream = all_bits(parts_of(held.batch)), self._streams[second]
            self._found.append((found, all_bits(held.expected), stream))

    compute_more = compute

    def change(self, which: int, second: bool) -> None:
        """The rows are the program's until it lets them go."""
        if held := self._use(which, second):
            held.batch.x.add_(1)
            held.expected[0] = held.expected[0] + 1

    def compute_beside(self, which: int, second: bool) -> None:
        """On a stream that is joined again; nothing is recorded."""
        if self._held:
            held, stream = self._held[which % len(self._held)], self._streams[second]
            self._gpu.wait(stream, self._gpu.fence(held.last))
            self._found.append((all_bits(parts_of(held.batch)), all_bits(held.expected), stream))
            self._gpu.wait(held.last, self._gpu.fence(stream))

    def let_go_there(self, which: int, second: bool) -> None:
        """Rows go on the stream that used them last; nothing is recorded."""
        if self._held:
            held, stream = self._held.pop(which % len(self._held)), self._streams[second]
            x = held.batch.x
            del held.batch
            self._gpu.wait(stream, self._gpu.fence(held.last))
            self._found.append((all_bits([x]), all_bits(held.expected[:1]), stream))
            del x

    def keep_labels(self, which: int, second: bool) -> None:
        """They are tensors of their own: a loop may keep those of an epoch."""
        if held := self._use(which, second):
            self._found.append((held.batch.y, held.expected[1], self._streams[second]))

    def look(self, which: int, second: bool) -> None:
        """At all that was found until now."""
        for found, expected, stream in self._found:
            with self._gpu.on_stream(stream):
                assert torch.equal(found.cpu(), expected)
        self._found.clear()


@pytest.mark.parametrize("mode", ["packed", "memory"])
def test_who_uses_batches_sees_those_of_the_cpu(gpu, schedule_name, made, mode):
    graph, folder, batches = made

    @DRAWN
    @given(steps_of(Consumer, 25), SEEDS)
    def check(steps, seed):
        draw_schedule(gpu, schedule_name, seed)
        consumer = Consumer(gpu, session, batches)
        for step in steps:
            consumer.run(*step)
        consumer.look(0, False)

    to = DeviceConfig(GPU)
    with Runtime() as runtime, open_session(graph, runtime, mode, run_folder=folder, device=to) as session:
        check()


# Swaps of a table

PARTS, SLOTS, STAGED = 6, 4, 2
DIVISION, SHAPE = Division(20 * PARTS, PARTS), RowShape(8, 16)


class Training:
    """Swaps, and changes of the slices that are resident meanwhile. Each slice has a NumPy array that is its oracle."""

    def __init__(self, table: Table, buffer: GpuBuffer):
        self._table, self._buffer = table, buffer
        self._expected = np.zeros((PARTS, table.slab_rows, SHAPE.stride), np.float32)
        for part, rows in enumerate(self._expected):
            table.begin(part, rows.reshape(-1).view(np.uint8))
        self.swap(0, False)

    def run(self, name: str, which: int, other: bool) -> None:
        getattr(self, name)(which, other)

    def _resident(self) -> list[int]:
        """Those that training may use now, the ones that leave and come not among them."""
        return np.flatnonzero(self._buffer.base >= 0).tolist()

    def _rows(self, part: int) -> torch.Tensor:
        first = int(self._buffer.base[part])
        return self._buffer.rows[first : first + self._table.slab_rows]

    def swap(self, which: int, other: bool) -> None:
        """Begins one, after the one before: some leave, as many as there is room for come."""
        self._buffer.end_swap()
        resident = self._resident()
        away = [part for part in range(PARTS) if part not in resident]
        leave = [part for at, part in enumerate(resident) if (at + which) % (2 + other)]
        room = SLOTS - len(resident) + len(leave)
        come = [away[(which + at) % len(away)] for at in range(min(room, len(away)))]
        self._buffer.begin_swap(leave, come)

    swap_again = swap

    def change(self, which: int, other: bool) -> None:
        for part in self._resident()[which % 2 :: 1 + other]:
            self._rows(part).mul_(0.5).add_(which)
            self._expected[part] = self._expected[part] * np.float32(0.5) + np.float32(which)
            self._buffer.touch(part)

    change_more = change

    def poll(self, which: int, other: bool) -> None:
        for _ in range(which):
            self._buffer.note_end()

    def wait(self, which: int, other: bool) -> None:
        self._buffer.end_swap()

    def read(self, which: int, other: bool) -> None:
        for part in self._resident()[which % 2 :]:
            assert np.array_equal(self._rows(part).cpu().numpy(), self._expected[part])

    def checkpoint(self, which: int, other: bool) -> None:
        self._buffer.end_swap()
        self._buffer.flush()
        if other:
            self._table.keep()

    def check(self) -> None:
        """All slices, those of the file among them."""
        self.checkpoint(0, True)
        self.read(0, False)
        slab = self._table._runtime.budget.empty("test", self._table.slab_bytes)
        for part, expected in enumerate(self._expected):
            if self._table.places[part] >= 0:
                self._table.load(part, slab)
                assert np.array_equal(self._table.rows_of(slab), expected)


@pytest.mark.parametrize("by_rings", [False, True], ids=["engine", "rings"])
def test_a_table_that_is_swapped_is_one_that_lies_still(gpu, schedule_name, tmp_path, by_rings):
    """By the engine one thread calls the GPU, and seeds replay; rings have a thread of their own."""

    @DRAWN
    @given(steps_of(Training, 20), SEEDS)
    def check(steps, seed):
        draw_schedule(gpu, schedule_name, seed)
        table = Table(tmp_path / FILE, DIVISION, SHAPE, Start(0.5, 7), ById(), runtime)
        table.clear()
        buffer = GpuBuffer(table, SLOTS, runtime, DeviceBudget(gpu, device, 1 << 20), STAGED, by_rings)
        try:
            training = Training(table, buffer)
            for step in steps:
                training.run(*step)
            training.check()
        finally:
            buffer.close()
            table.close()

    device = torch.device(GPU, 0)
    with Runtime(threads=1) as runtime:
        check()
