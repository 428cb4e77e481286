"""Splits without nodes are as if they were not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from outcrop.errors import ArgumentError

QUIET = oc.Observer(progress=False)


@pytest.mark.parametrize("mode", ["packed", "online", "memory", "ondisk"])
def test_nothing_is_scored_where_a_split_is_empty(tmp_path: Path, mode: str) -> None:
    rng = np.random.default_rng(0)
    parts = {
        "edges": rng.integers(0, 300, (2000, 2)),
        "features": rng.normal(size=(300, 8)).astype(np.float32),
        "labels": rng.integers(0, 3, 300),
    }
    splits = {"train": np.arange(150), "valid": np.arange(0), "test": np.arange(0)}
    empty = oc.import_graph(parts, tmp_path / "empty.oc", splits=splits, progress=False)
    bare = oc.import_graph(parts, tmp_path / "bare.oc", splits={"train": np.arange(150)}, progress=False)
    found, want = (oc.train(graph, loading=mode, epochs=2, observer=QUIET) for graph in (empty, bare))
    assert [epoch["loss"] for epoch in found.epochs] == [epoch["loss"] for epoch in want.epochs]
    assert [epoch["valid_accuracy"] for epoch in found.epochs] == [None, None]
    assert (found.best_epoch, found.test_accuracy) == (1, None)
    with pytest.raises(ArgumentError, match="patience needs validation nodes"):
        oc.train(empty, loading=mode, training=oc.TrainConfig(epochs=2, patience=1), observer=QUIET)
