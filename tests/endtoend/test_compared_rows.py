"""Rows of all modes are compared with NumPy's (scripts/compare_rows.py): few here, a billion in ``make soak``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from support import script


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "add_run", script("add_run"))
    found = script("compare_rows")
    for name, value in {"NODES": 20_000, "EDGES": 150_000, "TRAIN": 0.05, "MEMORY": 4 << 20}.items():
        monkeypatch.setattr(found, name, value)
    monkeypatch.setattr(found, "SAMPLING", replace(found.SAMPLING, batch_size=64))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", range(4))
def test_rows_of_all_modes(module: ModuleType, tmp_path: Path, kind: int) -> None:
    assert len(module.KINDS) == 4
    made = module.Comparison(tmp_path, list(module.KINDS)[kind], 1, 0)
    made.compare()
    assert set(made.found) == set(module.MODES)
    for found in made.found.values():
        assert (found.wrong, found.rows > 1_000) == (0, True)
    assert (made.unread(), made.unlike()) == ([], [])


def test_a_cache_that_decides_leaves_room_for_values(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers that grow hold what is decoded too, four times what the cache holds of a row in bytes."""
    monkeypatch.setattr(module, "MODES", ("memory", "dynamic"))
    made = module.Comparison(tmp_path, "48 in int8", 1, 0)
    made.compare()
    assert made.found["dynamic"].wrong == 0
    assert made.unlike() == []


def test_what_differs_is_counted(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that memory has otherwise, batches that one mode has otherwise, and a mode that reads nothing."""
    monkeypatch.setattr(module, "MODES", ("memory", "packed", "online"))
    made = module.Comparison(tmp_path, "101 float16", 1, 0)
    made._wanted.view(np.uint16)[7, 100] ^= 1
    load = made._load

    def other(mode: str, seed: int, sampling: object, run: Path) -> None:
        load(mode, seed, replace(sampling, seed=seed + (mode == "online")), run)

    monkeypatch.setattr(made, "_load", other)
    made.compare()
    made.found["packed"].read = 0
    assert [made.found[mode].wrong > 0 for mode in module.MODES] == [True] * 3
    assert made.found["packed"].wrong == made.found["memory"].wrong < made.found["memory"].rows / 20
    assert (made.unread(), made.unlike()) == (["packed"], ["online"])


def test_bits_types_and_widths_differ(module: ModuleType) -> None:
    x = np.array([[0.0, 1.0], [np.nan, 2.0]], np.float32)
    assert module.different_rows(x.copy(), x) == 0
    assert module.different_rows(np.array([[-0.0, 1.0], [np.nan, 2.0]], np.float32), x) == 1
    assert module.different_rows(x.astype(np.float64), x) == 2
    assert module.different_rows(x[:, :1], x) == 2
    assert module.different_rows(x[:1], x) == 2


def test_runs_add_up(module: ModuleType) -> None:
    runs = [
        {"compared": {"a": {"memory": [10, 40, 0], "packed": [12, 48, 1]}}, "unlike": []},
        {"compared": {"a": {"memory": [5, 20, 0]}, "b": {"memory": [1, 4, 0]}}, "unlike": ["b: mode x"]},
    ]
    told = module.rows_of(runs)
    assert (told["rows_compared"], told["wrong"]) == (28, 2)
    assert [row[:2] + row[4:] for row in told["rows"]] == [
        ["a", "memory", "0"],
        ["a", "packed", "1"],
        ["b", "memory", "0"],
    ]
