"""Identity: which differences end a training that would go on, and how texts of the first version are read."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import pytest

from outcrop.config import SampleConfig
from outcrop.errors import FormatError
from outcrop.store.identity import differences, inputs_of_version_1, sampling_fields

CONFIG = SampleConfig(
    fanouts=(4, -1), batch_size=16, epochs=3, sampler="labor", dependency=4, degrees=True, seed=9
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
    assert decided <= {field.name for field in fields(SampleConfig)}
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


@pytest.mark.parametrize("fresh", [False, True])
def test_texts_of_version_1_mean_what_they_meant(fresh):
    config = replace(CONFIG, epochs=1) if fresh else CONFIG
    text = "SampleConfig(" + ", ".join(f"{name}={value!r}" for name, value in asdict(config).items()) + ")"
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
