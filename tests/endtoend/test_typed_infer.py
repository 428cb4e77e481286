"""Inference on graphs with types, layer by layer and sampled, against the model on the whole graph in memory."""

from __future__ import annotations

import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import outcrop as oc
from artifact_support import leftovers
from forked import python
from infer_support import DYING_PROGRESS
from outcrop.cli.main import app
from outcrop.errors import ArgumentError, BudgetError
from outcrop.inference import layerwise
from outcrop.nn.schema import GraphSchema
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from typed_batches import with_edges_to_all
from typed_infer_support import Whole, a_typed_model, expected, save_typed, whole_of
from typed_reference import TypedGraph, typed_graphs
from typed_store import write_typed

MODELS = ("rgcn", "rsage", "rgat", "hgt", "rtransformer", "rgine")  # that are computed layer by layer
QUIET = oc.Observer(progress=False)
SMALL = "2MiB"
DTYPES = ("float32", "float16", "int8")


class Made:
    """A graph, a model of it with a checkpoint, and what the model gives."""

    def __init__(self, folder: Path, graph: Graph, name: str, layers: int = 2):
        self.folder, self.graph = folder, graph
        schema = GraphSchema.of(graph, graph.seed_type.name, no_rows="random:5", row_seed=11)
        self.model = a_typed_model(name, schema, layers)
        self.checkpoint = save_typed(folder / f"ckpt-{name}-{layers}", graph, name, self.model)
        self.whole: Whole = whole_of(graph, self.model)

    def infer(self, name: str = "out.npy", **options: Any) -> np.ndarray:
        self.report = oc.infer(
            self.graph, model=self.checkpoint, out=self.folder / name, observer=QUIET, **options
        )
        return np.load(self.folder / name)

    def scores(self) -> np.ndarray:
        return expected(self.model, self.whole)

    def hidden(self, node_type: str, depth: int) -> np.ndarray:
        (of,) = (one for one in self.graph.node_types if one.name == node_type)
        return expected(self.model, self.whole, of, depth)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = tmp_path_factory.mktemp("typed") / "g.oc"
    config = oc.GenerateConfig(nodes=6000, edges=60_000, kind="typed", train_fraction=0.3)
    return oc.generate_graph(path, config, progress=False)


def close(found: np.ndarray, want: np.ndarray) -> None:
    """Errors are measured by the largest score."""
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * max(np.abs(want).max(initial=0), 1))


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("memory", [None, SMALL])
def test_equals_the_model_on_the_whole_graph(
    tmp_path: Path, graph: Graph, name: str, memory: str | None
) -> None:
    made = Made(tmp_path, graph, name, layers=3)
    close(made.infer(memory=memory), made.scores())
    report = made.report
    assert (report.rows, report.columns) == (graph.seed_type.num_nodes, graph.num_classes)
    assert report.bytes_written == report.predicted_bytes_written
    assert [layer["node_type"] for layer in report.layers][-1] == graph.seed_type.name
    spans = [layer["spans"] for layer in report.layers]
    if memory is None:
        assert set(spans) == {1}
    else:
        assert max(spans) > 2
        assert report.peak_host_bytes <= 2 << 20
    assert leftovers(tmp_path) == []


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", MODELS)
@given(drawn=typed_graphs(), data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_graph_in_any_parts(monkeypatch: pytest.MonkeyPatch, name: str, drawn: Any, data: Any) -> None:
    """Spans of a few targets, parts of a few sources: empty types, isolated nodes, repeated edges, hubs."""
    drawn = with_edges_to_all(drawn)
    seed_type = data.draw(st.sampled_from([t for t, size in enumerate(drawn.sizes) if size]))
    rng = np.random.default_rng(1)
    parts: dict[str, np.ndarray] = {f"n{seed_type}.labels": np.zeros(drawn.sizes[seed_type], np.int64)}
    for number, size in enumerate(drawn.sizes):
        if data.draw(st.booleans()):
            values = rng.integers(-3, 4, (size, number + 2))
            parts[f"n{number}.features"] = values.astype(data.draw(st.sampled_from(DTYPES)))
    limits = {what: data.draw(st.integers(1, 4)) for what in ("targets", "edges", "rows")}
    divide = layerwise.divide
    with monkeypatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(layerwise, "divide", lambda *a: replace(divide(*a), **limits, whole=False))
        graph = write_typed(Path(folder) / "graph", drawn, parts, {seed_type: 3})
        made = Made(Path(folder), graph, name, data.draw(st.integers(1, 3)))
        close(made.infer(), made.scores())


@pytest.mark.parametrize("name", MODELS)
def test_sampled_with_all_neighbors_is_exact(tmp_path: Path, graph: Graph, name: str) -> None:
    made = Made(tmp_path, graph, name)
    ids = np.random.default_rng(1).permutation(graph.seed_type.num_nodes)[:300]
    options: dict[str, Any] = {"method": "sampled", "nodes": ids}
    options["sampling"] = oc.InferSampling((-1, -1), batch_size=64)
    close(made.infer(**options), made.scores()[ids])
    hidden = made.hidden(graph.seed_type.name, 2 if name == "hgt" else 1)
    close(made.infer(output="embeddings", **options), hidden[ids])


def test_some_nodes_of_any_type_in_any_order(tmp_path: Path, graph: Graph) -> None:
    for name, depth in (("rsage", 1), ("hgt", 2)):
        made = Made(tmp_path, graph, name)
        ids = np.random.default_rng(0).permutation(graph.seed_type.num_nodes)[:100]
        for memory in (None, SMALL):
            close(made.infer(nodes=ids, memory=memory), made.scores()[ids])
            assert made.report.layers[-1]["rows"] == 100
        seeds = graph.seed_type.name
        close(made.infer(output="embeddings", nodes=(seeds, ids)), made.hidden(seeds, depth)[ids])
        train = graph.manifest.arrays[graph.seed_type.array("train")].shape[0]
        assert len(made.infer(nodes="train")) == train
    made = Made(tmp_path, graph, "rgcn")
    for other in ("author", "topic"):
        close(made.infer(output="embeddings", nodes=(other, "all")), made.hidden(other, 1))
    close(made.infer(output="embeddings", nodes=("author", [5, 2])), made.hidden("author", 1)[[5, 2]])


def test_a_model_of_ones_own_outputs_and_formats(tmp_path: Path, graph: Graph) -> None:
    made = Made(tmp_path, graph, "rgat")
    scores = made.scores()
    assert np.array_equal(oc.predict(graph, made.model, observer=QUIET), made.infer())
    found = oc.predict(graph, made.checkpoint, [3, 1], output="probabilities", observer=QUIET)
    close(found, torch.from_numpy(scores[[3, 1]]).softmax(1).numpy())
    oc.infer(graph, model=made.checkpoint, out=tmp_path / "c.parquet", output="classes", observer=QUIET)
    table = pq.read_table(tmp_path / "c.parquet")
    assert table["node"].to_pylist() == list(range(len(scores)))
    top = np.sort(scores, 1)
    clear = top[:, -1] - top[:, -2] > 1e-3
    assert np.array_equal(np.array(table["class"].to_pylist())[clear], scores.argmax(1)[clear])


def test_results_carry_the_names_of_their_type(tmp_path: Path) -> None:
    """Papers have names, authors have none."""
    names = ["a", "bb", "", "ddd"]
    parts = {
        "n0.names": np.frombuffer("".join(names).encode(), np.uint8),
        "n0.name_offsets": np.cumsum([0, *map(len, names)]).astype(np.int64),
        "n0.labels": np.zeros(4, np.int64),
    }
    drawn = TypedGraph((4, 6), ((1, 0), (0, 1)), (((0,), (1, 2), (), (5,)), ((0,),) * 6))
    made = Made(tmp_path, write_typed(tmp_path / "graph", drawn, parts, {0: 3}), "rgcn")
    options: dict[str, Any] = {"model": made.checkpoint, "observer": QUIET}
    oc.infer(made.graph, out=tmp_path / "o.parquet", nodes=["ddd", "a"], **options)
    table = pq.read_table(tmp_path / "o.parquet")
    assert (table["node"].to_pylist(), table["name"].to_pylist()) == ([3, 0], ["ddd", "a"])
    close(np.array(table["logits"].to_pylist()), made.scores()[[3, 0]])
    authors = {"out": tmp_path / "a.parquet", "nodes": ("t1", [4]), "output": "embeddings"}
    oc.infer(made.graph, **authors, **options)
    assert pq.read_table(tmp_path / "a.parquet").column_names == ["node", "embeddings"]


def test_metrics_are_those_of_the_type_with_labels(tmp_path: Path, graph: Graph) -> None:
    made = Made(tmp_path, graph, "rgcn")
    best = made.infer().argmax(1)
    with Runtime() as runtime:
        of = graph.seed_type
        y = np.array(graph.array(runtime, of.array("labels")).memmap())
        splits = {split: graph.split(runtime, split) for split in made.report.metrics}
    assert list(splits) == ["train", "valid", "test"]
    for split, ids in splits.items():
        assert made.report.metrics[split]["accuracy"] == pytest.approx((best == y)[ids].mean())
        assert made.report.metrics[split]["labels"] == len(ids)
    made.infer(nodes=("author", "all"), output="embeddings")
    assert made.report.metrics == {}


def test_types_that_no_later_layer_needs_are_not_computed(tmp_path: Path, graph: Graph) -> None:
    made = Made(tmp_path, graph, "rsage", layers=3)
    made.infer()
    found: dict[int, set[str]] = {}
    for layer in made.report.layers:
        found.setdefault(layer["layer"], set()).add(layer["node_type"])
    names = [one.name for one in graph.node_types]
    wanted = [{names[number] for number in made.model.targets(index)} for index in range(3)]
    assert [found[index] for index in range(3)] == wanted
    assert wanted[2] == {graph.seed_type.name}


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
def test_smallest_budget_named_is_enough(tmp_path: Path, name: str) -> None:
    config = oc.GenerateConfig(nodes=300, edges=1500, kind="typed")
    made = Made(tmp_path, oc.generate_graph(tmp_path / "few.oc", config, progress=False), name)
    with pytest.raises(BudgetError) as failed:
        made.infer(memory="200KiB")
    smallest = int(str(failed.value).split("the smallest budget that can is ")[1].split()[0])
    close(made.infer(memory=smallest), made.scores())
    assert made.report.peak_host_bytes <= smallest
    with pytest.raises(BudgetError):
        made.infer(memory=smallest - 1)


DYING = (
    DYING_PROGRESS
    + """
import outcrop as oc
oc.infer(sys.argv[1], model=sys.argv[2], out=sys.argv[3], memory="2MiB", observer=oc.Observer(Progress()))
"""
)


class Counting:
    """Counts how often progress is told of."""

    calls = 0

    def start(self, *_: Any) -> None:
        self.calls += 1

    finish = advance = start


def test_killed_and_run_again(tmp_path: Path, graph: Graph) -> None:
    made, counting = Made(tmp_path, graph, "rgcn", layers=3), Counting()
    want = tmp_path / "want.npy"
    options: dict[str, Any] = {"model": made.checkpoint, "memory": SMALL}
    oc.infer(graph, out=want, observer=oc.Observer(counting), **options)
    resumed = 0
    for part in (0.2, 0.5, 0.7, 0.9, 0.97):
        out, after = tmp_path / f"out-{part}.npy", int(part * counting.calls)
        ended = python(DYING, graph.path, made.checkpoint, out, DIE_AFTER=str(after))
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        made.infer(out.name, memory=SMALL)
        assert out.read_bytes() == want.read_bytes()
        resumed += made.report.resumed_layers
    assert resumed >= 4
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": ("writer", "all")}, r"has no node type 'writer': name one of"),
        (
            {"nodes": ("author", "all")},
            r"trained to predict labels of node type 'paper': of 'author' ask for",
        ),
        (
            {"nodes": ("author", "all"), "output": "embeddings", "method": "sampled"},
            r"sampled batches begin with nodes of type 'paper'",
        ),
        ({"nodes": [10**6]}, r"are not in 0 to \d+"),
        ({"nodes": ("author", "train"), "output": "embeddings"}, "there is no file 'train'"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, graph: Graph, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ArgumentError, oc.FormatError), match=message):
        Made(tmp_path, graph, "rsage").infer(**options)


def test_models_and_graphs_that_do_not_fit(tmp_path: Path, graph: Graph) -> None:
    made = Made(tmp_path, graph, "rsage")
    config = oc.GenerateConfig(nodes=3000, edges=20_000, kind="typed")
    other = oc.generate_graph(tmp_path / "other.oc", config, progress=False)
    with pytest.raises(ArgumentError, match="another graph"):
        oc.predict(other, made.checkpoint, observer=QUIET)
    found = oc.predict(other, made.checkpoint, any_graph=True, observer=QUIET)
    close(found, expected(made.model, whole_of(other, made.model)))
    flat = oc.generate_graph(tmp_path / "flat.oc", oc.GenerateConfig(nodes=300, edges=2000), progress=False)
    with pytest.raises(ArgumentError, match="of a graph with other types than"):
        oc.predict(flat, made.checkpoint, observer=QUIET)
    with pytest.raises(ArgumentError, match="is there for graphs without types alone"):
        oc.predict(graph, torch.nn.Linear(3, 3), observer=QUIET)


def test_command(tmp_path: Path, graph: Graph) -> None:
    made = Made(tmp_path, graph, "rgcn")
    out = tmp_path / "authors.npy"
    arguments = ["infer", str(graph.path), "--checkpoint", str(made.checkpoint), "--out", str(out)]
    done = CliRunner().invoke(app, [*arguments, "--node-type", "author", "--output", "embeddings"])
    assert done.exit_code == 0, done.output
    close(np.load(out), made.hidden("author", 1))
    assert "0 author" in done.output
