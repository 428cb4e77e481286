"""Packing by a log makes, byte for byte, what NumPy says that records are; killed anywhere, it goes on to the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifact_support import differences, tree
from outcrop import _core
from outcrop.config import IoConfig, PlanConfig, SampleConfig
from outcrop.errors import ChecksumError
from outcrop.preparation import pack as packing
from outcrop.preparation import pack_log
from outcrop.preparation.cluster.pieces import PieceSet
from outcrop.preparation.cluster.write_pieces import ChunkWriter
from outcrop.preparation.pack_files import OutputFiles
from outcrop.preparation.pack_log import PackLog, cut_groups
from outcrop.preparation.pack_rows import RowsPacker
from outcrop.preparation.plan import plan
from outcrop.runtime.runtime import Runtime
from outcrop.store.placement import open_placement
from outcrop.store.verify import verify_artifact
from packed_files import check, filled_by, reopened
from packed_files import planned as planned_in_parts
from run_support import (
    ITEM_BYTES,
    PAGE,
    Stages,
    a_graph,
    as_rows,
    config_with_cache,
    planned,
    random_features,
    sampled,
)
from section_support import graph_of, memory_with_cache, sample_by_reference

Make = Callable[..., Runtime]
NODES = 3000


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LOG_WORTH_BYTES", -(1 << 60))


def a_plan(tmp_path: Path, runtime: Runtime, width: int, dtype: str, layout: str = "packed"):
    graph = a_graph(tmp_path / "g", runtime, width=width, dtype=dtype, train=200, nodes=NODES)
    sample_set = sampled(graph, tmp_path, runtime, batch_size=5)
    config = config_with_cache(sample_set, width * ITEM_BYTES[dtype], 50, 20, layout=layout)
    planned(graph, tmp_path, runtime, sample_set, config)
    return graph


def groups_of(run: Stages, graph, runtime: Runtime) -> int:
    log = packing.PackTask(graph, run.samples, run.placement, runtime)._cut_log()
    return 0 if log is None else len(log)


def each_once(pieces: PieceSet, writer: ChunkWriter) -> None:
    for chunk in pieces.all_chunks():
        writer.write(*chunk)


by_pieces = filled_by(each_once, 4 * PAGE)  # as several processes do, without a log


def cut_by(monkeypatch: pytest.MonkeyPatch, most: int, batches: int) -> None:
    """Has groups of at most so many ``batches``, and of ``most`` times the largest record."""

    def cut(starts: np.ndarray, part_bounds: list[int], most_bytes: int, most_batches: int) -> np.ndarray:
        largest = int((starts[:, -1] - starts[:, 0]).max())
        assert most * largest <= most_bytes
        assert batches <= most_batches
        bounds = cut_groups(starts, part_bounds, most * largest, batches)
        assert bounds is not None
        assert len(bounds) > 2 or batches > 9
        return bounds

    monkeypatch.setattr(packing, "cut_groups", cut)


@pytest.mark.parametrize("layout", ["packed", "8,1"])
@pytest.mark.parametrize(
    ("width", "dtype", "memory"),
    [
        (100, "float32", "1200KiB"),
        (1, "int8", "600KiB"),
        (343, "float16", "1200KiB"),
        (343, "float16", None),
        (5001, "int8", "3MiB"),
        (1024, "float32", "2MiB"),
    ],
)
def test_records_equal_numpy(
    tmp_path: Path, make_runtime: Make, width: int, dtype: str, memory: str | None, layout: str
) -> None:
    """Rows smaller and larger than a page, a byte each, and groups of runs that begin and end within one."""
    graph = a_plan(tmp_path, make_runtime(threads=1), width, dtype, layout)
    limited = make_runtime(memory, threads=1)
    run = reopened(graph, tmp_path, limited)
    assert groups_of(run, graph, limited) >= (1 if memory is None else 4)
    packing.pack(graph, run.samples, run.placement, tmp_path / "pack", limited)
    check(run, as_rows(random_features(NODES, width, dtype)))
    assert limited.budget.peak_bytes <= limited.budget.limit_bytes
    verify_artifact(tmp_path / "pack", limited)


@pytest.mark.parametrize("backend", ["pread", "uring"])
@pytest.mark.parametrize("every", [PAGE, 1 << 20])
def test_killed_anywhere_it_goes_on_to_the_same_bytes(
    tmp_path: Path, make_runtime: Make, monkeypatch: pytest.MonkeyPatch, backend: str, every: int
) -> None:
    """While the log is written, while records are made of it, and between what is written and what is noted."""
    monkeypatch.setattr(pack_log, "_SYNC_EVERY_BYTES", every)
    graph = a_plan(tmp_path, make_runtime(threads=1), 343, "float16", "8,1")
    victim, left = "", 0

    class Killed(Exception):
        pass

    def dying(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def call(self, *args, **kwargs):
            nonlocal left
            left -= name == victim
            if left == 0:
                raise Killed
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for owner, name in ((RowsPacker, "_scatter"), (PackLog, "_arrange"), (packing.Journal, "save")):
        dying(owner, name)
    kills = [("_scatter", 9), ("_scatter", 12), ("_arrange", 2), ("save", 1), ("_arrange", 3), ("save", 2)]
    for victim, left in [*kills, ("nobody", -1)]:  # noqa: B007
        limited = make_runtime("1200KiB", threads=1, io=IoConfig(backend=backend, depth=8))
        run = reopened(graph, tmp_path, limited)
        if victim == "nobody":
            packing.pack(graph, run.samples, run.placement, tmp_path / "pack", limited)
        else:
            with pytest.raises(Killed):
                packing.pack(graph, run.samples, run.placement, tmp_path / "pack", limited)
            assert not (tmp_path / "pack").exists()
            run = None
            # What was begun goes on so, whatever others have written to the disk since.
            monkeypatch.setattr(packing.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    check(run, as_rows(random_features(NODES, 343, "float16")))
    verify_artifact(tmp_path / "pack", make_runtime())


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("most", "batches"), [(1, 1), (1, 7), (2, 2), (4, 7)])
def test_groups_of_any_size(
    tmp_path: Path, make_runtime: Make, monkeypatch: pytest.MonkeyPatch, most: int, batches: int, parts: int
) -> None:
    """Of one batch or more, in one file of records or several."""
    monkeypatch.setattr(pack_log, "_SYNC_EVERY_BYTES", PAGE)
    runtime = make_runtime(threads=1)
    stages = planned_in_parts(tmp_path, runtime, width=128, dtype="float32", layout="packed", parts=parts)
    want = packing.pack(*stages, tmp_path / "want", make_runtime(threads=1), by_pieces)
    cut_by(monkeypatch, most, batches)
    packing.pack(*stages, tmp_path / "found", make_runtime(threads=1))
    assert differences(tree(tmp_path / "found"), tree(tmp_path / "want")) == []
    assert want.passes == 1


@pytest.mark.parametrize(("most", "batches"), [(1, 1), (2, 3), (9, 99)])
@pytest.mark.parametrize("files", [2, 7])
@pytest.mark.parametrize("cached", [False, True])
def test_several_row_files(
    tmp_path: Path,
    make_runtime: Make,
    monkeypatch: pytest.MonkeyPatch,
    files: int,
    most: int,
    batches: int,
    cached: bool,
) -> None:
    """Also where some lie in the cache whole, so that batches have no packed rows of them."""
    runtime, graph = make_runtime(threads=1), graph_of(tmp_path / "g", files)
    config = SampleConfig(fanouts=(4, 3), batch_size=20, epochs=1, splits=("train",), edge_rows=True)
    samples = sample_by_reference(graph, tmp_path, runtime, config)
    memory = memory_with_cache(graph, samples, graph.feature_bytes * (19 if cached else 5) // 20)
    plan(graph, samples, PlanConfig(memory=memory, slots=2, layout="packed"), tmp_path / "plan", runtime)
    placement = open_placement(runtime, tmp_path / "plan")
    nothing = [bool((rows.num_packed == 0).any()) for rows in placement.files]
    assert any(nothing) or not cached
    packing.pack(graph, samples, placement, tmp_path / "want", runtime, by_pieces)
    cut_by(monkeypatch, most, batches)
    packing.pack(graph, samples, placement, tmp_path / "found", runtime)
    assert differences(tree(tmp_path / "found"), tree(tmp_path / "want")) == []


def test_what_is_noted_can_be_made_again(
    tmp_path: Path, make_runtime: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of the groups that are not noted has reached the disk, and in what order: their log is whole."""
    monkeypatch.setattr(pack_log, "_SYNC_EVERY_BYTES", 3 * PAGE)
    graph = a_plan(tmp_path, make_runtime(threads=1), 343, "float16")
    limited = make_runtime("1200KiB", threads=1)
    run = reopened(graph, tmp_path, limited)
    original, notes = PackLog._arrange, []

    def watched(self: PackLog, group, log, records, rows, files, journal):
        original(self, group, log, records, rows, files, journal)
        if self._reaches(journal.groups, group):
            notes.append(group)
            return
        for k in range(journal.groups, group + 1):
            end, first = self._end[group], self._log_at[k]
            assert end <= first or self._begin[group] >= first + self._log_bytes[k]

    monkeypatch.setattr(PackLog, "_arrange", watched)
    packing.pack(graph, run.samples, run.placement, tmp_path / "pack", limited)
    assert len(notes) > 1


def test_a_log_that_was_damaged_is_named(
    tmp_path: Path, make_runtime: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = a_plan(tmp_path, make_runtime(threads=1), 343, "float16")
    original = PackLog.put_in_order
    for share in (0.0, 0.4, 0.9):

        def damaged(self: PackLog, rows, files, journal, runtime, share=share):
            path = next(files.folder.glob("records*.bin"))
            at = int(self._log_at[-1] + share * (self._log_bytes[-1] - PAGE))
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 16]))
            original(self, rows, files, journal, runtime)

        monkeypatch.setattr(PackLog, "put_in_order", damaged)
        limited = make_runtime("1200KiB", threads=1)
        run = reopened(graph, tmp_path, limited)
        with pytest.raises(ChecksumError, match=r"records\.bin: .* mini-batch \d+; .*prepare the run again"):
            packing.pack(graph, run.samples, run.placement, tmp_path / "pack", limited)
        for left in tmp_path.glob("*pack*"):
            for file in left.glob("*"):
                file.unlink()


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=20), min_size=1, max_size=4),
    st.integers(9, 40),
    st.integers(1, 5),
)
def test_groups_are_as_few_as_can_be(parts: list[list[int]], most_bytes: int, most_batches: int) -> None:
    starts, part_bounds = [], [0]
    for sizes in parts:
        ends = np.cumsum(sizes)
        starts += [[end - size, end - 1, end] for end, size in zip(ends, sizes, strict=True)]
        part_bounds.append(part_bounds[-1] + len(sizes))
    found = cut_groups(np.array(starts), part_bounds, most_bytes, most_batches)
    expected = [0]
    for first, stop in pairwise(part_bounds):
        held = 0
        for k in range(first, stop):
            size = starts[k][2] - starts[k][0]
            if k > first and (held + size > most_bytes or k - expected[-1] == most_batches):
                expected.append(k)
                held = 0
            held += size
        expected.append(stop)
    assert found is not None
    assert found.tolist() == expected
    assert cut_groups(np.array(starts), part_bounds, max(map(max, parts)) - 1, most_batches) is None


def test_pieces_stay_within_what_they_are_moved_between() -> None:
    data, out = np.arange(16, dtype=np.uint8), np.zeros(16, np.uint8)

    def move(*entries: tuple[int, int, int]) -> None:
        _core.move_pieces(out, data, *(np.array(column, np.int64) for column in zip(*entries, strict=True)))

    move((0, 8, 8), (8, 0, 8), (3, 3, 0))
    assert out.tolist() == [*range(8, 16), *range(8)]
    for bad in ((0, 9, 8), (9, 0, 8), (-1, 0, 2), (0, -1, 2), (0, 0, -1), (0, 0, 17), (1 << 62, 0, 1)):
        with pytest.raises(ValueError, match="does not lie within"):
            move(bad)


@pytest.mark.parametrize("worth", [-(1 << 60), 1 << 60])
def test_killed_at_the_very_end_nothing_is_packed_again(
    tmp_path: Path, make_runtime: Make, monkeypatch: pytest.MonkeyPatch, worth: int
) -> None:
    """When files have got their final lengths already."""
    monkeypatch.setattr(packing, "LOG_WORTH_BYTES", worth)
    graph = a_plan(tmp_path, make_runtime(threads=1), 343, "float16", "8,1")
    original = OutputFiles.finish

    class Killed(Exception):
        pass

    def finish(self: OutputFiles, *args):
        original(self, *args)
        raise Killed

    def pack() -> Stages:
        limited = make_runtime("1200KiB", threads=1)
        run = reopened(graph, tmp_path, limited)
        packing.pack(graph, run.samples, run.placement, tmp_path / "pack", limited)
        return run

    monkeypatch.setattr(OutputFiles, "finish", finish)
    with pytest.raises(Killed):
        pack()
    monkeypatch.setattr(OutputFiles, "finish", original)
    for owner, name in ((RowsPacker, "_scatter"), (PackLog, "_arrange"), (packing.PackTask, "_write_meta")):
        monkeypatch.delattr(owner, name)
    check(pack(), as_rows(random_features(NODES, 343, "float16")))
    verify_artifact(tmp_path / "pack", make_runtime())
