"""Files that fuzzing found (make fuzz): each ended in something other than an error in one line that names it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

import outcrop as oc
from artifact_support import manifest_at
from outcrop.errors import FormatError
from outcrop.nn.checkpoint import load_model
from outcrop.store.graph import open_graph
from outcrop.store.run import read as read_run

QUIET = oc.Observer(progress=False)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    edges = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [0, 2]])
    given = {"edges": edges, "features": np.ones((5, 3), np.float32), "labels": np.arange(5) % 2}
    return oc.import_graph(given, tmp_path / "g", oc.ImportConfig(train_fraction=0.6), progress=False).path


def refused(call, *names: str) -> str:
    with pytest.raises(FormatError) as error:
        call()
    said = str(error.value)
    assert "\n" not in said
    assert all(name in said for name in names), said
    return said


def test_a_size_that_is_true_or_false(graph: Path) -> None:
    manifest = manifest_at(graph / "manifest.json")
    manifest["arrays"]["features_page_crc"]["shape"] = [False]
    (graph / "manifest.json").write_text(json.dumps(manifest))
    refused(lambda: open_graph(graph), "manifest.json", "'features_page_crc' has an impossible shape")


def test_a_version_of_several_lines(graph: Path, tmp_path: Path) -> None:
    run = oc.prepare(graph, tmp_path / "r", sampling=oc.SampleConfig([2], 2), epochs=1, observer=QUIET)
    told = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**told, "version": "1\n2"}))
    refused(lambda: read_run(run.path), "run.json", r"version '1\n2'")


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (6, struct.pack("<H", 195)),
        (46, b"\x9b"),
    ],  # in the central directory: the version that is needed, a name
    ids=["another version of zip", "a name that is no text"],
)
def test_archives_that_zipfile_refuses_in_its_own_ways(tmp_path: Path, at: int, value: bytes) -> None:
    path = tmp_path / "g.npz"
    np.savez(path, adj_data=np.ones(3))
    data = bytearray(path.read_bytes())
    first = data.index(b"PK\x01\x02")
    data[first + at : first + at + len(value)] = value
    data[first + 8 : first + 10] = struct.pack("<H", 0x800)  # names are UTF-8
    path.write_bytes(data)
    refused(
        lambda: oc.import_graph(f"npz:{path}", tmp_path / "g.oc", progress=False),
        str(path),
        "no .npz archive",
    )


def test_a_table_with_an_end_of_line_within_a_cell(tmp_path: Path) -> None:
    """Arrow takes it for one row, Python's reader for an error, when it is to say what the cell holds."""
    path = tmp_path / "edges.csv"
    path.write_bytes(b"src,dst,weight\r\n0,1,0.5\r\n7,4,0.5\r,w4,st\0\n")
    said = refused(lambda: oc.import_graph(f"edges:{path}", tmp_path / "g.oc", progress=False), str(path))
    assert "every row needs a value" in said


def test_a_checkpoint_of_a_model_that_cannot_be(graph: Path, tmp_path: Path) -> None:
    oc.train(
        graph,
        model=oc.ModelConfig("sage", hidden=4, layers=1),
        sampling=oc.SampleConfig([2], 2),
        epochs=1,
        checkpoint=tmp_path / "c",
        loading="memory",
        observer=QUIET,
    )
    for path in (tmp_path / "c").glob("*.safetensors"):
        with safetensors.safe_open(path, "pt") as file:
            told, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(told["outcrop"].replace('"sage"', '"gine"'))
        del header["header_sha256"]  # of an earlier version, or of somebody who computes it anew
        safetensors.torch.save_file(tensors, path, {"outcrop": json.dumps(header)})
    refused(lambda: load_model(tmp_path / "c"), str(tmp_path / "c"), "needs features of edges")
