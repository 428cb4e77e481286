"""outcrop.unified.gather on a GPU: launched and not waited for, and yet no bad id is lost."""

from __future__ import annotations

import pytest
import torch
from device_under_test import FAKE
from device_under_test import NAME as GPU

from outcrop import unified
from outcrop.unified.bad_ids import _WORDS
from outcrop.unified.gather import BUS_BLOCKS, gather

pytestmark = pytest.mark.one_stream


@pytest.fixture(autouse=True)
def looked_at():
    yield
    unified.check_ids()


@pytest.fixture
def table():
    return torch.arange(24).view(8, 3)


def test_many_calls_wait_for_nothing(table, gpu):
    """Each of the results is right, though more calls are under way than there are words, and no index is kept."""
    u = unified.to_unified(table)
    before, found = gpu.syncs if FAKE else 0, []
    for i in range(3 * _WORDS):
        index = torch.full((4,), i % 8).to(GPU, non_blocking=True)
        found.append(gather(u, index))
        del index
        if FAKE and i < _WORDS - 1:
            assert gpu.syncs == before
    if FAKE:
        assert gpu.syncs <= before + 2 * _WORDS + 1  # each word is waited for when it comes round again
    for i, rows in enumerate(found):
        assert torch.equal(rows.cpu(), table[[i % 8] * 4])


@pytest.mark.parametrize("bad", [8, -1, 1 << 40])
def test_a_bad_id_is_named_by_a_later_call_or_when_asked_for(table, gpu, bad):
    u = unified.to_unified(table)
    index = torch.tensor([1, bad, 2]).to(GPU)
    good = torch.tensor([0, 7]).to(GPU)
    message = rf"row {bad} asked for, the table has 8: of a gather some calls ago .*check_ids"
    rows = gather(u, index)
    with pytest.raises(IndexError, match=message):
        unified.check_ids()
    assert torch.equal(rows.cpu()[[0, 2]], table[[1, 2]])  # the others are there
    unified.check_ids()  # it was said once
    gather(u, index)
    with pytest.raises(IndexError, match=message):  # at the latest when its word comes round again
        again(lambda: gather(u, good))
    assert torch.equal(gather(u, good).cpu(), table[[0, 7]])


def test_a_table_in_the_host_takes_few_processors(table, gpu, monkeypatch):
    blocks, launch = [], gpu.launch
    monkeypatch.setattr(gpu, "launch", lambda *args: blocks.append(args[-1]) or launch(*args), raising=False)
    index = torch.tensor([3, 1]).to(GPU)
    for there in (unified.to_unified(table), table.to(GPU)):
        assert torch.equal(gather(there, index).cpu(), table[[3, 1]])
    assert blocks == [BUS_BLOCKS, 0]


def again(call):
    for _ in range(_WORDS + 1):
        call()
