"""The cost model against the paper's equations and claims, files against what is wrong with them, bytes against reads.

Source of what is claimed: Hyperion, Table I, III-C, IV-C to IV-F and VI. Where the paper lacks a number the shipped
TOML files say what was assumed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advisor_support import a_profile, described_work, read_data_sets
from outcrop.advisor import auto, choose, cost, counting, hardware, pages, shapes, steps
from outcrop.advisor.cost import LoadingWork, Prices, Workload
from outcrop.advisor.machine import numpy_rates
from outcrop.advisor.market import Market
from outcrop.api import advise
from outcrop.bench import cost_model
from outcrop.bench.epoch import Setting
from outcrop.bench.graphs import GraphShape
from outcrop.cli import advise as advising
from outcrop.config import (
    ALLOWANCE_BYTES,
    MODELS,
    Limits,
    ModelConfig,
    PlanConfig,
    Replay,
    SampleConfig,
    hidden_width,
)
from outcrop.errors import ArgumentError, BudgetError
from outcrop.loading.open import open_session
from outcrop.nn.models import build_model
from outcrop.report import advice
from outcrop.runtime.hardware import Disk, Gpu, Hardware, HostCosts
from outcrop.runtime.runtime import Runtime
from outcrop.store import run as runs
from outcrop.store.samples import open_samples
from prepare_support import prepare
from run_support import a_graph

GB = 10**9
HIDDEN = (64, 128, 256)


@pytest.fixture(scope="module")
def paper():
    names = {"a": "machine-a", "980pro": "machine-a-980pro", "b": "machine-b", "c": "machine-c"}
    machines = {key: hardware.read_machine(name) for key, name in names.items()}
    return machines, hardware.read_prices("prices"), read_data_sets()


def online(
    data, machine: Hardware, model: str = "sage", hidden: int = 256, gpu: float = 40, host: float = 20
):
    """The paper's setting: batches of 8000, fanouts 25 and 10; caches in GB. gat has 8 heads of ``hidden``."""
    network = shapes.Network(model, data.features, hidden * 8 if model == "gat" else hidden, data.classes)
    return described_work(
        data, network, machine, fanouts=(25, 10), batch_size=8000,
        gpu_cache_bytes=gpu * GB, host_cache_bytes=host * GB,
    )  # fmt: skip


# Equations


@given(
    q=st.integers(1, 32),
    n_disk=st.integers(1, 10**7),
    n_mem=st.integers(0, 10**7),
    th_disk=st.floats(1e3, 1e6),
    th_bus=st.floats(1e4, 1e8),
    alpha=st.floats(0, 1e-3),
    train=st.floats(0, 1),
    machine=st.floats(1, 1e5),
    price=st.floats(0, 1e3),
)
def test_the_papers_equations(q, n_disk, n_mem, th_disk, th_bus, alpha, train, machine, price):
    """Equations 3 to 5 for one batch of transactions of one size, in the paper's own terms."""
    size = 64
    work = Workload("online", 1, 1000, ((n_disk * size, n_disk),), train, memory_bytes=n_mem * size)
    here = Hardware("x", Disk("d", ((size, th_disk),), alpha), q, th_bus * size)
    found = cost.predict(here, work)
    t_disk, t_bus = n_disk / (th_disk * q) + alpha, (n_disk + n_mem) / th_bus
    assert found.batch_s == pytest.approx(max(t_disk, t_bus, train), rel=1e-12)
    names = np.array(["disk", "bus", "compute"])
    assert found.bound == names[np.argmax([t_disk, t_bus, train])]
    total = cost.tco(here, Prices(machine, 17.0, disks=(("d", price),)))
    assert total == pytest.approx(machine + price * q + 17.0, rel=1e-12)
    assert cost.tpc(found, total) == pytest.approx(1000 / (max(t_disk, t_bus, train) * total), rel=1e-12)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.1, 0.3, 0.5]), st.sampled_from([0.0, 0.1, 0.2]), st.sampled_from([0.1, 0.4])
        ),
        min_size=1,
        max_size=1,
    ),
    st.integers(2, 4),
    st.sampled_from([1.0, 2.0, 3.0]),
)
def test_few_buffers_hold_batches_up(parts, buffers, stretch):
    """Oracle: every batch takes a free buffer, the disk, the CPU and computing in turn, each one at a time.

    What the CPU takes of a batch is waited for ``stretch`` times as long, but others go on meanwhile.
    """
    ((load, host, compute),) = parts
    batches, free = 400, [0.0] * buffers
    disk = cpu = done = 0.0
    for i in range(batches):
        disk = max(disk, free[i % buffers]) + load
        cpu = max(cpu, disk) + host
        done = max(done, cpu + host * (stretch - 1)) + compute
        free[i % buffers] = done
    work = Workload(
        "packed",
        batches,
        batches,
        ((batches * 100.0, batches),),
        compute * batches,
        loading=LoadingWork(other_s=host * batches),
        buffers=buffers,
    )
    costs = HostCosts(stretch=stretch)
    found = cost.predict(Hardware("x", Disk("d", ((100, 1 / load),)), host=costs), work)
    assert found.epoch_s == pytest.approx(done, rel=2e-2)


def test_an_epoch_is_a_pipeline_of_two_stages():
    """Loading l and computing c of every batch: the oracle runs the batches one by one."""
    for load, compute, batches in ((0.2, 0.5, 7), (0.5, 0.2, 7), (0.3, 0.3, 1)):
        loaded = done = 0.0
        for _ in range(batches):
            loaded = loaded + load
            done = max(done, loaded) + compute
        work = Workload("packed", batches, batches, ((batches * 100.0, batches),), compute * batches)
        found = cost.predict(Hardware("x", Disk("d", ((100, 1 / load),))), work)
        assert found.epoch_s == pytest.approx(done)


def test_requests_between_measured_sizes_and_beyond():
    disk = Disk("d", ((4096, 100.0), (8192, 80.0), (65536, 20.0)))
    expected = np.interp(
        [512, 4096, 6000, 8192, 30000, 65536], [4096, 8192, 65536], [1 / 100, 1 / 80, 1 / 20]
    )
    found = [disk.request_seconds(size) for size in (512, 4096, 6000, 8192, 30000, 65536)]
    np.testing.assert_allclose(found, expected)
    assert disk.request_seconds(2 * 65536) == pytest.approx(2 / 20)
    two = Hardware("x", disk, 2, disk_limit_bytes_per_s=1e4)
    assert cost.disk_seconds(two, ((8192, 2), (65536, 1))) == pytest.approx(
        max((2 / 100 + 1 / 20) / 2, (8192 + 65536) / 1e4)
    )
    with pytest.raises(ArgumentError, match="rising size"):
        Disk("d", ((8192, 1.0), (4096, 2.0)))


def test_loading_takes_of_the_cores_that_compute():
    costs = HostCosts(1e-9, 1e-6, 2e-9, 3e-9, 1e-3, stall=0.5, structure_byte_s=5e-9)
    loading = LoadingWork(10**6, 100, 10**5, 10**4, 0.25, structure_bytes=10**5)
    serial, parallel = 1e-3 + 1e-4 + 3e-5 + 4e-3 + 5e-4, 2e-4 + 0.25
    assert cost.host_seconds(costs, loading, 4) == pytest.approx((serial, parallel))
    work = Workload("packed", 4, 4, (), 2.0, loading=loading)
    found = cost.predict(Hardware("x", Disk("d", ((4096, 1.0),)), host=costs, cores=2), work)
    assert found.compute_s == pytest.approx(2.0 / 4 + 0.5 * serial / 4 + parallel / 2 / 4)
    assert found.host_s == pytest.approx((serial + parallel) / 4 / 2)
    alone = cost.predict(Hardware("x", Disk("d", ((4096, 1.0),)), host=replace(costs, stall=0.0)), work)
    assert alone.compute_s == 2.0 / 4


# What the paper says


def test_table_1_adds_up(paper):
    machines, prices, _ = paper
    assert [cost.tco(machines[m], prices) for m in "ab"] == [48_971, 78_794]
    assert cost.tco(machines["c"], prices) == 45_275 * 8


@pytest.mark.parametrize("name", ["a", "980pro"])
def test_tpc_rises_with_disks_and_then_falls(paper, name):
    """Figure 14a: GPU and CPU caches of 40 and 20 GB; and the TPC falls only where disks no longer bind."""
    machines, prices, data = paper
    machine = replace(machines[name], most_disks=12)
    offers = cost.disk_offers(machine, online(data["IG"], machine), prices)
    tpcs = np.array([o.tpc for o in offers])
    top = int(tpcs.argmax())
    assert 0 < top < 11
    assert (np.diff(tpcs[: top + 1]) > 0).all()
    assert (np.diff(tpcs[top:]) < 0).all()
    assert cost.best(offers).hardware.disks == top + 1
    assert offers[top - 1].prediction.bound == "disk"
    assert offers[top + 1].prediction.bound == "bus"
    pays = [o for o in offers if o.cost <= offers[2].cost]
    assert cost.disk_offers(machine, online(data["IG"], machine), prices, budget=offers[2].cost) == pays


def test_the_best_number_of_disks_falls_as_the_cpu_cache_grows(paper):
    """Figure 14b: 20 to 80 GB."""
    machines, prices, data = paper
    for name in ("IG", "UK", "CL", "LD"):
        best = [
            cost.best(cost.disk_offers(machines["a"], online(data[name], machines["a"], host=host), prices))
            for host in (20, 40, 60, 80)
        ]
        disks = [offer.hardware.disks for offer in best]
        assert disks == sorted(disks, reverse=True)
        assert disks[0] > disks[-1]


def test_gat_is_bound_by_computing_from_hidden_64_up(paper):
    """Figure 15: machines A and B, 12 disks, PA and IG; TPC falls with the width. PCIe 5.0 halves the bus's part."""
    machines, prices, data = paper
    for name in ("PA", "IG"):
        for machine in (machines["a"], machines["b"]):
            offers = [cost.offer(machine, online(data[name], machine, "gat", h), prices) for h in HIDDEN]
            assert [o.prediction.bound for o in offers] == ["compute"] * 3
            assert (np.diff([o.tpc for o in offers]) < 0).all()
    narrow = {m: cost.predict(machines[m], online(data["IG"], machines[m], "gat", 16)) for m in "ab"}
    assert [p.bound for p in narrow.values()] == ["bus", "bus"]
    assert narrow["a"].bus_s == pytest.approx(2 * narrow["b"].bus_s)
    sage = cost.predict(machines["a"], online(data["IG"], machines["a"]))
    assert sage.bound == "bus"  # "GraphSAGE model training can be overlapped with PCIe IO"


def test_a_cpu_cache_makes_throughput_independent_of_the_number_of_disks(paper):
    """Figure 13a and b: CL, no GPU cache, 2 to 12 disks."""
    machines, _, data = paper
    machine, cl = machines["a"], data["CL"]
    rest = (machine.memory_bytes - cl.topology_bytes) / GB
    rates = {
        host: np.array(
            [1 / cost.predict(replace(machine, disks=q), online(cl, machine, gpu=0, host=host)).batch_s
             for q in (2, 4, 6, 8, 10, 12)]
        )
        for host in (rest, 0)
    }  # fmt: skip
    assert rates[rest].max() / rates[rest].min() < 1.1
    assert rates[0][2] > rates[0][1] > rates[0][0]
    assert rates[0].max() > 2 * rates[0].min()
    assert (rates[rest] >= rates[0]).all()


def test_from_6_to_12_disks_the_bus_is_full(paper):
    """Figure 12a: reads of 4 KiB alone, "almost the same" from 6 disks on; up to then each adds its rate."""
    machines, _, data = paper
    work = replace(online(data["IG"], machines["a"], gpu=0, host=0), compute_s=0.0)
    rate = [1 / cost.predict(replace(machines["a"], disks=q), work).batch_s for q in range(1, 13)]
    assert rate[11] / rate[5] < 1.1
    np.testing.assert_allclose(rate[:5], np.arange(1, 6) * rate[0], rtol=1e-3)
    assert rate[6:] == [rate[11]] * 6


def test_more_machines_do_not_raise_the_tpc_of_a_cluster(paper):
    """IV-C: throughput grows linearly to 87 % of Hyperion's with 8 machines, and so does what they cost."""
    machines, prices, data = paper
    single = cost.offer(machines["a"], online(data["PA"], machines["a"]), prices)
    per_second = single.prediction.samples / single.prediction.epoch_s
    tpcs = [
        0.87 * per_second * n / 8 / cost.tco(replace(machines["c"], machines=n), prices) for n in range(1, 17)
    ]
    np.testing.assert_allclose(tpcs, tpcs[0])
    assert per_second / single.cost > 8 * tpcs[0]


def test_the_best_single_change_is_what_binds(paper):
    machines, prices, data = paper
    few = replace(machines["a"], disks=2)
    work = online(data["IG"], few)
    now = cost.offer(few, work, prices)
    better = replace(few, gpu=machines["b"].gpu)
    others = [
        ("a disk", 308.0, replace(few, disks=3), work),
        ("a GPU", 29_823.0, better, online(data["IG"], better)),
        ("nothing", 0.0, few, work),
    ]
    changes = cost.single_changes(now, others)
    assert [c.what for c in changes] == ["a disk", "a GPU"]
    hours = 3600 / cost.predict(replace(few, disks=3), work).epoch_s - 3600 / now.prediction.epoch_s
    assert changes[0].gain == pytest.approx(1000 * hours / 308)
    assert 0 <= changes[1].gain < changes[0].gain / 100


@pytest.mark.parametrize("hidden", [None, 48])
@pytest.mark.parametrize("heads", [4, 8])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_predicted_is_what_is_trained(tmp_path, name, heads, hidden):
    """A batch of one node takes as many products as the model that is built has weights: twice, and once more above."""
    with Runtime() as runtime:
        graph = a_graph(tmp_path / "g", runtime)
    network = shapes.network_of(graph, ModelConfig(name, hidden, heads=heads))
    model = build_model(name, graph.feature_dim, hidden, graph.num_classes, 2, heads=heads)
    first, second = (sum(w.numel() for w in conv.parameters() if w.dim() == 2) for conv in model.convs)
    operations, _ = shapes.step_work(network, shapes.Shape((1, 0, 0), (0, 0)))
    assert operations == 2 * (2 * first + 3 * second)


def test_the_work_of_a_step_counts_products():
    """sage, two hops: by hand, products only; gat multiplies every source."""
    shape = shapes.Shape((10, 90, 900), (100, 1000))
    operations, _ = shapes.step_work(shapes.Network("sage", 16, 32, 4), shape)
    assert operations == 2 * 2 * 2 * 100 * 16 * 32 + 3 * 2 * 2 * 10 * 32 * 4
    operations, moved = shapes.step_work(shapes.Network("gat", 16, 32, 4), shape)
    assert operations == 2 * 2 * 1000 * 16 * 32 + 3 * 2 * 100 * 32 * 4
    gpu = Gpu("g", 1e9, 1e9)
    assert shapes.step_seconds(gpu, shapes.Network("gat", 16, 32, 4), shape) == (operations + moved) / 1e9


# Files


def test_a_machine_file_is_checked_as_a_whole(tmp_path):
    path = tmp_path / "m.toml"
    path.write_text(
        'memory = "8 bananas"\nspeed = 3\n[disk]\ncount = 4\nmost = 2\nreads = [[4096, -1]]\n[gpu]\nname = "g"\n'
    )
    with pytest.raises(ArgumentError) as caught:
        hardware.read_machine(path)
    for part in ("m.toml", "8 bananas", "speed is unknown", "reads", "above most 2", "bus_bytes_per_s is missing",
                 "flops_per_s is missing"):  # fmt: skip
        assert part in str(caught.value)
    with pytest.raises(ArgumentError, match="machine-a"):
        hardware.read_machine("machine-z")
    path.write_text("memory = [")
    with pytest.raises(ArgumentError, match="no TOML"):
        hardware.read_prices(path)
    path.write_text('machine = 1\n[disks]\n"x" = "cheap"\n')
    with pytest.raises(ArgumentError, match=r"\[disks\] x = 'cheap'"):
        hardware.read_prices(path)
    with pytest.raises(ArgumentError, match="no price for the disk 'y'"):
        Prices(1.0, disks=(("x", 1.0),)).of("disk", "y")


# Choosing


def facts(**changes) -> choose.WorkloadFacts:
    values = {
        "available_bytes": 2 << 30, "free_disk_bytes": 100 << 30, "batches": 100, "seeds": 100_000, "row_bytes": 512,
        "feature_bytes": 8 << 30, "rows": 6e6, "missing": 0.9, "online_bytes": 2e10, "online_requests": 4e6,
        "compute_s": 3.0,
    }  # fmt: skip
    return choose.WorkloadFacts(**{**values, **changes})


def test_auto_counts_the_epochs_that_fit_the_disk():
    """An epoch's rows that no cache holds are 2.6 GiB: nine tenths of the disk hold as many, and at least one."""
    epoch_bytes = 6e6 * 512 * 0.9
    assert choose.whole_epochs(facts(epochs=10)) == 10
    assert (
        choose.whole_epochs(facts(epochs=10, free_disk_bytes=20 << 30))
        == int(0.9 * (20 << 30) // epoch_bytes)
        == 6
    )
    assert choose.whole_epochs(facts(epochs=10, disk_space=int(3.5 * epoch_bytes))) == 3
    assert choose.whole_epochs(facts(epochs=10, disk_space=1)) == 1
    assert choose.whole_epochs(facts(epochs=10, missing=0.0)) == 10
    # Each pool reads the features once more, and every epoch is written.
    here = a_profile({}).hardware()
    seconds = [choose.choose(facts(pool=pool, refresh=True), here).packed_s for pool in (10, 5, 1)]
    assert seconds == sorted(seconds)
    assert choose.choose(facts(pool=1), here).packed_s < seconds[0]


def test_auto_takes_what_is_sooner_done_and_fits():
    here = a_profile({}).hardware()
    many = choose.choose(facts(epochs=50), here)
    assert many.mode == "packed"
    assert many.disk_space is None
    assert many.memory == (2 << 30) * 7 // 8 - ALLOWANCE_BYTES
    assert many.packed_s < many.online_s
    assert "50 epochs" in many.why
    once = choose.choose(facts(epochs=1, pool=1, online_bytes=1e9, online_requests=1e5), here)
    assert once.mode == "online"
    assert once.online_s < once.packed_s
    pool = choose.choose(facts(epochs=50, pool=10, free_disk_bytes=20 << 30), here)
    assert pool.mode == "packed"
    assert pool.disk_space == int(0.9 * (20 << 30))
    assert "share rows" in pool.why
    full = choose.choose(facts(epochs=50, pool=10, free_disk_bytes=1 << 30), here)
    assert full.mode == "online"
    assert choose.choose(facts(epochs=50, disk_space=30 << 30), here).disk_space == 30 << 30
    # New batches for every epoch are packed anew for every epoch: 50 times 11 s, where online takes none of them.
    quick = {"epochs": 50, "online_bytes": 5e9, "online_requests": 5e5}
    replayed, refreshed = (choose.choose(facts(**quick, refresh=again), here) for again in (False, True))
    assert (replayed.mode, refreshed.mode) == ("packed", "online")
    assert refreshed.online_s == replayed.online_s
    once_s = (8 << 30) / (1 << 20) / 1000 + replayed_bytes() / 1e9  # 1000 MiB/s read, 1 GB/s written
    assert refreshed.packed_s - replayed.packed_s == pytest.approx(49 * once_s)
    with pytest.raises(BudgetError, match="name a budget"):
        choose.memory_within(400 << 20)


def replayed_bytes() -> float:
    """Of the rows of ``facts``, those that no cache holds."""
    return 6e6 * 512 * 0.9


def test_online_spools_where_that_is_sooner_done_and_fits():
    here = a_profile({}).hardware()
    again = {"refresh": True, "write_bytes_per_s": 1e9, "compute_s": 0.0}
    found = choose.choose_spooling(facts(epochs=50, **again), here)
    # An epoch's rows are 2.8 GB, written and read 5.5: reading 8.6 GB of features is a quarter of that of 7 epochs.
    assert found.epochs == 7
    assert "--disk-space 0" in found.why
    epoch_s = choose.choose_spooling(facts(epochs=1, **again), here).direct_s
    assert found.direct_s == pytest.approx(50 * epoch_s)
    scans_s = -(-50 // 7) * (8 << 30) / (1 << 20) / 1000
    reading_s = 50 * replayed_bytes() / 1048576000
    assert found.spooled_s == pytest.approx(scans_s + 50 * replayed_bytes() / 1e9 + reading_s, rel=0.05)
    # Equal parts, and never more than are trained.
    assert choose.choose_spooling(facts(epochs=8, **again), here).epochs == 4
    assert choose.choose_spooling(facts(epochs=3, **again), here).epochs == 3
    # What is replayed is spooled once.
    once = choose.choose_spooling(facts(epochs=50, pool=2), here)
    assert once.epochs == 2
    assert once.spooled_s < found.spooled_s
    # Half of the space is for evaluation; what does not fit the rest is spooled in more parts, shared, or not at all.
    assert choose.choose_spooling(facts(epochs=50, disk_space=13 << 30, **again), here).epochs == 2
    tight = choose.choose_spooling(facts(epochs=50, pool=9, disk_space=21 << 30), here)
    assert (tight.epochs, tight.disk_space) == (9, 21 << 30)
    assert found.disk_space is None
    many_valid = choose.choose_spooling(facts(epochs=50, evaluated=40.0, **again), here)
    assert (many_valid.epochs, many_valid.disk_space) == (7, int(0.9 * (100 << 30)))
    for little in (
        facts(epochs=50, disk_space=5 << 30, **again),
        facts(epochs=50, free_disk_bytes=1 << 30, **again),
    ):
        direct = choose.choose_spooling(little, here)
        assert (direct.epochs, direct.disk_space) == (0, little.disk_space)
        assert "of disk" in direct.why
    # Where nearly everything is cached, or computing takes longer than reading, nothing is written.
    for changes in ({"missing": 0.001}, {"compute_s": 400.0}, {"online_requests": 1e5, "online_bytes": 4e9}):
        direct = choose.choose_spooling(facts(epochs=50, **{**again, **changes}), here)
        assert direct.epochs == 0
        assert "predicted" in direct.why


def test_whether_a_step_has_to_be_measured_before_packing_is_chosen():
    """Reading rows directly hides behind long steps alone: where no step can be so long, none is measured."""
    here = a_profile({}).hardware()
    new = facts(epochs=5, refresh=True, compute_s=0.0)
    direct_s = choose.choose_spooling(new, here).direct_s / 5
    assert not choose.may_be_sooner_direct(new, here, direct_s / 2)
    assert choose.may_be_sooner_direct(new, here, 2 * direct_s)
    assert choose.may_be_sooner_direct(replace(new, missing=0.001), here, 0.0)
    # An epoch in many parts takes longer to prepare than to read directly.
    tight = facts(
        epochs=5,
        refresh=True,
        compute_s=0.0,
        rows=1e6,
        online_requests=1e6,
        online_bytes=4.1e9,
        disk_space=1 << 20,
    )
    assert choose.may_be_sooner_direct(replace(tight, parts=400), here, 0.0)
    # Reads may take a third longer than is predicted; 0: nobody has looked.
    reading = choose.choose_spooling(new, here)
    assert reading.direct_most_s == pytest.approx(4 / 3 * reading.direct_s, rel=0.01)
    hidden = choose.choose_spooling(replace(new, compute_s=2 * direct_s), here)
    assert hidden.direct_most_s == pytest.approx(hidden.direct_s, rel=0.01)
    for direct_s, most_s, sooner in ((7.0, 9.0, True), (8.0, 11.0, False), (0.0, 0.0, False)):
        decision = choose.SpoolDecision(0, None, "", 10.0, direct_s, direct_most_s=most_s)
        assert decision.direct_is_sooner == sooner


@pytest.mark.parametrize(
    ("count", "together", "each"),
    [(100, 1, 1.3), (100, 2, 1.3), (100, 3, 1.3), (100, 7, 1.3), (1, 4, 31), (2, 3, 16)],
)
def test_what_drawing_a_batch_takes(
    monkeypatch: pytest.MonkeyPatch, count: int, together: int, each: float
) -> None:
    """An epoch begins with 30 seconds of work, a batch takes one, and they come several together."""
    clock = [0.0]

    def begin(split: str, number: int) -> Iterator[int]:
        clock[0] += 30
        return drawn()

    def drawn() -> Iterator[int]:
        for first in range(0, count, together):
            clock[0] += min(together, count - first)
            yield from range(first, min(first + together, count))

    monkeypatch.setattr(auto.time, "process_time", lambda: clock[0])
    sampler: Any = SimpleNamespace(together=together, begin=begin)
    batches, seconds = auto._first_batches(sampler, count)
    assert batches == list(range(min(4, count)))
    assert seconds == pytest.approx(each)


@pytest.mark.parametrize("model", MODELS)
def test_no_step_takes_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """Measured here, of a batch like the reference, by the processor time of one thread: other work has none of it."""
    batch, threads = steps.synthetic_batch(), torch.get_num_threads()
    network = shapes.Network(model, 128, hidden_width(model), 47)
    shape = shapes.Shape(batch.graph.nodes_per_hop, batch.graph.edges_per_hop)
    longest = shapes.longest_step(network, shape, numpy_rates())
    torch.set_num_threads(1)
    monkeypatch.setattr(steps.time, "perf_counter", time.process_time)
    try:
        tried = [steps.step_seconds([batch], network, seconds=0.05)[0] for _ in range(3)]
    finally:
        torch.set_num_threads(threads)
    assert 0 < min(tried) < longest < 5


def test_an_epoch_that_does_not_fit_the_disk_is_prepared_in_parts_where_that_is_sooner_done():
    here = a_profile({}).hardware()
    features, read_rate = 8 << 30, 1000 * (1 << 20)
    some = {
        "epochs": 50,
        "compute_s": 0.0,
        "refresh": True,
        "rows": 2e8,
        "online_requests": 1.3e8,
        "online_bytes": 6e11,
    }
    wanted = 2e8 * 512 * 0.9
    for count in (2, 5):
        # All features are read for each part, the rows written once and read once.
        want = 50 * (count * features / read_rate + wanted / 1e9 + wanted / read_rate)
        found = choose.part_seconds(facts(**some, parts=count), here)
        assert found == pytest.approx(want, rel=0.05)
    # Where all of an epoch's rows would fit, sharing is packing; with room for nothing but the features all is random.
    fits = facts(**some, parts=2)
    assert choose.shared_seconds(fits, here, 1 << 50) == pytest.approx(
        50 * (features / read_rate + wanted / 1e9 + wanted / read_rate), rel=0.05
    )
    assert choose.shared_seconds(fits, here, int(1.2 * features) - 1) == math.inf
    slowest = choose.shared_seconds(fits, here, int(1.2 * features))
    between = choose.shared_seconds(fits, here, 4 * features)
    assert choose.shared_seconds(fits, here, 1 << 50) < between < slowest

    tight = {**some, "disk_space": 40 << 30}
    sooner, said = choose.choose_parts(facts(**tight, parts=3), here)
    assert sooner
    assert said.startswith("an epoch is prepared in 3 parts")
    assert "if batches share rows on disk" in said
    assert not choose.choose_parts(facts(**tight, parts=500), here)[0]  # features would be read 500 times
    assert not choose.choose_parts(facts(**tight, parts=3), None)[0]  # nobody knows the disk
    for disk in (here, None):  # and sharing is not possible
        sooner, said = choose.choose_parts(facts(**{**some, "disk_space": 5 << 30}, parts=40), disk)
        assert sooner
        assert said.startswith("an epoch is prepared in 40 parts")
        assert "cannot share" in said

    found = choose.choose_spooling(facts(**tight, parts=3), here)
    assert (found.epochs, found.parts, found.disk_space) == (1, 3, 40 << 30)
    assert "an epoch is prepared in 3 parts" in found.why
    assert found.spooled_s == choose.part_seconds(facts(**tight, parts=3), here) < found.direct_s
    assert choose.choose_spooling(facts(**{**tight, "refresh": False}, pool=4, parts=3), here).epochs == 4
    assert choose.choose_spooling(facts(**tight, parts=500), here).parts == 0
    quick = {**tight, "online_requests": 1e5, "online_bytes": 4e9}
    assert choose.choose_spooling(facts(**quick, parts=3), here).epochs == 0


@given(
    st.lists(st.lists(st.integers(0, 40), unique=True), max_size=4), st.integers(0, 60), st.integers(41, 50)
)
def test_share_of_rows_that_no_cache_holds(batches, cache_rows, num_nodes):
    """Against a count by hand: what earlier batches wanted most is held, any of the others where there is room."""
    found = auto.missing_rows([np.array(b, np.int64) for b in batches], cache_rows, num_nodes)
    if not batches or not batches[-1] or cache_rows >= num_nodes:
        assert found == 0.0
        return
    times: dict[int, int] = {}
    for node in sorted(node for batch in batches[:-1] for node in batch):
        times[node] = times.get(node, 0) + 1
    ranked = sorted(times, key=lambda node: (-times[node], node))
    missed = sum(node not in ranked[:cache_rows] for node in batches[-1])
    room = max(cache_rows - len(ranked), 0) / max(num_nodes - len(ranked), 1)
    assert found == pytest.approx(missed / len(batches[-1]) * (1 - room))


# What is counted is what is read


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60), st.sampled_from([100, 512, 4096, 5000]))
def test_pages_and_runs(ids, row_bytes):
    wanted = {
        p for i in ids for p in range(i * row_bytes // 4096, (i * row_bytes + row_bytes - 1) // 4096 + 1)
    }
    assert pages.page_bytes(np.array(ids), row_bytes, row_bytes) == 4096 * len(wanted)
    assert pages.page_runs(np.array(ids), row_bytes, row_bytes) == len(wanted - {p + 1 for p in wanted})


def epoch_reads(graph, run: Path, mode: str, memory: int) -> int:
    with Runtime(memory) as runtime, open_session(graph, runtime, mode, run_folder=run) as session:
        session.batches("train", 0).close()
        before = runtime.io.counters.read_bytes
        for batch in session.batches("train", 0):
            del batch
        return runtime.io.counters.read_bytes - before


def test_advice_counts_exactly_what_is_read(tmp_path, monkeypatch):
    """Packed and online, of a bare graph, of a planned run and of a packed one, against epochs that are loaded."""
    monkeypatch.setattr(counting, "compute_seconds", lambda task, samples, runtime: 0.05)
    monkeypatch.setattr(advise.machine, "profile_of", lambda folder, path=None: a_profile({}))
    with Runtime() as runtime:
        graph = a_graph(tmp_path / "g", runtime, nodes=3000, edges=20000, width=128, train=600)
    memory, run = 4 << 20, tmp_path / "r"
    options = {"fanouts": (4, 4), "batch_size": 64, "memory": memory}
    model = ModelConfig("gcn", 8)
    bare = advise.advise(graph, model=model, sampling=SampleConfig((4, 4), 64), memory=memory)
    prepare(graph, run, degrees=True, epochs=1, **options, stop_after="plan")
    planned = advise.advise(graph, run=run, model=model)
    assert [p["bytes_read"] for p in planned["predictions"]] == [p["bytes_read"] for p in bare["predictions"]]
    prepare(graph, run, degrees=True, epochs=1, **options)
    result = advise.advise(
        graph,
        run=run,
        model=model,
        market=Market([hardware.read_machine("machine-a"), "machine-b"], "prices", 1e5),
    )
    for row in result["predictions"]:
        assert row["exact"]
        assert row["bytes_read"] == epoch_reads(graph, run, row["mode"], memory)
    assert [(p["hardware"], p["mode"]) for p in result["predictions"][:4]] == [
        ("here", "packed"), ("here", "online"), ("A", "packed"), ("A", "online"),
    ]  # fmt: skip
    assert bare["predictions"][0]["bytes_read"] == result["predictions"][0]["bytes_read"]
    assert set(result["disk_curve"]) == {"A", "B"}
    assert not [f.name for f in tmp_path.iterdir() if f.name.startswith(".outcrop-advise")]
    json.loads(json.dumps(result, allow_nan=False))
    drawn = tmp_path / "a.html"
    advice.save(result, drawn)
    assert "A: 1 disks" in drawn.read_text() or "disks do most" in drawn.read_text()
    advice.save(result, tmp_path / "a.svg")
    with pytest.raises(ArgumentError, match=r"\.svg"):
        advice.save(result, tmp_path / "a.pdf")
    advising.summarize(result)


def test_what_advice_cannot_be_about(tmp_path, monkeypatch):
    """Refused before anything is counted or measured."""
    monkeypatch.setattr(advise, "count", lambda task, measured: pytest.fail("counted"))
    monkeypatch.setattr(advise.machine, "profile_of", lambda folder, path=None: a_profile({}))
    with Runtime() as runtime:
        graph = a_graph(tmp_path / "g", runtime)
    for options, message in (
        ({"run": tmp_path / "r", "sampling": SampleConfig()}, "has its own sampling .* leave it out"),
        ({"sampling": SampleConfig(epochs=3)}, r"epochs=3: leave that out, and write run=Replay"),
        ({"sampling": SampleConfig(task="link")}, "task 'link' cannot be predicted"),
        ({"sampling": {"seed": 3}}, "sampling .* is a dict: give a SampleConfig or None"),
        ({"memory": "auto"}, "name a budget to predict for, such as 4GiB"),
        ({"memory": 1, "limits": Limits(2)}, "keep one of them"),
        ({"model": ModelConfig("gat", 10, heads=2), "market": Market(["none.toml"])}, "none.toml"),
    ):
        with pytest.raises(ArgumentError, match=message):
            advise.advise(graph, **options)
    for options, message in (
        ({"machines": "machine-a"}, "machines 'machine-a' is a str: give a sequence"),
        ({"budget": "much"}, "budget 'much' is a str: give a number or None"),
        ({"budget": -1.0}, "budget -1.0 buys nothing"),
    ):
        with pytest.raises(ArgumentError, match=message):
            Market(**options)


def test_what_advice_is_about(tmp_path, monkeypatch):
    """Options come as they are to what counts."""
    seen = []

    def counted(task, measured):
        seen.append(task)
        raise BudgetError("enough seen")

    monkeypatch.setattr(advise, "count", counted)
    monkeypatch.setattr(advise.machine, "profile_of", lambda folder, path=None: a_profile({}))
    with Runtime() as runtime:
        graph = a_graph(tmp_path / "g", runtime)
    sampling = SampleConfig((4, 4), 64, sampler="labor", batch_dependency=8, seed=3)
    limits = Limits("1MiB", "2MiB", "3x")
    with pytest.raises(BudgetError, match="enough seen"):
        advise.advise(graph, model=ModelConfig("gcn", 8), sampling=sampling, run=Replay(3), limits=limits)
    (found,) = seen
    assert found.model == ModelConfig("gcn", 8)
    assert found.sampling == replace(sampling, degrees=True, epochs=3)
    assert found.limits == PlanConfig(1 << 20, 2 << 20, 3 * graph.feature_bytes)
    wide = counting.Task(graph, ModelConfig("gat", heads=2)).network
    assert (wide.hidden, wide.heads) == (64, 2)  # 32 a head


def test_computing_is_timed_on_batches_and_scaled_to_the_epoch(tmp_path, monkeypatch):
    with Runtime() as runtime:
        graph = a_graph(tmp_path / "g", runtime)
        prepare(graph, tmp_path / "r", fanouts=(3, 3), batch_size=20, stop_after="sample", runtime=runtime)
        samples = open_samples(runtime, tmp_path / "r" / "sample")
        seen = []

        def timed(batches, network, **options):
            seen.extend(batches)
            return [1.0] * len(batches)

        monkeypatch.setattr(steps, "step_seconds", timed)
        task = counting.Task(graph, sampling=SampleConfig((3, 3), 20))
        found = counting.compute_seconds(task, samples, runtime)
    at = list(samples.group("train").batches(0))
    size = samples.num_nodes[at] + samples.num_edges[at]
    assert len(at) == 5
    assert [b.x.data_ptr() % 64 for b in seen] == [0, 0, 0]
    assert [b.graph.num_nodes for b in seen] == samples.num_nodes[at][[0, 2, 4]].tolist()
    assert found == pytest.approx(3.0 * size.sum() / size[[0, 2, 4]].sum())
    monkeypatch.undo()
    assert steps.step_seconds(seen[:1], shapes.Network("gcn", seen[0].x.shape[1], 8, 5), seconds=0.0)[0] > 0


def test_auto_is_recorded_and_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(auto.machine, "profile_of", lambda folder, path=None: a_profile({}))
    monkeypatch.setattr(auto.system, "available_memory", lambda: 2 << 30)
    with Runtime() as runtime:
        graph = a_graph(tmp_path / "g", runtime)
    options = {"fanouts": (4, 4), "batch_size": 20}
    made = prepare(graph, tmp_path / "r", memory="auto", **options)
    assert "packed" in made.chosen
    plan = runs.read(tmp_path / "r").plan
    assert plan.memory == (2 << 30) * 7 // 8 - ALLOWANCE_BYTES
    monkeypatch.setattr(auto.system, "available_memory", lambda: 3 << 30)
    again = prepare(graph, tmp_path / "r", memory="auto", **options)
    assert again.skipped == ["sample", "plan", "pack"]
    assert runs.read(tmp_path / "r").plan == plan
    least = auto.TrainingAhead(least_epochs=7)
    choice = auto.choose_limits(graph, SampleConfig(**options, epochs=10), tmp_path / "r")
    assert auto.choose_limits(graph, SampleConfig(**options), tmp_path / "r", least) == choice
    assert choice.why.endswith(
        f"which {tmp_path / 'r'} was prepared for; delete that folder to choose anew, or name a budget"
    )
    assert (choice.memory, choice.mode) == (plan.memory, "packed")
    with Runtime(choice.memory) as runtime:
        assert open_samples(runtime, tmp_path / "r" / "sample").max_nodes > 0


def test_bench_cost_model_counts_exactly(tmp_path, monkeypatch):
    monkeypatch.setattr(cost_model.machine, "measure_profile", lambda folder: a_profile({}))
    monkeypatch.setattr(cost_model, "read_rates", lambda path, seconds: None)
    for module in (counting, cost_model):
        monkeypatch.setattr(module, "compute_seconds", lambda task, samples, runtime: 0.05)
    with Runtime() as runtime:
        a_graph(tmp_path / "tiny.oc", runtime, nodes=2000, edges=10000, width=512, train=200)
    shape = GraphShape("tiny", nodes=2000, edges=10000, features=512)
    setting = Setting(shape, batch_size=40, hidden=8, epochs=2, rounds=1)
    cases = (
        cost_model.Case(fanouts="3,3", cap=0.7, balance=2.0),
        cost_model.Case("online", fanouts="3,3", cap=0.7),
    )
    result = cost_model.run(tmp_path, setting, lambda text: None, cases)
    assert result["bytes_exact"]
    assert [row["bytes_read"] > 0 for row in result["cases"].values()] == [True, True]
    assert all(math.isfinite(row["error"]) for row in result["cases"].values())
    assert len(cost_model.CASES) >= 12
