"""The segmented disk cache against brute force: what is shared, where it lies, what it costs, what fits a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outcrop import _core
from outcrop.config import PlanConfig
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.preparation import segments
from outcrop.preparation.segments import (
    BatchIds,
    LayoutSearch,
    LayoutSizes,
    SegmentArranger,
    SegmentLayout,
    WantSketch,
)
from outcrop.runtime.runtime import Runtime
from outcrop.store.samples import SampleSet
from run_support import PAGE, a_graph, config_with_cache, planned, sampled

Make = Callable[..., Runtime]
ROW = 100


@pytest.fixture
def made(tmp_path: Path, make_runtime: Make):
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, width=25, nodes=900, edges=9000, train=400)
    return graph, sampled(graph, tmp_path, runtime, batch_size=12, epochs=2), runtime


def wants_of(samples: SampleSet, hot: np.ndarray) -> list[np.ndarray]:
    """Per batch the nodes that memory does not hold, in the order of the batch."""
    buffer = np.zeros(samples.max_record_bytes, np.uint8)
    ids = [samples.read(b, buffer).n_id for b in range(samples.num_batches)]
    return [n[~np.isin(n, hot)] for n in ids]


def shared_by_brute_force(wants: Sequence[np.ndarray], lay: SegmentLayout) -> list[set[int]]:
    """Per segment the nodes that more than `threshold` of its batches want."""
    return [
        {
            n
            for n, c in Counter(np.concatenate(wants[s : s + lay.segment]).tolist()).items()
            if c > lay.threshold
        }
        for s in range(0, len(wants), lay.segment)
    ]


def arranger(
    graph, samples: SampleSet, runtime: Runtime, hot: np.ndarray, table_bytes: int = 1 << 30
) -> SegmentArranger:
    section = samples.section_of("nodes", 0)
    wanted = BatchIds(section, np.arange(samples.num_batches), runtime, 1 << 20)
    return SegmentArranger(wanted, graph.num_nodes, ROW, [hot], 7, runtime, table_bytes=table_bytes)


def expected_reads(rows: np.ndarray, row_bytes: int) -> tuple[int, int]:
    """Distinct pages, and runs of adjacent ones, that these rows touch."""
    if len(rows) == 0:
        return 0, 0
    pages = np.unique(
        np.concatenate(
            [np.arange(r * row_bytes // PAGE, ((r + 1) * row_bytes - 1) // PAGE + 1) for r in rows]
        )
    )
    return len(pages), 1 + int((np.diff(pages) > 1).sum())


@pytest.mark.parametrize("ranges", [1, 3])
@pytest.mark.parametrize(
    "lay",
    [
        SegmentLayout(1, 0),
        SegmentLayout(2, 1),
        SegmentLayout(7, 1),
        SegmentLayout(7, 3),
        SegmentLayout(300, 2),
        SegmentLayout(5, 9),
    ],
)
def test_what_is_shared_and_read_equals_brute_force(
    made, tmp_path, monkeypatch, lay: SegmentLayout, ranges: int
):
    graph, samples, runtime = made
    hot = np.arange(0, 900, 7)
    wants = wants_of(samples, hot)
    work = arranger(graph, samples, runtime, hot)
    if ranges > 1:
        monkeypatch.setattr(work, "range_starts", np.array([0, 300, 301, 900]))
    writers = [
        segments.ArrayWriter(runtime, tmp_path, n, t) for n, t in (("ids", "int32"), ("rank", "int32"))
    ]
    shared = work.arrange(lay, block_rows=16, out=(writers[0], writers[1]))
    for writer in writers:
        writer.finish()
    ids, rank = (np.fromfile(tmp_path / f"{n}.bin", "<i4")[: shared.rows] for n in ("ids", "rank"))
    expected = shared_by_brute_force(wants, lay)
    assert shared.rows == sum(map(len, expected))
    starts = work.range_starts
    position: list[dict[int, int]] = [{} for _ in expected]
    for number, (first, stop) in enumerate(zip(shared.region_rows[:-1], shared.region_rows[1:], strict=True)):
        node_range, segment = divmod(number, len(expected))
        for block in range(first, stop, 16):
            end = min(block + 16, stop)
            assert (np.diff(ids[block:end]) > 0).all()
            assert sorted(rank[block:end].tolist()) == list(range(end - block))
            for node, where in zip(ids[block:end].tolist(), rank[block:end].tolist(), strict=True):
                assert starts[node_range] <= node < starts[node_range + 1]
                position[segment][node] = block + where
    assert [set(p) for p in position] == expected
    buffer = np.zeros(samples.max_record_bytes, np.uint8)
    for p in range(samples.num_batches):
        batch, table = samples.read(p, buffer), position[p // lay.segment]
        hop = np.repeat(np.arange(len(batch.nodes_per_hop)), batch.nodes_per_hop)
        inside = np.array([n in table for n in batch.n_id.tolist()])
        assert shared.per_hop[p].tolist() == np.bincount(hop[inside], minlength=samples.hops + 1).tolist()
        rows = np.array([table[n] for n in batch.n_id[inside].tolist()], np.int64)
        assert (shared.pages[p], shared.runs[p]) == expected_reads(rows, ROW)


def test_the_tables_are_clean_for_the_next_segment(made):
    graph, samples, runtime = made
    work = arranger(graph, samples, runtime, np.zeros(0, np.int64))
    first = work.arrange(SegmentLayout(5, 1))
    work.arrange(SegmentLayout(9, 2))
    again = work.arrange(SegmentLayout(5, 1))
    assert np.array_equal(first.pages, again.pages)
    assert np.array_equal(first.region_rows, again.region_rows)


@pytest.mark.parametrize(("batches", "lanes"), [(12, 8), (300, 4)])
def test_rows_that_the_same_batches_want_lie_together(make_runtime: Make, batches: int, lanes: int):
    """Groups of rows, each wanted by its own random set of batches, scattered over the ids: one run per group."""
    rng = np.random.default_rng(0)
    sets = sorted({tuple(sorted(rng.choice(batches, 4, replace=False).tolist())) for _ in range(40)})
    groups, per_group = len(sets), 30
    group_of = rng.permutation(np.repeat(np.arange(groups), per_group))
    runtime = make_runtime(threads=2)
    table = _core.SegmentTable(runtime.budget, len(group_of))
    table.begin_range(0, len(group_of), np.zeros(0, np.int64))
    table.begin_segment(batches, 1, 3, 0)
    wants = [
        np.flatnonzero(np.isin(group_of, [g for g in range(groups) if b in sets[g]])) for b in range(batches)
    ]
    for ids in wants:
        table.count(ids)
    for b, ids in enumerate(wants):
        table.sign(b, ids)
    assert table.order(runtime.workers) == len(group_of)
    order = np.zeros(len(group_of), np.int64)
    table.shared(0, order)
    assert sorted(order.tolist()) == list(range(len(group_of)))
    runs = 1 + int((np.diff(group_of[order]) != 0).sum())
    assert runs <= groups + 2 * (
        len(sets) - len({frozenset(s) for s in sets})
    )  # equal sets cannot be told apart
    # A batch's rows are whole groups: the pages that it needs are hardly more than those its rows fill.
    row_bytes, needed, read = 128, 0, 0
    for ids in wants:
        table.mark(ids, row_bytes)
        needed, read = needed + len(ids) * row_bytes, read + table.finish_batch().pages * PAGE
    unordered = sum(expected_reads(ids, row_bytes)[0] for ids in wants) * PAGE
    assert read < 0.75 * unordered
    assert read < 2.5 * needed


batch_lists = st.lists(
    st.lists(st.integers(0, 40), unique=True).map(sorted).map(lambda ids: np.array(ids, np.int64)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(batch_lists, st.integers(1, 15))
def test_the_sketch_counts_what_brute_force_counts(batches, segment):
    runtime = Runtime(threads=1)
    sketch = _core.LayoutSketch(runtime.budget, sum(map(len, batches)) + 1, 0, 1)
    for b, ids in enumerate(batches):
        sketch.add(b, ids)
    sketch.finish(runtime.workers)
    counts = [
        c
        for s in range(0, len(batches), segment)
        for c in Counter(np.concatenate(batches[s : s + segment]).tolist()).values()
    ]
    histogram = np.asarray(sketch.histogram(segment))
    assert histogram.tolist() == np.bincount(counts, minlength=len(histogram)).tolist()


def test_a_batch_that_wants_a_node_twice_is_refused(make_runtime: Make):
    runtime = make_runtime(threads=1)
    sketch = _core.LayoutSketch(runtime.budget, 10, 0, 1)
    sketch.add(0, np.array([5, 6, 5]))
    with pytest.raises(FormatError, match="mini-batch 0 has node 5 twice"):
        sketch.finish(runtime.workers)


def test_a_thinned_sketch_keeps_one_in_some_nodes_whole(make_runtime: Make):
    runtime = make_runtime(threads=1)
    sketch = _core.LayoutSketch(runtime.budget, 10, 3, 1)
    out = np.zeros(100_000, np.int64)
    kept = out[: sketch.thin(np.arange(100_000), out)].copy()
    assert abs(len(kept) - 12_500) < 500
    again = out[: sketch.thin(np.arange(50_000, 100_000, dtype=np.int32), out)]
    assert again.tolist() == kept[kept >= 50_000].tolist()
    with pytest.raises(BudgetError, match="10 wants and is full"):
        sketch.add(0, kept)


def searched(
    samples: SampleSet, runtime: Runtime, hot: np.ndarray, table_bytes: int = 1 << 30
) -> LayoutSearch:
    wants = sum(map(len, wants_of(samples, hot)))
    sizes = LayoutSizes(ROW, wants, 8, 4, 8, 1000)
    wanted = BatchIds(samples.section_of("nodes", 0), np.arange(samples.num_batches), runtime)
    sketch = WantSketch(wanted, [hot], sizes, runtime, table_bytes=table_bytes)
    return LayoutSearch([sketch], 5000, samples.num_batches)


def disk_bytes_by_brute_force(wants: Sequence[np.ndarray], lay: SegmentLayout) -> int:
    shared = shared_by_brute_force(wants, lay)
    rows = sum(map(len, shared))
    accesses = sum(int(np.isin(w, list(shared[p // lay.segment])).sum()) for p, w in enumerate(wants))
    packed = sum(map(len, wants)) - accesses
    return 5000 + rows * (ROW + 8) + packed * (ROW + 4) + accesses * 8 + (1000 if rows else 0)


@pytest.mark.parametrize("threshold", [1, 2, 4])
def test_the_smallest_segments_within_a_bound_are_found(made, threshold: int):
    _, samples, runtime = made
    hot = np.arange(0, 900, 5)
    wants, search = wants_of(samples, hot), searched(samples, runtime, hot)
    assert search.exact
    sizes = {
        s: disk_bytes_by_brute_force(wants, SegmentLayout(s, threshold))
        for s in range(2, samples.num_batches + 1)
    }
    for s, size in sizes.items():
        assert search.disk_bytes(SegmentLayout(s, threshold)) == size
    for limit in (
        min(sizes.values()) - 1,
        min(sizes.values()),
        *np.linspace(min(sizes.values()), max(sizes.values()), 9),
    ):
        found = search.smallest(threshold, int(limit))
        if sizes[samples.num_batches] > limit:
            assert found is None
            continue
        assert found is not None
        assert sizes[found.segment] <= limit
        assert found.segment == 2 or sizes[found.segment - 1] > limit


def test_a_sampled_sketch_is_close(made):
    _, samples, runtime = made
    exact, thinned = (searched(samples, runtime, np.zeros(0, np.int64), b) for b in (1 << 30, 1))
    assert exact.exact
    assert not thinned.exact
    for lay in (SegmentLayout(3, 1), SegmentLayout(20, 1), SegmentLayout(20, 3)):
        assert thinned.disk_bytes(lay) == pytest.approx(exact.disk_bytes(lay), rel=0.1)


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory):
    """A graph, and what every (s, m) of a grid takes and reads, arranged and counted in full."""
    folder = tmp_path_factory.mktemp("tried")
    runtime = Runtime(threads=1)
    graph = a_graph(folder / "g", runtime, width=128, nodes=4000, edges=60000, train=1200)
    samples = sampled(graph, folder, runtime, batch_size=40, epochs=2, fanouts=(5, 5))
    everything = planned(graph, folder, runtime, samples, cached(samples, disk_space=1 << 40), "all")
    found = {}
    for s in (*range(2, 20), *range(20, samples.num_batches, 4), samples.num_batches):
        for m in (1, 2, 3, 4, 6, 9):
            if m < s:
                placement = planned(
                    graph, folder, runtime, samples, cached(samples, layout=f"{s},{m}"), "try"
                )
                found[SegmentLayout(s, m)] = (placement.predicted["disk_bytes"], reads_of(placement))
    return graph, samples, runtime, everything.predicted["disk_bytes"], found


def cached(samples: SampleSet, **options) -> PlanConfig:
    return config_with_cache(samples, 512, 200, **options)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", ["cost", "heuristic"])
@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_the_choice_is_as_good_as_trying_everything(tried, tmp_path: Path, share: float, name: str):
    """Of all layouts of the grid that fit the bound none reads 5 % less than the one that is chosen."""
    graph, samples, runtime, everything, found = tried
    bound = int(everything * share)
    config = cached(samples, disk_space=bound, layout=name)
    placement = planned(graph, tmp_path, runtime, samples, config)
    assert placement.predicted["disk_bytes"] <= bound
    best = min(read for disk, read in found.values() if disk <= bound)
    assert reads_of(placement) <= 1.05 * best


def reads_of(placement) -> int:
    return sum(e["bytes_read"] for epochs in placement.predicted["epochs"].values() for e in epochs)


def test_alternatives_say_what_was_weighed(made, tmp_path: Path):
    graph, samples, runtime = made
    packed = config_with_cache(samples, ROW, 0, disk_space=1 << 40)
    everything = planned(graph, tmp_path, runtime, samples, packed, "all").predicted
    assert everything["alternatives"] == []
    bound = int(everything["disk_bytes"] * 0.85)
    placement = planned(
        graph, tmp_path, runtime, samples, config_with_cache(samples, ROW, 0, disk_space=bound), "bound"
    )
    lines = placement.predicted["alternatives"]
    assert len(lines) >= 2
    assert [line["chosen"] for line in lines].count(True) == 1
    chosen = next(line for line in lines if line["chosen"])
    assert chosen["seconds"] == min(line["seconds"] for line in lines)
    assert placement.segment_batches >= chosen["segment"]


@pytest.mark.parametrize("text", ["", "5", "0,1", "5,-1", "5,x", "best", "5,1,1"])
def test_unknown_layouts_are_refused(text: str):
    with pytest.raises(ArgumentError, match="is unknown; known: cost"):
        PlanConfig(layout=text)


class _ManyBatches:
    """Ids of very many mini-batches, made up as they are asked for: popular nodes are wanted by most batches."""

    def __init__(self, batches: int, nodes: int, num_nodes: int):
        self.packed = np.arange(batches)
        self.section = SimpleNamespace(max_rows=nodes, id_bytes=4)
        rng = np.random.default_rng(0)
        self._base = rng.choice(num_nodes // 2, nodes // 2, replace=False).astype(np.int32)
        self._step, self._range = 7919, num_nodes // 2
        self._ids = np.empty(nodes, np.int32)

    def of(self, p: int) -> np.ndarray:
        popular, others = np.split(self._ids, 2)
        np.multiply(self._base, 2, out=popular)
        np.add(self._base, p * self._step % self._range, out=others)
        others %= self._range
        others *= 2
        others += 1
        return self._ids


@pytest.mark.slow
def test_ten_thousand_large_batches_are_searched_within_the_budget(make_runtime: Make):
    """2 billion wants: the sketch holds what the budget allows, and a search counts on it a few dozen times."""
    batches, nodes = 10_000, 200_000
    budget = 256 << 20
    runtime = make_runtime(budget)
    wanted = _ManyBatches(batches, nodes, 100_000_000)
    sizes = LayoutSizes(512, batches * nodes, 8, 4, 8, 0)
    sketch = WantSketch(wanted, [], sizes, runtime, table_bytes=budget // 2)  # type: ignore[arg-type]
    search = LayoutSearch([sketch], 0, batches)
    everything = sizes.disk_bytes(0, batches * nodes, 0)
    found = segments.heuristic(search, int(everything * 0.6))
    assert found is not None
    assert 2 <= found.segment < batches
    assert search.disk_bytes(found) <= 0.6 * everything
    assert len(sketch._histograms) <= 2 * 14
    assert runtime.budget.peak_bytes <= budget
