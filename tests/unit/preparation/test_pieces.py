"""Pieces of packing: in any order, more than once, by one process or several, they give the files of one pass."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifact_support import differences, tree
from outcrop._core import crc32c
from outcrop.errors import ChecksumError
from outcrop.preparation import pack as packing
from outcrop.preparation.cluster.local import LocalWorkers
from outcrop.preparation.cluster.move_pieces import ChunkReader, Piece, PieceOwner
from outcrop.preparation.cluster.pieces import PieceSet, PieceTable, finish_pieces, prepare_pieces
from outcrop.preparation.cluster.write_pieces import ChunkWriter
from outcrop.preparation.pack import CopiedBytes
from outcrop.preparation.pack_files import Journal
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import samples
from outcrop.store.graph import open_graph
from outcrop.store.placement import open_placement
from packed_files import filled_by, planned


@settings(max_examples=40, deadline=None)
@given(
    width=st.sampled_from([1, 7, 128, 1433]),
    dtype=st.sampled_from(["float32", "int8"]),
    layout=st.sampled_from(["packed", "3,1"]),
    parts=st.sampled_from([1, 2, 3, 7]),
    chunk_pages=st.sampled_from([1, 2, 5, 1000]),
    seed=st.integers(0, 1000),
)
def test_pieces_in_any_order_and_twice(
    width: int, dtype: str, layout: str, parts: int, chunk_pages: int, seed: int
) -> None:
    chance = random.Random(seed)

    def work(pieces: PieceSet, writer: ChunkWriter) -> None:
        chunks = pieces.all_chunks()
        chance.shuffle(chunks)
        for number, chunk in chunks:
            writer.write(number, chunk)
            if chance.random() < 0.3:  # told to do it again by somebody who does not know that it is done
                for head in pieces.tables[number]:
                    PieceTable(pieces.folder, head).done[chunk] = 0
                writer.write(number, chunk)
        assert not pieces.missing()

    with tempfile.TemporaryDirectory() as name, Runtime(threads=1) as runtime:
        folder = Path(name)
        stages = planned(folder, runtime, width=width, dtype=dtype, layout=layout, parts=parts)
        packing.pack(*stages, folder / "want", runtime)
        packing.pack(*stages, folder / "found", runtime, filled_by(work, chunk_pages * PAGE_BYTES))
        assert differences(tree(folder / "found"), tree(folder / "want")) == []


def test_an_interrupted_packing_goes_on_with_what_is_missing(tmp_path: Path, make_runtime: Any) -> None:
    runtime = make_runtime(threads=1)
    stages = planned(tmp_path, runtime, width=128, dtype="float32", layout="3,1", parts=2)
    packing.pack(*stages, tmp_path / "want", runtime)
    made: list[tuple[int, int]] = []

    def work(pieces: PieceSet, writer: ChunkWriter) -> None:
        for at, chunk in enumerate(pieces.missing()):
            if at == 3 and len(made) < 10:
                raise KeyboardInterrupt
            writer.write(*chunk)
            made.append(chunk)

    fill = filled_by(work, 2 * PAGE_BYTES)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            packing.pack(*stages, tmp_path / "found", runtime, fill)
    packing.pack(*stages, tmp_path / "found", runtime, fill)
    assert len(made) == len(set(made)) == 25  # pages of 100 KiB
    assert differences(tree(tmp_path / "found"), tree(tmp_path / "want")) == []


def test_what_was_begun_with_other_chunks_begins_again(tmp_path: Path, make_runtime: Any) -> None:
    runtime = make_runtime(threads=1)
    stages = planned(tmp_path, runtime, width=128, dtype="float32", layout="packed", parts=1)

    def some(pieces: PieceSet, writer: ChunkWriter) -> None:
        for chunk in pieces.missing()[:3]:
            writer.write(*chunk)
        raise KeyboardInterrupt

    def work(pieces: PieceSet, writer: ChunkWriter) -> None:
        assert pieces.missing() == pieces.all_chunks()
        for chunk in pieces.missing():
            writer.write(*chunk)

    with pytest.raises(KeyboardInterrupt):
        packing.pack(*stages, tmp_path / "found", runtime, filled_by(some, 2 * PAGE_BYTES))
    packing.pack(*stages, tmp_path / "found", runtime, filled_by(work, 7 * PAGE_BYTES))
    packing.pack(*stages, tmp_path / "want", runtime)
    assert differences(tree(tmp_path / "found"), tree(tmp_path / "want")) == []


def test_what_pieces_read_and_write(tmp_path: Path, make_runtime: Any) -> None:
    """Rows are written once; the row file is read once, but for pages that two chunks share."""
    runtime = make_runtime(threads=1)
    graph, sample_set, placement = planned(
        tmp_path, runtime, width=343, dtype="float32", layout="packed", parts=1
    )
    copied: list[CopiedBytes] = []

    def work(pieces: PieceSet, writer: ChunkWriter) -> None:
        copied.extend(writer.write(*chunk) for chunk in pieces.all_chunks())

    packing.pack(graph, sample_set, placement, tmp_path / "pack", runtime, filled_by(work, 5 * PAGE_BYTES))
    rows = placement.files[0]
    count = int(rows.num_packed.sum()) + len(rows.host_ids) + len(rows.device_ids)
    assert sum(one.bytes_written for one in copied) == count * rows.row_bytes
    ids = int(rows.num_packed.sum()) * sample_set.id_bytes
    features = graph.spec("features").file_bytes
    read = sum(one.bytes_read for one in copied)
    pages = 1 + 2 * 2  # of a chunk: one that the next has, too; both ends of the ids of each cache
    assert features + ids <= read <= features + ids + len(copied) * pages * PAGE_BYTES


def test_a_damaged_row_file_is_named(tmp_path: Path, make_runtime: Any) -> None:
    runtime = make_runtime(threads=1)
    stages = planned(tmp_path, runtime, width=128, dtype="float32", layout="packed", parts=1)
    file = stages[0].path / "features.bin"
    good = file.read_bytes()
    file.write_bytes(good[:50_000] + bytes([good[50_000] ^ 1]) + good[50_001:])

    def work(pieces: PieceSet, writer: ChunkWriter) -> None:
        for chunk in pieces.missing():
            writer.write(*chunk)

    fill = filled_by(work, 4 * PAGE_BYTES)
    with pytest.raises(ChecksumError, match=r"features\.bin"):
        packing.pack(*stages, tmp_path / "found", runtime, fill)
    assert not (tmp_path / "found").exists()
    file.write_bytes(good)
    packing.pack(*stages, tmp_path / "found", runtime, fill)
    packing.pack(*stages, tmp_path / "want", runtime)
    assert differences(tree(tmp_path / "found"), tree(tmp_path / "want")) == []


def test_a_chunk_is_noted_after_its_rows_are_on_disk(
    tmp_path: Path, make_runtime: Any, monkeypatch: Any
) -> None:
    """Killed in between, it is made again."""
    runtime = make_runtime(threads=1)
    stages = planned(tmp_path, runtime, width=128, dtype="float32", layout="packed", parts=1)
    noted = PieceTable.add

    def add(table: PieceTable, chunk: int, crc: np.ndarray) -> None:
        rows = np.fromfile(table.out_path, np.uint8)
        before, counts = table.bounds[chunk], table.counts(chunk)
        for s in np.flatnonzero(counts).tolist():
            at = int(table.out_start[s]) + int(before[s]) * 512
            assert crc32c(rows[at : at + int(counts[s]) * 512]) == crc[s]
        assert not table.done[chunk]
        noted(table, chunk, crc)

    def work(pieces: PieceSet, writer: ChunkWriter) -> None:
        for chunk in pieces.missing():
            writer.write(*chunk)

    monkeypatch.setattr(PieceTable, "add", add)
    packing.pack(*stages, tmp_path / "found", runtime, filled_by(work, 4 * PAGE_BYTES))


def moved_by(
    seed: int, chunk_bytes: int, harm: Callable[[list[Piece]], None] = lambda found: None
) -> packing.RowFiller:
    """Packs by an owner for each output file, and one reader; answers come late, in any order, and some twice."""
    chance = random.Random(seed)

    def fill(packing: packing.PackTask, files: Any, journal: Any) -> CopiedBytes:
        pieces = prepare_pieces(packing, files, chunk_bytes)
        owners = [
            PieceOwner(pieces, [[head] if head in own else [] for own in pieces.tables])
            for heads in pieces.tables
            for head in heads
        ]
        reader = ChunkReader(pieces.rows)
        coming = []
        for number, chunk in pieces.all_chunks():
            for owner in owners:
                wanted = owner.wanted(number, chunk)
                for _ in range(1 + (chance.random() < 0.3)):
                    coming.append((owner, number, chunk, reader.read(number, chunk, wanted)))
        chance.shuffle(coming)
        for owner, number, chunk, found in coming:
            harm(found)
            owner.accept(number, chunk, found)
        for one in (reader, *owners):
            one.close()
        assert not pieces.missing()
        finish_pieces(pieces, packing, journal)
        return CopiedBytes()

    return fill


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    width=st.sampled_from([1, 7, 343]),
    layout=st.sampled_from(["packed", "3,1"]),
    parts=st.sampled_from([1, 3]),
    chunk_pages=st.sampled_from([1, 3, 1000]),
    seed=st.integers(0, 1000),
)
def test_pieces_that_move(width: int, layout: str, parts: int, chunk_pages: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name, Runtime(threads=1) as runtime:
        folder = Path(name)
        stages = planned(folder, runtime, width=width, dtype="float32", layout=layout, parts=parts)
        packing.pack(*stages, folder / "want", runtime)
        packing.pack(*stages, folder / "found", runtime, moved_by(seed, chunk_pages * PAGE_BYTES))
        assert differences(tree(folder / "found"), tree(folder / "want")) == []


def test_rows_that_are_damaged_on_their_way_are_refused(tmp_path: Path, make_runtime: Any) -> None:
    runtime = make_runtime(threads=1)
    stages = planned(tmp_path, runtime, width=128, dtype="float32", layout="packed", parts=1)

    def harm(found: list[Piece]) -> None:
        for piece in found:
            if len(piece.rows):
                piece.rows[len(piece.rows) // 2] ^= 1

    with pytest.raises(ChecksumError, match=r"rows of chunk [0-9]+ were damaged on their way"):
        packing.pack(*stages, tmp_path / "found", runtime, moved_by(0, 4 * PAGE_BYTES, harm))
    packing.pack(*stages, tmp_path / "found", runtime, moved_by(0, 4 * PAGE_BYTES))
    packing.pack(*stages, tmp_path / "want", runtime)
    assert differences(tree(tmp_path / "found"), tree(tmp_path / "want")) == []


def write_all(pieces: PieceSet, writer: ChunkWriter) -> None:
    for chunk in pieces.missing():
        writer.write(*chunk)


def some_and_stop(pieces: PieceSet, writer: ChunkWriter) -> None:
    for chunk in pieces.missing()[:5]:
        writer.write(*chunk)
    raise KeyboardInterrupt


def test_one_process_is_killed_while_it_orders_and_several_go_on(
    tmp_path: Path, make_runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in order already is not written to again."""
    runtime = make_runtime(threads=1)
    stages = planned(tmp_path, runtime, width=128, dtype="float32", layout="3,1", parts=1)
    packing.pack(*stages, tmp_path / "want", runtime)
    assert len(stages[2].files[0].disk_blocks) > 3
    save = Journal.save

    def dying(journal: Journal) -> None:
        save(journal)
        if journal.files[0].ordered == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "save", dying)
    with pytest.raises(KeyboardInterrupt):
        packing.pack(*stages, tmp_path / "found", runtime)
    monkeypatch.undo()

    class Several(LocalWorkers):
        def _make(self, *given: Any) -> CopiedBytes:
            raise AssertionError("all rows are on disk")

    packing.pack(*stages, tmp_path / "found", runtime, Several(2))
    assert differences(tree(tmp_path / "found"), tree(tmp_path / "want")) == []


@pytest.mark.parametrize("lost", ["bounds", "crc", "done", "ids_start"])
@pytest.mark.parametrize("output", ["records", "host_cache", "disk_cache"])
def test_tables_that_are_not_whole_are_made_again(
    tmp_path: Path, make_runtime: Any, output: str, lost: str
) -> None:
    runtime = make_runtime(threads=1)
    stages = planned(tmp_path, runtime, width=128, dtype="float32", layout="3,1", parts=1)
    packing.pack(*stages, tmp_path / "want", runtime)
    with pytest.raises(KeyboardInterrupt):
        packing.pack(*stages, tmp_path / "found", runtime, filled_by(some_and_stop, 4 * PAGE_BYTES))
    table = tmp_path / ".found.partial" / "pieces" / f"0-{output}.{lost}.npy"
    table.unlink()
    packing.pack(*stages, tmp_path / "found", runtime, filled_by(write_all, 4 * PAGE_BYTES))
    assert differences(tree(tmp_path / "found"), tree(tmp_path / "want")) == []


def test_a_run_that_was_copied_meanwhile_goes_on_in_the_copy(tmp_path: Path, make_runtime: Any) -> None:
    runtime = make_runtime(threads=1)
    first = tmp_path / "first"
    first.mkdir()
    stages = planned(first, runtime, width=128, dtype="float32", layout="3,1", parts=1)
    packing.pack(*stages, first / "want", runtime)
    with pytest.raises(KeyboardInterrupt):
        packing.pack(*stages, first / "found", runtime, filled_by(some_and_stop, 4 * PAGE_BYTES))
    before = tree(first / ".found.partial")
    shutil.copytree(first, tmp_path / "second")
    second = tmp_path / "second"
    sample_set = samples.open_samples(runtime, second / "sample")
    there = (open_graph(second / "g"), sample_set, open_placement(runtime, second / "plan"))
    packing.pack(*there, second / "found", runtime, filled_by(write_all, 4 * PAGE_BYTES))
    assert differences(tree(second / "found"), tree(first / "want")) == []
    assert differences(tree(first / ".found.partial"), before) == []


def test_one_process_goes_on_where_several_were_interrupted(tmp_path: Path, make_runtime: Any) -> None:
    """And leaves nothing of theirs."""
    runtime = make_runtime(threads=1)
    stages = planned(tmp_path, runtime, width=128, dtype="float32", layout="3,1", parts=2)
    packing.pack(*stages, tmp_path / "want", runtime)
    with pytest.raises(KeyboardInterrupt):
        packing.pack(*stages, tmp_path / "found", runtime, filled_by(some_and_stop, 4 * PAGE_BYTES))
    (tmp_path / ".found.partial" / "seen").write_text("left by a kill")
    packing.pack(*stages, tmp_path / "found", runtime)
    assert differences(tree(tmp_path / "found"), tree(tmp_path / "want")) == []
