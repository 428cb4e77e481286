"""Refused memory budgets: the smallest that is named works to the end, and a byte less is refused."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import outcrop as oc
from outcrop.advisor.choose import SpoolDecision
from outcrop.api.infer import infer
from outcrop.api.run import Run
from outcrop.api.train import train
from outcrop.config import SampleConfig
from outcrop.errors import BudgetError
from outcrop.inference.division import default_memory
from outcrop.loading.modes import Online, online
from outcrop.loading.open import open_session
from outcrop.pyg import NeighborLoader
from outcrop.runtime import system
from outcrop.runtime.progress import SilentProgress
from outcrop.runtime.runtime import Runtime
from outcrop.runtime.smallest_budget import naming_smallest, smallest
from outcrop.runtime.system import available_memory
from outcrop.store.graph import Graph
from outcrop.training import spool
from prepare_support import prepare
from run_support import a_graph, skewed_edges
from sparse_reference import bag_of_words

MODES = ("packed", "online", "memory", "memmap", "ondisk", "dynamic", "partition")
OPTIONS = {"fanouts": (3, 3), "batch_size": 16, "hidden": 4, "epochs": 1}


def follow(call: Callable[[int], Any], *, monotone: bool = True) -> int:
    """Starts at a byte, takes the budget that is named: it works, a byte less is refused with the same name.

    Without ``monotone`` another budget may be named then.
    """
    with pytest.raises(BudgetError) as refused:
        call(1)
    named = refused.value.smallest
    assert named is not None
    assert f"the smallest budget that can is {named} bytes" in str(refused.value)
    call(named)
    with pytest.raises(BudgetError) as refused:
        call(named - 1)
    assert refused.value.smallest is not None
    assert refused.value.smallest == named or not monotone
    return named


def follow_training(graph: Graph, mode: str, **options: Any) -> int:
    def call(memory: int) -> None:
        shutil.rmtree(graph.path.with_name(graph.path.name + ".run"), ignore_errors=True)
        shutil.rmtree(graph.path.with_name(graph.path.name + ".pools"), ignore_errors=True)
        train(graph, mode=mode, memory=memory, **{**OPTIONS, **options})

    return follow(call, monotone=mode != "partition")  # other budgets hold other partitions


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("mode", [*MODES[:-1], pytest.param(MODES[-1], marks=pytest.mark.slow)])
def test_training_names_the_smallest_budget_of_each_mode(tmp_path, make_runtime, mode):
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=400, width=33)
    follow_training(graph, mode)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("mode", ["online", "packed", "ondisk", "dynamic", "memory"])
def test_training_names_the_smallest_budget_where_rows_are_decoded(tmp_path, mode):
    """Values of 4 KiB of rows of 40 bytes at most: two buffers of them are most of the budget."""
    rng = np.random.default_rng(2)
    order = rng.permutation(400)
    graph = oc.import_graph(
        skewed_edges(400, 3000, 0),
        tmp_path / "g",
        features=bag_of_words(rng, 400, 1024, 12),
        labels=rng.integers(0, 4, 400),
        splits={"train": order[:90], "valid": order[90:120], "test": order[120:160]},
        progress=False,
    )
    assert graph.row_file.decoded_bytes == 4096
    assert follow_training(graph, mode) > 2 * 100 * 4096


def test_the_smallest_is_found_where_shares_are_rounded():
    """The first that fits, though the next does not: where a 16th and a 32nd of the budget are set aside."""

    def fits(limit: int) -> bool:
        return limit - limit // 16 - limit // 32 >= 58_001

    by_hand = next(n for n in range(100_000) if fits(n))
    assert not fits(by_hand + 1)
    assert [smallest(refused, fits) for refused in (1, 50_000, 63_990, by_hand - 1)] == 4 * [by_hand]
    assert smallest(1, lambda limit: False) is None


@pytest.mark.parametrize(("share", "needed"), [(80, 324_980), (20, 81_000), (48, 195_600)])
def test_the_smallest_is_found_where_shares_are_whole_pages(share: int, needed: int):
    """Budgets that leave just enough are below some that do not, whose caches have a page more."""

    def fits(limit: int) -> bool:
        return limit - limit // share // 4096 * 4096 >= needed

    page_more = share * 4096
    assert [fits(n) for n in (needed - 1, needed, page_more - 1, page_more)] == [False, True, True, False]
    assert {smallest(refused, fits) for refused in (1, needed // 2, needed - 4096, needed - 1)} == {needed}
    assert {smallest(refused, fits) for refused in (page_more, needed + 4095)} == {needed + 4096}


def test_objects_from_before_are_not_collected_over_and_over():
    """Each budget that is tried may collect garbage: a full collection, with torch loaded, takes long."""
    frozen: list[int] = []

    def fits(limit: int) -> bool:
        frozen.append(gc.get_freeze_count())
        return limit >= 50_000

    with pytest.raises(BudgetError), naming_smallest(1000, lambda: fits, "do this"):
        raise BudgetError("too small")
    assert min(frozen) > 1000
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("refused", [1, 20_000, 300_000, 700_000])
def test_every_refusal_of_preparing_names_the_same_budget(tmp_path, make_runtime, refused):
    """Whatever it fails at: the I/O engine, the splits, drawing, buffers."""
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=4000, edges=40000, width=60, train=900)
    options = {"fanouts": (6, 5), "batch_size": 64, "epochs": 1}
    with pytest.raises(BudgetError) as error:
        prepare(graph, tmp_path / "refused", **options, memory=refused)
    named = error.value.smallest
    prepare(graph, tmp_path / "run", **options, memory=named)
    assert sum(batch.batch_size for batch in Run(tmp_path / "run").loader()) == 900
    with pytest.raises(BudgetError, match=f"the smallest budget that can is {named} bytes"):
        prepare(graph, tmp_path / "less", **options, memory=named - 1)


@pytest.mark.parametrize("mode", ["packed", "online", "belady"])
def test_a_run_that_is_there_names_its_smallest_budget(tmp_path, make_runtime, mode):
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=500, width=40)
    prepare(graph, tmp_path / "run", fanouts=(3, 3), batch_size=16, epochs=2, memory="4MiB")
    follow(
        lambda memory: train(graph, run=tmp_path / "run", mode=mode, hidden=4, epochs=2, memory=memory),
        monotone=mode != "partition",
    )


@pytest.mark.parametrize("mode", ["packed", "online", "ondisk"])
def test_loaders_name_the_smallest_budget(tmp_path, make_runtime, mode):
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=500, width=40)
    prepare(graph, tmp_path / "run", fanouts=(3, 3), batch_size=16, epochs=1, memory="4MiB")
    follow(lambda memory: sum(1 for _ in Run(tmp_path / "run", memory=memory).loader(mode=mode)))


def test_neighbor_loaders_name_the_smallest_budget(tmp_path, make_runtime):
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=2000, width=40, train=300)
    follow(lambda memory: sum(1 for _ in NeighborLoader(
        graph, [5, 5], input_nodes="train", batch_size=32, shuffle=True, seed=0, memory=memory
    )))  # fmt: skip


def test_pools_name_the_smallest_budget(tmp_path, make_runtime):
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=500, width=40)
    follow_training(graph, "packed", refresh=True, epochs=2)


def test_infer_takes_what_it_needs(tmp_path, make_runtime):
    """Without a budget: nothing in proportion to what would be allowed, where the graph is small."""
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=2000, width=33)
    train(graph, mode="memory", model="gcn", checkpoint=tmp_path / "ckpt", **OPTIONS)
    report = infer(graph, checkpoint=tmp_path / "ckpt", out=tmp_path / "all.npy")
    assert report.budget["memory"] == default_memory(available_memory())
    assert report.peak_host_bytes < 64 << 20
    for method in ("layerwise", "sampled"):
        scored = {"checkpoint": tmp_path / "ckpt", "out": tmp_path / f"{method}.npy", "method": method}
        follow(lambda memory, scored=scored: infer(graph, **scored, memory=memory))


@pytest.mark.parametrize("fanouts", [None, (1, 1)])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_what_layerwise_inference_advises_helps(tmp_path, make_runtime, model, fanouts):
    """Smaller mini-batches change nothing where there are none: it is the other method that takes less."""
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=2000, width=33)
    train(graph, mode="memory", model=model, checkpoint=tmp_path / "ckpt", **OPTIONS)
    scored = {"checkpoint": tmp_path / "ckpt", "out": tmp_path / "o.npy"}
    with pytest.raises(BudgetError, match="; --method sampled --batch-size 1 with low") as refused:
        infer(graph, **scored, memory=1)
    less = refused.value.smallest // 2
    with pytest.raises(BudgetError):
        infer(graph, **scored, memory=less)
    infer(graph, **scored, method="sampled", batch_size=1, fanouts=fanouts, nodes=list(range(9)), memory=less)


def test_the_default_budget_of_infer_is_a_share_of_the_machine():
    gib = 1 << 30
    found = [default_memory(n) for n in (0, 3, gib - 1, gib, 3 * gib, 5 * gib, 64 * gib)]
    assert found == [1, 1, gib // 4, gib // 2, gib, 2 * gib, 4 * gib]


def test_mode_memory_does_not_inherit_the_budget_of_a_run(tmp_path, make_runtime):
    """It needs all features in memory by definition: 4000 rows of 1600 bytes, with a run for less."""
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=4000, width=400)
    prepare(graph, tmp_path / "run", fanouts=(3, 3), batch_size=16, epochs=1, memory="4MiB")
    report = train(graph, run=tmp_path / "run", mode="memory", hidden=4, epochs=1)
    assert report.peak_by_tag["features"] >= graph.feature_bytes > 4 << 20
    assert sum(b.batch_size for b in Run(tmp_path / "run").loader(mode="memory")) == 90
    with pytest.raises(BudgetError):
        train(graph, run=tmp_path / "run", mode="memory", hidden=4, epochs=1, memory="4MiB")


def test_buffers_that_grow_hop_by_hop_are_rehearsed(tmp_path, make_runtime):
    """Validation has larger batches than the training batches that are counted ahead: found by the test below."""
    graph = a_graph(
        tmp_path / "g", make_runtime(threads=1), nodes=324, edges=1274, width=260, train=35, seed=2
    )
    options = {"sampler": "shadow", "fanouts": (2,), "batch_size": 40, "epochs": 3, "refresh": True}
    follow_training(graph, "online", model="gcn", sample_epochs=1, topology="map", **options)


def test_a_larger_budget_is_not_refused_where_a_smaller_one_works(tmp_path, make_runtime):
    """Lists of neighbours that fit their share of it left too little for batch buffers; they stay on disk then."""
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=4000, edges=60_000, width=100, train=200)
    options = {**OPTIONS, "fanouts": (5, 5), "batch_size": 64, "disk_space": 0}
    with pytest.raises(BudgetError) as refused:
        train(graph, mode="online", memory=1, **options)
    least = refused.value.smallest
    assert least is not None
    losses = {
        tuple(
            train(graph, mode="online", memory=least * step // 10, trace_losses=True, **options).batch_losses
        )
        for step in (10, 12, 13, 14, 15, 16, 17, 20)
    }
    assert len(losses) == 1


@pytest.mark.parametrize(("system_has", "left"), [(1 << 40, "map"), (1000, "paged")])
def test_lists_that_leave_too_little_go_where_the_system_has_room(
    tmp_path, make_runtime, monkeypatch, system_has, left
):
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=4000, edges=60_000, width=100, train=200)
    config = SampleConfig((5, 5), batch_size=64)
    monkeypatch.setattr(system, "available_memory", lambda: system_has)
    opened = []
    monkeypatch.setattr(online, "open_online", lambda *_, topology, **__: opened.append(topology) or refuse())
    with pytest.raises(BudgetError), Runtime("2MiB") as runtime:
        open_session(graph, runtime, "online", config=config)
    assert opened == ["automatic", left]
    with pytest.raises(BudgetError), Runtime("200KiB") as runtime:  # the lists did not fit anyway
        open_session(graph, runtime, "online", config=config)
    with pytest.raises(BudgetError), Runtime("2MiB") as runtime:  # who names a place gets it
        open_session(graph, runtime, Online(topology="memory"), config=config)
    assert opened[2:] == ["automatic", "memory"]


def refuse():
    raise BudgetError("batches do not fit")


@pytest.mark.slow
def test_buffers_that_validation_made_larger_are_rehearsed(tmp_path, make_runtime):
    """They stay so in the epochs behind it, whose lists of neighbours are read beside them: found by the test below."""
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=624, edges=921, width=260, train=36)
    options = {"fanouts": (3, 2, 2), "batch_size": 1, "epochs": 3, "sample_epochs": 2, "topology": "paged"}
    follow_training(graph, "partition", **options)


def test_a_page_more_for_lists_is_not_taken_from_the_smallest_budget(tmp_path, make_runtime):
    """Budgets that give cached lists a page more leave too little for batches: found by the test below."""
    graph = a_graph(
        tmp_path / "g",
        make_runtime(threads=1),
        nodes=682,
        edges=1057,
        width=33,
        train=26,
        dtype="float16",
        weighted=True,
    )
    options = {"sampler": "weighted", "fanouts": (-1, 3), "batch_size": 40, "sample_epochs": 2}
    follow_training(graph, "memory", model="gat", topology="paged", **options)


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=(Phase.generate,))
@given(data=st.data())
def test_whatever_is_trained_the_named_budget_works(data, tmp_path_factory):
    draw = data.draw
    runtime = Runtime()
    graph = a_graph(
        tmp_path_factory.mktemp("graph") / "g",
        runtime,
        nodes=draw(st.integers(120, 900)),
        edges=draw(st.integers(500, 6000)),
        width=draw(st.sampled_from((1, 2, 7, 33, 260))),
        train=draw(st.integers(1, 60)),
        dtype=draw(st.sampled_from(("float32", "float16"))),
        seed=draw(st.integers(0, 5)),
        weighted=True,
    )
    runtime.close()
    mode, model = draw(st.sampled_from(MODES)), draw(st.sampled_from(("sage", "gcn", "gat")))
    samplers = ("neighbor",) if mode == "partition" else ("neighbor", "labor", "shadow", "weighted")
    sampler = draw(st.sampled_from(samplers))
    follow_training(
        graph,
        mode,
        model=model,
        sampler=sampler,
        fanouts=draw(st.sampled_from(((2,), (4, 4), (-1, 3), (3, 2, 2)))),
        batch_size=draw(st.sampled_from((1, 5, 40))),
        epochs=draw(st.sampled_from((1, 3))),
        sample_epochs=draw(st.sampled_from((1, 2))),
        refresh=draw(st.booleans()),
        topology=draw(st.sampled_from(("automatic", "paged", "map"))),
    )


class Counting(SilentProgress):
    """Sees batches counted; interrupts after ``stop`` of them."""

    def __init__(self, stop: int = 1 << 30):
        self.stop, self.counted = stop, 0

    def advance(self, task: str, amount: int) -> None:
        self.counted += amount * task.startswith("count batches")
        if self.counted >= self.stop:
            raise KeyboardInterrupt


def test_counting_batches_is_seen_and_can_be_cut_short(tmp_path, make_runtime):
    """It takes as long as drawing them: a user who has seen enough gets the refusal without a number."""
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=400, width=33, train=80)
    seen = Counting()
    with pytest.raises(BudgetError) as refused:
        train(graph, mode="ondisk", memory=1, progress=seen, test=False, **OPTIONS)
    assert refused.value.smallest is not None
    evaluated = -(-graph.spec("valid").shape[0] // OPTIONS["batch_size"])
    assert seen.counted == 80 // OPTIONS["batch_size"] + evaluated
    with pytest.raises(BudgetError) as refused:
        train(graph, mode="ondisk", memory=1, progress=Counting(stop=2), **OPTIONS)
    assert refused.value.smallest is None


def test_online_says_nothing_before_it_refuses(tmp_path, make_runtime, monkeypatch):
    """What it would do and how long that would take is of no use where the budget does not do."""
    monkeypatch.setattr(
        spool, "decide_spooling", lambda *_: SpoolDecision(0, None, "rows are read as batches are drawn")
    )
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=400, width=33)
    said: list[str] = []
    with pytest.raises(BudgetError) as refused:
        train(graph, mode="online", memory=100_000, on_choice=said.append, **OPTIONS)
    assert said == []
    train(graph, mode="online", memory=refused.value.smallest, on_choice=said.append, **OPTIONS)
    assert said == ["rows are read as batches are drawn"]
