"""Batches with the weights of their edges, and with what these come to for each node in the whole graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import outcrop as oc
from outcrop.runtime.runtime import Runtime
from outcrop.sampling import topology as topologies
from outcrop.sampling.sampler import BatchSampler, DrawingDevice
from outcrop.store import record
from outcrop.store.graph import Graph
from weight_support import NODES, draw, imported, parts_of

QUIET = oc.Observer(progress=False)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return imported(tmp_path_factory.mktemp("weights") / "g.oc")


@pytest.mark.parametrize("sampler", ["neighbor", "labor", "shadow"])
@pytest.mark.parametrize("topology", ["memory", "map", "paged"])
@pytest.mark.parametrize("steps", [False, True])
def test_batches_have_the_weights_of_their_edges_and_nodes(graph, sampler, topology, steps, monkeypatch):
    monkeypatch.setattr(topologies, "_AT_ONCE", 37)
    parts = parts_of()
    pairs = [(int(u), int(v)) for u, v in parts["edges"]]
    weights = dict(zip(pairs, parts["edge_weight"].tolist(), strict=True))
    into = np.zeros(NODES)
    for (u, v), one in sorted(weights.items(), key=lambda item: item[0]):
        into[v] += one if u != v else 0
    loops = np.array([weights.get((v, v), 1.0) for v in range(NODES)])
    reference = draw(graph, sampler=sampler)
    for batch, before in zip(draw(graph, topology, steps, sampler=sampler), reference, strict=True):
        met = batch.n_id[batch.edge_index()].T.tolist()
        assert batch.edge_weight is not None
        assert batch.edge_weight.tolist() == [weights[u, v] for u, v in met]
        assert batch.edge_ids is None
        if sampler == "shadow":
            assert batch.weight_sums is None
        else:
            assert batch.weight_sums is not None
            assert np.allclose(batch.weight_sums[:, 0], into[batch.n_id], rtol=1e-12, atol=0)
            assert np.array_equal(batch.weight_sums[:, 1], loops[batch.n_id])
            assert np.array_equal(batch.weight_sums, before.weight_sums)  # to the last bit
        found, _ = record.decode(record.encode(batch, (), 4), "there")
        assert np.array_equal(found.edge_weight, batch.edge_weight)
        assert (found.weight_sums is None) == (batch.weight_sums is None)
        if batch.weight_sums is not None:
            assert np.array_equal(found.weight_sums, batch.weight_sums)


def test_a_damaged_weight_is_refused(graph):
    batch = draw(graph)[0]
    for array in (batch.edge_weight, batch.weight_sums):
        assert array is not None
        for wrong in (-1.0, np.nan, np.inf):
            kept = array.flat[0]
            array.flat[0] = wrong
            with pytest.raises(oc.FormatError, match="a weight of an edge, or a sum of weights, is negative"):
                record.decode(record.encode(batch, (), 4), "there")
            array.flat[0] = kept


def test_what_cannot_be_is_refused(graph, tmp_path):
    drawn = pytest.raises(oc.ArgumentError, match=r"weights .* come with batches that the CPU draws")
    with Runtime() as runtime, drawn:
        BatchSampler(
            graph, oc.SampleConfig(edge_weights=True), runtime, on=DrawingDevice(torch.device("cpu"))
        )
    plain = imported(tmp_path / "p.oc", "none")
    asked = oc.SampleConfig(edge_weights=True)
    with pytest.raises(oc.ArgumentError, match=r"p.oc has no edge weights, which edge_weights"):
        oc.prepare(plain, tmp_path / "r", sampling=asked, observer=QUIET)
    run = oc.prepare(graph, tmp_path / "run", sampling=oc.SampleConfig(), epochs=1, observer=QUIET)
    loader = [data.clone() for data in run.loader(epoch=0)]
    with pytest.raises(oc.ArgumentError, match=r"batches from elsewhere .*leave edge_weights out"):
        oc.prepare(graph, tmp_path / "r", sampling=asked, batches=loader, observer=QUIET)
    typed = oc.generate_graph(tmp_path / "t.oc", oc.GenerateConfig(kind="typed", nodes=300, edges=2000))
    with pytest.raises(oc.ArgumentError, match=r"t.oc has no edge weights"):
        oc.prepare(typed, tmp_path / "r", sampling=asked, observer=QUIET)
