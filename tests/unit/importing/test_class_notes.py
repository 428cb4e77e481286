"""Notes on classes that no training node has, against sets of Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from outcrop.importing.sources import checks

COUNT = 60


def notes(tmp_path: Path, labels: object, train: list[int], **splits: list[int]) -> list[str]:
    edges = np.stack([np.arange(COUNT), np.roll(np.arange(COUNT), 1)])
    graph = oc.import_graph(
        {"edges": edges, "features": np.ones((COUNT, 2), np.float32), "labels": labels},
        tmp_path / "g.oc",
        oc.ImportConfig(reverse=True),
        splits={"train": np.array(train), **{name: np.array(ids) for name, ids in splits.items()}},
        progress=False,
    )
    return [note for note in graph.notes if "cannot learn" in note]


@pytest.mark.parametrize("seed", range(3))
def test_classes_of_no_training_node_are_named(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(checks, "_IDS_AT_A_TIME", 7)
    random = np.random.default_rng(seed)
    labels, order = random.integers(0, 12, COUNT), random.permutation(COUNT).tolist()
    train, valid, test = order[:10], order[10:30], order[30:55]
    learned = {int(labels[i]) for i in train}
    others = [int(labels[i]) for i in valid + test if labels[i] not in learned]
    assert others
    missing = sorted({*others})
    shown = ", ".join(map(str, missing[:3])) + ("" if len(missing) <= 3 else ", ...")
    assert notes(tmp_path, labels, train, valid=valid, test=test) == [
        f"{len(missing)} of {labels.max() + 1} classes ({shown}) are those of {len(others)} nodes of valid and test, "
        "and of no training node: a model cannot learn them"
    ]


def test_they_go_by_their_names(tmp_path):
    labels = np.array(["ash", "birch", "cedar"])[np.arange(COUNT) % 3]
    said = notes(tmp_path, labels, [0, 1, 3, 4], valid=[6, 7], test=[2, 5, 9])
    assert said == [
        "1 of 3 classes (cedar) are those of 2 nodes of valid and test, and of no training node: a model cannot learn "
        "them"
    ]


def test_nothing_is_said_where_all_are_learned(tmp_path):
    assert notes(tmp_path, np.arange(COUNT) % 3, [0, 1, 2], test=[3, 4, 5]) == []


@pytest.mark.parametrize("labels", [np.eye(COUNT, 4), np.linspace(0, 1, COUNT)])
def test_other_labels_have_no_classes(tmp_path, labels):
    assert notes(tmp_path, labels.astype(np.float32), [0, 1], test=[3, 4, 5]) == []


def test_nodes_of_splits_without_a_label_are_counted(tmp_path):
    labels = np.where(np.arange(COUNT) % 3, np.arange(COUNT) % 2, -1)
    edges = np.stack([np.arange(COUNT), np.roll(np.arange(COUNT), 1)])
    parts = {"edges": edges, "features": np.ones((COUNT, 2), np.float32), "labels": labels}
    splits = {"train": np.arange(30), "valid": np.arange(31, 33), "test": np.arange(33, 43)}
    graph = oc.import_graph(parts, tmp_path / "g.oc", splits=splits, progress=False)
    missing = {name: sum(labels[i] < 0 for i in ids) for name, ids in splits.items()}
    assert missing == {"train": 10, "valid": 0, "test": 4}
    assert [note for note in graph.notes if "no label" in note] == [
        "10 of 30 nodes of train, 4 of 10 nodes of test have no label: training and scores leave them out, and loops "
        "of your own find y = -1"
    ]
    whole = oc.import_graph({**parts, "labels": labels + 1}, tmp_path / "h.oc", splits=splits, progress=False)
    assert not [note for note in whole.notes if "no label" in note]
