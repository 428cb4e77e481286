"""Loading graphs with several row files: each batch has the rows of every row file, in every mode that takes them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from outcrop.config import CPU, SampleConfig
from outcrop.errors import ArgumentError, BudgetError, ChecksumError
from outcrop.loading import needs
from outcrop.loading.modes import (
    BASELINES,
    CHOICES,
    Belady,
    Dynamic,
    InMemory,
    Mode,
    OnDisk,
    SessionRequest,
    base,
    mode_named,
)
from outcrop.loading.needs import CountedBatches
from outcrop.loading.online import session as online
from outcrop.loading.online.hotness import Hotness
from outcrop.loading.open import open_session
from outcrop.loading.passes import Passes
from outcrop.loading.session import LoadSession
from outcrop.runtime.runtime import Runtime
from outcrop.store.levels import Level
from outcrop.store.minibatch import MiniBatch
from outcrop.store.targets import open_targets, target_bytes
from run_support import a_graph
from section_support import (
    EPOCHS,
    ReferenceSampler,
    SectionGraph,
    as_batch,
    graph_of,
    sample_by_reference,
)
from typed_reference import TypedGraph, sample
from typed_store import write_typed

MODES = ("memory", "memmap", "ondisk", "dynamic", "online")
CONFIG = SampleConfig(fanouts=(4, 3), batch_size=20, epochs=EPOCHS, edge_rows=True)
RECORDED = replace(CONFIG, splits=("train",))
Make = Callable[..., Runtime]
Open = Callable[..., LoadSession]


@pytest.fixture(params=[2, 7])
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> SectionGraph:
    return graph_of(tmp_path / "g", request.param)


@pytest.fixture
def open_mode(make_runtime: Make, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a session of a mode whose batches the reference draws."""
    for module in (base, online):
        monkeypatch.setattr(module, "BatchSampler", ReferenceSampler)

    def opened(of: SectionGraph, mode: str | Mode, memory: int | str | None = None) -> LoadSession:
        return open_session(of, make_runtime(memory, threads=2), mode, config=CONFIG)

    return opened


def open_recorded(mode: Mode, graph: SectionGraph, folder: Path, runtime: Runtime) -> LoadSession:
    """Opens a session of batches that the sample stage has written."""
    samples = sample_by_reference(graph, folder, runtime, RECORDED)
    return mode.open(SessionRequest(graph, runtime, RECORDED, CPU, run=folder, recorded=samples))


def check_rows(batch: MiniBatch, graph: SectionGraph) -> None:
    wanted = graph.wanted(batch.graph)
    assert len(batch.rows) == len(wanted)
    for rows, expected, file in zip(batch.rows, wanted, graph.row_files, strict=True):
        assert rows.dtype == getattr(torch, file.spec.dtype)
        assert tuple(rows.shape) == expected.shape
        assert rows.contiguous().view(torch.uint8).numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_those_of_every_row_file(graph, open_mode, mode):
    with open_mode(graph, mode) as session:
        for epoch in range(EPOCHS):
            drawn = list(ReferenceSampler(graph, CONFIG).epoch("train", epoch))
            batches = session.batches("train", epoch)
            for batch, expected in zip(batches, drawn, strict=True):
                for nodes, ids in zip(batch.graph.nodes, expected.nodes, strict=True):
                    assert np.array_equal(nodes.ids, ids.ids)
                check_rows(batch, graph)
                assert batch.y.tolist() == list(range(len(batch.y)))
                del batch


@pytest.mark.parametrize("graph", [1, 30], indirect=True)
@pytest.mark.parametrize("mode", [*MODES, "belady"])
def test_rows_of_one_type_among_several_and_of_thirty(graph, tmp_path, open_mode, make_runtime, mode):
    if mode == "belady":
        opened = open_recorded(mode_named(mode), graph, tmp_path, make_runtime(threads=2))
    else:
        opened = open_mode(graph, mode)
    with opened as session:
        for epoch in range(EPOCHS):
            for batch in session.batches("train", epoch):
                check_rows(batch, graph)
                del batch


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_counted_by_level_and_by_row_file(graph, open_mode, mode):
    drawn = list(ReferenceSampler(graph, CONFIG).epoch("train", 0))
    counts = np.sum([[len(rows) for rows in graph.wanted(batch)] for batch in drawn], axis=0)
    widths = [table.shape[1] * table.itemsize for table in graph.tables]
    with open_mode(graph, mode) as session:
        batches = session.batches("train", 0)
        for batch in batches:
            del batch
        stats = batches.stats
    assert [sum(levels.values()) for levels in stats.rows_by_file] == counts.tolist()
    assert sum(map(Counter, stats.rows_by_file), Counter()) == Counter(stats.rows_by_level)
    from_disk = [levels.get(Level.DISK, 0) + levels.get(Level.MAP, 0) for levels in stats.rows_by_file]
    assert stats.bytes_needed == int(np.dot(from_disk, widths))
    if mode == "memory":
        assert stats.rows_by_level == {Level.HOST: counts.sum()}
    if mode == "ondisk":
        assert stats.rows_by_level == {Level.DISK: counts.sum()}


def test_what_a_pass_reports_tells_row_files_apart(graph, open_mode, tmp_path, make_runtime):
    drawn = list(ReferenceSampler(graph, CONFIG).epoch("train", 0))
    counts = np.sum([[len(rows) for rows in graph.wanted(batch)] for batch in drawn], axis=0)
    plain = a_graph(tmp_path / "plain", make_runtime(threads=1))
    for of, expected in ((graph, [{"disk": count} for count in counts]), (plain, None)):
        runtime = make_runtime(threads=1)
        session = (
            open_mode(of, "ondisk") if of is graph else open_session(of, runtime, "ondisk", config=CONFIG)
        )
        with session:
            passes = Passes(lambda *_, session=session: session, session._runtime)
            for batch in passes.start("train", 0):
                del batch
            assert json.loads(json.dumps(passes.counters())).get("rows_by_file") == expected


def test_keeping_the_rows_of_one_row_file_keeps_the_batch(graph, open_mode):
    with open_mode(graph, "ondisk") as session:
        for number, file in enumerate(graph.row_files):
            if not file.num_rows:
                continue
            batches = session.batches("train", 0)
            batch = next(batches)
            kept, expected = batch.rows[number], graph.wanted(batch.graph)[number]
            del batch
            for _ in range(5):
                next(batches)
            assert kept.view(torch.uint8).numpy().tobytes() == expected.tobytes()
            batches.close()
            del kept


def test_who_keeps_a_row_file_of_every_batch_gets_an_error(graph, open_mode):
    with open_mode(graph, "memory") as session:
        for number in (0, 1):
            kept = []
            with pytest.raises(BudgetError, match=r"all \d batch buffers .* are held by the caller"):  # noqa: PT012
                for batch in session.batches("train", 0):
                    kept.append(batch.rows[number])
                    del batch
            assert len(kept) == session.buffers
            kept.clear()
            assert sum(1 for _ in session.batches("train", 0)) == 25


@pytest.mark.parametrize("mode", ["memmap", "ondisk"])
def test_buffers_hold_what_the_largest_section_of_each_row_file_needs(graph, open_mode, make_runtime, mode):
    """A row file's rows grow in steps of an eighth, whatever those of the others take."""
    with open_mode(graph, mode) as session:
        budget, count = session._runtime.budget, session.buffers
        for batch in session.batches("train", 0):
            del batch
        held = budget.by_tag["batch-rows"].now_bytes
    drawn = list(ReferenceSampler(graph, CONFIG).epoch("train", 0))
    largest = np.max([[rows.nbytes for rows in graph.wanted(batch)] for batch in drawn], axis=0)
    pages = [-(-size // 4096) + 2 for size in largest.tolist()]
    assert count * 4096 * sum(pages) <= held <= count * 4096 * sum(page + page // 8 + 1 for page in pages)


def test_room_is_made_for_each_row_file(graph, open_mode):
    with open_mode(graph, "ondisk") as session:
        before = session._runtime.budget.by_tag["batch-rows"].now_bytes
        rows = [100 * (number == 1) for number in range(len(graph.row_files))]
        session.make_room(rows)
        width = graph.tables[1].shape[1] * graph.tables[1].itemsize
        grown = session._runtime.budget.by_tag["batch-rows"].now_bytes - before
        least = session.buffers * (100 * width + 2 * 4096 * len(rows))
        assert least <= grown <= least * 9 // 8 + session.buffers * 4096 * (len(rows) + 1)


def test_a_mode_for_graphs_with_one_type_says_which_to_choose(graph, open_mode):
    refused = {mode.name for mode in (*CHOICES, *BASELINES) if not mode.loads_types}
    assert refused == {"partition"}
    for name in refused:
        with pytest.raises(
            ArgumentError,
            match=rf"features of \d of them; mode {name} .* packed, online, memory, memmap, ondisk",
        ):
            open_mode(graph, name)


def test_memory_must_hold_all_row_files(graph, open_mode):
    with pytest.raises(BudgetError, match="features"):
        open_mode(graph, InMemory(), sum(table.nbytes for table in graph.tables))


@pytest.mark.parametrize("cache_rows", [0, 1, 90, 10**6])
def test_rows_of_a_dynamic_cache_are_divided_by_what_is_wanted(graph, open_mode, cache_rows):
    drawn = list(ReferenceSampler(graph, CONFIG).epoch("train", 0))
    wanted = np.sum([[rows.nbytes for rows in graph.wanted(batch)] for batch in drawn], axis=0)
    with open_mode(graph, Dynamic(cache_rows=cache_rows)) as session:
        for batch in session.batches("train", 0):
            check_rows(batch, graph)
            del batch
        batches = session.batches("train", 0)
        for batch in batches:
            check_rows(batch, graph)
            del batch
    again = batches.stats.rows_by_file
    if cache_rows == 10**6:  # all are there by then
        assert all(not levels.get(Level.DISK) for levels in again)
    if cache_rows == 90:  # papers have most of it
        hits = [
            levels.get(Level.HOST, 0) * table.nbytes / max(len(table), 1)
            for levels, table in zip(again, graph.tables, strict=True)
        ]
        assert wanted.argmax() == np.argmax(hits) == 0
    assert cache_rows or all(not levels.get(Level.HOST) for levels in again)


def test_the_caches_of_mode_dynamic_keep_within_what_one_would_have(graph, open_mode):
    memory = 3 << 20
    with open_mode(graph, "dynamic", memory) as session:
        for epoch in range(EPOCHS):
            for batch in session.batches("train", epoch):
                check_rows(batch, graph)
                del batch
        budget = session._runtime.budget
        assert budget.peak_bytes <= memory
        assert budget.by_tag["row-cache"].now_bytes > 0


@pytest.mark.parametrize("mode", ["dynamic", "online"])
def test_caches_keep_to_the_budget_and_grow_with_it(graph, open_mode, mode):
    """With all the memory there is, every row that was counted is cached by mode online."""
    hits, disk = [], []
    for memory in (*(kib << 10 for kib in (400, 600, 800, 1000, 2000)), None):
        try:
            with open_mode(graph, mode, memory) as session:
                batches = session.batches("train", 0)
                for batch in batches:
                    check_rows(batch, graph)
                    del batch
                assert memory is None or session._runtime.budget.peak_bytes <= memory
        except BudgetError:  # which a larger one is not
            assert not hits
            continue
        hits.append(batches.stats.rows_by_level.get(Level.HOST, 0))
        disk.append(batches.stats.rows_by_level.get(Level.DISK, 0))
    assert len(hits) >= 3
    assert hits == sorted(hits)
    assert hits[0] < hits[-1]
    assert mode == "dynamic" or disk[-1] == 0


def test_rows_that_outgrow_what_was_counted_are_asked_for_again(graph, open_mode, monkeypatch):
    """Each row file's buffer grows by itself: hop 2 of one type comes before hop 2 of the next."""
    few = property(lambda _: [1] * (len(graph.tables) + 1), lambda *_: None)
    monkeypatch.setattr(Hotness, "most", few, raising=False)
    with open_mode(graph, "online") as session:
        for batch in session.batches("train", 0):
            check_rows(batch, graph)
            del batch


def test_targets_are_those_of_the_type_of_the_seeds(tmp_path, make_runtime):
    """A type may have classes, another several labels, a third a value; most have none."""
    lists = TypedGraph(
        (6, 5, 4, 3), ((1, 0), (0, 1), (0, 2), (2, 3)), (((),) * 6, ((),) * 5, ((),) * 4, ((),) * 3)
    )
    rng = np.random.default_rng(0)
    several = rng.choice(np.array([0, 1, 255], np.uint8), (5, 3))
    value = rng.random(4).astype(np.float32)
    value[2] = np.nan
    arrays = {"n0.labels": np.arange(6), "n1.labels": several, "n2.labels": value}
    arrays |= {f"n{t}.features": np.zeros((size, 2), np.float32) for t, size in enumerate(lists.sizes)}
    kinds = {1: "multilabel", 2: "regression"}
    graph = write_typed(tmp_path / "g", lists, arrays, {0: 6, 1: 3, 2: 1}, kinds=kinds)
    runtime = make_runtime(threads=1)
    targets = open_targets(graph, runtime)
    assert targets is not None
    assert target_bytes(graph, 7) == 7 * 3 * 4  # the widest
    for seed_type, expected in enumerate((None, np.where(several == 255, np.nan, several), value, None)):
        batch = as_batch(sample(lists, {seed_type: [0, 2]}, 2), seed_type)
        found = targets(batch)
        if expected is None:
            assert found is batch
        else:
            assert found.labels.dtype == np.float32
            np.testing.assert_array_equal(found.labels, expected[[0, 2]])
    none = write_typed(tmp_path / "none", lists, {"n0.features": arrays["n0.features"]})
    assert open_targets(none, runtime) is None
    assert target_bytes(none, 7) == 0


@pytest.mark.parametrize("mode", ["ondisk", "online", "memory", "dynamic"])
def test_damage_in_any_row_file_is_found_and_named(graph, open_mode, mode):
    for file in graph.row_files:
        if not file.num_rows:
            continue
        path = graph.path / file.spec.file
        whole = path.read_bytes()
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        with pytest.raises(ChecksumError, match=re.escape(str(path))), open_mode(graph, mode) as session:
            sum(1 for _ in session.batches("train", 0))
        path.write_bytes(whole)
    with open_mode(graph, mode) as session:
        for batch in session.batches("train", 0):
            check_rows(batch, graph)
            del batch


@pytest.mark.parametrize("mode", ["memory", "memmap", "ondisk", "dynamic", "belady"])
def test_recorded_batches_have_the_rows_of_every_row_file(graph, tmp_path, make_runtime, mode):
    with open_recorded(mode_named(mode), graph, tmp_path, make_runtime(threads=2)) as session:
        for epoch in (0, 1, 0):
            for batch in session.batches("train", epoch):
                check_rows(batch, graph)
                del batch


def test_buffers_of_recorded_batches_are_as_large_as_the_largest_section(graph, tmp_path, make_runtime):
    drawn = [
        batch for epoch in range(EPOCHS) for batch in ReferenceSampler(graph, CONFIG).epoch("train", epoch)
    ]
    largest = np.max([[rows.nbytes for rows in graph.wanted(batch)] for batch in drawn], axis=0)
    pages = sum(-(-size // 4096) + 2 for size in largest.tolist() if size)
    with open_recorded(OnDisk(), graph, tmp_path, make_runtime(threads=2)) as session:
        held = session._runtime.budget.by_tag["batch-rows"].now_bytes
        assert held == session.buffers * 4096 * pages
        for epoch in range(EPOCHS):
            for batch in session.batches("train", epoch):
                del batch
        grown = session._runtime.budget.by_tag["batch-rows"].now_bytes - held
        assert grown == session.buffers * 4096 * 2 * int(
            (largest == 0).sum()
        )  # room for nothing takes two pages


@pytest.mark.parametrize("cache_rows", [0, 50, 10**6])
def test_optimal_caches_of_row_files_miss_no_more_than_those_that_learn(
    graph, tmp_path, make_runtime, cache_rows
):
    """With an equal number of rows of each, no policy misses fewer than the one that knows what comes."""
    misses = []
    for kind in (Belady, Dynamic):
        folder, runtime = tmp_path / kind.name, make_runtime(threads=1)
        folder.mkdir()
        with open_recorded(kind(cache_rows=cache_rows), graph, folder, runtime) as session:
            of_files = []
            for epoch in range(EPOCHS):
                batches = session.batches("train", epoch)
                for batch in batches:
                    del batch
                of_files.append([levels.get(Level.DISK, 0) for levels in batches.stats.rows_by_file])
            misses.append(np.sum(of_files, axis=0))
    assert (misses[0] <= misses[1]).all()
    assert cache_rows == 0 or (misses[0] < misses[1]).any() or cache_rows == 10**6


def test_counted_batches_have_the_sections_of_recorded_ones(graph, tmp_path, make_runtime, monkeypatch):
    """What a rehearsal of a budget supposes is what a run would have."""
    monkeypatch.setattr(needs, "BatchSampler", ReferenceSampler)
    passes = [("train", epoch) for epoch in range(EPOCHS)]
    counted = CountedBatches(graph, RECORDED, passes, ids={"train": np.arange(500)})
    recorded = sample_by_reference(graph, tmp_path, make_runtime(threads=1), RECORDED)
    assert counted.max_rows == tuple(recorded.section(file).max_rows for file in graph.row_files)
    first = list(ReferenceSampler(graph, CONFIG).epoch("train", 0))
    assert counted.counted_rows == tuple(
        max(len(rows[number]) for rows in map(graph.wanted, first)) for number in range(len(graph.row_files))
    )
    for file in graph.row_files:
        ours, theirs = counted.section(file), recorded.section(file)
        assert ours.num_rows.tolist() == theirs.num_rows.tolist()
        assert (ours.id_bytes, ours.num_runs) == (theirs.id_bytes, theirs.num_runs)
