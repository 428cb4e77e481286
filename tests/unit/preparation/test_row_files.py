"""Runs of graphs with several row files: planned, packed and loaded against plain NumPy and brute force."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outcrop.config import CPU, PlanConfig, SampleConfig
from outcrop.errors import FormatError
from outcrop.loading.modes import Packed, SessionRequest
from outcrop.loading.session import LoadSession, packed_session
from outcrop.preparation import pack as packing
from outcrop.preparation.cached_rows import choose_cached_rows
from outcrop.preparation.pack_rows import RowsPacker
from outcrop.preparation.plan import plan
from outcrop.rows import disk_rows
from outcrop.runtime.runtime import Runtime
from outcrop.store import packed, record
from outcrop.store.batches import BatchGraph, Nodes
from outcrop.store.graph_types import NodeType, RowFile
from outcrop.store.levels import Level
from outcrop.store.manifest import ArraySpec
from outcrop.store.placement import Placement, open_placement
from outcrop.store.samples import SampleSet, open_samples
from section_support import (
    DIVISIONS,
    EPOCHS,
    ReferenceSampler,
    SectionGraph,
    graph_of,
    memory_with_cache,
    sample_by_reference,
)

CONFIG = SampleConfig(fanouts=(4, 3), batch_size=20, epochs=EPOCHS, splits=("train",), edge_rows=True)
Make = Callable[..., Runtime]


@pytest.fixture(params=[2, 7])
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> SectionGraph:
    return graph_of(tmp_path / "g", request.param)


def drawn(graph: SectionGraph) -> list[BatchGraph]:
    sampler = ReferenceSampler(graph, CONFIG)
    return [batch for epoch in range(EPOCHS) for batch in sampler.epoch("train", epoch)]


def sampled(graph: Any, folder: Path, runtime: Runtime) -> SampleSet:
    return sample_by_reference(graph, folder, runtime, CONFIG)


def planned(graph: Any, folder: Path, runtime: Runtime, samples: SampleSet, config: PlanConfig) -> Placement:
    plan(graph, samples, config, folder / "plan", runtime)
    return open_placement(runtime, folder / "plan")


def test_sample_sets_give_back_batches_and_sections(graph: Any, tmp_path: Path, make_runtime: Make) -> None:
    samples, expected = sampled(graph, tmp_path, make_runtime(threads=1)), drawn(graph)
    assert samples.manifest.version == 2
    assert samples.num_batches == len(expected)
    buffer = np.zeros(samples.max_record_bytes, np.uint8)
    for number, batch in enumerate(expected):
        found = samples.read(number, buffer)
        assert samples.num_nodes[number] == batch.num_nodes
        assert samples.num_edges[number] == batch.num_edges
        assert np.array_equal(found.labels, batch.labels)
        for ours, nodes in zip(found.nodes, batch.nodes, strict=True):
            assert (ours.per_hop, ours.ids.tolist()) == (nodes.per_hop, nodes.ids.tolist())
        for ours, edges in zip(found.edges, batch.edges, strict=True):
            assert ours.per_hop == edges.per_hop
            assert np.array_equal(ours.rowptr, edges.rowptr)
            assert np.array_equal(ours.col, edges.col)
            assert edges.positions is not None
            assert len(edges.col) == 0 or np.array_equal(ours.positions, edges.positions)
        for rows in graph.row_files:
            section, wanted = samples.section(rows), batch.section(rows)
            ids = section.read_ids(number, np.zeros(section.buffer_bytes, np.uint8))
            assert ids.tolist() == wanted.ids.tolist()
            assert section.runs[number].tolist() == list(wanted.runs)
            assert section.num_rows[number] == len(wanted.ids)


def pack_of(graph: Any, folder: Path, runtime: Runtime, layout: str) -> tuple[SampleSet, Placement]:
    samples = sampled(graph, folder, runtime)
    space = {"disk_space": 1 << 30} if layout != "packed" else {}
    memory = memory_with_cache(graph, samples, graph.feature_bytes // 8, **space)
    config = PlanConfig(memory=memory, slots=2, layout=layout, **space)
    return samples, planned(graph, folder, runtime, samples, config)


def opened(graph: Any, folder: Path, runtime: Runtime) -> LoadSession:
    samples = open_samples(runtime, folder / "sample", graph)
    placement = open_placement(runtime, folder / "plan")
    records = packed.open_packed(runtime, folder / "pack", placement, samples)
    below = [disk_rows(graph, runtime, rows) for rows in graph.row_files]
    return packed_session(graph, samples, records, below, runtime)


@pytest.mark.parametrize("graph", [1, 2, 7, 30], indirect=True)
@pytest.mark.parametrize("layout", ["packed", "3,1"])
def test_packed_rows_are_those_of_every_row_file(
    graph: Any, tmp_path: Path, make_runtime: Make, layout: str
) -> None:
    runtime = make_runtime(threads=1)
    samples, placement = pack_of(graph, tmp_path, runtime, layout)
    manifest, passes, _ = packing.pack(graph, samples, placement, tmp_path / "pack", runtime)
    several = len(graph.row_files) > 1
    assert manifest.version == placement.manifest.version == (3 if several else 2)
    assert passes == 1
    cached = [len(rows.host_ids) for rows in placement.files]
    assert sum(cached) > 30
    assert (sum(rows.num_disk_rows for rows in placement.files) > 30) == (layout != "packed")
    predicted = placement.predicted["epochs"]["train"]
    expected = drawn(graph)
    with opened(graph, tmp_path, make_runtime(threads=2)) as session:
        runtime = session._runtime
        for epoch in range(EPOCHS):
            before = runtime.io.counters.read_bytes
            loader = session.batches("train", epoch)
            for batch in loader:
                wanted = graph.wanted(expected[epoch * len(expected) // EPOCHS + loader.stats.batches - 1])
                for rows, table, file in zip(batch.rows, wanted, graph.row_files, strict=True):
                    assert rows.dtype == getattr(torch, file.spec.dtype)
                    assert rows.contiguous().view(torch.uint8).numpy().tobytes() == table.tobytes()
                del batch
            levels = {str(level): rows for level, rows in loader.stats.rows_by_level.items()}
            assert levels == {**dict.fromkeys(levels, 0), **predicted[epoch]["rows_by_level"]}
            assert loader.stats.bytes_needed == predicted[epoch]["bytes_needed"]
            assert runtime.io.counters.read_bytes - before == predicted[epoch]["bytes_read"]


@pytest.mark.parametrize("memory", ["700KiB", None])
def test_packing_is_the_same_for_every_budget_and_each_row_file_is_read_once_per_pass(
    graph: Any, tmp_path: Path, make_runtime: Make, memory: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(threads=1)
    samples, placement = pack_of(graph, tmp_path, runtime, "3,1")
    packing.pack(graph, samples, placement, tmp_path / "generous", runtime)
    tight = make_runtime(memory, threads=1)
    read: Counter[int] = Counter()
    original = RowsPacker._read_chunks

    def watched(self: Any, start: int, buffers: Any) -> Iterator[Any]:
        for chunk in original(self, start, buffers):
            read[self.placed.number] += len(chunk[1])
            yield chunk

    monkeypatch.setattr(RowsPacker, "_read_chunks", watched)
    again = open_samples(tight, tmp_path / "sample", graph)
    most = packing.pack(
        graph, again, open_placement(tight, tmp_path / "plan"), tmp_path / "pack", tight
    ).passes
    passes = {
        rows.number: read[rows.number] / max(rows.num_rows * rows.row_bytes, 1) for rows in graph.row_files
    }
    assert all(count == int(count) <= most for count in passes.values()), passes
    if memory is not None:
        assert tight.budget.peak_bytes <= 700 << 10
    ours, theirs = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("generous", "pack")
    )
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def test_packing_that_was_interrupted_goes_on_to_the_same_bytes(
    graph: Any, tmp_path: Path, make_runtime: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(threads=1)
    samples, placement = pack_of(graph, tmp_path, runtime, "3,1")
    packing.pack(graph, samples, placement, tmp_path / "whole", runtime)
    original, left = RowsPacker._scatter, 0

    class Killed(Exception):
        pass

    def dying(self: Any, *args: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        original(self, *args)

    monkeypatch.setattr(RowsPacker, "_scatter", dying)
    deaths = 0
    while True:
        limited, left = make_runtime("700KiB", threads=1), 4
        again = open_samples(limited, tmp_path / "sample", graph)
        try:
            packing.pack(graph, again, open_placement(limited, tmp_path / "plan"), tmp_path / "pack", limited)
            break
        except Killed:
            deaths += 1
            assert deaths < 200
    assert deaths > 1
    for path in sorted((tmp_path / "whole").glob("*.bin")):
        assert path.read_bytes() == (tmp_path / "pack" / path.name).read_bytes(), path.name


class _Wanted:
    """A sample set with ``lists[k][b]``, the ids that batch b wants of row file k."""

    def __init__(self, lists: list[list[list[int]]]):
        self._lists = lists

    def section(self, rows: RowFile) -> Any:
        of = self._lists[rows.number]
        return SimpleNamespace(
            in_turn=lambda batches, *_: (np.array(of[batch], np.int64) for batch in batches)
        )


def files_of(counts: list[int], widths: list[int]) -> tuple[RowFile, ...]:
    return tuple(
        RowFile(k, NodeType(k, str(k), 0, n, 0), "features", ArraySpec("x", "uint8", (n, w), w, 0, 0))
        for k, (n, w) in enumerate(zip(counts, widths, strict=True))
    )


def worth_of_what_is_left(wanted: dict[tuple[int, int], int], widths: list[int], room: int) -> int:
    """Returns what the bytes would save that the first row in order of wants leaves free because it does not fit.

    With parts of rows that order would be best: so much whole rows may save less than the best set, and no more.
    """
    for (k, _), count in sorted(wanted.items(), key=lambda item: (-item[1], item[0])):
        if widths[k] > room:
            return room * count
        room -= widths[k]
    return 0


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_most_wanted_rows_are_cached_whatever_their_width(data: st.DataObject) -> None:
    """All subsets of 12 rows of three widths, and all fixed divisions: none saves more, but for a part of one row."""
    widths, counts = [64, 128, 512], [4, 4, 4]
    files = files_of(counts, widths)
    batches = data.draw(st.integers(1, 6))
    lists = [[sorted(data.draw(st.sets(st.integers(0, n - 1)))) for _ in range(batches)] for n in counts]
    room = data.draw(st.integers(0, 3000))
    wanted = {
        (k, row): sum(row in batch for batch in lists[k]) for k, n in enumerate(counts) for row in range(n)
    }
    with Runtime("64MiB") as runtime:
        chosen = choose_cached_rows(files, _Wanted(lists), np.arange(batches), 0, room, runtime)  # type: ignore[arg-type]
    held = [(k, int(row)) for k, levels in enumerate(chosen) for row in levels.host_ids]
    used = sum(widths[k] for k, _ in held)
    saved = sum(widths[k] * wanted[k, row] for k, row in held)
    assert used <= room
    assert all(wanted[one] for one in held)
    best = max(
        sum(widths[k] * wanted[k, row] for k, row in some)
        for size in range(13)
        for some in combinations(wanted, size)
        if sum(widths[k] for k, _ in some) <= room
    )
    assert saved <= best
    lost = worth_of_what_is_left(wanted, widths, room)
    assert best - saved <= lost
    for fifths in DIVISIONS:
        fixed = 0
        for k, part in enumerate(fifths):
            ranked = sorted((wanted[k, row] for row in range(counts[k])), reverse=True)
            fixed += widths[k] * sum(ranked[: room * part // 5 // widths[k]])
        assert fixed <= saved + lost


def test_the_device_has_the_rows_wanted_most_and_the_host_those_after(make_runtime: Make) -> None:
    files = files_of([6, 6], [64, 128])
    lists = [
        [[row for row in range(6) if batch < 6 - row] for batch in range(6)],
        [[row for row in range(6) if batch < 6 - row] for batch in range(6)],
    ]
    chosen = choose_cached_rows(files, _Wanted(lists), np.arange(6), 192, 384, make_runtime())  # type: ignore[arg-type]
    assert [one.device_ids.tolist() for one in chosen] == [[0], [0]]
    assert [one.host_ids.tolist() for one in chosen] == [[1, 2], [1, 2]]


def test_narrow_rows_are_packed_where_there_are_others(make_runtime: Make) -> None:
    lists = [[[0, 1]] * 3, [[0]] * 3]
    files = files_of([2, 2], [32, 64])
    chosen = choose_cached_rows(files, _Wanted(lists), np.arange(3), 0, 10_000, make_runtime())  # type: ignore[arg-type]
    assert [one.host_ids.tolist() for one in chosen] == [[], [0]]
    alone = files_of([2], [32])
    (only,) = choose_cached_rows(alone, _Wanted(lists), np.arange(3), 0, 10_000, make_runtime())  # type: ignore[arg-type]
    assert only.host_ids.tolist() == [0, 1]


def test_mode_packed_opens_such_a_run(graph: Any, tmp_path: Path, make_runtime: Make) -> None:
    made = make_runtime(threads=1)
    samples, placement = pack_of(graph, tmp_path, made, "packed")
    packing.pack(graph, samples, placement, tmp_path / "pack", made)
    runtime, expected = make_runtime(threads=2), drawn(graph)
    recorded = open_samples(runtime, tmp_path / "sample", graph)
    request = SessionRequest(graph, runtime, CONFIG, CPU, run=tmp_path, recorded=recorded)
    with Packed().open(request) as session:
        for number, batch in enumerate(session.batches("train", 0)):
            for rows, table in zip(batch.rows, graph.wanted(expected[number]), strict=True):
                assert rows.contiguous().view(torch.uint8).numpy().tobytes() == table.tobytes()
            del batch


def test_levels_of_each_row_file_are_told(graph: Any, tmp_path: Path, make_runtime: Make) -> None:
    runtime = make_runtime(threads=1)
    samples, placement = pack_of(graph, tmp_path, runtime, "packed")
    packing.pack(graph, samples, placement, tmp_path / "pack", runtime)
    with opened(graph, tmp_path, make_runtime(threads=1)) as session:
        loader = session.batches("train", 0)
        for batch in loader:
            del batch
        for rows, levels in zip(placement.files, loader.stats.rows_by_file, strict=True):
            count = len(drawn(graph)) // EPOCHS
            assert levels.get(Level.PACKED, 0) == rows.num_packed[:count].sum()
            assert levels.get(Level.HOST, 0) == rows.cached_rows[:count, 0].sum()


def test_a_record_with_other_rows_than_its_batch_is_refused(
    graph: Any, tmp_path: Path, make_runtime: Make
) -> None:
    """A node more, where the record is as large, and its checksum right: the buffer would hold what it held before."""
    runtime = make_runtime(threads=1)
    samples, placement = pack_of(graph, tmp_path, runtime, "packed")
    packing.pack(graph, samples, placement, tmp_path / "pack", runtime)
    records = packed.open_packed(runtime, tmp_path / "pack", placement, samples)
    file = np.memmap(tmp_path / "pack/records.bin", np.uint8, "r+")
    for p, batch in enumerate(placement.packed_batches.tolist()):
        begin, end = placement.part_starts(samples)[p, :2]
        meta = file[begin:end]
        structure, tables = records.decode(batch, np.array(meta))
        ids, per_hop = structure.nodes[0].ids, structure.nodes[0].per_hop
        if len(ids) % 2:  # 4 bytes of padding behind an odd number of ids
            more = Nodes(np.append(ids, ids[-1]), (*per_hop[:-1], per_hop[-1] + 1))
            lie = dataclasses.replace(structure, nodes=(more, *structure.nodes[1:]))
            with pytest.raises(FormatError, match="belongs to another plan"):
                records.decode(batch, record.encode(lie, tables, samples.id_bytes))
            break
    else:
        pytest.fail("no batch has an odd number of nodes")
