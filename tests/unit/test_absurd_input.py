"""Values that no machine can hold, and files that nest without end: refused where they enter, with one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artifact_support import manifest_at, small_graph
from outcrop.advisor.hardware import read_machine
from outcrop.config import (
    BucketConfig,
    EmbedConfig,
    GenerateConfig,
    ModelConfig,
    SampleConfig,
    TrainConfig,
    parse_size,
)
from outcrop.errors import ArgumentError, FormatError, OutcropError
from outcrop.runtime.parsing import parse_json, parse_toml
from outcrop.store import history, run
from outcrop.store.graph import open_graph
from outcrop.store.profile import read as read_profile

CASES: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (SampleConfig, {"fanouts": (99999999999999999999,)}, "fanout 99999999999999999999 is neither"),
    (SampleConfig, {"batch_size": 2**63}, "batch size 9223372036854775808 is above"),
    (SampleConfig, {"epochs": 2**128}, "epochs .* is above"),
    (SampleConfig, {"seed": -1}, "seed -1 is negative"),
    (ModelConfig, {"hidden": 2**31}, "hidden 2147483648 is above 2147483647"),
    (TrainConfig, {"epochs": 2**128}, "epochs .* is above"),
    (BucketConfig, {"seed": -1}, "seed -1"),
    (EmbedConfig, {"negatives": 2**63}, "negatives .* is above"),
    (EmbedConfig, {"chunk": 2**63}, "chunk .* is above"),
    (EmbedConfig, {"batch": 2**63}, "batch .* is above"),
    (EmbedConfig, {"sweeps": 2**63}, "sweeps .* is above"),
    (GenerateConfig, {"nodes": 2**63}, "nodes 9223372036854775808 is 2\\^63 or more"),
    (
        GenerateConfig,
        {"edges": 2**64, "features": 2**63},
        "edges .* is 2\\^63 or more.*features .* is 2\\^63",
    ),
    (parse_size, {"size": "99999999999999999999TiB"}, "2\\^63 bytes or more"),
    (parse_size, {"size": "9" * 400}, "2\\^63 bytes or more"),
    (parse_size, {"size": 1e9}, "size 1000000000.0 is not possible: give whole bytes"),
    (parse_size, {"size": None}, "size None is not possible"),
    (parse_size, {"size": 2**63}, "2\\^63 bytes or more"),
    (parse_size, {"size": "1" + "0" * 30 + "x", "feature_bytes": 1}, "2\\^63 bytes or more"),
]


@pytest.mark.parametrize(("make", "options", "says"), CASES)
def test_options(make: Callable[..., Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        make(**options)


def test_the_largest_are_taken() -> None:
    assert SampleConfig(fanouts=(-1, 2**31 - 1), batch_size=2**31 - 1).batch_size == 2**31 - 1
    assert parse_size(2**63 - 1) == 2**63 - 1


DEEP = 100_000


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (open_graph, ""),
        (run.read, ""),
        (history.read, "a.json"),
        (read_profile, "a.json"),
        (read_machine, "a.toml"),
    ],
)
def test_files_that_nest_deeply(tmp_path: Path, read: Callable[[Any], Any], name: str) -> None:
    for file in ("manifest.json", "run.json", "a.json"):
        (tmp_path / file).write_text("[" * DEEP)
    (tmp_path / "a.toml").write_text("a = " + "[" * DEEP)
    with pytest.raises(OutcropError, match="nested too deeply") as caught:
        read(tmp_path / name)
    assert str(tmp_path) in str(caught.value)


def test_parsing_is_that_of_the_standard_library() -> None:
    assert parse_json(b'{"a": [1, null]}') == {"a": [1, None]}
    assert parse_toml("a = [1]\n[b]\nc = 1.5") == {"a": [1], "b": {"c": 1.5}}


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 300])
def test_names_that_no_file_has(tmp_path: Path, name: str) -> None:
    graph = small_graph(tmp_path / "g")
    path = graph.path / "manifest.json"
    raw = manifest_at(path)
    raw["arrays"]["indptr"]["file"] = name
    path.write_text(json.dumps(raw))
    with pytest.raises(FormatError, match=r"indptr.* cannot be opened"):
        open_graph(graph.path)
