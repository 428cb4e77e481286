"""Each direct dependency has a lower and an upper bound; scripts/bounds.py tests both as pyproject.toml has them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from support import REPOSITORY, script


@pytest.fixture
def bounds() -> ModuleType:
    script("lock")
    return script("bounds")


def test_every_direct_dependency_has_both_bounds(bounds: ModuleType) -> None:
    listed = [one for one in bounds.every_requirement() if one.name != "outcrop"]
    assert {"torch", "numpy", "pyarrow", "typer", "pytest", "ray", "triton", "ziglang"} <= {
        one.name for one in listed
    }
    for one in listed:
        low, high = bounds.lower_bound(one), bounds.upper_bound(one)
        assert low is not None, one
        assert high is not None, one
        assert low <= high, one
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    for one in map(Requirement, build):
        assert bounds.lower_bound(one) < bounds.upper_bound(one), one


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("torch>=2.9,<3", "2.9", "3"),
        ("torch<3,!=2.10,>=2.9", "2.9", "3"),
        ("ruff==0.17.5", "0.17.5", "0.17.5"),
        ("numpy>=1.26", "1.26", None),
        ("numpy<3", None, "3"),
        ("numpy", None, None),
    ],
)
def test_bounds_are_read_from_requirements(
    bounds: ModuleType, text: str, low: str | None, high: str | None
) -> None:
    found = bounds.lower_bound(Requirement(text)), bounds.upper_bound(Requirement(text))
    assert found == (low and Version(low), high and Version(high))


def test_versions_are_those_of_pyproject(
    bounds: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "outcrop"\ndependencies = ["torch>=7.1,<8", "one[more]>=2,<3"]\n'
        '[project.optional-dependencies]\ntest = ["outcrop[other]", "two==4.5", '
        '"gone>=1,<2; platform_system == \'Plan9\'"]\nother = ["three>=0.1,<1"]\nunused = ["four>=1,<2"]\n'
    )
    monkeypatch.setattr(bounds.lock, "ROOT", tmp_path)
    assert bounds.pins("oldest") == ["torch==7.1", "one[more]==2", "two==4.5", "three==0.1"]
    assert [str(Requirement(one)) for one in bounds.pins("newest")] == [
        str(Requirement(one)) for one in ("torch>=7.1,<8", "one[more]>=2,<3", "two==4.5", "three>=0.1,<1")
    ]


def test_what_it_runs_is_there(bounds: ModuleType) -> None:
    assert all((REPOSITORY / one).exists() for one in bounds.TESTS)
    makefile = (REPOSITORY / "Makefile").read_text()
    assert "scripts/bounds.py $(ARGS)" in makefile
