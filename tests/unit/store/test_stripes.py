"""Shares of feature rows on other disks: outcrop stripe, and training that reads them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import outcrop as oc
from outcrop.cli.main import app
from outcrop.errors import ArgumentError, ChecksumError, FormatError
from outcrop.rows.rings import queue
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from outcrop.store.stripes import open_stripes
from run_support import a_graph, random_features

NODES, WIDTH = 401, 20
DRAWN = {"fanouts": (3, 3), "batch_size": 20, "hidden": 8, "epochs": 1, "trace_losses": True, "test": False}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = tmp_path_factory.mktemp("made") / "g"
    with Runtime(threads=1) as runtime:
        a_graph(path, runtime, nodes=NODES, edges=3000, width=WIDTH, train=120)
    return open_graph(path)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_stripes_hold_every_nth_row(graph, tmp_path, count, make_runtime):
    features = random_features(NODES, WIDTH, "float32")
    folders = [tmp_path / f"disk{k}" / "stripe" for k in range(1, count)]
    for folder in folders:
        folder.parent.mkdir()
    made = oc.stripe_features(graph, folders, memory="16MiB", progress=False)
    runtime = make_runtime(threads=1)
    # In whatever order they are named.
    for number, stripe in enumerate(open_stripes(graph, folders[::-1]), 1):
        assert stripe == made[number - 1]
        assert stripe.path == folders[number - 1]
        array = stripe.array(runtime)
        assert np.array_equal(array.memmap(check=True), features[number::count])
        array.close()
    again = [tmp_path / f"again{k}" for k in range(1, count)]
    oc.stripe_features(graph.path, again, progress=False)
    for one, other in zip(folders, again, strict=True):  # whatever the budget
        assert (one / "features.bin").read_bytes() == (other / "features.bin").read_bytes()
        assert (one / "manifest.json").read_bytes() == (other / "manifest.json").read_bytes()


def test_training_reads_the_graph_and_its_stripes(graph, tmp_path, monkeypatch):
    """Losses are those of mode memory, to the last bit; every file gives its share, and that share alone."""
    wanted = oc.train(graph, mode="memory", progress=False, **DRAWN).batch_losses
    folders = [tmp_path / "a", tmp_path / "b"]
    line = ["stripe", str(graph.path), *map(str, folders), "--json", str(tmp_path / "json")]
    ended = CliRunner().invoke(app, line)
    assert ended.exit_code == 0, ended.output
    sizes = {str(folder): (folder / "features.bin").stat().st_size for folder in folders}
    assert json.loads((tmp_path / "json").read_text()) == {"stripes": sizes}
    asked, submit = [], queue.RowQueue.submit

    def submitted(self, ids, *arguments, **options):
        asked.append((self, np.asarray(ids)))
        return submit(self, ids, *arguments, **options)

    monkeypatch.setattr(queue.RowQueue, "submit", submitted)
    line = [
        "train",
        str(graph.path),
        "--mode",
        "online",
        "--io",
        "gpu",
        "--stripe",
        folders[1],
        "--stripe",
        folders[0],
    ]
    line += ["--hidden", "8", "--epochs", "1", "--trace-losses", "--fanouts", "3,3", "--batch-size", "20"]
    ended = CliRunner().invoke(app, [*map(str, line), "--json", str(tmp_path / "json"), "--memory", "8MiB"])
    assert ended.exit_code == 0, ended.output
    assert json.loads((tmp_path / "json").read_text())["batch_losses"] == wanted
    files = {file.path for found, _ in asked for file in found._files.files}
    assert files == {graph.path / "features.bin", *(folder / "features.bin" for folder in folders)}
    shares = np.bincount(np.concatenate([ids for _, ids in asked]) % 3, minlength=3)
    assert (shares > 0).all()
    assert oc.train(
        graph, mode="online", io="gpu", stripes=folders, memory="8MiB", progress=False, **DRAWN
    ).batch_losses == pytest.approx(wanted, abs=0)


def test_stripes_of_other_graphs_and_too_few_are_refused(graph, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    oc.stripe_features(graph, [a, b], progress=False)
    with Runtime(threads=1) as runtime:
        other = a_graph(tmp_path / "other", runtime, nodes=NODES, edges=2000, width=WIDTH, train=120)
    with pytest.raises(
        FormatError, match=r"/a holds features of another graph than .*other: make the stripes again"
    ):
        oc.train(other, mode="online", io="gpu", stripes=[a, b], progress=False, **DRAWN)
    for given in ([a], [a, a]):
        with pytest.raises(ArgumentError, match=r"name every stripe once, .*: .*/a is stripe 1 of 3"):
            oc.train(graph, mode="online", io="gpu", stripes=given, progress=False, **DRAWN)
    with pytest.raises(FormatError, match=r"'outcrop.graph', not 'outcrop.stripe'"):
        open_stripes(graph, [graph.path])
    with pytest.raises(ArgumentError, match=r"stripes \(x\) are read by io gpu alone, not engine"):
        oc.Online(stripes=("x",))


def test_what_is_there_stays_unless_it_is_a_stripe_to_be_replaced(graph, tmp_path):
    a, kept = tmp_path / "a", tmp_path / "kept"
    oc.stripe_features(graph, [a], progress=False)
    with pytest.raises(ArgumentError, match=r"/a holds an artifact.*--overwrite"):
        oc.stripe_features(graph, [a], progress=False)
    oc.stripe_features(graph, [a, tmp_path / "b"], overwrite=True, progress=False)
    assert open_stripes(graph, [a, tmp_path / "b"])[0].count == 3
    shutil.copytree(graph.path, kept)
    with pytest.raises(ArgumentError, match="kept is no stripe, and stays"):
        oc.stripe_features(graph, [kept], overwrite=True, progress=False)
    for folders in ([], [a, tmp_path / "." / "a"]):
        with pytest.raises(ArgumentError, match="stripes need a folder each"):
            oc.stripe_features(graph, folders, overwrite=True, progress=False)
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="in the way"):
        oc.stripe_features(graph, [tmp_path / "file"], progress=False)


def test_damaged_features_make_no_stripes(graph, tmp_path):
    copy = open_graph(shutil.copytree(graph.path, tmp_path / "copy"))
    with (copy.path / "features.bin").open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    with pytest.raises(ChecksumError, match=r"features\.bin"):
        oc.stripe_features(copy, [tmp_path / "a", tmp_path / "b"], progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]
    oc.stripe_features(graph, [tmp_path / "a"], progress=False)
    ended = CliRunner().invoke(app, ["verify", str(tmp_path / "a")])
    assert ended.exit_code == 0
    assert "every checksum right" in " ".join(ended.output.split())
