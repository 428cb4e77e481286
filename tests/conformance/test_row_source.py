"""Every RowSource delivers ``features[ids]`` bit for bit: one suite for all of them."""

from __future__ import annotations

import gc
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import final

import numpy as np
import pytest
import torch

from outcrop import _core, rows
from outcrop.errors import ArgumentError, BudgetError
from outcrop.inference.inputs import InputShape, MadeSource
from outcrop.rows import (
    BeladyRows,
    DiskRows,
    DiskStream,
    DynamicRows,
    HostRows,
    HotRows,
    MapRows,
    NextUses,
    NodePartitions,
    PartitionRows,
    RowSource,
    StaticCache,
    TieredRows,
    disk_rows,
    schedule_of,
)
from outcrop.rows.rings import GpuDiskRows
from outcrop.rows.unified import UnifiedRows
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from run_support import (
    DTYPES,
    ITEM_BYTES,
    PAGE,
    WIDTHS,
    a_graph,
    as_rows,
    random_features,
    round_up,
    sampled,
)

NODES = 211
SCRATCH = 1 << 18


def host(graph: Graph, runtime: Runtime) -> RowSource:
    return HostRows(graph.array(runtime, "features"), runtime)


def unified(graph: Graph, runtime: Runtime) -> RowSource:
    return UnifiedRows(graph.array(runtime, "features"), runtime)


def mapped(graph: Graph, runtime: Runtime) -> RowSource:
    return MapRows(graph.array(runtime, "features"))


def merged(graph: Graph, runtime: Runtime) -> RowSource:
    return DiskRows(graph.array(runtime, "features"), runtime, scratch_bytes=SCRATCH)


def row_by_row(graph: Graph, runtime: Runtime) -> RowSource:
    return DiskRows(graph.array(runtime, "features"), runtime, scratch_bytes=SCRATCH, merge=False)


def through_rings(graph: Graph, runtime: Runtime) -> RowSource:
    faults = _core.RingFaults()
    faults.shuffle = True
    return GpuDiskRows(graph.array(runtime, "features"), runtime, staging_bytes=SCRATCH, faults=faults)


def made(graph: Graph, runtime: Runtime) -> RowSource:
    """Makes what it is asked for out of the whole."""
    source = host(graph, runtime)
    whole = np.zeros((graph.num_nodes, source.row_bytes), np.uint8)
    source.read_rows(np.arange(graph.num_nodes), whole.reshape(-1))
    source.close()
    shape = InputShape(*whole.shape, graph.feature_dim, graph.spec("features").dtype, stored=False)
    return MadeSource(lambda _, ids: torch.from_numpy(whole[ids]), 0, shape)


def tiered(chosen: Callable[[np.ndarray], np.ndarray], below: Callable[[Graph, Runtime], RowSource] = merged):
    def make(graph: Graph, runtime: Runtime) -> RowSource:
        ids = np.flatnonzero(chosen(np.arange(graph.num_nodes)))
        with_rows = host(graph, runtime)
        hot = np.zeros(len(ids) * with_rows.row_bytes, np.uint8)
        with_rows.read_rows(ids, hot)
        with_rows.close()
        return TieredRows(ids, hot, below(graph, runtime), runtime)

    return make


def hot(chosen: Callable[[np.ndarray], np.ndarray]) -> Callable[[Graph, Runtime], RowSource]:
    def make(graph: Graph, runtime: Runtime) -> RowSource:
        ids = np.flatnonzero(chosen(np.arange(graph.num_nodes)))
        held = np.zeros(len(ids) * host(graph, runtime).row_bytes, np.uint8)
        host(graph, runtime).read_rows(ids, held)
        index = _core.HotIndex(runtime.budget, graph.num_nodes, ids, ids[:0])
        stream = DiskStream(graph.array(runtime, "features"), runtime, scratch_bytes=SCRATCH)
        return HotRows(StaticCache(index, held), stream, runtime)

    return make


def dynamic(policy: str, capacity: int) -> Callable[[Graph, Runtime], RowSource]:
    def make(graph: Graph, runtime: Runtime) -> RowSource:
        return DynamicRows(merged(graph, runtime), runtime, policy=policy, rows=capacity)

    return make


def belady(capacity: int) -> Callable[[Graph, Runtime], RowSource]:
    """With the rows of a batch in its cache already."""

    def make(graph: Graph, runtime: Runtime) -> RowSource:
        with tempfile.TemporaryDirectory(dir=graph.path.parent) as folder:
            samples = sampled(graph, Path(folder), runtime)
            uses = NextUses(samples, graph.row_file, schedule_of(samples, ("train",)), runtime)
            source = BeladyRows(merged(graph, runtime), runtime, uses, rows=capacity)
            for number in (0, 1):
                ids = samples.read(number, np.zeros(samples.max_record_bytes, np.uint8)).n_id
                source.advance_to(number)
                source.read_rows(ids, np.zeros(len(ids) * source.row_bytes, np.uint8))
        return source

    return make


def partition(resident: int) -> Callable[[Graph, Runtime], RowSource]:
    """After the second visit of an epoch."""

    def make(graph: Graph, runtime: Runtime) -> RowSource:
        shape = NodePartitions(graph.num_nodes, 8, resident)
        features = graph.array(runtime, "features")
        source = PartitionRows(features, merged(graph, runtime), shape, runtime)
        for visit in shape.visits(0)[:2]:
            source.advance_to(visit)
        return source

    return make


ANY_ORDER: dict[str, tuple[type[RowSource], Callable[[Graph, Runtime], RowSource]]] = {
    "host": (HostRows, host),
    "unified": (UnifiedRows, unified),
    "map": (MapRows, mapped),
    "disk-merged": (DiskRows, merged),
    "disk-each": (DiskRows, row_by_row),
    "rings": (GpuDiskRows, through_rings),
    "made": (MadeSource, made),
    "tiered-some": (TieredRows, tiered(lambda ids: ids % 3 == 1)),
    "tiered-none": (TieredRows, tiered(lambda ids: ids < 0)),
    "tiered-all": (TieredRows, tiered(lambda ids: ids >= 0)),
    "tiered-ends": (TieredRows, tiered(lambda ids: (ids == 0) | (ids == NODES - 1), row_by_row)),
    "hot-some": (HotRows, hot(lambda ids: ids % 3 == 1)),
    "hot-none": (HotRows, hot(lambda ids: ids < 0)),
    "hot-all": (HotRows, hot(lambda ids: ids >= 0)),
    "dynamic-lru": (DynamicRows, dynamic("lru", 60)),
    "dynamic-sieve": (DynamicRows, dynamic("sieve", 60)),
    "dynamic-s3fifo": (DynamicRows, dynamic("s3fifo", 60)),
    "dynamic-none": (DynamicRows, dynamic("lru", 0)),
    "dynamic-one": (DynamicRows, dynamic("s3fifo", 1)),
    "dynamic-all": (DynamicRows, dynamic("sieve", NODES)),
    "belady": (BeladyRows, belady(60)),
    "belady-none": (BeladyRows, belady(0)),
    "belady-all": (BeladyRows, belady(NODES)),
    "partition": (PartitionRows, partition(3)),
    "partition-one": (PartitionRows, partition(1)),
    "partition-all": (PartitionRows, partition(8)),
    "tiered-twice": (TieredRows, tiered(lambda ids: ids < 50, tiered(lambda ids: ids % 2 == 0, host))),
}


@final
class PackedRows(RowSource):
    """The rows of one packed mini-batch: ``ids`` must be the batch's ``n_id``.

    Args:
        read: ``read(out)`` delivers the batch's rows.
    """

    def __init__(self, n_id: np.ndarray, row_bytes: int, read: Callable[[np.ndarray], dict[str, int]]):
        self.num_rows, self.row_bytes = int(n_id.max(initial=-1)) + 1, row_bytes
        self._n_id, self._read = n_id, read

    def close(self) -> None:
        self._n_id = self._n_id[:0]

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> dict[str, int]:
        self._check(ids, out)
        if not np.array_equal(ids, self._n_id):
            raise ArgumentError("packed rows come as the whole mini-batch, in its order: pass its n_id")
        return self._read(out)


def packed(n_id: np.ndarray, features: np.ndarray) -> PackedRows:
    """Reads from memory: what packs and expands is tested with the loader."""

    def read(out: np.ndarray) -> dict[str, int]:
        out[:] = features[n_id].reshape(-1)
        return {"packed": len(n_id)}

    return PackedRows(n_id, features.shape[1], read)


def test_every_row_source_is_in_this_suite():
    known = {kind for kind, _ in ANY_ORDER.values()}
    package = Path(rows.__file__).parent.parent
    declared = {
        name
        for file in package.rglob("*.py")
        for name in re.findall(r"^class (\w+)\(.*(?:RowSource|ScheduledRows).*\)", file.read_text(), re.M)
    }
    none = {"ScheduledRows", "AbsentRows"}  # abstract; without rows
    assert declared == {*none, *(kind.__name__ for kind in known)}
    assert all(getattr(kind, "__final__", False) for kind in known)


def id_lists() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [
        np.array(ids, np.int64)
        for ids in (
            [],
            [0],
            [NODES - 1],
            range(NODES),
            range(NODES - 1, -1, -1),
            rng.permutation(NODES),
            rng.integers(0, NODES, 3 * NODES),
            [5] * 9,
            [7, 7, 3, NODES - 1, 0, 3, 7],
        )
    ]


@pytest.mark.parametrize("name", ANY_ORDER)
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_equal_indexing(tmp_path: Path, make_runtime: Callable[..., Runtime], name: str, width: int):
    """Any ids in any order, for every dtype."""
    for dtype in DTYPES:
        runtime = make_runtime(threads=2)
        graph = a_graph(tmp_path / dtype, runtime, nodes=NODES, edges=400, width=width, dtype=dtype)
        features = as_rows(random_features(NODES, width, dtype))
        source = ANY_ORDER[name][1](graph, runtime)
        assert (source.num_rows, source.row_bytes) == (NODES, width * ITEM_BYTES[dtype])
        for ids in id_lists():
            out = np.full(len(ids) * source.row_bytes + 16, 170, np.uint8)
            levels = source.read_rows(ids, out[8:-8])
            assert np.array_equal(out[8:-8].reshape(len(ids), source.row_bytes), features[ids])
            assert (out[:8] == 170).all()
            assert (out[-8:] == 170).all()
            assert sum(levels.values()) == (0 if isinstance(source, MadeSource) else len(ids))  # of no level
            assert all(count >= 0 for count in levels.values())
        source.close()


@pytest.fixture
def graph(tmp_path: Path, make_runtime: Callable[..., Runtime]) -> Graph:
    return a_graph(tmp_path / "g", make_runtime(threads=1), nodes=NODES, edges=400, width=100)


@pytest.mark.parametrize("name", ANY_ORDER)
def test_impossible_requests_are_refused_before_anything_is_written(graph, make_runtime, name):
    source = ANY_ORDER[name][1](graph, make_runtime(threads=2))
    for bad in (-1, NODES, 2**40, -(2**62)):
        out = np.full(3 * 400, 7, np.uint8)
        with pytest.raises(ArgumentError, match=f"row {bad} was asked for, there are {NODES}"):
            source.read_rows(np.array([0, bad, 1]), out)
        assert (out == 7).all()
    for size in (0, 799, 801, 1200):
        with pytest.raises(ArgumentError, match="2 rows of 400 bytes do not fit"):
            source.read_rows(np.array([0, 1]), np.zeros(size, np.uint8))
    out = np.zeros(400, np.uint8)
    source.read_rows(np.array([NODES - 1]), out)
    assert np.array_equal(out, as_rows(random_features(NODES, 100, "float32"))[-1])
    source.close()


@pytest.mark.parametrize("name", ANY_ORDER)
def test_closing_gives_everything_back(graph, make_runtime, name):
    runtime = make_runtime(threads=1)
    idle = runtime.budget.now_bytes
    source = ANY_ORDER[name][1](graph, runtime)
    source.read_rows(np.arange(NODES), np.zeros(NODES * 400, np.uint8))
    source.close()
    gc.collect()
    assert runtime.budget.now_bytes == idle


def test_levels_are_told_apart(graph, make_runtime):
    runtime = make_runtime(threads=1)
    ids = np.array([3, 4, 4, 9, 200, 1])
    expected = {
        "host": {"host": 6},
        "map": {"map": 6},
        "disk-merged": {"disk": 6},
        "disk-each": {"disk": 6},
        "hot-some": {"host": 3, "disk": 3},
        "hot-none": {"host": 0, "disk": 6},
        "hot-all": {"host": 6, "disk": 0},
        "rings": {"disk": 6},
        "tiered-some": {"host": 3, "disk": 3},
        "tiered-none": {"host": 0, "disk": 6},
        "tiered-all": {"host": 6, "disk": 0},
        "dynamic-sieve": {"host": 1, "disk": 5},
        "dynamic-none": {"host": 0, "disk": 6},
        "belady-none": {"host": 0, "disk": 6},
        "partition-all": {"host": 6, "disk": 0},
    }
    for name, levels in expected.items():
        assert ANY_ORDER[name][1](graph, runtime).read_rows(ids, np.zeros(2400, np.uint8)) == levels


def pages_of(ids: np.ndarray, row_bytes: int) -> list[range]:
    return [range(i * row_bytes // PAGE, ((i + 1) * row_bytes - 1) // PAGE + 1) for i in ids.tolist()]


@pytest.mark.exact_io
@pytest.mark.parametrize("width", [1, 100, 343, 1433])
def test_exactly_the_pages_are_read(tmp_path, make_runtime, width):
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, nodes=NODES, edges=400, width=width)
    ids = np.random.default_rng(width).integers(0, NODES, 150)
    out = np.zeros(150 * width * 4, np.uint8)

    def bytes_read(source: RowSource) -> int:
        before = runtime.io.counters.read_bytes
        source.read_rows(ids, out)
        return runtime.io.counters.read_bytes - before

    spans = pages_of(ids, width * 4)
    assert bytes_read(row_by_row(graph, runtime)) == PAGE * sum(map(len, spans))
    assert bytes_read(merged(graph, runtime)) == PAGE * len({p for span in spans for p in span})
    assert bytes_read(mapped(graph, runtime)) == bytes_read(host(graph, runtime)) == 0
    cold = pages_of(ids[ids % 3 != 1], width * 4)
    assert bytes_read(ANY_ORDER["tiered-some"][1](graph, runtime)) == PAGE * len(
        {p for span in cold for p in span}
    )
    again = np.concatenate([ids, ids])
    cached, twice = dynamic("lru", NODES)(graph, runtime), np.zeros(2 * len(out), np.uint8)
    before = runtime.io.counters.read_bytes
    cached.read_rows(again, twice)
    cached.read_rows(again, twice)
    read = runtime.io.counters.read_bytes - before
    assert read == PAGE * len({p for span in spans for p in span})
    before = runtime.io.counters.read_bytes
    host(graph, runtime)
    assert runtime.io.counters.read_bytes - before == round_up(NODES * width * 4)


def test_disk_rows_hold_their_scratch_and_no_more(graph, make_runtime):
    runtime = make_runtime(threads=1)
    source = DiskRows(graph.array(runtime, "features"), runtime, scratch_bytes=SCRATCH)
    held = runtime.budget.by_tag["row-scratch"].now_bytes
    least = _core.RowReader.min_scratch_bytes(400)
    assert held <= SCRATCH
    assert least <= SCRATCH
    source.close()
    small = DiskRows(graph.array(runtime, "features"), runtime, scratch_bytes=1)
    assert runtime.budget.by_tag["row-scratch"].now_bytes <= round_up(least)
    out = np.zeros(NODES * 400, np.uint8)
    small.read_rows(np.arange(NODES)[::-1], out)
    assert np.array_equal(out.reshape(NODES, 400), as_rows(random_features(NODES, 100, "float32"))[::-1])


def test_features_beyond_the_budget_are_refused(graph, make_runtime):
    with pytest.raises(BudgetError, match="features"):
        host(graph, make_runtime("80KiB", threads=1))


def test_rows_on_disk_equal_the_features_however_they_are_read(graph, make_runtime):
    runtime, ids = make_runtime("8MiB", threads=1), np.array([3, 1, 3], np.int64)
    read = []
    for merge in (True, False):
        rows = disk_rows(graph, runtime, graph.row_file, merge=merge)
        read.append(np.zeros(len(ids) * rows.row_bytes, np.uint8))
        rows.read_rows(ids, read[-1])
        rows.close()
    assert np.array_equal(*read)
    features = graph.array(runtime, "features").memmap()
    assert np.array_equal(read[0].view(features.dtype).reshape(len(ids), -1), features[ids])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_packed_rows_are_one_whole_batch(width, dtype):
    features = as_rows(random_features(NODES, width, dtype))
    for n_id in (np.random.default_rng(0).permutation(NODES)[:50], np.zeros(0, np.int64)):
        source = packed(n_id, features)
        out = np.zeros(len(n_id) * source.row_bytes, np.uint8)
        assert source.read_rows(n_id, out) == {"packed": len(n_id)}
        assert np.array_equal(out.reshape(len(n_id), source.row_bytes), features[n_id])


def test_packed_rows_refuse_anything_else():
    features = as_rows(random_features(NODES, 100, "float32"))
    n_id = np.array([5, 3, 9])
    source = packed(n_id, features)
    for ids in ([3, 5, 9], [5, 3], [5, 3, 9, 9], []):
        with pytest.raises(ArgumentError, match="whole mini-batch"):
            source.read_rows(np.array(ids, np.int64), np.zeros(len(ids) * 400, np.uint8))
    with pytest.raises(ArgumentError, match="do not fit"):
        source.read_rows(n_id, np.zeros(1199, np.uint8))
    with pytest.raises(ArgumentError, match="row 10 was asked for"):
        source.read_rows(np.array([5, 3, 10]), np.zeros(1200, np.uint8))
    source.close()


@pytest.mark.parametrize("name", ["dynamic-lru", "dynamic-s3fifo", "belady", "partition"])
def test_a_read_that_fails_leaves_no_wrong_rows(graph, make_runtime, name):
    """The rows of the failed read are not taken for there afterwards."""
    runtime = make_runtime(threads=1)
    features, source = as_rows(random_features(NODES, 100, "float32")), ANY_ORDER[name][1](graph, runtime)
    below = source._reader._below if hasattr(source, "_reader") else source._below
    read, out = below.read_rows, np.zeros(NODES * 400, np.uint8)

    def fail(ids: np.ndarray, out: np.ndarray) -> dict[str, int]:
        out[:] = 13
        raise OSError("the disk refused")

    for ids in (np.arange(0, 40), np.arange(20, 60), np.arange(NODES)):
        below.read_rows = fail
        with pytest.raises(OSError, match="the disk refused"):
            source.read_rows(ids, out[: 400 * len(ids)])
        below.read_rows = read
        source.read_rows(ids, out[: 400 * len(ids)])
        assert np.array_equal(out[: 400 * len(ids)].reshape(-1, 400), features[ids])
    source.close()
