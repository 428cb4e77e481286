"""Unified tensors on a GPU that computes later: everyone sees what the program says. Oracle: the same on the CPU."""

from __future__ import annotations

import copy
import io
import os
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from device_under_test import FAKE
from device_under_test import NAME as GPU
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from outcrop import unified
from outcrop.unified import UnifiedDevice, in_place, to_unified

if FAKE:
    from fake.streams import schedule as schedule_of

PROPAGATING = UnifiedDevice(True)


@pytest.fixture(autouse=True)
def late(gpu):
    """Nothing runs before the host waits for it, unless another schedule is asked for."""
    if FAKE and "OUTCROP_GPU_SCHEDULE" not in os.environ:
        gpu.streams.schedule = schedule_of("latest")


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().as_subclass(torch.Tensor)


def saved(u: torch.Tensor) -> torch.Tensor:
    stream = io.BytesIO()
    torch.save(u, stream)
    stream.seek(0)
    return torch.load(stream)


def written(u: torch.Tensor, function: Any) -> torch.Tensor:
    out = torch.zeros(u.shape)
    function(out, u)
    return out


READERS = {
    "tolist": lambda u: torch.tensor(u.tolist()),
    "item": lambda u: torch.tensor([[x.item() for x in row] for row in u]),
    "float": lambda u: torch.tensor([[float(x) for x in row] for row in u]),
    "numpy": lambda u: torch.from_numpy(u.numpy().copy()),
    "asarray": lambda u: torch.from_numpy(np.asarray(u).copy()),
    "dlpack": lambda u: torch.from_numpy(np.from_dlpack(u).copy()),
    "cpu": lambda u: u.cpu(),
    "to cpu": lambda u: u.to("cpu"),
    "to a dtype": lambda u: u.to(torch.float64).to(torch.float32),
    "operator": lambda u: u + 0,
    "clone": lambda u: u.clone(),
    "contiguous": lambda u: u.t().contiguous().t(),
    "reshape": lambda u: u.t().reshape(-1).view(4, 3).t(),
    "flatten": lambda u: u.t().flatten().view(4, 3).t(),
    "index": lambda u: u[torch.tensor([0, 1, 2])],
    "slice": lambda u: torch.tensor(u[:2].tolist() + u[2:].tolist()),
    "copy_": lambda u: written(u, torch.Tensor.copy_),
    "assignment": lambda u: written(u, lambda out, x: out.__setitem__(slice(None), x)),
    "out": lambda u: torch.add(u, 0, out=torch.empty(3, 4)),
    "pickle": lambda u: pickle.loads(pickle.dumps(u)),
    "save": saved,
    "deepcopy": copy.deepcopy,
    "to_unified": to_unified,
    "gather": lambda u: unified.gather(u, torch.tensor([0, 1, 2])),
    "print": lambda u: torch.tensor([float(x) for x in re.findall(r"[\d.]+(?=[,\]])", repr(u))]).view(3, 4),
    "storage": lambda u: torch.empty(0).set_(u.untyped_storage(), 0, (3, 4)),
    "plain": lambda u: u.as_subclass(torch.Tensor).clone(),
    "GPU": lambda u: u.to(GPU),
    "GPU, later": lambda u: u.to(GPU, non_blocking=True),
    "cuda": lambda u: u.cuda() if GPU == "cuda" else u.to(GPU),
}


@pytest.mark.parametrize("reader", READERS)
def test_who_reads_sees_what_the_gpu_wrote(reader):
    a = torch.arange(12.0).view(3, 4)
    u, g = to_unified(a), torch.ones(3, 4).to(GPU)
    u.add_(g)
    u[1:].mul_(g[1:] + 1)
    expected = (a + 1) * torch.tensor([[1.0], [2.0], [2.0]])
    assert torch.equal(plain(READERS[reader](u)), expected)


def assign(x: torch.Tensor, value: float) -> None:
    x[1:] = value


WRITERS = {
    "zero_": lambda u, source: u.zero_(),
    "assignment": lambda u, source: assign(u, 0),
    "view": lambda u, source: u[0].fill_(0),
    "out": lambda u, source: torch.mul(torch.ones(3, 4), 0, out=u),
    "copy_": lambda u, source: u.copy_(torch.zeros(3, 4)),
    "numpy": lambda u, source: u.numpy().fill(0),
    "dlpack": lambda u, source: torch.from_dlpack(u).fill_(0),
    "storage": lambda u, source: u.untyped_storage().fill_(0),
    "plain": lambda u, source: u.as_subclass(torch.Tensor).fill_(0),
    "its other name": lambda u, source: (unified.synchronize(u), source.fill_(0)),
    "its other name, by that": lambda u, source: (unified.synchronize(source), source.fill_(0)),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("reader", ["operator", "copy"])
def test_the_cpu_writes_what_the_gpu_has_read(writer, reader):
    source = torch.arange(12.0).view(3, 4)
    before, g = source.clone(), torch.ones(3, 4).to(GPU)
    u = in_place(source)
    if reader == "operator":
        u.set_propagatedToCUDA(True)
        out = u * g
        u.set_propagatedToCUDA(False)
    else:
        out = u.to(GPU, non_blocking=True)
    WRITERS[writer](u, source)
    assert torch.equal(plain(out), before)
    assert u[1, 0].item() == (4.0 if writer == "view" else 0.0)


def test_every_other_name_can_be_synchronized():
    for a in (torch.zeros(1000), torch.zeros(5)):
        for u, other in ((to_unified(a), None), (in_place(source := a.clone()), source.numpy())):
            array = u.numpy() if other is None else other
            u.add_(torch.ones(len(a)).to(GPU))
            unified.synchronize(array[2:4])
            assert array.tolist() == [1.0] * len(a)


def test_the_cpu_reads_beside_the_gpu(gpu):
    """A table that is read only is waited for by nobody."""
    u, g = to_unified(torch.arange(12.0).view(3, 4), PROPAGATING), torch.ones(3, 4).to(GPU)
    out = u + g
    u.set_propagatedToCUDA(False)
    waited = gpu.syncs if FAKE else 0
    assert u.tolist()[0][1] == 1.0
    assert (u + 1)[0, 1].item() == 2.0
    assert repr(u)
    assert not FAKE or gpu.syncs == waited
    assert torch.equal(plain(out), plain(u) + 1)


def test_streams_wait_for_each_other_on_the_device(gpu):
    a = torch.arange(12.0).view(3, 4)
    u, g = to_unified(a, PROPAGATING), torch.ones(3, 4).to(GPU)
    if not FAKE:
        torch.cuda.synchronize()
    streams = [gpu.new_stream(0) for _ in range(2)]
    gpu.fence(gpu.stream(0)).synchronize()  # g is there
    waited = gpu.syncs if FAKE else 0
    outs = []
    for turn in range(4):
        with gpu.on_stream(streams[turn % 2]):
            u.add_(g)
            outs.append(u * g)
    assert not FAKE or gpu.syncs == waited
    for stream in streams:
        gpu.fence(stream).synchronize()
    assert [torch.equal(plain(out), a + turn + 1) for turn, out in enumerate(outs)] == [True] * 4
    assert torch.equal(plain(u), a + 4)


def test_a_stream_reads_what_another_wrote(gpu):
    a = torch.arange(12.0).view(3, 4)
    u, g = to_unified(a, PROPAGATING), torch.ones(3, 4).to(GPU)
    gpu.fence(gpu.stream(0)).synchronize()  # g is there
    first, second = gpu.new_stream(0), gpu.new_stream(0)
    with gpu.on_stream(first):
        for _ in range(6):
            u.add_(g)
    with gpu.on_stream(second):
        assert torch.equal(plain(u * g), a + 6)


def test_memory_is_handed_out_again_when_the_gpu_is_done():
    outs, g = [], torch.ones(1000).to(GPU)
    for i in range(20):
        u = to_unified(torch.full((1000,), float(i)), PROPAGATING)
        outs.append(u + g)
        del u
    assert [out.cpu().unique().tolist() for out in outs] == [[i + 1.0] for i in range(20)]


def test_adopted_memory_lives_until_the_gpu_is_done():
    outs, g = [], torch.ones(1000).to(GPU)
    for i in range(20):
        array = np.full(1000, i, np.float32)
        outs.append(in_place(array, propagatedToCUDA=True) + g)
        del array
    assert [out.cpu().unique().tolist() for out in outs] == [[i + 1.0] for i in range(20)]


def test_two_names_of_overlapping_memory_wait_for_both():
    array = np.zeros(100, np.float32)
    whole, part = in_place(array), in_place(array[10:])
    whole.add_(torch.ones(100).to(GPU))
    assert part.tolist() == [1.0] * 90
    part.add_(torch.ones(90).to(GPU))
    assert whole.tolist() == [1.0] * 10 + [2.0] * 90


def test_gradients_that_the_gpu_has_changed_are_added_to():
    """autograd adds by the CPU, seen by nobody: to what a kernel was to write before."""
    p = torch.nn.Parameter(to_unified(torch.ones(5), PROPAGATING))
    reference = torch.nn.Parameter(torch.ones(5))
    g = torch.full((5,), 3.0)
    for x, factor in ((p, g.to(GPU)), (reference, g)):
        (x * factor).sum().backward()
        x.grad.mul_(factor)
        x.grad.zero_()
        x.grad.add_(1)
        if x is p:
            p.set_propagatedToCUDA(False)
        (x * g).sum().backward()
    assert torch.equal(plain(p.grad), reference.grad)


def test_backward_that_comes_later_reads_what_it_saved():
    a = torch.arange(5.0)
    u, g = to_unified(a, PROPAGATING), torch.ones(5).to(GPU).requires_grad_()
    loss = (u * g).sum()
    unified.synchronize(u)  # everything so far is forgotten, but backward will come
    loss.backward()
    del loss
    u.set_propagatedToCUDA(False)
    u.zero_()
    assert torch.equal(plain(g.grad), a)


def test_functions_that_write_to_operands_without_saying_so():
    mean, var = (to_unified(x, PROPAGATING) for x in (torch.zeros(3), torch.ones(3)))
    x = torch.arange(12.0).view(4, 3)
    functional.batch_norm(x.to(GPU), mean, var, training=True, momentum=0.5)
    expected = torch.zeros(3), torch.ones(3)
    functional.batch_norm(x, *expected, training=True, momentum=0.5)
    torch.testing.assert_close(torch.tensor(mean.tolist()), expected[0])
    torch.testing.assert_close(torch.tensor(var.tolist()), expected[1])


def test_a_result_of_the_gpu_has_memory_of_its_own():
    u = to_unified(torch.zeros(5), PROPAGATING)
    for view in (u, u[1:]):
        out = torch.atleast_2d(view)
        assert out.device.type == GPU
        out += 1
        assert out.cpu().unique().tolist() == [1.0]
    assert u.tolist() == [0.0] * 5


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}])
def test_training_with_optimizers_on_both_sides(options):
    """The table is hinted or not, the step is of the GPU or of the CPU; nobody synchronizes."""
    for device in (UnifiedDevice(), PROPAGATING):
        table = torch.nn.Parameter(to_unified(torch.arange(20.0).view(5, 4), device))
        reference = torch.nn.Parameter(torch.arange(20.0).view(5, 4))
        index = torch.tensor([0, 2, 2, 4])
        for parameter, ids in ((table, index.to(GPU)), (reference, index)):
            steps = torch.optim.SGD([parameter], lr=0.125, **options)
            for step in range(4):
                steps.zero_grad(set_to_none=step % 2 == 0)
                (parameter[ids] - 1).pow(2).sum().backward()
                steps.step()
        torch.testing.assert_close(plain(table), reference.detach())


class Program:
    """Operations on unified tensors, each done on plain tensors too. Numbers are small integers: exact everywhere."""

    def __init__(self, gpu: Any):
        self.gpu = gpu
        self.streams = [gpu.new_stream(0) for _ in range(2)]
        self.stream = self.streams[0]
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []  # unified, and plain
        self.results: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.step = 0
        self.adopt(0, False)

    def run(self, name: str, which: int, on_gpu: bool) -> None:
        self.step += 1
        with self.gpu.on_stream(self.stream):
            getattr(self, name)(which % len(self.pairs), on_gpu)

    def adopt(self, at: int, on_gpu: bool) -> None:
        start = torch.arange(18.0).view(6, 3) + self.step
        self.pairs.append((in_place(start.clone()) if on_gpu else to_unified(start), start))

    def _pair(self, at: int, on_gpu: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        u, x = self.pairs[at]
        y = torch.full(x.shape, float(self.step % 3 + 1))
        return u, x, y.to(GPU) if on_gpu else y, y

    def add(self, at: int, on_gpu: bool) -> None:
        u, x, other, y = self._pair(at, on_gpu)
        u.add_(other)
        x.add_(y)

    def multiply(self, at: int, on_gpu: bool) -> None:
        u, x, other, y = self._pair(at, on_gpu)
        for a, b in ((u, other), (x, y)):
            a[:2].mul_(b[:2])
            a.clamp_(0, 50)

    def assign(self, at: int, on_gpu: bool) -> None:
        u, x, other, y = self._pair(at, on_gpu)
        u[1:] = other[1:]
        x[1:] = y[1:]

    def copy(self, at: int, on_gpu: bool) -> None:
        u, x, other, y = self._pair(at, on_gpu)
        u.copy_(other)
        x.copy_(y)

    def read(self, at: int, on_gpu: bool) -> None:
        u, x = self.pairs[at]
        assert u.tolist() == x.tolist()

    def give_away(self, at: int, on_gpu: bool) -> None:
        u, x = self.pairs[at]
        u.numpy()[0] = self.step
        x[0] = self.step

    def gather(self, at: int, on_gpu: bool) -> None:
        u, x = self.pairs[at]
        index = torch.tensor([len(x) - 1, 0])
        self.results.append((u[index.to(GPU) if on_gpu else index], x[index]))

    def compute(self, at: int, on_gpu: bool) -> None:
        u, x, other, y = self._pair(at, on_gpu)
        self.results.append((u * other, x * y))

    def view(self, at: int, on_gpu: bool) -> None:
        u, x = self.pairs[at]
        self.pairs.append((u[len(x) // 3 :], x[len(x) // 3 :]))

    def free(self, at: int, on_gpu: bool) -> None:
        if len(self.pairs) > 1:
            del self.pairs[at]

    def hint(self, at: int, on_gpu: bool) -> None:
        self.pairs[at][0].set_propagatedToCUDA(on_gpu)

    def switch_stream(self, at: int, on_gpu: bool) -> None:
        self.check_results()  # these are tensors of the GPU: their order is the user's
        self.stream = self.streams[on_gpu]

    def check_results(self) -> None:
        for found, expected in self.results:
            assert torch.equal(plain(found), expected)
        self.results.clear()

    def check(self) -> None:
        with self.gpu.on_stream(self.stream):
            self.check_results()
            for found, expected in self.pairs:
                assert found.tolist() == expected.tolist()


OPERATIONS = [name for name in vars(Program) if not name.startswith(("_", "check", "run"))]
STEPS = st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.booleans())


@settings(
    max_examples=40 if FAKE else 20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(STEPS, min_size=1, max_size=20), st.integers(0, 1 << 20))
def test_random_programs_equal_those_of_the_cpu(gpu, steps, seed):
    """Reads, writes, views and frees of both sides, on two streams, as late as possible or in any order."""
    if FAKE:
        gpu.streams.schedule = schedule_of(f"seed:{seed}" if seed % 3 else "latest")
    program = Program(gpu)
    for step in steps:
        program.run(*step)
    program.check()
