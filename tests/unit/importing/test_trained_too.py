"""Held-out triples that are trained on are counted, against sets of Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import outcrop as oc
from embed_support import write_triples
from outcrop.cli.main import app
from outcrop.importing import trained_too
from outcrop.importing.triples import import_triples


@pytest.mark.parametrize("memory", [None, "1MiB"])
@pytest.mark.parametrize("relations", [0, 3])
def test_what_is_trained_on_is_counted(tmp_path, make_runtime, monkeypatch, relations, memory):
    monkeypatch.setattr(trained_too, "_MOST_ROWS", 97)
    searches = []
    monkeypatch.setattr(
        trained_too,
        "_Search",
        lambda rows, real=trained_too._Search: searches.append(len(rows)) or real(rows),
    )
    if memory:  # 500 triples take several passes
        monkeypatch.setattr(trained_too, "_ROW_BYTES", 2000)
    random = np.random.default_rng(relations)
    width = 3 if relations else 2
    most = [40, relations, 40] if relations else [40, 40]
    train = np.concatenate(
        [
            random.integers(0, most, (3000 if relations else 600, width)),
            np.array([[39] * width]) % (np.array(most)),
        ]
    )
    valid, test = random.integers(0, most, (500, width)), train[:200]
    every = [np.zeros((1, width), int)]  # all names occur in training
    every += [np.array([[i % m for m in most]]) for i in range(40)]
    train = np.concatenate([train, *every])
    folder = write_triples(tmp_path / "text", train=train, valid=valid, test=test)
    made = import_triples(str(folder), tmp_path / "kg", make_runtime(memory))
    assert sum(searches) == 700
    assert (len(searches) > 4) == (memory is not None)
    trained = {tuple(row) for row in train.tolist()}
    want = sum(tuple(row) in trained for row in valid.tolist())
    assert 0 < want < 500
    assert [note.partition(" triples")[0] for note in made.notes] == [
        f"{want} of 500 valid", "200 of 200 test"
    ]  # fmt: skip


def test_nothing_is_said_where_none_is(tmp_path, make_runtime):
    ends = np.stack(np.meshgrid(np.arange(20), np.arange(20)), -1).reshape(-1, 2)
    np.random.default_rng(0).shuffle(ends)
    triples = np.insert(ends, 1, 0, axis=1)
    folder = write_triples(tmp_path / "text", train=triples[:300], valid=triples[300:350], test=triples[350:])
    assert import_triples(str(folder), tmp_path / "kg", make_runtime()).notes == ()


@pytest.mark.parametrize("held", [[0, 0, 1], [1, 0, 0], [0, 1, 0]])
def test_all_parts_of_a_triple_count(tmp_path, make_runtime, held):
    """Of the same ends with another relation, or the other way round, nothing is trained on."""
    train = np.array([[0, 0, 0], [1, 1, 1], [0, 0, 1]])
    folder = write_triples(tmp_path / "text", train=train, test=np.array([held]))
    notes = import_triples(str(folder), tmp_path / "kg", make_runtime()).notes
    assert len(notes) == (held == [0, 0, 1])


def test_the_import_says_so(tmp_path: Path) -> None:
    train = np.array([[0, 0, 1], [1, 1, 0]])
    folder = write_triples(tmp_path / "text", train=train, test=train[:1])
    said = (
        "1 of 1 test triples are training triples, too: how well they rank says little about what was learned"
    )
    assert oc.import_triples(folder, tmp_path / "kg", progress=False).notes == (said,)
    done = CliRunner().invoke(app, ["import", f"triples:{folder}", str(tmp_path / "again")])
    assert f"note: {said}" in " ".join(done.output.split())
