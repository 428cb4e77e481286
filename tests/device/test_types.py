"""Graphs with types on a GPU: what is loaded there, and what is trained on it, is what the CPU has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from device_under_test import NAME as GPU

import outcrop as oc
from outcrop.config import DeviceConfig
from outcrop.errors import ArgumentError
from outcrop.loading.open import open_session
from outcrop.pyg import LinkNeighborLoader
from outcrop.runtime.runtime import Runtime
from typed_reference import TypedGraph
from typed_store import write_typed

SAMPLING = oc.SampleConfig(fanouts=(6, 4), batch_size=64)
QUIET = oc.Observer(progress=False)
MODES = ["packed", "online", "memory", "ondisk", "dynamic", "belady", "memmap"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    config = oc.GenerateConfig(nodes=4000, edges=60_000, kind="typed", train_fraction=0.2)
    return oc.generate_graph(tmp_path_factory.mktemp("typed") / "g.oc", config, progress=False)


@pytest.fixture(scope="module")
def run(graph, tmp_path_factory):
    made = tmp_path_factory.mktemp("run") / "g.run"
    return oc.prepare(graph, made, sampling=SAMPLING, memory="8MiB", epochs=2, observer=QUIET).path


def loaded(graph, run, mode, device):
    """Rows, labels and neighbor lists of two epochs, on the host."""
    found = []
    with (
        Runtime("64MiB") as runtime,
        open_session(graph, runtime, mode, run_folder=run, device=DeviceConfig(device)) as session,
    ):
        for epoch in range(2):
            for batch in session.batches("train", epoch):
                assert {rows.device.type for rows in batch.rows} == {device}
                lists = [
                    batch.array(f"e{number}.{name}", getattr(edges, name))
                    for number, edges in enumerate(batch.graph.edges)
                    for name in ("rowptr", "col")
                ]
                assert {one.device.type for one in lists} == {device}
                found.append([one.cpu().clone() for one in (*batch.rows, batch.y, *lists)])
                del batch, lists
    return found


@pytest.mark.parametrize("mode", MODES)
def test_batches_have_the_rows_that_they_have_on_the_cpu(graph, run, gpu, mode):
    ours, theirs = (loaded(graph, run, mode, device) for device in ("cpu", GPU))
    assert len(ours) == len(theirs) > 2
    for one, other in zip(ours, theirs, strict=True):
        assert [x.dtype for x in one] == [x.dtype for x in other]
        assert all(map(torch.equal, one, other))


def test_rows_of_each_type_begin_aligned_in_the_block_of_a_batch(graph, run, gpu):
    with (
        Runtime("64MiB") as runtime,
        open_session(graph, runtime, "packed", run_folder=run, device=DeviceConfig(GPU)) as session,
    ):
        for batch in session.batches("train"):
            begins = [rows.data_ptr() for rows in batch.rows]
            ends = [rows.data_ptr() + rows.nbytes for rows in batch.rows]
            assert begins == sorted(begins)
            assert all(begin % 256 == begins[0] % 256 for begin in begins)
            assert all(end <= begin < end + 256 for end, begin in zip(ends, begins[1:], strict=False))
            del batch


@pytest.mark.parametrize("mode", ["packed", "online", "memory", "ondisk"])
def test_rows_of_one_type_among_several_are_put_together_there(tmp_path, gpu, mode):
    """By their ids within the type, from the caches of both sides, and from what was read."""
    rng = np.random.default_rng(5)
    lists = tuple(
        tuple(tuple(sorted(rng.integers(0, 300, 4).tolist())) for _ in range(300)) for _ in range(3)
    )
    parts = {
        "n1.features": rng.standard_normal((300, 200)).astype(np.float32),
        "n0.labels": rng.integers(0, 3, 300),
        "n0.train": np.arange(0, 300, 2),
    }
    mine = write_typed(
        tmp_path / "g.oc", TypedGraph((300, 300), ((1, 0), (0, 1), (0, 0)), lists), parts, {0: 3}
    )
    made = oc.prepare(
        mine,
        tmp_path / "g.run",
        sampling=oc.SampleConfig(fanouts=(3, 2), batch_size=20),
        limits=oc.Limits("1500KiB", "1MiB"),
        epochs=2,
        observer=QUIET,
    ).path
    ours, theirs = (loaded(mine, made, mode, device) for device in ("cpu", GPU))
    for one, other in zip(ours, theirs, strict=True):
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("mode", ["packed", "online"])
def test_features_of_edges_that_come_several_times_are_repeated_there(tmp_path, gpu, mode):
    config = oc.GenerateConfig(nodes=4000, edges=60_000, kind="typed", train_fraction=0.2, edge_features=3)
    mine = oc.generate_graph(tmp_path / "g.oc", config, progress=False)
    sampling = oc.SampleConfig(fanouts=(6, 4), batch_size=64, replace=True, edge_rows=True)
    made = oc.prepare(mine, tmp_path / "g.run", sampling=sampling, memory="8MiB", observer=QUIET).path
    place, number = next((of.number, of.owner.number) for of in mine.row_files if of.kind == "edges")
    found = {}
    for device in ("cpu", GPU):
        with (
            Runtime("64MiB") as runtime,
            open_session(mine, runtime, mode, run_folder=made, device=DeviceConfig(device)) as session,
        ):
            found[device] = []
            for batch in session.batches("train"):
                rows = batch.edge_rows(number, place)
                assert rows.device.type == device
                assert len(rows) > len(batch.rows[place])
                found[device].append(rows.cpu().clone())
                del batch, rows
    assert all(map(torch.equal, *found.values()))


@pytest.mark.parametrize("mode", ["packed", "online", "ondisk"])
def test_training_has_the_losses_of_the_cpu(graph, gpu, mode):
    def losses(device):
        return oc.train(
            graph,
            model=oc.ModelConfig("rsage", hidden=16, no_rows="random:8"),
            sampling=SAMPLING,
            loading=mode,
            memory="16MiB",
            epochs=2,
            training=oc.TrainConfig(device=device, trace_losses=True),
            observer=QUIET,
        ).batch_losses

    assert losses(GPU) == pytest.approx(losses("cpu"), rel=1e-4)


@pytest.mark.parametrize("mode", [oc.Online(sample_on="gpu"), oc.Online(row_reads="gpu")])
def test_what_the_gpu_does_not_do_yet_is_refused(graph, gpu, mode):
    with Runtime() as runtime, pytest.raises(ArgumentError, match="drawn and read by the CPU"):
        open_session(graph, runtime, mode, config=SAMPLING, device=mode.device(GPU, 0))


@pytest.mark.parametrize("mode", ["packed", "online"])
def test_a_loader_gives_what_it_gives_on_the_cpu(run, gpu, mode):
    here, there = (oc.open_run(run).loader(device=device, mode=mode) for device in ("cpu", GPU))
    with here, there:
        for ours, theirs in zip(here, there, strict=True):
            for one, other in zip(ours.stores, theirs.stores, strict=True):
                assert set(one.keys()) == set(other.keys())
                for name, value in one.items():
                    if isinstance(value, torch.Tensor):
                        assert other[name].device.type == GPU, name
                        assert torch.equal(other[name].cpu(), value), name
                    else:
                        assert other[name] == value, name
            del ours, theirs, one, other, value


@pytest.mark.parametrize("mode", ["memory", "online", "drawn there"])
@pytest.mark.parametrize("typed", [False, True])
def test_batches_of_links_are_those_of_the_cpu(graph, tmp_path, gpu, mode, typed):
    """Labels and indices have another length than all else that goes there."""
    key = next(one.key for one in graph.edge_types if one.source is not one.target)
    if not typed:
        rng = np.random.default_rng(0)
        parts = {"edges": rng.integers(0, 90, (400, 2)), "features": rng.random((90, 5), np.float32)}
        graph = oc.import_graph(parts, tmp_path / "plain", progress=False)
    elif mode == "drawn there":
        pytest.skip("graphs with types are drawn by the CPU")
    edges = torch.tensor([[0, 1, 2, 3, 0], [1, 0, 1, 1, 1]])
    options = {
        "edge_label_index": (key, edges) if typed else edges,
        "edge_label": torch.arange(5) % 3,
        "neg_sampling_ratio": 7.0,
        "batch_size": 2,
        "shuffle": True,
        "seed": 3,
    }
    on_gpu = oc.Online(sample_on="gpu") if mode == "drawn there" else mode
    expected = list(_links(LinkNeighborLoader(graph, [2, 2], **options), key, typed))
    found = list(_links(LinkNeighborLoader(graph, [2, 2], mode=on_gpu, device=GPU, **options), key, typed))
    assert len(found) == 3
    assert found == expected


def _links(loader, key, typed):
    for batch in loader:
        stores = [batch[name] for name in (*key[::2], key)] if typed else [batch]
        names = ("x", "n_id", "edge_index", "edge_label_index", "edge_label", "input_id")
        yield [store[name].cpu().tolist() for store in stores for name in names if name in store]
