"""`embed train --device`: the table of the CPU, as far as rounding goes, with partitions in the memory of the GPU."""

from __future__ import annotations

from dataclasses import replace

import device_under_test
import numpy as np
import pytest
import torch
from device_under_test import FAKE
from device_under_test import NAME as GPU
from hypothesis import given
from hypothesis import strategies as st

from embed_support import buckets_of, fit, knowledge_graph, random_triples, table_of
from outcrop import _core
from outcrop.api.embed import embed_eval, embed_train
from outcrop.config import DeviceConfig, EmbedConfig, IoConfig
from outcrop.embed import fused
from outcrop.embed.on_gpu import stepped
from outcrop.errors import BudgetError
from outcrop.runtime import Runtime

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*name entities or relations that:outcrop.errors.OutcropWarning"
)
CONFIG = EmbedConfig(dim=8, epochs=1, negatives=12, batch=50, chunk=20, rate=0.1)
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
        made = fit(buckets, run, config, runtime, to=to, **options)
        return made, *table_of(run, runtime)


def alike(ours, theirs):
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5)
    for a, b in zip(ours[0].records, theirs[0].records, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-4)


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
def test_every_model_learns_what_it_learns_on_the_cpu(kg, tmp_path, model, loss, gpu):
    config = replace(CONFIG, model=model, loss=loss)
    alike(trained(kg, tmp_path, "gpu", config, TO), trained(kg, tmp_path, "cpu", config, DeviceConfig()))


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd", "adam"])
@pytest.mark.parametrize("resident", [True, False])
def test_swapping_and_optimizers(kg, tmp_path, optimizer, resident, gpu):
    config = replace(CONFIG, model="complex", optimizer=optimizer, reciprocal=True, n3=0.01, sweeps=2)
    ours = trained(kg, tmp_path, "gpu", config, TO, slices=3, resident=resident)
    alike(ours, trained(kg, tmp_path, "cpu", config, DeviceConfig(), slices=3, resident=resident))
    assert ours[0].result.resident == resident
    assert bool(sum(bool(s.evicted) for s in ours[0].buffer.swaps)) != resident


@pytest.mark.parametrize("model", ["dot", "distmult", "complex"])
def test_the_fused_loss_takes_the_place_of_scores(kg, tmp_path, model, gpu, monkeypatch):
    """Kernels need CUDA: here the line of torch that they equal (test_fused.py) stands for them."""
    calls = []

    def softmax(queries, positive, candidates, wanted, ids):
        calls.append(len(queries))
        leaves = [x.cpu().requires_grad_() for x in (queries, positive, candidates)]
        left_out = wanted.cpu()[:, None] == ids.cpu()
        scores = (leaves[0] @ leaves[2].T).masked_fill(left_out, -torch.inf)
        logits, first = (
            torch.cat([leaves[1][:, None], scores], 1),
            torch.zeros(len(scores), dtype=torch.int64),
        )
        loss = torch.nn.functional.cross_entropy(logits, first, reduction="sum")
        return tuple(x.detach().to(GPU) for x in (loss, *torch.autograd.grad(loss, leaves)))

    config = replace(CONFIG, model=model)
    reference = trained(kg, tmp_path, "cpu", config, DeviceConfig())
    monkeypatch.setattr(fused, "softmax", softmax)
    monkeypatch.setattr(fused, "usable", lambda device: True)
    alike(trained(kg, tmp_path, "gpu", config, TO), reference)
    assert calls
    calls.clear()
    trained(kg, tmp_path, "margin", replace(config, loss="margin"), TO)
    assert not calls


@pytest.mark.parametrize("busy_looks", [0, 3])
def test_a_swap_waits_for_what_the_gpu_was_given(kg, tmp_path, busy_looks, gpu, monkeypatch):
    """While the GPU is busy nothing is fetched from it: looking does not wait, ending a swap does."""
    looks = []

    def query(self):
        looks.append(1)
        return len(looks) % (busy_looks + 1) == 0

    monkeypatch.setattr(device_under_test.Fence, "query", query)
    config = replace(CONFIG, model="distmult")
    alike(
        trained(kg, tmp_path, "gpu", config, TO, resident=False),
        trained(kg, tmp_path, "cpu", config, DeviceConfig(), resident=False),
    )
    assert looks


@pytest.mark.parametrize("resident", [True, False])
def test_slabs_go_through_rings_to_the_last_bit(kg, tmp_path, resident, gpu):
    """As by the engine, without a slab of the host but the one that first rows are made in."""
    config = replace(CONFIG, model="complex", epochs=2, sweeps=2)
    found = []
    for io in ("engine", "gpu"):
        gpu.launched.clear()
        with Runtime(io=IoConfig(initiator=io)) as runtime:
            buckets = buckets_of(kg, tmp_path / io, runtime, 6, slices=3)
            made = fit(buckets, tmp_path / io, config, runtime, to=TO, resident=resident)
            assert ("io_submit" in gpu.launched) == (io == "gpu")
            by_tag = runtime.budget.by_tag
            if io == "gpu":
                assert by_tag["ring-staging"].peak_bytes > 0
                assert by_tag["partitions"].peak_bytes == made.table.slab_bytes
            found.append((*table_of(tmp_path / io, runtime), [r.loss for r in made.records]))
    if FAKE:
        for ours, theirs in zip(*found, strict=True):
            assert np.array_equal(ours, theirs)


def test_training_goes_on_where_it_stopped_on_either(kg, tmp_path, gpu):
    config = replace(CONFIG, model="complex", epochs=3)
    whole = trained(kg, tmp_path, "whole", config, TO)
    with Runtime() as runtime:
        buckets = buckets_of(kg, tmp_path / "parts", runtime, 6)
        for epochs, to in ((1, TO), (2, DeviceConfig()), (3, TO)):
            made = fit(buckets, tmp_path / "parts", replace(config, epochs=epochs), runtime, to=to)
        alike((made, *table_of(tmp_path / "parts", runtime)), whole)


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
