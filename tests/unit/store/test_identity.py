"""Identity: which differences end a training that would go on, and how texts of the first version are read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outcrop.config import PlanConfig, SampleConfig
from outcrop.errors import FormatError
from outcrop.store import run
from outcrop.store.identity import differences, inputs_of_version_1, sampling_fields

CONFIG = SampleConfig(
    fanouts=(4, -1), batch_size=16, epochs=3, sampler="labor", batch_dependency=4, degrees=True, seed=9
)


def differing(left, right, begun=2):
    return differences({"sampling": left}, {"sampling": right}, begun, {})


def test_every_field_that_decides_batches_is_compared_with_its_default_where_it_is_missing():
    have = sampling_fields(CONFIG)
    assert differing(have, have) == []
    defaults = sampling_fields(SampleConfig())
    for name in have:
        without = {key: value for key, value in have.items() if key != name}
        same = have[name] == defaults[name]
        assert bool(differing(without, have)) is not same
        assert bool(differing(have, without)) is not same
    assert differing({**have, "later": 1}, have) == ["sampling later (there 1, now None)"]


def test_a_field_that_does_not_decide_batches_is_none_of_identity():
    decided = set(sampling_fields(CONFIG))
    assert decided <= SampleConfig().as_stored().keys()
    assert "edge_ids" not in decided


@pytest.mark.parametrize(
    ("there", "now", "begun", "same"),
    [
        (1, 1, 5, True),
        (1, 5, 1, True),  # one epoch was trained: all its batches are of epoch 0
        (1, 5, 2, False),
        (4, 8, 4, True),
        (4, 8, 5, False),
        (8, None, 8, True),
        (8, None, 9, False),
        (None, None, 100, True),
    ],
)
def test_epochs_that_were_drawn_ahead_differ_where_batches_that_were_used_do(there, now, begun, same):
    """By brute force: the batches of epoch e are those drawn by ``e % epochs``, or by ``e`` where all are new."""
    numbers = [[e if drawn is None else e % drawn for e in range(begun)] for drawn in (there, now)]
    assert (numbers[0] == numbers[1]) is same
    assert (not differing({"epochs": there}, {"epochs": now}, begun)) is same


def test_fields_have_their_names_of_before_on_disk():
    stored = CONFIG.as_stored()
    assert stored["dependency"] == 4
    assert "batch_dependency" not in stored
    assert SampleConfig.from_stored(stored) == CONFIG
    assert sampling_fields(CONFIG)["dependency"] == 4


def test_a_run_of_before_is_read_and_written_as_it_was(tmp_path):
    info = run.RunInfo("../g.oc", "0" * 64, CONFIG, PlanConfig())
    run.write(tmp_path, info)
    text = (tmp_path / run.RUN_FILE).read_text()
    assert '"dependency": 4' in text
    assert "batch_dependency" not in text
    assert run.read(tmp_path) == info


@pytest.mark.parametrize("fresh", [False, True])
def test_texts_of_version_1_mean_what_they_meant(fresh):
    config = replace(CONFIG, epochs=1) if fresh else CONFIG
    text = (
        "SampleConfig(" + ", ".join(f"{name}={value!r}" for name, value in config.as_stored().items()) + ")"
    )
    found = inputs_of_version_1(
        {"graph": "aa", "sampling": text + (" refreshed" if fresh else ""), "partitions": "8, resident None"}
    )
    assert found == {
        "graph": "aa",
        "sampling": {**sampling_fields(config), **({"epochs": None} if fresh else {})},
        "partitions": {"partitions": 8, "resident": None},
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SampleConfig",
        "SampleConfig(fanouts=__import__('os'))",
        "SampleConfig(other=1)",
        7,
        "(" * 5000,
        "f(*[1])",
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(FormatError, match="the inputs of the training cannot be read"):
        inputs_of_version_1({"sampling": text})
