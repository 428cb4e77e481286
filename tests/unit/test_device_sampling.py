"""Batches drawn by the code of the GPU's kernels are those of the C++ sampler, bit for bit."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outcrop.device_sampling import sample_on
from outcrop.store.topology import Topology
from sampling_support import Csc, csc, draw, same

CPU = torch.device("cpu")


def in_memory(graph: Csc, dtype: type = np.uint32) -> Topology:
    indptr, indices = graph
    return Topology(len(indptr) - 1, len(indices), "memory", indptr, indices.astype(dtype))


@st.composite
def graphs(draw_from: st.DrawFn) -> Csc:
    """Isolated nodes, hubs with every node as a neighbour, edges that stand several times, and loops."""
    nodes = draw_from(st.integers(1, 120))
    random = np.random.default_rng(draw_from(st.integers(0, 2**32)))
    lengths = random.choice([0, 1, 2, 5, 11, nodes, 2 * nodes], nodes)
    return csc([np.sort(random.integers(0, nodes, length)).tolist() for length in lengths])


@settings(max_examples=120)
@given(
    graph=graphs(),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 4, 10, 31, 33, 50, 100]), min_size=1, max_size=3),
    kind=st.sampled_from(["neighbor", "neighbor", "replace", "labor", "shadow"]),
    batches=st.integers(1, 3),
    size=st.integers(0, 20),
    dtype=st.sampled_from([np.uint32, np.int64]),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 5),
)
def test_batches_are_those_of_the_core(graph, fanouts, kind, batches, size, dtype, seed, epoch):
    nodes = len(graph[0]) - 1
    random = np.random.default_rng(seed)
    seeds = [random.permutation(nodes)[:size] for _ in range(batches)]
    options = {
        "sampler": "neighbor" if kind == "replace" else kind,
        "seed": seed,
        "replace": kind == "replace",
    }
    fanouts = [abs(f) for f in fanouts] if kind == "replace" else fanouts
    expected = draw(graph, seeds, fanouts, epoch=epoch, first_batch=7, split=1, dtype=dtype, **options)
    topology = in_memory(graph, dtype)
    for number, (wanted, ids) in enumerate(zip(expected, seeds, strict=True)):
        found = sample_on(
            CPU, topology, ids, split=1, epoch=epoch, batch=7 + number, fanouts=fanouts, **options
        )
        assert same(found, wanted)
        assert [x.dtype for x in (found.n_id, found.rowptr, found.col)] == [np.int64, np.int32, np.int32]
