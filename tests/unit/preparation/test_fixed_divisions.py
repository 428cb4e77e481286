"""What several row files cost to read: no more than with any fixed division of the cache, and what was predicted."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outcrop.api.graph import generate_graph
from outcrop.config import GenerateConfig, PlanConfig, SampleConfig
from outcrop.loading.session import packed_session
from outcrop.preparation import pack as packing
from outcrop.preparation.cached_rows import CachedRows
from outcrop.preparation.plan import plan
from outcrop.preparation.plan_memory import divide_host_memory
from outcrop.preparation.sample import sample
from outcrop.rows import disk_rows
from outcrop.runtime.runtime import Runtime
from outcrop.store import packed
from outcrop.store.placement import Placement, open_placement
from outcrop.store.samples import SampleSet, open_samples
from run_support import round_up
from section_support import (
    DIVISIONS,
    EPOCHS,
    EdgeWidths,
    NodeWidths,
    memory_with_cache,
    sample_by_reference,
    section_graph,
)

Make = Callable[..., Runtime]
CONFIG = SampleConfig(fanouts=(4, 3), batch_size=20, epochs=EPOCHS, splits=("train",))
# Rows of whole pages: nothing fills pages up, so bytes tell what the cache is worth.
NODES: NodeWidths = {"a": (90, ("uint8", 4096)), "b": (60, ("uint8", 8192)), "c": (40, ("uint8", 12288))}
EDGES: EdgeWidths = {
    ("a", "to", "a"): (200, None),
    ("b", "to", "a"): (250, None),
    ("c", "to", "a"): (120, None),
    ("c", "to", "b"): (120, None),
}


def wanted_ids(samples: SampleSet, rows: Any) -> list[np.ndarray]:
    section = samples.section(rows)
    buffer = np.zeros(section.buffer_bytes, np.uint8)
    return [np.array(section.read_ids(batch, buffer)) for batch in range(samples.num_batches)]


@pytest.mark.parametrize("cached", [8, 70])
def test_no_fixed_division_of_the_cache_reads_less(
    tmp_path: Path, make_runtime: Make, monkeypatch: pytest.MonkeyPatch, cached: int
) -> None:
    """The cache has room for exactly the ``cached`` rows that are wanted most, so that no part of a row is left."""
    graph, runtime = section_graph(tmp_path / "g", types=(NODES, EDGES)), make_runtime(threads=1)
    samples = sample_by_reference(graph, tmp_path, runtime, CONFIG)
    ids = [wanted_ids(samples, rows) for rows in graph.row_files]
    widths = [rows.row_bytes for rows in graph.row_files]
    counts = [Counter(np.concatenate(of).tolist()) for of in ids]
    ranked = sorted((-count, k, row) for k, of in enumerate(counts) for row, count in of.items())
    room = sum(widths[k] for _, k, _ in ranked[:cached])
    config = PlanConfig(memory=memory_with_cache(graph, samples, room), slots=2, layout="packed")
    assert room <= divide_host_memory(samples, config, graph.row_files).cache_bytes < room + min(widths)

    def bytes_of_rows(name: str) -> tuple[int, int]:
        """Plans, and returns bytes of rows by their layout on disk, and all that is predicted to be read."""
        plan(graph, samples, config, tmp_path / name, runtime)
        placement = open_placement(runtime, tmp_path / name)
        of_rows = int(np.diff(placement.part_starts(samples))[:, 1:].sum())
        held = [set(rows.host_ids.tolist()) for rows in placement.files]
        left = sum(w * sum(row not in have for row in batch) for w, have, of in zip(widths, held, ids, strict=True)
                   for batch in map(np.ndarray.tolist, of))  # fmt: skip
        assert of_rows == left
        return of_rows, sum(epoch["bytes_read"] for epoch in placement.predicted["epochs"]["train"])

    planned = bytes_of_rows("plan")
    others = []
    for fifths in DIVISIONS:
        fixed = []
        for of, width, part in zip(counts, widths, fifths, strict=True):
            best = sorted(of, key=lambda row, of=of: (-of[row], row))[: room * part // 5 // width]
            fixed.append(CachedRows(np.array(sorted(best), np.int64), np.zeros(0, np.int64)))
        monkeypatch.setattr(sys.modules[plan.__module__], "choose_cached_rows", lambda *_, fixed=fixed: fixed)
        others.append(bytes_of_rows("-".join(map(str, fifths))))
    assert len(others) == 21
    assert planned[0] <= min(of_rows for of_rows, _ in others)
    assert planned[1] <= min(read for _, read in others)
    assert planned[0] < sorted(of_rows for of_rows, _ in others)[10]


def expected_sizes(placement: Placement, samples: SampleSet, graph: Any) -> np.ndarray:
    """Works out the bytes of the rows of each packed batch and row file as formats are documented: [P, row files]."""
    sizes = np.zeros((samples.num_batches, len(graph.row_files)), np.int64)
    for k, (rows, placed) in enumerate(zip(graph.row_files, placement.files, strict=True)):
        width = rows.row_bytes
        for batch, ids in enumerate(wanted_ids(samples, rows)):
            in_cache = int(np.isin(ids, placed.host_ids).sum())
            own = len(ids) - in_cache
            sizes[batch, k] = round_up(in_cache * width % 4096 + own * width) if own else 0
    return sizes


def test_bytes_of_each_row_file_are_predicted_and_hardly_more_than_needed(
    tmp_path: Path, make_runtime: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed, with a cache of a tenth of the bytes of all rows, those of edges too."""
    made = GenerateConfig(nodes=8000, edges=60_000, kind="typed", train_fraction=0.2, edge_features=16)
    graph = generate_graph(tmp_path / "g", made, progress=False).with_edge_rows(True)
    runtime = make_runtime(threads=1)
    config = SampleConfig(fanouts=(8, 8), batch_size=300, epochs=EPOCHS, splits=("train",), edge_rows=True)
    sample(graph, config, tmp_path / "sample", runtime)
    samples = open_samples(runtime, tmp_path / "sample", graph)
    tenth = graph.feature_bytes // 10
    plan(
        graph,
        samples,
        PlanConfig(memory=memory_with_cache(graph, samples, tenth), slots=2, layout="packed"),
        tmp_path / "plan",
        runtime,
    )
    placement = open_placement(runtime, tmp_path / "plan")
    packing.pack(graph, samples, placement, tmp_path / "pack", runtime)
    assert 0.98 * tenth < placement.predicted["cache_bytes"]["host"] <= tenth * 1.001

    sizes, parts = expected_sizes(placement, samples, graph), placement.part_starts(samples)
    assert len(graph.row_files) == 5
    assert (sizes.sum(axis=0) > 0).all()
    assert np.array_equal(np.diff(parts)[:, 1:], sizes)

    reads: list[tuple[int, int]] = []
    original = packed.PackedRecords._read

    def watched(self: Any, file: int, begin: int, end: int, *rest: Any) -> Any:
        reads.append((begin, end))
        return original(self, file, begin, end, *rest)

    monkeypatch.setattr(packed.PackedRecords, "_read", watched)
    records = packed.open_packed(runtime, tmp_path / "pack", placement, samples)
    below = [disk_rows(graph, runtime, rows) for rows in graph.row_files]
    with packed_session(graph, samples, records, below, runtime) as session:
        for epoch in range(EPOCHS):
            predicted = placement.predicted["epochs"]["train"][epoch]
            reads.clear()
            before, count = runtime.io.counters.read_bytes, 0
            for batch in session.batches("train", epoch):
                count += 1
                del batch
            batches = samples.group("train").batches(epoch)
            assert count == len(batches) > 2
            read = runtime.io.counters.read_bytes - before
            assert read == predicted["bytes_read"] == sum(end - begin for begin, end in reads)
            assert read <= 1.02 * predicted["bytes_needed"]
            pieces = np.array(sorted(reads))
            for k in range(len(graph.row_files)):
                mine = np.isin(pieces[:, 0], parts[list(batches), k + 1]) & (pieces[:, 1] > pieces[:, 0])
                assert np.diff(pieces[mine]).sum() == sizes[list(batches), k].sum()
