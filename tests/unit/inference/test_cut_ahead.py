"""Layers that cut their output for the next one: the bits of layers that write rows, fewer bytes, all of them
predicted, and whoever is killed goes on where the cut was.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from artifact_support import leftovers
from infer_support import a_model, odd_graph, reference, save
from outcrop.api.infer import InferReport, infer
from outcrop.inference import run as running
from outcrop.inference import ways
from outcrop.inference.columns import OwnRows, plan_columns
from outcrop.inference.edge_counts import count_edges, open_counts
from outcrop.inference.input_cut import cut_blocks
from outcrop.inference.steps import OutputRequest, steps_of
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph

MODELS = ("sage", "gcn", "gat")
NODES = 30_000
Made = tuple[Graph, np.ndarray, torch.Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A graph, its edges and its features: their last block is not whole."""
    with Runtime() as runtime:
        graph, edges = odd_graph(
            tmp_path_factory.mktemp("made") / "g", runtime, nodes=NODES, edges=4 * NODES, width=40
        )
        array = graph.array(runtime, "features")
        x = np.array(array.memmap())
        array.close()
    return graph, edges, torch.from_numpy(x)


def checkpoint(folder: Path, graph: Graph, name: str, hidden: int, layers: int) -> tuple[Path, Any]:
    model = a_model(name, graph.feature_dim, graph.num_classes, hidden=hidden, layers=layers)
    return save(folder / f"{name}.ckpt", graph, name, model, hidden=hidden), model


def both_ways(
    monkeypatch: pytest.MonkeyPatch, graph: Graph, model: Path, folder: Path, **options: Any
) -> Iterator[InferReport]:
    """Reports of layers that write rows, and of layers that cut ahead where that moves less."""
    with monkeypatch.context() as patch:
        patch.setattr(ways, "_cut_ahead", lambda *_: None)
        yield infer(graph, checkpoint=model, out=folder / "rows.npy", **options)
    yield infer(graph, checkpoint=model, out=folder / "cut.npy", **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("memory", "hidden"), [("6MiB", 32), ("8MiB", 48), ("5MiB", 16), (None, 64)])
@pytest.mark.parametrize("ids", [None, "some"])
@pytest.mark.quick_cases(5)
def test_same_bits_and_fewer_bytes(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, memory: str, hidden: int, ids: Any
) -> None:
    graph, edges, x = made
    path, model = checkpoint(tmp_path, graph, name, hidden, 3)
    nodes: Any = "all" if ids is None else np.sort(np.random.default_rng(0).choice(NODES, 50, replace=False))
    rows, cut = both_ways(monkeypatch, graph, path, tmp_path, memory=memory, nodes=nodes)
    assert (tmp_path / "rows.npy").read_bytes() == (tmp_path / "cut.npy").read_bytes()
    for report in (rows, cut):
        assert report.bytes_written == report.predicted_bytes_written
        if report.predicted_bytes_read is not None:
            assert report.bytes_read - report.export_bytes_read == report.predicted_bytes_read
        if memory is not None:
            assert report.peak_host_bytes <= int(memory[:-3]) << 20
    assert cut.bytes_read + cut.bytes_written <= rows.bytes_read + rows.bytes_written
    if ids is None:
        if memory in (None, "6MiB"):
            # The last layer gives fewer columns than it takes: only those are written for it.
            assert cut.bytes_read + cut.bytes_written < rows.bytes_read + rows.bytes_written
        assert memory != "6MiB" or max(layer["passes"] for layer in cut.layers) > 1
        np.testing.assert_allclose(
            np.load(tmp_path / "cut.npy"), reference(model, x, edges), rtol=1e-3, atol=1e-3
        )
    assert leftovers(tmp_path) == []


class Shown:
    """Remembers what progress was told of a task."""

    def __init__(self, task: str):
        self.task, self.total, self.steps, self.finished = task, 0, [], False

    def start(self, task: str, total: int, unit: str) -> None:
        if task == self.task:
            assert unit == "rows"
            self.total = total

    def advance(self, task: str, amount: int) -> None:
        self.steps += [amount] * (task == self.task)

    def finish(self, task: str) -> None:
        self.finished |= task == self.task


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("memory", ["6MiB", None])
@pytest.mark.parametrize("ahead", [True, False])
def test_progress_counts_all_that_is_gone_over(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, memory: Any, ahead: bool
) -> None:
    """It would stand still for all passes over the lists, if it counted outputs alone, and guess hours."""
    graph = made[0]
    path, _ = checkpoint(tmp_path, graph, name, 32, 3)
    if not ahead:
        monkeypatch.setattr(ways, "_cut_ahead", lambda *_: None)
    shown = Shown("infer")
    report = infer(graph, checkpoint=path, out=tmp_path / "out.npy", memory=memory, progress=shown)
    passes = [layer["passes"] for layer in report.layers]
    assert (max(passes) > 1) is (memory is not None)
    assert shown.finished
    assert sum(shown.steps) == shown.total
    assert max(shown.steps) <= 4 * 4096  # a block
    gone_over, rest = divmod(shown.total, NODES)
    assert rest == 0
    reads_of_rows = (
        gone_over - sum(passes) - 3
    )  # and three outputs; a layer whose input was cut reads no rows
    assert 1 <= reads_of_rows <= 3
    assert ahead or reads_of_rows == 3


def check_scores(conv: Any, source: np.ndarray, parts: list[np.ndarray], cuts: Any) -> None:
    """Behind the columns of a cut are the scores of its heads, and behind all cuts those of targets."""
    by_head = torch.from_numpy(source).view(len(source), conv.heads, conv.out_channels)
    as_source, as_target = (
        (by_head * vector).sum(2).detach().numpy() for vector in (conv.att_src, conv.att_dst)
    )
    for part, (begin, end) in zip(parts, cuts, strict=False):
        heads = sorted({column // conv.out_channels for column in range(begin, end)})
        found = part.reshape(len(source), -1)[:, end - begin :]
        np.testing.assert_allclose(found, as_source[:, heads], rtol=1e-4, atol=1e-5)
    found = np.stack([part.reshape(-1) for part in parts[len(cuts) :]], 1)
    np.testing.assert_allclose(found, as_target, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_cut_is_what_the_layer_would_have_cut(made: Made, tmp_path: Path, name: str) -> None:
    """Whatever the pieces that rows come in: blocks of the parts that NumPy cuts out of what sources give."""
    graph = made[0]
    model = a_model(name, graph.feature_dim, graph.num_classes, hidden=32, layers=3)
    step = steps_of(graph, model, OutputRequest(graph.node_types[0], 3, False))[1][0]
    plan = plan_columns(step, 6 << 20, cut_before=True)
    assert plan is not None
    assert plan.cut is not None
    assert plan.passes > 2
    assert plan.own is (OwnRows.CUTS if name == "sage" else OwnRows.NONE)
    (shape,) = step.inputs.values()
    width = shape.row_bytes // 4
    x = np.random.default_rng(3).standard_normal((NODES, width)).astype(np.float32)
    with Runtime() as runtime:
        counts = tmp_path / "counts"
        count_edges(graph, counts, runtime, uses=False)
        pieces = np.split(x, [1, 2, 700, 5000, 8999, 29_999])
        found = list(cut_blocks(step, plan, iter(pieces), open_counts(counts), runtime))
    assert sum(count for count, _ in found) == NODES
    source_of, target_of = made[1]
    degree = np.bincount(target_of[source_of != target_of], minlength=NODES)
    by = torch.from_numpy(1 / np.sqrt(degree.astype(np.float32) + 1))
    sums, first = step.layer.columns, 0
    assert sums is not None
    for count, parts in found:
        filled = -(-count // 1024) * 1024
        assert [part.size for part in parts] == [filled * one for one in plan.widths]
        some = torch.zeros(filled, width)
        some[:count] = torch.from_numpy(x[first : first + count])
        scale = torch.zeros(filled)
        scale[:count] = by[first : first + count]
        with torch.no_grad():
            source = sums.source(some, scale).numpy()
        cut = [part.reshape(filled, -1)[:, : b - a] for part, (a, b) in zip(parts, plan.cuts, strict=False)]
        assert np.array_equal(np.concatenate(cut, 1), source)
        if name == "gat":
            check_scores(model.convs[1], source, parts, plan.cuts)
        first += count


@pytest.mark.parametrize("name", MODELS)
def test_interrupted_anywhere_it_goes_on(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    graph, _, _ = made
    path, _ = checkpoint(tmp_path, graph, name, 32, 3)
    infer(graph, checkpoint=path, out=tmp_path / "want.npy", memory="6MiB")
    want, run_step, resumed = (tmp_path / "want.npy").read_bytes(), running._run_step, []
    for at in range(3):

        def step_or_stop(task: Any, work: Any, step: Any, *rest: Any, at: int = at) -> None:
            if step.index == at:
                raise KeyboardInterrupt
            run_step(task, work, step, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(running, "_run_step", step_or_stop)
            with pytest.raises(KeyboardInterrupt):
                infer(graph, checkpoint=path, out=tmp_path / "out.npy", memory="6MiB")
        report = infer(graph, checkpoint=path, out=tmp_path / "out.npy", memory="6MiB")
        resumed.append(report.resumed_layers)
        assert (tmp_path / "out.npy").read_bytes() == want
    assert resumed == [0, 1, 2]


def test_another_budget_does_not_take_a_cut_over(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would read other columns than it thinks."""
    graph, _, _ = made
    path, _ = checkpoint(tmp_path, graph, "gcn", 32, 3)
    infer(graph, checkpoint=path, out=tmp_path / "want.npy", memory="6MiB")

    def broken(*_: Any) -> None:
        raise KeyboardInterrupt

    run_step = running._run_step
    with monkeypatch.context() as patch:
        patch.setattr(running, "_run_step", lambda *of: broken() if of[2].index == 2 else run_step(*of))
        with pytest.raises(KeyboardInterrupt):
            infer(graph, checkpoint=path, out=tmp_path / "out.npy", memory="6MiB")
    infer(graph, checkpoint=path, out=tmp_path / "out.npy", memory="8MiB")
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "want.npy").read_bytes()
