"""What keeps many small batches cheap: they are read several at a time, and searched where the last search ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop import _core
from outcrop.config import SampleConfig
from outcrop.errors import ArgumentError, IoError
from outcrop.preparation.cached_rows import CacheLookup
from outcrop.preparation.pack_files import Journal, SyncInBackground
from outcrop.preparation.sample import sample
from outcrop.runtime.runtime import Runtime
from outcrop.store.parts import RecordFiles
from outcrop.store.placement import find_sorted
from outcrop.store.samples import open_samples
from run_support import a_graph

Make = Callable[..., Runtime]


@given(
    st.sets(st.integers(-(1 << 62), 1 << 62) | st.integers(0, 40)),
    st.lists(st.integers(0, 40)),
    st.sampled_from([np.int32, np.int64]),
    st.booleans(),
)
def test_rows_are_found_as_numpy_finds_them(
    held: set[int], ids: list[int], dtype: type, rising: bool
) -> None:
    table = np.array(sorted(held), np.int64)
    wanted = np.array(sorted(ids) if rising else ids, dtype)
    positions, rows = find_sorted(table, wanted)
    expected = np.flatnonzero(np.isin(wanted, table))
    assert positions.dtype == rows.dtype == np.int32
    assert positions.tolist() == expected.tolist()
    assert rows.tolist() == np.searchsorted(table, wanted[expected]).tolist()


@given(
    st.sets(st.integers(0, 199)),
    st.sets(st.integers(0, 199)),
    st.lists(st.integers(0, 199)),
    st.sampled_from([np.int32, np.int64]),
    st.booleans(),
)
def test_caches_are_searched_or_have_an_index_of_what_they_hold(
    host: set[int], device: set[int], ids: list[int], dtype: type, room: bool
) -> None:
    """Both say what NumPy says; an index is made where the budget has room."""
    tables = [np.array(sorted(held), np.int64) for held in (host, device)]
    wanted = np.array(ids, dtype)
    with Runtime("1MiB", threads=1) as runtime:
        taken = runtime.budget.reserve("test", runtime.budget.free_bytes - (4096 if room else 0))
        caches = CacheLookup(*tables, 200, runtime)
        assert (caches._index is not None) == room
        for table, (positions, rows) in zip(tables, caches.find(wanted), strict=True):
            expected = np.flatnonzero(np.isin(wanted, table))
            assert positions.dtype == rows.dtype == np.int32
            assert positions.tolist() == expected.tolist()
            assert rows.tolist() == np.searchsorted(table, wanted[expected]).tolist()
        del taken, caches


def test_an_id_that_is_no_row_is_not_looked_up(make_runtime: Make) -> None:
    index = _core.HotIndex(make_runtime().budget, 64, np.array([3], np.int64), np.zeros(0, np.int64))
    out = [np.zeros(1, np.int32) for _ in range(4)]
    for wrong in (-1, 64):
        with pytest.raises(ArgumentError, match=f"row {wrong} of 64 is looked up"):
            index.find(np.array([wrong], np.int64), *out)
    with pytest.raises(ArgumentError):
        index.find(np.array([3], np.int64), *out[:3], np.zeros(0, np.int32))


@pytest.mark.parametrize("memory", [None, "300KiB"])
@pytest.mark.parametrize("parts", [1, 3])
def test_batches_read_several_at_a_time_are_those_read_alone(
    tmp_path: Path, make_runtime: Make, memory: str | None, parts: int
) -> None:
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime)
    config = SampleConfig(fanouts=(4, 4), batch_size=20, epochs=2)
    sample(graph, config, tmp_path / "sample", runtime, parts=parts)
    other = make_runtime(memory, threads=1)  # not the one that has opened the files
    found = open_samples(runtime, tmp_path / "sample")
    buffer = np.zeros(found.max_record_bytes, np.uint8)
    (rows,) = graph.row_files
    section = found.section(rows)
    order = [3, 4, 5, 0, *range(found.num_batches)]
    ids = [one.copy() for one in section.in_turn(order, other, "test")]
    for batch, one in zip(order, ids, strict=True):
        assert one.tolist() == section.read_ids(batch, buffer).tolist()
    for batch, one in zip(order, found.in_turn(order, other, "test"), strict=True):
        assert one.n_id.tolist() == found.read(batch, buffer).n_id.tolist()
    assert memory is None or other.budget.peak_bytes <= 300 << 10


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2)), min_size=1), st.integers(1, 30))
def test_records_are_grouped_as_far_as_they_fit(records: list[tuple[int, int]], room: int) -> None:
    files = RecordFiles.__new__(RecordFiles)
    files._part = np.array([part for _, part in records])
    sizes = np.array([size for size, _ in records])
    groups = list(files.groups(range(len(records)), sizes, room))
    assert [one for group in groups for one in group] == list(range(len(records)))
    for group, after in zip(groups, [*groups[1:], []], strict=True):
        assert len({records[one][1] for one in group}) == 1
        assert len(group) == 1 or sizes[group].sum() <= room
        if after:  # no more would have fitted
            assert records[after[0]][1] != records[group[0]][1] or sizes[[*group, after[0]]].sum() > room


def test_what_fails_in_the_background_is_told_and_notes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.npz", "key", [1], 1)

    def fails() -> None:
        raise IoError("no space left")

    with SyncInBackground(journal) as syncing:
        syncing.begin(lambda: None)
        syncing.wait()
        journal.chunk = 7
        syncing.begin(fails)
        journal.chunk = 8
        with pytest.raises(IoError, match="no space left"):
            syncing.begin(lambda: None)
    again = Journal(tmp_path / "journal.npz", "key", [1], 1)
    assert again.load()
    assert again.chunk == 0


def test_the_journal_says_what_held_when_writing_out_began(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.npz", "key", [2], 1)
    journal.files[0].crc[:] = 5
    with SyncInBackground(journal) as syncing:
        syncing.begin(lambda: journal.files[0].crc.fill(6))  # as packing does meanwhile
        syncing.wait()
    again = Journal(tmp_path / "journal.npz", "key", [2], 1)
    assert again.load()
    assert again.files[0].crc.tolist() == [5, 5]


def test_without_another_thread_it_is_written_out_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    journal, done = Journal(tmp_path / "journal.npz", "key", [1], 1), []
    with SyncInBackground(journal) as syncing:
        syncing.begin(lambda: done.append(1))
        assert done == [1]
        assert Journal(tmp_path / "journal.npz", "key", [1], 1).load()
