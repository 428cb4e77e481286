"""Packing: every byte of records and caches worked out with NumPy, whatever budget, backend, threads or leftovers."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from outcrop import _core
from outcrop.config import IoConfig, PlanConfig
from outcrop.errors import ChecksumError
from outcrop.preparation import pack as packing
from outcrop.preparation import pack_rows
from outcrop.preparation.pack_files import JoinedWrites, OutputFiles, RowsFiles, SyncInBackground
from outcrop.preparation.pack_rows import RowsPacker
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store import packed
from outcrop.store.verify import verify_artifact
from packed_files import FILES, check, crc32c, disk_cache_nodes, reopened, rows_of_segment
from run_support import (
    DTYPES,
    ITEM_BYTES,
    PAGE,
    WIDTHS,
    Stages,
    a_graph,
    as_rows,
    config_with_cache,
    packed_run,
    planned,
    random_features,
    round_up,
    sampled,
)

Make = Callable[..., Runtime]


@pytest.mark.quick_cases(24)
@pytest.mark.parametrize("layout", ["packed", "3,1"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_records_and_caches_equal_numpy(
    tmp_path: Path, make_runtime: Make, width: int, dtype: str, layout: str, monkeypatch: pytest.MonkeyPatch
):
    """One page per chunk, so that rows straddle chunks or span several, in a budget hardly larger than the buffers."""
    monkeypatch.setattr(memory_tables, "PACK_CHUNK", replace(memory_tables.PACK_CHUNK, most=PAGE))
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, width=width, dtype=dtype, nodes=150, edges=900, train=50)
    sample_set = sampled(graph, tmp_path, runtime, fanouts=(3, 3), batch_size=10)
    row_bytes = width * ITEM_BYTES[dtype]
    config = config_with_cache(sample_set, row_bytes, 30, 10, layout=layout)
    placement = planned(graph, tmp_path, runtime, sample_set, config)
    tight = make_runtime(tight_budget(graph), threads=1)
    run = reopened(graph, tmp_path, tight)
    packing.pack(graph, run.samples, run.placement, tmp_path / "pack", tight)
    check(run, as_rows(random_features(150, width, dtype)))
    assert len(placement.files[0].host_ids) == 30
    assert len(placement.files[0].device_ids) == 10
    assert (placement.files[0].num_disk_rows > 50) == (layout != "packed")
    assert tight.budget.peak_bytes <= tight.budget.limit_bytes
    assert verify_artifact(tmp_path / "pack", runtime)["arrays"] == 6


def tight_budget(graph) -> int:
    """Little more than the smallest working buffers."""
    row_bytes = graph.spec("features").stride_bytes
    return 300_000 + 16 * row_bytes + 4 * 8 * PAGE // row_bytes


def test_manifest_checksums_are_plain_checksums(tmp_path: Path, make_runtime: Make):
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, width=9, nodes=200, train=40)
    sample_set = sampled(graph, tmp_path, runtime, epochs=1)
    run = packed_run(
        graph, tmp_path, runtime, config_with_cache(sample_set, 36, 20, 5, layout="2,1"), epochs=1
    )
    manifest = packed.manifests.read(tmp_path / "pack", packed.FORMAT, packed.VERSIONS)
    for spec in manifest.arrays.values():
        data = (tmp_path / "pack" / spec.file).read_bytes()
        assert len(data) == spec.file_bytes
        assert (
            crc32c(data[: spec.data_bytes])
            == spec.crc32c
            == _core.crc32c(np.frombuffer(data[: spec.data_bytes], np.uint8))
        )
        assert not any(data[spec.data_bytes :])
    assert run.records is not None


# Budgets from "a page at a time, some batches at a time" to "everything at once".
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("backend", ["uring", "pread"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bytes_whatever_the_budget_of_packing(
    tmp_path: Path, make_runtime: Make, backend: str, threads: int
):
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, width=343, dtype="float16", train=200, nodes=500)
    sample_set = sampled(graph, tmp_path, runtime, batch_size=2)
    planned(graph, tmp_path, runtime, sample_set, config_with_cache(sample_set, 686, 50, 20, layout="20,1"))
    features = as_rows(random_features(500, 343, "float16"))
    seen = set()
    for memory in ("280KiB", "420KiB", "1MiB", None):
        limited = make_runtime(memory, threads=threads, io=IoConfig(backend=backend, depth=8))
        run = reopened(graph, tmp_path, limited)
        name = f"pack-{memory}"
        done = packing.pack(graph, run.samples, run.placement, tmp_path / name, limited)
        check(run, features, name)
        seen.add((done.passes, limited.budget.peak_bytes <= limited.budget.limit_bytes))
        verify_artifact(tmp_path / name, limited)
    assert {ok for _, ok in seen} == {True}
    assert min(e for e, _ in seen) == 1 < 3 <= max(e for e, _ in seen)


@pytest.mark.exact_io
@pytest.mark.parametrize("memory", ["280KiB", "420KiB", "8MiB"])
def test_each_page_of_the_features_is_read_once_per_pass(
    tmp_path: Path, make_runtime: Make, memory: str, monkeypatch: pytest.MonkeyPatch
):
    """All bytes read are accounted for: the features once per pass, the samples once, and the ids of each chunk."""
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, width=343, dtype="float16", train=200, nodes=500)
    sample_set = sampled(graph, tmp_path, runtime, batch_size=5)
    planned(graph, tmp_path, runtime, sample_set, config_with_cache(sample_set, 686, 50, 20, layout="8,1"))
    counted = make_runtime(memory, threads=1)
    run = reopened(graph, tmp_path, counted)
    _ = run.placement.files[0].host_ids, run.placement.files[0].device_ids  # read before counting starts
    chunks: list[tuple[int, int]] = []
    original = RowsPacker._read_chunks

    def watched(self, start, buffers):
        for chunk in original(self, start, buffers):
            chunks.append((chunk[2], chunk[3]))
            yield chunk

    monkeypatch.setattr(RowsPacker, "_read_chunks", watched)
    before = counted.io.counters
    episodes = packing.pack(graph, run.samples, run.placement, tmp_path / "pack", counted).passes
    read = counted.io.counters.read_bytes - before.read_bytes
    one_pass = chunks[: len(chunks) // episodes]
    assert chunks == one_pass * episodes
    assert [first for first, _ in one_pass] == np.cumsum([0, *(rows for _, rows in one_pass[:-1])]).tolist()
    assert sum(rows for _, rows in one_pass) == 500
    assert read == episodes * graph.spec("features").file_bytes + bytes_of_ids(run, one_pass)


def pages(offset: int, count: int) -> int:
    return round_up(offset + count) - offset // PAGE * PAGE if count else 0


def bytes_of_ids(run: Stages, chunks: list[tuple[int, int]]) -> int:
    """Reads of everything but the features: samples, lists of ids, per chunk the ids in it, the disk cache.

    Whole pages, except of the files that are being written.
    """
    total = 0
    nodes, placement = disk_cache_nodes(run), run.placement
    in_memory = np.concatenate([placement.files[0].host_ids, placement.files[0].device_ids])
    for p, number in enumerate(placement.packed_batches.tolist()):
        batch = run.batch(number)
        ids_at = int(run.samples.offsets[number]) + 512
        shared = list(rows_of_segment(run, nodes, p // placement.segment_batches))
        total += run.samples.record_bytes(number) + pages(
            ids_at, 4 * len(batch.n_id)
        )  # graph; ids, to look up
        hops = np.split(batch.n_id, np.cumsum(batch.nodes_per_hop)[:-1])
        packed_hops = [hop[~np.isin(hop, in_memory) & ~np.isin(hop, shared)] for hop in hops]
        total += 4 * sum(map(len, packed_hops))  # to find where each chunk begins in them
        total += 4 * sum(map(len, packed_hops))  # chunk by chunk
    for ids in (placement.files[0].host_ids, placement.files[0].device_ids):
        for first, rows in chunks:
            low, high = np.searchsorted(ids, [first, first + rows])
            total += pages(8 * int(low), 8 * int(high - low))
    blocks = list(pairwise(placement.files[0].disk_blocks.tolist()))
    for first, stop in blocks:
        ids = np.sort(nodes[first:stop])
        total += pages(4 * first, 4 * len(ids))
        for begin, rows in chunks:
            low, high = np.searchsorted(ids, [begin, begin + rows])
            total += pages(4 * (first + int(low)), 4 * int(high - low))
        total += len(ids) * 686 + pages(4 * first, 4 * len(ids))  # to put it in order
    total += 4 * (round_up(placement.files[0].num_disk_rows * 686) // PAGE)  # the sum of the sums
    return total + lists_read(run)


def lists_read(run: Stages) -> int:
    """The plan's lists of the disk cache are checked once, whole, and read by segment: when it begins and ends."""
    placement, total = run.placement, 2 * round_up(4 * run.placement.files[0].num_disk_rows)
    for segment in range(placement.num_segments):
        times = 1 if segment == placement.num_segments - 1 else 2
        region = placement.files[0].region(0, segment)
        for first in range(region.start, region.stop, placement.files[0].block_rows):
            count = min(placement.files[0].block_rows, region.stop - first)
            total += times * 2 * pages(4 * first, 4 * count)
    return total


def test_no_cache_and_everything_cached(tmp_path: Path, make_runtime: Make):
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, width=100)
    features = as_rows(random_features(600, 100, "float32"))
    sample_set = sampled(graph, tmp_path, runtime)
    for name, config in (("none", config_with_cache(sample_set, 400, 0)), ("all", PlanConfig())):
        planned(graph, tmp_path, runtime, sample_set, config)
        run = reopened(graph, tmp_path, runtime)
        packing.pack(graph, run.samples, run.placement, tmp_path / name, runtime)
        check(run, features, name)
        assert len(run.placement.files[0].host_ids) == 0 or run.placement.files[0].num_packed.sum() == 0


@pytest.mark.parametrize("with_journal", [False, True])
def test_leftovers_of_another_packing_do_not_matter(tmp_path: Path, make_runtime: Make, with_journal: bool):
    """Another plan was being packed here and was killed: longer files, with other bytes in every gap."""
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, width=100)
    sample_set = sampled(graph, tmp_path, runtime)
    config = config_with_cache(sample_set, 400, 50, 20, layout="4,1")
    packed_run(graph, tmp_path, runtime, config)
    shutil.move(tmp_path / "pack", tmp_path / "reference")
    left = tmp_path / ".pack.partial"
    left.mkdir()
    for name in FILES[:4]:
        (left / name).write_bytes(np.random.default_rng(1).bytes(1 << 20))
    if with_journal:
        (left / "journal.npz").write_bytes(b"torn")
    run = reopened(graph, tmp_path, runtime)
    packing.pack(graph, run.samples, run.placement, tmp_path / "pack", runtime)
    check(run, as_rows(random_features(600, 100, "float32")))
    verify_artifact(tmp_path / "pack", runtime)
    for name in (*FILES, "manifest.json"):
        assert (tmp_path / "pack" / name).read_bytes() == (tmp_path / "reference" / name).read_bytes()


@pytest.mark.exact_io
@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("width", [1000, 1024, 5001])
def test_whole_pages_of_large_pieces_go_past_the_page_cache(
    tmp_path: Path, make_runtime: Make, monkeypatch: pytest.MonkeyPatch, width: int, dtype: str
):
    """And the same bytes come to be, wherever in a page pieces and rows begin, and though a piece fills a buffer."""
    skip_without_page_cache(tmp_path, runtime := make_runtime(threads=1))
    graph = a_graph(tmp_path / "g", runtime, width=width, dtype=dtype, nodes=500)
    sample_set = sampled(graph, tmp_path, runtime, fanouts=(4, 9), batch_size=30, epochs=1)
    row_bytes = width * ITEM_BYTES[dtype]
    planned(
        graph, tmp_path, runtime, sample_set, config_with_cache(sample_set, row_bytes, 30, layout="packed")
    )
    features, share, sync = as_rows(random_features(500, width, dtype)), 0.0, OutputFiles.sync

    def sync_and_keep(self: OutputFiles, *which: RowsFiles, drop: bool = True) -> None:
        nonlocal share
        sync(self, *which, drop=False)
        path = self.folder / "records.bin"
        share = resident_bytes(path) / path.stat().st_size

    monkeypatch.setattr(OutputFiles, "sync", sync_and_keep)
    found = {}
    for name in ("past", "through"):
        limited = make_runtime("4MiB", threads=1)
        run = reopened(graph, tmp_path, limited)
        packing.pack(graph, run.samples, run.placement, tmp_path / name, limited)
        check(run, features, name)
        found[name] = share
        monkeypatch.setattr(OutputFiles, "record_pages", OutputFiles.record_file)
    assert found["through"] > 0.9
    assert found["past"] < 0.5


@pytest.mark.exact_io
@pytest.mark.parametrize("pages", [0, 1, 2, 8])
@pytest.mark.parametrize(
    ("width", "dtype"), [(100, "float32"), (1, "int8"), (343, "float16"), (5001, "int8")]
)
def test_what_streams_hold_until_it_is_written_changes_nothing(
    tmp_path: Path, make_runtime: Make, monkeypatch: pytest.MonkeyPatch, width: int, dtype: str, pages: int
) -> None:
    """Rows smaller and larger than a page, through hops that begin and end within one; small chunks, so many pieces."""
    monkeypatch.setattr(RowsPacker, "_choose_tails", lambda self: pages * PAGE)
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, width=width, dtype=dtype, nodes=500)
    sample_set = sampled(graph, tmp_path, runtime, batch_size=5)
    row_bytes = width * ITEM_BYTES[dtype]
    planned(
        graph, tmp_path, runtime, sample_set, config_with_cache(sample_set, row_bytes, 50, layout="packed")
    )
    limited = make_runtime("4MiB", threads=1)
    run = reopened(graph, tmp_path, limited)
    before = limited.io.counters.write_bytes
    packed_to = packing.pack(graph, run.samples, run.placement, tmp_path / "pack", limited)
    assert packed_to.passes > 1 or pages < 8
    check(run, as_rows(random_features(500, width, dtype)))
    if pages:  # each byte once, and what a stream holds at its end and whenever the journal notes something
        streams = len(run.placement.packed_batches) * run.placement.files[0].section(run.samples).num_runs
        ends = 9 * packed_to.passes * streams * pages * PAGE
        whole = sum(path.stat().st_size for path in (tmp_path / "pack").glob("*.bin"))
        assert limited.io.counters.write_bytes - before <= 2 * whole + ends


def test_longer_tails_where_memory_has_room(
    tmp_path: Path, make_runtime: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, width=343, dtype="float16", train=200, nodes=500)
    sample_set = sampled(graph, tmp_path, runtime, batch_size=5)
    planned(graph, tmp_path, runtime, sample_set, config_with_cache(sample_set, 686, 50, layout="packed"))

    def tail(memory: str | None) -> int:
        limited = make_runtime(memory, threads=1)
        run = reopened(graph, tmp_path, limited)
        return packing.PackTask(graph, run.samples, run.placement, limited).packers[0]._tail_bytes

    assert 0 < tail("280KiB") < tail("64MiB")
    monkeypatch.setattr(pack_rows, "_TAIL_BYTES", (1 << 20,))
    assert tail("280KiB") == 0  # there is no room, and packing does without


@pytest.mark.parametrize("memory", ["280KiB", "420KiB", "2MiB"])
def test_interrupted_anywhere_it_goes_on_to_the_same_bytes(
    tmp_path: Path, make_runtime: Make, memory: str, monkeypatch: pytest.MonkeyPatch
):
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, width=343, dtype="float16", train=200, nodes=500)
    sample_set = sampled(graph, tmp_path, runtime, batch_size=5)
    planned(graph, tmp_path, runtime, sample_set, config_with_cache(sample_set, 686, 50, 20, layout="8,1"))
    features = as_rows(random_features(500, 343, "float16"))
    original, left = RowsPacker._scatter, 0

    class Killed(Exception):
        pass

    def dying(self, *args):
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        original(self, *args)

    monkeypatch.setattr(RowsPacker, "_scatter", dying)
    deaths = 0
    while True:
        limited = make_runtime(memory, threads=1)
        run, left = reopened(graph, tmp_path, limited), 7
        try:
            packing.pack(graph, run.samples, run.placement, tmp_path / "pack", limited)
            break
        except Killed:
            deaths += 1
            assert not (tmp_path / "pack").exists()
        run = None
    assert deaths >= 2
    check(run, features)
    verify_artifact(tmp_path / "pack", runtime)


def test_damage_is_found(tmp_path: Path, make_runtime: Make):
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, width=100)
    sample_set = sampled(graph, tmp_path, runtime)
    run = packed_run(graph, tmp_path, runtime, config_with_cache(sample_set, 400, 50, 20, layout="4,1"))
    check(run, as_rows(random_features(600, 100, "float32")))
    for name in FILES:
        path = tmp_path / "pack" / name
        data = bytearray(path.read_bytes())
        size = (
            packed.manifests.read(tmp_path / "pack", packed.FORMAT, packed.VERSIONS)
            .arrays[name[:-4]]
            .data_bytes
        )
        for at in (0, size // 2, size - 1):
            data[at] ^= 16
            path.write_bytes(data)
            with pytest.raises(ChecksumError, match=name):
                verify_artifact(tmp_path / "pack", runtime)
            data[at] ^= 16
        path.write_bytes(data)
    verify_artifact(tmp_path / "pack", runtime)


def resident_bytes(path: Path) -> int:
    """Of a file, in the page cache; asks the kernel."""
    size = path.stat().st_size
    mapped, found = np.memmap(path, np.uint8, "r", shape=(size,)), np.zeros(-(-size // PAGE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(mapped.ctypes.data)
    assert libc.mincore(address, ctypes.c_size_t(size), ctypes.c_void_p(found.ctypes.data)) == 0
    return int((found & 1).sum()) * PAGE


def skip_without_page_cache(folder: Path, runtime: Runtime) -> None:
    (folder / "probe").write_bytes(bytes(1 << 20))
    file = runtime.io.open(str(folder / "probe"), _core.OpenMode.update)
    runtime.io.drop_cache(file)
    runtime.io.close(file)
    if resident_bytes(folder / "probe"):
        pytest.skip("this file system keeps its files in memory")


@pytest.mark.parametrize(("width", "memory", "leaves"), [(8000, "16MiB", True), (100, "420KiB", False)])
def test_what_was_packed_leaves_the_page_cache(
    tmp_path: Path, make_runtime: Make, monkeypatch: pytest.MonkeyPatch, width: int, memory: str, leaves: bool
) -> None:
    """Unless so little goes to each place at a time that most pages would have to be read again to go on."""
    skip_without_page_cache(tmp_path, runtime := make_runtime(threads=1))
    monkeypatch.setattr(RowsPacker, "_choose_tails", lambda self: 0)  # with them the cache has nothing
    graph = a_graph(tmp_path / "g", runtime, width=width)
    sample_set = sampled(graph, tmp_path, runtime)
    placement = planned(graph, tmp_path, runtime, sample_set, config_with_cache(sample_set, width * 4, 0))
    shares, write, begin = [], packing.Journal.write, SyncInBackground.begin

    def noted(self: packing.Journal, content: bytes) -> None:
        path = self._path.parent / "records.bin"
        shares.append(resident_bytes(path) / path.stat().st_size)
        write(self, content)

    def begin_and_wait(self: SyncInBackground, sync: Callable[[], None]) -> None:
        begin(self, sync)
        self.wait()  # or what is written meanwhile is there, too

    monkeypatch.setattr(packing.Journal, "write", noted)
    monkeypatch.setattr(SyncInBackground, "begin", begin_and_wait)
    packing.pack(graph, sample_set, placement, tmp_path / "pack", make_runtime(memory, threads=1))
    assert len(shares) > 3
    later = shares[1:-1]  # the first is when graphs are written, the last at the end of the pass
    assert max(later) < 0.1 if leaves else min(later) > 0.1
    assert shares[-1] < 0.1


@pytest.mark.parametrize("most_bytes", [0, 7, 100, 1 << 20])
def test_pieces_that_follow_one_another_are_written_together(
    tmp_path: Path, make_runtime: Make, most_bytes: int
) -> None:
    runtime, rng = make_runtime(threads=1), np.random.default_rng(most_bytes)
    opened = [runtime.io.open(str(tmp_path / name), _core.OpenMode.create) for name in "ab"]
    expected, at, pieces = [np.zeros(20_000, np.uint8) for _ in opened], [0, 0], 0
    for file in opened:
        runtime.io.resize(file, 20_000)
    before, writes = runtime.io.counters.write_ops, JoinedWrites(runtime, most_bytes)
    for _ in range(300):
        which, size = int(rng.random() < 0.1), int(rng.integers(0, 30))
        at[which] += int(rng.random() < 0.1) * 7  # leaves a gap
        data = rng.integers(0, 255, size, np.uint8)
        writes.write(opened[which], at[which], data)
        expected[which][at[which] : at[which] + size] = data
        at[which] += size
        pieces += size > 0
    writes.flush()
    for file, name, content in zip(opened, "ab", expected, strict=True):
        runtime.io.close(file)
        assert (tmp_path / name).read_bytes() == content.tobytes()
    written = runtime.io.counters.write_ops - before
    assert written <= pieces
    assert most_bytes < 100 or written < pieces / 2
