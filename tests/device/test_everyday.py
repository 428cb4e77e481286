"""What ordinary training code does with a tensor, done with a unified one."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from device_under_test import NAME as GPU
from torch.nn import functional

from outcrop.unified import UnifiedDevice, UnifiedTensor, to_unified

pytestmark = pytest.mark.one_stream
DEVICES = [UnifiedDevice(), UnifiedDevice(True)]


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().as_subclass(torch.Tensor)


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_are_formatted(device, gpu):
    u = to_unified(torch.arange(12.0).view(3, 4), device)
    assert f"{u.mean():.2f} {u[0, 1]:g}" == "5.50 1"
    with pytest.raises(TypeError):
        f"{u:.2f}"


@pytest.mark.parametrize("device", DEVICES)
def test_every_index_of_the_gpu_gives_a_tensor_of_the_gpu(device, gpu):
    """Masks, and indices beside others: docs/unified.md says the same of rows."""
    a = torch.arange(60.0).view(5, 4, 3)
    u, reference = to_unified(a, device).requires_grad_(), a.clone().requires_grad_()
    mask, ids = torch.tensor([True, False, True, True, False]), torch.tensor([4, 0, -1])
    for here, there in (
        (mask, mask.to(GPU)),
        ((ids, slice(1, 3)), (ids.to(GPU), slice(1, 3))),
        ((ids, torch.tensor([1, 1, 3])), (ids.to(GPU), torch.tensor([1, 1, 3]))),
        ((slice(None), ids.clamp(max=2)), (slice(None), ids.clamp(max=2).to(GPU))),
        ((Ellipsis, ids.clamp(max=2)), (Ellipsis, ids.clamp(max=2).to(GPU))),
    ):
        out = u[there]
        assert out.device.type == GPU
        assert torch.equal(plain(out), a[here])
        u.grad = reference.grad = None
        (out * 2).sum().backward()
        (reference[here] * 2).sum().backward()
        assert isinstance(u.grad, UnifiedTensor)
        assert torch.equal(plain(u.grad), reference.grad)


def test_embeddings_with_padding(gpu):
    """``padding_idx`` concerns gradients only: rows that are not learned are gathered as ever."""
    a = torch.arange(20.0).view(5, 4)
    ids = torch.tensor([0, 1, 1])
    u = to_unified(a)
    gpu.launched.clear()
    module = torch.nn.Embedding.from_pretrained(u, padding_idx=0)
    for rows in (functional.embedding(ids.to(GPU), u, padding_idx=0), module(ids.to(GPU))):
        assert rows.device.type == GPU
        assert torch.equal(rows.cpu(), a[ids])
    assert len(gpu.launched) == 2
    learned = to_unified(a).requires_grad_()
    functional.embedding(ids.to(GPU), learned, padding_idx=0).sum().backward()
    assert plain(learned.grad)[:, 0].tolist() == [0, 2, 0, 0, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_modules_come_back(device, gpu):
    """Elsewhere their parameters are of that device, and no unified tensors over memory that is none."""
    module = to_unified(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)), device)
    values = [plain(x) for x in module.state_dict().values()]
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(2, 4)).sum().backward()
    assert torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5) >= 0
    optimizer.zero_grad()
    for move in (
        lambda m: m.to(GPU),
        lambda m: m.cpu(),
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
    ):
        there = to_unified(copy.deepcopy(module), device)
        there.load_state_dict(module.state_dict())
        there = move(there)
        moved = list(there.state_dict(keep_vars=True).values())
        kinds = {(isinstance(x, UnifiedTensor), x.device.type) for x in moved}
        assert kinds in ({(False, GPU)}, {(False, "cpu")}, {(True, "cpu")})
        assert all(isinstance(x, torch.nn.Parameter) for x in there.parameters())
        assert [plain(x).shape for x in moved] == [x.shape for x in values]
    assert {type(x) for x in to_unified(torch.nn.Linear(2, 2)).cpu().parameters()} == {torch.nn.Parameter}
    assert {x.device.type for x in to_unified(torch.nn.Linear(2, 2)).to(GPU).parameters()} == {GPU}


@pytest.mark.parametrize("device", DEVICES)
def test_an_optimizer_goes_on_from_its_state(device, gpu):
    def train(x: torch.Tensor) -> torch.Tensor:
        parameter = torch.nn.Parameter(x)
        first, second = (torch.optim.Adam([parameter], lr=0.1) for _ in range(2))
        for optimizer in (first, second):
            for _ in range(2):
                optimizer.zero_grad()
                (parameter**2).sum().backward()
                optimizer.step()
            second.load_state_dict(first.state_dict())
        return plain(parameter)

    a = torch.arange(1.0, 7.0).view(2, 3)
    assert torch.allclose(train(to_unified(a, device)), train(a.clone()))
