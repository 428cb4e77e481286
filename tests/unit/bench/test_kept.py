"""What a long benchmark keeps while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from outcrop.bench.kept import Kept


def test_what_was_measured_of_the_same_setting_is_not_measured_again(tmp_path: Path) -> None:
    calls: list[str] = []

    def measure(name: str, setting: dict) -> dict:
        def run() -> dict:
            calls.append(name)
            return {"seconds": len(calls)}

        return Kept(tmp_path / "kept.json", setting).measured(name, run)

    first = {"rounds": 3, "sizes": (1, 2)}  # a list where it is read again
    assert measure("a", first) == {"seconds": 1}
    assert measure("b", first) == {"seconds": 2}
    assert measure("a", first) == {"seconds": 1}
    assert measure("a", {**first, "rounds": 5}) == {"seconds": 3}
    assert measure("b", {**first, "rounds": 5}) == {"seconds": 4}
    assert calls == ["a", "b", "a", "b"]


def test_a_measurement_that_fails_leaves_those_before_it(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept.json", {})
    kept.measured("a", lambda: {"seconds": 1})

    def fail() -> dict:
        raise ValueError("not this time")

    with pytest.raises(ValueError, match="not this time"):
        kept.measured("b", fail)
    assert Kept(tmp_path / "kept.json", {}).measured("a", fail) == {"seconds": 1}
