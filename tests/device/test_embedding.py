"""`embed train --device`: the table of the CPU, as far as rounding goes, with partitions in the memory of the GPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import device_under_test
import numpy as np
import pytest
import torch
from device_under_test import FAKE
from device_under_test import NAME as GPU
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from embed_support import buckets_of, fit, knowledge_graph, random_triples, table_of
from fused_reference import autograd
from outcrop import _core
from outcrop.api.embed import embed_eval, embed_train
from outcrop.config import DeviceConfig, EmbedConfig, SwapConfig
from outcrop.device.budget import DeviceBudget
from outcrop.device.gpu import KINDS
from outcrop.embed import fused
from outcrop.embed.gpu import GpuStepper, numbers_of, stepped
from outcrop.embed.step import Relations, Stepper, stride
from outcrop.errors import BudgetError
from outcrop.runtime.runtime import Runtime

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*name entities or relations that:outcrop.errors.OutcropWarning"
)
CONFIG = EmbedConfig(dim=8, epochs=1, negatives=12, batch=50, chunk=20, learning_rate=0.1)
TO = DeviceConfig(GPU)


@pytest.fixture(scope="module")
def kg(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kg")
    with Runtime() as runtime:
        triples = random_triples(90, 3, 400)
        return knowledge_graph(
            folder, runtime, train=triples[:300], valid=triples[300:350], test=triples[350:]
        )


def trained(kg, tmp_path, name, config, to, **options):
    run = tmp_path / name
    with Runtime() as runtime:
        buckets = buckets_of(kg, run, runtime, options.pop("partitions", 6), slices=options.pop("slices", 1))
        made = fit(buckets, run, config, runtime, device=to, **options)
        return made, *table_of(run, runtime)


@pytest.fixture(scope="module")
def on_cpu(kg, tmp_path_factory):
    """Trains on the CPU, once for each configuration: schedules change nothing there."""
    found = {}

    def train(config, **options):
        key = config, *sorted(options.items())
        if key not in found:
            folder = tmp_path_factory.mktemp("cpu")
            made, *tables = trained(kg, folder, "run", config, DeviceConfig(), **options)
            found[key] = SimpleNamespace(records=made.records), *tables  # threads end with the rest
        return found[key]

    return train


def alike(ours, theirs):
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5)
    for a, b in zip(ours[0].records, theirs[0].records, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-4)


@pytest.mark.no_kernels
@pytest.mark.parametrize(
    ("model", "loss"),
    [
        ("dot", "softmax"),
        ("distmult", "logistic"),
        ("complex", "margin"),
        ("transe-l1", "softmax"),
        ("transe-l2", "margin"),
        ("rotate", "softmax"),
    ],
)
def test_every_model_learns_what_it_learns_on_the_cpu(kg, tmp_path, model, loss, gpu, on_cpu):
    config = replace(CONFIG, model=model, loss=loss)
    alike(trained(kg, tmp_path, "gpu", config, TO), on_cpu(config))


@pytest.mark.no_kernels
@pytest.mark.parametrize(
    ("optimizer", "order"), [("adagrad", "best"), ("sgd", "best"), ("adam", "best"), ("adagrad", "slices")]
)
@pytest.mark.parametrize("resident", [True, False])
def test_swapping_and_optimizers(kg, tmp_path, optimizer, order, resident, gpu, on_cpu):
    options = {"optimizer": optimizer, "order": order, "sweeps": 2}
    config = replace(CONFIG, model="complex", reciprocal=True, n3=0.01, **options)
    ours = trained(kg, tmp_path, "gpu", config, TO, slices=3, resident=resident)
    alike(ours, on_cpu(config, slices=3, resident=resident))
    assert ours[0].result.resident == resident
    assert bool(sum(bool(s.evicted) for s in ours[0].buffer.swaps)) != resident


@pytest.fixture
def fused_calls(monkeypatch):
    """Kernels need CUDA: here what they equal (test_fused.py) stands for them. Queries and queries of a chunk of each
    call."""
    calls = []

    def softmax(*inputs, chunk, most):
        calls.append((len(inputs[0]), chunk))
        with _disable_current_modes():
            loss, *gradients = autograd(tuple(x.cpu() for x in inputs), chunk)
            return loss.to(GPU), *(x.float().to(GPU) for x in gradients)

    monkeypatch.setattr(fused, "softmax", softmax)
    monkeypatch.setattr(fused, "usable", lambda device: True)
    return calls


@pytest.mark.no_kernels
@pytest.mark.parametrize("model", ["dot", "distmult", "complex"])
def test_the_fused_loss_takes_the_place_of_scores(kg, tmp_path, model, gpu, fused_calls, on_cpu):
    """One call makes what all chunks of a batch need: batches of 50 edges in chunks of 20."""
    config = replace(CONFIG, model=model)
    reference = on_cpu(config)
    assert not fused_calls
    alike(trained(kg, tmp_path, "gpu", config, TO), reference)
    assert {chunk for _, chunk in fused_calls} == {40}
    assert sum(queries for queries, _ in fused_calls) == 2 * 300
    assert any(queries > chunk for queries, chunk in fused_calls)
    fused_calls.clear()
    trained(kg, tmp_path, "margin", replace(config, loss="margin"), TO)
    assert not fused_calls


class Operators(TorchDispatchMode):
    """Notes the operators of torch, and those for which the host waits."""

    def __init__(self):
        super().__init__()
        self.called, self.waited = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name, devices = str(func), {x.device.type for x in tree_leaves(args) if isinstance(x, torch.Tensor)}
        devices |= {torch.device(kwargs["device"]).type} if kwargs.get("device") else set()
        at_once = kwargs.get("non_blocking", False) or any(x is True for x in args[2:])
        counts = ("_local_scalar_dense", "unique", "nonzero")
        if GPU in devices:  # the fake GPU computes with others
            if any(word in name for word in counts) or ("copy" in name and len(devices) > 1 and not at_once):
                self.waited.append(name)
            if not func.is_view:
                self.called.append(name)
        return func(*args, **kwargs)


def steppers(config, count, nodes=30):
    """A stepper on the GPU, one on the CPU, and a table and batches of ``count`` edges for each."""
    random = np.random.default_rng(3)
    gpu, device = next(iter(KINDS.values()))(), torch.device(GPU, 0)
    table = random.random((nodes, stride(config, config.dim)), np.float32)
    relations = random.random((5, stride(config, config.dim)), np.float32)
    chunks = -(-count // config.chunk)
    batches = [
        (
            random.integers(0, nodes, count), random.integers(0, 5, count), random.integers(0, nodes, count),
            [random.integers(0, nodes, config.negatives) for _ in range(chunks)], step,
        )
        for step in (1, 2, 3)
    ]  # fmt: skip

    def made(runtime):
        there = GpuStepper(
            config, Relations(relations.copy(), 5, False), runtime, gpu, device, DeviceBudget(gpu, device, 0)
        )
        there.begin()
        return there, Stepper(config, Relations(relations.copy(), 5, False), runtime), table, batches

    return made


@pytest.mark.no_kernels
@pytest.mark.parametrize("model", ["complex", "transe-l2"])
def test_the_host_waits_for_the_loss_of_the_batch_before_alone(model, gpu, fused_calls):
    """Row numbers go there in one copy, the loss comes back in one; what a batch launches does not grow with chunks."""
    operators = {}
    for chunk in (35, 20, 7) if model == "complex" else (20,):
        config = replace(CONFIG, model=model, chunk=chunk, batch=40, optimizer="adam")
        with Runtime() as runtime:
            ours, theirs, table, batches = steppers(config, 35)(runtime)
            rows = torch.from_numpy(table).to(GPU)
            told, losses = [], []
            for source, relation, target, negatives, step in batches:
                with Operators() as seen:
                    told.append(ours.start(rows, source, relation, target, negatives, step))
                assert seen.waited == []
                operators.setdefault(len(seen.called), []).append(chunk)
                if len(told) > ours.ahead:
                    losses.append(told.pop(0)())
            losses += [tell() for tell in told]
            expected = [theirs.run(table, *batch) for batch in batches]
            ours.sync_relations()
            assert losses == pytest.approx(expected, rel=1e-5)
            np.testing.assert_allclose(rows.cpu().numpy(), table, rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(ours.relations.rows, theirs.relations.rows, rtol=1e-3, atol=1e-5)
    assert len(operators) == 1, operators
    assert len(fused_calls) == (9 if model == "complex" else 0)


@given(ids=st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_ids_are_numbered_without_counting_them(ids):
    expected = torch.unique(torch.tensor(ids), return_inverse=True)[1]
    assert torch.equal(numbers_of(torch.tensor(ids)), expected)


@pytest.mark.no_kernels
@pytest.mark.parametrize("busy_looks", [0, 3])
def test_a_swap_waits_for_what_the_gpu_was_given(kg, tmp_path, busy_looks, gpu, monkeypatch, on_cpu):
    """While the GPU is busy nothing is fetched from it: looking does not wait, ending a swap does."""
    looks = []

    def query(self):
        looks.append(1)
        if len(looks) % (busy_looks + 1):
            return False
        self._fence.synchronize()  # what is said is true
        return True

    monkeypatch.setattr(device_under_test.Fence, "query", query)
    config = replace(CONFIG, model="distmult")
    alike(
        trained(kg, tmp_path, "gpu", config, TO, resident=False),
        on_cpu(config, resident=False),
    )
    assert looks


@pytest.mark.parametrize("resident", [True, False])
def test_slabs_go_through_rings_to_the_last_bit(kg, tmp_path, resident, gpu):
    """As by the engine, without a slab of the host but the one that first rows are made in."""
    config = replace(CONFIG, model="complex", epochs=2, sweeps=2)
    found = []
    for io in ("engine", "gpu"):
        gpu.launched.clear()
        swaps = SwapConfig(io=io)
        with Runtime() as runtime:
            buckets = buckets_of(kg, tmp_path / io, runtime, 6, slices=3)
            made = fit(buckets, tmp_path / io, config, runtime, device=TO, resident=resident, swaps=swaps)
            assert ("io_submit" in gpu.launched) == (io == "gpu")
            by_tag = runtime.budget.by_tag
            if io == "gpu":
                assert by_tag["ring-staging"].peak_bytes > 0
                assert by_tag["partitions"].peak_bytes == made.table.slab_bytes
            found.append((*table_of(tmp_path / io, runtime), [r.loss for r in made.records]))
    if FAKE:
        for ours, theirs in zip(*found, strict=True):
            assert np.array_equal(ours, theirs)


@pytest.mark.no_kernels
def test_training_goes_on_where_it_stopped_on_either(kg, tmp_path, gpu):
    config = replace(CONFIG, model="complex", epochs=3)
    whole = trained(kg, tmp_path, "whole", config, TO)
    with Runtime() as runtime:
        buckets = buckets_of(kg, tmp_path / "parts", runtime, 6)
        for epochs, to in ((1, TO), (2, DeviceConfig()), (3, TO)):
            made = fit(buckets, tmp_path / "parts", replace(config, epochs=epochs), runtime, device=to)
        alike((made, *table_of(tmp_path / "parts", runtime)), whole)


@pytest.mark.no_kernels
def test_the_budget_of_the_device_holds(kg, tmp_path, gpu):
    run = tmp_path / "run"
    with Runtime() as runtime:
        buckets_of(kg, run, runtime, 6)
    options = {"dim": 8, "epochs": 1, "negatives": 12, "batch": 50, "chunk": 20, "device": GPU}
    report = embed_train(run, fresh=True, **options)
    assert report.resident
    assert set(report.peak_device_by_tag) == {"partitions", "embed-batch"}
    need = sum(report.peak_device_by_tag.values())
    less = embed_train(run, fresh=True, gpu_memory=need - 1, **options)
    assert not less.resident
    assert sum(less.peak_device_by_tag.values()) < need
    assert embed_eval(run).mrr > 0
    with pytest.raises(BudgetError, match="--gpu-memory"):
        embed_train(run, fresh=True, gpu_memory=1000, **options)
    gpu.total_bytes = 1000
    try:
        with pytest.raises(BudgetError, match="take a smaller batch"):
            embed_train(run, fresh=True, **options)
    finally:
        gpu.total_bytes = 0


@given(
    kind=st.sampled_from(["sgd", "adagrad", "adam"]),
    width=st.integers(1, 20),
    rows=st.integers(1, 12),
    count=st.integers(0, 30),
    step=st.integers(1, 50),
    seed=st.integers(0, 999),
)
def test_a_step_is_that_of_the_core(kind, width, rows, count, step, seed):
    random = np.random.default_rng(seed)
    options = _core.StepOptions()
    options.kind, options.rate, options.step = getattr(_core.StepKind, kind), 0.1, step
    stride = width + _core.state_width(options.kind, width) + 1
    table = random.random((rows, stride), np.float32)
    ids = random.integers(0, rows, count)
    gradients = random.standard_normal((count, width), np.float32)
    unique, place = np.unique(ids, return_inverse=True)
    total = np.zeros((len(unique), width), np.float32)
    np.add.at(total, place, gradients)
    expected = table.copy()
    expected[unique] = stepped(torch.from_numpy(table[unique]), torch.from_numpy(total), options).numpy()
    _core.step_rows(table, width, ids, gradients, options, _core.WorkerPool(1))
    np.testing.assert_allclose(table, expected, rtol=1e-5, atol=1e-6)
