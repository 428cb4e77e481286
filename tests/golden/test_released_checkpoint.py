"""A checkpoint that version 0.1 wrote is gone on from, loaded and used for predictions for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from outcrop.errors import ArgumentError
from outcrop.nn import checkpoint as checkpoints

GOLDEN = Path(__file__).parent / "checkpoint-0.1"


@pytest.fixture
def released(tmp_path):
    return Path(shutil.copytree(GOLDEN, tmp_path / "released"))


@pytest.fixture
def expected():
    """What version 0.1 went on to: losses of four epochs, and sums of the logits that it predicted."""
    return json.loads((GOLDEN / "expected.json").read_bytes())


def go_on(released, expected, **changes):
    arguments = {**expected["arguments"], "sample_epochs": 1, "epochs": 4, **changes}
    return oc.train(released / "graph.oc", checkpoint=released / "ckpt", **arguments)


def test_training_goes_on(released, expected):
    result = go_on(released, expected)
    assert result.batch_losses == pytest.approx(expected["batch_losses"], rel=1e-4)
    assert result.batch_losses[:4] == expected["batch_losses"][:4]  # not trained again
    assert [record["epoch"] for record in result.epochs] == [0, 1, 2, 3]
    assert result.best_epoch == expected["best_epoch"]
    # From here on it is a checkpoint of today.
    assert checkpoints.read(released / "ckpt" / checkpoints.LAST).meta.inputs["sampling"]["fanouts"] == [3, 2]


def test_predictions_with_the_fanouts_of_the_training(released, expected):
    out = released / "logits.npy"
    oc.infer(released / "graph.oc", checkpoint=released / "ckpt", out=out, method="sampled")
    assert np.load(out).astype(float).sum(0) == pytest.approx(expected["sampled_logits_sum"], rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fanouts": [4, 2]}, r"sampling fanouts \(there \[3, 2\], now \[4, 2\]\)"),
        ({"sample_epochs": 4}, r"sampling epochs \(there 1, now 2\)"),
        ({"seed": 5}, r"sampling seed \(there 0, now 5\), seed \(there 0, now 5\)"),
    ],
)
def test_another_sampling_is_refused_by_name(released, expected, changes, message):
    with pytest.raises(ArgumentError, match=rf"differs in {message}: go on with the same values"):
        go_on(released, expected, **changes)
