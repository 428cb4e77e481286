"""Layers accumulated over parts of their sources, against torch_geometric's layers on the whole."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_support import a_conv, a_model
from outcrop.errors import ArgumentError
from outcrop.inference import layer_sums

MODELS = ("sage", "gcn", "gat", "transformer", "gin")


def in_parts(
    conv: torch.nn.Module, x: torch.Tensor, edges: np.ndarray, cuts: list[int], step: int
) -> torch.Tensor:
    """All nodes as targets; sources in ranges that end at ``cuts``; targets begin ``step`` at a time."""
    nodes = len(x)
    sums = layer_sums.layer_sums(conv, nodes, step)
    assert type(sums) is layer_sums.sums_of(conv)
    assert sums.targets_last or sums.targets_first
    row, col = edges[1], edges[0]
    loopless = row != col
    scale = torch.from_numpy(1 / np.sqrt(np.bincount(row[loopless], minlength=nodes) + 1)).float()
    if sums.drops_loops:
        row, col = row[loopless], col[loopless]
    for start in range(0, nodes, step) if sums.targets_first else ():
        sums.begin(start, x[start : start + step].contiguous())
    order = np.argsort(row, kind="stable")
    row, col = row[order], col[order]
    bounds = [0, *sorted(cuts), nodes]
    for low, high in pairwise(bounds):
        mine = (col >= low) & (col < high)
        targets, counts = np.unique(row[mine], return_counts=True)
        part = layer_sums.Part(
            torch.from_numpy(targets),
            torch.from_numpy(np.append(0, np.cumsum(counts)).astype(np.int32)),
            torch.from_numpy((col[mine] - low).astype(np.int32)),
        )
        sums.add(part, x[low:high].contiguous(), scale[low:high])
    out = []
    for start in range(0, nodes, step):
        own = slice(start, start + step)
        rows = x[own].contiguous() if sums.targets_last else None
        out.append(sums.finish(start, len(x[own]), rows, scale[own]).clone())
    return torch.cat(out)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("widths", [(6, 20), (20, 6)])
@torch.no_grad()
def test_equals_the_layer_on_the_whole(name: str, widths: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    nodes = 60
    edges = np.concatenate([rng.integers(0, 50, (2, 300)), np.tile(np.arange(5), (2, 1))], 1)
    x = torch.from_numpy(rng.standard_normal((nodes, widths[0])).astype(np.float32))
    conv = a_conv(name, *widths)
    want = conv(x, torch.from_numpy(edges))
    for cuts, step in (([], nodes), ([10, 11, 40], 7), (list(range(1, nodes)), 1)):
        torch.testing.assert_close(in_parts(conv, x, edges, cuts, step), want, rtol=1e-5, atol=1e-5)


@given(st.data())
@settings(max_examples=40)
@torch.no_grad()
def test_any_graph_in_any_parts(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 12))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    edges = np.array(data.draw(st.lists(pairs, max_size=40)), np.int64).reshape(-1, 2).T
    cuts = data.draw(st.lists(st.integers(0, nodes), max_size=4))
    conv = a_conv(data.draw(st.sampled_from(MODELS)), 4, 6)
    x = torch.from_numpy(np.random.default_rng(nodes).standard_normal((nodes, 4)).astype(np.float32))
    found = in_parts(conv, x, edges, cuts, data.draw(st.integers(1, nodes)))
    torch.testing.assert_close(found, conv(x, torch.from_numpy(edges)), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_attention_with_scores_that_overflow_alone() -> None:
    """exp(200) is infinite in float32: only differences to the largest score may be raised."""
    conv = a_model("gat", 4, 3, hidden=6).convs[0]
    conv.att_src.mul_(300)
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    edges = np.random.default_rng(0).integers(0, 30, (2, 200))
    found = in_parts(conv, x, edges, [3, 9, 20], 30)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, conv(x, torch.from_numpy(edges)), rtol=1e-4, atol=1e-4)


def test_other_layers_are_refused() -> None:
    with pytest.raises(ArgumentError, match="Linear is unknown"):
        layer_sums.layer_sums(torch.nn.Linear(2, 2), 1, 1)
