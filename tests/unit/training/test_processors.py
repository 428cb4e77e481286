"""Checkpoints know what computed them, and training that goes on elsewhere says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import outcrop as oc
from outcrop.errors import OutcropWarning
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.checkpoint import LAST, processors_of
from outcrop.store import tensors
from outcrop.training import run as training_run

GRAPH = Path(__file__).parents[2] / "golden" / "checkpoint-0.1" / "graph.oc"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(folder: Path, epochs: int, on_choice: Callable[[str], None] | None) -> None:
    oc.train(
        GRAPH,
        model=oc.ModelConfig("sage", hidden=4),
        training=oc.TrainConfig(epochs=epochs),
        sampling=oc.SampleConfig(fanouts=(3, 2)),
        loading=oc.InMemory(),
        checkpoint=folder,
        observer=oc.Observer(progress=False, on_choice=on_choice),
    )


def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch says that it has two; to start the second would leave it to the tests that follow."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def said_of(folder: Path, epochs: int) -> str:
    said: list[str] = []
    train(folder, epochs, said.append)
    return "\n".join(line for line in said if "checkpoint" in line)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train(tmp_path, 1, None)
    return tmp_path


def test_other_threads_are_said_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_of(folder, 2) == ""
    two_threads(monkeypatch)
    said = said_of(folder, 3)
    assert re.search(rf"checkpoint in {folder} was computed with other threads \(1, now 2\), so", said), said
    assert "kind" not in said
    assert said_of(folder, 4) == ""  # which the checkpoint has by now


def test_another_kind_of_processor_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_run, "processor_kind", lambda: "another")
    said = said_of(folder, 2)
    assert f"checkpoint in {folder} was computed on another kind of processor, so" in said
    assert "(" not in said
    monkeypatch.undo()
    two_threads(monkeypatch)
    assert "on another kind of processor and with other threads (1, now 2)" in said_of(folder, 3)


def test_where_nobody_listens_it_is_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_threads(monkeypatch)
    with pytest.warns(OutcropWarning, match=r"other threads \(1, now 2\)"):
        train(folder, 2, None)


def test_training_anew_says_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_threads(monkeypatch)
    said: list[str] = []
    oc.train(
        GRAPH,
        model=oc.ModelConfig("sage", hidden=4),
        training=oc.TrainConfig(epochs=1),
        loading=oc.InMemory(),
        checkpoint=oc.Checkpoints(folder, resume=False),
        observer=oc.Observer(progress=False, on_choice=said.append),
    )
    assert "threads" not in "\n".join(said)


@pytest.mark.parametrize("there", [None, [], {"threads": 1}, ["x"], [["kind"]], 7])
def test_checkpoints_that_do_not_say_it_are_gone_on_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch, there: Any
) -> None:
    """Those of older versions lack it; what is garbled is not taken for something."""
    found = checkpoints.read(folder / LAST)
    parts = {
        f"{part}.{name}": value
        for part in ("model", "best", "optimizer")
        for name, value in getattr(found, part).items()
    }
    fields = {"kind": "last", **vars(found.meta), "processors": there}
    if there is None:
        del fields["processors"]
    tensors.write_tensors(folder / LAST, checkpoints.FORMAT, checkpoints.VERSION, parts, fields)
    assert processors_of(folder) == []
    if there is None or isinstance(there, list):
        assert said_of(folder, 2) == ""
        assert [threads for _, threads in processors_of(folder)] == [1]
    else:
        with pytest.raises(oc.FormatError, match="processors"):
            said_of(folder, 2)
