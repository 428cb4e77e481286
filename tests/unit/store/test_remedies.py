"""What is missing, or of something else: the message says what to do, and doing it helps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import outcrop as oc
from artifact_support import small_graph
from outcrop.errors import ArgumentError, FormatError


def test_a_path_that_leads_nowhere(tmp_path: Path) -> None:
    with pytest.raises(
        FormatError, match=r"nope\.oc does not exist: correct the path, or make a graph there first"
    ):
        oc.open_graph(tmp_path / "nope.oc")


def test_a_source_that_was_not_imported() -> None:
    with pytest.raises(FormatError, match=r"is a source, not a graph: .*outcrop import arrays:papers OUT"):
        oc.open_graph("arrays:papers")


def test_a_checkpoint_of_another_training_says_how_python_starts_over(tmp_path: Path) -> None:
    graph = small_graph(tmp_path / "g")
    sampling = oc.SampleConfig(fanouts=(3,), batch_size=20)
    oc.train(graph, model="sage", sampling=sampling, epochs=1, checkpoint=tmp_path / "c")
    with pytest.raises(ArgumentError, match=r"model \(there 'sage', now 'gcn'\)") as refused:
        oc.train(graph, model="gcn", sampling=sampling, epochs=1, checkpoint=tmp_path / "c")
    assert f"checkpoint=Checkpoints('{tmp_path}/c', resume=False))" in str(refused.value)
    again = oc.Checkpoints(tmp_path / "c", resume=False)
    assert oc.train(graph, model="gcn", sampling=sampling, epochs=1, checkpoint=again).epochs


def test_a_stage_of_a_run_is_made_again_by_prepare(tmp_path: Path) -> None:
    graph = small_graph(tmp_path / "g")
    sampling = oc.SampleConfig(fanouts=(3,), batch_size=20)
    oc.prepare(graph, tmp_path / "r", sampling=sampling, epochs=1)
    shutil.rmtree(tmp_path / "r" / "pack")
    with pytest.raises(
        FormatError, match=r"pack/manifest\.json is missing: outcrop prepare, with the options"
    ):
        oc.train(graph, run=tmp_path / "r", epochs=1)
    oc.prepare(graph, tmp_path / "r", sampling=sampling, epochs=1)
    assert oc.train(graph, run=tmp_path / "r", epochs=1).epochs


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_an_array_that_is_gone_or_torn_names_the_folder_to_make_again(tmp_path: Path, damage: str) -> None:
    file = small_graph(tmp_path / "g").path / "features.bin"
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-4096])
    with pytest.raises(FormatError, match=rf"features\.bin.*; remove {tmp_path}/g and make it again$"):
        oc.open_graph(tmp_path / "g")
    shutil.rmtree(tmp_path / "g")
    assert small_graph(tmp_path / "g").num_nodes
