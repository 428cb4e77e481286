"""Inference out of core, against torch_geometric's layers on the whole graph in memory with the same weights."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import outcrop
from artifact_support import leftovers
from forked import python
from infer_support import DYING_PROGRESS, a_model, as_float, odd_graph, reference, save
from outcrop.api.infer import infer
from outcrop.errors import ArgumentError, BudgetError, ChecksumError, FormatError, IoError
from outcrop.inference import division
from outcrop.inference import run as inference
from outcrop.inference.steps import OutputRequest, steps_of
from outcrop.nn import checkpoint as checkpoints
from outcrop.store.graph import Graph
from sparse_reference import features_of
from support import shared_path

MODELS = ("sage", "gcn", "gat", "transformer")
SMALL = "1MiB"


class Made:
    def __init__(self, folder: Path, runtime: Any, name: str, dtype: str = "float32", layers: int = 2):
        self.folder = folder
        self.graph, self.edges = odd_graph(folder / "graph", runtime, dtype=dtype)
        self.model = a_model(name, self.graph.feature_dim, self.graph.num_classes, layers=layers)
        self.checkpoint = save(folder / "ckpt", self.graph, name, self.model)
        array = self.graph.array(runtime, "features")
        self.x = as_float(np.array(array.memmap()), dtype)
        array.close()

    def infer(self, name: str = "out.npy", **options: Any) -> outcrop.InferReport:
        return infer(self.graph, checkpoint=self.checkpoint, out=self.folder / name, **options)

    def reference(self, depth: int | None = None) -> np.ndarray:
        return reference(self.model, self.x, self.edges, depth)


@pytest.fixture
def made(tmp_path: Path, runtime: Any) -> Made:
    return Made(tmp_path, runtime, "sage")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("memory", [None, SMALL])
def test_equals_inference_in_memory(tmp_path: Path, runtime: Any, name: str, memory: str | None) -> None:
    """The hub alone has more edges than fit in a small budget at once; a tenth of the nodes has none."""
    made = Made(tmp_path, runtime, name, layers=3)
    report = made.infer(memory=memory)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), made.reference(), rtol=1e-4, atol=1e-4)
    assert (report.rows, report.columns) == (3000, 5)
    assert report.bytes_written == report.predicted_bytes_written
    by_spans = [layer for layer in report.layers if not layer["passes"]]
    if memory is None:
        assert len(by_spans) == (3 if name == "transformer" else 0)
        assert [layer["spans"] for layer in report.layers] == [1, 1, 1]
    else:
        assert len(by_spans) >= 2
        assert min(layer["spans"] for layer in by_spans) > 3
        assert report.peak_host_bytes <= 1 << 20
        assert all(layer["rows_by_level"].get("host", 0) > 0 for layer in by_spans)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_narrow_features(tmp_path: Path, runtime: Any, dtype: str) -> None:
    made = Made(tmp_path, runtime, "gcn", dtype)
    report = made.infer(memory=SMALL)
    assert report.peak_host_bytes <= 1 << 20
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), made.reference(), rtol=1e-4, atol=1e-3)


def test_every_page_is_read_once(made: Made) -> None:
    """Where all columns fit: the features and the topology, nothing else."""
    report = made.infer()
    first = report.layers[0]
    features, indices, indptr = (made.graph.spec(n).file_bytes for n in ("features", "indices", "indptr"))
    once = features + indices + indptr
    assert first["edges"] == made.graph.num_edges
    assert first["bytes_read"] == once


def test_some_nodes_in_any_order(made: Made) -> None:
    ids = np.random.default_rng(0).permutation(3000)[:200]
    np.save(made.folder / "ids.npy", ids)
    for memory in (None, SMALL):
        report = made.infer(nodes=str(made.folder / "ids.npy"), memory=memory)
        assert report.rows == 200
        assert report.layers[-1]["rows"] == 200
        found = np.load(made.folder / "out.npy")
        np.testing.assert_allclose(found, made.reference()[ids], rtol=1e-4, atol=1e-4)
    made.infer("one.npy", nodes=[7])
    np.testing.assert_allclose(np.load(made.folder / "one.npy"), made.reference()[[7]], rtol=1e-4, atol=1e-4)


def test_outputs_and_formats(made: Made) -> None:
    scores, hidden = made.reference(), made.reference(1)
    ids = np.array([2999, 0, 17])
    made.infer("classes.npy", output="classes")
    classes = np.load(made.folder / "classes.npy")
    assert classes.dtype == np.int64
    top = np.sort(scores, 1)
    clear = top[:, -1] - top[:, -2] > 1e-3
    assert clear.mean() > 0.9
    assert np.array_equal(classes[clear], scores.argmax(1)[clear])
    made.infer("embeddings.npy", output="embeddings")
    np.testing.assert_allclose(np.load(made.folder / "embeddings.npy"), hidden, rtol=1e-4, atol=1e-4)
    made.infer("classes.parquet", output="classes", nodes=ids)
    table = pq.read_table(made.folder / "classes.parquet")
    assert table.column_names == ["node", "class"]
    assert table["node"].to_pylist() == ids.tolist()
    assert table["class"].to_pylist() == classes[ids].tolist()
    made.infer("logits.parquet", memory=SMALL)
    table = pq.read_table(made.folder / "logits.parquet")
    assert table["node"].to_pylist() == list(range(3000))
    found = np.array(table["logits"].to_pylist(), np.float32)
    np.testing.assert_allclose(found, scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_sampled_with_all_neighbours_is_exact(tmp_path: Path, runtime: Any, name: str) -> None:
    made = Made(tmp_path, runtime, name)
    ids = np.random.default_rng(1).permutation(3000)[:300]
    options: dict[str, Any] = {"method": "sampled", "fanouts": (-1, -1), "batch_size": 64, "nodes": ids}
    made.infer(**options)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), made.reference()[ids], rtol=1e-4, atol=1e-4)
    made.infer(output="embeddings", **options)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), made.reference(1)[ids], rtol=1e-4, atol=1e-4)
    assert leftovers(tmp_path) == []


def test_sampled_is_keyed_and_takes_the_fanouts_of_the_training(made: Made) -> None:
    outputs = []
    for options in ({}, {}, {"seed": 1}, {"fanouts": (4, 3)}, {"fanouts": (4, 2)}, {"memory": "8MiB"}):
        made.infer(method="sampled", batch_size=500, **options)
        outputs.append((made.folder / "out.npy").read_bytes())
    assert outputs[0] == outputs[1] == outputs[3] == outputs[5]
    assert outputs[2] != outputs[0] != outputs[4]


def test_trained_model_of_cora(tmp_path: Path) -> None:
    source = shared_path("gnnbench-cora", "cora.npz")
    graph = outcrop.import_graph(
        f"npz:{source}", tmp_path / "cora", outcrop.ImportConfig(split_protocol="planetoid")
    )
    with outcrop.Runtime() as runtime:
        arrays = [graph.array(runtime, name) for name in ("indptr", "indices")]
        indptr, indices = (np.array(array.memmap()) for array in arrays)
        for array in arrays:
            array.close()
    x = features_of(graph)
    edges = np.stack([indices.astype(np.int64), np.repeat(np.arange(len(x)), np.diff(indptr))])
    for name in MODELS:
        checkpoint = tmp_path / name
        outcrop.train(
            graph, model=name, mode="online", epochs=3, hidden=32, fanouts=(5, 5), checkpoint=checkpoint
        )
        report = infer(graph, checkpoint=checkpoint, out=tmp_path / "out.npy", memory="3MiB")
        assert report.peak_host_bytes <= 3 << 20
        model = checkpoints.load_model(checkpoint)
        want = reference(model, as_float(x, "float32"), edges)
        np.testing.assert_allclose(np.load(tmp_path / "out.npy"), want, rtol=1e-4, atol=1e-4)


DYING = (
    DYING_PROGRESS
    + """
from outcrop.api.infer import infer
infer(sys.argv[1], checkpoint=sys.argv[2], out=sys.argv[3], memory="1MiB", progress=Progress())
"""
)


def test_killed_and_run_again(tmp_path: Path, runtime: Any) -> None:
    made = Made(tmp_path, runtime, "gcn", layers=3)
    made.infer("want.npy", memory=SMALL)
    killed = resumed = 0
    for after in (1, 8, 20, 26, 32, 40):
        out = tmp_path / f"out-{after}.npy"
        ended = python(DYING, made.graph.path, made.checkpoint, out, DIE_AFTER=str(after))
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        killed += ended.returncode != 0
        report = made.infer(out.name, memory=SMALL)
        resumed += report.resumed_layers
        assert out.read_bytes() == (tmp_path / "want.npy").read_bytes()
    assert killed >= 4
    assert resumed >= 2
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("left", [["rows.bin"], []])
def test_layers_that_could_not_be_removed_whole_are_not_in_the_way(made: Made, left: list[str]) -> None:
    """Their manifest is gone; a file, or the folder, was refused."""
    made.infer("want.npy")
    for name in ("layer-0", "layer-1", "counts"):
        folder = made.folder / ".out.npy.infer" / name
        folder.mkdir(parents=True)
        for file in left:
            (folder / file).write_bytes(bytes(10))
    assert made.infer().resumed_layers == 0
    assert (made.folder / "out.npy").read_bytes() == (made.folder / "want.npy").read_bytes()
    assert leftovers(made.folder) == []


def test_work_of_another_model_is_not_taken_over(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inference.exporting, "export", broken)
    with pytest.raises(KeyboardInterrupt):
        made.infer()
    monkeypatch.undo()
    made.model.convs[1].lin_l.weight.data.add_(0.1)
    save(made.checkpoint, made.graph, "sage", made.model)
    assert made.infer().resumed_layers == 0
    np.testing.assert_allclose(np.load(made.folder / "out.npy"), made.reference(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"name": "out.csv"}, ArgumentError, r"end its name in .npy or .parquet"),
        ({"name": "nowhere/out.npy"}, ArgumentError, "no such folder"),
        ({"name": "graph.npy"}, ArgumentError, "it is a folder"),
        ({"method": "magic"}, ArgumentError, "method 'magic' is unknown; known: layerwise, sampled"),
        ({"output": "all"}, ArgumentError, "output 'all' is unknown"),
        ({"nodes": [1, 2, 1]}, ArgumentError, "node 1 is there more than once"),
        ({"nodes": [1, 3000]}, ArgumentError, "1 ids, the first 3000, are not in 0 to 2999"),
        ({"nodes": [-1]}, ArgumentError, "the first -1"),
        ({"nodes": [0.5]}, ArgumentError, "no node ids: give integers"),
        ({"nodes": []}, ArgumentError, "no node ids: give integers"),
        ({"nodes": "missing.npy"}, FormatError, "there is no file '.*missing.npy'; nodes are given as"),
        ({"nodes": "missing.csv"}, FormatError, "missing.csv cannot be read: there is no such file"),
        (
            {"nodes": "valid"},
            FormatError,
            r"there is no file 'valid'; nodes are given as 'all', as 'train'",
        ),
        ({"nodes": ["7", "zoe"]}, ArgumentError, r"no node 'zoe'"),
        ({"memory": "300KiB"}, BudgetError, "the smallest budget that can is"),
        ({"method": "sampled", "fanouts": (1,)}, ArgumentError, "1 fanouts given for a model of 2 layers"),
    ],
)
def test_bad_arguments(made: Made, options: dict[str, Any], error: type[Exception], message: str) -> None:
    (made.folder / "graph.npy").mkdir()
    before = sorted(made.folder.rglob("*"))
    with pytest.raises(error, match=message):
        made.infer(**options)
    assert sorted(f for f in made.folder.rglob("*") if f.suffix != ".infer") == before


def test_smallest_budget_named_is_enough(made: Made) -> None:
    with pytest.raises(BudgetError) as failed:
        made.infer(memory="200KiB")
    smallest = int(str(failed.value).split("the smallest budget that can is ")[1].split()[0])
    report = made.infer(memory=smallest)
    assert report.peak_host_bytes <= smallest
    np.testing.assert_allclose(np.load(made.folder / "out.npy"), made.reference(), rtol=1e-4, atol=1e-4)


def test_checkpoints_that_do_not_fit(made: Made, runtime: Any, tmp_path: Path) -> None:
    other, edges = odd_graph(tmp_path / "wide", runtime, width=51)
    with pytest.raises(ArgumentError, match=r"features of width 50, .* has 51"):
        infer(other, checkpoint=made.checkpoint, out=tmp_path / "x.npy")
    other, edges = odd_graph(tmp_path / "less", runtime, nodes=2000)
    with pytest.raises(ArgumentError, match=r"another graph .* --any-graph \(any_graph=True\)"):
        infer(other, checkpoint=made.checkpoint, out=tmp_path / "x.npy")
    infer(other, checkpoint=made.checkpoint, out=tmp_path / "x.npy", any_graph=True)
    array = other.array(runtime, "features")
    want = reference(made.model, as_float(np.array(array.memmap()), "float32"), edges)
    array.close()
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), want, rtol=1e-4, atol=1e-4)
    shutil.rmtree(made.checkpoint)
    with pytest.raises(FormatError, match="train with a checkpoint folder first"):
        made.infer("y.npy")


def test_embeddings_of_one_layer(made: Made) -> None:
    model = a_model("sage", 50, 5, layers=1)
    save(made.checkpoint, made.graph, "sage", model)
    with pytest.raises(ArgumentError, match="no hidden layer"):
        made.infer(output="embeddings")
    made.infer()
    want = reference(model, made.x, made.edges)
    np.testing.assert_allclose(np.load(made.folder / "out.npy"), want, rtol=1e-4, atol=1e-4)


def test_disk_known_to_be_too_small(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(made.folder)
    monkeypatch.setattr(inference.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(IoError, match="free some space") as failed:
        made.infer()
    assert failed.value.errno == errno.ENOSPC
    assert not (made.folder / "out.npy").exists()


def test_disk_that_fills_up_while_exporting(made: Made) -> None:
    class Full:
        def __init__(self, *_: Any) -> None: ...
        def append(self, *_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference.exporting, "_Npy", Full)
        with pytest.raises(IoError, match=r"out.npy: No space left"):
            made.infer()
    assert not (made.folder / "out.npy").exists()
    assert not list(made.folder.glob(".out.npy.tmp"))
    assert made.infer().resumed_layers == 2


def test_damaged_topology_is_named(made: Made) -> None:
    path = made.graph.path / "indices.bin"
    raw = np.fromfile(path, np.uint32)
    raw[100] = 1 << 31
    raw.tofile(path)
    with pytest.raises(ChecksumError, match=r"indices.bin: the page at byte 0 was damaged"):
        made.infer(memory=SMALL)
    # A graph that was made before pages had checksums.
    manifest = made.graph.manifest
    arrays = {name: spec for name, spec in manifest.arrays.items() if not name.endswith("_page_crc")}
    made.graph = Graph(made.graph.path, replace(manifest, arrays=arrays))
    with pytest.raises(FormatError, match=r"indices.bin leads out of the graph"):
        made.infer(memory=SMALL)


def test_spans_cover_every_target_and_edge_once(made: Made, runtime: Any) -> None:
    from outcrop.store.edges import spans

    order = np.lexsort((made.edges[0], made.edges[1]))
    want = made.edges[:, order]
    wanted = np.array([3, 4, 50, 51, 2999])
    for targets, edges, some in ((1000, 5000, None), (7, 100, None), (10000, 10**6, None), (40, 500, wanted)):
        ids, found = [], []
        for span in spans(made.graph, runtime, targets, edges, some):
            ids.append(span.ids)
            (lists,) = span.lists
            for begin, end in lists.ranges():
                piece = lists.read(begin, end)
                assert len(piece.col) <= edges
                found.append(np.stack([piece.col.astype(np.int64), span.ids[piece.row]]))
        assert np.array_equal(np.concatenate(ids), np.arange(3000) if some is None else some)
        kept = want if some is None else want[:, np.isin(want[1], some)]
        assert np.array_equal(np.concatenate(found, 1), kept)


def test_division_stays_within_the_budget(made: Made) -> None:
    steps = steps_of(made.graph, made.model, OutputRequest(made.graph.node_types[0], 2, scores=True))
    for memory in (600 << 10, 1 << 20, 5 << 20, 100 << 20):
        for (step,) in steps:
            cut = division.divide(step, memory)
            (shape,) = step.inputs.values()
            buffers = 2 * shape.row_bytes * cut.rows
            assert cut.span_bytes + cut.part_bytes + cut.cache_bytes + buffers <= memory
            assert min(cut.targets, cut.rows, cut.edges) >= 1


def test_command(made: Made) -> None:
    code = "import sys; from outcrop.cli.main import run; sys.argv = ['outcrop', *sys.argv[1:]]; run()"
    options = ["--output", "classes", "--memory", "1MiB", "--json", made.folder / "r.json"]
    out = made.folder / "c.parquet"
    ended = python(code, "infer", made.graph.path, "--checkpoint", made.checkpoint, "--out", out, *options)
    assert ended.returncode == 0, ended.stderr
    assert "3000 rows of classes" in " ".join(ended.stdout.split())
    assert '"spans"' in (made.folder / "r.json").read_text()
    assert len(pq.read_table(out)) == 3000
