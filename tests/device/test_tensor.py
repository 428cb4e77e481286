"""UnifiedTensor: the paper's tables 1 to 3 cell by cell, autograd, views, copies and pickles. Oracle: plain tensors."""

from __future__ import annotations

import copy
import io
import itertools
import pickle

import numpy as np
import pytest
import torch
from device_under_test import FAKE
from device_under_test import NAME as GPU
from torch.nn import functional

from outcrop import unified
from outcrop.errors import DeviceError
from outcrop.unified import UnifiedDevice, UnifiedMode, UnifiedTensor, in_place, to_unified

pytestmark = pytest.mark.one_stream
PROPAGATING = UnifiedDevice(True)


def kind(x: torch.Tensor) -> str:
    if isinstance(x, UnifiedTensor):
        return "unified, propagating" if x.propagatedToCUDA else "unified"
    return x.device.type


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().as_subclass(torch.Tensor)


def assert_computed(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The same bits where the CPU computes for the GPU; else to rounding: sums and exponentials are not those of CUDA.

    TF32 is off for products unless somebody turns it on.
    """
    if FAKE or not expected.is_floating_point():
        assert torch.equal(found, expected)
    else:
        torch.testing.assert_close(found, expected)


@pytest.fixture
def a(gpu):
    return torch.arange(12.0).view(3, 4)


# Table 1


def test_creation_by_copy_and_by_factory(a):
    with UnifiedMode():
        copied = a.to("unified")
        assert copied.is_unified
        assert copied.data_ptr() != a.data_ptr()
        assert torch.equal(plain(copied), a)
        assert torch.equal(plain(a.to(GPU).to("unified")), a)
        assert copied.to("unified") is copied
        assert copied.to("unified", torch.float64).dtype == torch.float64
        torch.manual_seed(0)
        made = [torch.ones(128, device="unified"), torch.rand(5, 7, device="unified", requires_grad=True)]
        torch.manual_seed(0)
        assert torch.equal(plain(made[1]), torch.rand(5, 7))
        assert made[1].is_leaf
        assert made[1].requires_grad
        assert torch.equal(plain(made[0]), torch.ones(128))
        for make in (
            lambda d: torch.arange(3, 9, 2, device=d),
            lambda d: torch.full((2, 3), 7, device=d),
            lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
            lambda d: torch.eye(3, dtype=torch.float16, device=d),
            lambda d: torch.zeros_like(a, device=d),
            lambda d: torch.linspace(0, 1, 5, device=d),
            lambda d: torch.zeros(0, 3, device=d),
        ):
            assert kind(make("unified")) == "unified"
            assert kind(make(PROPAGATING)) == "unified, propagating"
            assert torch.equal(plain(make("unified")), make("cpu"))
        assert torch.device("unified").type == "unified"
    assert kind(unified.empty(3, 4, dtype=torch.int32)) == "unified"


def test_outside_the_mode_torch_is_as_ever(a):
    with pytest.raises(RuntimeError, match="unified"):
        a.to("unified")
    assert kind(a.to(dtype=torch.float64)) == "cpu"


def test_to_other_devices_copies(a):
    u = to_unified(a)
    for moved, there in (
        (u.to(GPU), GPU),
        (u.cuda(), GPU),
        (u.cpu(), "cpu"),
        (u.to("cpu"), "cpu"),
        (u.to(a), "cpu"),
    ):
        assert kind(moved) == there
        assert torch.equal(plain(moved), a)
        moved.zero_()
    assert torch.equal(plain(u), a)


# Table 2


def test_the_hint_is_switched_without_moving_anything(a):
    u = to_unified(a)
    before = u.data_ptr()
    assert kind(u + 1) == "unified"
    u.set_propagatedToCUDA(True)
    assert kind(u + 1) == GPU
    assert u.data_ptr() == before
    assert kind(to_unified(a, UnifiedDevice(propagatedToCUDA=True))) == "unified, propagating"


def test_advice_goes_to_managed_memory_only(a, gpu):
    gpu.advices.clear()
    u = to_unified(a, UnifiedDevice(advise="SetPreferredLocation", adviseDevice="cpu"))
    assert gpu.advices == [("SetPreferredLocation", "cpu")]
    assert u.memAdvise("SetAccessedBy", GPU) == 0
    assert u[1:].memAdvise("SetReadMostly") == 0
    assert gpu.advices[1:] == [("SetAccessedBy", GPU), ("SetReadMostly", "cpu")]
    with pytest.raises(ValueError, match="unknown; known: SetReadMostly"):
        u.memAdvise("SetFast")
    with pytest.raises(RuntimeError, match="managed"):
        to_unified(a).memAdvise("SetReadMostly")
    assert torch.equal(plain(u), a)


# Table 3

OPERANDS = {
    "up": lambda a: to_unified(a, PROPAGATING),
    "un": to_unified,
    "c": lambda a: a.clone(),
    "g": lambda a: a.to(GPU),
    "s": lambda a: torch.tensor(2.0),
}
TABLE_3 = [
    # a CPU tensor that is no scalar
    ("up c", "gpu", "unified"),
    ("up up c", "gpu", "unified"),
    ("up c g", "gpu", "unified"),
    ("un c", "cpu", "unified"),
    ("un c g", "cpu", "unified"),
    ("up un c", "gpu", "unified"),
    # a GPU tensor
    ("up g", "gpu", GPU),
    ("up g s", "gpu", GPU),
    ("up up g", "gpu", GPU),
    ("un g", "gpu", "unified, propagating"),
    ("up un g", "gpu", "unified, propagating"),
    ("un g s", "gpu", "unified, propagating"),
    # CPU scalars, or unified tensors alone
    ("up", "gpu", GPU),
    ("up s", "gpu", GPU),
    ("up up", "gpu", GPU),
    ("un", "cpu", "unified"),
    ("un s", "cpu", "unified"),
    ("un un", "cpu", "unified"),
    ("up un", "gpu", "unified"),
    ("up un s", "gpu", "unified"),
]


@pytest.mark.parametrize(("names", "computed", "output"), TABLE_3)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_table_3(names, computed, output, requires_grad, a, gpu):
    """One operator, the operands in every order, a scalar last."""
    many, scalars = [n for n in names.split() if n != "s"], [n for n in names.split() if n == "s"]
    op = (
        {1: torch.exp, 2: torch.mul, 3: torch.lerp}[len(many) + len(scalars)] if scalars else torch.block_diag
    )
    for order in itertools.permutations(many):
        operands = [
            OPERANDS[name](a).requires_grad_(requires_grad and name != "s") for name in [*order, *scalars]
        ]
        ran = [] if gpu.ran is None else gpu.ran  # CUDA does not say
        ran.clear()
        out = op(*operands)
        assert kind(out) == output, order
        on_gpu = any("copy" not in op and "empty" not in op for op in ran)
        assert gpu.ran is None or on_gpu == (computed == "gpu"), (order, ran)
        references = [plain(x).requires_grad_(x.requires_grad) for x in operands]
        expected = op(*references)
        assert_computed(plain(out), expected.detach())
        if requires_grad:
            (out * out).sum().backward()
            (expected * expected).sum().backward()
            for x, reference in zip(operands, references, strict=True):
                if x.requires_grad:
                    assert x.grad is not None
                    assert x.grad.device == x.device
                    assert_computed(plain(x.grad), reference.grad)


def test_operators_of_all_shapes(a, gpu):
    weight = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    for device in (UnifiedDevice(), PROPAGATING):
        u = to_unified(a, device)
        for op in (
            lambda x: x.t() @ x,
            lambda x: torch.cat([x, x]),
            lambda x: torch.stack([x, x], 1),
            lambda x: x.max(dim=1).values,
            lambda x: x[x > 5],
            lambda x: torch.where(x > 5, x, -x),
            lambda x: 3 - x / 2,
            lambda x: x.to(torch.float64).sum(),
            lambda x: x.half(),
            lambda x: functional.linear(
                x, x, torch.ones(3) if isinstance(x, UnifiedTensor) and not x._propagated else None
            ),
            lambda x: functional.softmax(x, dim=-1),
            lambda x: torch.zeros_like(x),
            lambda x: x.new_zeros(3),
            lambda x: x.clone(),
            lambda x: x.contiguous(),
            lambda x: x.t().contiguous(),
            lambda x: x.t().reshape(-1),
            lambda x: functional.dropout(x, 0.5, training=False),
            lambda x: functional.pad(x, (1, 2)),
            lambda x: torch.einsum("ij,ij->i", x, x),
            lambda x: x.unique(),
            lambda x: x.sort(descending=True)[0],
        ):
            if op.__code__.co_consts and "ones" in op.__code__.co_names:
                continue
            assert_computed(plain(op(u)), op(a))
        assert torch.allclose(plain(u.t() @ weight), a.t() @ weight)
        assert u.tolist() == a.tolist()
        assert u[0, 1].item() == 1.0
        assert len(u) == 3
        assert u.numpy().shape == (3, 4)
        assert u.shape == a.shape
        assert bool(torch.equal(u, a)) is True
        assert "unified" in repr(u)
        assert "propagatedToCUDA" in f"{u}"


# Indexing


@pytest.mark.parametrize("device", [UnifiedDevice(), PROPAGATING])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_an_index_of_the_gpu_gathers_into_the_gpu(a, gpu, device, dtype):
    u = to_unified(a, device)
    index = torch.tensor([2, 0, -1, 2], dtype=dtype)
    gpu.launched.clear()
    out = u[index.to(GPU)]
    assert kind(out) == GPU
    assert gpu.launched
    assert torch.equal(plain(out), a[index])
    positive = index.clamp(min=0).to(GPU)
    for other in (
        u.index_select(0, positive),
        torch.index_select(u, 0, positive),
        functional.embedding(positive, u),
    ):
        assert kind(other) == GPU
        assert torch.equal(plain(other), a[index.clamp(min=0)])
    assert len(gpu.launched) == 4
    square = positive.view(2, 2)
    assert torch.equal(plain(u[square]), a[plain(square)])
    u[torch.tensor([0, 3], dtype=dtype).to(GPU)]
    with pytest.raises(IndexError, match="row 3 asked for, the table has 3"):
        unified.check_ids()


def test_an_index_of_the_cpu_follows_table_3(a):
    index = torch.tensor([2, 0])
    for device in (UnifiedDevice(), PROPAGATING):
        u = to_unified(a, device)
        assert kind(u[index]) == "unified"
        assert torch.equal(plain(u[index]), a[index])
        assert torch.equal(plain(u[:, index]), a[:, index])
        assert torch.equal(plain(u[[0, 2]]), a[[0, 2]])
        assert torch.equal(plain(u[torch.tensor([True, False, True])]), a[[0, 2]])
        assert torch.equal(plain(u[np.array([1, 1])]), a[[1, 1]])


DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_equals_indexing(dtype, gpu):
    """All widths from 1 to 2100 in odd steps, in tables that begin at any byte, with gaps, and from the middle."""
    random = np.random.default_rng(0)
    for width in range(1, 2101, 2 if dtype is torch.float32 else 262):
        rows, offset = int(random.integers(1, 8)), int(random.integers(0, 8))
        pool = torch.from_numpy(
            random.integers(0, 2, (rows * (width + 3) + offset + 1) * dtype.itemsize, dtype=np.uint8)
        )
        pool = in_place(pool.view(dtype))
        dense = pool[offset : offset + rows * width].view(rows, width)
        gaps = pool[: rows * (width + 3)].view(rows, width + 3)[:, 1 : width + 1]
        holes = pool[: rows * width].view(rows, width)[:, ::2]
        for table in (dense, gaps) if width % 10 != 1 else (dense, gaps, holes, gaps[1:]):
            index = torch.from_numpy(random.integers(0, len(table), 5 if len(table) else 0))
            out = table[index.to(GPU)]
            assert kind(out) == GPU
            assert out.dtype == dtype
            ours, theirs = (x.contiguous().view(torch.uint8) for x in (plain(out), plain(table)[index]))
            assert torch.equal(ours, theirs)
            del out, table
        del dense, gaps, holes, pool


def test_gather_of_nothing(a):
    u = to_unified(a)
    none = torch.empty(0, dtype=torch.int64).to(GPU)
    assert u[none].shape == (0, 4)
    assert u[:0][none].shape == (0, 4)
    assert to_unified(torch.empty(3, 0))[torch.tensor([1, 2]).to(GPU)].shape == (2, 0)
    with pytest.raises(IndexError):
        u[:0][torch.tensor([0]).to(GPU)]


def test_gather_of_pageable_memory_is_refused(a):
    with pytest.raises(ValueError, match="in_place"):
        unified.gather(a, torch.tensor([0]).to(GPU))


# Views and writing


def test_views_share_memory_and_hint(a):
    u = to_unified(a, PROPAGATING)
    for view in (
        u[1:, ::2],
        u.view(4, 3),
        u.t(),
        u.T,
        u[0],
        u[..., None],
        u.detach(),
        u.data,
        u.unbind()[1],
        u.split(2)[1],
        u.flatten(),
        u.unsqueeze(0),
        u.expand(2, 3, 4),
        u.diagonal(),
        next(iter(u)),
    ):
        assert kind(view) == "unified, propagating"
        assert view.untyped_storage().data_ptr() == u.untyped_storage().data_ptr()
    u[1:][0, 0] = 50.0
    assert u[1, 0].item() == 50.0


def test_writing_in_place(a):
    for device in (UnifiedDevice(), PROPAGATING):
        u, reference = to_unified(a, device), a.clone()
        address, version = u.data_ptr(), u._version
        for write in (
            lambda x, y: x.add_(1),
            lambda x, y: x.mul_(y),
            lambda x, y: x.__setitem__((0, slice(None)), 5.0),
            lambda x, y: x.__setitem__(slice(1, 3), y[:2]),
            lambda x, y: x.copy_(y * 2),
            lambda x, y: torch.add(x, y, out=x),
            lambda x, y: x.index_add_(0, torch.tensor([0, 2]).to(y.device), y[:2]),
            lambda x, y: x.__iadd__(y),
            lambda x, y: torch._foreach_add_([x], [y]),
            lambda x, y: functional.relu(x, inplace=True),
            lambda x, y: torch.nn.init.constant_(x, 3.0),
        ):
            for other in (a, a.to(GPU), to_unified(a)):
                write(u, other)
                write(reference, a)
                assert torch.equal(plain(u), reference)
        assert u.data_ptr() == address
        assert u._version > version
        assert u.add_(1) is u
        assert u.is_unified


def test_writing_to_other_tensors(a):
    for device in (UnifiedDevice(), PROPAGATING):
        u = to_unified(a, device)
        for x in (a.clone(), a.to(GPU)):
            before = x.device
            assert x.add_(u) is x
            x[0] = u[1]
            assert x.device == before
            expected = a + a
            expected[0] = a[1]
            assert torch.equal(plain(x), expected)


# autograd


def test_gradients_reach_every_operand(a):
    """A leaf in unified memory, gathered by the GPU, through weights of the GPU."""
    for device in (UnifiedDevice(), PROPAGATING):
        table = to_unified(
            torch.randn(10, 4, generator=torch.Generator().manual_seed(1)), device
        ).requires_grad_()
        weight = torch.randn(4, 5, generator=torch.Generator().manual_seed(2)).to(GPU).requires_grad_()
        index = torch.tensor([1, 1, 3])
        loss = torch.relu(table[index.to(GPU)] @ weight).pow(2).sum()
        assert kind(loss) == GPU
        loss.backward()
        table_, weight_ = plain(table).requires_grad_(), plain(weight).requires_grad_()
        torch.relu(table_[index] @ weight_).pow(2).sum().backward()
        assert_computed(plain(table.grad), table_.grad)
        assert_computed(plain(weight.grad), weight_.grad)
        assert table.grad.is_cpu
        assert weight.grad.device.type == GPU


def test_the_copy_is_part_of_the_graph(a):
    source = a.clone().requires_grad_()
    (to_unified(source) * to_unified(source, PROPAGATING)).sum().backward()
    assert torch.equal(source.grad, 2 * a)
    with UnifiedMode():
        source = a.to(GPU).requires_grad_()
        (source.to("unified") * 3).sum().backward()
    assert torch.equal(plain(source.grad), torch.full_like(a, 3.0))


def test_writing_where_autograd_looks_is_as_ever(a):
    u = to_unified(a).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        u.add_(1)
    v = u * 1
    v.mul_(a.to(GPU))
    v.sum().backward()
    assert torch.equal(plain(u.grad), a)


OPTIMIZERS = [
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.Adam, {}),
    (torch.optim.AdamW, {}),
    (torch.optim.Adagrad, {}),
]


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
@pytest.mark.parametrize("device", [UnifiedDevice(), PROPAGATING])
def test_parameters_and_optimizers(a, optimizer, options, device):
    def train(parameter: torch.nn.Parameter, index: torch.Tensor) -> list[float]:
        steps, losses = optimizer([parameter], lr=0.1, **options), []
        for _ in range(5):
            steps.zero_grad()
            loss = (parameter[index] - 1).pow(2).sum()
            loss.backward()
            steps.step()
            losses.append(loss.item())
        return losses

    index = torch.tensor([0, 2, 2])
    parameter = torch.nn.Parameter(to_unified(a, device))
    assert isinstance(parameter, torch.nn.Parameter)
    assert kind(parameter) == kind(to_unified(a, device))
    found, expected = train(parameter, index.to(GPU)), train(torch.nn.Parameter(a.clone()), index)
    assert_computed(torch.tensor(found), torch.tensor(expected))


def test_modules(a):
    torch.manual_seed(0)
    reference = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    with UnifiedMode():
        there = copy.deepcopy(reference).to("unified")
        made = torch.nn.Linear(4, 3, device="unified")
    for module in (there, made, to_unified(copy.deepcopy(reference))):
        assert all(kind(x) == "unified" for x in module.state_dict(keep_vars=True).values())
        assert all(isinstance(x, torch.nn.Parameter) for x in module.parameters())
    assert torch.allclose(plain(there(a)), reference(a).detach())
    assert not torch.__future__.get_overwrite_module_params_on_conversion()


# Copies, files, threads of others


@pytest.mark.parametrize("device", [UnifiedDevice(), PROPAGATING])
def test_copies_and_pickles(a, device):
    u = to_unified(a, device)[1:].requires_grad_()
    (u * 2).sum().backward()
    stream = io.BytesIO()
    torch.save({"u": u}, stream)
    copies = [copy.deepcopy(u), pickle.loads(pickle.dumps(u)), copy.copy(u)]
    for weights_only in (True, False):
        stream.seek(0)
        copies.append(torch.load(stream, weights_only=weights_only)["u"])
    for other in copies:
        assert kind(other) == kind(u)
        assert other.requires_grad
        assert torch.equal(plain(other), a[1:])
        rows = other[torch.tensor([0]).to(GPU)]
        assert kind(rows) == GPU
        assert torch.equal(rows.detach().cpu(), a[1:2])
    assert torch.equal(plain(copies[0].grad), plain(u.grad))
    assert copies[0].data_ptr() != u.data_ptr()
    assert len(pickle.dumps(u)) < 1000


def test_strides_are_kept(a):
    assert to_unified(a.t()).stride() == (1, 4)
    assert to_unified(a[0].expand(5, 4)).shape == (5, 4)
    assert torch.equal(plain(to_unified(a[:, ::2])), a[:, ::2])


def test_data_loaders(a):
    from torch.utils.data import DataLoader

    for workers in (0, 1):
        batches = list(DataLoader(to_unified(a), batch_size=2, num_workers=workers))
        assert torch.equal(torch.cat([plain(b) for b in batches]), a)


def test_compiled(a):
    compiled = torch.compile(lambda x: (x * 2 + 1).sum(), backend="eager")
    assert float(compiled(to_unified(a))) == float((a * 2 + 1).sum())


@pytest.mark.no_kernels
def test_enable(a):
    import subprocess
    import sys

    code = """
import torch
from outcrop import unified
unified.enable()
x = torch.ones(2, 2).to("unified")
assert x.is_unified and not torch.ones(2).is_unified
for call in ("set_propagatedToCUDA", "memAdvise"):
    try:
        getattr(torch.ones(2), call)(True)
    except RuntimeError as error:
        assert "unified tensors" in str(error)
    else:
        raise SystemExit(1)
x.set_propagatedToCUDA(True)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_refused(a):
    with pytest.raises(ValueError, match="read-only"):
        in_place(np.broadcast_to(np.ones(3), (2, 3)))
    with pytest.raises(ValueError, match="CPU"):
        in_place(a.to(GPU))
    with pytest.raises(DeviceError, match="managed"):
        in_place(a).memAdvise("SetReadMostly")
