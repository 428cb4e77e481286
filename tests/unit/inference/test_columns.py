"""Layers computed by columns, against torch_geometric's layers, and against a count of pages, page by page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infer_support import a_conv, a_model, as_float, odd_edges, odd_graph, reference
from outcrop._core import WorkerPool
from outcrop.errors import ChecksumError, FormatError
from outcrop.inference import activations, edge_counts
from outcrop.inference.column_layer import ColumnLayer
from outcrop.inference.column_sums import SourceColumns, column_sums
from outcrop.inference.columns import ColumnPlan, OwnRows, plan_columns
from outcrop.inference.in_order import PIECE_EDGES, lists_in_order
from outcrop.inference.inputs import StoredRows
from outcrop.inference.layerwise import run_layer
from outcrop.inference.steps import OutputRequest, Step, steps_of
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph

MODELS = ("sage", "gcn", "gat", "gin")
PAGE = 4096


def in_cuts(
    conv: torch.nn.Module, x: torch.Tensor, edges: np.ndarray, most: int, at_a_time: int
) -> torch.Tensor:
    """All nodes as targets, ``at_a_time`` of them; ``most`` columns at a time."""
    sums, workers = column_sums(conv), WorkerPool(1)
    assert sums is not None
    row, col = edges[1], edges[0]
    loopless = row != col
    scale = torch.from_numpy(1 / np.sqrt(np.bincount(row[loopless], minlength=len(x)) + 1)).float()
    if sums.drops_loops:
        row, col = row[loopless], col[loopless]
    order = np.argsort(row, kind="stable")
    rowptr = np.append(0, np.cumsum(np.bincount(row, minlength=len(x))))
    cuts, scores = sums.cuts(most), sums.target_scores(x)
    parts = []
    for (begin, end), given_rows in zip(cuts, sums.given(x, scale, cuts), strict=True):
        assert 0 < end - begin <= most
        of_heads = scores[list(sums.heads_of(begin, end))]

        def scores_of(first: int, stop: int, of_heads: torch.Tensor = of_heads) -> torch.Tensor:
            return of_heads[:, first:stop].contiguous()

        of = SourceColumns(given_rows.contiguous(), workers, scores_of if sums.heads else None, scale)
        found = []
        for first in range(0, len(x), at_a_time):
            ptr = rowptr[first : first + at_a_time + 1]
            added = sums.begin(of, first, len(ptr) - 1)
            mine = col[order][ptr[0] : ptr[-1]].astype(np.int32)
            if len(mine):
                starts = torch.from_numpy((ptr - ptr[0]).astype(np.int32))
                sums.add(added, of, first, starts, torch.from_numpy(mine))
            found.append(sums.end(added, of, first))
        parts.append(torch.cat(found))
    own = sums.own(x) if sums.own_width else None
    return sums.finish(torch.cat(parts, 1), own)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("widths", [(6, 20), (20, 6)])
@torch.no_grad()
def test_any_cut_gives_the_same_bits_and_the_layer_on_the_whole(name: str, widths: tuple[int, int]) -> None:
    edges = odd_edges(60, 300)
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((60, widths[0])).astype(np.float32))
    conv = a_conv(name, *widths)
    whole = in_cuts(conv, x, edges, 1000, 60)
    torch.testing.assert_close(whole, conv(x, torch.from_numpy(edges)), rtol=1e-5, atol=1e-5)
    for most in (1, 2, 3, 7, 19):
        assert torch.equal(in_cuts(conv, x, edges, most, 7), whole)


def test_transformers_are_not_cut() -> None:
    assert column_sums(a_conv("transformer", 6, 4)) is None


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, np.ndarray]:
    with Runtime() as runtime:
        folder = tmp_path_factory.mktemp("odd")
        return odd_graph(folder / "graph", runtime, nodes=5000, width=64, hub_edges=3 * PIECE_EDGES)


@pytest.mark.parametrize(("targets", "edges", "chunk"), [(1000, PIECE_EDGES, 1), (7, 1 << 20, 1 << 16)])
def test_lists_come_in_order_and_every_page_once(
    odd: tuple[Graph, np.ndarray], targets: int, edges: int, chunk: int
) -> None:
    graph, of = odd
    with Runtime() as runtime:
        found = list(lists_in_order(graph, runtime, targets, edges, chunk))
        read = runtime.io.counters.read_bytes
    assert read == -(-8 * (graph.num_nodes + 1) // PAGE) * PAGE + -(-4 * graph.num_edges // PAGE) * PAGE
    pieces: dict[int, list[int]] = {node: [] for node in range(graph.num_nodes)}
    for lists in found:
        assert lists.first // targets == (lists.stop - 1) // targets
        assert len(lists.col) <= edges
        for node in range(lists.first, lists.stop):
            at = node - lists.first
            pieces[node] += lists.col[lists.rowptr[at] : lists.rowptr[at + 1]].tolist()
    order = np.lexsort((of[0], of[1]))
    ends = np.cumsum(np.bincount(of[1], minlength=graph.num_nodes))[:-1]
    want = np.split(of[0][order], ends)
    assert all(sorted(pieces[node]) == want[node].tolist() for node in pieces)
    hubs = [lists for lists in found if not (lists.begins and lists.ends)]
    assert {len(lists.rowptr) for lists in hubs} == {2}
    assert [len(lists.col) for lists in hubs][:2] == [PIECE_EDGES, PIECE_EDGES]
    loopless = sum(len(lists.without_loops().col) for lists in found)
    assert loopless == (of[0] != of[1]).sum()


def one_step(graph: Graph, name: str, hidden: int, wanted: np.ndarray | None = None) -> Step:
    model = a_model(name, graph.feature_dim, graph.num_classes, hidden=hidden)
    ((step,),) = steps_of(graph, model, OutputRequest(graph.node_types[0], 1, False, wanted))
    return step


def computed(
    graph: Graph, step: Step, plan: ColumnPlan, memory: int, folder: Path
) -> tuple[np.ndarray, int, int]:
    """Gives the output, bytes read and bytes written."""
    counts = folder / "counts"
    if step.layer.uses_degrees and not counts.exists():
        with Runtime() as runtime:
            edge_counts.count_edges(graph, counts, runtime, uses=False)
    out = folder / "out"
    activations.remove(out)
    with Runtime(memory) as runtime:
        rows = StoredRows(graph.array(runtime, "features"))
        opened = edge_counts.open_counts(counts) if step.layer.uses_degrees else None
        layer = ColumnLayer(step, plan, rows, opened, folder / "scratch", runtime)
        try:
            run_layer(layer, out, {}, {}, runtime)
        finally:
            layer.close()
            rows.close()
        assert runtime.budget.peak_bytes <= memory
        counters = runtime.io.counters
    with Runtime() as runtime:  # the output may be larger than the budget
        array = activations.open_rows(out, runtime)
        found = array.read("test").copy()
        array.close()
    assert layer.stats.rows == step.num_rows
    assert not (folder / "scratch").exists()
    return found, counters.read_bytes, counters.write_bytes


def pages(offsets: np.ndarray, each: int) -> set[int]:
    """Returns the pages that ``each`` bytes at some offsets of a file lie on."""
    return {page for at in offsets.tolist() for page in range(at // PAGE, (at + each - 1) // PAGE + 1)}


def heads_within(heads: int, begin: int, end: int) -> list[int]:
    """The heads, of 8 columns each, that columns ``begin:end`` are of."""
    return [h for h in range(heads) if set(range(begin, end)) & set(range(h * 8, h * 8 + 8))]


def counted(graph: Graph, step: Step, plan: ColumnPlan) -> tuple[int, int]:
    """Counts (bytes read, bytes written), page by page of each file, row by row."""
    nodes, row_bytes, layer = graph.num_nodes, graph.spec("features").stride_bytes, step.layer
    sums = layer.columns
    assert sums is not None
    every = np.arange(nodes)
    blocks = {node // plan.rows for node in (every if step.wanted is None else step.wanted).tolist()}
    of_wanted = np.array([node for node in every.tolist() if node // plan.rows in blocks])
    filled = -(-nodes // 1024) * 1024  # rows of files of columns
    # columns.bin: blocks of rows, of each the cuts with the scores of their heads, the scores of targets, head by head,
    # and own rows, one after the other.
    groups = []
    if plan.passes > 1:
        groups = [end - begin + len(heads_within(sums.heads, begin, end)) for begin, end in plan.cuts]
        groups += [1] * sums.heads
    groups += [sums.own_width] if plan.own is OwnRows.STORED else []

    def of_group(group: int, only: set[int]) -> int:
        found: set[int] = set()
        for block in only:
            rows = min(plan.rows, filled - block * plan.rows)
            begin = 4 * (block * plan.rows * sum(groups) + rows * sum(groups[:group]))
            found |= pages(begin + 4 * groups[group] * np.arange(rows), 4 * groups[group])
        return len(found)

    every_block = {node // plan.rows for node in every.tolist()}
    read = len(pages(every * row_bytes, row_bytes))
    read += len(pages(every * 4, 4)) if layer.uses_degrees else 0
    for number, (begin, end) in enumerate(plan.cuts):
        read += len(pages(np.arange(nodes + 1) * 8, 8)) + len(pages(np.arange(graph.num_edges) * 4, 4))
        if plan.passes == 1:
            continue
        read += of_group(number, every_block)
        read += sum(
            of_group(plan.passes + head, every_block) for head in heads_within(sums.heads, begin, end)
        )
        # sums.bin: the cuts one after the other, of all rows.
        for block in blocks:
            rows = np.arange(block * plan.rows, min((block + 1) * plan.rows, filled))
            each = 4 * (end - begin)
            read += len(pages(4 * filled * begin + each * rows, each))
    if plan.own is OwnRows.STORED:
        read += of_group(len(groups) - 1, blocks)
    if plan.own is OwnRows.INPUT:
        read += len(pages(of_wanted * row_bytes, row_bytes))
    written = filled * 4 * (sum(groups) + (sums.width if plan.passes > 1 else 0)) // PAGE
    out = step.output.row_bytes
    written += len(pages(np.arange(step.num_rows) * out, out))
    return read * PAGE, written * PAGE


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], tuple[Graph, np.ndarray]]:
    folder, sizes = tmp_path_factory.mktemp("graphs"), ((9000, 40), (20_000, 16), (1024, 8))
    with Runtime() as runtime:
        return {
            (nodes, dtype): odd_graph(
                folder / f"{nodes}-{dtype}", runtime, nodes=nodes, edges=4 * nodes, width=width, dtype=dtype
            )
            for nodes, width in sizes
            for dtype in ("float32", "int8")
        }


@given(st.data())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_read_and_written_is_predicted(
    graphs: Any, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Of every budget: the bits of the largest, within the budget, and the bytes that were planned: those that a count
    page by page gives.
    """
    key = data.draw(st.sampled_from(sorted(graphs)))
    (graph, _), name = graphs[key], data.draw(st.sampled_from(["sage", "gcn", "gat"]))
    hidden = 16 if name == "gat" else data.draw(st.sampled_from([4, 10, 16, 100]))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    some = np.sort(rng.choice(graph.num_nodes, max(graph.num_nodes // 300, 1), replace=False))
    wanted = data.draw(st.sampled_from([None, some, np.arange(0, graph.num_nodes, 2)]))
    step = one_step(graph, name, 8 if name == "gat" else hidden, wanted)
    top = plan_columns(step, 256 << 20)
    assert top is not None
    assert top.passes == 1
    memory = data.draw(st.integers(1 << 20, 7 << 20))
    plan = plan_columns(step, memory)
    if plan is None:
        return
    assert plan.memory_bytes <= memory
    folder = tmp_path_factory.mktemp("layer")
    want, *_ = computed(graph, step, top, 256 << 20, folder)
    found, read, written = computed(graph, step, plan, memory, folder)
    assert found.tobytes() == want.tobytes()
    assert (read, written) == (plan.bytes_read, plan.bytes_written) == counted(graph, step, plan)


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_a_hub_with_loops_gives_the_same_bits_in_pieces(graphs: Any, tmp_path: Path, name: str) -> None:
    """Loops are dropped, and a long list comes whole or in pieces, as the budget has it."""
    graph, edges = graphs[1024, "float32"]
    hub = np.bincount(edges[1]).argmax()
    assert ((edges[0] == hub) & (edges[1] == hub)).any()
    step, memory = one_step(graph, name, 8), 1_166_088
    top, plan = plan_columns(step, 256 << 20), plan_columns(step, memory)
    assert top is not None
    assert plan is not None
    assert plan.edges < np.bincount(edges[1]).max() < top.edges
    want, *_ = computed(graph, step, top, 256 << 20, tmp_path)
    found, *_ = computed(graph, step, plan, memory, tmp_path)
    assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    ("name", "hidden", "nodes", "memory", "passes", "own"),
    [
        ("sage", 100, 9000, 64, 1, OwnRows.SOURCE),
        ("sage", 4, 9000, 2, 1, OwnRows.HELD),
        ("sage", 16, 9000, 3, 1, OwnRows.STORED),
        ("sage", 4, 9000, 1.5, 2, OwnRows.STORED),
        ("sage", 100, 20_000, 4, 2, OwnRows.INPUT),
        ("sage", 10, 20_000, 2.5, 1, OwnRows.INPUT),
        ("gcn", 48, 20_000, 3, 4, OwnRows.NONE),
        ("gat", 8, 9000, 64, 1, OwnRows.NONE),
    ],
)
def test_where_own_rows_are_found(
    graphs: Any, name: str, hidden: int, nodes: int, memory: float, passes: int, own: OwnRows
) -> None:
    plan = plan_columns(one_step(graphs[nodes, "float32"][0], name, hidden), int(memory * (1 << 20)))
    assert plan is not None
    assert (plan.passes, plan.own) == (passes, own)


@pytest.mark.parametrize("name", ["sage", "gcn", "gat"])
def test_equals_the_layer_of_torch_geometric(odd: Any, tmp_path: Path, name: str) -> None:
    """Also of a target whose list comes in pieces."""
    graph, edges = odd
    step = one_step(graph, name, 8)
    model = a_model(name, graph.feature_dim, graph.num_classes, hidden=8)
    with Runtime() as runtime:
        array = graph.array(runtime, "features")
        x = as_float(np.array(array.memmap()), "float32")
        array.close()
    plan = plan_columns(step, 64 << 20)
    assert plan is not None
    found, *_ = computed(graph, step, plan, 64 << 20, tmp_path)
    np.testing.assert_allclose(found, reference(model, x, edges, 1), rtol=1e-4, atol=1e-4)


def test_damaged_lists_are_named(tmp_path: Path) -> None:
    with Runtime() as runtime:
        graph, _ = odd_graph(tmp_path / "graph", runtime)
        for name, value in (("indices", 3001), ("indptr", -5)):
            path = graph.path / graph.spec(name).file
            kept = path.read_bytes()
            array = np.frombuffer(bytearray(kept), graph.array(runtime, name).dtype)
            array[100] = value
            path.write_bytes(array.tobytes())
            with pytest.raises((FormatError, ChecksumError), match=name):
                list(lists_in_order(graph, runtime, 1000, PIECE_EDGES, PAGE))
            path.write_bytes(kept)
